"""What the tensor core computes: decoded operands, products, sums, bit for bit.

PTX leaves the order and the rounding open (9.7.15.5.2, 9.7.14.5.14). What an H200 does was found
from its recorded answers (tests/emulator/snippets), which this reproduces: all products of one
instruction and the accumulator are aligned to the largest exponent among them (of a product: the
sum of its factors' exponents), cut to a fixed number of fraction bits, added exactly, and the sum
is rounded once.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hopwell.emulator.numerics.arithmetic import fma64_nearest
from hopwell.emulator.numerics.rounding import narrow
from hopwell.errors import UnsupportedLayout

Values = npt.NDArray[Any]

# Bits of an element in memory and in a register.
BITS = {
    "b1": 1,
    "s8": 8,
    "u8": 8,
    "e4m3": 8,
    "e5m2": 8,
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f64": 64,
}
_FP8 = ("e4m3", "e5m2")

FRACTION_BITS = 25
"""Fraction bits below the largest exponent that a term keeps."""

FP8_FRACTION_BITS = 13
"""The same of FP8 products in ``wgmma``, and the fraction bits of their sum in f32."""

_FRACTION_BITS = {"f32": 23, "f16": 10}

_NAN_BITS = {"f32": (np.uint32, 0x7FFFFFFF), "f16": (np.uint16, 0x7FFF)}
"""The one NaN that arithmetic yields."""

_ACCUMULATORS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
}


def elements(rows: Values, element: str) -> Values:
    """Matrix rows as elements: uint8 (rows, bytes) to unsigned (rows, K) of the element's size.

    Single bits come one to a byte, lowest first.
    """
    if element == "b1":
        return np.unpackbits(rows, axis=-1, bitorder="little")
    return rows.view(f"u{BITS[element] // 8}")


def decode(bits: Values, element: str) -> Values:
    """Exact float64 values of elements given as unsigned integers of their size.

    The low 13 bits of a TF32 operand are not used (PTX ISA 9.7.15.5.2).
    """
    if element in _FP8:
        return fp8_values(element)[bits]
    if element == "f64":
        return bits.view(np.float64)
    if element == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if element == "f16":
        return bits.view(np.float16).astype(np.float64)
    if element == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return (bits.view(np.int8) if element == "s8" else bits).astype(np.float64)


@lru_cache(maxsize=2)
def fp8_values(element: str) -> npt.NDArray[np.float64]:
    """Value of each of the 256 encodings of "e4m3" or "e5m2" (PTX ISA 5.2.3)."""
    fraction_bits, bias = (3, 7) if element == "e4m3" else (2, 15)
    code = np.arange(256)
    exponent = code >> fraction_bits & (1 << 7 - fraction_bits) - 1
    fraction = (code & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    normal = exponent > 0
    values = np.ldexp(normal + fraction, np.maximum(exponent, 1) - bias)
    if element == "e4m3":
        values[code & 0x7F == 0x7F] = np.nan
    else:
        values[exponent == 31] = np.where(fraction[exponent == 31] == 0, np.inf, np.nan)
    values = np.where(code & 0x80, -values, values)
    values.setflags(write=False)
    return values


def multiply(
    a: Values,
    b: Values,
    c: Values | None,
    a_type: str,
    b_type: str,
    accumulator: str,
    *,
    negate: bool = False,
    saturate: bool = False,
    xor: bool = False,
) -> Values:
    """``a @ b + c``, or ``a @ b`` where ``c`` is None.

    ``a`` (M, K) and ``b`` (K, N) are unsigned integers of the element's size as
    :func:`elements` gives them, ``c`` (M, N) float16, float32, float64 or int32 as ``accumulator``
    ("f16", "f32", "f64", "s32") says; so is the result. ``negate`` flips the products' sign (one
    of the two operands is negated), ``saturate`` is ``.satfinite`` of the integer forms, ``xor``
    counts the bits in which rows of ``a`` and columns of ``b`` differ.
    """
    x, y = decode(a, a_type), decode(b, b_type)
    if negate:
        x = -x
    if accumulator == "s32":
        differing = x.sum(1)[:, None] + y.sum(0) - 2 * (x @ y) if xor else x @ y
        return _integers(differing, c, saturate)
    if accumulator == "f64":
        return _chain(x, y, np.zeros((x.shape[0], y.shape[1])) if c is None else c)
    start = np.zeros((x.shape[0], y.shape[1])) if c is None else c.astype(np.float64)
    fp8 = a_type in _FP8
    total = _aligned_sum(x, y, start, FP8_FRACTION_BITS if fp8 else FRACTION_BITS)
    if accumulator == "f16":
        result = total.astype(np.float16)
    else:
        if fp8:
            total.view(np.int64)[...] &= -1 << 52 - FP8_FRACTION_BITS
        result = narrow(total, "rz")
    invalid = np.isnan(result)
    if invalid.any():
        container, bits = _NAN_BITS[accumulator]
        result.view(container)[invalid] = bits
    return result


def _chain(x: Values, y: Values, total: Values) -> Values:
    """Fused multiplications and additions, one k after the other."""
    for k in range(x.shape[1]):
        a, b = np.broadcast_arrays(x[:, k, None], y[k])
        total = fma64_nearest(a.ravel(), b.ravel(), total.ravel()).reshape(total.shape)
    return total


def _integers(total: Values, c: Values | None, saturate: bool) -> Values:
    """Sums below 2**53, which float64 holds exactly, wrapped or clamped."""
    if c is not None:
        total += c
    limits = np.iinfo(np.int32)
    if saturate:
        return np.clip(total, limits.min, limits.max).astype(np.int32)
    return total.astype(np.int64).astype(np.int32)


def _exponents(values: Values) -> npt.NDArray[np.int16]:
    """Exponents of finite float64; of zero, -1023, so that it is never the largest."""
    return ((values.view(np.int64) >> 52 & 0x7FF) - 1023).astype(np.int16)


def _aligned_sum(x: Values, y: Values, start: Values, fraction_bits: int) -> Values:
    """``x @ y + start`` in float64, each term cut below the largest exponent (see above)."""
    special = None
    if not (np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(start).all()):
        special = x @ y + start
        x, y, start = (np.nan_to_num(v, nan=0.0, posinf=0.0, neginf=0.0) for v in (x, y, start))
    top, x_exponents, y_exponents = _exponents(start), _exponents(x), _exponents(y)
    for k in range(x.shape[1]):
        np.maximum(top, x_exponents[:, k, None] + y_exponents[k], out=top)
    # A power of two, from its exponent's field.
    field = 1023 + fraction_bits - np.maximum(top, -512).astype(np.int64)
    scale = (field << 52).view(np.float64)
    total = np.trunc(start * scale)
    term = np.empty_like(total)
    for k in range(x.shape[1]):
        np.multiply(x[:, k, None], y[k], out=term)
        term *= scale
        total += np.trunc(term, out=term)
    total /= scale
    if special is not None:
        total = np.where(np.isfinite(special), total, special)
    return total


def accumulation_bound(
    a: Values, b: Values, c: Values | None, a_type: str, accumulator: str
) -> npt.NDArray[np.float64]:
    """Largest distance (M, N) of one instruction's result from the exact ``a @ b + c``.

    ``a`` (M, K), ``b`` (K, N) and ``c`` (M, N) are float64 values. Each of the K + 1 terms is
    aligned to the largest and truncated to the accumulator's fraction bits (to
    :data:`FP8_FRACTION_BITS` for FP8), then the sum is truncated or rounded to as many.
    Both the hardware and :func:`multiply` stay within it, so they differ by at most twice this.
    Integers are exact: zero. Where the true sum overflows the accumulator no bound holds.
    """
    products = np.abs(a)[:, :, None] * np.abs(b)[None, :, :]
    start = np.zeros(products.shape[::2]) if c is None else np.abs(c)
    if accumulator == "s32":
        return np.zeros_like(start)
    largest = np.maximum(products.max(axis=1), start)
    everything = products.sum(axis=1) + start
    bits = _FRACTION_BITS[accumulator]
    if a_type in _FP8:
        bits = min(bits, FP8_FRACTION_BITS)
    smallest = np.finfo(_ACCUMULATORS[accumulator]).smallest_subnormal
    return (largest * (a.shape[1] + 1) + everything) * 2.0**-bits + float(smallest)


def check_types(
    a_type: str, b_type: str, accumulator: str, allowed: tuple[tuple[str, str, str], ...]
) -> None:
    """Raise :class:`UnsupportedLayout` for a combination of types not in the table."""
    if (a_type, b_type, accumulator) not in allowed:
        raise UnsupportedLayout(
            "types of a matrix product",
            expected="a combination that PTX lists for this instruction and shape",
            actual=f"A {a_type}, B {b_type}, accumulator {accumulator}",
            consequence="The emulator does not multiply these.",
        )

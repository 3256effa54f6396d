"""Inputs by seed: every class of number, halfway cases, and plain random ones.

Bits come from SplitMix64, so that they are the same with every version of NumPy.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Exponent and mantissa bits of each floating type.
FLOATS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "f32": (8, 23),
    "f64": (11, 52),
}
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def bits_of(type_: str) -> int:
    """The width of a PTX type in bits; a packed type counts whole (``f16x2``: 32)."""
    if type_ == "pred":
        return 32
    name, _, packed = type_.partition("x")
    width = {"e4m3": 8, "e5m2": 8, "tf32": 32}.get(name) or int(name.lstrip("busft"))
    return width * int(packed or 1)


@functools.lru_cache(maxsize=64)
def _stream(seed: int, count: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def random_bits(seed: int, count: int, width: int) -> Array:
    """``count`` uniform unsigned integers of ``width`` bits."""
    dtype = next(d for bits, d in UNSIGNED.items() if bits >= width)
    return (_stream(seed, count) >> np.uint64(64 - width)).astype(dtype)


def below(seed: int, count: int, bound: int) -> Array:
    """``count`` int64 in [0, bound)."""
    return (_stream(seed, count) % np.uint64(bound)).astype(np.int64)


def special_floats(type_: str) -> Array:
    """Bit patterns at which float instructions change their mind: every class, and its edges."""
    exponent, mantissa = FLOATS[type_]
    bias = (1 << exponent - 1) - 1
    one = bias << mantissa
    top = ((1 << exponent) - 1) << mantissa
    quiet = 1 << mantissa - 1
    positive = [
        0,  # zero
        1,  # least subnormal
        (1 << mantissa) - 1,  # greatest subnormal
        1 << mantissa,  # least normal
        (1 << mantissa) + 1,
        one - (1 << mantissa),  # 1/2
        one - 1,
        one,
        one + 1,
        one + quiet,  # 3/2
        one + (1 << mantissa),  # 2
        (bias + mantissa) << mantissa,  # the first integers without halves
        top - 1,  # greatest finite
        top,  # infinity
        top | quiet,  # quiet NaN
        top | 1,  # signalling NaN
    ]
    sign = 1 << exponent + mantissa
    return np.array([p | s for p in positive for s in (0, sign)], UNSIGNED[exponent + mantissa + 1])


def moderate_floats(seed: int, count: int, type_: str, spread: int = 6) -> Array:
    """Bit patterns of finite numbers whose exponents lie within ``spread`` of one's."""
    exponent, mantissa = FLOATS[type_]
    width = exponent + mantissa + 1
    bits = random_bits(seed, count, width).astype(np.uint64)
    chosen = below(seed + 1000, count, 2 * spread) + ((1 << exponent - 1) - 1 - spread)
    keep = np.uint64((1 << mantissa) - 1 | 1 << width - 1)
    return ((bits & keep) | (chosen.astype(np.uint64) << np.uint64(mantissa))).astype(
        UNSIGNED[width]
    )


def special_integers(width: int) -> Array:
    """Bit patterns at which integer instructions change their mind."""
    top = 1 << width - 1
    values = [0, 1, 2, 3, 7, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, top // 2, 0x55]
    return np.array([v % (2 * top) for v in values], UNSIGNED[width])


def _pack(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def column(type_: str, seed: int, count: int) -> Array:
    """``count`` operands of a PTX type, as bits: a third special, a third moderate, a third any."""
    if type_ == "pred":
        return random_bits(seed, count, 32) & np.uint32(1)
    name, _, packed = type_.partition("x")
    if packed and name in FLOATS:
        return _pack(column(name, seed, count), column(name, seed + 7, count))
    width = bits_of(type_)
    any_ = random_bits(seed, count, width)
    if name not in FLOATS:
        special = special_integers(width)
        small = any_ >> UNSIGNED[width](width - width // 4)
        return _mixed(seed, any_, special, small)
    return _mixed(seed, any_, special_floats(name), moderate_floats(seed, count, name))


def _mixed(seed: int, any_: Array, special: Array, moderate: Array) -> Array:
    count = any_.size
    kind = below(seed + 2000, count, 3)
    picked = special[below(seed + 3000, count, special.size)]
    return np.where(kind == 0, picked, np.where(kind == 1, moderate, any_))


def grid_of(specials: Array, position: int, operands: int) -> Array:
    """Operand ``position`` of every combination of the special values."""
    index = np.indices((specials.size,) * operands)[position]
    return specials[index.ravel()]


def operands(types: tuple[str, ...], count: int, seed: int = 1) -> list[Array]:
    """Columns for an instruction's operands.

    Float columns end with neighbours of each other's negation (cancellation), and for three float
    operands with a third that cancels the product of the others up to a few units (for fma).
    """
    columns = [column(t, seed + 10 * i, count) for i, t in enumerate(types)]
    if len(types) >= 2 and types[0] == types[1] and types[0] in FLOATS:
        width = bits_of(types[0])
        part = slice(count - count // 8, count)
        step = (below(seed + 77, count, 5) - 2).astype(UNSIGNED[width])[part]
        opposite = columns[0][part] ^ UNSIGNED[width](1 << width - 1)
        if len(types) == 2:
            columns[1][part] = opposite + step
        elif types[2] == types[0]:
            columns[2][part] = _product(types[0], columns[0][part], columns[1][part]) + step
    return columns


def _product(type_: str, a: Array, b: Array) -> Array:
    """-(a * b) in ``type_`` as far as float64 knows it, as bits; zero for a NaN."""
    with np.errstate(all="ignore"):
        product = -(to_float64(type_, a) * to_float64(type_, b))
        return from_float64(type_, np.where(np.isnan(product), 0.0, product))


def to_float64(type_: str, bits: Array) -> NDArray[np.float64]:
    """The values of bit patterns of a floating type."""
    if type_ == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_]
    with np.errstate(invalid="ignore"):
        return bits.view(dtype).astype(np.float64)


def from_float64(type_: str, values: Array) -> Array:
    """Bit patterns near values (bf16: truncated)."""
    if type_ == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[type_]
    with np.errstate(over="ignore"):
        return values.astype(dtype).view(UNSIGNED[bits_of(type_)])


def every(width: int) -> Array:
    """All bit patterns of 8 or 16 bits."""
    return np.arange(1 << width, dtype=UNSIGNED[width])


def halfway_f32(exponent: int, mantissa: int, seed: int, count: int) -> Array:
    """f32 bit patterns on, just below and just above the midpoints of a narrower type.

    Exponents run from below the narrow type's least subnormal to above its greatest finite number.
    """
    bias = (1 << exponent - 1) - 1
    low, high = 127 - bias - mantissa - 2, 127 + bias + 3
    low, high = max(low, 0), min(high, 255)
    exponents = (below(seed, count, high - low) + low).astype(np.uint32) << np.uint32(23)
    random = random_bits(seed + 1, count, 32)
    # A subnormal of the narrow type keeps fewer bits: the midpoint moves up with it.
    lost = 23 - mantissa + below(seed + 2, count, mantissa + 1) * (below(seed + 3, count, 3) == 0)
    lost = np.minimum(lost, 23).astype(np.uint32)
    unit = np.uint32(1) << (lost - np.uint32(1))
    kept = (random & np.uint32(0x7FFFFF)) >> lost << lost
    near = kept + unit + (below(seed + 4, count, 3) - 1).astype(np.uint32)
    sign = random & np.uint32(0x80000000)
    return sign | exponents | (near & np.uint32(0x7FFFFF))


#: Bit patterns of the integers 0, 1, 2, 3 and 4 in the 8-bit types.
_SMALL = {"e4m3": (0x00, 0x38, 0x40, 0x44, 0x48), "e5m2": (0x00, 0x3C, 0x40, 0x42, 0x44)}


#: Finite magnitudes of the 8-bit types are the codes below these.
_FINITE_CODES = {"e4m3": 0x7F, "e5m2": 0x7C}


def _wide_elements(type_: str, seed: int, count: int) -> Array:
    """Finite numbers of many magnitudes: sums lose bits. One in eight is any, subnormal too."""
    if type_ in _FINITE_CODES:
        bits = random_bits(seed, count, 8)
        return bits & np.uint8(0x80) | (bits & np.uint8(0x7F)) % np.uint8(_FINITE_CODES[type_])
    name = "f32" if type_ == "tf32" else type_
    bits = moderate_floats(seed, count, name, {"f16": 7, "f32": 16}.get(type_, 10))
    any_ = random_bits(seed + 1, count, bits_of(name))
    exponent, mantissa = FLOATS[name]
    # Nothing that makes a product overflow f32; of f16 every finite number.
    top = bits.dtype.type((1 << exponent - 1) - (exponent == 5) << mantissa)
    any_ = np.where(any_ & top == top, any_ ^ top, any_)
    bits = np.where(below(seed + 2, count, 8) == 0, any_, bits)
    return bits & np.uint32(0xFFFFE000) if type_ == "tf32" else bits


def _with_specials(type_: str, seed: int, elements: Array) -> Array:
    """Elements of which one in 64 is a NaN or an infinity of either sign."""
    if type_ in _FINITE_CODES:
        values = [0x7F, 0xFF] + ([0x7C, 0xFC, 0x7D] if type_ == "e5m2" else [])
    else:
        exponent, mantissa = FLOATS["f32" if type_ == "tf32" else type_]
        top, sign = ((1 << exponent) - 1) << mantissa, 1 << exponent + mantissa
        values = [top, top | sign, top | 1 << mantissa - 1, top | sign | 1 << mantissa - 1]
        values += [top | (1 << mantissa) - 1]
    chosen = np.array(values, elements.dtype)[below(seed + 3, elements.size, len(values))]
    return np.where(below(seed + 4, elements.size, 64) == 0, chosen, elements)


def matrix_elements(type_: str, seed: int, count: int, kind: str) -> Array:
    """Elements of a matrix operand, as bits.

    kind: ``exact``, integers of at most 4, so that sums of products are exact in any order;
    ``rounded``, numbers spread over [-1, 1]; ``wide``, over many magnitudes; ``special``, as exact,
    with infinities and NaN among them. Integers and bits are always over all of their range.
    """
    exact = kind in ("exact", "special")
    if kind == "special":
        return _with_specials(type_, seed, matrix_elements(type_, seed, count, "exact"))
    if kind == "wide" and type_ not in ("s8", "u8", "b8", "b1"):
        return _wide_elements(type_, seed, count)
    if type_ in ("s8", "u8", "b8", "s4", "u4", "b1"):
        return random_bits(seed, count, 8)
    if type_ in _SMALL:
        bits = random_bits(seed, count, 8)
        if exact:
            return np.array(_SMALL[type_], np.uint8)[bits % 5] | (bits & np.uint8(0x80))
        one = _SMALL[type_][1]
        return (bits & np.uint8(0x7F)) % np.uint8(one + 1) | bits & np.uint8(0x80)
    if exact:
        values = below(seed, count, 9) - 4.0
    else:
        values = random_bits(seed, count, 32) / 2.0**31 - 1.0
    if type_ == "tf32":
        return from_float64("f32", values) & np.uint32(0xFFFFE000)
    return from_float64(type_, values)

"""Correctly rounded float32 and float64 arithmetic in the four modes of PTX.

float32 goes through float64, where products are exact and sums are rounded to odd; quotients
and roots of float32 need no such care, since float64 has more than twice their precision and
two bits.
"""

from collections.abc import Callable

import numpy as np
from ml_dtypes import bfloat16

from hopwell.emulator.numerics import exact
from hopwell.emulator.numerics.bits import Array
from hopwell.emulator.numerics.rounding import BF16, narrow, quantise, to_odd, two_sum

# Arrays without dimensions: NumPy spends the least on them.
_LOW = np.array(0x1FFFFFFF, np.int64)
_HALF = np.array(0x10000000, np.int64)
_TINY = np.array(2.0**-126)
_SPLIT = np.array(2.0**27 + 1)
_LOW_16 = np.array(0xFFFF, np.uint32)
_HALF_16 = np.array(0x8000, np.uint32)
_SMALL, _LARGE = 2.0**-480, 2.0**480


def _signed_zero(total: Array, a: Array, b: Array, mode: str) -> Array:
    """Rounding down, an exact zero from a sum of unlike signs is minus zero."""
    if mode != "rm":
        return total
    unlike = (total == 0) & (np.signbit(a) != np.signbit(b))
    return np.where(unlike, -0.0, total)


def odd_sum(a: Array, b: Array, mode: str) -> Array:
    """``a + b`` in float64 rounded to odd, ready to be rounded to a narrower format."""
    total, error = two_sum(a, b)
    return _signed_zero(to_odd(total, error), a, b, mode)


def add32(a: Array, b: Array, mode: str) -> Array:
    """float32 ``a + b``."""
    return narrow(odd_sum(a.astype(np.float64), b.astype(np.float64), mode), mode)


def multiply32(a: Array, b: Array, mode: str) -> Array:
    """float32 ``a * b``."""
    return narrow(a.astype(np.float64) * b.astype(np.float64), mode)


def divide32(a: Array, b: Array, mode: str) -> Array:
    """float32 ``a / b``."""
    return narrow(a.astype(np.float64) / b.astype(np.float64), mode)


def square_root32(a: Array, mode: str) -> Array:
    """The float32 square root of ``a``."""
    return narrow(np.sqrt(a.astype(np.float64)), mode)


def fma32(a: Array, b: Array, c: Array, mode: str) -> Array:
    """float32 ``a * b + c`` in one rounding."""
    product = a.astype(np.float64) * b.astype(np.float64)
    return narrow(odd_sum(product, c.astype(np.float64), mode), mode)


def fma32_nearest(a: Array, b: Array, c: Array) -> Array:
    """float32 ``a * b + c`` to nearest, in one rounding.

    The float64 sum is rounded, so rounding it again errs where it looks like a tie: its low 29
    bits say so, or it is where float32 is subnormal. Elsewhere the plain cast is right.
    """
    wide = c.astype(np.float64)
    product = a.astype(np.float64) * b.astype(np.float64)
    total = product + wide
    ties = np.count_nonzero((total.view(np.int64) & _LOW) == _HALF)
    small = np.count_nonzero(np.abs(total) < _TINY)
    # A sum of zero is exact.
    if ties or (small and small > len(total) - np.count_nonzero(total)):
        total = to_odd(*two_sum(product, wide))
    return total.astype(np.float32)


def sum_bf16(a: Array, b: Array) -> Array:
    """``a + b``, float64, as bf16 to nearest in one rounding, held in float32.

    Rounding to float32 first errs only where the result looks like a tie of bf16.
    """
    nearest = (a + b).astype(np.float32)
    if np.count_nonzero((nearest.view(np.uint32) & _LOW_16) == _HALF_16):
        return quantise(to_odd(*two_sum(a, b)), BF16, "rn").astype(np.float32)
    return nearest.astype(bfloat16).astype(np.float32)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """``a * b`` to nearest and its exact error, for magnitudes in [2**-480, 2**480] or zero."""
    product = a * b
    part = _SPLIT * a
    a_high = part - (part - a)
    part = _SPLIT * b
    b_high = part - (part - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _moderate(x: Array) -> Array:
    size = np.abs(x)
    return ((size >= _SMALL) & (size <= _LARGE)) | (size == 0)


def fma64_nearest(a: Array, b: Array, c: Array) -> Array:
    """float64 ``a * b + c`` to nearest, in one rounding.

    Boldo and Melquiond's algorithm (see :func:`to_odd`) where nothing can overflow or lose
    bits, integers elsewhere.
    """
    product, error = _two_product(a, b)
    middle, low = two_sum(c, error)
    high, rest = two_sum(product, middle)
    result = high + to_odd(*two_sum(rest, low))
    # An exact zero is all right too: its sign is that of the plain sum.
    result = np.where(result == 0, product + c, result)
    safe = _moderate(a) & _moderate(b) & _moderate(c)
    if not safe.all():
        unsafe = ~safe
        result[unsafe] = exact.fma(a[unsafe], b[unsafe], c[unsafe], "rn")
    return result


NEAREST: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda a: np.divide(np.ones(1, a.dtype), a),
}


def _negated(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, b, mode: function(a, -b, mode)


def _reciprocal(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda a, mode: function(np.ones_like(a), a, mode)


DIRECTED: dict[tuple[str, str], Callable[..., Array]] = {
    ("add", "f32"): add32,
    ("sub", "f32"): _negated(add32),
    ("mul", "f32"): multiply32,
    ("fma", "f32"): fma32,
    ("div", "f32"): divide32,
    ("rcp", "f32"): _reciprocal(divide32),
    ("sqrt", "f32"): square_root32,
    ("add", "f64"): exact.add,
    ("sub", "f64"): _negated(exact.add),
    ("mul", "f64"): exact.multiply,
    ("fma", "f64"): exact.fma,
    ("div", "f64"): exact.divide,
    ("rcp", "f64"): _reciprocal(exact.divide),
    ("sqrt", "f64"): exact.square_root,
}


def operation(name: str, type_name: str, mode: str) -> Callable[..., Array]:
    """The correctly rounded ``name`` (add, sub, mul, fma, div, rcp, sqrt) on f32 or f64.

    Args:
        type_name: ``"f32"`` or ``"f64"``: the dtype of the arrays given and returned.
        mode: rn, rz, rm or rp.
    """
    if mode == "rn":
        if name == "fma":
            return fma32_nearest if type_name == "f32" else fma64_nearest
        return NEAREST[name]
    function = DIRECTED[name, type_name]
    return lambda *sources: function(*sources, mode)


WIDE: dict[str, Callable[..., Array]] = {
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: odd_sum(a * b, c, "rn"),
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1.0 / a,
}
"""On float64 that holds narrower numbers: near enough to the exact value to be told from those
that narrower formats and their midpoints represent."""


def flush_tiny(
    function: Callable[..., Array], wide: Callable[..., Array], mode: str
) -> Callable[..., Array]:
    """``function`` of a type narrower than float64, with what rounds up to the least normal number
    flushed where hardware does (an H200's answers): where it would be smaller if it were rounded
    to the type's precision with exponents unbounded.

    Args:
        wide: the same on float64.
        mode: rn, rz, rm or rp.
    """

    def apply(*sources: Array) -> Array:
        result = function(*sources)
        kind = np.finfo(result.dtype)
        near = np.abs(result) == kind.tiny
        if near.any():
            exact = np.abs(wide(*(source.astype(np.float64) for source in sources)))
            least = float(kind.tiny)
            if mode == "rn":
                tiny = exact < least * (1 - 2.0 ** -(kind.nmant + 2))
            else:
                tiny = exact <= least * (1 - 2.0 ** -(kind.nmant + 1))
            result = np.where(near & tiny, np.copysign(result.dtype.type(0), result), result)
        return result

    return apply

"""float64 operations in integers, lane by lane: where no wider format gives the exact value.

Used for the directed roundings of float64, and for what falls outside the range in which
error-free transformations are exact. About 2 us a lane.
"""

import math
from collections.abc import Callable

import numpy as np

from hopwell.emulator.numerics.bits import Array

_PRECISION = 53
_LOWEST = -1074


def _parts(x: float) -> tuple[int, int]:
    """``x`` as ``n * 2**e``."""
    fraction, exponent = math.frexp(x)
    return int(math.ldexp(fraction, _PRECISION)), exponent - _PRECISION


def _round(n: int, e: int, mode: str) -> float:
    """``n * 2**e`` as a float64, n not zero."""
    negative, n = n < 0, abs(n)
    quantum = max(e + n.bit_length() - _PRECISION, _LOWEST)
    shift = quantum - e
    if shift > 0:
        kept, rest = n >> shift, n & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        if mode == "rn":
            kept += rest > half or (rest == half and kept & 1)
        elif mode != "rz":
            kept += rest != 0 and negative == (mode == "rm")
    else:
        kept, quantum = n, e
    try:
        value = math.ldexp(kept, quantum)
    except OverflowError:
        outwards = mode == "rn" or (mode != "rz" and negative == (mode == "rm"))
        value = math.inf if outwards else float(np.finfo(np.float64).max)
    return -value if negative else value


def _fma(a: float, b: float, c: float, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c + 0.0
    (na, ea), (nb, eb), (nc, ec) = _parts(a), _parts(b), _parts(c)
    n, e = na * nb, ea + eb
    low = min(e, ec)
    total = (n << (e - low)) + (nc << (ec - low))
    if total:
        return _round(total, low, mode)
    signs = {math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c)}
    if n == 0 and len(signs) == 1:
        return math.copysign(0.0, signs.pop())
    return -0.0 if mode == "rm" else 0.0


def _divide(a: float, b: float, mode: str) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return float(np.divide(a, b))
    (na, ea), (nb, eb) = _parts(a), _parts(b)
    quotient, rest = divmod(abs(na) << 64, abs(nb))
    # The bits below are represented by one that is set when any of them is.
    n = quotient << 1 | (rest != 0)
    return _round(n if (na < 0) == (nb < 0) else -n, ea - eb - 65, mode)


def _root(a: float, mode: str) -> float:
    if not math.isfinite(a) or a <= 0:
        return float(np.sqrt(a))
    n, e = _parts(a)
    n, e = n << (64 + (e & 1)), e - 64 - (e & 1)
    root = math.isqrt(n)
    return _round(root << 1 | (root * root != n), e // 2 - 1, mode)


def _each(function: Callable[..., float], mode: str, *sources: Array) -> Array:
    lanes = zip(*(source.tolist() for source in sources), strict=True)
    with np.errstate(all="ignore"):
        return np.array([function(*lane, mode) for lane in lanes], np.float64)


def add(a: Array, b: Array, mode: str) -> Array:
    """``a + b``."""
    return _each(_fma, mode, a, np.ones_like(a), b)


def multiply(a: Array, b: Array, mode: str) -> Array:
    """``a * b``."""
    # The zero that is added takes the product's sign: it changes nothing.
    return _each(_fma, mode, a, b, np.copysign(0.0, a) * np.copysign(1.0, b))


def fma(a: Array, b: Array, c: Array, mode: str) -> Array:
    """``a * b + c`` in one rounding."""
    return _each(_fma, mode, a, b, c)


def divide(a: Array, b: Array, mode: str) -> Array:
    """``a / b``."""
    return _each(_divide, mode, a, b)


def square_root(a: Array, mode: str) -> Array:
    """The square root of ``a``."""
    return _each(_root, mode, a)

"""Rounding of float64 to narrower binary formats, once, in every mode."""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from hopwell.emulator.numerics.bits import Array


class Format(NamedTuple):
    """A binary floating-point format of ``precision`` significant bits.

    Its smallest normal number is ``2**exponent``, its largest finite one ``largest``.
    """

    precision: int
    exponent: int
    largest: float


F32: Final = Format(24, -126, float(np.finfo(np.float32).max))
TF32: Final = Format(11, -126, float(2.0**128 - 2.0**117))
BF16: Final = Format(8, -126, float(2.0**128 - 2.0**120))
F16: Final = Format(11, -14, 65504.0)
E5M2: Final = Format(3, -14, 57344.0)
E4M3: Final = Format(4, -6, 448.0)


def _ties_away(x: Array) -> Array:
    return np.trunc(x + np.copysign(0.5, x))


TO_INTEGER: Final[dict[str, Callable[[Array], Array]]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": _ties_away,
}
"""By rounding mode: to the nearest integer (ties to even), towards zero, down, up, to the
nearest with ties away from zero."""


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` to nearest, and the exact error of that sum (NaN if the sum is not finite)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def to_odd(nearest: Array, error: Array) -> Array:
    """``nearest + error`` rounded to odd, from a sum to nearest and its exact error.

    The value is kept if it is exact, else it is the neighbour whose last bit is set. Rounding
    that once more, to at most 51 bits, gives the same as rounding the exact value in any mode
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    bits = nearest.view(np.int64)
    up = error > 0
    inexact = up | (error < 0)
    away = up == (nearest > 0)
    step = np.where(away, 1, -1) * (inexact & ((bits & 1) == 0))
    return (bits + step).view(np.float64)


def quantise(x: Array, form: Format, mode: str) -> Array:
    """``x`` (float64) rounded to ``form``, subnormal numbers and overflow included.

    Args:
        x: exact, or rounded to odd: a second rounding is then harmless.
        mode: a key of :data:`TO_INTEGER`.

    Returns:
        float64 that ``form`` represents, or an infinity.
    """
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent, form.exponent + 1) - form.precision
    rounded: Array = np.ldexp(TO_INTEGER[mode](np.ldexp(x, -quantum)), quantum)
    over = np.abs(rounded) > form.largest
    if over.any():
        rounded[over] = _overflow(x[over], form, mode)
    return rounded


def _overflow(x: Array, form: Format, mode: str) -> Array:
    if mode in ("rn", "rna"):
        return np.copysign(np.inf, x)
    infinite = np.isinf(x)
    if mode != "rz":
        infinite |= (x > 0) == (mode == "rp")
    return np.copysign(np.where(infinite, np.inf, form.largest), x)


def narrow(x: Array, mode: str) -> Array:
    """float64 to float32 in one rounding."""
    nearest = x.astype(np.float32)
    if mode == "rn":
        return nearest
    # One step back where that overshot; steps of the bits go away from zero.
    bits, value = nearest.view(np.int32), nearest.astype(np.float64)
    if mode == "rz":
        bits = bits - (np.abs(value) > np.abs(x))
    else:
        outwards = bits >> 31 | 1
        bits = bits - outwards * (value > x) if mode == "rm" else bits + outwards * (value < x)
    return bits.view(np.float32)

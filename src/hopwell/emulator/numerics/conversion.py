"""Conversions between integers and floating-point numbers, exact rounding in every mode."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hopwell.emulator.numerics.bits import Array
from hopwell.emulator.numerics.formats import ENCODE, FORMATS
from hopwell.emulator.numerics.rounding import TO_INTEGER, quantise, to_odd, two_sum

_HALF: Final = 2.0**32


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The least and the greatest integer."""
    information = np.iinfo(dtype)
    return int(information.min), int(information.max)


def between_integers(source: np.dtype[Any], result: np.dtype[Any], sat: bool) -> Callable[..., Any]:
    """Integer to integer: cut to the low bits or extended, or clamped with ``sat``."""
    if not sat:
        return lambda x: x.astype(result)
    (low, high), (result_low, result_high) = limits(source), limits(result)
    least, greatest = source.type(max(low, result_low)), source.type(min(high, result_high))
    return lambda x: np.clip(x, least, greatest).astype(result)


def _halves(x: Array) -> tuple[Array, Array]:
    """The nearest float64 to an integer and the exact rest."""
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return two_sum((x >> x.dtype.type(32)).astype(np.float64) * _HALF, low)


def _step(nearest: Array, error: Array, mode: str) -> Array:
    """``nearest + error`` rounded in a direction; no zeros or infinities with an error."""
    if mode == "rz":
        low, high = (nearest > 0) & (error < 0), (nearest < 0) & (error > 0)
    elif mode == "rm":
        low, high = error < 0, np.zeros(1, bool)
    else:
        low, high = np.zeros(1, bool), error > 0
    down = np.where(low, np.nextafter(nearest, -np.inf), nearest)
    return np.where(high, np.nextafter(nearest, np.inf), down)


def from_integer(source: np.dtype[Any], result: str, mode: str) -> Callable[[Array], Array]:
    """Integer to ``result``, a PTX floating-point type. NaN cannot arise."""
    if mode == "rn" and result in ("f32", "f64"):
        dtype = np.float32 if result == "f32" else np.float64
        return lambda x: x.astype(dtype)
    long = source.itemsize == 8
    if result == "f64":
        if not long:
            return lambda x: x.astype(np.float64)
        return lambda x: _step(*_halves(x), mode)
    form, encode = FORMATS[result], ENCODE[result]

    def convert(x: Array) -> Array:
        wide = to_odd(*_halves(x)) if long else x.astype(np.float64)
        return encode(quantise(wide, form, mode))

    return convert


def to_integer(source: str, result: np.dtype[Any], mode: str) -> Callable[[Array], Array]:
    """float64 to an integer, clamped to its range.

    NaN gives 0, or only the top bit set if the source was f64 or the result has 64 bits.
    """
    low, high = limits(result)
    nearest = TO_INTEGER[mode]
    top = source == "f64" or result.itemsize == 8
    nan = np.uint64(1 << (8 * result.itemsize - 1)).astype(result) if top else result.type(0)

    def convert(x: Array) -> Array:
        whole = nearest(x)
        over, under = whole >= float(high), whole <= float(low)
        inside = np.where(over | under | (x != x), 0.0, whole).astype(result)
        inside[over] = high
        inside[under] = low
        inside[x != x] = nan
        return inside

    def convert_narrow(x: Array) -> Array:
        whole = np.clip(nearest(x), low, high)
        square = whole.dot(whole)
        if square != square:
            whole[whole != whole] = 0
        return whole.astype(result)

    return convert if top else convert_narrow


def round_to(result: str, mode: str) -> Callable[[Array], Array]:
    """float64 to float64 that ``result`` represents."""
    if result == "f64":
        return lambda x: x
    form = FORMATS[result]
    return lambda x: quantise(x, form, mode)


def clamp_finite(result: str) -> Callable[[Array], Array]:
    """``.satfinite``: what is too large, or infinite, becomes the largest finite number."""
    largest = FORMATS[result].largest
    return lambda x: np.clip(x, -largest, largest)

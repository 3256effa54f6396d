"""Special values: canonical NaNs, flushing of subnormal numbers, saturation."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NAN: Final[dict[str, Array]] = {
    "f16": np.array(0x7FFF, np.uint16).view(np.float16),
    "f32": np.array(0x7FFFFFFF, np.uint32).view(np.float32),
    "f64": np.array(0x7FF8000000000000, np.uint64).view(np.float64),
}
"""What an operation gives for NaN. Those of f16 and f32 are the hardware's; float64 operations
keep a payload, so that this one arises in conversions alone."""

_NAN_OF: Final = {value.dtype: value for value in NAN.values()}

_SMALLEST_NORMAL: Final = {
    value.dtype: np.array(np.finfo(value.dtype).tiny, value.dtype) for value in NAN.values()
}

_ZERO: Final = {value.dtype: np.array(0, value.dtype) for value in NAN.values()}
_ONE: Final = {value.dtype: np.array(1, value.dtype) for value in NAN.values()}


def canonical(fresh: Array) -> Array:
    """``fresh`` with every NaN replaced, in place, by its format's canonical one.

    A sum of squares is NaN exactly when an element is: one product finds out whether there is
    anything to do, at a quarter of the cost of a reduction over ``isnan``.
    """
    square = fresh.dot(fresh)
    if square != square:
        fresh[fresh != fresh] = _NAN_OF[fresh.dtype]
    return fresh


def flush(x: Array) -> Array:
    """Subnormal numbers become zeros of the same sign. Gives ``x`` itself where none is small."""
    kept = np.abs(x) >= _SMALLEST_NORMAL[x.dtype]
    return x if np.count_nonzero(kept) == len(x) else x * kept


def saturate(x: Array) -> Array:
    """Into [0, 1]; NaN and minus zero become plus zero."""
    zero = _ZERO[x.dtype]
    return np.fmin(np.fmax(x, zero), _ONE[x.dtype]) + zero


def rectify(x: Array) -> Array:
    """Negative numbers and minus zero become plus zero; NaN stays."""
    zero = _ZERO[x.dtype]
    return np.maximum(x, zero) + zero

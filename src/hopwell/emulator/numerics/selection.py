"""Minimum and maximum with PTX's rules for NaN and signed zeros, sign operations, classes."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hopwell.emulator.numerics.bits import Array, canonical

INTEGER_OF: Final[dict[np.dtype[Any], np.dtype[Any]]] = {
    np.dtype(np.float16): np.dtype(np.uint16),
    np.dtype(np.float32): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.uint64),
}


def _order_zeros(result: Array, a: Array, b: Array, combine: Callable[..., Array]) -> Array:
    """Where both sources are zeros, combine their bits: minus zero counts as less."""
    if np.count_nonzero(result) < len(result):
        bits = INTEGER_OF[result.dtype]
        zeros = (a == 0) & (b == 0)
        result.view(bits)[zeros] = combine(a.view(bits), b.view(bits))[zeros]
    return result


def maximum(a: Array, b: Array) -> Array:
    """The larger; a NaN loses against a number."""
    return canonical(_order_zeros(np.fmax(a, b), a, b, np.bitwise_and))


def minimum(a: Array, b: Array) -> Array:
    """The smaller; a NaN loses against a number."""
    return canonical(_order_zeros(np.fmin(a, b), a, b, np.bitwise_or))


def maximum_nan(a: Array, b: Array) -> Array:
    """The larger; NaN if either is."""
    return canonical(_order_zeros(np.maximum(a, b), a, b, np.bitwise_and))


def minimum_nan(a: Array, b: Array) -> Array:
    """The smaller; NaN if either is."""
    return canonical(_order_zeros(np.minimum(a, b), a, b, np.bitwise_or))


SELECT: Final[dict[tuple[str, bool], Callable[[Array, Array], Array]]] = {
    ("max", False): maximum,
    ("min", False): minimum,
    ("max", True): maximum_nan,
    ("min", True): minimum_nan,
}
"""By name and whether NaN wins."""


def by_magnitude(select: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """``.xorsign.abs``: of the magnitudes, with the product of the two signs."""

    def apply(a: Array, b: Array) -> Array:
        bits = INTEGER_OF[a.dtype]
        top = bits.type(1 << (8 * bits.itemsize - 1))
        sign = (a.view(bits) ^ b.view(bits)) & top
        size = select(np.abs(a), np.abs(b))
        return canonical((size.view(bits) | sign).view(a.dtype))

    return apply


CLASSES: Final[dict[str, Callable[[Array], Array]]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda a: ~np.isnan(a),
    "notanumber": np.isnan,
    "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= np.finfo(a.dtype).tiny) | (a == 0)),
    "subnormal": lambda a: (np.abs(a) < np.finfo(a.dtype).tiny) & (a != 0),
}
"""testp's questions."""

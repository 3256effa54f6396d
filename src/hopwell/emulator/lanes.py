"""Sets of lanes of one warp, interned so that a mask's arrays are built once."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

WARP = 32
FULL_MASK = 0xFFFF_FFFF


class Lanes:
    """A subset of a warp's 32 lanes.

    Obtain one with :func:`lanes_of`; equal masks are the same object, so ``is`` compares them.

    Attributes:
        bits: the mask, lane 0 in bit 0.
        array: bool (32,), read-only.
        index: the lanes that are in the set, ascending, read-only.
        count: how many there are.
        full: whether all 32 are.
        first: the lowest lane, -1 for an empty set.
    """

    __slots__ = ("array", "bits", "count", "first", "full", "index")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        packed = np.array([bits], dtype="<u4").view(np.uint8)
        self.array: NDArray[np.bool_] = np.unpackbits(packed, bitorder="little").astype(bool)
        self.index: NDArray[np.intp] = np.flatnonzero(self.array)
        self.array.setflags(write=False)
        self.index.setflags(write=False)
        self.count = len(self.index)
        self.full = bits == FULL_MASK
        self.first = int(self.index[0]) if self.count else -1

    def __repr__(self) -> str:
        return f"Lanes({self.bits:#010x})"


@lru_cache(maxsize=1 << 16)
def lanes_of(bits: int) -> Lanes:
    """The lanes whose bits are set in ``bits`` (0 to 2**32 - 1)."""
    return Lanes(bits)


def mask_of(array: NDArray[np.bool_]) -> int:
    """The mask of a bool (32,) array."""
    return int.from_bytes(np.packbits(array, bitorder="little").tobytes(), "little")


FULL = lanes_of(FULL_MASK)
EMPTY = lanes_of(0)

"""Memory: contiguous ranges of bytes, found by address, accessed by 32 lanes at once."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.lanes import Lanes, lanes_of

if TYPE_CHECKING:
    from hopwell.emulator.hazards.shadow import Region
    from hopwell.emulator.mbarrier import Mbarrier

POISON = 0xCB
"""What memory that nothing has written holds: as bf16 or f32 a large negative number."""


@dataclass
class Memory:
    """A range of bytes in one address space.

    Attributes:
        name: as reports call it.
        space: "shared", "global", "const", "param" or "local".
        base: the address of the first byte.
        data: uint8 (size,).
        region: the checker's record of the range.
        rank: for shared memory, the CTA's rank in its cluster.
        barriers: the mbarrier objects in it, by offset.
    """

    name: str
    space: str
    base: int
    data: NDArray[np.uint8]
    region: "Region | None" = None
    rank: int = 0
    barriers: dict[int, "Mbarrier"] = field(default_factory=dict)
    _views: dict[int, NDArray[Any]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    def view(self, size: int) -> NDArray[Any]:
        """The bytes as unsigned integers of ``size`` bytes; an incomplete one is cut off."""
        found = self._views.get(size)
        if found is None:
            whole = self.size // size * size
            found = self._views[size] = self.data[:whole].view(f"u{size}")
        return found

    def gather(self, offsets: NDArray[np.int64], size: int) -> NDArray[Any]:
        """Unsigned integers of ``size`` bytes at aligned byte offsets."""
        if size == 1:
            return self.data[offsets]
        return self.view(size)[offsets >> (size.bit_length() - 1)]

    def scatter(self, offsets: NDArray[np.int64], values: NDArray[Any], size: int) -> None:
        """Store unsigned integers of ``size`` bytes; of equal offsets the last lane wins."""
        if size == 1:
            self.data[offsets] = values
        else:
            self.view(size)[offsets >> (size.bit_length() - 1)] = values


class AddressSpace:
    """Ranges of memory by address. Ranges do not overlap."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._memories: list[Memory] = []

    def __iter__(self) -> Iterator[Memory]:
        return iter(self._memories)

    def add(self, memory: Memory) -> None:
        """Make a range known."""
        place = bisect_right(self._bases, memory.base)
        self._bases.insert(place, memory.base)
        self._memories.insert(place, memory)

    def find(self, address: int, size: int = 1) -> Memory | None:
        """The range that holds all of ``[address, address + size)``; None if none does."""
        place = bisect_right(self._bases, address) - 1
        if place >= 0:
            memory = self._memories[place]
            if address + size <= memory.base + memory.size:
                return memory
        return None

    def split(
        self, addresses: NDArray[np.int64], lanes: Lanes, size: int
    ) -> Iterator[tuple[Memory | None, Lanes, NDArray[np.int64]]]:
        """Group active lanes by the range that their accesses fall in.

        Args:
            addresses: int64 (32,), one per lane.
            lanes: those that take part.
            size: bytes of each access.

        Yields:
            The range (None: outside all), its lanes, and their byte offsets in it.
        """
        active = addresses if lanes.full else addresses[lanes.index]
        low, high = int(active.min()), int(active.max())
        memory = self.find(low, size)
        if memory is not None and high + size <= memory.base + memory.size:
            yield memory, lanes, active - memory.base
            return
        groups: dict[int, tuple[Memory | None, int]] = {}
        for lane, address in zip(lanes.index.tolist(), active.tolist(), strict=True):
            found = self.find(address, size)
            key = id(found)
            groups[key] = found, groups.get(key, (found, 0))[1] | 1 << lane
        for found, bits in groups.values():
            part = lanes_of(bits)
            base = 0 if found is None else found.base
            yield found, part, addresses[part.index] - base


def shared_memory(name: str, base: int, size: int, rank: int) -> Memory:
    """A CTA's shared memory, poisoned. ``base`` is its shared::cluster address."""
    return Memory(name, "shared", base, np.full(size, POISON, np.uint8), rank=rank)

"""Shadow memory: which accesses each byte of a region still has to be ordered after.

A cell stands for the region's grain of bytes: 16 at first, refined for good to 8, 4, 2 or 1 as
soon as one access is not a whole number of cells. So every cell is touched by whole accesses
only and the shadow is exact to the byte, while the tiles of copy engines cost one entry for
sixteen bytes.

Each cell holds the number of its last weak write, and the number of a *set*: the reads and the
strong accesses (atomics, .relaxed, .acquire, .release, .volatile) since. Strong accesses stay in
the set beside weak ones that they come after, because later strong ones may meet them without
any order and must still come after the weak ones. Sets are interned tuples of event numbers, so
an access that joins those of two thousand cells makes one new set for each that it met, most
often one. Lanes are not in the shadow: an event knows the offsets of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Index = slice | NDArray[np.intp]
Numbers = NDArray[np.int32]

#: Event number of what the launch left in an initialised region, or a strong write made of one
#: that was not.
INITIAL = 0
#: In place of an event number: nothing was written here.
UNWRITTEN = -1
#: Number of the empty set.
NO_SET = 0

_COARSEST = 16


@dataclass(frozen=True, slots=True)
class Named:
    """A named range of a region. Ranges may overlap: then their buffers share storage.

    ``engines`` tells overlapping ranges apart: the kinds of accesses ("generic", "tma-load",
    "tma-store", "wgmma", ...) that use the storage under this name; empty for any.
    """

    start: int
    stop: int
    name: str
    engines: frozenset[str] = frozenset()


@dataclass(eq=False)
class Region:
    """One allocation: the shared memory of a CTA, or a global buffer.

    Attributes:
        name: what reports call it.
        space: "shared" or "global".
        size: bytes.
        cta: (x, y, z) of the owning CTA, None for global memory.
        initialised: whether its contents are defined at launch.
        names: annotated ranges.
    """

    name: str
    space: str
    size: int
    cta: tuple[int, int, int] | None
    initialised: bool
    names: list[Named] = field(default_factory=list)
    grain: int = _COARSEST
    _writes: Numbers | None = field(default=None, repr=False)
    _sets: Numbers | None = field(default=None, repr=False)

    @property
    def writes(self) -> Numbers:
        """Per cell the event number of its last write; allocated at first use."""
        if self._writes is None:
            first = INITIAL if self.initialised else UNWRITTEN
            self._writes = np.full(-(-self.size // self.grain), first, np.int32)
        return self._writes

    @property
    def sets(self) -> Numbers:
        """Per cell the number of its set; allocated at first use."""
        if self._sets is None:
            self._sets = np.full(-(-self.size // self.grain), NO_SET, np.int32)
        return self._sets

    @property
    def untouched(self) -> bool:
        """Whether no access was ever recorded."""
        return self._writes is None and self._sets is None

    def forget(self) -> None:
        """Drop what was recorded: the memory is gone."""
        self._writes = self._sets = None

    def arrays(self) -> list[Numbers | None]:
        """The write numbers and the set numbers, None where none are allocated yet."""
        return [self._writes, self._sets]

    def cells(self, offsets: NDArray[np.int64], size: int) -> Index:
        """The cells of ``size`` bytes at each of ``offsets``, row after row.

        An array of ``len(offsets) * size / grain`` indices, or a slice of as many where rows
        follow one another.
        """
        alignment = size | int(np.bitwise_or.reduce(offsets))
        if alignment & (self.grain - 1):
            self._refine(alignment & -alignment)
        grain = self.grain
        per_row = size // grain
        first = int(offsets[0])
        count = len(offsets)
        if count == 1:
            return slice(first // grain, first // grain + per_row)
        if count > 64 and int(offsets[-1]) - first == (count - 1) * size:
            steps = offsets[1:] - offsets[:-1]
            if bool((steps == size).all()):
                return slice(first // grain, first // grain + count * per_row)
        rows = offsets // grain
        if per_row == 1:
            return rows
        return np.add.outer(rows, np.arange(per_row)).ravel()

    def _refine(self, grain: int) -> None:
        factor = self.grain // grain
        self.grain = grain
        if self._writes is not None:
            self._writes = np.repeat(self._writes, factor)
        if self._sets is not None:
            self._sets = np.repeat(self._sets, factor)

    def name_of(self, start: int, stop: int, engine: str) -> str:
        """The smallest named range that holds these bytes for accesses of this kind."""
        names = [n for n in self.names if n.start <= start and stop <= n.stop]
        fitting = [n for n in names if engine in n.engines]
        fitting = fitting or [n for n in names if not n.engines] or names
        if not fitting:
            return ""
        smallest = min(n.stop - n.start for n in fitting)
        return " | ".join(n.name for n in fitting if n.stop - n.start == smallest)

    def shared_by(self, start: int, stop: int) -> list[str]:
        """The names of all annotated ranges that meet these bytes."""
        return [n.name for n in self.names if n.start < stop and start < n.stop]


def distinct(numbers: Numbers) -> list[int]:
    """The different values of ``numbers``, in no order."""
    if numbers.size <= 512:
        return list(set(numbers.tolist()))
    # Neighbouring cells mostly agree: look at the heads of runs only.
    heads = np.flatnonzero(numbers[1:] != numbers[:-1])
    return list({int(numbers[0]), *numbers[heads + 1].tolist()})


class Sets:
    """Interned sets of event numbers; 0 is the empty set."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {(): NO_SET}
        self._members: dict[int, tuple[int, ...]] = {NO_SET: ()}
        self._next = 1

    def __getitem__(self, number: int) -> tuple[int, ...]:
        return self._members[number]

    def __len__(self) -> int:
        return len(self._members)

    @property
    def bound(self) -> int:
        """Above every number in use."""
        return self._next

    def members(self) -> Iterable[tuple[int, ...]]:
        """Every set."""
        return self._members.values()

    def number(self, members: tuple[int, ...]) -> int:
        """The number of the set with these members."""
        number = self._numbers.get(members)
        if number is None:
            number = self._numbers[members] = self._next
            self._members[number] = members
            self._next += 1
        return number

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget every set but these and the empty one."""
        self._members = {n: self._members[n] for n in {NO_SET, *numbers}}
        self._numbers = {members: n for n, members in self._members.items()}


def referenced(arrays: Iterable[Numbers], bound: int) -> list[int]:
    """The numbers below ``bound`` (and not negative) that occur in ``arrays``."""
    marks = np.zeros(bound + 1, bool)  # the last entry takes UNWRITTEN
    for array in arrays:
        marks[array] = True
    return np.flatnonzero(marks[:bound]).tolist()

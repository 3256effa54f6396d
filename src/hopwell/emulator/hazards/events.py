"""What the checker remembers of accesses: events, asynchronous operations, warps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.hazards.clocks import Clock, Times, WarpClock
from hopwell.emulator.hazards.shadow import Region
from hopwell.emulator.lanes import Lanes

if TYPE_CHECKING:
    from hopwell.ptx.nodes import Instruction

#: Engines whose accesses are in the generic proxy: who reads their bytes through the async proxy
#: needs a proxy fence after their completion (PTX ISA 9.7.9.25.2 names the bulk copies only).
GENERIC_ENGINES = frozenset({"cp.async", "st.async", "red.async"})
#: Engines whose writes are relaxed atomic reductions at gpu scope (PTX ISA 9.7.9.25.5.3).
ATOMIC_ENGINES = frozenset({"tma-reduce", "bulk-reduce", "red.async"})
#: Engines whose groups complete in the order of their commits, for one warp or one thread.
IN_ORDER_ENGINES = frozenset({"wgmma", "tma-store", "tma-reduce", "bulk-store", "bulk-reduce"})

SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}

Cta = tuple[int, int, int]


class Op(Protocol):
    """A decoded instruction."""

    @property
    def pc(self) -> int: ...
    @property
    def node(self) -> Instruction: ...


@dataclass(slots=True)
class Past:
    """Something that a warp did to synchronise, kept to say what came too early."""

    time: int  # everything stamped up to here is covered
    bits: int  # the lanes that did it
    text: str
    op: Op | None


@dataclass(slots=True)
class Wait:
    """The last successful wait of a warp on one column."""

    time: int  # of the column, as the wait found it
    stamp: int  # the warp's time at the wait
    fresh: bool  # whether it told more than the wait before
    used: set[tuple[int, int]] = field(default_factory=set)  # reads since: (pc, first offset)


@dataclass(eq=False, slots=True)
class Warp:
    """One warp: its names, its clock, and what it waited for."""

    id: int
    name: str
    cta: Cta
    cluster: Cta
    index: int
    clock: WarpClock
    waits: dict[int, Wait] = field(default_factory=dict)
    inits: int = 0  # mbarriers that it initialised
    releases: deque[Past] = field(default_factory=lambda: deque(maxlen=64))


@dataclass(eq=False, slots=True)
class AsyncOp:
    """Work that an instruction handed to an engine.

    ``completions`` holds (column, time, full): who knows the column to have reached the time
    knows that the operation has read its sources, and, where full, that its writes are done.
    ``parts`` holds the same per lane, for work of which each lane knows its own part complete
    (cp.async); then it is complete where all parts are.
    """

    warp: Warp
    lanes: Lanes
    op: Op
    engine: str
    description: str
    clock: Clock
    time: int
    serial: int
    column: int | None = None  # of the mbarrier that it will signal
    completions: list[tuple[int, int, bool]] = field(default_factory=list)
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    landed: bool = False
    fills: bool = False  # writes shared memory
    short: str = ""  # the rule that its barrier's expected bytes break, as the machine sees it
    verdicts: dict[int, str] = field(default_factory=dict)  # per reading warp: rule already given

    @property
    def generic(self) -> bool:
        return self.engine in GENERIC_ENGINES

    def known(self, times: Times, full: bool) -> bool:
        """Whether who knows ``times`` knows that this is complete."""
        get = times.get
        for column, time, is_full in self.completions:
            if (is_full or not full) and get(column, -1) >= time:
                return True
        if not self.parts:
            return False
        return all(self.part_known(times, lane) for lane in self.lanes.index.tolist())

    def known_among(self, views: Sequence[Times]) -> bool:
        """Whether some of ``views``, or all of them together where each lane knows its own part,
        know that nothing of the CTA's shared memory is used any more."""
        if any(self.known(times, self.fills) for times in views):
            return True
        return bool(self.parts) and all(
            any(self.part_known(times, lane) for times in views)
            for lane in self.lanes.index.tolist()
        )

    def part_known(self, times: Times, lane: int) -> bool:
        """Whether who knows ``times`` knows that this lane's part is complete."""
        column, time = self.parts.get(lane, (0, 0))
        return column != 0 and times.get(column, -1) >= time


@dataclass(eq=False, slots=True)
class Event:
    """One access of one instruction.

    A generic access is of a warp's lanes, each ``size`` bytes at its own offset; so is cp.async.
    Other engines' accesses have no offsets here. An engine's access is of ``handle``.
    """

    kind: str  # "read", "write", "atomic"
    warp: Warp
    op: Op
    region: Region
    time: int
    lanes: Lanes
    offsets: NDArray[np.int64] | None = None
    size: int = 0
    first_offset: int = 0
    handle: AsyncOp | None = None
    scope: str | None = None  # of a strong access
    barrier: int | None = None  # the time of the mbarrier.init that this write is

    @property
    def writes(self) -> bool:
        return self.kind != "read"

    @property
    def mark(self) -> tuple[int, int]:
        """Tells an access from others of its warp, and the same again at a loop's next turn."""
        return (self.op.pc, self.first_offset)

    @property
    def engine(self) -> str:
        return "generic" if self.handle is None else self.handle.engine

    @property
    def asynchronous_proxy(self) -> bool:
        return self.handle is not None and not self.handle.generic

    def all_known(self, times: Times) -> bool:
        """Whether who knows ``times`` knows this access of every lane."""
        if self.handle is not None:
            return self.handle.known(times, self.writes)
        return times.get(self.warp.id, -1) >= self.time

    def known_lanes(self, times: Times) -> NDArray[np.bool_]:
        """Per active lane of this access, whether who knows ``times`` knows it."""
        handle = self.handle
        if handle is not None:
            if self.offsets is None or handle.known(times, self.writes):
                width = 1 if self.offsets is None else self.lanes.count
                return np.full(width, handle.known(times, self.writes))
            lanes = self.lanes.index.tolist()
            return np.array([handle.part_known(times, lane) for lane in lanes])
        key = self.warp.id + 1
        get = times.get
        if get(self.warp.id, -1) >= self.time:
            return np.ones(self.lanes.count, bool)
        return np.array([get(key + lane, -1) >= self.time for lane in self.lanes.index.tolist()])


def scope_reaches(scope: str, own: Warp, other: Warp) -> bool:
    """Whether a scope of ``own`` includes ``other``."""
    rank = SCOPES[scope]
    if rank >= 2:
        return True
    return own.cta == other.cta if rank == 0 else own.cluster == other.cluster


def narrower(one: str, other: str) -> str:
    """The smaller of two scopes."""
    return min(one, other, key=SCOPES.__getitem__)


def morally_strong(first: Event, second: Event) -> bool:
    """Whether two overlapping accesses may meet without an order between them (8.7.1)."""
    if first.scope is None or second.scope is None:
        return False
    return scope_reaches(first.scope, first.warp, second.warp) and scope_reaches(
        second.scope, second.warp, first.warp
    )


def cta_name(cta: Cta) -> str:
    """ "CTA (0,0,0)"."""
    return f"CTA ({cta[0]},{cta[1]},{cta[2]})"

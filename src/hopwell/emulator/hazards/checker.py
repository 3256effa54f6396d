"""Happens-before over every access of a run: the checker that the machine tells what it does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.hazards.classify import Conflict, latest_known
from hopwell.emulator.hazards.clocks import WARP_STRIDE, Clock, WarpClock
from hopwell.emulator.hazards.events import (
    ATOMIC_ENGINES,
    AsyncOp,
    Cta,
    Event,
    Op,
    Past,
    Wait,
    Warp,
    cta_name,
    morally_strong,
)
from hopwell.emulator.hazards.findings import Columns, Findings, check_rule, plain_access
from hopwell.emulator.hazards.locations import Locations
from hopwell.emulator.hazards.order import first_unordered, ordered, supersedes
from hopwell.emulator.hazards.report import HazardGroup
from hopwell.emulator.hazards.shadow import (
    INITIAL,
    NO_SET,
    UNWRITTEN,
    Index,
    Named,
    Numbers,
    Region,
    Sets,
    distinct,
    referenced,
)
from hopwell.emulator.hazards.words import agent, engine_agent, work
from hopwell.emulator.lanes import FULL, FULL_MASK, Lanes

Offsets = NDArray[np.int64]

#: Between two rounds of forgetting at least so many events come.
_FORGET_AFTER = 40_000
#: Operations per CTA that are remembered before those known to be complete are dropped.
_OPEN_AT_ONCE = 512


class Checker:
    """Records accesses and synchronisation of one run and reports what is not ordered.

    A warp is known by the id that :meth:`new_warp` returned. Methods that take ``lanes`` and
    ``offsets`` expect one offset per active lane, ascending by lane, and keep the array: it must
    not change afterwards. Offsets lie inside the region; what lies outside is for the machine to
    report. Clocks that a method returns are shared: join them into one of your own.

    Attributes:
        seed: of the schedule, put into every hazard.
    """

    enabled = True

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._columns = Columns()
        self._findings = Findings(seed, self._columns)
        self._warps: dict[int, Warp] = {}
        self._mates: dict[Cta, list[WarpClock]] = {}  # the clocks of a CTA's warps
        self._regions: list[Region] = []
        self._shared: dict[Cta, list[Region]] = {}
        self._agents: dict[Cta, list[Warp]] = {}
        self._events: dict[int, Event] = {}
        self._next_event = INITIAL + 1
        self._forget_at = _FORGET_AFTER
        self._sets = Sets()
        self._locations = Locations()
        self._open: dict[Cta, dict[int, AsyncOp]] = {}
        self._serial = 0

    # 1. Agents, memory, columns

    def new_warp(
        self,
        name: str,
        cta: Cta,
        warp_index: int,
        lanes: Lanes = FULL,
        cluster: Cta | None = None,
    ) -> int:
        """A warp that starts now; ``lanes`` are those that exist, ``cluster`` names its cluster."""
        number = (len(self._warps) + 1) * WARP_STRIDE
        clock = WarpClock(number, lanes.bits)
        warp = Warp(number, name, cta, cta if cluster is None else cluster, warp_index, clock)
        self._warps[number] = warp
        self._agents.setdefault(cta, []).append(warp)
        self._mates.setdefault(cta, []).append(clock)
        return number

    def new_region(
        self,
        name: str,
        space: str,
        size: int,
        cta: Cta | None = None,
        initialised: bool = False,
        names: Iterable[Named] = (),
    ) -> Region:
        """Memory of ``size`` bytes, with annotated ranges."""
        region = Region(name, space, size, cta, initialised, list(names))
        self._regions.append(region)
        if cta is not None:
            self._shared.setdefault(cta, []).append(region)
        return region

    def column(self, kind: str, key: object, name: str = "") -> int:
        """The column of a completion: kind "mbarrier", "bulk-read", "bulk", "wgmma", "cp.async".

        The time of an mbarrier's column is the number of its completed phases, so that who knows
        p + 1 knows phase p to be complete; that of the others the number of a committed group.
        ``name`` is what reports call it; given at any later call, it replaces the first.
        """
        return self._columns.number(kind, key, name)

    # 2. Order

    def release(self, w: int, lanes: Lanes, op: Op | None = None, on: str = "") -> Clock:
        """What these lanes publish: everything up to now. ``on`` names what they arrive on."""
        warp = self._warps[w]
        warp.clock.stamp()  # a release that covers nothing can still be told from none
        clock = warp.clock.snapshot(lanes.bits)
        warp.releases.append(Past(warp.clock.time - 1, lanes.bits, on, op))
        return clock

    def release_relaxed(self, w: int, lanes: Lanes) -> Clock:
        """What a relaxed arrive publishes: what its lanes' last releasing fence covered."""
        past = self._locations.covered(self._warps[w], lanes.bits, "sys")
        return Clock() if past is None else past[0]

    def acquire(self, w: int, lanes: Lanes, clock: Clock) -> None:
        """These lanes learn ``clock``."""
        self._warps[w].clock.acquire(lanes.bits, clock)

    def warp_sync(self, w: int, lanes: Lanes) -> None:
        """A barrier among these lanes that orders memory: bar.warp.sync, and bar.sync's own."""
        self._warps[w].clock.synchronise(lanes.bits)

    def proxy_fence(self, w: int, lanes: Lanes) -> None:
        """fence.proxy.async."""
        self._warps[w].clock.proxy_fence(lanes.bits)

    def fence(self, w: int, lanes: Lanes, semantics: str, scope: str) -> None:
        """fence and membar: "acquire", "release", "acq_rel", "sc"; "mbarrier_init" releases
        the initialisations of mbarriers alone (fence.mbarrier_init.release.cluster)."""
        warp = self._warps[w]
        if semantics != "mbarrier_init":
            self._locations.fence(warp, lanes, semantics, scope)
        elif warp.inits:
            clock = Clock.single(self._init_column(warp), warp.inits)
            self._locations.initialisations(warp, clock)

    def _init_column(self, warp: Warp) -> int:
        return self._columns.number("mbarrier-init", warp.id)

    def waited(self, w: int, lanes: Lanes, column: int, time: int) -> None:
        """A wait of these lanes found ``column`` at ``time``: it names late and stale waits."""
        warp = self._warps[w]
        before = warp.waits.get(column)
        fresh = time > (0 if before is None else before.time)
        warp.waits[column] = Wait(time, warp.clock.stamp(), fresh)

    def stamp(self, w: int) -> int:
        """The time of something that the warp does now, for :meth:`knows`."""
        return self._warps[w].clock.stamp()

    def knows(self, w: int, other: int, time: int) -> bool:
        """Whether a lane of warp ``w`` has learned of what a lane of ``other`` did at ``time``."""
        clock = self._warps[w].clock
        views = [clock.general, *(single.general for single in clock.single.values())]
        return any(latest_known(view, self._warps[other]) >= time for view in views)

    # 3. Generic accesses

    def read(
        self,
        w: int,
        lanes: Lanes,
        op: Op,
        region: Region,
        offsets: Offsets,
        size: int,
        strong: bool = False,
        semantics: str = "relaxed",
        scope: str = "gpu",
    ) -> None:
        """A load. ``strong`` with ``semantics`` "relaxed" or "acquire": it may synchronise."""
        warp = self._warps[w]
        event = Event(
            "read", warp, op, region, warp.clock.stamp(), lanes, offsets, size, int(offsets[0])
        )
        if strong:
            event.scope = scope
        self._access(event, region.cells(offsets, size))
        if strong:
            self._locations.read(warp, lanes, region, offsets, semantics, scope)

    def write(
        self,
        w: int,
        lanes: Lanes,
        op: Op,
        region: Region,
        offsets: Offsets,
        size: int,
        strong: bool = False,
        semantics: str = "relaxed",
        scope: str = "gpu",
        values: NDArray[Any] | None = None,
    ) -> None:
        """A store. ``values``, one row per active lane, tells a conflict between lanes of this
        instruction from the same value written twice, which is no hazard; without them every
        byte that two lanes write is one."""
        warp = self._warps[w]
        event = Event(
            "write", warp, op, region, warp.clock.stamp(), lanes, offsets, size, int(offsets[0])
        )
        if strong:
            event.scope = scope
            self._locations.write(warp, lanes, region, offsets, semantics, scope, replace=True)
        elif lanes.count > 1 and len(set(offsets.tolist())) < lanes.count:
            self._same_instruction(event, values)
        self._access(event, region.cells(offsets, size))

    def atomic(
        self,
        w: int,
        lanes: Lanes,
        op: Op,
        region: Region,
        offsets: Offsets,
        size: int,
        semantics: str = "relaxed",
        scope: str = "gpu",
    ) -> None:
        """atom and red: "relaxed", "acquire", "release" or "acq_rel"."""
        warp = self._warps[w]
        event = Event(
            "atomic",
            warp,
            op,
            region,
            warp.clock.stamp(),
            lanes,
            offsets,
            size,
            int(offsets[0]),
            scope=scope,
        )
        self._access(event, region.cells(offsets, size))
        self._locations.write(warp, lanes, region, offsets, semantics, scope, replace=False)
        self._locations.read(warp, lanes, region, offsets, semantics, scope)

    # 4. mbarriers as objects in memory

    def mbarrier_init(self, w: int, lanes: Lanes, op: Op, region: Region, offsets: Offsets) -> None:
        """mbarrier.init: a write that fence.mbarrier_init alone may publish."""
        warp = self._warps[w]
        event = Event("write", warp, op, region, warp.clock.stamp(), lanes, offsets, 8)
        warp.inits += 1
        event.barrier = warp.inits
        self._access(event, region.cells(offsets, 8))

    def mbarrier_use(
        self,
        w: int,
        lanes: Lanes,
        op: Op,
        region: Region,
        offsets: Offsets,
        handle: AsyncOp | None = None,
    ) -> None:
        """An arrive, expect, wait or (with ``handle``) completion on mbarriers at ``offsets``.

        Reports an mbarrier whose initialisation the user does not know to have happened. The
        operations themselves are atomic and race with nothing.
        """
        warp = self._warps[w]
        index = region.cells(offsets, 8)  # first: it may refine the region's arrays
        for number in distinct(region.writes[index]):
            event = self._events.get(number)
            if event is None or event.barrier is None:
                missing = "no mbarrier.init of it comes before"
            elif self._knows_barrier(warp, lanes, event, event.barrier, handle):
                continue
            else:
                missing = (
                    f"its mbarrier.init by {agent(event, event.lanes.first)} is not ordered "
                    "before: no barrier after a fence.mbarrier_init, and no release, reaches it"
                )
            user = Event("atomic", warp, op, region, warp.clock.time, lanes, offsets, 8)
            user.handle = handle
            start = int(offsets[0])
            self._findings.single(
                "uninitialised-barrier",
                op.pc,
                self._findings.access(user, start, start + 8, lanes.first),
                missing,
                {},
                None
                if event is None
                else self._findings.access(event, start, start + 8, event.lanes.first),
            )

    def _knows_barrier(
        self, warp: Warp, lanes: Lanes, event: Event, time: int, handle: AsyncOp | None
    ) -> bool:
        times = warp.clock.general if handle is None else handle.clock.general
        if event.all_known(times) or times.get(self._init_column(event.warp), -1) >= time:
            return True
        if handle is None:
            times = warp.clock.snapshot(lanes.bits).general
        return bool(event.known_lanes(times).all()) or (
            times.get(self._init_column(event.warp), -1) >= time
        )

    # 5. Asynchronous work

    def issue(
        self,
        w: int,
        lanes: Lanes,
        op: Op,
        engine: str,
        description: str = "",
        column: int | None = None,
    ) -> AsyncOp:
        """These lanes hand work to an engine; it may begin at once and knows what they know.

        ``column``: of the mbarrier that it will signal, where it does.
        """
        warp = self._warps[w]
        clock = warp.clock.snapshot(lanes.bits)
        self._serial += 1
        return AsyncOp(
            warp, lanes, op, engine, description, clock, warp.clock.stamp(), self._serial, column
        )

    def engine_read(self, a: AsyncOp, region: Region, starts: Offsets, size: int) -> None:
        """The engine may read ``size`` bytes at each start from its issue to its completion."""
        self._engine("read", a, region, starts, size)

    def engine_write(self, a: AsyncOp, region: Region, starts: Offsets, size: int) -> None:
        """The engine may write ``size`` bytes at each start from its issue to its completion."""
        self._engine("write", a, region, starts, size)

    def landed(self, a: AsyncOp) -> None:
        """In this schedule its bytes are in memory now. Nobody knows it yet."""
        a.landed = True

    def completes(self, a: AsyncOp, column: int, time: int) -> None:
        """Who knows ``column`` to be at ``time`` or later knows that the operation is complete;
        through a "bulk-read" column only that its sources were read, and through a "cp.async"
        column of key (w, lane) only that this lane's part is."""
        kind, key = self._columns.keys[column]
        if kind == "cp.async" and isinstance(key, tuple):
            a.parts[key[1]] = (column, time)
        else:
            a.completions.append((column, time, kind != "bulk-read"))

    # 6. What the machine itself finds

    def exit(self, w: int, lanes: Lanes) -> None:
        """These lanes leave the kernel."""
        warp = self._warps[w]
        warp.clock.alive &= ~lanes.bits & FULL_MASK
        if not any(clock.alive for clock in self._mates[warp.cta]):
            self._peers(warp.cta)
            self._prune(warp.cta)
            for a in self._open.pop(warp.cta, {}).values():
                self._findings.single(
                    a.short or "dangling-copy",
                    a.op.pc,
                    plain_access(a.warp.name, a.lanes, a.op, work(a.engine)),
                    f"no warp of {cta_name(warp.cta)} waits for {engine_agent(a)} before it exits",
                    {},
                )

    def forget(self, cta: Cta) -> None:
        """The CTA's shared memory is gone, and with it everybody who could reach it."""
        for region in self._shared.pop(cta, ()):
            region.forget()

    def _peers(self, cta: Cta) -> None:
        """Accesses to the shared memory of a CTA that ends, of whose end it was not told."""
        mates = self._agents[cta]
        for region in self._shared.get(cta, []):
            arrays = region.arrays()
            if arrays[0] is None:
                continue
            numbers = set(distinct(arrays[0]))
            if arrays[1] is not None:
                numbers.update(*(self._sets[old] for old in distinct(arrays[1])))
            for event in filter(None, map(self._events.get, sorted(numbers))):
                if event.warp.cta == cta or event.handle is not None:
                    continue
                if not any(self.knows(mate.id, event.warp.id, event.time) for mate in mates):
                    self._findings.single(
                        "peer-cta-gone",
                        event.op.pc,
                        self._findings.access(
                            event,
                            event.first_offset,
                            event.first_offset + event.size,
                            event.lanes.first,
                        ),
                        f"{cta_name(cta)} may exit before this {event.kind}: nothing that its "
                        "peer released after it reaches a warp of the CTA",
                        {},
                    )

    def _prune(self, cta: Cta) -> None:
        """Forget operations on the CTA's shared memory that a warp of it knows to be complete."""
        mates = self._mates[cta]
        views = [c.general for c in mates] + [s.general for c in mates for s in c.single.values()]
        self._open[cta] = {
            serial: a for serial, a in self._open.get(cta, {}).items() if not a.known_among(views)
        }

    def report(
        self,
        rule: str,
        w: int,
        lanes: Lanes,
        op: Op,
        missing: str = "",
        first: Op | None = None,
        **facts: object,
    ) -> None:
        """A hazard that the machine detected. ``first``: the instruction of the other side."""
        check_rule(rule)
        warp = self._warps[w]
        second = plain_access(warp.name, lanes, op)
        other = None if first is None else plain_access("", FULL, first)
        self._findings.single(rule, op.pc, second, missing, facts, other)

    @property
    def groups(self) -> list[HazardGroup]:
        """What was found, one group per cause, in the order of the first finding."""
        return self._findings.groups

    # 7. The access itself

    def _engine(self, kind: str, a: AsyncOp, region: Region, starts: Offsets, size: int) -> None:
        event = Event(kind, a.warp, a.op, region, a.time, a.lanes, None, size, int(starts[0]), a)
        if a.engine == "cp.async" and len(starts) == a.lanes.count:
            event.offsets = starts  # one per lane, each of which waits for its own
        if region.cta is not None:
            # Its shared memory must not go before the engine is through with it.
            a.fills = a.fills or kind == "write"
            open_here = self._open.setdefault(region.cta, {})
            open_here[a.serial] = a
            if len(open_here) > _OPEN_AT_ONCE:
                self._prune(region.cta)
        if kind == "write" and a.engine in ATOMIC_ENGINES:
            event.kind, event.scope = "atomic", "gpu"
        self._access(event, region.cells(starts, size))

    def _access(self, event: Event, index: Index) -> None:
        """Check an access against the shadow, then enter it."""
        number = self._next_event
        self._next_event = number + 1
        self._events[number] = event
        region = event.region
        writes = region.writes[index]
        sets = region.sets[index]
        self._check_writes(event, index, writes)
        kept = {old: self._check_set(event, index, sets, old) for old in distinct(sets)}
        if event.writes and event.scope is None:
            # Whatever comes after this write comes after all that it was checked against.
            region.writes[index] = number
            region.sets[index] = NO_SET
        else:
            self._join_set(region, index, sets, kept, number)
            if event.writes:
                region.writes[index] = np.where(writes == UNWRITTEN, INITIAL, writes)
        if len(self._events) > self._forget_at:
            self._forget()

    def _check_writes(self, event: Event, index: Index, writes: Numbers) -> None:
        """Check the last weak writes."""
        for number in distinct(writes):
            if number == INITIAL:
                continue
            if number == UNWRITTEN:
                if event.kind == "read":
                    self._uninitialised(event, index, writes)
                continue
            first = self._events[number]
            if self._ordered(first, event, index, writes, number) and first.handle is not None:
                self._note_use(event, first.handle)

    def _check_set(self, event: Event, index: Index, sets: Numbers, old: int) -> tuple[int, ...]:
        """Check the members of a set; return those that stay when the access joins it."""
        kept = []
        for member in self._sets[old]:
            first = self._events[member]
            if (event.writes or first.writes) and not morally_strong(first, event):
                self._ordered(first, event, index, sets, old)
            if not supersedes(event, first, index, sets, old):
                kept.append(member)
        return tuple(kept)

    def _ordered(
        self, first: Event, event: Event, index: Index, numbers: Numbers, number: int
    ) -> bool:
        """Whether ``first`` happens before; where it does not, and had to, that is reported."""
        if ordered(first, event):
            return True
        conflict = first_unordered(first, event, index, numbers, number)
        if conflict is None:
            return True
        if not morally_strong(first, event):
            previous = self._events.get(
                int(event.region.writes[conflict.start // event.region.grain])
            )
            self._findings.conflict(replace(conflict, previous=previous))
        return False

    def _note_use(self, event: Event, data: AsyncOp) -> None:
        """Remember that a warp used what it had waited for: it tells late from early accesses."""
        waits = event.warp.waits
        for column, _, _ in data.completions:
            wait = waits.get(column)
            if wait is not None:
                wait.used.add(event.mark)

    def _uninitialised(self, event: Event, index: Index, writes: Numbers) -> None:
        """A read of bytes that nothing wrote."""
        grain = event.region.grain
        where = np.flatnonzero(writes == UNWRITTEN)
        cells = where + index.start if isinstance(index, slice) else index[where]
        lane = -1
        if event.offsets is not None:
            lane = int(event.lanes.index[where[0] // (event.size // grain)])
        start, stop = int(cells.min()) * grain, int(cells.max() + 1) * grain
        self._findings.single(
            "uninitialised-read",
            event.op.pc,
            self._findings.access(event, start, stop, lane),
            f"no write to these bytes comes before the read by {agent(event, lane)}",
            {"bytes": len(np.unique(cells)) * grain},
        )

    def _same_instruction(self, event: Event, values: NDArray[Any] | None) -> None:
        """Two lanes of one store write the same bytes: hazard unless the values are equal."""
        assert event.offsets is not None
        order = np.argsort(event.offsets, kind="stable")
        same = event.offsets[order][1:] == event.offsets[order][:-1]
        if values is not None:
            rows = values.reshape(len(order), -1)[order]
            same &= (rows[1:] != rows[:-1]).any(axis=1)
        if not same.any():
            return
        at = int(np.flatnonzero(same)[0])
        lanes = event.lanes.index[order[at : at + 2]]
        start = int(event.offsets[order[at]])
        self._findings.conflict(
            Conflict(
                event, event, start, start + event.size, event.size, int(lanes[0]), int(lanes[1])
            ),
            "warp-race",
            f"lanes {lanes[0]} and {lanes[1]} of one store write different values to the same "
            "bytes: which of them lands is undefined",
        )

    def _forget(self) -> None:
        """Drop events and sets that no cell refers to any more."""
        sets = [s for region in self._regions if (s := region.arrays()[1]) is not None]
        writes = [w for region in self._regions if (w := region.arrays()[0]) is not None]
        self._sets.keep(referenced(sets, self._sets.bound))
        numbers = set(referenced(writes, self._next_event))
        numbers.update(*self._sets.members())
        self._events = {n: self._events[n] for n in sorted(numbers) if n != INITIAL}
        self._forget_at = max(_FORGET_AFTER, 2 * len(self._events))
        for cta in self._open:
            self._prune(cta)

    def _join_set(
        self,
        region: Region,
        index: Index,
        sets: Numbers,
        kept: dict[int, tuple[int, ...]],
        number: int,
    ) -> None:
        """Put an access into the sets of its cells, beside the members that stay."""
        if len(kept) == 1:
            (members,) = kept.values()
            region.sets[index] = self._sets.number((*members, number))
            return
        fresh = sets.copy()
        for old, members in kept.items():
            fresh[sets == old] = self._sets.number((*members, number))
        region.sets[index] = fresh

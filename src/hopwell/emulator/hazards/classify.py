"""Which rule two unordered accesses break."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopwell.emulator.hazards.clocks import Times, merge
from hopwell.emulator.hazards.events import AsyncOp, Event, Wait, Warp


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses to the same bytes with no order between them.

    Attributes:
        first, second: in the order in which the machine executed or issued them.
        start, stop: the bytes from the first to the last that both touch.
        count: how many they are.
        first_lane, second_lane: of the generic accesses, -1 for an engine.
        fence_only: they are ordered, and only a proxy fence is missing.
        previous: the last write to these bytes before the second access.
    """

    first: Event
    second: Event
    start: int
    stop: int
    count: int
    first_lane: int = -1
    second_lane: int = -1
    fence_only: bool = False
    previous: Event | None = None


def view_of(event: Event, lane: int) -> Times:
    """What an access knew in the general view: its engine's issuer, or its lane."""
    if event.handle is not None:
        return event.handle.clock.general
    clock = event.warp.clock
    single = clock.single.get(lane)
    if single is None:
        return clock.general
    times = dict(clock.general)
    merge(times, single.general)
    return times


def latest_known(times: Times, warp: Warp) -> int:
    """The latest time of any lane of ``warp`` that ``times`` knows, -1 for nothing."""
    get = times.get
    key = warp.id + 1
    return max(get(warp.id, -1), *(get(key + lane, -1) for lane in range(32)))


def lanes_that_waited(handle: AsyncOp, warp: Warp, part: int) -> list[int]:
    """The lanes of ``warp`` that alone know ``handle``, or lane ``part``'s part of it, to be
    complete."""
    return [
        lane
        for lane, single in sorted(warp.clock.single.items())
        if handle.known(single.general, full=True) or handle.part_known(single.general, part)
    ]


@dataclass(slots=True)
class Judge:
    """Tells the rule of a conflict. ``mbarrier_columns`` are those that count phases."""

    mbarrier_columns: set[int] = field(default_factory=set)

    def rule(self, conflict: Conflict) -> str:
        """The name of the rule."""
        first, second = conflict.first, conflict.second
        if conflict.fence_only:
            return "missing-proxy-fence"
        times = view_of(second, conflict.second_lane)
        if second.kind == "write" and self._other_tenant(conflict):
            return "storage-aliased"
        if first.handle is None:
            return self._after_generic(conflict, times)
        if not first.writes:
            return self._after_engine_read(conflict, times)
        if first.handle.known(times, full=False):
            return "read-completion-only"
        if second.writes and second.handle is not None:
            return self._race(first, second)
        return self._in_flight(first.handle, conflict)

    def _race(self, first: Event, second: Event) -> str:
        if first.region.space == "global":
            return "global-race"
        if first.warp.cta != second.warp.cta:
            return "distributed-shared-race"
        return "shared-memory-race"

    def _after_generic(self, conflict: Conflict, times: Times) -> str:
        """The earlier access is a warp's own: a load, a store, an atomic."""
        first, second = conflict.first, conflict.second
        if first.warp is second.warp and second.handle is None:
            return "warp-race"
        if latest_known(times, first.warp) >= first.time:
            return "warp-race"  # another lane's release covers it, its own does not
        if not first.writes and second.handle is not None and self._released(conflict, times):
            return "stage-released-early"
        return self._race(first, second)

    def _after_engine_read(self, conflict: Conflict, times: Times) -> str:
        """The earlier access is an engine that may still read what is now overwritten."""
        first, second = conflict.first, conflict.second
        assert first.handle is not None
        if first.handle.engine != "wgmma":
            return "bytes-in-flight"
        if second.handle is None or not self._released(conflict, times):
            return "wgmma-operand-overwritten"
        return "stage-released-early"

    def _released(self, conflict: Conflict, times: Times) -> bool:
        """Whether the reader released after it had waited for the data that it read, and the
        overwriting copy knows that release: then it came, but too early."""
        reader = conflict.first.warp
        wait = self._wait_for(reader, conflict.previous)
        return wait is not None and latest_known(times, reader) >= wait.stamp

    def _wait_for(self, warp: Warp, data: Event | None) -> Wait | None:
        """The last wait of a warp on the barrier that completes ``data``."""
        if data is None or data.handle is None:
            return None
        waits = [warp.waits[c] for c in self.columns_of(data.handle) if c in warp.waits]
        return max(waits, key=lambda wait: wait.stamp, default=None)

    def columns_of(self, handle: AsyncOp) -> list[int]:
        """The mbarriers that an operation signals."""
        columns = [c for c, _, _ in handle.completions if c in self.mbarrier_columns]
        if handle.column is not None and handle.column not in columns:
            columns.append(handle.column)
        return columns

    def _in_flight(self, handle: AsyncOp, conflict: Conflict) -> str:
        """Bytes that an engine wrote are used by who does not know that they have landed.

        A wait on the right barrier that told nothing of this copy is a stale phase. If the
        reader was through with the phase before and its release let the copy start, the access
        belongs to that phase and comes too late: the stage was released early. The same access
        at its next turn, with no wait in between, has no wait.
        """
        second = conflict.second
        warp = second.warp
        if second.handle is None and lanes_that_waited(handle, warp, conflict.first_lane):
            return "warp-race"
        known = handle.verdicts.get(warp.id)
        if known is not None:
            return known
        rule = "bytes-in-flight"
        waits = [warp.waits[c] for c in self.columns_of(handle) if c in warp.waits]
        if waits:
            wait = max(waits, key=lambda wait: wait.stamp)
            if handle.short:
                rule = handle.short  # the wait was satisfied without the copy's bytes
            elif not wait.fresh:
                rule = "stale-phase"
            elif second.mark in wait.used:
                rule = "bytes-in-flight"
            elif latest_known(handle.clock.general, warp) >= wait.stamp:
                rule = "stage-released-early"
            else:
                rule = "stale-phase"
        handle.verdicts[warp.id] = rule
        return rule

    def _other_tenant(self, conflict: Conflict) -> bool:
        """Whether the bytes carry several names and the two accesses use different ones."""
        first, second = conflict.first, conflict.second
        region = first.region
        if len(region.shared_by(conflict.start, conflict.stop)) < 2:
            return False
        bounds = (conflict.start, conflict.stop)
        name = region.name_of(*bounds, first.engine)
        if name != region.name_of(*bounds, second.engine):
            return True
        # Names that nothing tells apart: another kind of writer begins another tenancy.
        data = conflict.previous if conflict.previous is not None else first
        return " | " in name and data.engine != second.engine

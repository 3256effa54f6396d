"""Accesses and missing edges in words."""

from __future__ import annotations

from hopwell.emulator.hazards.classify import (
    Conflict,
    lanes_that_waited,
    latest_known,
    view_of,
)
from hopwell.emulator.hazards.clocks import Times
from hopwell.emulator.hazards.events import AsyncOp, Event, Op, Past, Warp
from hopwell.emulator.hazards.report import Access

_WORK = {
    "tma-load": "tensor load",
    "tma-store": "tensor store",
    "tma-reduce": "tensor reduction",
    "bulk-copy": "bulk copy",
    "bulk-reduce": "bulk reduction",
    "wgmma": "wgmma",
}


def work(engine: str) -> str:
    """What an engine does, as a noun."""
    return _WORK.get(engine, engine)


def agent(event: Event, lane: int) -> str:
    """Who accessed."""
    if event.handle is not None:
        return engine_agent(event.handle)
    return f"{event.warp.name} lane {lane}" if lane >= 0 else event.warp.name


def engine_agent(handle: AsyncOp) -> str:
    """An engine by the instruction that gave it the work."""
    by = f"{work(handle.engine)} issued by {handle.warp.name}"
    if handle.lanes.count == 1:
        by += f" lane {handle.lanes.first}"
    # What says no more than the instruction is left out.
    described = handle.description not in ("", handle.op.node.opcode)
    return f"{by} ({handle.description})" if described else by


def line(op: Op | None) -> str:
    """ "at file:line", or nothing for an operation that no text holds."""
    if op is None:
        return ""
    node = op.node
    if node.source is not None:
        return f" at {node.source.file}:{node.source.line}"
    return f" at {node.location.file}:{node.location.line}"


def access(event: Event, start: int, stop: int, lane: int, mbarriers: set[int]) -> Access:
    """One side of a hazard; ``mbarriers`` are the columns whose times are phases."""
    phase = None
    for column, time, _ in event.handle.completions if event.handle is not None else ():
        if column in mbarriers:
            phase = time - 1
    return Access(
        agent=agent(event, lane),
        kind=event.kind,
        instruction=event.op.node.opcode,
        location=event.op.node.location,
        source=event.op.node.source,
        space=event.region.space,
        region=event.region.name,
        buffer=event.region.name_of(start, stop, event.engine),
        start=start,
        stop=stop,
        phase=phase,
        proxy="async" if event.asynchronous_proxy else "generic",
    )


class Words:
    """Says the missing edge, with the names of columns and the set of those that are mbarriers."""

    def __init__(self, names: dict[int, str], mbarriers: set[int]) -> None:
        self._names = names
        self._mbarriers = mbarriers

    def missing(self, rule: str, conflict: Conflict) -> str:
        """The edge that would have ordered the two accesses."""
        first, second = conflict.first, conflict.second
        times = view_of(second, conflict.second_lane)
        who = agent(second, conflict.second_lane)
        if conflict.fence_only:
            return (
                f"the {first.kind} by {agent(first, conflict.first_lane)} happens before "
                f"{who}, but no fence.proxy.async lies between them: the store is in the generic "
                "proxy, the engine reads through the async proxy"
            )
        if first.handle is not None:
            return self._completion(rule, first.handle, conflict, times, who)
        if first.warp is second.warp and second.handle is None:
            return (
                f"no bar.warp.sync between lane {conflict.first_lane} and lane "
                f"{conflict.second_lane} of {first.warp.name}"
            )
        return self._release(first, conflict.first_lane, times, who)

    def _release(self, first: Event, lane: int, times: Times, who: str) -> str:
        """The earlier access is generic: which of its warp's releases came too early."""
        reader = agent(first, lane)
        edge = f"no release after the {first.kind} by {reader} reaches {who}"
        latest = latest_known(times, first.warp)
        covering = [
            f"lane {other}"
            for other in range(32)
            if times.get(first.warp.id + 1 + other, -1) >= first.time
        ]
        if covering:
            return (
                f"{edge}: {covering[0]} of its warp released after it, with no bar.warp.sync "
                f"that orders lane {lane} before that release{self._past(first.warp, latest)}"
            )
        if latest > 0:
            return f"{edge}: the last one that does came before the {first.kind}" + self._past(
                first.warp, latest
            )
        return f"{edge}: nothing that {first.warp.name} released does"

    def _past(self, warp: Warp, time: int) -> str:
        """The release of a warp that covers exactly what was stamped up to ``time``."""
        found: Past | None = None
        for past in warp.releases:
            if past.time == time:
                found = past
        if found is None:
            return ""
        on = f" on {found.text}" if found.text else ""
        return f" (its arrive{on}{line(found.op)})"

    def _completion(
        self, rule: str, handle: AsyncOp, conflict: Conflict, times: Times, who: str
    ) -> str:
        """The earlier access is an engine's: which completion the later one does not know."""
        first, second = conflict.first, conflict.second
        what = engine_agent(handle)
        done = "its sources are read" if not first.writes else "its bytes have landed"
        if rule == "read-completion-only":
            return (
                f"{who} knows that {what} has read its sources (.read), not that its writes "
                "are complete: wait without .read"
            )
        if rule == "warp-race":
            waited = lanes_that_waited(handle, second.warp, conflict.first_lane)
            lanes = ", ".join(map(str, waited))
            return (
                f"only lane {lanes} of {second.warp.name} has waited for {what}: no "
                f"bar.warp.sync tells {who}"
            )
        if rule == "stage-released-early" and first.writes:
            return (
                f"{second.warp.name} released this stage before its last access: {what} was "
                "let in by that release"
            )
        told = self._told(handle, second.warp)
        if not handle.completions and not told:
            uncommitted = " (its group is not even committed)" if handle.column is None else ""
            return f"nothing tells {who} that {done}: {what} is not complete{uncommitted}"
        if rule == "stage-released-early":
            return (
                f"no release after the completion of {what} reaches {who}: the warp released "
                f"the stage before it waited for its wgmma group"
                + self._past(first.warp, latest_known(times, first.warp))
            )
        return f"{who} does not know that {done}: {what}{told}"

    def _told(self, handle: AsyncOp, warp: Warp) -> str:
        """What completes it, and how far this warp has waited there."""
        columns = {c: t for c, t, _ in handle.completions}
        columns.update(list(handle.parts.values())[:1])
        if handle.column is not None:
            columns.setdefault(handle.column, -1)
        parts = []
        for column, time in columns.items():
            parts.append(
                f" completes {self._reached(column, time)}{self._names[column]}, and "
                f"{warp.name} {self._waited(column, warp)}"
            )
        return ";".join(parts)

    def _reached(self, column: int, time: int) -> str:
        if time < 0:
            return "on "
        if column in self._mbarriers:
            return f"phase {time - 1} of "
        return f"with group {time} of "

    def _waited(self, column: int, warp: Warp) -> str:
        """How far a warp's last wait on a column got."""
        wait = warp.waits.get(column)
        if wait is None:
            return "never waited there"
        if column in self._mbarriers and wait.time <= 0:
            return "was let through before any phase was complete"
        done = f"phase {wait.time - 1}" if column in self._mbarriers else f"group {wait.time}"
        return f"last found {done} complete"

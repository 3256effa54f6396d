"""What a run did and when: spans of warps and engines, pipelines, ledgers of named barriers.

The machine calls a :class:`Recorder`'s hooks while it runs. Time is neither the hardware's clock
nor the order in which one emulated warp after the other happened to run. It is a count of warp
instructions as if all warps ran side by side: each warp counts its own instructions, one unit
each, and a wait joins its clock with that of whoever it waited for. Work of the engines takes no
time of its own; its span reaches from the issue to the first wait that needs it, which is the
time it may be in flight.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hopwell.emulator.conditions import (
    ClusterRound,
    Condition,
    LanesMeet,
    MbarrierPhase,
    NamedBarrierRound,
    RegistersFree,
    WarpgroupIssued,
    WarpRound,
)
from hopwell.emulator.pipelines import Call, Ledger, Payload, Pipelines, Stage, place

if TYPE_CHECKING:
    from hopwell.emulator.asynchronous import Copy
    from hopwell.emulator.decode import DecodedOp
    from hopwell.emulator.machine import Cluster
    from hopwell.emulator.mbarrier import Mbarrier
    from hopwell.emulator.named_barrier import NamedBarrier
    from hopwell.emulator.warp import Warp
    from hopwell.ptx.nodes import SourceLine

Index = tuple[int, int, int]

_STRETCH = 4
"""Instructions of another file after which a warp counts as having gone there."""


class Mark(NamedTuple):
    """A moment on a row of the timeline."""

    cta: Index
    row: str
    time: int


@dataclass(slots=True)
class Span:
    """Something that lasted.

    Attributes:
        cta, row: where it is drawn: "warp 4", "warpgroup 1 tensor core", "tma-load".
        name: what it was.
        kind: "running", "blocked", "stuck" (blocked for ever), "code" (inside a running span,
            a stretch of one source file), "wgmma" or "copy".
        start, stop: in units of the recorder's clock, the second exclusive.
        facts: what else is known, plain values.
    """

    cta: Index
    row: str
    name: str
    kind: str
    start: int
    stop: int
    facts: dict[str, Any] = field(default_factory=dict)


class Flow(NamedTuple):
    """An arrow of the timeline: what made a wait succeed."""

    name: str
    start: Mark
    stop: Mark


@dataclass(eq=False, slots=True)
class _Row:
    """One warp's state.

    Attributes:
        time: the warp's clock.
        began, first: when the current running span began, and at which instruction.
        turned, code: when it came to the source file that it is in, and at which instruction.
        stray, left: how many instructions of other files it has run since, and the first of them.
        condition: what the warp is blocked on, as far as is known.
        last_wait: the mbarrier of its last successful wait.
        products: matrix instructions since the last commit: their start, first and count.
        groups: committed groups of them in flight.
    """

    warp: "Warp"
    name: str
    time: int
    began: int
    first: "DecodedOp"
    turned: int
    code: "DecodedOp"
    left: "tuple[int, DecodedOp]"
    stray: int = 0
    condition: Condition | None = None
    last_wait: "Mbarrier | None" = None
    products: "tuple[int, DecodedOp, int] | None" = None
    groups: "list[tuple[int, int, DecodedOp, int]]" = field(default_factory=list)

    @property
    def mark(self) -> Mark:
        return Mark(self.warp.cta.index, self.name, self.time)


@dataclass(eq=False, slots=True)
class _Flight:
    """A copy from its issue to the wait that needs it."""

    copy: "Copy"
    issued: Mark
    order: int
    landed: int | None = None


class Recorder:
    """Records one run. Not used, it costs nothing: the machine then has none.

    Attributes:
        order: warp instructions that the machine has executed, one after the other.
        end: the latest moment, once the run is over.
        spans, flows: the timeline, in the order in which things ended.
        pipelines: the mbarriers of each CTA, what happened at them, and which belong together.
    """

    def __init__(self) -> None:
        self.order = 0
        self.end = 0
        self.spans: list[Span] = []
        self.flows: list[Flow] = []
        self.pipelines = Pipelines()
        self._rows: dict[Warp, _Row] = {}
        self._signals: dict[tuple[Any, int], Mark] = {}
        self._flights: dict[Copy, _Flight] = {}
        self._awaited: dict[tuple[Mbarrier, int], list[_Flight]] = {}
        self._arrived: dict[tuple[Mbarrier, int], list[Span]] = {}
        self._products: dict[tuple[Index, int, int], Span] = {}
        self._calls: dict[tuple[Index, int], list[Call]] = {}
        self._floor = 0

    # -- warps ---------------------------------------------------------------------------

    def _row(self, warp: "Warp") -> _Row:
        row = self._rows.get(warp)
        if row is None:
            # CTAs that were not resident from the start begin when another has ended.
            start = self._floor
            first = warp.op
            name = f"warp {warp.index}"
            row = _Row(warp, name, start, start, first, start, first, (start, first))
            self._rows[warp] = row
        return row

    def instruction(self, warp: "Warp", pc: int) -> None:
        """A warp is about to perform an instruction."""
        row = self._rows.get(warp) or self._row(warp)
        source, before = warp.op.node.source, row.code.node.source
        if source is before or _file(source) == _file(before):
            row.stray = 0
        else:
            if not row.stray:
                row.left = row.time, warp.op
            row.stray += 1
            if row.stray == _STRETCH:
                self._turn(row, *row.left)
        self.order += 1
        row.time += 1
        row.condition = None

    def blocked(self, warp: "Warp", condition: Condition) -> None:
        """The instruction cannot be performed yet; it will be tried again."""
        row = self._row(warp)
        row.time -= 1
        row.condition = condition

    def exited(self, warp: "Warp") -> None:
        """A warp's last lane has exited."""
        row = self._row(warp)
        self._close(row)
        if not any(other.live for other in warp.cta.warps):
            self._floor = row.time

    def _turn(self, row: _Row, time: int, op: "DecodedOp") -> None:
        """The warp came to the code of another file then, with ``op``, or stopped."""
        if time > row.turned and row.code.node.source is not None:
            self._add(row, place(row.code), "code", row.turned, time, {})
        row.turned, row.code, row.stray = time, op, 0

    def _close(self, row: _Row) -> None:
        self._turn(row, row.time, row.warp.op)
        if row.time > row.began:
            facts = {"from": place(row.first), "to": place(row.warp.op)}
            self._add(row, place(row.first), "running", row.began, row.time, facts)
        row.began, row.first = row.time, row.warp.op

    def _add(
        self, row: _Row, name: str, kind: str, start: int, stop: int, facts: dict[str, Any]
    ) -> None:
        self.spans.append(Span(row.warp.cta.index, row.name, name, kind, start, stop, facts))

    def _signal(self, what: Any, number: int, mark: Mark) -> None:
        """Whoever waits for this number of ``what`` goes on no earlier than now."""
        known = self._signals.get((what, number))
        if known is None or mark.time > known.time:
            self._signals[what, number] = mark

    def _join(self, row: _Row, what: Any, number: int, name: str, *, arrow: bool = True) -> None:
        """A wait for this number of ``what`` succeeded."""
        mark = self._signals.get((what, number))
        if mark is None:
            return
        if mark.time > row.time:
            self._close(row)
            at = {"at": place(row.warp.op)}
            self._add(row, name, "blocked", row.time, mark.time, at)
            row.time = row.began = row.turned = mark.time
        if arrow and mark[:2] != row.mark[:2]:
            self.flows.append(Flow(name, mark, row.mark))

    # -- mbarriers -----------------------------------------------------------------------

    def initialised(self, warp: "Warp", barrier: "Mbarrier") -> None:
        """An mbarrier object came into being."""
        cta = warp.cta.cluster.ctas[barrier.memory.rank]
        self.pipelines.add(cta.index, barrier)

    def arrive(self, warp: "Warp", barrier: "Mbarrier", armed: bool) -> None:
        """One arrival; ``armed``: with transaction bytes expected."""
        row = self._row(warp)
        stage = self.pipelines.stage(barrier)
        stage.arrivals += 1
        stage.arrivers[row.name] += 1
        if armed:
            self._commit(row, stage)
        self._signal(barrier, barrier.phase, row.mark)

    def expect(self, warp: "Warp", barrier: "Mbarrier") -> None:
        """Transaction bytes were expected without an arrival."""
        self._commit(self._row(warp), self.pipelines.stage(barrier))

    def _commit(self, row: _Row, stage: Stage) -> None:
        stage.commits += 1
        if row.last_wait is not None:
            self.pipelines.pair(stage, row.last_wait)

    def wait(self, warp: "Warp", barrier: "Mbarrier", awaited: int) -> None:
        """A wait found that phase complete."""
        row = self._row(warp)
        stage = self.pipelines.stage(barrier)
        stage.waits += 1
        stage.waiters[row.name] += 1
        self._join(row, barrier, awaited, f"{barrier.name} phase {awaited}")
        row.last_wait = barrier
        key = barrier, awaited
        for span in self._arrived.get(key, ()):
            span.stop = max(min(span.stop, row.time), span.start)
        for flight in self._awaited.pop(key, ()):
            span = self._copy_span(flight, row.time, "the first wait")
            self._arrived.setdefault(key, []).append(span)

    def phase(self, barrier: "Mbarrier") -> None:
        """A phase completed."""
        self.pipelines.stage(barrier).phases += 1

    # -- copies --------------------------------------------------------------------------

    def issue(self, copy: "Copy") -> None:
        """A copy was handed to its engine."""
        self._flights[copy] = _Flight(copy, self._row(copy.warp).mark, self.order)

    def copy(self, copy: "Copy") -> None:
        """A copy's bytes are in memory; its barrier, if any, is about to be told."""
        flight = self._flights.get(copy)
        if flight is None:
            return  # its group's .read was waited for, where its span ends
        flight.landed = self.order
        barrier = copy.barrier
        if barrier is None:
            return
        del self._flights[copy]
        self._signal(barrier, barrier.phase, flight.issued)
        self._awaited.setdefault((barrier, barrier.phase), []).append(flight)
        self.pipelines.stage(barrier).payloads.append(
            Payload(copy.payload, copy.bytes, barrier.phase, place(copy.op), flight.issued.row)
        )

    def copies_waited(self, warp: "Warp", copies: "list[Copy]", reading: bool) -> None:
        """A wait of a group covered copies; ``reading``: their sources alone."""
        time = self._row(warp).time
        for copy in copies:
            flight = self._flights.pop(copy, None)
            if flight is not None:
                what = "wait_group.read" if reading else "wait_group"
                self._copy_span(flight, time, f"{what} by warp {warp.index}")

    def _copy_span(self, flight: _Flight, stop: int, until: str) -> Span:
        copy, issued = flight.copy, flight.issued
        facts = {
            "bytes": copy.bytes,
            "issued by": issued.row,
            "at": place(copy.op),
            "until": until,
            "issued after": flight.order,
            "landed after": flight.landed,
        }
        stop = max(stop, issued.time)
        span = Span(issued.cta, copy.kind, copy.payload, "copy", issued.time, stop, facts)
        self.spans.append(span)
        return span

    # -- named and cluster barriers ------------------------------------------------------

    def named(self, warp: "Warp", barrier: "NamedBarrier", action: str, op: "DecodedOp") -> None:
        """A warp arrived at a named barrier."""
        row = self._row(warp)
        self._signal(barrier, barrier.round, row.mark)
        call = Call(action, barrier.index, barrier.round, row.time, place(op))
        self._calls.setdefault((warp.cta.index, warp.index), []).append(call)

    def named_passed(self, warp: "Warp", barrier: "NamedBarrier", number: int) -> None:
        """A warp went on after a round of a named barrier."""
        self._join(self._row(warp), barrier, number, f"named barrier {barrier.index}")

    def cluster_arrived(self, warp: "Warp", cluster: "Cluster") -> None:
        """Lanes of a warp arrived at the cluster's barrier."""
        self._signal(cluster, cluster.round, self._row(warp).mark)

    def cluster_passed(self, warp: "Warp", cluster: "Cluster", number: int) -> None:
        """A warp went on after a round of the cluster's barrier."""
        self._join(self._row(warp), cluster, number, "cluster barrier")

    @property
    def ledgers(self) -> list[Ledger]:
        """Per warpgroup, its calls of named barriers in order."""
        return Ledger.of(self._calls)

    # -- matrix instructions -------------------------------------------------------------

    def wgmma(self, warp: "Warp", op: "DecodedOp") -> None:
        """A warp issued a ``wgmma.mma_async``."""
        row = self._row(warp)
        start, first, count = row.products or (row.time, op, 0)
        row.products = start, first, count + 1

    def wgmma_commit(self, warp: "Warp", number: int) -> None:
        """What a warp issued became its group of that number."""
        row = self._row(warp)
        if row.products is not None:
            row.groups.append((number, *row.products))
            row.products = None
        self._signal(_warpgroup(warp), number, row.mark)

    def wgmma_wait(self, warp: "Warp", done: int) -> None:
        """All groups of a warp up to ``done`` are complete."""
        row = self._row(warp)
        self._join(row, _warpgroup(warp), done, "other warps of the warpgroup", arrow=False)
        while row.groups and row.groups[0][0] <= done:
            self._group_span(row, *row.groups.pop(0), stop=row.time)

    def _group_span(
        self, row: _Row, number: int, start: int, op: "DecodedOp", count: int, *, stop: int
    ) -> None:
        """Add a warp's part of a group to its warpgroup's span."""
        cta, warpgroup = _warpgroup(row.warp)
        key = cta, warpgroup, number
        span = self._products.get(key)
        if span is None:
            shape = next((m for m in op.node.modifiers if m.startswith("m64n")), "")
            facts = {"group": number, "at": place(op), "instructions": count}
            span = self._products[key] = Span(
                cta, f"warpgroup {warpgroup} tensor core",
                f"{count} x {shape} {place(op)}", "wgmma", start, stop, facts,
            )  # fmt: skip
            self.spans.append(span)
        span.start, span.stop = min(span.start, start), max(span.stop, stop)

    # -- the end -------------------------------------------------------------------------

    def finish(self) -> None:
        """The run is over: close what is open. A warp that still waits does so for ever."""
        self.end = end = max((row.time for row in self._rows.values()), default=0)
        for row in self._rows.values():
            if row.warp.live:
                self._close(row)
                what = "polling" if row.condition is None else condition_name(row.condition)
                at = {"at": place(row.warp.op)}
                self._add(row, what, "stuck", row.time, end + 1, at)
            for group in row.groups:
                self._group_span(row, *group, stop=row.time)
            row.groups.clear()
        for flights in self._awaited.values():
            for flight in flights:
                self._copy_span(flight, end, "nobody waited")
        for flight in self._flights.values():
            ends = self._rows[flight.copy.warp].time
            self._copy_span(flight, ends, "the warp exited")
        # What is kept does not hold on to warps, barriers and their memory.
        for held in (self._rows, self._signals, self._flights, self._awaited, self._arrived):
            held.clear()
        self.pipelines.close()

    def counts(self) -> Counter[str]:
        """How many spans of each kind there are."""
        return Counter(span.kind for span in self.spans)


def _warpgroup(warp: "Warp") -> tuple[Index, int]:
    return warp.cta.index, warp.index // 4


def _file(source: "SourceLine | None") -> str:
    return "" if source is None else source.file


def condition_name(condition: Condition) -> str:
    """What a blocked warp waits for, in a few words."""
    if isinstance(condition, MbarrierPhase):
        return f"{condition.barrier.name} phase {condition.awaited}"
    if isinstance(condition, NamedBarrierRound):
        return f"named barrier {condition.barrier.index}"
    if isinstance(condition, WarpgroupIssued):
        return f"other warps of the warpgroup, wgmma group {condition.number}"
    if isinstance(condition, LanesMeet | WarpRound):
        return "the other lanes of the warp"
    if isinstance(condition, RegistersFree):
        return f"{condition.needed} free registers"
    if isinstance(condition, ClusterRound):
        return "cluster barrier"
    return type(condition).__name__

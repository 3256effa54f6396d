"""Why nobody can go on: the wait-for graph of blocked warps, its cycles and causes, in words.

A pure function over what the machine knows when every warp that has not exited is blocked:
:func:`explain` takes the waiters, each with what it waits for and who could bring it, and gives a
graph whose edges lead from a waiter to those that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopwell.ptx.nodes import Location, SourceLine

#: The version of :func:`to_dict`.
SCHEMA = "hopwell.deadlock/1"


@dataclass(frozen=True, slots=True)
class Place:
    """An instruction: its opcode, its place in the PTX and the line it was compiled from."""

    instruction: str
    location: Location | None = None
    source: SourceLine | None = None

    def __str__(self) -> str:
        if self.source is not None:
            return f"{self.source.file}:{self.source.line} ({self.instruction})"
        if self.location is not None:
            return f"{self.location.file}:{self.location.line} ({self.instruction})"
        return self.instruction


@dataclass(frozen=True, slots=True)
class Signaller:
    """Who could bring what a waiter needs.

    Attributes:
        agent: the name of a warp (as in :class:`Waiter`) or of an engine.
        place: where it would: an arrive that it executed in an earlier phase, or one that its
            program holds.
        arrivals: how often it arrived on this barrier so far.
        state: "blocked", "exited", or "running" for an engine with work in flight.
    """

    agent: str
    place: Place | None = None
    arrivals: int = 0
    state: str = "blocked"


@dataclass(frozen=True, slots=True)
class MbarrierWait:
    """A wait for a phase of an mbarrier.

    Attributes:
        name: of the barrier, "k_full[1]" where annotated.
        awaited: number of the phase that the waiter needs completed, counted from 0. With a
            parity only: the phase that the machine takes it for.
        current: number of the phase in progress.
        pending_arrivals: that the phase in progress still lacks.
        pending_bytes: transaction count of the phase in progress; negative when copies brought
            bytes that nothing expected.
        expected_arrivals: of a whole phase.
        copies_in_flight: how many copies that will signal it have not landed.
        parity: operand of a wait by parity, else None.
        seen: the last phase that this waiter found complete before, None for none.
        owner_exited: whether the barrier belongs to a CTA that has exited.
        ever_armed: whether any phase of it ever expected bytes.
    """

    name: str
    awaited: int
    current: int
    pending_arrivals: int
    pending_bytes: int
    expected_arrivals: int
    copies_in_flight: int = 0
    parity: int | None = None
    seen: int | None = None
    owner_exited: bool = False
    ever_armed: bool = True


@dataclass(frozen=True, slots=True)
class NamedBarrierWait:
    """A wait at a named barrier: the threads that it expects, those that have arrived, the counts
    that the participants gave (more than one is an error), and a rule that they broke, and how."""

    number: int
    expected: int
    arrived: int
    counts: tuple[int, ...] = ()
    fault: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClusterWait:
    """A wait at the cluster barrier; ``missing`` names the warps that have not arrived."""

    expected: int
    arrived: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryWait:
    """A loop that reads memory which nobody can change any more.

    ``places`` are what it polls, in words ("dq_semaphore[3]"), with the last value seen."""

    places: tuple[str, ...]
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupWait:
    """A wait for groups of asynchronous work: kind "bulk", "bulk-read", "wgmma", "cp.async"."""

    kind: str
    pending: int
    allowed: int


@dataclass(frozen=True, slots=True)
class RegisterWait:
    """setmaxnreg.inc waits for registers: how many it wants, and how many the pool has."""

    wanted: int
    free: int


@dataclass(frozen=True, slots=True)
class LanesWait:
    """Lanes of a warp wait at a .sync instruction for others of its mask, as bits."""

    mask: int
    arrived: int


Wanted = (
    MbarrierWait
    | NamedBarrierWait
    | ClusterWait
    | MemoryWait
    | GroupWait
    | RegisterWait
    | LanesWait
)


@dataclass(frozen=True, slots=True)
class Waiter:
    """One blocked agent: its name, where it stands, what it waits for, who could bring it."""

    agent: str
    place: Place
    wanted: Wanted
    signallers: tuple[Signaller, ...] = ()
    cta: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """``waiter`` cannot go on before ``needed`` does something; ``why`` says what."""

    waiter: str
    needed: str
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One waiter with the cause that its own state shows, "" where it only waits for others.

    ``cause`` is a rule of :data:`hopwell.emulator.hazards.rules.RULES`, or "missing-arrival",
    "missing-copy", "divergent-sync", "unchanging-memory" or "waits-for-others".
    """

    waiter: Waiter
    cause: str
    words: str


@dataclass(frozen=True, slots=True)
class WaitForGraph:
    """Who waits for whom.

    Attributes:
        findings: per waiter, those that show a cause of their own first.
        edges: waiter to needed.
        cycles: agents that wait for each other round about, each starting with its smallest.
    """

    findings: tuple[Finding, ...]
    edges: tuple[Edge, ...]
    cycles: tuple[tuple[str, ...], ...] = field(default=())

    @property
    def cause(self) -> str:
        """The most telling cause: the first finding's; "deadlock" when all wait for others."""
        cause = self.findings[0].cause if self.findings else "deadlock"
        return "deadlock" if cause == "waits-for-others" else cause

    def lines(self) -> list[str]:
        """The graph as lines of text: the cause, each waiter, the cycles."""
        count = len(self.findings)
        who = "one waiter" if count == 1 else f"{count} waiters"
        cause = "each waits for another" if self.cause == "deadlock" else f"cause {self.cause}"
        text = [f"deadlock: {who}, {cause}"]
        for finding in self.findings:
            text += ["", f"{finding.waiter.agent} waits at {finding.waiter.place}"]
            text += [f"   {line}" for line in finding.words.split("\n")]
        for cycle in self.cycles:
            text += ["", "cycle: " + " -> ".join((*cycle, cycle[0]))]
        return text


def explain(waiters: Iterable[Waiter]) -> WaitForGraph:
    """The wait-for graph of ``waiters``, which are all that is left and cannot go on."""
    listed = list(waiters)
    findings = [Finding(w, *_judge(w)) for w in listed]
    order = {cause: rank for rank, cause in enumerate(_MOST_TELLING_FIRST)}
    findings.sort(key=lambda finding: order[finding.cause])
    edges = tuple(edge for waiter in listed for edge in _edges(waiter))
    return WaitForGraph(tuple(findings), edges, _cycles(edges, {w.agent for w in listed}))


_MOST_TELLING_FIRST = (
    "register-pool-exhausted",
    "named-barrier-count",
    "named-barrier-divergence",
    "setmaxnreg-divergence",
    "barrier-never-armed",
    "expected-bytes-too-few",
    "expected-bytes-too-many",
    "stale-phase",
    "peer-cta-gone",
    "divergent-sync",
    "missing-copy",
    "missing-arrival",
    "unchanging-memory",
    "waits-for-others",
)


def _judge(waiter: Waiter) -> tuple[str, str]:
    """Cause and words of one waiter."""
    wanted = waiter.wanted
    if isinstance(wanted, MbarrierWait):
        cause, words = _mbarrier(wanted, waiter)
    elif isinstance(wanted, NamedBarrierWait):
        cause, words = _named(wanted, waiter)
    elif isinstance(wanted, ClusterWait):
        cause, words = _cluster(wanted, waiter)
    elif isinstance(wanted, MemoryWait):
        cause, words = _memory(wanted, waiter)
    elif isinstance(wanted, GroupWait):
        cause = "missing-copy"
        words = (
            f"for {wanted.kind} groups: {wanted.pending} are pending, {wanted.allowed} may be, "
            "and no engine has work of them"
        )
    elif isinstance(wanted, LanesWait):
        cause = "divergent-sync"
        words = (
            f"for lanes {_lanes(wanted.mask & ~wanted.arrived)} of its warp, which the mask names "
            f"and which are elsewhere or have exited; lanes {_lanes(wanted.arrived)} are here"
        )
    else:
        cause = "register-pool-exhausted"
        words = f"for {wanted.wanted} registers, of which the CTA's pool has {wanted.free}"
    signallers = _signallers(waiter)
    return cause, f"{words}\n{signallers}" if signallers else words


def _lanes(bits: int) -> str:
    """ "0-3, 7" for 0b10001111."""
    lanes = [lane for lane in range(bits.bit_length()) if bits >> lane & 1]
    starts = [lane for lane in lanes if lane - 1 not in lanes]
    stops = [lane for lane in lanes if lane + 1 not in lanes]
    runs = zip(starts, stops, strict=True)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _mbarrier(wait: MbarrierWait, waiter: Waiter) -> tuple[str, str]:
    parity = "" if wait.parity is None else f" (parity {wait.parity})"
    words = (
        f"on mbarrier {wait.name}, for phase {wait.awaited}{parity} to complete; phase "
        f"{wait.current} is in progress with {wait.pending_arrivals} of {wait.expected_arrivals} "
        f"arrivals and {wait.pending_bytes} bytes pending"
    )
    if wait.owner_exited:
        return "peer-cta-gone", f"{words}: the CTA that owns it has exited"
    if wait.parity is not None and wait.seen is not None and wait.awaited >= wait.seen + 2:
        return "stale-phase", (
            f"{words}. It last found phase {wait.seen} complete: phase {wait.seen + 1} went by "
            "without it, or its parity was not flipped"
        )
    if wait.parity is not None and wait.seen is None and wait.awaited >= 2:
        return "stale-phase", (
            f"{words}. It never found a phase of it complete: phases 0 to {wait.awaited - 1} went "
            "by without it"
        )
    if wait.pending_bytes < 0:
        rule = "expected-bytes-too-few" if wait.ever_armed else "barrier-never-armed"
        return rule, (
            f"{words}: copies brought {-wait.pending_bytes} bytes that no expect_tx announced"
        )
    if wait.pending_bytes > 0 and not wait.copies_in_flight and not wait.pending_arrivals:
        return "expected-bytes-too-many", (
            f"{words}: every arrival has come and no copy is in flight, so more bytes were "
            "expected than copies bring, or a copy was never issued"
        )
    if wait.awaited > wait.current:
        return "stale-phase", (
            f"{words}: the phase before the awaited one is not complete either, the waiter is a "
            "phase ahead"
        )
    return _nobody_left(waiter, words)


def _nobody_left(waiter: Waiter, words: str) -> tuple[str, str]:
    """A missing arrival: nobody can bring it, or who could is blocked as well."""
    blocked = {s.agent for s in waiter.signallers if s.state == "blocked"}
    if blocked == {waiter.agent}:
        return "missing-arrival", f"{words}: only it could arrive there itself"
    if blocked:
        return "waits-for-others", words
    gone = [s.agent for s in waiter.signallers if s.state == "exited"]
    if gone:
        return "missing-arrival", f"{words}: {', '.join(gone)} exited without the arrival"
    return "missing-arrival", f"{words}: no instruction of any warp could arrive there"


def _named(wait: NamedBarrierWait, waiter: Waiter) -> tuple[str, str]:
    words = (
        f"at named barrier {wait.number}: {wait.arrived} of {wait.expected} threads have arrived"
    )
    if wait.fault and wait.fault != "named-barrier-count":
        return wait.fault, f"{words}, and {wait.reason}"
    if len(set(wait.counts)) > 1:
        counts = ", ".join(map(str, sorted(set(wait.counts))))
        return "named-barrier-count", f"{words}; its participants gave different counts: {counts}"
    possible = wait.arrived + 32 * sum(s.state == "blocked" for s in waiter.signallers)
    if waiter.signallers and possible < wait.expected:
        return "named-barrier-count", (
            f"{words}, and the warps that could still arrive bring it to {possible} at most"
        )
    return _nobody_left(waiter, words)


def _cluster(wait: ClusterWait, waiter: Waiter) -> tuple[str, str]:
    words = f"at the cluster barrier: {wait.arrived} of {wait.expected} threads have arrived"
    if wait.missing:
        words += f"; {', '.join(wait.missing)} have not"
    if any(s.state == "exited" for s in waiter.signallers):
        return "peer-cta-gone", f"{words}, and some of them have exited"
    return "waits-for-others", words


def _memory(wait: MemoryWait, waiter: Waiter) -> tuple[str, str]:
    values = f", last seen as {', '.join(map(str, wait.values))}" if wait.values else ""
    words = f"in a loop on {', '.join(wait.places)}{values}, which nobody changes any more"
    if any(s.state == "blocked" for s in waiter.signallers):
        return "waits-for-others", words
    return "unchanging-memory", words


def _signallers(waiter: Waiter) -> str:
    """Who was to signal it, where, and what keeps them."""
    parts = []
    for signaller in waiter.signallers:
        where = f" at {signaller.place}" if signaller.place is not None else ""
        count = signaller.arrivals
        times = f", {'once' if count == 1 else f'{count} times'} so far" if count else ""
        parts.append(f"to be signalled by {signaller.agent}{where}{times}: {signaller.state}")
    return "\n".join(parts)


def _edges(waiter: Waiter) -> list[Edge]:
    what = _thing(waiter.wanted)
    return [
        Edge(waiter.agent, needed, f"its signal on {what}")
        for needed in dict.fromkeys(s.agent for s in waiter.signallers if s.state == "blocked")
    ]


def _thing(wanted: Wanted) -> str:
    if isinstance(wanted, MbarrierWait):
        return f"mbarrier {wanted.name}"
    if isinstance(wanted, NamedBarrierWait):
        return f"named barrier {wanted.number}"
    if isinstance(wanted, ClusterWait):
        return "the cluster barrier"
    if isinstance(wanted, MemoryWait):
        return ", ".join(wanted.places)
    if isinstance(wanted, GroupWait):
        return f"{wanted.kind} groups"
    return "registers" if isinstance(wanted, RegisterWait) else "lanes of its warp"


def _cycles(edges: Sequence[Edge], agents: set[str]) -> tuple[tuple[str, ...], ...]:
    """One shortest cycle through each strongly connected group of waiters."""
    needs: dict[str, list[str]] = {agent: [] for agent in sorted(agents)}
    for edge in edges:
        if edge.needed in agents:
            needs[edge.waiter].append(edge.needed)
    cycles: list[tuple[str, ...]] = []
    covered: set[str] = set()
    for start in needs:
        cycle = None if start in covered else _shortest_cycle(needs, start)
        if cycle is not None:
            covered.update(cycle)
            first = cycle.index(min(cycle))
            cycles.append((*cycle[first:], *cycle[:first]))
    return tuple(dict.fromkeys(cycles))


def _shortest_cycle(needs: dict[str, list[str]], start: str) -> tuple[str, ...] | None:
    """The shortest way from ``start`` back to itself, breadth first."""
    came_from: dict[str, str] = {}
    queue = [start]
    for agent in queue:
        for needed in needs[agent]:
            if needed == start:
                way = [agent]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return tuple(reversed(way))
            if needed not in came_from:
                came_from[needed] = agent
                queue.append(needed)
    return None


def to_dict(graph: WaitForGraph) -> dict[str, Any]:
    """The graph as plain values, with the schema's version."""
    return {
        "schema": SCHEMA,
        "cause": graph.cause,
        "waiters": [
            {
                "agent": finding.waiter.agent,
                "at": str(finding.waiter.place),
                "cause": finding.cause,
                "words": finding.words,
            }
            for finding in graph.findings
        ],
        "edges": [
            {"waiter": edge.waiter, "needed": edge.needed, "why": edge.why} for edge in graph.edges
        ],
        "cycles": [list(cycle) for cycle in graph.cycles],
    }

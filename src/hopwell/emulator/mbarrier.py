"""mbarrier objects (PTX ISA 9.7.13.15): phases, pending arrivals, transaction bytes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hopwell.emulator.asynchronous import Copy
    from hopwell.emulator.decode import DecodedOp
    from hopwell.emulator.lanes import Lanes
    from hopwell.emulator.machine import Cta
    from hopwell.emulator.memory import Memory
    from hopwell.emulator.warp import Warp

_PENDING_SHIFT = 0
_PHASE_SHIFT = 32


class Arrival(NamedTuple):
    """An arrival: who, in which phase, and the checker's time of it."""

    warp: "Warp"
    lanes: "Lanes"
    op: "DecodedOp"
    phase: int
    time: int


@dataclass(eq=False)
class Mbarrier:
    """One mbarrier object.

    The hardware tells phases apart by their parity; this one keeps the full number, so that a
    wait that passes one phase too early or two too late can be named.

    Attributes:
        expected: arrivals that each phase needs.
        pending: arrivals that the current phase still needs.
        bytes: transaction bytes that the current phase still needs; negative when more have
            landed than were expected.
        phase: completed phases.
        armed: bytes expected over the current phase, the last of them by ``armed_by``.
        copies: those issued in the current phase.
        arrivers: who has arrived, how often, and where last.
        observed: the last phase that each warp found complete.
        remote: arrivals by other CTAs in phases that no wait has found complete.
    """

    memory: "Memory"
    offset: int
    name: str
    column: int
    expected: int
    pending: int
    phase: int = 0
    bytes: int = 0
    armed: int = 0
    arriving: Any = None
    completed: Any = None
    in_flight: int = 0
    ever_armed: bool = False
    armed_by: "DecodedOp | None" = None
    copies: list["Copy"] = field(default_factory=list)
    last_copy: "Copy | None" = None
    arrivers: dict["Warp", tuple[int, "DecodedOp"]] = field(default_factory=dict)
    observed: dict["Warp", int] = field(default_factory=dict)
    remote: list[Arrival] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=list)

    def arm(self, size: int, op: "DecodedOp") -> None:
        """Expect ``size`` more bytes in the current phase."""
        self.bytes += size
        self.armed += size
        self.armed_by = op
        self.ever_armed = True
        self._mark_copies()

    def claim(self, copy: "Copy") -> None:
        """A copy that brings bytes to this barrier was issued."""
        self.copies.append(copy)
        self.last_copy = copy
        self._mark_copies()

    def _mark_copies(self) -> None:
        """Copies that bring more than the phase expects are marked with the rule they break.

        They may be issued before their bytes are expected, so the mark is not yet a hazard: it
        explains one, when their bytes are used before they have landed.
        """
        rule = ""
        if sum(copy.bytes for copy in self.copies) > self.armed:
            rule = self.shortage
        for copy in self.copies:
            if copy.handle is not None:
                copy.handle.short = rule

    @property
    def shortage(self) -> str:
        """The rule that a barrier breaks which got more bytes than it expected."""
        return "expected-bytes-too-few" if self.ever_armed else "barrier-never-armed"

    def arrive(self, warp: "Warp", lanes: "Lanes", op: "DecodedOp", time: int) -> None:
        """Remember who arrived."""
        times, _ = self.arrivers.get(warp, (0, op))
        self.arrivers[warp] = times + 1, op
        if warp.cta.rank != self.memory.rank:
            self.remote.append(Arrival(warp, lanes, op, self.phase, time))

    def observe(self, warp: "Warp", phase: int) -> None:
        """A wait of ``warp`` found ``phase`` complete."""
        self.observed[warp] = phase
        if self.remote and self.remote[0].phase <= phase:
            self.remote = [a for a in self.remote if a.phase > phase]

    def token(self) -> int:
        """The opaque state that ``mbarrier.arrive`` returns: this phase, its pending arrivals."""
        return (self.phase & 0x7FFF_FFFF) << _PHASE_SHIFT | self.pending << _PENDING_SHIFT

    @staticmethod
    def token_phase(token: int) -> int:
        """The phase of a state."""
        return token >> _PHASE_SHIFT & 0x7FFF_FFFF

    @staticmethod
    def token_pending(token: int) -> int:
        """The pending arrivals of a state (``mbarrier.pending_count``)."""
        return token & 0xFF_FFFF

    def phase_of_parity(self, parity: int) -> int:
        """The phase that a wait with this parity is about: the current one or the one before."""
        return self.phase if self.phase & 1 == parity & 1 else self.phase - 1

    def complete_if_due(self, single: Any) -> bool:
        """Complete the phase when nothing is pending. ``single(column, time)`` makes a clock."""
        if self.pending > 0 or self.bytes != 0:
            return False
        clock = single(self.column, self.phase + 1)
        if self.arriving is not None:
            clock.join(self.arriving)
        self.completed, self.arriving = clock, None
        self.phase += 1
        self.pending = self.expected
        self.armed = 0
        self.copies.clear()
        return True


def check_at_exit(barrier: Mbarrier, owner: "Cta", checker: Any) -> None:
    """What an mbarrier is left with when its CTA, ``owner``, ends."""
    copy, arming = barrier.last_copy, barrier.armed_by
    if barrier.bytes < 0 and copy is not None:
        checker.report(
            barrier.shortage, copy.warp.agent, copy.lanes, copy.op, first=arming,
            missing=f"no expect_tx for {-barrier.bytes} bytes that {barrier.name} received",
            barrier=barrier.name, phase=barrier.phase, bytes=-barrier.bytes,
        )  # fmt: skip
    for arrival in barrier.remote:
        # A warp of the CTA that was told of the arrival, in whatever way, stayed long enough.
        if not any(checker.knows(w.agent, arrival.warp.agent, arrival.time) for w in owner.warps):
            report_dangling(barrier, arrival.warp, arrival.lanes, arrival.op)


def report_dangling(barrier: Mbarrier, warp: "Warp", lanes: "Lanes", op: "DecodedOp") -> None:
    """An arrival that may come after the CTA of its barrier has exited."""
    home = warp.cta.cluster.ctas[barrier.memory.rank]
    warp.checker.report(
        "dangling-arrival", warp.agent, lanes, op,
        missing=f"CTA {home.index} may exit before this arrival on {barrier.name}: none of its "
        f"warps waits for phase {barrier.phase}, or is told of it in another way",
        barrier=barrier.name, phase=barrier.phase,
    )  # fmt: skip

"""Named barriers (``barrier``/``bar``, PTX ISA 9.7.13.1): sixteen per CTA, counted in threads."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hopwell.emulator.lanes import Lanes

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


class Part(NamedTuple):
    """Lanes of a warp that have arrived while others of it, that live, have not.

    Attributes:
        bits: the lanes.
        lanes: those that came last, at ``op``.
        action: "sync", "arrive" or "red".
        aligned: whether the instruction wants all lanes of the warp to come together.
        threads: the count that they gave.
    """

    bits: int
    lanes: Lanes
    op: Any
    action: str
    aligned: bool
    threads: int


@dataclass(eq=False)
class NamedBarrier:
    """One named barrier of a CTA.

    Attributes:
        index: 0 to 15.
        round: completed rounds.
        threads: the count that the current round's participants name; 0 between rounds.
        everyone: the participants name no count: all threads of the CTA that have not exited.
        arrived: threads that have arrived.
        warps: who arrived in this round, and whether they wait there.
        parts: lanes of warps that have not arrived whole, and how they arrived.
        counts: the counts that participants have given in this round.
        faults: rules that its participants broke.
    """

    index: int
    round: int = 0
    threads: int = 0
    everyone: bool = False
    arrived: int = 0
    arriving: Any = None
    completed: Any = None
    warps: list[tuple["Warp", bool, Any]] = field(default_factory=list)
    parts: dict["Warp", "Part"] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    participants: dict["Warp", Any] = field(default_factory=dict)
    reduction: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As reports call it."""
        return f"named barrier {self.index}"

    def report_part(self, warp: "Warp", part: Part) -> None:
        """Lanes of an aligned barrier came without others that live: only the unaligned may."""
        if part.aligned:
            warp.checker.report(
                "named-barrier-divergence", warp.agent, part.lanes, part.op, barrier=self.name,
                missing="other lanes are elsewhere: "
                f"{warp.name} arrived with {part.lanes.count} only",
            )  # fmt: skip

    def count_warp(self, warp: "Warp", part: Part) -> None:
        """All lanes of a warp that live have arrived, ``part`` last."""
        op = part.op
        self.counts.append(part.threads)
        self.arrived += 32
        self.warps.append((warp, part.action != "arrive", op))
        self.participants[warp] = op
        if self.arrived >= self.threads and not any(waits for _, waits, _ in self.warps):
            warp.checker.report(
                "named-barrier-divergence", warp.agent, part.lanes, op, first=self.warps[0][2],
                barrier=self.name,
                missing=f"round {self.round} of {self.name} is complete by arrivals alone, "
                "and lets nobody go: who waits there comes too late for it",
            )  # fmt: skip
        warp.machine.version += 1
        if warp.machine.recorder is not None:
            warp.machine.recorder.named(warp, self, part.action, op)

    def lanes_exited(self, warp: "Warp") -> None:
        """Lanes of ``warp`` have exited: the rest of it may all have arrived."""
        part = self.parts.get(warp)
        if part is not None and warp.live and not warp.live & ~part.bits:
            del self.parts[warp]
            self.count_warp(warp, part)
            if self.complete_if_due():
                warp.machine.version += 1

    def complete_if_due(self) -> bool:
        """Complete the round when all its threads have arrived."""
        if self.missing:
            return False
        self.completed, self.arriving = self.arriving, None
        self.results, self.reduction = self.reduction, {}
        self.warps = []
        self.counts = []
        self.arrived = self.threads = 0
        self.round += 1
        return True

    @property
    def missing(self) -> int:
        """Threads that have yet to arrive."""
        return max(0, self.threads - self.arrived)

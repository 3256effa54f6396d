"""Named barriers (``barrier``/``bar``, PTX ISA 9.7.13.1): sixteen per CTA, counted in threads."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


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
        parts: lanes of warps that have not arrived whole.
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
    parts: dict["Warp", int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    participants: dict["Warp", Any] = field(default_factory=dict)
    reduction: dict[str, int] = field(default_factory=dict)
    results: dict[str, int] = field(default_factory=dict)

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

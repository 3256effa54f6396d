"""mbarrier objects (PTX ISA 9.7.13.15): phases, pending arrivals, transaction bytes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopwell.emulator.memory import Memory

_PENDING_SHIFT = 0
_PHASE_SHIFT = 32


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
        armed: bytes expected over the current phase.
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
    arrivers: dict[str, int] = field(default_factory=dict)
    waiters: dict[str, int] = field(default_factory=dict)
    history: list[tuple[int, int]] = field(default_factory=list)
    initialised_by: Any = None

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
        return True

"""Why a fragment cannot go on. An instruction that must wait raises :class:`Blocked` and is
performed again when its condition holds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopwell.emulator.mbarrier import Mbarrier
    from hopwell.emulator.named_barrier import NamedBarrier
    from hopwell.emulator.warp import Fragment, Warp


class Condition:
    """What a blocked fragment waits for."""

    may_time_out = False
    """Whether the instruction gives up after a while, as ``try_wait`` does."""

    def ready(self) -> bool:
        """Whether the instruction can be performed now."""
        raise NotImplementedError


@dataclass
class MbarrierPhase(Condition):
    """The phase ``awaited`` of an mbarrier has to complete."""

    barrier: "Mbarrier"
    awaited: int
    parity: int | None = None
    may_time_out = True

    def ready(self) -> bool:
        return self.barrier.phase > self.awaited


@dataclass
class NamedBarrierRound(Condition):
    """Round ``number`` of a named barrier has to complete."""

    barrier: "NamedBarrier"
    number: int

    def ready(self) -> bool:
        return self.barrier.round > self.number


@dataclass
class LanesMeet(Condition):
    """The other lanes that a ``.sync`` mask names have to arrive at the same instruction."""

    warp: "Warp"
    bits: int
    pc: int

    def ready(self) -> bool:
        return self.warp.meets(self.bits, self.pc)


@dataclass
class WarpRound(Condition):
    """Round ``number`` of ``bar.warp.sync`` with a mask has to complete, wherever lanes are."""

    warp: "Warp"
    mask: int
    number: int

    def ready(self) -> bool:
        return self.warp.syncs[self.mask][0] > self.number


@dataclass
class RegistersFree(Condition):
    """The CTA's register pool has to hold ``needed`` more registers."""

    warp: "Warp"
    needed: int

    def ready(self) -> bool:
        return self.warp.cta.free_registers >= self.needed


@dataclass
class ClusterRound(Condition):
    """The cluster barrier's round ``number`` has to complete."""

    fragment: "Fragment"
    number: int

    def ready(self) -> bool:
        return self.fragment.warp.cta.cluster.round > self.number


@dataclass
class WarpgroupIssued(Condition):
    """All warps of the warpgroup have to issue their share of wgmma group ``number``."""

    warps: "list[Warp]"
    number: int

    def ready(self) -> bool:
        return not self.missing

    @property
    def missing(self) -> "list[Warp]":
        """The warps that have not."""
        return [
            warp
            for warp in self.warps
            if warp.live and (warp.wgmma is None or warp.wgmma.committed < self.number)
        ]


class Blocked(Exception):
    """Raised by an instruction that has to wait."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        super().__init__(condition)


class Retired(Exception):
    """Raised when no lane of the running fragment goes on: all exited or wait to reconverge."""


class Yield(Exception):
    """Raised to let others run: the fragment itself can go on."""

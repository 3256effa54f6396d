"""A ring of shared-memory stages between the copy engine and the MMA warpgroups (spec 0x03).

Each stage has two mbarriers: *full* (the copy's bytes have landed) and *empty* (every reader is
done). One number names everything: the ordinal ``r`` of a payload since the kernel began. Stage
``r mod s`` holds it and generation ``(r div s) mod 2`` is the parity to wait for, so that nobody
can take an old completion of the same stage for the new one.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Int32, cute

from hopwell.hopper.plan import MBarrierSpec


@dataclass(frozen=True)  # frozen: the compiler then knows that no loop carries it
class Ring:
    """One full/empty pipeline. Counts and bytes come from the plan's two barrier specs."""

    full: cute.Pointer
    empty: cute.Pointer
    full_spec: MBarrierSpec
    empty_spec: MBarrierSpec

    @property
    def stages(self) -> int:
        return self.full_spec.count

    def init(self) -> None:
        """Initialise every barrier; one thread of the CTA runs this before anyone waits."""
        for stage in range(self.stages):
            cute.arch.mbarrier_init(self.full + stage, self.full_spec.arrivals)
            cute.arch.mbarrier_init(self.empty + stage, self.empty_spec.arrivals)

    def stage(self, ordinal: Int32) -> Int32:
        """Where payload ``ordinal`` lives."""
        if self.stages & (self.stages - 1) == 0:
            return ordinal & (self.stages - 1)
        return ordinal % self.stages

    def parity(self, ordinal: Int32) -> Int32:
        """Which generation of its stage payload ``ordinal`` is, modulo two."""
        if self.stages & (self.stages - 1) == 0:
            return (ordinal >> (self.stages.bit_length() - 1)) & 1
        return (ordinal // self.stages) & 1

    def acquire(self, ordinal: Int32) -> cute.Pointer:
        """Producer: wait until the stage is free, arm it, and return its full barrier.

        The empty wait is for the *previous* generation: inverted parity, which a fresh barrier
        satisfies at once, so the first ``stages`` payloads do not block.
        """
        self.wait_empty(ordinal)
        full = self.full + self.stage(ordinal)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.full_spec.transaction_bytes)
        return full

    def wait_empty(self, ordinal: Int32) -> None:
        """Producer: wait until every reader of the stage's previous payload has released it."""
        cute.arch.mbarrier_wait(self.empty + self.stage(ordinal), self.parity(ordinal) ^ 1)

    def wait_full(self, ordinal: Int32) -> None:
        """Consumer: wait until payload ``ordinal`` has landed."""
        cute.arch.mbarrier_wait(self.full + self.stage(ordinal), self.parity(ordinal))

    def release(self, ordinal: Int32) -> None:
        """Consumer warp: this warp reads the payload no more (one lane arrives)."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.empty + self.stage(ordinal))

"""The end of a tile: normalise, log-sum-exp, and O out through shared memory."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, const_expr, cute

from hopwell.hopper.consumer import MmaWarpgroup
from hopwell.hopper.fragments import ROWS, store_fragment
from hopwell.hopper.plan import (
    MMA_M,
    WARP,
    HopperForwardPlan,
    NamedBarrier,
    OutputStorage,
)
from hopwell.hopper.producer import TensorCopy
from hopwell.hopper.shared import SharedMemory
from hopwell.hopper.softmax import rescale


@dataclass(frozen=True)
class Epilogue:
    """Writes one MMA warpgroup's 64 rows. Its first warp issues the tensor store.

    ``mLSE`` (batch, heads, seqlen_q) float32; with all extents zero it is not wanted.
    """

    plan: HopperForwardPlan
    shared: SharedMemory
    worker: MmaWarpgroup
    copy_o: TensorCopy
    mLSE: cute.Tensor

    @cute.jit
    def write(
        self, first_row: Int32, row: Int32, head: Int32, batch: Int32, q_ordinal: Int32
    ) -> None:
        """Write the rows from ``first_row`` on; this thread's are ``row`` and ``row + 8`` of them.

        ``q_ordinal`` is this tile's Q payload, released here where O is staged in its rows.
        """
        plan, worker, rings = self.plan, self.worker, self.worker.rings
        inverse = cute.make_rmem_tensor(ROWS, Float32)
        lse = cute.make_rmem_tensor(ROWS, Float32)
        worker.softmax.finish(inverse, lse)
        rescale(worker.operands.o, inverse)
        mLSE = self.mLSE  # a name of its own: assigning through `self` would carry it
        if worker.thread % 4 == 0:
            for r in cutlass.range_constexpr(ROWS):
                position = first_row + row + 8 * r
                if position < mLSE.shape[2]:
                    mLSE[batch, head, position] = lse[r]

        own = plan.output_storage is OutputStorage.OWN
        slot = worker.group
        if const_expr(not own):
            slot = rings.q.stage(q_ordinal) * plan.mma_warpgroups + worker.group
        sO = self.shared.o()[None, None, slot]
        storing = worker.thread < WARP
        if const_expr(own):
            # The previous tile's store must have read what is about to be overwritten.
            if storing:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            self.meet()
        store_fragment(worker.operands.pv, worker.thread, worker.operands.o, sO)
        # Ordinary stores, then the copy engine reads: a proxy fence in every writer, then all meet.
        cute.arch.fence_view_async_shared()
        self.meet()
        if storing:
            tOsO, tOgO = self.copy_o.partition(sO, (MMA_M, plan.head_dim_v), head, batch)
            cute.copy(self.copy_o.atom, tOsO, tOgO[None, first_row // MMA_M])
            cute.arch.cp_async_bulk_commit_group()
            if const_expr(not own):
                # Q's rows are free for the next Q only when the store has read them.
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                rings.q.release(q_ordinal)

    def meet(self) -> None:
        """All of one MMA warpgroup meet."""
        cute.arch.barrier(
            barrier_id=NamedBarrier.OUTPUT_1.value + self.worker.group,
            number_of_threads=self.plan.participants(NamedBarrier.OUTPUT_1),
        )

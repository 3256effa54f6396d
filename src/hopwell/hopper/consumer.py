"""An MMA warpgroup: 64 query rows of every tile, key blocks from right to left (spec 0x03 to 0x05).

Two bodies. The overlapped one peels a first and a last half and in between issues block j's scores
beside block j - 1's product; the serial one finishes block by block. Neither resets anything
between tiles but the softmax: ring ordinals and ping-pong turns carry over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup
from cutlass.utils import hopper_helpers

from hopwell.hopper.fragments import ROWS, convert, issue, operand_view, store_fragment
from hopwell.hopper.plan import (
    MMA_M,
    HopperForwardPlan,
    NamedBarrier,
    PSource,
    Rescale,
)
from hopwell.hopper.shared import ELEMENTS, Rings, SharedMemory
from hopwell.hopper.softmax import OnlineSoftmax, mask_columns, rescale


@dataclass(frozen=True)
class Operands:
    """Fragments of both products. Q, K, V and shared P are descriptors, the rest registers."""

    qk: cute.TiledMma
    pv: cute.TiledMma
    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    p: cute.Tensor
    o: cute.Tensor
    shared_p: Any

    @classmethod
    def of(
        cls, plan: HopperForwardPlan, shared: SharedMemory, group: Int32, thread: Int32
    ) -> Operands:
        """Fragments of ``thread`` of MMA warpgroup ``group``."""
        element, k_major = ELEMENTS[plan.dtype], OperandMajorMode.K
        from_shared = plan.p_source is PSource.SHARED
        source = warpgroup.OperandSource
        qk = hopper_helpers.make_trivial_tiled_mma(
            element, element, k_major, k_major, Float32, (1, 1, 1), (MMA_M, plan.tile_n)
        )
        pv = hopper_helpers.make_trivial_tiled_mma(
            element,
            element,
            k_major,
            OperandMajorMode.MN,
            Float32,
            (1, 1, 1),
            (MMA_M, plan.head_dim_v),
            a_source=source.SMEM if from_shared else source.RMEM,
        )
        thread_qk, thread_pv = qk.get_slice(thread), pv.get_slice(thread)
        # The second product contracts over keys: its B operand is V transposed.
        sV = shared.v()
        sVt = cute.make_tensor(sV.iterator, cute.select(sV.layout, mode=[1, 0, 2]))
        sP = shared.p()[None, None, group] if from_shared else None
        p = (
            pv.make_fragment_A(thread_pv.partition_A(sP))
            if from_shared
            else cute.make_rmem_tensor(((2, 2, 2), 1, plan.pv_steps), element)
        )
        return cls(
            qk,
            pv,
            qk.make_fragment_A(thread_qk.partition_A(shared.q())),
            qk.make_fragment_B(thread_qk.partition_B(shared.k())),
            pv.make_fragment_B(thread_pv.partition_B(sVt)),
            p,
            cute.make_rmem_tensor(pv.partition_shape_C((MMA_M, plan.head_dim_v)), Float32),
            sP,
        )


@dataclass(frozen=True)
class MmaWarpgroup:
    """The two products and the softmax between them, for one warpgroup.

    ``correction`` (2,) float32 moves O into the newest reference; ``limits`` (2,) int32 are the
    tile's visible keys per row of this thread, ``column`` its first column of every eight.
    """

    plan: HopperForwardPlan
    rings: Rings
    operands: Operands
    softmax: OnlineSoftmax
    correction: cute.Tensor
    limits: cute.Tensor
    group: Int32
    thread: Int32
    column: Int32

    @classmethod
    def of(
        cls,
        plan: HopperForwardPlan,
        shared: SharedMemory,
        rings: Rings,
        group: Int32,
        thread: Int32,
        scale_log2: Float32,
    ) -> MmaWarpgroup:
        """Fresh registers for ``thread`` of MMA warpgroup ``group``."""
        return cls(
            plan,
            rings,
            Operands.of(plan, shared, group, thread),
            OnlineSoftmax.of(scale_log2),
            cute.make_rmem_tensor(ROWS, Float32),
            cute.make_rmem_tensor(ROWS, Int32),
            group,
            thread,
            thread % 4 * 2,
        )

    # -- overlapped body -------------------------------------------------------------------

    @cute.jit
    def overlapped(self, q: cute.Tensor, ordinal: Int32, blocks: Int32, clear: Int32) -> None:
        """The two-stage body (spec 0x05); all but the leftmost ``clear`` blocks need a mask."""
        plan, rings, operands = self.plan, self.rings, self.operands
        # 1. First half: the rightmost block's scores; nothing to overlap with yet.
        scores = self.new_scores()
        rings.k.wait_full(ordinal)
        self.issue_scores(scores, q, ordinal)
        warpgroup.wait_group(0)
        rings.k.release(ordinal)
        if clear < blocks:
            self.mask(scores, blocks - 1)
        self.softmax.update(scores, self.correction)
        self.place_p(scores)

        # 2. Steady pairs: those under the mask first, then those that need none.
        masked = cutlass.min(cutlass.max(blocks - clear, 1), blocks)
        if const_expr(plan.causal):
            for j in cutlass.range(1, masked, unroll=1):
                self.pair(q, ordinal + j, blocks - 1 - j)
        for j in cutlass.range(masked, blocks, unroll=1):
            self.pair(q, ordinal + j, None)

        # 3. Last half: the leftmost block's product.
        last = ordinal + blocks - 1
        if const_expr(plan.rescale is Rescale.BEFORE):
            rescale(operands.o, self.correction)
        rings.v.wait_full(last)
        self.issue_output(last)
        warpgroup.wait_group(0)
        rings.v.release(last)

    @cute.jit
    def pair(self, q: cute.Tensor, ordinal: Int32, masked_block: Int32 | None) -> None:
        """Scores of payload ``ordinal`` beside the product of the one before it."""
        plan, rings, operands = self.plan, self.rings, self.operands
        scores = self.new_scores()
        previous = ordinal - 1
        rings.k.wait_full(ordinal)
        if const_expr(plan.ping_pong):
            self.wait_turn()
        self.issue_scores(scores, q, ordinal)
        if const_expr(plan.rescale is Rescale.BEFORE):
            rescale(operands.o, self.correction)  # into P's frame, while the scores are computed
        rings.v.wait_full(previous)
        self.issue_output(previous)
        if const_expr(plan.ping_pong):
            self.pass_turn()
        # Groups complete in order: at most the newest pending means the scores are there, while
        # the second product may still run beside the softmax.
        warpgroup.wait_group(1)
        rings.k.release(ordinal)
        if const_expr(masked_block is not None):
            self.mask(scores, masked_block)
        self.softmax.update(scores, self.correction)
        warpgroup.wait_group(0)
        rings.v.release(previous)
        # Only now may P's registers be overwritten and O be touched.
        if const_expr(plan.rescale is Rescale.AFTER):
            rescale(operands.o, self.correction)
        self.place_p(scores)

    # -- serial body -----------------------------------------------------------------------

    @cute.jit
    def serial(self, q: cute.Tensor, ordinal: Int32, blocks: Int32, clear: Int32) -> None:
        """Block by block; the turn is held between a product and the next scores (spec 0x04)."""
        if const_expr(self.plan.ping_pong):
            self.wait_turn()
        for j in cutlass.range(blocks - clear, unroll=1):
            self.block(q, ordinal + j, blocks - 1 - j)
        for j in cutlass.range(blocks - clear, blocks, unroll=1):
            self.block(q, ordinal + j, None)
        if const_expr(self.plan.ping_pong):
            self.pass_turn()

    @cute.jit
    def block(self, q: cute.Tensor, ordinal: Int32, masked_block: Int32 | None) -> None:
        """One key block, whole; holds the turn on entry and on exit."""
        plan, rings = self.plan, self.rings
        scores = self.new_scores()
        rings.k.wait_full(ordinal)
        self.issue_scores(scores, q, ordinal)
        if const_expr(plan.ping_pong):
            self.pass_turn()
        warpgroup.wait_group(0)
        rings.k.release(ordinal)
        if const_expr(masked_block is not None):
            self.mask(scores, masked_block)
        self.softmax.update(scores, self.correction)
        rescale(self.operands.o, self.correction)
        self.place_p(scores)
        rings.v.wait_full(ordinal)
        if const_expr(plan.ping_pong):
            self.wait_turn()
        self.issue_output(ordinal)
        warpgroup.wait_group(0)
        rings.v.release(ordinal)

    # -- blocks that only other warpgroups need --------------------------------------------

    @cute.jit
    def pass_over(self, ordinal: Int32, skipped: Int32, own: Int32) -> None:
        """Let the tile's rightmost ``skipped`` blocks go by: none of this group's rows sees them.

        Their payloads are waited for and released as if read, and their turns taken and passed, so
        that every group makes the same number of scheduler calls per tile whatever it computes
        (spec 0x04, "Persistent Work And Sparse Branches"). ``own`` blocks remain.
        """
        rings = self.rings
        # Turns of a tile with n blocks: n - 1 overlapped, n + 1 serial; with none, none at all.
        turns = skipped
        if own == 0 and skipped > 0:
            turns = skipped - 1 if const_expr(self.plan.overlap) else skipped + 1
        for j in cutlass.range(skipped, unroll=1):
            rings.k.wait_full(ordinal + j)
            rings.k.release(ordinal + j)
            if j < turns:
                self.take_and_pass_turn()
            rings.v.wait_full(ordinal + j)
            rings.v.release(ordinal + j)
        if skipped < turns:
            self.take_and_pass_turn()

    # -- steps that both share -------------------------------------------------------------

    def new_scores(self) -> cute.Tensor:
        """A fresh score accumulator (64, tile_n)."""
        shape = self.operands.qk.partition_shape_C((MMA_M, self.plan.tile_n))
        return cute.make_rmem_tensor(shape, Float32)

    def issue_scores(self, scores: cute.Tensor, q: cute.Tensor, ordinal: Int32) -> None:
        """S = Q K^T of payload ``ordinal``, one committed group, not waited for."""
        k = self.operands.k[None, None, None, self.rings.k.stage(ordinal)]
        issue(self.operands.qk, scores, q, k, accumulate=False)

    def issue_output(self, ordinal: Int32) -> None:
        """O += P V of payload ``ordinal``, one committed group, not waited for."""
        v = self.operands.v[None, None, None, self.rings.v.stage(ordinal)]
        issue(self.operands.pv, self.operands.o, self.operands.p, v, accumulate=True)

    def mask(self, scores: cute.Tensor, block: Int32) -> None:
        """Hide keys that a row may not see, or that lie past the end: zeros there are scores."""
        mask_columns(scores, self.limits, block * self.plan.tile_n + self.column)

    def place_p(self, scores: cute.Tensor) -> None:
        """Round the probabilities to 16 bits and put them where the second product reads them."""
        if self.plan.p_source is PSource.REGISTERS:
            convert(operand_view(scores), self.operands.p)
            return
        store_fragment(self.operands.qk, self.thread, scores, self.operands.shared_p)
        # Ordinary stores, then the tensor cores read: a proxy fence in every writer, then all meet.
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(
            barrier_id=NamedBarrier.P_1.value + self.group,
            number_of_threads=self.plan.participants(NamedBarrier.P_1),
        )

    # -- ping-pong (spec 0x04) -------------------------------------------------------------

    @cute.jit
    def prime_turns(self) -> None:
        """Deposit the ring's one credit. Once per CTA, not per tile: it outlives the tiles."""
        if self.group == 0:
            self.arrive_turn(Int32(0))

    def take_and_pass_turn(self) -> None:
        """A turn in which nothing is issued."""
        if self.plan.ping_pong:
            self.wait_turn()
            self.pass_turn()

    def wait_turn(self) -> None:
        """Wait until this warpgroup may issue its products."""
        cute.arch.barrier(
            barrier_id=NamedBarrier.TURN_1.value + self.group,
            number_of_threads=self.plan.participants(NamedBarrier.TURN_1),
        )

    def pass_turn(self) -> None:
        """Let the next warpgroup issue."""
        following = self.group + 1
        last = following == self.plan.mma_warpgroups
        self.arrive_turn(cutlass.select_(last, Int32(0), following))

    def arrive_turn(self, group: Int32) -> None:
        """Half of the arrivals that let ``group`` go; the group's own wait is the other half."""
        cute.arch.barrier_arrive(
            barrier_id=NamedBarrier.TURN_1.value + group,
            number_of_threads=self.plan.participants(NamedBarrier.TURN_1),
        )

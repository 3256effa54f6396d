"""The Hopper forward kernel (spec 0x02 to 0x05): one producer warpgroup, one to three MMA ones.

    O = softmax(scale * Q K^T + mask) V        lse = log sum exp(scale * Q K^T + mask)

The producer fills rings of Q, K and V tiles through the copy engine. Each MMA warpgroup owns 64
query rows and walks the key blocks from right to left. With overlap, block j's first product runs
beside block j-1's second, and block j's softmax beside the latter. Tiles follow one another in a
persistent loop: ring ordinals and ping-pong turns carry over from tile to tile, never reset.

Tensor grammar: ``m`` global tensor, ``g`` its tile, ``s`` shared; ``tS``/``tO`` fragments of the
QK and the PV product. Everything that a plan can change is read from the plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import BFloat16, Float16, Float32, Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.utils import LayoutEnum, hopper_helpers

from hopwell.hopper.fragments import ROWS, convert, issue, operand_view
from hopwell.hopper.plan import (
    MMA_M,
    TILE_ALIGNMENT,
    WARP,
    WARPGROUP,
    WARPS_PER_WARPGROUP,
    HopperForwardPlan,
    MBarrier,
    NamedBarrier,
    OutputStorage,
    PSource,
    Rescale,
)
from hopwell.hopper.ring import Ring
from hopwell.hopper.softmax import OnlineSoftmax, mask_columns, rescale
from hopwell.hopper.tiles import TileSchedule, section_instances

LOG2E = math.log2(math.e)
ELEMENTS = {"bfloat16": BFloat16, "float16": Float16}


class Copy(NamedTuple):
    """A tensor copy: its atom and the tensor of coordinates that it takes."""

    atom: cute.CopyAtom
    tensor: cute.Tensor


@dataclass(frozen=True)
class Rings:
    q: Ring
    k: Ring
    v: Ring


@dataclass(frozen=True)
class Operands:
    """One MMA warpgroup's fragments. Q, K, V and shared P are descriptors, the rest registers."""

    qk: cute.TiledMma
    pv: cute.TiledMma
    q: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor
    p: cute.Tensor
    p_registers: cute.Tensor
    o: cute.Tensor
    store_p: Any


class HopperForward:
    """Generates the kernel of one plan. Calling it inside the compiler traces a launch."""

    def __init__(self, plan: HopperForwardPlan) -> None:
        self.plan = plan
        self.element = ELEMENTS[plan.dtype]

    # -- host ------------------------------------------------------------------------------

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: Float32,
        num_sms: Int32,
        stream: Any,
    ) -> None:
        """Encode the tensor maps and launch.

        q (batch, seqlen_q, heads_q, head_dim), k and v (batch, seqlen_k, heads_k, ...),
        o like q with v's last dimension, lse (batch, heads_q, seqlen_q) float32. ``scale``
        multiplies the scores; at most ``num_sms`` CTAs are launched.
        """
        plan = self.plan
        # (seqlen, head_dim, head, batch): a tile is the first two modes.
        mQ, mK, mV, mO = [
            cute.make_tensor(t.iterator, cute.select(t.layout, mode=[1, 3, 2, 0]))
            for t in (q, k, v, o)
        ]
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        copies = [
            self._tensor_copy(op, tensor, rows, columns)
            for op, tensor, rows, columns in (
                (load, mQ, MMA_M, plan.head_dim),
                (load, mK, plan.tile_n, plan.head_dim),
                (load, mV, plan.tile_n, plan.head_dim_v),
                (store, mO, MMA_M, plan.head_dim_v),
            )
        ]
        blocks = cute.ceil_div(mQ.shape[0], plan.tile_m)
        instances = mQ.shape[2] * mQ.shape[3]
        section = section_instances(instances, num_sms)
        # The symbol that profilers show; set here, since the tracer reads it at the next line.
        HopperForward.kernel.set_name_prefix(
            plan.name, remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(*copies, lse, mK.shape[0], mK.shape[2], section, scale * LOG2E).launch(
            grid=[cutlass.min(num_sms, blocks * instances), 1, 1],
            block=[plan.threads, 1, 1],
            smem=plan.shared_bytes,
            stream=stream,
            min_blocks_per_mp=1,
        )

    def _layout(self, rows: int, columns: int, stages: int | None = None) -> cute.ComposedLayout:
        """Row-major shared tile in the widest swizzle that its columns fill, per stage."""
        kind = hopper_helpers.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, self.element, columns)
        atom = warpgroup.make_smem_layout_atom(kind, self.element)
        if stages is None:
            return cute.tile_to_shape(atom, (rows, columns), order=(0, 1))
        return cute.tile_to_shape(atom, (rows, columns, stages), order=(0, 1, 2))

    def _tensor_copy(self, op: Any, tensor: cute.Tensor, rows: int, columns: int) -> Copy:
        layout = self._layout(rows, columns)
        info = cpasync.make_tiled_tma_atom(op, tensor, layout, (rows, columns))
        return Copy(info.atom, info.tma_tensor)

    # -- device ----------------------------------------------------------------------------

    @cute.kernel
    def kernel(
        self,
        copy_q: Copy,
        copy_k: Copy,
        copy_v: Copy,
        copy_o: Copy,
        mLSE: cute.Tensor,
        seqlen_k: Int32,
        heads_k: Int32,
        section: Int32,
        scale_log2: Float32,
    ) -> None:
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=TILE_ALIGNMENT)
        rings = self._rings(base)
        if warp == 0:
            for copy in (copy_q, copy_k, copy_v, copy_o):
                cpasync.prefetch_descriptor(copy.atom)
            with cute.arch.elect_one():
                for ring in (rings.q, rings.k, rings.v):
                    ring.init()
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        seqlen_q, _, heads, batch = copy_q.tensor.shape
        schedule = TileSchedule.of(plan, seqlen_q, heads, batch, section)
        group = warp // WARPS_PER_WARPGROUP
        if group == 0:
            cute.arch.setmaxregister_decrease(plan.producer_registers)
            if warp == 0:
                self.produce(base, rings, schedule, copy_q, copy_k, copy_v, seqlen_k, heads_k)
        else:
            cute.arch.setmaxregister_increase(plan.consumer_registers)
            self.consume(
                base, rings, schedule, group - 1, copy_q, copy_o, mLSE, seqlen_k, scale_log2
            )

    def _rings(self, base: cute.Pointer) -> Rings:
        specs = {spec.name: spec for spec in self.plan.mbarriers}

        def barriers(name: MBarrier) -> cute.Pointer:
            return cute.recast_ptr(base + self.plan.region(name.value).offset, dtype=cutlass.Int64)

        def ring(full: MBarrier, empty: MBarrier) -> Ring:
            return Ring(barriers(full), barriers(empty), specs[full], specs[empty])

        return Rings(
            ring(MBarrier.Q_FULL, MBarrier.Q_EMPTY),
            ring(MBarrier.K_FULL, MBarrier.K_EMPTY),
            ring(MBarrier.V_FULL, MBarrier.V_EMPTY),
        )

    def _shared(self, base: cute.Pointer, region: str, layout: cute.ComposedLayout) -> cute.Tensor:
        pointer = cute.recast_ptr(
            base + self.plan.region(region).offset, layout.inner, dtype=self.element
        )
        return cute.make_tensor(pointer, layout.outer)

    def _shared_q(self, base: cute.Pointer) -> cute.Tensor:
        """Q as one 64-row slot per stage and MMA warpgroup: (64, head_dim, slots)."""
        plan = self.plan
        slots = plan.q_stages * plan.mma_warpgroups
        return self._shared(base, "q", self._layout(MMA_M, plan.head_dim, slots))

    def _shared_o(self, base: cute.Pointer) -> cute.Tensor:
        """O as 64-row slots: one per MMA warpgroup, or those of Q, at Q's distances."""
        plan = self.plan
        if plan.output_storage is OutputStorage.OWN:
            layout = self._layout(MMA_M, plan.head_dim_v, plan.mma_warpgroups)
            return self._shared(base, "o", layout)
        slots = plan.q_stages * plan.mma_warpgroups
        tile = self._layout(MMA_M, plan.head_dim_v)
        pointer = cute.recast_ptr(base, tile.inner, dtype=self.element)
        layout = cute.make_layout(
            (*tile.outer.shape, slots), stride=(*tile.outer.stride, MMA_M * plan.head_dim)
        )
        return cute.make_tensor(pointer, layout)

    @cute.jit
    def key_blocks(self, first_row: Int32, rows: int, seqlen_q: Int32, seqlen_k: Int32) -> Int32:
        """Key blocks that the last of ``rows`` query rows from ``first_row`` on can see."""
        keys = seqlen_k
        if const_expr(self.plan.causal):
            last = cutlass.min(first_row + rows, seqlen_q)
            keys = cutlass.max(cutlass.min(last + seqlen_k - seqlen_q, seqlen_k), 0)
        return cute.ceil_div(keys, self.plan.tile_n)

    # -- producer --------------------------------------------------------------------------

    @cute.jit
    def produce(
        self,
        base: cute.Pointer,
        rings: Rings,
        schedule: TileSchedule,
        copy_q: Copy,
        copy_k: Copy,
        copy_v: Copy,
        seqlen_k: Int32,
        heads_k: Int32,
    ) -> None:
        """Load every tile's Q, K and V in the order in which the MMA warpgroups will ask."""
        plan = self.plan
        sQ = self._shared_q(base)
        sK = self._shared(base, "k", self._layout(plan.tile_n, plan.head_dim, plan.stages))
        sV = self._shared(base, "v", self._layout(plan.tile_n, plan.head_dim_v, plan.stages))
        seqlen_q = copy_q.tensor.shape[0]
        share = schedule.heads // heads_k  # query heads per key head

        q_ordinal = Int32(0)
        kv_ordinal = Int32(0)
        wave = Int32(0)
        tile = schedule.tile(wave)
        while tile < schedule.total:
            block, head, batch = schedule.coordinates(tile)
            blocks = self.key_blocks(block * plan.tile_m, plan.tile_m, seqlen_q, seqlen_k)
            tQsQ, tQgQ = self._partition(copy_q, sQ, (MMA_M, plan.head_dim), head, batch)
            tKsK, tKgK = self._partition(
                copy_k, sK, (plan.tile_n, plan.head_dim), head // share, batch
            )
            tVsV, tVgV = self._partition(
                copy_v, sV, (plan.tile_n, plan.head_dim_v), head // share, batch
            )
            if blocks > 0:
                # K first: it is free earlier than Q, whose release ends the tile before.
                self.load(copy_k.atom, rings.k, kv_ordinal, tKgK, tKsK, blocks - 1)
                full = rings.q.acquire(q_ordinal)
                slot = rings.q.stage(q_ordinal) * plan.mma_warpgroups
                for g in cutlass.range_constexpr(plan.mma_warpgroups):
                    cute.copy(
                        copy_q.atom,
                        tQgQ[None, block * plan.mma_warpgroups + g],
                        tQsQ[None, slot + g],
                        tma_bar_ptr=full,
                    )
                if const_expr(plan.overlap):
                    # The consumer's order: K of block j before V of block j - 1.
                    for j in cutlass.range(1, blocks, unroll=1):
                        self.load(copy_k.atom, rings.k, kv_ordinal + j, tKgK, tKsK, blocks - 1 - j)
                        self.load(copy_v.atom, rings.v, kv_ordinal + j - 1, tVgV, tVsV, blocks - j)
                    self.load(copy_v.atom, rings.v, kv_ordinal + blocks - 1, tVgV, tVsV, 0)
                else:
                    self.load(copy_v.atom, rings.v, kv_ordinal, tVgV, tVsV, blocks - 1)
                    for j in cutlass.range(1, blocks, unroll=1):
                        self.load(copy_k.atom, rings.k, kv_ordinal + j, tKgK, tKsK, blocks - 1 - j)
                        self.load(copy_v.atom, rings.v, kv_ordinal + j, tVgV, tVsV, blocks - 1 - j)
                q_ordinal += 1
                kv_ordinal += blocks
            wave += 1
            tile = schedule.tile(wave)
        # The tail is no payload: wait until every stage in use has been released, so that no
        # arrival is left dangling when this warp exits (spec 0x03, "Producer exit tail").
        for ring, ordinal in ((rings.q, q_ordinal), (rings.k, kv_ordinal), (rings.v, kv_ordinal)):
            for ahead in cutlass.range_constexpr(ring.stages):
                ring.wait_empty(ordinal + ahead)

    def _partition(
        self, copy: Copy, shared: cute.Tensor, tile: tuple[int, int], head: Int32, batch: Int32
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """(shared, global) views of a copy, their last modes stage and block."""
        tiles = cute.local_tile(copy.tensor[None, None, head, batch], tile, (None, 0))
        return cpasync.tma_partition(
            copy.atom,
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 2),
            cute.group_modes(tiles, 0, 2),
        )

    def load(
        self,
        atom: cute.CopyAtom,
        ring: Ring,
        ordinal: Int32,
        source: cute.Tensor,
        target: cute.Tensor,
        block: Int32,
    ) -> None:
        """Acquire the stage of payload ``ordinal`` and start filling it with key block ``block``."""
        full = ring.acquire(ordinal)
        cute.copy(atom, source[None, block], target[None, ring.stage(ordinal)], tma_bar_ptr=full)

    # -- consumers -------------------------------------------------------------------------

    @cute.jit
    def consume(
        self,
        base: cute.Pointer,
        rings: Rings,
        schedule: TileSchedule,
        group: Int32,
        copy_q: Copy,
        copy_o: Copy,
        mLSE: cute.Tensor,
        seqlen_k: Int32,
        scale_log2: Float32,
    ) -> None:
        """One MMA warpgroup: its 64 rows of every tile."""
        plan = self.plan
        thread = cute.arch.thread_idx()[0] % WARPGROUP
        operands = self._operands(base, group, thread)
        softmax = OnlineSoftmax.of(scale_log2)
        correction = cute.make_rmem_tensor(ROWS, Float32)
        limits = cute.make_rmem_tensor(ROWS, Int32)
        seqlen_q = copy_q.tensor.shape[0]
        # This thread's rows of the 64 are `row` and `row + 8`, its first column `column`.
        row = thread // WARP * 16 + thread % WARP // 4
        column = thread % 4 * 2

        if const_expr(plan.ping_pong):
            # Once per CTA, not per tile: the ring's single credit outlives the tiles (spec 0x04).
            if group == 0:
                self.pass_turn(plan.mma_warpgroups - 1)

        q_ordinal = Int32(0)
        kv_ordinal = Int32(0)
        wave = Int32(0)
        tile = schedule.tile(wave)
        while tile < schedule.total:
            block, head, batch = schedule.coordinates(tile)
            first_row = block * plan.tile_m + group * MMA_M
            blocks = self.key_blocks(block * plan.tile_m, plan.tile_m, seqlen_q, seqlen_k)
            for r in cutlass.range_constexpr(ROWS):
                limits[r] = seqlen_k
                if const_expr(plan.causal):
                    limits[r] = first_row + row + 8 * r + 1 + seqlen_k - seqlen_q
            softmax.reset()
            operands.o.fill(0.0)
            if blocks > 0:
                rings.q.wait_full(q_ordinal)
                q_slot = rings.q.stage(q_ordinal) * plan.mma_warpgroups + group
                q = operands.q[None, None, None, q_slot]
                # Blocks up to `clear` need no mask: their last key is visible to the first row.
                clear = self.clear_blocks(first_row, blocks, seqlen_q, seqlen_k)
                body = self.overlapped if const_expr(plan.overlap) else self.serial
                body(
                    rings, operands, softmax, q, kv_ordinal, blocks, clear,
                    correction, limits, column, group,
                )  # fmt: skip
                if const_expr(plan.output_storage is OutputStorage.OWN):
                    rings.q.release(q_ordinal)
            self.epilogue(
                base, rings, operands, softmax, copy_o, mLSE, q_ordinal, blocks,
                group, thread, row, first_row, head, batch, seqlen_q,
            )  # fmt: skip
            q_ordinal += cutlass.select_(blocks > 0, Int32(1), Int32(0))
            kv_ordinal += blocks
            wave += 1
            tile = schedule.tile(wave)
        # Shared memory must outlive the last store's reads.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    def _operands(self, base: cute.Pointer, group: Int32, thread: Int32) -> Operands:
        plan = self.plan
        element, k_major = self.element, warpgroup.OperandMajorMode.K
        shared_p = plan.p_source is PSource.SHARED
        qk = hopper_helpers.make_trivial_tiled_mma(
            element, element, k_major, k_major, Float32, (1, 1, 1), (MMA_M, plan.tile_n)
        )
        pv = hopper_helpers.make_trivial_tiled_mma(
            element, element, k_major, warpgroup.OperandMajorMode.MN, Float32, (1, 1, 1),
            (MMA_M, plan.head_dim_v),
            a_source=warpgroup.OperandSource.SMEM if shared_p else warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        sQ = self._shared_q(base)
        sK = self._shared(base, "k", self._layout(plan.tile_n, plan.head_dim, plan.stages))
        sV = self._shared(base, "v", self._layout(plan.tile_n, plan.head_dim_v, plan.stages))
        # The second product contracts over keys: its B operand is V transposed.
        sVt = cute.make_tensor(sV.iterator, cute.select(sV.layout, mode=[1, 0, 2]))
        thread_qk, thread_pv = qk.get_slice(thread), pv.get_slice(thread)
        p_registers = cute.make_rmem_tensor(((2, 2, 2), 1, plan.pv_steps), element)
        p, store_p = p_registers, None
        if shared_p:
            layout = self._layout(MMA_M, plan.tile_n, plan.mma_warpgroups)
            sP = self._shared(base, "p", layout)[None, None, group]
            p = pv.make_fragment_A(thread_pv.partition_A(sP))
            store_p = self._register_store(qk, thread, sP)
        return Operands(
            qk,
            pv,
            qk.make_fragment_A(thread_qk.partition_A(sQ)),
            qk.make_fragment_B(thread_qk.partition_B(sK)),
            pv.make_fragment_B(thread_pv.partition_B(sVt)),
            p,
            p_registers,
            cute.make_rmem_tensor(pv.partition_shape_C((MMA_M, plan.head_dim_v)), Float32),
            store_p,
        )

    def _register_store(self, mma: cute.TiledMma, thread: Int32, target: cute.Tensor) -> Any:
        """(thread copy, target partition) of a 16-bit accumulator into a shared tile."""
        atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), self.element)
        copy = cute.make_tiled_copy_C(atom, mma).get_slice(thread)
        return copy, copy.partition_D(target)

    @cute.jit
    def clear_blocks(
        self, first_row: Int32, blocks: Int32, seqlen_q: Int32, seqlen_k: Int32
    ) -> Int32:
        """How many of the leftmost key blocks are wholly visible to this warpgroup's rows."""
        visible = seqlen_k
        if const_expr(self.plan.causal):
            visible = cutlass.max(first_row + 1 + seqlen_k - seqlen_q, 0)
        return cutlass.min(visible // self.plan.tile_n, blocks)

    @cute.jit
    def overlapped(
        self,
        rings: Rings,
        operands: Operands,
        softmax: OnlineSoftmax,
        q: cute.Tensor,
        ordinal: Int32,
        blocks: Int32,
        clear: Int32,
        correction: cute.Tensor,
        limits: cute.Tensor,
        column: Int32,
        group: Int32,
    ) -> None:
        """The two-stage body (spec 0x05): peeled first half, steady pairs, peeled last half."""
        plan = self.plan
        # 1. First half: the rightmost block's scores; nothing to overlap with yet.
        scores = self._new_scores(operands)
        rings.k.wait_full(ordinal)
        issue(
            operands.qk, scores, q, operands.k[None, None, None, rings.k.stage(ordinal)],
            accumulate=False,
        )  # fmt: skip
        warpgroup.wait_group(0)
        rings.k.release(ordinal)
        if clear < blocks:
            self.mask(scores, limits, blocks - 1, column)
        softmax.update(scores, correction)
        self.place_p(operands, scores, group)

        # 2. Steady pairs: those under the mask first, then those that need none.
        masked = cutlass.min(cutlass.max(blocks - clear, 1), blocks)
        if const_expr(plan.causal):
            for j in cutlass.range(1, masked, unroll=1):
                self.pair(
                    rings, operands, softmax, q, ordinal + j, correction, group,
                    limits, blocks - 1 - j, column,
                )  # fmt: skip
        for j in cutlass.range(masked, blocks, unroll=1):
            self.pair(rings, operands, softmax, q, ordinal + j, correction, group)

        # 3. Last half: the leftmost block's second product.
        last = ordinal + blocks - 1
        if const_expr(plan.rescale is Rescale.BEFORE):
            rescale(operands.o, correction)
        rings.v.wait_full(last)
        issue(
            operands.pv, operands.o, operands.p,
            operands.v[None, None, None, rings.v.stage(last)], accumulate=True,
        )  # fmt: skip
        warpgroup.wait_group(0)
        rings.v.release(last)

    def _new_scores(self, operands: Operands) -> cute.Tensor:
        shape = operands.qk.partition_shape_C((MMA_M, self.plan.tile_n))
        return cute.make_rmem_tensor(shape, Float32)

    @cute.jit
    def pair(
        self,
        rings: Rings,
        operands: Operands,
        softmax: OnlineSoftmax,
        q: cute.Tensor,
        ordinal: Int32,
        correction: cute.Tensor,
        group: Int32,
        limits: cute.Tensor | None = None,
        block: Int32 | None = None,
        column: Int32 | None = None,
    ) -> None:
        """Block ``ordinal``'s scores beside the product of the block before it."""
        plan = self.plan
        scores = self._new_scores(operands)
        previous = ordinal - 1
        rings.k.wait_full(ordinal)
        if const_expr(plan.ping_pong):
            self.wait_turn(group)
        issue(
            operands.qk, scores, q, operands.k[None, None, None, rings.k.stage(ordinal)],
            accumulate=False,
        )  # fmt: skip
        if const_expr(plan.rescale is Rescale.BEFORE):
            rescale(operands.o, correction)  # into the frame of P, while the scores are computed
        rings.v.wait_full(previous)
        issue(
            operands.pv, operands.o, operands.p,
            operands.v[None, None, None, rings.v.stage(previous)], accumulate=True,
        )  # fmt: skip
        if const_expr(plan.ping_pong):
            self.pass_turn(group)
        # Groups complete in order: at most the newest pending means the scores are there, while
        # the second product may still run beside the softmax.
        warpgroup.wait_group(1)
        rings.k.release(ordinal)
        if const_expr(limits is not None):
            self.mask(scores, limits, block, column)
        softmax.update(scores, correction)
        warpgroup.wait_group(0)
        rings.v.release(previous)
        # Only now may P's registers be overwritten and O be touched.
        if const_expr(plan.rescale is Rescale.AFTER):
            rescale(operands.o, correction)
        self.place_p(operands, scores, group)

    @cute.jit
    def serial(
        self,
        rings: Rings,
        operands: Operands,
        softmax: OnlineSoftmax,
        q: cute.Tensor,
        ordinal: Int32,
        blocks: Int32,
        clear: Int32,
        correction: cute.Tensor,
        limits: cute.Tensor,
        column: Int32,
        group: Int32,
    ) -> None:
        """The body without overlap inside a warpgroup: scores, softmax, product, block by block."""
        if const_expr(self.plan.ping_pong):
            self.wait_turn(group)
        for j in cutlass.range(blocks - clear, unroll=1):
            self.block(
                rings, operands, softmax, q, ordinal + j, correction, group,
                limits, blocks - 1 - j, column,
            )  # fmt: skip
        for j in cutlass.range(blocks - clear, blocks, unroll=1):
            self.block(rings, operands, softmax, q, ordinal + j, correction, group)
        if const_expr(self.plan.ping_pong):
            self.pass_turn(group)

    @cute.jit
    def block(
        self,
        rings: Rings,
        operands: Operands,
        softmax: OnlineSoftmax,
        q: cute.Tensor,
        ordinal: Int32,
        correction: cute.Tensor,
        group: Int32,
        limits: cute.Tensor | None = None,
        block: Int32 | None = None,
        column: Int32 | None = None,
    ) -> None:
        """One key block, whole. Holds the turn on entry and on exit (spec 0x04, non-overlap)."""
        plan = self.plan
        scores = self._new_scores(operands)
        rings.k.wait_full(ordinal)
        issue(
            operands.qk, scores, q, operands.k[None, None, None, rings.k.stage(ordinal)],
            accumulate=False,
        )  # fmt: skip
        if const_expr(plan.ping_pong):
            self.pass_turn(group)
        warpgroup.wait_group(0)
        rings.k.release(ordinal)
        if const_expr(limits is not None):
            self.mask(scores, limits, block, column)
        softmax.update(scores, correction)
        rescale(operands.o, correction)
        self.place_p(operands, scores, group)
        rings.v.wait_full(ordinal)
        if const_expr(plan.ping_pong):
            self.wait_turn(group)
        issue(
            operands.pv, operands.o, operands.p,
            operands.v[None, None, None, rings.v.stage(ordinal)], accumulate=True,
        )  # fmt: skip
        warpgroup.wait_group(0)
        rings.v.release(ordinal)

    def mask(self, scores: cute.Tensor, limits: cute.Tensor, block: Int32, column: Int32) -> None:
        """Hide keys that a row may not see, or that lie past the end: zeros there are scores."""
        mask_columns(scores, limits, block * self.plan.tile_n + column)

    def place_p(self, operands: Operands, scores: cute.Tensor, group: Int32) -> None:
        """Round the probabilities to 16 bits and put them where the second product reads them."""
        if const_expr(self.plan.p_source is PSource.REGISTERS):
            convert(operand_view(scores), operands.p_registers)
            return
        copy, target = operands.store_p
        rounded = cute.make_rmem_tensor(scores.shape, self.element)
        convert(scores, rounded)
        cute.copy(copy, copy.retile(rounded), target)
        # Ordinary stores, then the tensor cores read: a proxy fence in every writer, then all meet.
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=NamedBarrier.P_1.value + group, number_of_threads=WARPGROUP)

    # -- ping-pong (spec 0x04) -------------------------------------------------------------

    def wait_turn(self, group: Int32) -> None:
        """Wait until this warpgroup may issue its products."""
        cute.arch.barrier(
            barrier_id=NamedBarrier.TURN_1.value + group, number_of_threads=2 * WARPGROUP
        )

    def pass_turn(self, group: Int32) -> None:
        """Let the next warpgroup issue."""
        following = group + 1
        if const_expr(isinstance(group, int)):
            following = following % self.plan.mma_warpgroups
        else:
            following = cutlass.select_(following == self.plan.mma_warpgroups, Int32(0), following)
        cute.arch.barrier_arrive(
            barrier_id=NamedBarrier.TURN_1.value + following, number_of_threads=2 * WARPGROUP
        )

    # -- epilogue --------------------------------------------------------------------------

    @cute.jit
    def epilogue(
        self,
        base: cute.Pointer,
        rings: Rings,
        operands: Operands,
        softmax: OnlineSoftmax,
        copy_o: Copy,
        mLSE: cute.Tensor,
        q_ordinal: Int32,
        blocks: Int32,
        group: Int32,
        thread: Int32,
        row: Int32,
        first_row: Int32,
        head: Int32,
        batch: Int32,
        seqlen_q: Int32,
    ) -> None:
        """Normalise, write the log-sum-exp, and send O out through shared memory."""
        plan = self.plan
        inverse = cute.make_rmem_tensor(ROWS, Float32)
        lse = cute.make_rmem_tensor(ROWS, Float32)
        softmax.finish(inverse, lse)
        rescale(operands.o, inverse)
        if thread % 4 == 0:
            for r in cutlass.range_constexpr(ROWS):
                position = first_row + row + 8 * r
                if position < seqlen_q:
                    mLSE[batch, head, position] = lse[r]

        # Where O is staged: this warpgroup's own tile, or its slot of this tile's Q.
        own = plan.output_storage is OutputStorage.OWN
        slot = group
        if const_expr(not own):
            slot = rings.q.stage(q_ordinal) * plan.mma_warpgroups + group
        sO = self._shared_o(base)[None, None, slot]
        storing = thread < WARP
        if const_expr(own):
            # The previous tile's store must have read what is about to be overwritten.
            if storing:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            self.output_barrier(group)
        copy, target = self._register_store(operands.pv, thread, sO)
        rounded = cute.make_rmem_tensor(operands.o.shape, self.element)
        convert(operands.o, rounded)
        cute.copy(copy, copy.retile(rounded), target)
        cute.arch.fence_view_async_shared()
        self.output_barrier(group)
        if storing:
            tiles = cute.local_tile(
                copy_o.tensor[None, None, head, batch], (MMA_M, plan.head_dim_v), (None, 0)
            )
            tOsO, tOgO = cpasync.tma_partition(
                copy_o.atom,
                0,
                cute.make_layout(1),
                cute.group_modes(sO, 0, 2),
                cute.group_modes(tiles, 0, 2),
            )
            cute.copy(copy_o.atom, tOsO, tOgO[None, first_row // MMA_M])
            cute.arch.cp_async_bulk_commit_group()
            if const_expr(not own):
                cute.arch.cp_async_bulk_wait_group(0, read=True)
                if blocks > 0:
                    rings.q.release(q_ordinal)

    def output_barrier(self, group: Int32) -> None:
        """All of one MMA warpgroup meet."""
        cute.arch.barrier(
            barrier_id=NamedBarrier.OUTPUT_1.value + group, number_of_threads=WARPGROUP
        )


def trace(plan: HopperForwardPlan) -> tuple[HopperForward, tuple[Any, ...]]:
    """What the compiler takes: the jit function of ``plan`` and stand-ins for its arguments.

    Extents and strides are dynamic; strides are multiples of 16 bytes, as tensor maps demand.
    """
    element = ELEMENTS[plan.dtype]
    unit = 16 // plan.element_bytes
    batch, seqlen_q, seqlen_k, heads_q, heads_k = (cute.sym_int32() for _ in range(5))
    head_dim, head_dim_v = (cute.sym_int32(divisibility=8) for _ in range(2))

    def tensor(seqlen: Any, heads: Any, columns: Any) -> Any:
        strides = tuple(cute.sym_int64(divisibility=unit) for _ in range(3))
        return make_fake_tensor(
            element, (batch, seqlen, heads, columns), (*strides, 1), assumed_align=16
        )

    lse = make_fake_tensor(
        Float32,
        (batch, heads_q, seqlen_q),
        (cute.sym_int64(), cute.sym_int64(), 1),
        assumed_align=4,
    )
    arguments = (
        tensor(seqlen_q, heads_q, head_dim),
        tensor(seqlen_k, heads_k, head_dim),
        tensor(seqlen_k, heads_k, head_dim_v),
        tensor(seqlen_q, heads_q, head_dim_v),
        lse,
        Float32(1.0),
        Int32(1),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )
    return HopperForward(plan), arguments

"""The Hopper forward kernel (spec 0x02 to 0x05): one producer warpgroup, one to three MMA ones.

    O = softmax(scale * Q K^T + mask) V        lse = log sum exp(scale * Q K^T + mask)

The producer fills rings of Q, K and V tiles through the copy engine. Each MMA warpgroup owns 64
query rows and walks the key blocks from right to left; tiles follow one another in a persistent
loop. The room of each part: ``producer``, ``consumer``, ``softmax``, ``masking``, ``epilogue``,
``ring``, ``shared``, ``tiles``, ``fragments``.

Tensor grammar: ``m`` global tensor, ``g`` its tile, ``s`` shared; ``tQ``, ``tO`` partitions for a
copy. Everything that a plan can change is read from the plan.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
from cutlass import Float32, Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from hopwell.hopper.consumer import MmaWarpgroup
from hopwell.hopper.epilogue import Epilogue
from hopwell.hopper.fragments import ROWS
from hopwell.hopper.masking import Visibility
from hopwell.hopper.plan import (
    MMA_M,
    TILE_ALIGNMENT,
    WARP,
    WARPGROUP,
    WARPS_PER_WARPGROUP,
    HopperForwardPlan,
    OutputStorage,
)
from hopwell.hopper.producer import Producer, TensorCopy
from hopwell.hopper.shared import ELEMENTS, Rings, SharedMemory, tile_layout
from hopwell.hopper.tiles import TileSchedule, section_instances

LOG2E = math.log2(math.e)


class HopperForward:
    """Generates the kernel of one plan. Calling it inside the compiler traces a launch."""

    def __init__(self, plan: HopperForwardPlan) -> None:
        self.plan = plan

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
        o like q with v's last dimension, lse (batch, heads_q, seqlen_q) float32, or (0, 0, 0) where
        nobody wants it. ``scale`` multiplies the scores; at most ``num_sms`` CTAs are launched.
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
        tiles = cute.ceil_div(mQ.shape[0], plan.tile_m) * mQ.shape[2] * mQ.shape[3]
        section = section_instances(mQ.shape[2] * mQ.shape[3], num_sms)
        # The symbol that profilers show; set here, since the tracer reads it at the next line.
        HopperForward.kernel.set_name_prefix(
            plan.name, remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(*copies, lse, mK.shape[0], mK.shape[2], section, scale * LOG2E).launch(
            grid=[cutlass.min(num_sms, tiles), 1, 1],
            block=[plan.threads, 1, 1],
            smem=plan.shared_bytes,
            stream=stream,
            min_blocks_per_mp=1,
        )

    def _tensor_copy(self, op: Any, tensor: cute.Tensor, rows: int, columns: int) -> TensorCopy:
        layout = tile_layout(self.plan, rows, columns)
        info = cpasync.make_tiled_tma_atom(op, tensor, layout, (rows, columns))
        return TensorCopy(info.atom, info.tma_tensor)

    @cute.kernel
    def kernel(
        self,
        copy_q: TensorCopy,
        copy_k: TensorCopy,
        copy_v: TensorCopy,
        copy_o: TensorCopy,
        mLSE: cute.Tensor,
        seqlen_k: Int32,
        heads_k: Int32,
        section: Int32,
        scale_log2: Float32,
    ) -> None:
        plan = self.plan
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = SharedMemory(plan, cute.arch.get_dyn_smem(cutlass.Int8, alignment=TILE_ALIGNMENT))
        rings = shared.rings()
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
        visibility = Visibility(plan, seqlen_q, seqlen_k)
        group = warp // WARPS_PER_WARPGROUP
        if group == 0:
            # The whole warpgroup gives its registers up (setmaxnreg is collective); one warp works.
            cute.arch.setmaxregister_decrease(plan.producer_registers)
            if warp == 0:
                Producer(
                    plan, shared, rings, schedule, visibility, copy_q, copy_k, copy_v, heads_k
                ).run()
        else:
            cute.arch.setmaxregister_increase(plan.consumer_registers)
            thread = cute.arch.thread_idx()[0] % WARPGROUP
            worker = MmaWarpgroup.of(plan, shared, rings, group - 1, thread, scale_log2)
            epilogue = Epilogue(plan, shared, worker, copy_o, mLSE)
            self.consume(worker, rings, schedule, visibility, epilogue)

    @cute.jit
    def consume(
        self,
        worker: MmaWarpgroup,
        rings: Rings,
        schedule: TileSchedule,
        visibility: Visibility,
        epilogue: Epilogue,
    ) -> None:
        """Every tile's 64 rows of one MMA warpgroup: load, compute, finish."""
        plan = self.plan
        # This thread's rows of the 64 are `row` and `row + 8`.
        row = worker.thread // WARP * 16 + worker.thread % WARP // 4
        if const_expr(plan.ping_pong):
            worker.prime_turns()
        limits = worker.limits  # a name of its own: assigning through `worker` would carry it
        kv_ordinal = Int32(0)
        wave = Int32(0)  # also Q's ordinal: every tile takes one Q payload, seen keys or not
        tile = schedule.tile(wave)
        while tile < schedule.total:
            block, head, batch = schedule.coordinates(tile)
            first_row = block * plan.tile_m + worker.group * MMA_M
            blocks = visibility.blocks(block * plan.tile_m, plan.tile_m)
            own = visibility.blocks(first_row, MMA_M)
            for r in cutlass.range_constexpr(ROWS):
                limits[r] = visibility.limit(first_row + row + 8 * r)
            worker.softmax.reset()
            worker.operands.o.fill(0.0)
            rings.q.wait_full(wave)
            worker.pass_over(kv_ordinal, blocks - own, own)
            if own > 0:
                slot = rings.q.stage(wave) * plan.mma_warpgroups + worker.group
                q = worker.operands.q[None, None, None, slot]
                ordinal = kv_ordinal + blocks - own
                clear = visibility.clear_blocks(first_row, own)
                if const_expr(plan.overlap):
                    worker.overlapped(q, ordinal, own, clear)
                else:
                    worker.serial(q, ordinal, own, clear)
            if const_expr(plan.output_storage is OutputStorage.OWN):
                rings.q.release(wave)
            epilogue.write(first_row, row, head, batch, wave)
            kv_ordinal += blocks
            wave += 1
            tile = schedule.tile(wave)
        # Shared memory must outlive the last store's reads.
        cute.arch.cp_async_bulk_wait_group(0, read=True)


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
        tuple(cute.sym_int32() for _ in range(3)),  # its own extents: all zero when unwanted
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

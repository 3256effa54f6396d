"""A small SM90 kernel with the forward kernel's signature: a controlled input for the tests.

O = (Q K^T)[:, :64] for one 64-row tile per CTA: one tensor load each of Q and K, one 64x64x16
warpgroup MMA per 16 elements of the head dimension, one tensor store of O. Registers are moved
between two warpgroups so that the inspector has something to find.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator

TILE = 64
HEAD_DIM = 64
THREADS = 256
TILE_BYTES = TILE * HEAD_DIM * 2


class Tiny:
    """The kernel, with the deliberate mistakes named in ``faults``:

    ``serialise``  touches an accumulator between two MMAs of one group
    ``unbounded``  promises no number of resident CTAs, so that registers cannot be moved
    ``local``      indexes a register array at run time, so that it lives in local memory
    """

    def __init__(self, faults: frozenset[str] = frozenset()) -> None:
        self.faults = faults

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor,
        scale: cutlass.Float32,
        num_sms: cutlass.Int32,
        stream: Any,
    ) -> None:
        # (batch, seqlen, heads, dim) -> (seqlen, dim, heads, batch): a tile is two modes.
        def view(x: Any) -> Any:
            return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 3, 2, 0]))

        q, k, o = view(q), view(k), view(o)
        mma = sm90.make_trivial_tiled_mma(
            q.element_type,
            q.element_type,
            OperandMajorMode.K,
            OperandMajorMode.K,
            cutlass.Float32,
            (1, 1, 1),
            (TILE, TILE),
        )
        layout = cute.tile_to_shape(
            warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, q.element_type),
            (TILE, HEAD_DIM),
            (0, 1),
        )
        load = cpasync.CopyBulkTensorTileG2SOp()
        store = cpasync.CopyBulkTensorTileS2GOp()
        tma_q, gq = cpasync.make_tiled_tma_atom(load, q, layout, (TILE, HEAD_DIM))
        tma_k, gk = cpasync.make_tiled_tma_atom(load, k, layout, (TILE, HEAD_DIM))
        tma_o, go = cpasync.make_tiled_tma_atom(store, o, layout, (TILE, HEAD_DIM))
        self.kernel(tma_q, gq, tma_k, gk, tma_o, go, layout, mma, scale, num_sms).launch(
            grid=[cute.ceil_div(q.shape[0], TILE), q.shape[2], q.shape[3]],
            block=[THREADS, 1, 1],
            stream=stream,
            min_blocks_per_mp=0 if "unbounded" in self.faults else 1,
        )

    @cute.kernel
    def kernel(
        self,
        tma_q: Any,
        gq: Any,
        tma_k: Any,
        gk: Any,
        tma_o: Any,
        go: Any,
        layout: Any,
        mma: Any,
        scale: cutlass.Float32,
        num_sms: cutlass.Int32,
    ) -> None:
        tidx, _, _ = cute.arch.thread_idx()
        tile, head, batch = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        smem = SmemAllocator()
        sq = smem.allocate_tensor(cutlass.BFloat16, layout.outer, 1024, layout.inner)
        sk = smem.allocate_tensor(cutlass.BFloat16, layout.outer, 1024, layout.inner)
        so = smem.allocate_tensor(cutlass.BFloat16, layout.outer, 1024, layout.inner)
        full = smem.allocate_array(cutlass.Int64, 1)
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        tile_shape = (TILE, HEAD_DIM)
        gq_tile = cute.local_tile(gq[None, None, head, batch], tile_shape, (tile, 0))
        gk_tile = cute.local_tile(gk[None, None, head, batch], tile_shape, (0, 0))
        go_tile = cute.local_tile(go[None, None, head, batch], tile_shape, (tile, 0))
        one = cute.make_layout(1)

        def partition(atom: Any, shared: Any, glob: Any) -> Any:
            return cpasync.tma_partition(
                atom, 0, one, cute.group_modes(shared, 0, 2), cute.group_modes(glob, 0, 2)
            )

        sq_tma, gq_tma = partition(tma_q, sq, gq_tile)
        sk_tma, gk_tma = partition(tma_k, sk, gk_tile)
        so_tma, go_tma = partition(tma_o, so, go_tile)
        if warp < 4:
            cute.arch.setmaxregister_decrease(40)
            if warp == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full, 2 * TILE_BYTES)
                cute.copy(tma_q, gq_tma, sq_tma, tma_bar_ptr=full)
                cute.copy(tma_k, gk_tma, sk_tma, tma_bar_ptr=full)
        else:
            cute.arch.setmaxregister_increase(208)
            thread = mma.get_slice(tidx - 128)
            rq = thread.make_fragment_A(thread.partition_A(sq))
            rk = thread.make_fragment_B(thread.partition_B(sk))
            acc = cute.make_rmem_tensor(thread.partition_shape_C((TILE, TILE)), cutlass.Float32)
            cute.arch.mbarrier_wait(full, 0)
            warpgroup.fence()
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for step in cutlass.range_constexpr(cute.size(rq, mode=[2])):
                cute.gemm(mma, acc, rq[None, None, step], rk[None, None, step], acc)
                if cutlass.const_expr("serialise" in self.faults and step == 0):
                    acc[0] = acc[0] * scale
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            if cutlass.const_expr("local" in self.faults):
                acc[num_sms % 32] = scale
            thread_o = thread.partition_C(so)
            for i in cutlass.range_constexpr(cute.size(acc)):
                thread_o[i] = (acc[i] * scale).to(cutlass.BFloat16)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=3, number_of_threads=128)
            if warp == 4:
                cute.copy(tma_o, so_tma, go_tma)
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0)


def fake(dtype: Any) -> Any:
    """A (batch, seqlen, heads, dim) tensor of unknown extents; rows are 16-byte multiples apart."""
    shape = (*(cute.sym_int32() for _ in range(3)), cute.sym_int32(divisibility=8))
    stride = (*(cute.sym_int64(divisibility=8) for _ in range(3)), 1)
    return make_fake_tensor(dtype, shape, stride, assumed_align=16)


def trace(plan: Any) -> tuple[Any, tuple[Any, ...]]:
    """The forward kernel's contract: a traced function and its fake arguments."""
    faults = frozenset(getattr(plan, "faults", ()))
    lse_shape = tuple(cute.sym_int32() for _ in range(3))
    lse_stride = (cute.sym_int64(), cute.sym_int64(), 1)
    lse = make_fake_tensor(cutlass.Float32, lse_shape, lse_stride, assumed_align=4)
    bf16 = cutlass.BFloat16
    tensors = (fake(bf16), fake(bf16), fake(bf16), fake(bf16), lse)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return Tiny(faults), (*tensors, cutlass.Float32(1.0), cutlass.Int32(1), stream)

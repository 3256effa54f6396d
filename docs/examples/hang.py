"""Hangs on a GPU: two warps hand tiles of float16 through one stage of shared memory.

`python hang.py` needs a Hopper GPU and never ends. `hopwell emulate hang.py` needs none, and says
why. Nothing in this file knows of the emulator.
"""

import cutlass
import torch
from cutlass import cute
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack

TILE, TILES = 128, 4


@cute.kernel
def sum_tiles(source: cute.Tensor, sums: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    stage = cute.make_tensor(
        cute.arch.alloc_smem(cutlass.Float16, TILE, alignment=128), cute.make_layout(TILE)
    )
    full = cute.arch.alloc_smem(cutlass.Int64, 1)
    empty = cute.arch.alloc_smem(cutlass.Int64, 1)
    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init(empty, 32)
        cute.arch.mbarrier_init_fence()
    cute.arch.barrier()

    if warp == 0:
        copy = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), cutlass.Float16)
        for tile in cutlass.range(TILES, unroll=1):
            cute.arch.mbarrier_wait(empty, (tile & 1) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, TILE * 4)
                cute.copy(copy, source[None, tile], stage, mbar_ptr=full)
    else:
        total = cutlass.Float32(0)
        for tile in cutlass.range(TILES, unroll=1):
            cute.arch.mbarrier_wait(full, tile & 1)
            for i in cutlass.range_constexpr(TILE // 32):
                total += stage[thread % 32 + 32 * i].to(cutlass.Float32)
            cute.arch.mbarrier_arrive(empty)
        sums[thread % 32] = total


@cute.jit
def run(source: cute.Tensor, sums: cute.Tensor):
    sum_tiles(source, sums).launch(grid=(1, 1, 1), block=(64, 1, 1))


source = torch.rand(TILES, TILE, device="cuda", dtype=torch.float16)
sums = torch.zeros(32, device="cuda")
run(from_dlpack(source.t(), assumed_align=16), from_dlpack(sums))
print("right" if torch.allclose(sums, source.float().view(-1, 32).sum(0)) else "wrong")

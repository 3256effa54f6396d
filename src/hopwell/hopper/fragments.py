"""Register fragments of warpgroup MMAs: views, issue, conversion (PTX ISA, wgmma fragments).

One MMA warpgroup owns 64 rows. A thread holds two of them, eight apart; of the accumulator's
columns it holds two neighbours in every eight. CuTe calls that ``((2, 2, N / 8), 1, 1)``:
column pair, row, column group.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import BFloat16, Float32, Int32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op

#: Rows of the 64 that one thread holds.
ROWS = 2


def rows_view(acc: cute.Tensor) -> cute.Tensor:
    """An accumulator as (row, column) of this thread: ``(2, N / 4)``."""
    groups = acc.shape[0][2]
    layout = cute.make_layout((ROWS, (2, groups)), stride=(2, (1, 4)))
    return cute.make_tensor(acc.iterator, layout)


def operand_view(acc: cute.Tensor) -> cute.Tensor:
    """The same registers in the order of an A operand of 64 x 16: ``((2, 2, 2), 1, N / 16)``.

    Two neighbouring column groups of the accumulator are the two halves of one K step, in place,
    which is why P needs no exchange between threads before the second product.
    """
    steps = acc.shape[0][2] // 2
    layout = cute.make_layout(((2, 2, 2), 1, steps), stride=((1, 2, 4), 0, 8))
    return cute.make_tensor(acc.iterator, layout)


def issue(
    tiled_mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, *, accumulate: bool
) -> None:
    """Issue one product over all K steps and commit it as one group; wait for nothing.

    The fence orders this thread's earlier accesses to the accumulator and register operands
    before the asynchronous ones (PTX ISA, wgmma.fence).
    """
    warpgroup.fence()
    # A new atom: its accumulate flag changes between steps, and a flag set inside a loop body may
    # not escape it.
    atom = cute.make_mma_atom(tiled_mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, accumulate)
    for step in range(cute.size(a, mode=[2])):
        cute.gemm(atom, acc, a[None, None, step], b[None, None, step], acc)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@dsl_user_op
def _pack(low: Float32, high: Float32, kind: str, *, loc: Any = None, ip: Any = None) -> Int32:
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [Float32(high).ir_value(loc=loc, ip=ip), Float32(low).ir_value(loc=loc, ip=ip)],
            f"cvt.rn.{kind}.f32 $0, $1, $2;",
            "=r,f,f",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


@cute.jit
def convert(source: cute.Tensor, target: cute.Tensor) -> None:
    """Round float32 registers to 16 bits, two per instruction (the generic path takes one)."""
    kind = cutlass.const_expr("bf16x2" if target.element_type is BFloat16 else "f16x2")
    words = cute.recast_tensor(target, Int32)
    for i in cutlass.range(cute.size(words), unroll_full=True):
        words[i] = _pack(source[2 * i], source[2 * i + 1], kind)


def store_fragment(
    mma: cute.TiledMma, thread: Int32, acc: cute.Tensor, target: cute.Tensor
) -> None:
    """Round an accumulator of ``mma`` to ``target``'s 16-bit type and store it in shared memory."""
    element = target.element_type
    atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(False, 4), element)
    copy = cute.make_tiled_copy_C(atom, mma).get_slice(thread)
    rounded = cute.make_rmem_tensor(acc.shape, element)
    convert(acc, rounded)
    cute.copy(copy, copy.retile(rounded), copy.partition_D(target))

"""Matrix product and attention in Triton, written here: what is tested is Triton's compiler.

They reach what the kernels of packages do not: copies through tensor descriptors, e4m3 and tf32
operands, attention without a mask.
"""

# Triton reads annotations as its own types: the kernels have none.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from tests.emulator.peers import reference
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        left = (row[:, None] < m) & (inner[None, :] < k)
        right = (inner[:, None] < k) & (col[None, :] < n)
        a = tl.load(a_ptr + row[:, None] * k + inner[None, :], mask=left, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * n + col[None, :], mask=right, other=0.0)
        acc = tl.dot(a, b, acc)
    inside = (row[:, None] < m) & (col[None, :] < n)
    tl.store(c_ptr + row[:, None] * n + col[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def described_product_kernel(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        acc = tl.dot(a.load([row, start]), b.load([start, col]), acc)
    c.store([row, col], acc.to(tl.float16))


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, rows, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Heads one after another, each of rows x D; scores in units of log 2."""
    base = tl.program_id(1) * rows * D
    row, dim = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    mine = base + row[:, None] * D + dim[None, :]
    q = tl.load(q_ptr + mine, mask=row[:, None] < rows, other=0.0)
    best, total = tl.full((BM,), float("-inf"), tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, rows, BN):
        col = start + tl.arange(0, BN)
        there = col[:, None] < rows
        theirs = base + col[:, None] * D + dim[None, :]
        k = tl.load(k_ptr + theirs, mask=there, other=0.0)
        v = tl.load(v_ptr + theirs, mask=there, other=0.0)
        scores = tl.where(col[None, :] < rows, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - higher[:, None]), tl.exp2(best - higher)
        total, best = total * fade + tl.sum(weights, 1), higher
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None])
    out = acc / total[:, None]
    tl.store(o_ptr + mine, out.to(o_ptr.dtype.element_ty), mask=row[:, None] < rows)


@triton.jit
def in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    inside = index < n
    tl.store(x_ptr + index, tl.load(x_ptr + index, mask=inside) * 2, mask=inside)


def product(
    m: int, n: int, k: int, tile: tuple[int, int, int], dtype: torch.dtype, warps: int = 4
) -> dict[str, float]:
    """Loads of pointers; tf32 where the operands are float32."""
    torch.manual_seed(0)
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    out = torch.empty(m, n, dtype=torch.float32)
    bm, bn, bk = tile
    grid = (triton.cdiv(m, bm), triton.cdiv(n, bn))
    product_kernel[grid](a, b, out, m, n, k, BM=bm, BN=bn, BK=bk, num_warps=warps, num_stages=3)
    return {"out": reference.error(out, a.double() @ b.double())}


def described_product(m: int, n: int, k: int) -> dict[str, float]:
    """Tensor copies bring the operands and take the result."""
    torch.manual_seed(0)
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    out = torch.empty(m, n, dtype=torch.float16)
    bm, bn, bk = 128, 128, 64
    described_product_kernel[(triton.cdiv(m, bm), triton.cdiv(n, bn))](
        TensorDescriptor.from_tensor(a, [bm, bk]),
        TensorDescriptor.from_tensor(b, [bk, bn]),
        TensorDescriptor.from_tensor(out, [bm, bn]),
        k,
        BM=bm,
        BN=bn,
        BK=bk,
        num_warps=4,
        num_stages=3,
    )
    return {"out": reference.error(out, a.double() @ b.double())}


def attention(rows: int, heads: int, head_dim: int, warps: int) -> dict[str, float]:
    """Full attention, forward."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(heads, rows, head_dim).bfloat16() for _ in range(3))
    out = torch.empty_like(q)
    attention_kernel[(triton.cdiv(rows, 128), heads)](
        q, k, v, out, math.log2(math.e) * head_dim**-0.5, rows,
        D=head_dim, BM=128, BN=64, num_warps=warps, num_stages=2,
    )  # fmt: skip
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    return {"out": reference.error(out.transpose(0, 1), reference.attention(q, k, v, False))}


def in_place(block: int) -> dict[str, float]:
    """Doubled by 128 threads, of which ``block`` have an element."""
    x = torch.arange(1.0, block - 3)
    expected = 2 * x.double()
    in_place_kernel[(1,)](x, len(x), BLOCK=block, num_warps=4)
    return {"out": reference.error(x, expected)}

"""flash-attn-4's attention and its gradients on CPU tensors, against float64.

Takes cases as Python tuples: (seqlen_q, seqlen_k, heads, heads_kv, head_dim, causal,
deterministic). An empty sequence length list in place of one is ragged.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        shift = scores.shape[-1] - scores.shape[-2]
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + shift)
        scores = scores.masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def check(name: str, actual: Any, expected: Any) -> None:
    """bfloat16 holds 8 bits: a few of its units of the largest value."""
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < 2**-6, f"{name}: {error:.2g} of the largest value"


def dense(
    rows: int, keys: int, heads: int, heads_kv: int, dim: int, causal: bool, deterministic: bool
) -> None:
    shapes = ((1, rows, heads, dim), (1, keys, heads_kv, dim), (1, keys, heads_kv, dim))
    inputs = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    out = flash_attn_func(*inputs, causal=causal, deterministic=deterministic)
    out = out[0] if isinstance(out, tuple) else out
    gradient = torch.randn(out.shape).bfloat16()
    out.backward(gradient)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = reference(exact[0], exact[1], exact[2], causal)
    expected.backward(gradient.double())
    check("out", out, expected)
    for name, x, y in zip("qkv", inputs, exact, strict=True):
        check(f"d{name}", x.grad, y.grad)


def ragged(rows: list[int], keys: list[int], heads: int, dim: int, causal: bool) -> None:
    starts = [torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) for lengths in (rows, keys)]
    q, k, v = (torch.randn(sum(lengths), heads, dim).bfloat16() for lengths in (rows, keys, keys))
    out = flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q=starts[0],
        cu_seqlens_k=starts[1],
        max_seqlen_q=max(rows),
        max_seqlen_k=max(keys),
        causal=causal,
    )
    out = out[0] if isinstance(out, tuple) else out
    parts = zip(
        out.split(rows),
        q.double().split(rows),
        k.double().split(keys),
        v.double().split(keys),
        strict=True,
    )
    for actual, *exact in parts:
        q, k, v = (x[None] for x in exact)
        check("out", actual[None], reference(q, k, v, causal))


torch.manual_seed(0)
for case in map(eval, sys.argv[1:]):
    (ragged if isinstance(case[0], list) else dense)(*case)
    print(case, "is right")

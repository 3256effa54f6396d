"""The Triton kernels of flash-linear-attention (fla-core on PyPI): matrix product and attention."""

from __future__ import annotations

import importlib

import torch
from tests.emulator.peers import reference


def product(configuration: int, m: int = 200, n: int = 136, k: int = 104) -> dict[str, float]:
    """The matrix product that was adapted from Triton's tutorial, in one of its tilings."""
    module = importlib.import_module("fla.ops.utils.matmul")  # the package names a function so
    tuner = module.matmul_kernel.fn
    tilings = list(tuner.configs)
    torch.manual_seed(0)
    a, b = torch.randn(1, m, k).half(), torch.randn(k, n).half()
    try:
        tuner.configs = [tilings[configuration]]
        tuner.cache.clear()
        out = module.matmul(a, b)
    finally:
        tuner.configs = tilings
        tuner.cache.clear()
    return {"out": reference.error(out, a.double() @ b.double())}


def attention(rows: int, heads: int, key_heads: int, head_dim: int) -> dict[str, float]:
    """Causal attention: error of the output and of each gradient."""
    from fla.ops.attn import parallel_attn

    return reference.errors(
        parallel_attn,
        lambda q, k, v: reference.attention(q, k, v, True),
        [(1, rows, heads, head_dim), *[(1, rows, key_heads, head_dim)] * 2],
        torch.bfloat16,
    )


def ragged_attention(
    rows: tuple[int, ...], heads: int, key_heads: int, head_dim: int
) -> dict[str, float]:
    """Causal attention of sequences of these lengths."""
    from fla.ops.attn import parallel_attn

    starts = torch.tensor([0, *rows]).cumsum(0)

    def attend(*inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = parallel_attn(*(x[None] for x in inputs), cu_seqlens=starts)
        return out[0]

    total = sum(rows)
    return reference.errors(
        attend,
        reference.ragged_attention(rows, rows, True),
        [(total, heads, head_dim), *[(total, key_heads, head_dim)] * 2],
        torch.bfloat16,
    )

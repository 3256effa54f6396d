"""flash-attn-4's attention for Hopper (flash-attn-4 on PyPI), forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tests.emulator.peers import reference


def dense(
    rows: int,
    keys: int,
    heads: int,
    key_heads: int,
    head_dim: int,
    *,
    causal: bool = False,
    deterministic: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, float]:
    """One sequence: error of the output and of each gradient."""
    from flash_attn.cute import flash_attn_func

    shapes = [(1, rows, heads, head_dim), *[(1, keys, key_heads, head_dim)] * 2]
    return reference.errors(
        lambda *inputs: flash_attn_func(*inputs, causal=causal, deterministic=deterministic),
        lambda q, k, v: reference.attention(q, k, v, causal),
        shapes,
        dtype,
    )


def ragged(
    rows: Sequence[int],
    keys: Sequence[int],
    heads: int,
    key_heads: int,
    head_dim: int,
    *,
    causal: bool = False,
    deterministic: bool = False,
) -> dict[str, float]:
    """Sequences of these lengths: error of the output and of each gradient."""
    from flash_attn.cute import flash_attn_varlen_func

    starts = [torch.tensor([0, *lengths]).cumsum(0).to(torch.int32) for lengths in (rows, keys)]
    shapes = [(sum(rows), heads, head_dim), *[(sum(keys), key_heads, head_dim)] * 2]
    return reference.errors(
        lambda *inputs: flash_attn_varlen_func(
            *inputs,
            cu_seqlens_q=starts[0],
            cu_seqlens_k=starts[1],
            max_seqlen_q=max(rows),
            max_seqlen_k=max(keys),
            causal=causal,
            deterministic=deterministic,
        ),
        reference.ragged_attention(rows, keys, causal),
        shapes,
        torch.bfloat16,
    )

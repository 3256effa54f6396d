"""Random inputs: one way to draw them for benchmarks, tuning and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopwell.bench.grid import Cell

if TYPE_CHECKING:
    import torch

Inputs = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]


def draw(cell: Cell, seed: int, device: str = "cuda") -> Inputs:
    """Q, K and V of a cell: standard normal, drawn in float32 and rounded to its dtype."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(seqlen: int, heads: int, dim: int) -> torch.Tensor:
        shape = (cell.batch, seqlen, heads, dim)
        drawn = torch.randn(shape, device=device, generator=generator)
        return drawn.to(getattr(torch, cell.dtype))

    return (
        normal(cell.seqlen_q, cell.heads_q, cell.head_dim),
        normal(cell.seqlen_k, cell.heads_k, cell.head_dim),
        normal(cell.seqlen_k, cell.heads_k, cell.head_dim_v),
    )

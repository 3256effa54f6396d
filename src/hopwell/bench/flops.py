"""What a TFLOP/s figure counts (spec 0x0D, "Derive The Counted FLOPs Before Reading The Bar").

Two products dominate: Q K^T with 2 * B * H * Sq * Sk * d operations and P V with
2 * B * H * Sq * Sk * dv. A convention decides which (query, key) pairs are credited.
"""

from __future__ import annotations

import enum
from math import ceil

from hopwell.bench.grid import Cell


class Convention(str, enum.Enum):
    """Which numerator stands over the time. A figure without its convention says nothing."""

    PAPER = "paper"  # dense work, causal counts half of it: 4*B*H*S*S*d when square
    USEFUL = "useful"  # exactly the pairs that the mask lets through
    SCHEDULED = "scheduled"  # whole tiles that a kernel really issues, at the plan's head dims
    DENSE_EQUIVALENT = "dense-equivalent"  # dense work whatever the mask skips

    @property
    def formula(self) -> str:
        return _FORMULAS[self]


_FORMULAS = {
    Convention.PAPER: "2*B*H*Sq*Sk*(d+dv), halved when causal",
    Convention.USEFUL: "2*B*H*pairs*(d+dv), pairs = visible (query, key) pairs",
    Convention.SCHEDULED: "2*B*H*blocks*tile_m*tile_n*(D+DV), blocks issued, D and DV buckets",
    Convention.DENSE_EQUIVALENT: "2*B*H*Sq*Sk*(d+dv)",
}


def visible_pairs(seqlen_q: int, seqlen_k: int, causal: bool) -> int:
    """Pairs (i, j) of one head that score: all, or those with j <= i + seqlen_k - seqlen_q."""
    if not causal:
        return seqlen_q * seqlen_k
    rows = min(seqlen_q, seqlen_k)  # rows that see at least one key; the last of them sees all
    return rows * seqlen_k - rows * (rows - 1) // 2


def scheduled_blocks(seqlen_q: int, seqlen_k: int, causal: bool, tile_m: int, tile_n: int) -> int:
    """Key blocks that one head's query tiles visit."""
    blocks = 0
    for start in range(0, seqlen_q, tile_m):
        visible = seqlen_k
        if causal:
            last_row = min(start + tile_m, seqlen_q) - 1
            visible = min(seqlen_k, max(0, last_row + 1 + seqlen_k - seqlen_q))
        blocks += ceil(visible / tile_n)
    return blocks


def forward_flops(
    cell: Cell,
    convention: Convention = Convention.PAPER,
    *,
    tiles: tuple[int, int] | None = None,
    bucket: tuple[int, int] | None = None,
) -> float:
    """Floating-point operations credited to one forward call.

    Args:
        cell: The problem.
        convention: The numerator.
        tiles: (tile_m, tile_n) of the plan; needed by ``SCHEDULED`` only.
        bucket: (head_dim, head_dim_v) that the kernel computes; the cell's own if None.
    """
    depth = cell.head_dim + cell.head_dim_v
    heads = cell.batch * cell.heads_q
    dense = 2.0 * heads * cell.seqlen_q * cell.seqlen_k * depth
    if convention is Convention.PAPER:
        return dense / 2 if cell.causal else dense
    if convention is Convention.DENSE_EQUIVALENT:
        return dense
    if convention is Convention.USEFUL:
        return 2.0 * heads * visible_pairs(cell.seqlen_q, cell.seqlen_k, cell.causal) * depth
    if tiles is None:
        raise ValueError("the scheduled convention needs the plan's tiles")
    tile_m, tile_n = tiles
    blocks = scheduled_blocks(cell.seqlen_q, cell.seqlen_k, cell.causal, tile_m, tile_n)
    padded = sum(bucket) if bucket else depth
    return 2.0 * heads * blocks * tile_m * tile_n * padded


def tflops(cell: Cell, seconds: float, convention: Convention = Convention.PAPER) -> float:
    """Credited TFLOP/s of one forward call that took ``seconds``."""
    return forward_flops(cell, convention) / seconds / 1e12

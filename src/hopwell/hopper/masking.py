"""Which key blocks a tile visits and which of them need a mask (spec 0x03, ragged data tail).

Causal is bottom-right aligned: query i sees key j when j <= i + seqlen_k - seqlen_q.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Int32, const_expr, cute

from hopwell.hopper.plan import HopperForwardPlan


@dataclass(frozen=True)
class Visibility:
    """The mask of one launch as block counts and column limits."""

    plan: HopperForwardPlan
    seqlen_q: Int32
    seqlen_k: Int32

    @cute.jit
    def blocks(self, first_row: Int32, rows: cutlass.Constexpr[int]) -> Int32:
        """Key blocks that ``rows`` query rows from ``first_row`` on visit: what any of them sees.

        Rows past the last query see none.
        """
        keys = self.seqlen_k
        if const_expr(self.plan.causal):
            last = cutlass.min(first_row + rows, self.seqlen_q)
            keys = cutlass.max(cutlass.min(last + self.seqlen_k - self.seqlen_q, self.seqlen_k), 0)
        keys = cutlass.select_(first_row < self.seqlen_q, keys, Int32(0))
        return cute.ceil_div(keys, self.plan.tile_n)

    @cute.jit
    def clear_blocks(self, first_row: Int32, blocks: Int32) -> Int32:
        """How many of the leftmost ``blocks`` are wholly visible to every row from here on."""
        keys = self.seqlen_k
        if const_expr(self.plan.causal):
            keys = cutlass.max(first_row + 1 + self.seqlen_k - self.seqlen_q, 0)
        return cutlass.min(keys // self.plan.tile_n, blocks)

    def limit(self, row: Int32) -> Int32:
        """Keys below this index are visible to ``row``.

        Causal needs no second bound: a row inside the sequence never reaches past the last key.
        """
        if self.plan.causal:
            return row + 1 + self.seqlen_k - self.seqlen_q
        return self.seqlen_k

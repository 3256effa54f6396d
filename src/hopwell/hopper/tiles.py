"""Which output tile comes next: the persistent loop's static schedule (spec 0x0B)."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from hopwell.hopper.plan import HopperForwardPlan, TileOrder


@dataclass(frozen=True)
class TileSchedule:
    """Tiles of one launch: ``blocks`` query blocks of ``heads * batch`` head instances.

    Every CTA visits ``wave * grid + cta``. In the longest-first order odd waves run backwards over
    the CTAs, so that the one that got the longest tile of a wave gets the shortest of the next.
    """

    order: TileOrder
    blocks: Int32
    heads: Int32
    total: Int32

    @classmethod
    def of(
        cls, plan: HopperForwardPlan, seqlen_q: Int32, heads: Int32, batch: Int32
    ) -> TileSchedule:
        """The schedule of a launch."""
        blocks = cute.ceil_div(seqlen_q, plan.tile_m)
        return cls(plan.tile_order, blocks, heads, blocks * heads * batch)

    def tile(self, wave: Int32) -> Int32:
        """Linear tile of this CTA in ``wave``; at or past ``total`` there is none any more."""
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        if self.order is TileOrder.LONGEST_FIRST:
            backwards = grid - 1 - cta
            cta = cutlass.select_(wave & 1 == 1, backwards, cta)
        return wave * grid + cta

    def coordinates(self, tile: Int32) -> tuple[Int32, Int32, Int32]:
        """(query block, head, batch) of a linear tile."""
        if self.order is TileOrder.LONGEST_FIRST:
            # Under a causal mask later query blocks see more keys: all heads' last blocks first.
            instances = self.total // self.blocks
            block = self.blocks - 1 - tile // instances
            instance = tile % instances
        else:
            block = tile % self.blocks
            instance = tile // self.blocks
        return block, instance % self.heads, instance // self.heads

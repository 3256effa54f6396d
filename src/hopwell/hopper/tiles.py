"""Which output tile comes next: the persistent loop's static schedule (spec 0x0B)."""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import Int32, cute

from hopwell.hopper.plan import HopperForwardPlan, TileOrder

#: CTAs that stream one instance's keys and values together in longest-first order. With as many
#: different instances in flight as CTAs a causal forward is bound by memory (measured on H200:
#: 288 instead of 343 TFLOP/s at d = 128, S = 512; docs/notes/hopper-forward.md).
CTAS_PER_INSTANCE = 4


@dataclass(frozen=True)
class TileSchedule:
    """Tiles of one launch: ``blocks`` query blocks of each of ``heads * batch`` head instances.

    Every CTA visits tile ``wave * grid + cta``. Lexical order keeps an instance's blocks together.
    Longest-first order takes sections of ``section`` instances; inside one, all last query blocks
    come first, and odd waves run backwards over the CTAs, so that the CTA with the longest tile of
    a wave gets the shortest of the next.
    """

    order: TileOrder
    blocks: Int32
    heads: Int32
    instances: Int32
    section: Int32

    @classmethod
    def of(
        cls, plan: HopperForwardPlan, seqlen_q: Int32, heads: Int32, batch: Int32, section: Int32
    ) -> TileSchedule:
        """The schedule of a launch."""
        blocks = cute.ceil_div(seqlen_q, plan.tile_m)
        return cls(plan.tile_order, blocks, heads, heads * batch, section)

    @property
    def total(self) -> Int32:
        return self.blocks * self.instances

    def tile(self, wave: Int32) -> Int32:
        """Linear tile of this CTA in ``wave``; at or past ``total`` there is none any more."""
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        if self.order is TileOrder.LONGEST_FIRST:
            cta = cutlass.select_(wave & 1 == 1, grid - 1 - cta, cta)
        return wave * grid + cta

    def coordinates(self, tile: Int32) -> tuple[Int32, Int32, Int32]:
        """(query block, head, batch) of a linear tile."""
        if self.order is TileOrder.LONGEST_FIRST:
            first = tile // (self.section * self.blocks) * self.section
            width = cutlass.min(self.section, self.instances - first)  # the last may be narrower
            inside = tile - first * self.blocks
            block = self.blocks - 1 - inside // width
            instance = first + inside % width
        else:
            block = tile % self.blocks
            instance = tile // self.blocks
        return block, instance % self.heads, instance // self.heads


def section_instances(instances: Int32, ctas: Int32) -> Int32:
    """Instances per longest-first section.

    A quarter of the CTAs: then a section of 4 n query blocks is a whole number of waves, which is
    what keeps every CTA's share of long and short tiles equal (docs/notes/hopper-forward.md).
    """
    return cutlass.min(cute.ceil_div(ctas, CTAS_PER_INSTANCE), instances)

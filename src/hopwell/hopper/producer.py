"""The producer warp: fills the rings in the order in which the MMA warpgroups will ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cutlass
from cutlass import Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync

from hopwell.hopper.masking import Visibility
from hopwell.hopper.plan import MMA_M, HopperForwardPlan
from hopwell.hopper.ring import Ring
from hopwell.hopper.shared import Rings, SharedMemory
from hopwell.hopper.tiles import TileSchedule


class TensorCopy(NamedTuple):
    """A tensor copy: its atom, and the coordinates (seqlen, head_dim, head, batch) it takes."""

    atom: cute.CopyAtom
    tensor: cute.Tensor

    def partition(
        self, shared: cute.Tensor, tile: tuple[int, int], head: Int32, batch: Int32
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """(shared, global) views for the copy; the last modes are slot and block of rows."""
        tiles = cute.local_tile(self.tensor[None, None, head, batch], tile, (None, 0))
        return cpasync.tma_partition(
            self.atom,
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 2),
            cute.group_modes(tiles, 0, 2),
        )


@dataclass(frozen=True)
class KeyValueView:
    """K or V of one head instance on its way into a ring: the K/V view of the producer.

    Dense keys only for now: block ``n`` is rows ``n * tile_n`` on of the global view. Where a
    block lies is this class's business alone (paged keys change nothing else); ragged keys also
    need a length per instance in :class:`Visibility` and :class:`TileSchedule`.
    """

    copy: TensorCopy
    ring: Ring
    source: cute.Tensor
    target: cute.Tensor

    @classmethod
    def of(
        cls,
        copy: TensorCopy,
        ring: Ring,
        shared: cute.Tensor,
        tile: tuple[int, int],
        head: Int32,
        batch: Int32,
    ) -> KeyValueView:
        """The view of (``head``, ``batch``)."""
        target, source = copy.partition(shared, tile, head, batch)
        return cls(copy, ring, source, target)

    def load(self, ordinal: Int32, block: Int32) -> None:
        """Acquire the stage of payload ``ordinal``; start filling it with key block ``block``."""
        full = self.ring.acquire(ordinal)
        slot = self.ring.stage(ordinal)
        cute.copy(
            self.copy.atom, self.source[None, block], self.target[None, slot], tma_bar_ptr=full
        )


@dataclass(frozen=True)
class Producer:
    """One warp; the copies themselves are issued by one elected lane."""

    plan: HopperForwardPlan
    shared: SharedMemory
    rings: Rings
    schedule: TileSchedule
    visibility: Visibility
    copy_q: TensorCopy
    copy_k: TensorCopy
    copy_v: TensorCopy
    heads_k: Int32

    @cute.jit
    def run(self) -> None:
        """Load every tile of this CTA; return once all stages have been released."""
        plan, rings, schedule = self.plan, self.rings, self.schedule
        sQ, sK, sV = self.shared.q(), self.shared.k(), self.shared.v()
        per_key_head = schedule.heads // self.heads_k  # query heads that share a key head
        kv_ordinal = Int32(0)
        wave = Int32(0)  # also Q's ordinal: every tile takes one Q payload, seen keys or not
        tile = schedule.tile(wave)
        while tile < schedule.total:
            block, head, batch = schedule.coordinates(tile)
            blocks = self.visibility.blocks(block * plan.tile_m, plan.tile_m)
            tQsQ, tQgQ = self.copy_q.partition(sQ, (MMA_M, plan.head_dim), head, batch)
            keys = KeyValueView.of(
                self.copy_k, rings.k, sK, (plan.tile_n, plan.head_dim), head // per_key_head, batch
            )
            values = KeyValueView.of(
                self.copy_v,
                rings.v,
                sV,
                (plan.tile_n, plan.head_dim_v),
                head // per_key_head,
                batch,
            )
            if blocks > 0:
                # K first: its stage is free earlier than Q's, whose release ends the tile before.
                keys.load(kv_ordinal, blocks - 1)
            full = rings.q.acquire(wave)
            slot = rings.q.stage(wave) * plan.mma_warpgroups
            for g in cutlass.range_constexpr(plan.mma_warpgroups):
                cute.copy(
                    self.copy_q.atom,
                    tQgQ[None, block * plan.mma_warpgroups + g],
                    tQsQ[None, slot + g],
                    tma_bar_ptr=full,
                )
            if blocks > 0:
                self.walk(keys, values, kv_ordinal, blocks)
            kv_ordinal += blocks
            wave += 1
            tile = schedule.tile(wave)
        # The tail is no payload: every stage in use must have been released, so that no arrival
        # is left dangling when this warp exits (spec 0x03, "Producer exit tail").
        for ring, ordinal in ((rings.q, wave), (rings.k, kv_ordinal), (rings.v, kv_ordinal)):
            for ahead in cutlass.range_constexpr(ring.stages):
                ring.wait_empty(ordinal + ahead)

    @cute.jit
    def walk(self, keys: KeyValueView, values: KeyValueView, ordinal: Int32, blocks: Int32) -> None:
        """Key blocks from right to left, the first K already under way."""
        if const_expr(self.plan.overlap):
            # The overlapped body asks for K of block j before V of block j - 1.
            for j in cutlass.range(1, blocks, unroll=1):
                keys.load(ordinal + j, blocks - 1 - j)
                values.load(ordinal + j - 1, blocks - j)
            values.load(ordinal + blocks - 1, Int32(0))
        else:
            values.load(ordinal, blocks - 1)
            for j in cutlass.range(1, blocks, unroll=1):
                keys.load(ordinal + j, blocks - 1 - j)
                values.load(ordinal + j, blocks - 1 - j)

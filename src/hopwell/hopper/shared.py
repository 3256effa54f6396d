"""Shared memory of the forward: the plan's map as tensors and rings.

Q and O are kept as 64-row slots, one per MMA warpgroup (and stage), so that each warpgroup's rows
are one contiguous tile: it may stage its O there without touching another's Q.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
from cutlass import BFloat16, Float16, cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.tensor_utils import LayoutEnum
from cutlass.utils import hopper_helpers

from hopwell.hopper.plan import MMA_M, HopperForwardPlan, MBarrier, OutputStorage
from hopwell.hopper.ring import Ring

ELEMENTS = {"bfloat16": BFloat16, "float16": Float16}


def tile_layout(
    plan: HopperForwardPlan, rows: int, columns: int, stages: int | None = None
) -> cute.ComposedLayout:
    """Row-major tile in the widest swizzle that its columns fill; with ``stages``, that many."""
    element = ELEMENTS[plan.dtype]
    kind = hopper_helpers.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, element, columns)
    atom = warpgroup.make_smem_layout_atom(kind, element)
    if stages is None:
        return cute.tile_to_shape(atom, (rows, columns), order=(0, 1))
    return cute.tile_to_shape(atom, (rows, columns, stages), order=(0, 1, 2))


@dataclass(frozen=True)  # frozen: the compiler then knows that no loop carries it
class Rings:
    """The three pipelines."""

    q: Ring
    k: Ring
    v: Ring


@dataclass(frozen=True)
class SharedMemory:
    """The CTA's shared memory from ``base`` on, laid out by the plan."""

    plan: HopperForwardPlan
    base: cute.Pointer

    def _tensor(self, region: str, layout: cute.ComposedLayout) -> cute.Tensor:
        pointer = cute.recast_ptr(
            self.base + self.plan.region(region).offset,
            layout.inner,
            dtype=ELEMENTS[self.plan.dtype],
        )
        return cute.make_tensor(pointer, layout.outer)

    def q(self) -> cute.Tensor:
        """(64, head_dim, q_stages * MMA warpgroups)."""
        plan = self.plan
        slots = plan.q_stages * plan.mma_warpgroups
        return self._tensor("q", tile_layout(plan, MMA_M, plan.head_dim, slots))

    def k(self) -> cute.Tensor:
        """(tile_n, head_dim, stages)."""
        plan = self.plan
        return self._tensor("k", tile_layout(plan, plan.tile_n, plan.head_dim, plan.stages))

    def v(self) -> cute.Tensor:
        """(tile_n, head_dim_v, stages)."""
        plan = self.plan
        return self._tensor("v", tile_layout(plan, plan.tile_n, plan.head_dim_v, plan.stages))

    def p(self) -> cute.Tensor:
        """(64, tile_n, MMA warpgroups); only where the plan keeps P in shared memory."""
        plan = self.plan
        return self._tensor("p", tile_layout(plan, MMA_M, plan.tile_n, plan.mma_warpgroups))

    def o(self) -> cute.Tensor:
        """(64, head_dim_v, slots): one slot per MMA warpgroup, or Q's slots at Q's distances."""
        plan = self.plan
        if plan.output_storage is OutputStorage.OWN:
            return self._tensor("o", tile_layout(plan, MMA_M, plan.head_dim_v, plan.mma_warpgroups))
        slots = plan.q_stages * plan.mma_warpgroups
        tile = tile_layout(plan, MMA_M, plan.head_dim_v)
        pointer = cute.recast_ptr(
            self.base + plan.region("o").offset, tile.inner, dtype=ELEMENTS[plan.dtype]
        )
        layout = cute.make_layout(
            (*tile.outer.shape, slots), stride=(*tile.outer.stride, MMA_M * plan.head_dim)
        )
        return cute.make_tensor(pointer, layout)

    def rings(self) -> Rings:
        """The pipelines over the plan's barriers; one thread must initialise them."""
        specs = {spec.name: spec for spec in self.plan.mbarriers}

        def barriers(name: MBarrier) -> cute.Pointer:
            offset = self.plan.region(name.value).offset
            return cute.recast_ptr(self.base + offset, dtype=cutlass.Int64)

        def ring(full: MBarrier, empty: MBarrier) -> Ring:
            return Ring(barriers(full), barriers(empty), specs[full], specs[empty])

        return Rings(
            ring(MBarrier.Q_FULL, MBarrier.Q_EMPTY),
            ring(MBarrier.K_FULL, MBarrier.K_EMPTY),
            ring(MBarrier.V_FULL, MBarrier.V_EMPTY),
        )

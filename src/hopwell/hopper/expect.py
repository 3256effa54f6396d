"""What a Hopper forward plan expects of its compiled kernel. Reads the plan alone.

:mod:`hopwell.compile.compare` puts it beside what the inspector found in the artifact.
"""

from __future__ import annotations

from hopwell.compile.inspect import (
    MBarriers,
    NamedBarrier,
    RegisterTarget,
    TensorCopies,
)
from hopwell.hopper import plan as plans
from hopwell.hopper.plan import (
    MMA_K,
    MMA_M,
    WARPGROUP,
    WARPS_PER_WARPGROUP,
    HopperForwardPlan,
    MBarrier,
    PSource,
    Rescale,
    TileOrder,
)

#: Columns that one tensor copy moves: the widest swizzle (bytes) that divides a tile's columns.
_SWIZZLES = (128, 64, 32)
#: Head dimensions up to which no register may be spilled.
NO_SPILLS_UP_TO = 128


def expected(plan: HopperForwardPlan) -> dict[str, object]:
    """Named values that the plan demands of PTX, cubin and launch.

    Values that a plan does not demand (spills above d = 128) are left out.
    """
    values: dict[str, object] = {
        "threads": plan.threads,
        "registers at launch": plan.launch_registers,
        "producer registers": RegisterTarget(plan.producer_registers, _warps(0)),
        "consumer registers": RegisterTarget(
            plan.consumer_registers, _warps(*range(1, 1 + plan.mma_warpgroups))
        ),
        "register targets in all": 2,
        "USETMAXREG instructions": 2,
        "element type": {"bfloat16": "bf16", "float16": "f16"}[plan.dtype],
        "shared memory raw": plan.shared_bytes_raw,
        "shared memory aligned": plan.shared_bytes,
        "shared memory launched": plan.shared_bytes,
        "CTAs per SM": plan.ctas_per_sm,
    }
    for spec in plan.mbarriers:
        transactions = (spec.transaction_bytes,) if spec.transaction_bytes else ()
        offset = plan.region(spec.name.value).offset
        values[f"mbarrier {spec.name.value}"] = MBarriers(
            offset, spec.count, spec.arrivals, transactions
        )
    values["mbarriers in all"] = sum(spec.count for spec in plan.mbarriers)
    values |= _named_barriers(plan)
    values["named barriers in all"] = len(plan.named_barriers)
    values |= _tensor_copies(plan)
    values |= _wgmma(plan)
    values["mirrored tile order"] = plan.tile_order is TileOrder.LONGEST_FIRST
    if max(plan.head_dim, plan.head_dim_v) <= NO_SPILLS_UP_TO:
        values["local memory accesses"] = 0
        values["stack bytes"] = 0
    return values


def _warps(*groups: int) -> tuple[int, ...]:
    """Warps of physical warpgroups."""
    return tuple(g * WARPS_PER_WARPGROUP + i for g in groups for i in range(WARPS_PER_WARPGROUP))


def _named_barriers(plan: HopperForwardPlan) -> dict[str, object]:
    """Turns: the group itself waits; the group before it in the ring arrives, and the first group
    once for the last (spec 0x04). The others are meetings of one group, the first of the CTA."""
    found: dict[str, object] = {}
    groups = plan.mma_warpgroups
    waiting: tuple[int, ...]
    arriving: tuple[int, ...]
    for barrier, threads in plan.named_barriers.items():
        if barrier is plans.NamedBarrier.CTA:
            waiting, arriving = _warps(*range(groups + 1)), ()
        else:
            kind, _, number = barrier.name.rpartition("_")
            group = int(number)
            waiting, arriving = _warps(group), ()
            if kind == "TURN":
                before = group - 1 or groups
                # The opening credit: warpgroup 1 gives itself the first turn.
                arriving = _warps(*sorted({before, 1} if group == 1 else {before}))
        found[f"named barrier {barrier.name.lower()}"] = NamedBarrier(
            int(barrier), threads, waiting, arriving
        )
    return found


def _boxes(columns: int, element_bytes: int) -> int:
    """Tensor copies per tile of ``columns``: each moves one swizzle row's width."""
    row = columns * element_bytes
    return row // next(width for width in _SWIZZLES if row % width == 0)


def _tensor_copies(plan: HopperForwardPlan) -> dict[str, object]:
    """Q once per MMA warpgroup; K and V at two places each: the peeled block and the loop."""
    qk = _boxes(plan.head_dim, plan.element_bytes)
    pv = _boxes(plan.head_dim_v, plan.element_bytes)
    sites = {
        "q": (MBarrier.Q_FULL, qk * plan.mma_warpgroups),
        "k": (MBarrier.K_FULL, 2 * qk),
        "v": (MBarrier.V_FULL, 2 * pv),
    }
    copies: dict[str, object] = {
        f"tensor loads of {name}": TensorCopies(
            plan.region(name).offset, plan.region(barrier.value).offset, count
        )
        for name, (barrier, count) in sites.items()
    }
    copies["tensor stores of o"] = TensorCopies(plan.region("o").offset, None, pv)
    return copies


def _wgmma(plan: HopperForwardPlan) -> dict[str, object]:
    """Shapes, operand sources, steps, and the commit and wait order (spec 0x05)."""
    source = "registers" if plan.p_source is PSource.REGISTERS else "shared"
    qk = f"m{MMA_M}n{plan.tile_n}k{MMA_K}/shared*{plan.qk_steps}"
    pv = f"m{MMA_M}n{plan.head_dim_v}k{MMA_K}/{source}*{plan.pv_steps}"
    order: tuple[str, ...]
    if plan.overlap:
        # Peeled first half, pairs with both products in flight, peeled last half. The pair's code
        # exists with the mask and, where blocks may need none, without.
        order = (f"{qk} | wait 0", f"{qk} | {pv} | wait 1 | wait 0", f"{pv} | wait 0")
        pairs = 2 if plan.causal else 1
        instructions = (1 + pairs) * (plan.qk_steps + plan.pv_steps)
    else:
        order = (f"{qk} | wait 0", f"{pv} | wait 0")
        instructions = 2 * (plan.qk_steps + plan.pv_steps)
    # O's elements per thread, scaled between the products when the plan says so.
    rescaled = MMA_M * plan.head_dim_v // WARPGROUP
    before = plan.overlap and plan.rescale is Rescale.BEFORE
    return {
        # Both products of one shape and source make equal phases: each is listed once.
        "wgmma order": tuple(dict.fromkeys(order)),
        "wgmma groups without a fence": 0,
        "HGMMA instructions": instructions,
        "O multiplies between the products": rescaled if before else 0,
    }

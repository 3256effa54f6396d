"""``hopwell plans``: every plan that ships, and what its compiled kernel really uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopwell.commands.display import Report, kernel_label, table
from hopwell.compile import find
from hopwell.errors import InputError
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

if TYPE_CHECKING:
    from rich.console import Console


def listing() -> Report:
    """All shipped plans. What is not compiled yet has ``artifact: null``; nothing is compiled."""
    return {"ok": True, "plans": [_summary(plan) for plan in shipped_forward_plans()]}


def _summary(plan: HopperForwardPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "plan": plan.to_json(),
        "shared_bytes": plan.shared_bytes,
        "ctas_per_sm": plan.ctas_per_sm,
        "artifact": _artifact(plan),
    }


def _artifact(plan: HopperForwardPlan) -> dict[str, Any] | None:
    found = find(plan)
    if found is None:
        return None
    artifact, source = found
    return {
        "source": source,
        "key": artifact.manifest.key,
        "hash": artifact.manifest.artifact_hash,
        "symbol": artifact.manifest.kernel_symbol,
        "resources": artifact.manifest.resources,
    }


def detail(name: str) -> Report:
    """The one plan whose name contains ``name``: barriers, shared memory, register targets.

    Raises :class:`InputError` when that is none or several.
    """
    plans = [plan for plan in shipped_forward_plans() if name in plan.name]
    if len(plans) != 1:
        raise InputError(
            "plan name",
            expected="a part of exactly one shipped plan's name, such as bf16_d128x128_causal",
            actual=f"{name}, a part of {len(plans)} names",
            consequence="There is nothing to show.",
        )
    plan = plans[0]
    return {
        "ok": True,
        **_summary(plan),
        "warpgroups": [role.value for role in plan.roles],
        "mbarriers": [
            {**barrier._asdict(), "name": barrier.name.value} for barrier in plan.mbarriers
        ],
        "named_barriers": {
            barrier.name.lower(): threads for barrier, threads in plan.named_barriers.items()
        },
        "shared_memory": [region._asdict() for region in plan.shared_memory],
        "registers": {
            "launch": plan.launch_registers,
            "producer": plan.producer_registers,
            "consumer": plan.consumer_registers,
        },
    }


def render_listing(report: Report, console: Console) -> None:
    columns = (
        *("dtype", "d, d_v", "mask", "tile", "shared bytes", "CTAs per SM"),
        *("registers", "spilled bytes", "stack bytes", "kernel"),
    )
    rows = []
    for entry in report["plans"]:
        artifact = entry["artifact"] or {}
        resources = artifact.get("resources", {})
        rows.append(
            (
                *kernel_label(entry["plan"]),
                f"{entry['plan']['tile_m']} x {entry['plan']['tile_n']}",
                entry["shared_bytes"],
                entry["ctas_per_sm"],
                resources.get("registers"),
                resources.get("spill_bytes"),
                resources.get("stack_bytes"),
                artifact.get("source"),
            )
        )
    console.print(table("Shipped plans", columns, rows))
    if any(entry["artifact"] is None for entry in report["plans"]):
        console.print("Registers and spills of the rest: hopwell cache warm", soft_wrap=True)


def render_detail(report: Report, console: Console) -> None:
    console.print(table(report["name"], ("field", "value"), report["plan"].items()))
    console.print(
        table(
            "Memory barriers",
            ("event", "barriers", "arrivals", "bytes"),
            [
                (b["name"], b["count"], b["arrivals"], b["transaction_bytes"])
                for b in report["mbarriers"]
            ],
        )
    )
    console.print(table("Named barriers", ("event", "threads"), report["named_barriers"].items()))
    console.print(
        table(
            "Shared memory",
            ("tenant", "offset", "bytes", "from", "until"),
            [(r["name"], r["offset"], r["bytes"], *r["live"]) for r in report["shared_memory"]],
        )
    )

"""``hopwell evidence``: how far the claim about each shipped kernel reaches, and by which record.

A kernel's current artifact is the one that this machine's wheel or cache holds for the present
sources and compiler. A record counts for it only when it names the same artifact hash; a record of
another artifact of the same plan is stale, and proves nothing about the code as it is now. Where
the kernel is not compiled on this machine, nothing can be compared: such a claim is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hopwell.bench import record as records
from hopwell.commands.display import Report, kernel_label, table
from hopwell.compile import find
from hopwell.errors import InputError
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

if TYPE_CHECKING:
    from rich.console import Console

#: Rungs in order. There is no emulator yet, so that one is never reached and holds up no other.
RUNGS = ("derived", "compiled", "emulated", "executed", "timed")
#: Rungs that a record can support.
RECORDED = ("executed", "timed")

#: A record has the rung, but whether of the present artifact cannot be said on this machine.
UNKNOWN = "unknown (not compiled here)"

Records = tuple[tuple[Path, records.Record], ...]


@dataclass(frozen=True)
class Claim:
    """One rung of one kernel: ``state`` is a key of :data:`COLOURS`, ``by`` what says so."""

    rung: str
    state: str
    by: str | None = None


def report(directory: Path, require: str) -> Report:
    """Every shipped kernel with its claims; ``ok`` when each reached the rung ``require``."""
    if require not in RUNGS:
        raise InputError(
            "rung",
            expected=f"one of {', '.join(RUNGS)}",
            actual=require,
            consequence="Nothing was checked.",
        )
    known = records.read_all(directory)
    kernels = [_kernel(plan, known) for plan in shipped_forward_plans()]
    return {
        "ok": all(_reached(kernel, require) for kernel in kernels),
        "require": require,
        "records": str(directory),
        "record_count": len(known),
        "kernels": kernels,
    }


def _kernel(plan: HopperForwardPlan, known: Records) -> dict[str, Any]:
    found = find(plan)
    current = found[0].manifest.artifact_hash if found is not None else None
    claims = [
        Claim("derived", "reached", "the plan"),
        Claim("compiled", "reached", found[1]) if found else Claim("compiled", "not reached"),
        Claim("emulated", "not reached"),
        *(_recorded(plan.name, current, rung, known) for rung in RECORDED),
    ]
    return {
        "plan_name": plan.name,
        "plan": plan.to_json(),
        "artifact": current,
        "claims": {claim.rung: {"state": claim.state, "by": claim.by} for claim in claims},
    }


def _recorded(plan_name: str, current: str | None, rung: str, known: Records) -> Claim:
    """What the newest record of each kind says of this artifact; else one of another is stale.

    Without an artifact on this machine (``current`` is None) no record can be matched.
    An artifact whose newest test run failed has reached nothing that a record could support.
    """
    newest: dict[str, tuple[str, records.Artifact]] = {}
    stale = None
    for path, record in known:
        for artifact in record.identity.artifacts:
            if artifact.plan_name == plan_name and artifact.artifact_hash == current:
                newest[record.kind] = (path.name, artifact)
            elif artifact.plan_name == plan_name and rung in artifact.rungs:
                stale = path.name
    tested = newest.get(records.TESTS_GPU)
    if tested is not None and not tested[1].rungs:
        return Claim(rung, "not reached")
    for name, artifact in newest.values():
        if rung in artifact.rungs:
            return Claim(rung, "reached", name)
    if stale is None:
        return Claim(rung, "not reached")
    return Claim(rung, UNKNOWN) if current is None else Claim(rung, "stale", stale)


def _reached(kernel: dict[str, Any], rung: str) -> bool:
    return bool(kernel["claims"][rung]["state"] == "reached")


COLOURS = {"reached": "green", "stale": "yellow", UNKNOWN: "yellow", "not reached": "dim"}


def render(report: Report, console: Console) -> None:
    columns = ("dtype", "d, d_v", "mask", "artifact", *RUNGS[1:])
    rows = [
        (
            *kernel_label(kernel["plan"]),
            kernel["artifact"] and kernel["artifact"][:12],
            *(_shown(kernel["claims"][rung]) for rung in RUNGS[1:]),
        )
        for kernel in report["kernels"]
    ]
    console.print(table("Shipped kernels", columns, rows))
    if not report["record_count"]:
        console.print(f"No records in {report['records']}: no kernel is more than compiled.")
    if not report["ok"]:
        console.print(f"Not every kernel is {report['require']}.")
    absent = sum(kernel["artifact"] is None for kernel in report["kernels"])
    if absent:
        console.print(f"{absent} kernels are not compiled here: run `hopwell cache warm`.")


def _shown(claim: dict[str, str | None]) -> Text:
    by = f" ({claim['by']})" if claim["by"] else ""
    return Text(f"{claim['state']}{by}", style=COLOURS[claim["state"] or ""])

"""Runs a row of the failure lab's table: our kernel, with the fault in it and without."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from tests.emulator import own_forward
from tests.emulator.failure_lab.edits import Edit, applied
from tests.emulator.failure_lab.table import SHAPE
from tests.emulator.hopwell_forward import traced_launch

from hopwell.bench.inputs import draw
from hopwell.emulator.api import Report, emulate
from hopwell.hopper.plan import HopperForwardPlan, MBarrier

#: Copies land early, late, and at random.
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Result:
    """What was reported, and whether the output was right."""

    report: Report
    right: bool


def run(
    plan: HopperForwardPlan,
    edits: Sequence[Edit] = (),
    seeds: Sequence[int] = SEEDS,
) -> Result:
    """Compile a plan's kernel with some faults and emulate it."""
    cell = SHAPE.cell(plan)
    q, k, v = draw(cell, seed=0, device="cpu")
    with applied(edits) if edits else nullcontext():
        launch = traced_launch(plan, q, k, v, cell.scale, SHAPE.ctas)
    report = emulate(launch, seeds=seeds, names=names(plan))
    right = report.same_results
    try:
        own_forward.check(launch, cell, q, k, v)
    except AssertionError:
        right = False
    return Result(report, right)


def words(report: Report) -> str:
    """All that a report says, a deadlock's wait-for graph included."""
    graphs = [run.deadlock.lines() for run in report.runs if run.deadlock is not None]
    missing = [group.example.missing for group in report.groups]
    return "\n".join((*missing, *(line for graph in graphs for line in graph)))


def names(plan: HopperForwardPlan) -> dict[str, tuple[int, int]]:
    """The plan's shared-memory map as the emulator takes it, each stage by itself."""
    stages = {"q": plan.q_stages, "k": plan.stages, "v": plan.stages}
    barriers = {barrier.value for barrier in MBarrier}
    found = {}
    for region in plan.shared_memory:
        if region.name in barriers or region.name not in stages:
            found[region.name] = (region.offset, region.bytes)
            continue
        size = region.bytes // stages[region.name]
        for stage in range(stages[region.name]):
            found[f"{region.name}[{stage}]"] = (region.offset + stage * size, size)
    return found

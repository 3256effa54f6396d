"""Runs a row of the failure lab's table: our kernel, with the fault in it and without."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

from hopwell.bench.inputs import draw
from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture import Launch
from hopwell.hopper.plan import HopperForwardPlan, MBarrier
from tests.emulator import own_forward
from tests.emulator.failure_lab.edits import Edit, applied
from tests.emulator.failure_lab.table import SHAPE, Fault, Substitution
from tests.emulator.hopwell_forward import traced_launch

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
    ptx: Sequence[Substitution] = (),
    seeds: Sequence[int] = SEEDS,
) -> Result:
    """Compile a plan's kernel with some faults and emulate it."""
    cell = SHAPE.cell(plan)
    q, k, v = draw(cell, seed=0, device="cpu")
    with applied(edits) if edits else nullcontext():
        launch = traced_launch(plan, q, k, v, cell.scale, SHAPE.ctas)
    text = launch.ptx
    for change in ptx:
        text, count = re.subn(change.pattern, change.replacement, text)
        assert count == change.count, f"{change.pattern} matches {count} times"
    report = emulate(replace(launch, ptx=text), seeds=seeds, names=names(plan))
    right = report.same_results
    try:
        own_forward.check(launch, cell, q, k, v)
    except AssertionError:
        right = False
    return Result(report, right)


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

"""Our own forward in the emulator: problems that reach every path of a plan, and what they gave.

Run as a program it runs the long set and renews its record (about half an hour on two cores):

    python -m tests.emulator.own_forward
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.emulator.evidence import Record
from tests.emulator.hopwell_forward import artifact_launch

from hopwell.bench import accuracy
from hopwell.bench.grid import Cell
from hopwell.bench.inputs import draw
from hopwell.compile import find_or_build
from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture import Launch
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

ROOT = Path(__file__).parents[2]
RECORD = Record("own_forward", "python -m tests.emulator.own_forward")


@dataclass(frozen=True)
class Shape:
    """A problem without its head dimensions, and how many CTAs share its tiles."""

    batch: int
    rows: int
    keys: int
    heads: int
    key_heads: int
    ctas: int

    def cell(self, plan: HopperForwardPlan) -> Cell:
        """The problem at the plan's head dimensions."""
        return Cell(
            self.batch, self.rows, self.keys, self.heads, self.key_heads,
            plan.head_dim, plan.head_dim_v, plan.causal, plan.dtype,
        )  # fmt: skip


def shapes(plan: HopperForwardPlan) -> dict[str, Shape]:
    """Problems by what they show of a plan.

    ``tiles``: two tiles per CTA, three key blocks, ragged both ways, two query heads on one key
    head; under the causal mask the diagonal crosses blocks, and warpgroups pass over some.
    ``one block``: at most one key block per tile; under the causal mask rows, warpgroups and whole
    tiles without a key. ``no keys``: nothing to attend to. ``long``: more waves and more laps.
    """
    m, n = plan.tile_m, plan.tile_n
    one = Shape(1, 2 * m + 70, n - 7, 2, 1, 1) if plan.causal else Shape(2, 5, n - 7, 2, 2, 1)
    return {
        "tiles": Shape(1, m + 40, 2 * n + 30, 2, 1, 2),
        "one block": one,
        "no keys": Shape(1, m + 40, 0, 1, 1, 1),
        "long": Shape(1, 2 * m + 17, 5 * n + 5, 2, 1, 1),
    }


def long_seeds(name: str) -> range:
    """Seeds of the long set: ten, of which the long problem takes four."""
    return range(4 if name == "long" else 10)


def run(plan: HopperForwardPlan, shape: Shape, seeds: Iterable[int]) -> Report:
    """Emulate a compiled plan; its result must be right, and the same under every seed.

    Raises:
        AssertionError: it is not.
    """
    cell = shape.cell(plan)
    q, k, v = draw(cell, seed=shape.rows, device="cpu")
    launch = artifact_launch(find_or_build(plan)[0], q, k, v, cell.scale, shape.ctas)
    report = emulate(launch, seeds=seeds)
    assert report.same_results, "seeds give different results"
    check(launch, cell, q, k, v)
    return report


def check(launch: Launch, cell: Cell, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Hold a launch's output and log-sum-exp against float64, within the budget of the GPU tests.

    Raises:
        AssertionError: an error exceeds the budget.
    """
    out = torch.from_numpy(launch.buffer("o").array).view(q.dtype)
    out = out.reshape(*q.shape[:3], v.shape[3])
    lse = torch.from_numpy(launch.buffer("lse").array).view(torch.float32)
    lse = lse.reshape(q.shape[0], q.shape[2], q.shape[1])
    expected = accuracy.reference(q, k, v, causal=cell.causal, scale=cell.scale)
    allowed = accuracy.budget(q, k, v, expected, causal=cell.causal, scale=cell.scale)
    broken = allowed.broken_by(accuracy.errors(out, lse, expected))
    assert not broken, broken


def assert_clean(report: Report) -> None:
    """No hazard, no deadlock."""
    found = [f"{group.rule} x{group.count}: {group.example.missing}" for group in report.groups]
    assert not found, found
    assert report.clean, [run.deadlock for run in report.runs]


# -- the long set --------------------------------------------------------------------------


def long_plans() -> dict[str, HopperForwardPlan]:
    """Every plan that ships and every variant, by name."""
    from plan_variants import VARIANTS

    return {plan.name: plan for plan in (*shipped_forward_plans(), *VARIANTS.values())}


def long_run(name: str) -> dict[str, Any]:
    """The long set of one plan: what the record says of it.

    Raises:
        AssertionError: a hazard, a deadlock or a wrong result.
    """
    plan = long_plans()[name]
    problems = {}
    for problem, shape in shapes(plan).items():
        seeds = long_seeds(problem)
        report = run(plan, shape, seeds)
        assert_clean(report)
        problems[problem] = {
            "seeds": len(seeds),
            "instructions": sum(each.instructions for each in report.runs),
        }
    return {"artifact": artifact_hash(plan), "problems": problems}


def artifact_hash(plan: HopperForwardPlan) -> str:
    """What the record is keyed by: the hash of the plan's compiled code."""
    return find_or_build(plan)[0].manifest.artifact_hash


def stale(name: str) -> str | None:
    """Why the record does not speak for a plan's code of today, or None where it does."""
    return RECORD.stale(name, artifact_hash(long_plans()[name]))


def main() -> int:
    """Run the long set, write the record; 1 where a plan failed, which then is not in it."""
    failed = 0
    entries: dict[str, Any] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs = {name: pool.submit(long_run, name) for name in long_plans()}
        for name, future in runs.items():
            error = future.exception()
            if error is None:
                entries[name] = future.result()
            failed += error is not None
            print(name, "clean" if error is None else f"FAILED: {error}", flush=True)
    RECORD.write(entries)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    sys.exit(main())

"""Every plan of our own forward, compiled, in the emulator: right, and without a hazard."""

from __future__ import annotations

import pytest
from tests.emulator import own_forward
from tests.emulator.hopwell_forward import artifact_launch

from hopwell.bench.inputs import draw
from hopwell.compile import find_or_build
from hopwell.emulator.api import emulate
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

SHIPPED = pytest.mark.parametrize("plan", shipped_forward_plans(), ids=lambda plan: plan.name)
#: The two types share all code but the conversions: together they try four schedules.
SEEDS = {"bfloat16": (0, 2), "float16": (1, 3)}


@SHIPPED
def test_shipped_plan(plan: HopperForwardPlan) -> None:
    """Several key blocks and tiles, one block, rows without keys, no keys at all."""
    shapes, (first, second) = own_forward.shapes(plan), SEEDS[plan.dtype]
    for name, seeds in (
        ("tiles", (first, second)),
        ("one block", (second,)),
        ("no keys", (first,)),
    ):
        own_forward.assert_clean(own_forward.run(plan, shapes[name], seeds))


@pytest.mark.emulator_long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", own_forward.long_plans())
def test_long_set(name: str) -> None:
    own_forward.long_run(name)


@pytest.mark.parametrize("name", own_forward.long_plans())
def test_long_set_is_recorded(name: str) -> None:
    reason = own_forward.stale(name)
    if reason is not None:
        pytest.skip(f"long set: {reason}")
    problems = own_forward.RECORD.entries()[name]["problems"]
    shapes = own_forward.shapes(own_forward.long_plans()[name])
    seeds = {problem: len(own_forward.long_seeds(problem)) for problem in shapes}
    assert {problem: run["seeds"] for problem, run in problems.items()} == seeds


def test_a_wrong_result_is_told() -> None:
    """The comparison that all of this rests on fails for a result that is off."""
    plan = shipped_forward_plans()[0]
    shape = own_forward.Shape(1, 16, 16, 1, 1, 1)
    cell = shape.cell(plan)
    q, k, v = draw(cell, seed=1, device="cpu")
    launch = artifact_launch(find_or_build(plan)[0], q, k, v, cell.scale * 1.02, shape.ctas)
    emulate(launch)
    with pytest.raises(AssertionError, match="frobenius"):
        own_forward.check(launch, cell, q, k, v)

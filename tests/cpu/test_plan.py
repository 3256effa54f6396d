"""A plan checks itself, and from outside: whatever is in the JSON, it is a plan or a PlanError."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from dataclasses import fields, replace
from typing import Any

import pytest

from hopwell.errors import PlanError
from hopwell.hopper.plan import (
    MAX_SHARED_BYTES,
    MBARRIER_BYTES,
    TILE_ALIGNMENT,
    HopperForwardPlan,
    OutputStorage,
    forward_plan,
    shipped_forward_plans,
)
from plan_variants import VARIANTS

PLAN = forward_plan("bfloat16", (128, 128), True)
#: Of a wrong type, also where Python calls them equal to a right value.
WRONG: list[Any] = ["128", 128.0, 2.0, 1.0, 1 + 0j, None, [], {}, "nope", float("nan")]


@pytest.mark.parametrize("plan", shipped_forward_plans(), ids=lambda plan: plan.name)
def test_plans_survive_json(plan: HopperForwardPlan) -> None:
    again = HopperForwardPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.name == plan.name


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("field", [field.name for field in fields(HopperForwardPlan)])
def test_a_field_of_a_wrong_type_is_no_plan(field: str, value: Any) -> None:
    with pytest.raises(PlanError, match=field):
        HopperForwardPlan.from_json({**PLAN.to_json(), field: value})


@pytest.mark.parametrize("field", ["stages", "q_stages"])
def test_a_bool_is_no_number_and_a_number_no_flag(field: str) -> None:
    with pytest.raises(PlanError, match=field):
        HopperForwardPlan.from_json({**PLAN.to_json(), field: True})
    with pytest.raises(PlanError, match="overlap"):
        replace(PLAN, overlap=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data", [None, [], 5, "x", {}, {1: 2, "a": 3}, {**PLAN.to_json(), "extra": 1}], ids=repr
)
def test_something_else_is_no_plan(data: Any) -> None:
    with pytest.raises(PlanError, match="plan"):
        HopperForwardPlan.from_json(data)


# -- what a plan checks of itself ----------------------------------------------------------------

#: Two warpgroups, no ping-pong to admit, registers to spare: room to change one thing at a time.
FREE = HopperForwardPlan(
    "bfloat16",
    128,
    128,
    False,
    tile_m=128,
    tile_n=64,
    ping_pong=False,
    producer_registers=24,
    consumer_registers=24,
)
#: (what the error names, a change that is refused, its neighbour that is not).
CHECKS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("dtype", {"dtype": "float32"}, {"dtype": "float16"}),
    ("head_dim", {"head_dim": 0}, {"head_dim": 32}),
    ("head_dim", {"head_dim": 112}, {"head_dim": 96}),
    ("head_dim", {"head_dim": 288}, {"head_dim": 256}),
    ("head_dim_v", {"head_dim_v": 16}, {"head_dim_v": 32}),
    ("head_dim_v", {"head_dim_v": 288}, {"head_dim_v": 256}),
    ("tile_m", {"tile_m": 32}, {"tile_m": 64}),
    ("tile_m", {"tile_m": 256}, {"tile_m": 192}),
    ("tile_n", {"tile_n": 0}, {"tile_n": 16}),
    ("tile_n", {"tile_n": 72}, {"tile_n": 80}),
    ("tile_n", {"tile_n": 272, "head_dim": 32, "head_dim_v": 32}, {"tile_n": 160}),
    ("stages", {"stages": 0, "overlap": False, "rescale": "before"}, {"stages": 3}),
    ("stages", {"stages": 9, "tile_n": 16}, {"stages": 8, "tile_n": 16}),
    ("stages", {"stages": 1}, {"stages": 1, "overlap": False, "rescale": "before"}),
    ("q_stages", {"q_stages": 0}, {"q_stages": 1}),
    ("q_stages", {"q_stages": 3, "tile_n": 16}, {"q_stages": 2, "tile_n": 16}),
    ("ping_pong", {"ping_pong": True, "tile_m": 64}, {"ping_pong": True}),
    (
        "ping_pong",
        {"ping_pong": True, "head_dim": 160, "tile_n": 16},
        {"ping_pong": True, "head_dim": 128, "tile_n": 16},
    ),
    (
        "ping_pong",
        {"ping_pong": True, "tile_m": 192, "overlap": False, "rescale": "before", "tile_n": 16},
        {"ping_pong": True, "tile_m": 192, "tile_n": 16},
    ),
    ("rescale", {"overlap": False}, {"overlap": False, "rescale": "before"}),
    ("producer_registers", {"producer_registers": 16}, {"producer_registers": 32}),
    ("producer_registers", {"producer_registers": 28}, {"producer_registers": 40}),
    ("consumer_registers", {"consumer_registers": 264}, {"consumer_registers": 232}),
    ("consumer_registers", {"consumer_registers": 236}, {"consumer_registers": 240}),
    (
        "register targets",
        {"producer_registers": 32, "consumer_registers": 240},
        {"producer_registers": 24, "consumer_registers": 240},
    ),
    (
        "output_storage",
        {"output_storage": "alias_q", "head_dim": 96},
        {"output_storage": "alias_q", "head_dim": 128},
    ),
    ("shared memory", {"tile_n": 192}, {"tile_n": 160}),
]


@pytest.mark.parametrize(("what", "bad", "good"), CHECKS)
def test_each_check_refuses_what_it_should_and_no_more(
    what: str, bad: dict[str, Any], good: dict[str, Any]
) -> None:
    with pytest.raises(PlanError) as caught:
        replace(FREE, **bad)
    assert caught.value.what == what
    assert replace(FREE, **good).name


def test_every_check_has_a_case() -> None:
    """The names that the checks of ``__post_init__`` give, read from its source."""
    source = ast.parse(textwrap.dedent(inspect.getsource(HopperForwardPlan.__post_init__)))
    calls = [node for node in ast.walk(source) if isinstance(node, ast.Call)]
    checks = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "_check"]
    named = {c.args[1].value for c in checks if isinstance(c.args[1], ast.Constant)}
    assert len(named) >= 9
    assert named <= {what for what, _, _ in CHECKS}


EVERY_PLAN = (*shipped_forward_plans(), *VARIANTS.values())


@pytest.mark.parametrize("plan", EVERY_PLAN, ids=lambda plan: plan.name)
def test_tenants_of_shared_memory_do_not_overlap(plan: HopperForwardPlan) -> None:
    """Except O in Q's rows, where the plan says so: then it stays inside one stage of them."""
    tenants = list(plan.shared_memory)
    if plan.output_storage is OutputStorage.ALIAS_Q:
        output = tenants.pop([region.name for region in tenants].index("o"))
        assert plan.region("q").offset == output.offset
        assert output.bytes <= plan.q_bytes
    assert len({region.name for region in plan.shared_memory}) == len(plan.shared_memory)
    assert all(region.bytes > 0 for region in tenants)
    for before, after in itertools.pairwise(tenants):
        assert before.end <= after.offset
    for region in plan.shared_memory:
        barrier = region.name.endswith(("_full", "_empty"))
        assert region.offset % (MBARRIER_BYTES if barrier else TILE_ALIGNMENT) == 0
    assert plan.shared_bytes_raw == sum(region.bytes for region in tenants)
    assert plan.shared_bytes_raw <= plan.shared_bytes == tenants[-1].end <= MAX_SHARED_BYTES


def test_names_are_unique() -> None:
    assert len({plan.name for plan in EVERY_PLAN}) == len(set(EVERY_PLAN)) == len(EVERY_PLAN)


def test_json_holds_every_field_and_plain_values() -> None:
    data = PLAN.to_json()
    assert set(data) == {field.name for field in fields(HopperForwardPlan)}
    assert {type(value) for value in data.values()} <= {str, int, bool}
    for name in data:
        with pytest.raises(PlanError, match="plan fields"):
            HopperForwardPlan.from_json({key: data[key] for key in data if key != name})

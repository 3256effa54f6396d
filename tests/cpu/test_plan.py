"""A plan from outside: whatever is in the JSON, it is a plan or a PlanError."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from hopwell.errors import PlanError
from hopwell.hopper.plan import HopperForwardPlan, forward_plan, shipped_forward_plans

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

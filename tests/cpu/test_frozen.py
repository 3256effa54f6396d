"""Records: what ``dataclass(frozen=True)`` promises, kept by hand."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any

import pytest

from hopwell.hopper.plan import HopperForwardPlan
from hopwell.problem import Problem

PROBLEM = Problem(1, 128, 64, 4, 2, 64, 64, "bfloat16", "cuda", 0.125, arch="sm_90")
PLAN = HopperForwardPlan("bfloat16", 128, 128, False, tile_m=128, tile_n=64)


@pytest.mark.parametrize("value", [PROBLEM, PLAN], ids=["problem", "plan"])
def test_a_record_is_its_values(value: Any) -> None:
    for same in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), replace(value)):
        assert same == value
        assert hash(same) == hash(value)
    assert replace(value, dtype="float16") != value
    assert value != asdict(value)
    assert "dtype='bfloat16'" in repr(value)


@pytest.mark.parametrize("value", [PROBLEM, PLAN], ids=["problem", "plan"])
@pytest.mark.parametrize("name", ["dtype", "other"])
def test_nothing_of_a_record_changes(value: Any, name: str) -> None:
    with pytest.raises(FrozenInstanceError, match=name):
        setattr(value, name, "float16")
    with pytest.raises(FrozenInstanceError, match=name):
        delattr(value, name)
    assert value.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((), {}),
        (("bfloat16",), {"dtype": "bfloat16"}),
        (("bfloat16", 128, 128, False, 128, 64), {"other": 1}),
        (tuple(vars(PLAN).values()) + (1,), {}),
    ],
    ids=["missing", "twice", "unknown", "too many"],
)
def test_a_constructor_takes_its_fields(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="HopperForwardPlan"):
        HopperForwardPlan(*positional, **named)

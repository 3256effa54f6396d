"""Expected from the plan beside actual from the artifact, for every plan that ships."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hopwell.compile import kernel as kernels
from hopwell.compile.compare import compare, expected
from hopwell.compile.inspect import Actual, inspect
from hopwell.hopper.plan import (
    HopperForwardPlan,
    OutputStorage,
    PSource,
    Rescale,
    TileOrder,
    forward_plan,
    shipped_forward_plans,
)
from plan_variants import VARIANTS


def inspected(plan: HopperForwardPlan) -> Actual:
    """Compiled at most once per change of sources: the cache is the user's own."""
    artifact, _ = kernels.find_or_build(plan)
    return inspect(artifact.ptx(), artifact.cubin(), artifact.manifest.shared_launched)


def broken(plan: HopperForwardPlan, actual: Actual) -> dict[str, tuple[object, object]]:
    rows = compare(expected(plan), actual)
    return {row.name: (row.expected, row.actual) for row in rows if not row.ok}


@pytest.mark.parametrize("plan", shipped_forward_plans(), ids=lambda plan: plan.name)
def test_a_shipped_kernel_is_what_its_plan_says(plan: HopperForwardPlan) -> None:
    assert broken(plan, inspected(plan)) == {}


@pytest.mark.parametrize("name", VARIANTS)
def test_so_is_every_option_that_does_not_ship(name: str) -> None:
    assert broken(VARIANTS[name], inspected(VARIANTS[name])) == {}


#: Another value of each field, whether or not the whole would be a valid plan: the comparison
#: must notice it by itself.
OTHER: dict[str, Any] = {
    "dtype": "float16",
    "head_dim": 96,
    "head_dim_v": 96,
    "causal": False,
    "tile_m": 64,
    "tile_n": 112,
    "stages": 3,
    "q_stages": 1,
    "overlap": False,
    "ping_pong": False,
    "p_source": PSource.SHARED,
    "rescale": Rescale.BEFORE,
    "tile_order": TileOrder.LEXICAL,
    "output_storage": OutputStorage.ALIAS_Q,
    "producer_registers": 32,
    "consumer_registers": 232,
}
PLAN = forward_plan("bfloat16", (128, 128), True)


@pytest.fixture(scope="module")
def actual() -> Actual:
    return inspected(PLAN)


def test_every_field_has_another_value() -> None:
    assert set(OTHER) == {field.name for field in dataclasses.fields(HopperForwardPlan)}


@pytest.mark.parametrize("field", OTHER)
def test_a_perturbed_plan_field_fails(field: str, actual: Actual) -> None:
    perturbed = object.__new__(HopperForwardPlan)
    values = {f.name: getattr(PLAN, f.name) for f in dataclasses.fields(PLAN)}
    assert values[field] != OTHER[field]
    for name, value in {**values, field: OTHER[field]}.items():
        object.__setattr__(perturbed, name, value)
    assert broken(perturbed, actual) != {}


def test_an_artifact_that_lacks_something_fails(actual: Actual) -> None:
    """Taking away or adding anything that the inspector found is noticed too."""
    changes: list[dict[str, Any]] = [
        {"mbarriers": actual.mbarriers[:-1]},
        {"named_barriers": actual.named_barriers[1:]},
        {"tensor_copies": actual.tensor_copies[:-1]},
        {"register_targets": actual.register_targets[:1]},
        {"wgmma_order": actual.wgmma_order[::-1]},
        {"wgmma_unfenced": 1},
        {"hgmma": actual.hgmma + 1},
        {"usetmaxreg": 0},
        {"registers": 255},
        {"local_accesses": 1},
        {"stack_bytes": 8},
        {"shared_launched": (actual.shared_launched or 0) + 128},
        {"threads": 512},
    ]
    for change in changes:
        assert broken(PLAN, dataclasses.replace(actual, **change)), change


def test_rows_are_ready_for_json(actual: Actual) -> None:
    for row in compare(expected(PLAN), actual):
        plain = row.to_json()
        assert isinstance(plain["expected"], str)
        assert plain["ok"] is True

"""Five hundred random problems by seed: sizes, layouts and masks that nobody thought of."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

import hopwell
from hopwell.hopper.plan import shipped_forward_plans

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend

PROBLEMS = 500
PER_TEST = 25
#: Scores of one problem: keeps the float64 reference in milliseconds.
LARGEST = 1 << 21
SCALES = (None, None, 0.05, 1.0)
SHIPPED = frozenset(plan.name for plan in shipped_forward_plans())


def _lay_out(choose: random.Random, x: torch.Tensor) -> torch.Tensor:
    """The same values in another memory layout that the kernel must take."""
    kind = choose.choice(["plain", "head major", "padded", "sequence first"])
    if kind == "head major":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "sequence first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "padded":
        batch, length, heads, dim = x.shape
        home = x.new_full((batch, length + 3, heads, dim + 8), torch.nan)
        home[:, :length, :, :dim] = x
        return home[:, :length, :, :dim]
    return x


def _problem(attend: Attend, seed: int) -> tuple[list[torch.Tensor], bool, float | None]:
    choose = random.Random(seed)
    dtype = choose.choice([torch.bfloat16, torch.float16])
    dim = 8 * choose.randint(1, 32)
    dim_v = dim if choose.random() < 0.6 else 8 * choose.randint(1, 32)
    heads_k = choose.randint(1, 4)
    heads_q = heads_k * choose.choice([1, 1, 2, 3, 4, 5, 7, 8])
    batch = choose.randint(1, 5)
    longest = max(2, int((LARGEST / (batch * heads_q)) ** 0.5))
    lengths = (choose.randint(1, longest), choose.randint(1, longest))
    if choose.random() < 0.3:
        lengths = (lengths[0], lengths[0])
    tensors = attend.draw(batch, lengths, (heads_q, heads_k), (dim, dim_v), dtype, seed)
    laid_out = [_lay_out(choose, x) for x in tensors]
    return laid_out, choose.random() < 0.5, choose.choice(SCALES)


@pytest.mark.parametrize("first", range(0, PROBLEMS, PER_TEST))
def test_random_problems(attend: Attend, first: int) -> None:
    for seed in range(first, first + PER_TEST):
        tensors, causal, scale = _problem(attend, seed)
        try:
            attend.check(*tensors, causal=causal, scale=scale)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_random_problems_use_shipped_plans_only(attend: Attend) -> None:
    for seed in range(PROBLEMS, PROBLEMS + 40):
        tensors, causal, scale = _problem(attend, seed)
        with hopwell.record_dispatch() as calls:
            hopwell.attention(*tensors, causal=causal, scale=scale)
        (ran,) = calls
        assert ran.backend == "hopper"
        assert ran.plan_name in SHIPPED

"""Plan options that no shipped plan takes give the right result too, over many tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hopwell import compile as compiler
from hopwell.errors import CompilerMissing
from hopwell.hopper import launch
from hopwell.hopper.plan import HopperForwardPlan
from hopwell.problem import Problem
from plan_variants import VARIANTS

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend

#: (batch, seqlen_q, seqlen_k, heads_q, heads_k): one block, ragged, more tiles than CTAs, no keys
#: for some rows, no keys at all.
SHAPES = (
    (1, 64, 64, 1, 1),
    (2, 200, 333, 4, 2),
    (1, 1000, 65, 3, 1),
    (30, 300, 300, 8, 8),
    (1, 2048, 2048, 5, 5),
    (2, 130, 0, 2, 2),
)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(attend: Attend, request: pytest.FixtureRequest, name: str) -> None:
    plan = VARIANTS[name]
    try:
        kernel = compiler.load(plan)
    except CompilerMissing as missing:
        absent = pytest.fail if request.config.getoption("--require-gpu") else pytest.skip
        absent(f"not in the cache, and no compiler: {missing}")
    assert kernel.symbol.startswith(plan.name)
    assert attend.executed(plan) == kernel.artifact_hash
    for shape in SHAPES:
        check(attend, plan, *shape)


def check(
    attend: Attend,
    plan: HopperForwardPlan,
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    heads_q: int,
    heads_k: int,
) -> None:
    lengths, heads, dims = (
        (seqlen_q, seqlen_k),
        (heads_q, heads_k),
        (plan.head_dim, plan.head_dim_v),
    )
    dtype = getattr(torch, plan.dtype)
    q, k, v = attend.draw(batch, lengths, heads, dims, dtype, seed=seqlen_q)
    out = q.new_full((*q.shape[:3], plan.head_dim_v), torch.nan)
    lse = torch.full((batch, heads_q, seqlen_q), torch.nan, device=attend.device)
    problem = Problem.from_tensors(q, k, v, causal=plan.causal)
    launch.run(plan, problem, q, k, v, out, lse)
    attend.compare(out, lse, (q, k, v), causal=plan.causal)

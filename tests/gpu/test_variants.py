"""Plan options that no shipped plan takes give the right result too, over many tiles."""

from __future__ import annotations

import pytest
import torch

from hopwell import compile as compiler
from hopwell.bench import accuracy
from hopwell.errors import CompilerMissing
from hopwell.hopper import launch
from hopwell.hopper.plan import HopperForwardPlan
from hopwell.problem import Problem
from plan_variants import VARIANTS

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
def test_variant(name: str) -> None:
    plan = VARIANTS[name]
    try:
        kernel = compiler.load(plan)
    except CompilerMissing as missing:
        pytest.skip(f"not in the cache, and no compiler: {missing}")
    assert kernel.symbol.startswith(plan.name)
    for shape in SHAPES:
        check(plan, *shape)


def check(
    plan: HopperForwardPlan, batch: int, seqlen_q: int, seqlen_k: int, heads_q: int, heads_k: int
) -> None:
    dtype = getattr(torch, plan.dtype)
    generator = torch.Generator("cuda").manual_seed(seqlen_q)

    def normal(length: int, heads: int, dim: int) -> torch.Tensor:
        shape = (batch, length, heads, dim)
        return torch.randn(shape, device="cuda", generator=generator).to(dtype)

    wanted = torch.full((batch, heads_q, seqlen_q), torch.nan, device="cuda")
    q = normal(seqlen_q, heads_q, plan.head_dim)
    k = normal(seqlen_k, heads_k, plan.head_dim)
    v = normal(seqlen_k, heads_k, plan.head_dim_v)
    out = torch.full_like(q, torch.nan)
    problem = Problem.from_tensors(q, k, v, causal=plan.causal)
    launch.run(plan, problem, q, k, v, out, wanted)
    scale = plan.head_dim**-0.5
    pairs = accuracy.spread_pairs(batch, heads_q, 4096)
    expected = accuracy.reference(q, k, v, causal=plan.causal, scale=scale, pairs=pairs)
    allowed = accuracy.budget(q, k, v, expected, causal=plan.causal, scale=scale)
    broken = allowed.broken_by(accuracy.errors(out, wanted, expected))
    assert not broken, f"{plan.name} {(batch, seqlen_q, seqlen_k, heads_q, heads_k)}: {broken}"

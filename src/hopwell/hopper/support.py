"""What the Hopper forward takes: its rows of the support table, and the plan for a problem."""

from __future__ import annotations

from functools import cache

from hopwell.hopper.plan import BUCKETS, DTYPES, HopperForwardPlan, bucket_of, forward_plan
from hopwell.predicate import Predicate
from hopwell.problem import Problem

#: The kernel counts in 32 bits, and looks past the end by less than a tile or a wave of CTAs
#: (``wave * grid + cta``, ``block * tile_n + column``): those sums must not wrap either.
INDEX_LIMIT = (1 << 31) - (1 << 16)
#: Asked for twice by each decision, and a plan validates itself at length.
_shipped = cache(forward_plan)


def _strides_of(name: str) -> Predicate:
    return Predicate(
        f"{name}_strides",
        "base address and strides multiples of 16 bytes, strides under 2^40 bytes",
        lambda p: getattr(p, f"{name}_strides") == "tma",
        lambda p: f"{name} that the tensor copy engine cannot address",
    )


def plan_of(problem: Problem) -> HopperForwardPlan | None:
    """The shipped plan of a problem's bucket and dtype, or None without one."""
    bucket = bucket_of(problem.head_dim, problem.head_dim_v)
    if bucket is None or problem.dtype not in DTYPES:
        return None
    return _shipped(problem.dtype, bucket, problem.mask.is_causal)


def _extents(p: Problem) -> tuple[int, ...]:
    return (p.batch, p.seqlen_q, p.seqlen_k, p.heads_q, p.heads_k)


def _tiles_fit(p: Problem) -> bool:
    plan = plan_of(p)
    return plan is None or tile_count(plan, p) < INDEX_LIMIT


def tile_count(plan: HopperForwardPlan, problem: Problem) -> int:
    """Output tiles of a problem under a plan."""
    return -(-problem.seqlen_q // plan.tile_m) * problem.heads_q * problem.batch


#: What a problem must satisfy to run on a Hopper kernel.
PREDICATES = (
    Predicate("device", "cuda", lambda p: p.device == "cuda", lambda p: p.device),
    Predicate("arch", "sm_90", lambda p: p.arch == "sm_90", lambda p: p.arch),
    Predicate("dtype", " or ".join(DTYPES), lambda p: p.dtype in DTYPES, lambda p: p.dtype),
    Predicate(
        "head_dims",
        "inside one of the buckets " + ", ".join(str(bucket) for bucket in BUCKETS),
        lambda p: bucket_of(p.head_dim, p.head_dim_v) is not None,
        lambda p: (p.head_dim, p.head_dim_v),
    ),
    Predicate(
        "head_dim_multiple",
        "head_dim and head_dim_v multiples of 8",
        lambda p: p.head_dim % 8 == 0 and p.head_dim_v % 8 == 0,
        lambda p: (p.head_dim, p.head_dim_v),
    ),
    Predicate(
        "mask",
        "full or causal",
        lambda p: p.mask.is_full or p.mask.is_causal,
        lambda p: p.mask,
    ),
    Predicate("softcap", "none", lambda p: p.softcap is None, lambda p: p.softcap),
    Predicate("sink", "none", lambda p: not p.sink, lambda p: "a sink"),
    _strides_of("q"),
    _strides_of("k"),
    _strides_of("v"),
    Predicate(
        "extents",
        "batch, lengths and heads under 2^31 - 2^16",
        lambda p: max(_extents(p)) < INDEX_LIMIT,
        _extents,
    ),
    Predicate(
        "tiles", "fewer than 2^31 - 2^16 output tiles", _tiles_fit, lambda p: "as many or more"
    ),
    Predicate(
        "gradient",
        "none (the backward is not there yet)",
        lambda p: not p.needs_grad,
        lambda p: "an input that requires grad",
    ),
)

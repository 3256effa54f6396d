"""Who takes a problem and who refuses it: the support table, explanations and records."""

from __future__ import annotations

import contextvars
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

import hopwell
from hopwell import dispatch
from hopwell.dispatch import SUPPORT, Choice, choose, record_dispatch
from hopwell.errors import GradientUnsupported, HopwellError, InputError, UnsupportedProblem
from hopwell.hopper.plan import bucket_of, shipped_forward_plans
from hopwell.hopper.support import INDEX_LIMIT
from hopwell.masks import Mask
from hopwell.problem import Problem, stride_class

TAKEN = Problem(
    batch=2,
    seqlen_q=1000,
    seqlen_k=900,
    heads_q=12,
    heads_k=4,
    head_dim=128,
    head_dim_v=128,
    dtype="bfloat16",
    device="cuda",
    scale=0.1,
    arch="sm_90",
)

#: For each predicate of the Hopper backend, a change that only it refuses.
REFUSED: dict[str, dict[str, Any]] = {
    "device": {"device": "cpu"},
    "arch": {"arch": "sm_100"},
    "dtype": {"dtype": "float32"},
    "head_dims": {"head_dim": 264},
    "head_dim_multiple": {"head_dim_v": 100},
    "mask": {"mask": Mask(64, 0)},
    "softcap": {"softcap": 30.0},
    "sink": {"sink": True},
    "q_strides": {"q_strides": "other"},
    "k_strides": {"k_strides": "other"},
    "v_strides": {"v_strides": "other"},
    "extents": {"seqlen_k": INDEX_LIMIT},
    "tiles": {"batch": 1 << 20, "heads_q": 4096},
    "gradient": {"needs_grad": True},
}


def test_the_changes_below_cover_the_table() -> None:
    assert [row.name for row in SUPPORT["hopper"]] == list(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_each_predicate_refuses_alone_and_by_name(name: str) -> None:
    assert choose(TAKEN).backend == "hopper"
    problem = replace(TAKEN, **REFUSED[name])
    assert [row.predicate for row in dispatch.refusals(problem)["hopper"]] == [name]
    kind = GradientUnsupported if name == "gradient" else UnsupportedProblem
    with pytest.raises(kind) as caught:
        choose(problem, "hopper")
    if isinstance(caught.value, UnsupportedProblem):
        assert name in str(caught.value)
    fallback = choose(problem, "hopper", "torch")
    assert fallback.backend == "torch"
    assert fallback.plan is None
    assert fallback.fallback is not None
    assert [row.predicate for row in fallback.fallback] == [name]


@pytest.mark.parametrize(
    "change",
    [
        {"mask": Mask(None, 0)},
        {"mask": Mask(899, 999)},  # hides nothing at these lengths
        {"mask": Mask(4096, 0)},
        {"heads_q": 7, "heads_k": 7},
        {"heads_q": 35, "heads_k": 5},
        {"heads_q": 9, "heads_k": 1},
        {"head_dim": 8, "head_dim_v": 256},
        {"head_dim": 192},
        {"head_dim": 40, "head_dim_v": 72},
        {"batch": 0},
        {"seqlen_q": 0},
        {"seqlen_k": 0},
        {"heads_q": 0, "heads_k": 0},
        {"batch": 65_536},
        {"dtype": "float16"},
        {"return_lse": True},
        {"deterministic": True},
    ],
)
def test_what_the_kernel_takes(change: dict[str, Any]) -> None:
    problem = replace(TAKEN, **change)
    choice = choose(problem)
    assert choice.backend == "hopper"
    assert choice.plan is not None
    assert choice.plan.causal == problem.mask.is_causal


@pytest.mark.parametrize(
    ("fits", "over"),
    [
        ({"seqlen_k": INDEX_LIMIT - 1}, {"seqlen_k": INDEX_LIMIT}),
        ({"batch": INDEX_LIMIT - 1}, {"batch": INDEX_LIMIT}),  # and as many tiles
        ({"batch": INDEX_LIMIT // 4 - 1, "heads_q": 4}, {"batch": INDEX_LIMIT // 4, "heads_q": 4}),
    ],
)
def test_what_the_kernel_adds_to_an_index_never_wraps(
    fits: dict[str, Any], over: dict[str, Any]
) -> None:
    """The kernel looks past the last tile by a wave, past the last row or key by a tile."""
    small = replace(TAKEN, seqlen_q=1, heads_q=1, heads_k=1)
    assert choose(replace(small, **fits)).backend == "hopper"
    with pytest.raises(UnsupportedProblem, match=r"extents|tiles"):
        choose(replace(small, **over))
    for plan in shipped_forward_plans():
        assert INDEX_LIMIT + max(plan.tile_m, plan.tile_n) < 1 << 31
    most_ctas = 1 << 12  # no GPU has as many multiprocessors
    assert INDEX_LIMIT + 2 * most_ctas < 1 << 31


def test_random_problems_need_no_plan_outside_the_shipped_ones() -> None:
    shipped = set(shipped_forward_plans())
    assert len(shipped) <= 64
    draw = random.Random(0)
    taken = 0
    for _ in range(1000):
        heads_k = draw.randint(1, 16)
        problem = replace(
            TAKEN,
            batch=draw.randint(0, 70_000),
            seqlen_q=draw.randint(0, 100_000),
            seqlen_k=draw.randint(0, 100_000),
            heads_k=heads_k,
            heads_q=heads_k * draw.randint(1, 9),
            head_dim=draw.randint(1, 40) * 8,
            head_dim_v=draw.randint(1, 40) * 8,
            dtype=draw.choice(["bfloat16", "float16"]),
            mask=draw.choice([Mask(), Mask(None, 0)]),
        )
        if not dispatch.refusals(problem)["hopper"]:
            plan = choose(problem).plan
            assert plan in shipped
            assert plan.head_dim >= problem.head_dim
            assert plan.head_dim_v >= problem.head_dim_v
            taken += 1
    assert taken > 300


def test_the_smallest_bucket_that_holds_both_dimensions() -> None:
    assert bucket_of(40, 72) == (96, 96)
    assert bucket_of(192, 128) == (192, 128)
    assert bucket_of(192, 136) == (192, 192)
    assert bucket_of(257, 8) is None


def test_the_cpu_takes_everything_on_a_cpu() -> None:
    problem = replace(
        TAKEN,
        device="cpu",
        arch=None,
        dtype="float64",
        head_dim=3,
        mask=Mask(3, 9),
        softcap=2.0,
        sink=True,
        needs_grad=True,
        q_strides="other",
    )
    assert choose(problem) == Choice("cpu")
    with pytest.raises(UnsupportedProblem, match="device"):
        choose(TAKEN, "cpu")


@pytest.mark.parametrize(
    "change",
    [
        {"batch": -1},
        {"seqlen_k": True},
        {"head_dim": 0},
        {"heads_q": 5},
        {"heads_k": 0},
        {"dtype": "int8"},
        {"scale": 0.0},
        {"softcap": -1.0},
        {"device": "GPU 0"},
        {"device": None},
        {"arch": None},
        {"arch": "hopper"},
        {"arch": 90},
        {"q_strides": "contiguous"},
        {"v_strides": None},
        {"sink": 1},
        {"return_lse": "yes"},
        {"deterministic": None},
        {"needs_grad": 0},
    ],
)
def test_a_problem_checks_itself(change: dict[str, Any]) -> None:
    with pytest.raises(HopwellError):
        replace(TAKEN, **change)


def test_masks_are_canonical() -> None:
    full = Problem(1, 1, 7, 1, 1, 8, 8, "float32", "cpu", 1.0, mask=Mask(None, 0))
    assert full.mask == Mask()  # the only query is the last one
    assert replace(TAKEN, mask=Mask(899, 0)).mask.is_causal
    assert not replace(TAKEN, mask=Mask(898, 0)).mask.is_causal
    assert replace(TAKEN, mask=Mask(None, 998)).mask == Mask(None, 998)
    assert replace(TAKEN, mask=Mask(None, 999)).mask == Mask()
    for mask in (Mask(), Mask(3, 0), Mask(None, 2), Mask(0, 0), Mask(20, 20)):
        small = mask.canonical(9, 5)
        assert [mask.keys(i, 9, 5) for i in range(9)] == [small.keys(i, 9, 5) for i in range(9)]


# -- stride classes --------------------------------------------------------------------------


def test_stride_classes() -> None:
    x = torch.zeros(2, 16, 4, 64, dtype=torch.bfloat16)
    assert stride_class(x) == "tma"
    assert stride_class(x.transpose(1, 2)) == "tma"
    assert stride_class(x[:1, :, :1].expand(5, 16, 4, 64)) == "tma"
    assert stride_class(x[..., :40]) == "tma"
    flat = torch.zeros(1 << 16, dtype=torch.bfloat16)
    assert stride_class(flat[1:].as_strided((2, 4, 2, 8), (64, 16, 8, 1))) == "other"  # base
    assert stride_class(flat.as_strided((2, 4, 2, 8), (64, 16, 12, 1))) == "other"
    assert stride_class(flat.as_strided((1, 4, 1, 8), (3, 16, 5, 1))) == "tma"  # size 1
    far = torch.zeros(1, dtype=torch.bfloat16, device="meta").as_strided((1, 0, 1, 8), (1, 1, 1, 1))
    assert stride_class(far) == "tma"


# -- explain ---------------------------------------------------------------------------------


def test_explain() -> None:
    q = torch.randn(1, 8, 2, 64, dtype=torch.bfloat16)
    said = hopwell.explain(q, q, q, causal=True)
    assert said.choice == Choice("cpu")
    assert [row.predicate for row in said.refusals["hopper"]] == ["device", "arch"]
    assert str(said).splitlines() == [
        "hopper: refuses",
        "  device: expected cuda, got cpu",
        "  arch: expected sm_90, got None",
        "cpu: runs PyTorch",
    ]
    data = json.loads(json.dumps(said.to_json()))
    assert data["backend"] == "cpu"
    assert data["refusals"]["hopper"][0]["predicate"] == "device"
    assert data["problem"]["mask"] == {"left": None, "right": 0}

    nobody = hopwell.explain(q, q, q, backend="hopper")
    assert nobody.choice is None
    assert "this call raises" in str(nobody)
    assert "fallback" in str(hopwell.explain(q, q, q, backend="hopper", fallback="torch"))


def test_explain_names_the_plan() -> None:
    said = dispatch.explain(TAKEN)
    assert said.choice is not None
    assert said.choice.plan is not None
    assert f"hopper: runs {said.choice.plan.name}" in str(said)
    assert said.to_json()["plan"] == said.choice.plan.to_json()
    refused = dispatch.explain(replace(TAKEN, needs_grad=True))
    assert refused.choice is None
    assert "gradient" in str(refused)


# -- records ---------------------------------------------------------------------------------


def test_records_say_what_ran() -> None:
    q = torch.randn(1, 8, 2, 64, dtype=torch.bfloat16)
    hopwell.attention(q, q, q)
    with record_dispatch() as calls:
        hopwell.attention(q, q, q)
        hopwell.attention(q, q, q, softcap=2.0)
        hopwell.attention(q, q, q, backend="hopper", fallback="torch")
        with pytest.raises(UnsupportedProblem):
            hopwell.attention(q, q, q, backend="hopper")
    hopwell.attention(q, q, q)
    assert [call.backend for call in calls] == ["cpu", "cpu", "torch"]
    assert calls[0].fallback is None
    assert calls[1].problem.softcap == 2.0
    assert calls[2].fallback is not None
    assert [row.predicate for row in calls[2].fallback] == ["device", "arch"]
    assert calls[2].kernel_symbol is None
    assert json.loads(json.dumps(calls[2].to_json()))["fallback"][0]["actual"] == "cpu"


def test_records_nest() -> None:
    q = torch.randn(1, 8, 2, 8)
    with record_dispatch() as outer:
        hopwell.attention(q, q, q)
        with record_dispatch() as inner:
            hopwell.attention(q, q, q, causal=True)
    assert len(outer) == 2
    assert inner == outer[1:]


def test_threads_record_their_own_calls() -> None:
    start = threading.Barrier(4)

    def work(heads: int) -> list[int]:
        q = torch.randn(1, 8, heads, 8)
        start.wait()
        with record_dispatch() as calls:
            for _ in range(50):
                hopwell.attention(q, q, q, causal=True)
        return [call.problem.heads_q for call in calls]

    with ThreadPoolExecutor(4) as pool, record_dispatch() as here:
        for heads, seen in zip(range(1, 5), pool.map(work, range(1, 5)), strict=True):
            assert seen == [heads] * 50
    assert here == []


def test_a_copied_context_records_here() -> None:
    q = torch.randn(1, 8, 2, 8)
    with record_dispatch() as calls:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(hopwell.attention, q, q, q))
        thread.start()
        thread.join()
    assert len(calls) == 1


def test_unknown_names_of_backend_and_fallback() -> None:
    with pytest.raises(InputError, match="backend"):
        choose(TAKEN, "torch")
    with pytest.raises(InputError, match="fallback"):
        dispatch.explain(TAKEN, fallback="cpu")

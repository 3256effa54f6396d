"""The contracts of ``hopwell.attention`` on the CPU backend, against the definition."""

from __future__ import annotations

import subprocess
import sys
from math import inf, log, nan
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hopwell import attention, cpu, data, reference

BOUND = st.none() | st.integers(0, 25)
MASKS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (5, 0)},
    {"window": (0, 3)},
    {"window": (2, None), "causal": True},
]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def check(q: Tensor, k: Tensor, v: Tensor, tolerance: float = 1e-5, **options: Any) -> None:
    """out, lse and their dtypes and shapes are the definition's."""
    out, lse = attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = reference.attention(q, k, v, **options)
    assert out.dtype == q.dtype
    assert out.shape == (*q.shape[:3], v.shape[3])
    assert out.is_contiguous()
    assert lse.dtype == torch.float32
    assert lse.shape == (q.shape[0], q.shape[2], q.shape[1])
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    # assert_close takes -inf as equal to -inf only.
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-5)


@given(
    batch=st.integers(1, 3),
    seqlen_q=st.integers(1, 40),
    seqlen_k=st.integers(0, 40),
    heads_k=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 5]),
    head_dim=st.integers(1, 40),
    head_dim_v=st.integers(1, 40),
    causal=st.booleans(),
    window=st.none() | st.tuples(BOUND, BOUND),
    softcap=st.none() | st.floats(0.5, 50),
    scale=st.none() | st.floats(0.01, 2),
    sink=st.booleans(),
    at_once=st.sampled_from([1, 700, 1 << 24]),
)
def test_any_problem(
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    heads_k: int,
    group: int,
    head_dim: int,
    head_dim_v: int,
    at_once: int,
    sink: bool,
    **options: Any,
) -> None:
    heads_q = heads_k * group
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_SCORES_AT_ONCE", at_once)
        check(
            normal(batch, seqlen_q, heads_q, head_dim),
            normal(batch, seqlen_k, heads_k, head_dim),
            normal(batch, seqlen_k, heads_k, head_dim_v),
            sink=normal(heads_q) if sink else None,
            **options,
        )


# -- empty and short work --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [
        ((0, 5, 4, 8), (0, 7, 2, 8)),
        ((2, 0, 4, 8), (2, 7, 2, 8)),
        ((2, 0, 4, 8), (2, 0, 2, 8)),
        ((2, 5, 0, 8), (2, 7, 2, 8)),
        ((2, 5, 0, 8), (2, 7, 0, 8)),
    ],
)
def test_empty_work_gives_empty_results(q_shape: Any, k_shape: Any) -> None:
    q, k = torch.ones(q_shape, requires_grad=True), torch.ones(k_shape, requires_grad=True)
    out, lse = attention(q, k, k, return_lse=True)
    assert out.shape == q_shape
    assert lse.shape == (q_shape[0], q_shape[2], q_shape[1])
    (out.sum() + lse.sum()).backward()
    assert q.grad is not None
    assert k.grad is not None
    assert not k.grad.any()


@pytest.mark.parametrize("causal", [False, True])
def test_no_keys(causal: bool) -> None:
    q, k = normal(2, 5, 4, 8), normal(2, 0, 2, 8)
    out, lse = attention(q, k, k, causal=causal, return_lse=True)
    assert not out.any()
    assert (lse == -inf).all()
    sink = normal(4)
    out, lse = attention(q, k, k, causal=causal, sink=sink, return_lse=True)
    assert not out.any()
    assert torch.equal(lse, sink[None, :, None].expand(2, 4, 5))


@pytest.mark.parametrize("seqlen_q", [1, 2])
@pytest.mark.parametrize("seqlen_k", [1, 2, 3])
@pytest.mark.parametrize("options", MASKS)
def test_short_work(seqlen_q: int, seqlen_k: int, options: dict[str, Any]) -> None:
    check(
        normal(2, seqlen_q, 2, 8), normal(2, seqlen_k, 2, 8), normal(2, seqlen_k, 2, 8), **options
    )


# -- masking and log-sum-exp -----------------------------------------------------------------


def test_first_rows_see_nothing_when_queries_outnumber_keys() -> None:
    q, k, v = normal(1, 9, 2, 8), normal(1, 4, 2, 8), normal(1, 4, 2, 8)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :5].any()
    assert (lse[:, :, :5] == -inf).all()
    assert lse[:, :, 5:].isfinite().all()
    check(q, k, v, causal=True)


def test_rows_that_see_nothing_stay_zero_beside_nan() -> None:
    q, k, v = normal(1, 9, 2, 8), normal(1, 4, 2, 8), normal(1, 4, 2, 8)
    k[:, 0], v[:, 0] = torch.nan, torch.nan
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert not out[:, :5].any()
    assert (lse[:, :, :5] == -inf).all()


@pytest.mark.parametrize(
    ("options", "lengths", "hidden"),
    [
        (dict(window=(3, 0)), (1, 40), 36),
        (dict(window=(7, None)), (4, 40), 29),
        (dict(window=(5, 2)), (2, 40), 33),
        (dict(causal=True, window=(0, None)), (1, 40), 39),
    ],
    ids=str,
)
def test_keys_that_no_query_sees_never_matter(
    options: dict[str, Any], lengths: tuple[int, int], hidden: int
) -> None:
    """The keys before the first query's window hold NaN; the next one is the first to matter."""
    q = normal(1, lengths[0], 2, 8)
    k, v = normal(1, lengths[1], 2, 8), normal(1, lengths[1], 2, 8)
    expected = attention(q, k, v, **options)
    poisoned_k, poisoned_v = k.clone(), v.clone()
    poisoned_k[:, :hidden], poisoned_v[:, :hidden] = torch.nan, torch.nan
    assert torch.equal(expected, attention(q, poisoned_k, poisoned_v, **options))
    poisoned_k[:, hidden] = torch.nan
    assert attention(q, poisoned_k, poisoned_v, **options).isnan().any()


@pytest.mark.parametrize("level", [-120.0, -3e4, 120.0, 3e4])
@pytest.mark.parametrize("options", MASKS)
def test_logits_far_from_zero(level: float, options: dict[str, Any]) -> None:
    """A mask scored as 0, or by a finite sentinel, shows when all real logits are far below."""
    q = torch.ones(1, 30, 1, 4)
    k = torch.full((1, 30, 1, 4), level / 4) + 0.25 * torch.randn(1, 30, 1, 4)
    v = normal(1, 30, 1, 4)
    out, lse = attention(q, k, v, scale=1.0, return_lse=True, **options)
    expected, expected_lse = reference.attention(q, k, v, scale=1.0, **options)
    # float32 logits of this size are exact to level * 2^-24.
    budget = 8 * max(1.0, abs(level)) * 2**-24
    torch.testing.assert_close(lse.double(), expected_lse, rtol=0, atol=max(budget, 1e-5))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=max(8 * budget, 1e-5))


@pytest.mark.parametrize("options", [*MASKS, {"softcap": 5.0}, {"scale": 1e30}], ids=str)
@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_what_is_not_finite_is_not_hidden(where: str, value: float, options: Any) -> None:
    """PyTorch's fused kernel gives zeros and a log-sum-exp of 0 for a row that is NaN."""
    tensors = {"q": normal(2, 5, 4, 8), "k": normal(2, 5, 2, 8).abs(), "v": normal(2, 5, 2, 8)}
    tensors[where][:, 2] = value
    q, k, v = tensors.values()
    out, lse = attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = reference.attention(q, k, v, **options)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("options", MASKS, ids=str)
def test_rows_whose_scores_are_all_minus_infinity_are_empty(options: Any) -> None:
    q, k, v = normal(1, 4, 2, 8).abs(), torch.full((1, 4, 2, 8), -inf), normal(1, 4, 2, 8)
    out, lse = attention(q, k, v, return_lse=True, **options)
    assert (out == 0).all()
    assert (lse == -inf).all()


def test_log_sum_exp_is_natural() -> None:
    q, k = torch.zeros(1, 3, 1, 8), normal(1, 50, 1, 8)
    _, lse = attention(q, k, k, return_lse=True)
    torch.testing.assert_close(lse, torch.full_like(lse, log(50)))


def test_causal_and_windows_are_what_they_say() -> None:
    """Values name their key, so that the output lists what a row sees."""
    k = torch.zeros(1, 6, 1, 1)
    v = torch.eye(6).reshape(1, 6, 1, 6)

    def seen(seqlen_q: int, **options: Any) -> list[list[int]]:
        out = attention(torch.zeros(1, seqlen_q, 1, 1), k, v, **options)[0, :, 0]
        return [row.nonzero().flatten().tolist() for row in out]

    assert seen(3, causal=True) == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert seen(3, window=(1, 0)) == [[2, 3], [3, 4], [4, 5]]
    assert seen(3, window=(0, 1)) == [[3, 4], [4, 5], [5]]
    assert seen(3, window=(0, 0)) == [[3], [4], [5]]
    assert seen(3, window=(None, 1)) == [[0, 1, 2, 3, 4], [*range(6)], [*range(6)]]
    assert seen(3, window=(1, 2), causal=True) == [[2, 3], [3, 4], [4, 5]]
    assert seen(8, window=(1, 0)) == [[], [], [0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]


def test_sink_is_in_natural_units_and_not_scaled() -> None:
    q, k, v = torch.zeros(1, 2, 2, 8), normal(1, 3, 2, 8), torch.ones(1, 3, 2, 8)
    sink = torch.tensor([0.0, log(5.0)])
    out, lse = attention(q, k, v, sink=sink, scale=7.0, return_lse=True)
    # Three keys of weight one beside a sink of weight one, or five.
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor([3 / 4, 3 / 8]))
    torch.testing.assert_close(lse[0, :, 0], torch.tensor([log(4.0), log(8.0)]))
    nothing = torch.full((2,), -inf)
    torch.testing.assert_close(attention(q, k, v, sink=nothing), attention(q, k, v))


def test_softcap_bounds_the_logits() -> None:
    q, k = 100 * normal(1, 5, 1, 8), 100 * normal(1, 7, 1, 8)
    _, lse = attention(q, k, k, softcap=2.0, return_lse=True)
    assert lse.abs().max() <= 2 + log(7) + 1e-5
    check(q, k, k, softcap=2.0)


# -- layout and size -------------------------------------------------------------------------


@pytest.mark.parametrize("options", MASKS)
def test_strides_are_honoured(options: dict[str, Any]) -> None:
    heads_first = normal(2, 4, 21, 16).transpose(1, 2)
    packed = normal(2, 21, 3, 4, 16)
    sliced = normal(2, 50, 4, 24)[:, 3:45:2, :, 4:20]
    expanded = normal(1, 21, 1, 16).expand(2, 21, 4, 16)
    odd = normal(2, 21, 4, 16)[:1].as_strided((1, 21, 4, 16), (7, 64, 16, 1)).expand(2, -1, -1, -1)
    for q, k, v in (
        (heads_first, heads_first, heads_first),
        (packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]),
        (sliced, heads_first, expanded),
        (expanded, odd, sliced),
        (odd, expanded, packed[:, :, 1]),
    ):
        assert not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous())
        want = attention(q.contiguous(), k.contiguous(), v.contiguous(), **options)
        torch.testing.assert_close(attention(q, k, v, **options), want, rtol=1e-6, atol=1e-6)


def test_offsets_beyond_32_bits() -> None:
    # 4 GiB of address space, of which a few pages are ever touched.
    far = torch.empty((1 << 31) + 4096, dtype=torch.bfloat16)
    k = far.as_strided((2, 16, 2, 8), ((1 << 31), 16, 8, 1))
    k.copy_(normal(2, 16, 2, 8))
    q = normal(2, 16, 2, 8, dtype=torch.bfloat16)
    assert torch.equal(attention(q, k, k), attention(q, k.contiguous(), k.contiguous()))
    check(q, k, k, tolerance=1e-2)


def test_a_batch_beyond_a_grid_dimension() -> None:
    q = normal(70_000, 1, 1, 8)
    k = normal(70_000, 2, 1, 8)
    check(q, k, k)


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(40, 40), (72, 80), (96, 64), (192, 128)])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_odd_head_dimensions_and_ratios(head_dim: int, head_dim_v: int, group: int) -> None:
    q = normal(1, 33, 2 * group, head_dim)
    check(q, normal(1, 45, 2, head_dim), normal(1, 45, 2, head_dim_v), causal=True)


def test_scores_never_exist_as_a_whole() -> None:
    """16,384 squared scores would be 1 GiB in float32."""
    code = """
import resource, torch, hopwell
q = torch.randn(1, 16384, 1, 8)
hopwell.attention(q[:, :8], q, q, softcap=5.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
hopwell.attention(q, q, q, softcap=5.0, causal=True)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 600


# -- state and precision ---------------------------------------------------------------------


def test_calls_do_not_remember_each_other() -> None:
    """Shapes in sequence, with another's memory freed in between, equal themselves alone."""
    shapes = [(1, 8, 2), (3, 40, 4), (1, 1, 1), (2, 33, 6), (1, 8, 2)]
    inputs = [tuple(normal(b, s, h, 16) for _ in range(3)) for b, s, h in shapes]
    first = [attention(*x, causal=True) for x in inputs]
    for x, want in reversed(list(zip(inputs, first, strict=True))):
        torch.full((1 << 16,), torch.nan)
        assert torch.equal(attention(*x, causal=True), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", MASKS)
@pytest.mark.parametrize("outlier", [1.0, 30.0])
def test_error_is_that_of_rounding_the_result(
    dtype: torch.dtype, options: dict[str, Any], outlier: float
) -> None:
    """Against float64: hardly more than the best that this output dtype can hold."""
    q, k, v = (normal(2, 130, 4, 64, dtype=dtype) for _ in range(3))
    k[..., 7] *= outlier  # real activations have such channels, Gaussian inputs do not
    exact, exact_lse = reference.attention(q, k, v, **options)
    out, lse = attention(q, k, v, return_lse=True, **options)
    best = (exact.to(dtype).double() - exact).norm()
    assert (out.double() - exact).norm() <= 1.05 * best
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layer", data.provenance()["layers"])
def test_recorded_activations(layer: int, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in data.recorded(layer))
    exact, exact_lse = reference.attention(q, k, v)
    out, lse = attention(q, k, v, return_lse=True)
    best = exact.to(dtype).double() - exact
    assert (out.double() - exact).norm() <= 1.05 * best.norm()
    # A mean over all rows would hide one that is broken.
    worst = ((out.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max()
    assert worst <= 1.25 * (best.norm(dim=-1) / exact.norm(dim=-1)).max()
    assert ((lse - exact_lse).abs() <= 1e-4 * (exact_lse.abs() / 64).clamp(min=1)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_no_worse_than_sdpa(causal: bool) -> None:
    q, k, v = (normal(2, 200, 4, 64, dtype=torch.bfloat16) for _ in range(3))
    exact, _ = reference.attention(q, k, v, causal=causal)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    peer = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=causal)
    peer = peer.transpose(1, 2)
    ours = attention(q, k, v, causal=causal)
    assert (ours.double() - exact).norm() <= 1.1 * (peer.double() - exact).norm()


def test_deterministic_is_bitwise() -> None:
    q, k, v = (normal(2, 65, 4, 32).requires_grad_() for _ in range(3))
    runs = []
    for _ in range(30):
        out = attention(q, k, v, causal=True, deterministic=True)
        runs.append((out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))

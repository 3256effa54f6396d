"""The instrument that judges kernels must itself be right, and must see what is wrong."""

from __future__ import annotations

from math import log

import pytest
import torch

from hopwell import reference
from hopwell.bench import accuracy

CASES = pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "causal"),
    [(70, 70, False), (70, 70, True), (40, 90, True), (90, 40, True), (1, 1, True)],
)
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw(seqlen_q: int, seqlen_k: int, dtype: torch.dtype = torch.bfloat16) -> Triple:
    generator = torch.Generator().manual_seed(seqlen_q * 1000 + seqlen_k)
    q = torch.randn(2, seqlen_q, 6, 16, generator=generator)
    k = torch.randn(2, seqlen_k, 2, 16, generator=generator)
    v = torch.randn(2, seqlen_k, 2, 24, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def by_hand(inputs: Triple, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and log-sum-exp in float64 by one plain softmax."""
    q, k, v = (x.double() for x in inputs)
    k, v = k.repeat_interleave(3, 2), v.repeat_interleave(3, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.25
    if causal:
        rows, columns = scores.shape[2:]
        visible = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num()
    return torch.einsum("bhij,bjhd->bihd", weights, v), torch.logsumexp(scores, -1)


@CASES
@pytest.mark.parametrize("chunk", [1, 500, 8200, 2**24])
def test_reference_is_attention(
    seqlen_q: int, seqlen_k: int, causal: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "SCORES_AT_ONCE", chunk)
    inputs = draw(seqlen_q, seqlen_k)
    expected = accuracy.reference(*inputs, causal=causal, scale=0.25)
    out, lse = by_hand(inputs, causal)
    found = accuracy.errors(out, lse, expected)
    assert found.frobenius < 1e-14
    assert found.row_max < 1e-13
    assert found.lse is not None
    assert found.lse < 1e-13


def test_no_key_gives_zero_and_minus_infinity() -> None:
    expected = accuracy.reference(*draw(5, 0), causal=False, scale=0.25)
    assert not expected.o.any()
    assert (expected.lse == -torch.inf).all()


@CASES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rounded_result_fits_the_budget(
    seqlen_q: int, seqlen_k: int, causal: bool, dtype: torch.dtype
) -> None:
    inputs = draw(seqlen_q, seqlen_k, dtype)
    expected = accuracy.reference(*inputs, causal=causal, scale=0.25)
    allowed = accuracy.budget(*inputs, expected, causal=causal, scale=0.25)
    out, lse = by_hand(inputs, causal)
    assert not allowed.broken_by(accuracy.errors(out.to(dtype), lse.float(), expected))
    assert allowed.frobenius < 4 * accuracy.unit_roundoff(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_unit_roundoff_is_the_largest_relative_error_of_rounding(dtype: torch.dtype) -> None:
    unit = accuracy.unit_roundoff(dtype)
    x = torch.linspace(1, 2, 100_001, dtype=torch.float64)
    error = float(((x.to(dtype).double() - x).abs() / x).max())
    assert 0.8 * unit < error <= unit
    assert torch.tensor(1.0 + 2 * unit).to(dtype) > 1.0


def test_the_floor_is_two_roundings() -> None:
    """One query and one key: the model is exact, so the floor alone is left."""
    q, k, v = torch.ones(3, 1, 1, 1, 16, dtype=torch.bfloat16)
    expected = accuracy.reference(q, k, v, causal=False, scale=0.25)
    allowed = accuracy.budget(q, k, v, expected, causal=False, scale=0.25)
    assert allowed.frobenius == allowed.row_max == allowed.row_p999 == 2 * 2.0**-8 / 4


def test_the_model_of_a_precision_rounds_weights_and_output() -> None:
    """Against rounding by hand, relative to each row's maximum."""
    q, k, v = (x[:, :, :2] for x in draw(50, 60))
    model = accuracy.reference(q, k, v, causal=False, scale=0.25, precision="bfloat16")
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) * 0.25
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    product = torch.einsum("bhij,bjhd->bhid", weights.bfloat16().double(), v.double())
    out = (product / weights.sum(-1, keepdim=True)).bfloat16().double()
    # A weight on the border between two roundings may fall to either side.
    differing = (model.o != out.flatten(0, 1)).double().mean()
    assert differing < 0.02
    torch.testing.assert_close(model.o, out.flatten(0, 1), rtol=2**-7, atol=2**-10)


def spoil(kind: str, out: torch.Tensor, lse: torch.Tensor) -> None:
    if kind == "one element":
        out[1, 30, 4, 7] += 0.3
    elif kind == "not a number":
        out[0, 0, 0, 0] = torch.nan
    elif kind == "scaled by 2%":
        out *= 1.02
    elif kind == "unwritten row":
        out[1, -1, 5] = 0
    elif kind == "base 2":
        lse /= log(2)
    elif kind == "finite sentinel":
        lse[lse == -torch.inf] = -50000.0
    elif kind == "shifted":
        lse += 3e-4


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("one element", {"row_max"}),
        ("not a number", {"frobenius", "row_max"}),
        ("scaled by 2%", {"frobenius", "row_p999"}),
        ("unwritten row", {"row_max"}),
        ("base 2", {"lse"}),
        ("finite sentinel", {"lse"}),
        ("shifted", {"lse"}),
    ],
)
def test_every_kind_of_fault_breaks_the_budget(kind: str, names: set[str]) -> None:
    inputs = draw(90, 40)
    expected = accuracy.reference(*inputs, causal=True, scale=0.25)
    allowed = accuracy.budget(*inputs, expected, causal=True, scale=0.25)
    out, lse = by_hand(inputs, causal=True)
    out, lse = out.bfloat16(), lse.float()
    assert not allowed.broken_by(accuracy.errors(out, lse, expected))
    spoil(kind, out, lse)
    broken = {text.split()[0] for text in allowed.broken_by(accuracy.errors(out, lse, expected))}
    assert names <= broken


def test_rows_that_must_be_zero_are_zero() -> None:
    inputs = draw(90, 40)
    expected = accuracy.reference(*inputs, causal=True, scale=0.25)
    out, lse = by_hand(inputs, causal=True)
    out[0, 3, 0, 0] = 1e-20
    assert accuracy.errors(out, lse, expected).row_max == float("inf")


def test_pairs_are_spread_and_hold_both_ends() -> None:
    assert accuracy.spread_pairs(3, 5, 100) == tuple((b, h) for b in range(3) for h in range(5))
    chosen = accuracy.spread_pairs(32, 16, 7)
    assert len(chosen) == 7
    assert chosen[0] == (0, 0)
    assert chosen[-1] == (31, 15)


def test_selected_pairs_are_compared_alone() -> None:
    inputs = draw(20, 20)
    pairs = accuracy.spread_pairs(2, 6, 2)
    expected = accuracy.reference(*inputs, causal=False, scale=0.25, pairs=pairs)
    out, lse = by_hand(inputs, causal=False)
    out[0, :, 1] = 7.0  # not among the pairs
    assert accuracy.errors(out, lse, expected).frobenius < 1e-14

"""The definition against PyTorch: values by SDPA, gradients by its autograd."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hopwell import reference

Window = tuple["int | None", "int | None"]

BOUND = st.none() | st.integers(0, 12)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    heads_k = draw(st.integers(1, 3))
    return {
        "batch": draw(st.integers(1, 3)),
        "seqlen_q": draw(st.integers(1, 19)),
        "seqlen_k": draw(st.integers(1, 19)),
        "heads_k": heads_k,
        "heads_q": heads_k * draw(st.sampled_from([1, 2, 3])),
        "head_dim": draw(st.integers(1, 17)),
        "head_dim_v": draw(st.integers(1, 17)),
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.tuples(BOUND, BOUND)),
        "softcap": draw(st.none() | st.floats(0.5, 30)),
        "scale": draw(st.none() | st.floats(0.05, 3)),
        "sink": draw(st.booleans()),
    }


def tensors(call: dict[str, Any], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v and, when asked for, sink."""
    made = [
        torch.randn(call["batch"], call["seqlen_q"], call["heads_q"], call["head_dim"]),
        torch.randn(call["batch"], call["seqlen_k"], call["heads_k"], call["head_dim"]),
        torch.randn(call["batch"], call["seqlen_k"], call["heads_k"], call["head_dim_v"]),
    ]
    if call["sink"]:
        made.append(torch.randn(call["heads_q"]))
    return [x.to(dtype) for x in made]


def seen_by_loops(seqlen_q: int, seqlen_k: int, causal: bool, window: Window | None) -> Tensor:
    """The contract, word for word: bottom-right aligned, bounds inclusive."""
    seen = torch.zeros(seqlen_q, seqlen_k, dtype=torch.bool)
    left, right = window or (None, None)
    for i in range(seqlen_q):
        for j in range(seqlen_k):
            distance = j - (i + seqlen_k - seqlen_q)
            seen[i, j] = (
                (not causal or distance <= 0)
                and (left is None or distance >= -left)
                and (right is None or distance <= right)
            )
    return seen


def by_autograd(call: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, *sink: Tensor) -> Any:
    """out and lse, differentiable, in PyTorch's words and with its own softmax."""
    group = call["heads_q"] // call["heads_k"]
    scale = call["scale"] or call["head_dim"] ** -0.5
    qq, kk, vv = (x.transpose(1, 2) for x in (q, k, v))
    kk, vv = kk.repeat_interleave(group, 1), vv.repeat_interleave(group, 1)
    score = qq @ kk.mT * scale
    if call["softcap"]:
        score = call["softcap"] * torch.tanh(score / call["softcap"])
    seen = seen_by_loops(q.shape[1], k.shape[1], call["causal"], call["window"])
    alive = seen.any(1)[:, None]
    # A softmax over nothing is NaN, and so are its gradients: such rows see all, then are dropped.
    score = score.masked_fill(~(seen | ~alive), -inf)
    nothing = torch.tensor(-inf)
    if sink:
        nothing = sink[0][None, :, None].expand(score.shape[:3])
        score = torch.cat([score, nothing[..., None]], -1)
    p = torch.softmax(score, -1)[..., : k.shape[1]]
    lse = torch.where(alive[:, 0], score.logsumexp(-1), nothing)
    return torch.where(alive, p @ vv, 0.0).transpose(1, 2), lse


def options(call: dict[str, Any], *sink: Tensor) -> dict[str, Any]:
    return {
        **{name: call[name] for name in ("causal", "window", "scale", "softcap")},
        "sink": sink[0] if sink else None,
    }


@given(calls())
def test_values_and_gradients_against_autograd(call: dict[str, Any]) -> None:
    inputs = [x.requires_grad_() for x in tensors(call)]
    q, k, v, *sink = inputs
    expected, expected_lse = by_autograd(call, *inputs)
    out, lse = reference.attention(q.detach(), k.detach(), v.detach(), **options(call, *sink))
    torch.testing.assert_close(out, expected.detach(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(lse, expected_lse.detach(), rtol=1e-11, atol=1e-11)

    grad_out = torch.randn_like(out)
    grad_lse = torch.randn_like(lse)
    wanted = torch.autograd.grad((expected, expected_lse), inputs, (grad_out, grad_lse))
    got = reference.backward(grad_out, grad_lse, q, k, v, **options(call, *sink))
    for want, have in zip(wanted, got, strict=False):
        assert have is not None
        torch.testing.assert_close(have.detach(), want, rtol=1e-9, atol=1e-9)


@given(calls())
def test_values_against_sdpa(call: dict[str, Any]) -> None:
    call = {**call, "softcap": None, "sink": False}
    q, k, v = tensors(call)
    out, lse = reference.attention(q, k, v, **options(call))
    seen = seen_by_loops(q.shape[1], k.shape[1], call["causal"], call["window"])
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=seen,
        scale=call["scale"],
        enable_gqa=True,
    ).transpose(1, 2)
    alive = seen.any(1)
    torch.testing.assert_close(out[:, alive], expected[:, alive], rtol=1e-11, atol=1e-11)
    assert not out[:, ~alive].any()
    assert (lse[:, :, ~alive] == -inf).all()


def test_row_blocks_do_not_change_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = torch.randn(2, 37, 4, 8), torch.randn(2, 29, 2, 8), torch.randn(2, 29, 2, 8)
    whole = reference.attention(q, k, v, causal=True)
    grads = reference.backward(whole[0], whole[1].nan_to_num(0, 0, 0), q, k, v, causal=True)
    monkeypatch.setattr(reference, "SCORES_AT_ONCE", 1000)
    parts = reference.attention(q, k, v, causal=True)
    again = reference.backward(whole[0], whole[1].nan_to_num(0, 0, 0), q, k, v, causal=True)
    for a, b in zip((*whole, *grads[:3]), (*parts, *again[:3]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_rows_that_see_nothing_are_zero_beside_nan() -> None:
    q, k, v = torch.randn(1, 6, 2, 4), torch.randn(1, 2, 2, 4), torch.full((1, 2, 2, 4), torch.nan)
    out, lse = reference.attention(q, k, v, causal=True)
    assert not out[:, :4].any()
    assert (lse[:, :, :4] == -inf).all()
    assert out[:, 4:].isnan().all()

"""Gradients of the CPU backend: by finite differences, by definition, and where they vanish."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hopwell import attention, cpu, reference
from hopwell.errors import GradientUnsupported

BOUND = st.none() | st.integers(0, 12)


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(*shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"window": (2, 1)},
        {"window": (0, None), "softcap": 1.5},
        {"causal": True, "softcap": 0.7, "scale": 0.9},
    ],
)
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(4, 6), (6, 3), (1, 1)])
def test_gradcheck(options: dict[str, Any], with_sink: bool, seqlen_q: int, seqlen_k: int) -> None:
    q, k, v = leaves((1, seqlen_q, 4, 3), (1, seqlen_k, 2, 3), (1, seqlen_k, 2, 5))
    sinks = leaves((4,)) if with_sink else []

    def out(q: Tensor, k: Tensor, v: Tensor, *sink: Tensor) -> Any:
        return attention(q, k, v, sink=sink[0] if sink else None, **options)

    assert torch.autograd.gradcheck(out, (q, k, v, *sinks), fast_mode=True)


@given(
    seqlen_q=st.integers(1, 20),
    seqlen_k=st.integers(0, 20),
    group=st.sampled_from([1, 2, 3]),
    causal=st.booleans(),
    window=st.none() | st.tuples(BOUND, BOUND),
    softcap=st.none() | st.floats(0.5, 20),
    with_sink=st.booleans(),
    at_once=st.sampled_from([1, 150, 1 << 24]),
)
def test_through_out_and_lse(
    seqlen_q: int, seqlen_k: int, group: int, with_sink: bool, at_once: int, **options: Any
) -> None:
    q, k, v = leaves((2, seqlen_q, 2 * group, 4), (2, seqlen_k, 2, 4), (2, seqlen_k, 2, 6))
    sinks = leaves((2 * group,)) if with_sink else []
    options["sink"] = sinks[0] if sinks else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_SCORES_AT_ONCE", at_once)
        out, lse = attention(q, k, v, return_lse=True, **options)
        grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
        got = torch.autograd.grad((out, lse), (q, k, v, *sinks), (grad_out, grad_lse))
    want = reference.backward(grad_out, grad_lse, *(x.detach() for x in (q, k, v)), **options)
    for have, wanted in zip(got, want, strict=False):
        assert wanted is not None
        torch.testing.assert_close(have, wanted.detach(), rtol=1e-9, atol=1e-9)


def test_only_one_result_used() -> None:
    q, k, v = leaves((1, 5, 2, 4), (1, 5, 2, 4), (1, 5, 2, 4))
    out, lse = attention(q, k, v, return_lse=True)
    by_out = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    by_lse = torch.autograd.grad(lse.sum(), (q, k, v))
    ones = torch.ones_like(out)
    for have, want in zip(by_out, reference.backward(ones, None, q, k, v)[:3], strict=True):
        torch.testing.assert_close(have, want.detach())
    by_definition = reference.backward(0 * ones, torch.ones_like(lse), q, k, v)[:3]
    for have, want in zip(by_lse, by_definition, strict=True):
        torch.testing.assert_close(have, want.detach())
    assert not by_lse[2].any()  # values have no part in the log-sum-exp


def test_only_some_inputs_require_grad() -> None:
    q, k, v = (torch.randn(1, 5, 2, 4) for _ in range(3))
    sink = torch.randn(2, requires_grad=True)
    out = attention(q, k, v, sink=sink)
    out.sum().backward()
    assert sink.grad is not None
    assert sink.grad.abs().min() > 0
    with torch.no_grad():
        assert not attention(q, k, v, sink=sink).requires_grad


@pytest.mark.parametrize("value", [1.0, torch.nan, torch.inf])
def test_rows_without_keys_have_zero_gradients(value: float) -> None:
    """Whatever arrives for them: a merge of two log-sum-exps of -inf hands back NaN."""
    q, k, v = leaves((1, 7, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4))
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    grad_out, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    want = torch.autograd.grad((out, lse), (q, k, v), (grad_out, grad_lse), retain_graph=True)
    grad_out[:, :4], grad_lse[:, :, :4] = value, value
    got = torch.autograd.grad((out, lse), (q, k, v), (grad_out, grad_lse))
    assert not got[0][:, :4].any()
    for have, wanted in zip(got, want, strict=True):
        assert torch.equal(have, wanted)


def test_queries_without_keys_never_matter() -> None:
    q, k, v = leaves((1, 7, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4))
    grads = []
    for poison in (0.0, torch.nan):
        with torch.no_grad():
            q[:, :4] = poison
        grads.append(torch.autograd.grad(attention(q, k, v, causal=True).sum(), (q, k, v)))
    for clean, poisoned in zip(*grads, strict=True):
        assert torch.equal(clean, poisoned)


def test_keys_that_no_query_sees_have_zero_gradients() -> None:
    q, k, v = leaves((1, 2, 2, 4), (1, 9, 2, 4), (1, 9, 2, 4))
    attention(q, k, v, window=(1, 0)).sum().backward()
    assert k.grad is not None
    assert v.grad is not None
    for grad in (k.grad, v.grad):
        assert not grad[:, :6].any()
        assert grad[:, 6:].abs().amax((0, 2, 3)).all()


def test_sink_without_keys_takes_the_gradient_of_its_log_sum_exp() -> None:
    q, k, sink = leaves((1, 5, 2, 4), (1, 0, 2, 4), (2,))
    out, lse = attention(q, k, k, sink=sink, return_lse=True)
    (out.sum() + (lse * torch.arange(1.0, 6.0)).sum()).backward()
    assert sink.grad is not None
    torch.testing.assert_close(sink.grad, torch.full((2,), 15.0, dtype=torch.float64))
    assert q.grad is not None
    assert not q.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gradients_keep_dtype_and_precision(dtype: torch.dtype) -> None:
    q, k, v = leaves((2, 40, 4, 16), (2, 50, 2, 16), (2, 50, 2, 16), dtype=dtype)
    out = attention(q, k, v, causal=True)
    grad_out = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), grad_out)
    want = reference.backward(grad_out, None, q, k, v, causal=True)
    for have, wanted in zip(got, want[:3], strict=True):
        assert have.dtype == dtype
        best = (wanted.to(dtype).double() - wanted).norm()
        assert (have.double() - wanted).norm() <= 1.05 * best + 1e-6 * wanted.norm()


def test_strided_and_expanded_inputs() -> None:
    base = torch.randn(1, 4, 9, 8, dtype=torch.float64, requires_grad=True)
    shared = torch.randn(1, 9, 1, 8, dtype=torch.float64, requires_grad=True)
    wide = shared.expand(1, 9, 4, 8)
    attention(base.transpose(1, 2), wide, wide).sum().backward()
    got = (base.grad, shared.grad)
    plain = [x.detach().clone().requires_grad_() for x in (base, shared)]
    wide = plain[1].repeat(1, 1, 4, 1)
    attention(plain[0].transpose(1, 2).contiguous(), wide, wide).sum().backward()
    for have, want in zip(got, (plain[0].grad, plain[1].grad), strict=True):
        torch.testing.assert_close(have, want)


def test_second_derivatives_raise() -> None:
    (q,) = leaves((1, 4, 1, 4))
    first = torch.autograd.grad(attention(q, q, q).square().sum(), q, create_graph=True)[0]
    torch.testing.assert_close(
        first.detach(), torch.autograd.grad(attention(q, q, q).square().sum(), q)[0]
    )
    with pytest.raises(GradientUnsupported, match="second derivative"):
        first.sum().backward()


def test_forward_mode_raises() -> None:
    q = torch.randn(1, 4, 1, 4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(GradientUnsupported, match="forward-mode"):
            attention(dual, q, q)
        assert torch.equal(attention(q, q, q), attention(q, q, q, window=(9, 9)))


def test_function_transforms() -> None:
    (q,) = leaves((1, 4, 1, 4))

    def loss(x: Tensor) -> Tensor:
        return attention(x, q.detach(), q.detach()).square().sum()

    want = torch.autograd.grad(loss(q), q)[0]
    torch.testing.assert_close(torch.func.grad(loss)(q.detach()), want)
    batched = torch.func.vmap(torch.func.grad(loss))(torch.stack([q.detach(), q.detach()]))
    torch.testing.assert_close(batched[1], want)
    # Nested, a derivative that nobody computes must not come out as zero.
    with pytest.raises(GradientUnsupported, match="second derivative"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).sum())(q.detach())
    with pytest.raises(GradientUnsupported, match="forward-mode"):
        torch.func.jvp(torch.func.grad(loss), (q.detach(),), (q.detach(),))

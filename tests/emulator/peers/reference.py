"""Attention and its gradients in float64, and how far a result is from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Of (..., seqlen, heads, head_dim); the causal mask is aligned bottom right."""
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        shift = scores.shape[-1] - scores.shape[-2]
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + shift)
        scores = scores.masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(-2, -3)


def ragged_attention(rows: Sequence[int], keys: Sequence[int], causal: bool) -> Attention:
    """Of sequences that lie one after another: (total, heads, head_dim)."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = zip(q.split(list(rows)), k.split(list(keys)), v.split(list(keys)), strict=True)
        return torch.cat([attention(*part, causal) for part in parts])

    return attend


def error(actual: Any, expected: torch.Tensor) -> float:
    """The largest difference, as a share of the largest value."""
    return float((actual.detach().double() - expected).abs().max() / expected.abs().max())


def errors(
    attend: Callable[..., Any],
    exact: Attention,
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
) -> dict[str, float]:
    """Run a differentiable attention forward and backward on random inputs: error per result.

    Args:
        attend: (q, k, v) -> the output, or a tuple that begins with it.
        exact: the same in float64.
        shapes: of q, k and v.
        dtype: of the inputs.
    """
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    out = attend(*inputs)
    out = out[0] if isinstance(out, tuple) else out
    gradient = torch.randn(out.shape).to(dtype)
    out.backward(gradient)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    expected = exact(doubles[0], doubles[1], doubles[2])
    expected.backward(gradient.double())
    found = {"out": error(out, expected)}
    for name, x, y in zip("qkv", inputs, doubles, strict=True):
        assert y.grad is not None
        found[f"d{name}"] = error(x.grad, y.grad)
    return found

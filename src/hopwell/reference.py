"""The definition of attention, in float64: what every kernel and backend is measured against.

Written to be read, not to be fast. Every query row is independent of the others, so rows are
taken in blocks only to bound memory.

    S = scale * Q K^T                   scores, one row per query, one column per key
    S = c * tanh(S / c)                 with a softcap c
    Z = sum over visible j of exp(S_j)  (+ exp(sink) with a sink, which is no key and has no value)
    P = exp(S) / Z on visible keys, 0 elsewhere
    O = P V,    L = log Z

A row without a visible key has P = 0, hence O = 0, and L = log 0 = -inf (with a sink: L = sink).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

#: Scores held at once: 2^24 float64 values are 128 MiB.
SCORES_AT_ONCE = 1 << 24


class Gradients(NamedTuple):
    """Gradients of a scalar loss, float64; ``sink`` is None when there is no sink."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None


def visible(
    rows: Tensor,
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
    window: tuple[int | None, int | None] | None,
) -> Tensor:
    """Boolean (len(rows), seqlen_k): which key each query row sees, bottom-right aligned."""
    position = (rows + seqlen_k - seqlen_q)[:, None]
    key = torch.arange(seqlen_k, device=rows.device)[None, :]
    seen = torch.ones(len(rows), seqlen_k, dtype=torch.bool, device=rows.device)
    if causal:
        seen &= key <= position
    left, right = window if window is not None else (None, None)
    if left is not None:
        seen &= key >= position - left
    if right is not None:
        seen &= key <= position + right
    return seen


class _Rows(NamedTuple):
    """What the definition gives for a block of query rows; heads are (heads_k, group)."""

    cap_slope: Tensor | float  # d(softcap)/d(score)
    p: Tensor  # (batch, heads_k, group, rows, seqlen_k)
    p_sink: Tensor | None  # (batch, heads_k, group, rows): the sink's share of the denominator
    lse: Tensor  # (batch, heads_k, group, rows)


def _probabilities(
    q: Tensor,
    k: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float | None,
    sink: Tensor | None,
) -> _Rows:
    score = torch.einsum("bihgd,bjhd->bhgij", scale * q, k)
    slope: Tensor | float = 1.0
    if softcap is not None:
        t = torch.tanh(score / softcap)
        score, slope = softcap * t, 1 - t * t
    score.masked_fill_(~seen, -inf)
    logits = score
    if sink is not None:
        logits = torch.cat([score, sink[None, :, :, None, None].expand(*score.shape[:-1], 1)], -1)
    lse = torch.logsumexp(logits, dim=-1)
    # exp(-inf - -inf) is not a number; a row without keys has no probability at all.
    finite = lse.masked_fill(lse == -inf, 0)
    p = score.sub_(finite[..., None]).exp_()
    p_sink = None if sink is None else torch.exp(sink[None, :, :, None] - finite)
    return _Rows(slope, p, p_sink, lse)


def _rounded(p: Tensor, precision: torch.dtype) -> Tensor:
    """Probabilities whose ratios to their row's largest are rounded; rows of zeros stay."""
    if p.shape[-1] == 0:
        return p
    top = p.amax(-1, keepdim=True)
    top = top.masked_fill(top == 0, 1)
    return (p / top).to(precision).double().mul_(top)


def _grouped(x: Tensor, heads_k: int) -> Tensor:
    """(batch, seqlen, heads_q, d) -> float64 (batch, seqlen, heads_k, group, d).

    Query head ``h`` reads key head ``h // group``.
    """
    return x.double().unflatten(2, (heads_k, x.shape[2] // heads_k))


def _blocks(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    per_row = q.shape[0] * q.shape[2] * max(k.shape[1], 1)
    rows = torch.arange(q.shape[1], device=q.device)
    return rows.split(max(1, SCORES_AT_ONCE // max(per_row, 1)))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    precision: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp by definition.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), any real dtype.
        k: (batch, seqlen_k, heads_k, head_dim); heads_k divides heads_q.
        v: (batch, seqlen_k, heads_k, head_dim_v).
        causal: query ``i`` sees key ``j`` when ``j <= i + seqlen_k - seqlen_q``.
        window: (left, right) in tokens, inclusive; None is unbounded.
        scale: of the scores; default 1 / sqrt(head_dim).
        softcap: c of ``c * tanh(score / c)``.
        sink: (heads_q,), natural-log units, not scaled.
        precision: round the probabilities, relative to their row's largest, and the output to
            this dtype, as a kernel of that precision must; all else stays float64.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) and lse (batch, heads_q, seqlen_q), float64.
    """
    batch, seqlen_q, heads_q, head_dim = q.shape
    seqlen_k, heads_k = k.shape[1:3]
    scale = head_dim**-0.5 if scale is None else scale
    group = heads_q // heads_k
    cap = None if sink is None else sink.double().view(heads_k, group)
    kk, vv = k.double(), v.double()
    out = kk.new_zeros(batch, seqlen_q, heads_q, v.shape[3])
    lse = kk.new_zeros(batch, heads_q, seqlen_q)
    for rows in _blocks(q, k):
        seen = visible(rows, seqlen_q, seqlen_k, causal, window)
        part = _probabilities(_grouped(q[:, rows], heads_k), kk, seen, scale, softcap, cap)
        p = part.p if precision is None else _rounded(part.p, precision)
        o = torch.einsum("bhgij,bjhd->bihgd", p, vv).flatten(2, 3)
        if precision is not None:
            o = o.to(precision).double()
        # 0 * NaN: a row that sees nothing is 0 whatever the values hold.
        out[:, rows] = o.masked_fill(~seen.any(1)[:, None, None], 0)
        lse[:, :, rows] = part.lse.flatten(1, 2)
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
) -> Gradients:
    """Gradients by the explicit formulas; arguments as in :func:`attention`.

    With ``dP = dO V^T``, ``D = sum_j P_j dP_j`` and ``dL`` the gradient of the log-sum-exp:

        dV = P^T dO          dS = P * (dP - D + dL)     dsink = sum over rows of P_sink * (dL - D)
        dS *= 1 - tanh(S/c)^2      dQ = scale * dS K          dK = scale * dS^T Q

    Args:
        grad_out: (batch, seqlen_q, heads_q, head_dim_v).
        grad_lse: (batch, heads_q, seqlen_q), or None for zero.

    Returns:
        Gradients in float64, in the shapes of q, k, v and sink.
    """
    seqlen_q, heads_q, head_dim = q.shape[1:]
    seqlen_k, heads_k = k.shape[1:3]
    scale = head_dim**-0.5 if scale is None else scale
    group = heads_q // heads_k
    cap = None if sink is None else sink.double().view(heads_k, group)
    kk, vv = k.double(), v.double()
    dq = q.new_zeros(q.shape, dtype=torch.float64)
    dk, dv = torch.zeros_like(kk), torch.zeros_like(vv)
    dsink = None if cap is None else torch.zeros_like(cap)
    for rows in _blocks(q, k):
        qq = _grouped(q[:, rows], heads_k)
        seen = visible(rows, seqlen_q, seqlen_k, causal, window)
        part = _probabilities(qq, kk, seen, scale, softcap, cap)
        go = _grouped(grad_out[:, rows], heads_k)
        dp = torch.einsum("bihgd,bjhd->bhgij", go, vv)
        d = (part.p * dp).sum(-1)
        dl = torch.zeros_like(d)
        if grad_lse is not None:
            dl = grad_lse[:, :, rows].double().unflatten(1, (heads_k, group))
        # A row's log-sum-exp of -inf is a constant: P is 0 there and so is every gradient.
        ds = part.p * (dp + (dl - d)[..., None]) * part.cap_slope
        dv += torch.einsum("bhgij,bihgd->bjhd", part.p, go)
        dq[:, rows] = scale * torch.einsum("bhgij,bjhd->bihgd", ds, kk).flatten(2, 3)
        dk += scale * torch.einsum("bhgij,bihgd->bjhd", ds, qq)
        if dsink is not None and part.p_sink is not None:
            dsink += (part.p_sink * (dl - d)).sum(dim=(0, 3))
    return Gradients(dq, dk, dv, None if dsink is None else dsink.flatten())

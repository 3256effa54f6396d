"""The CPU backend, and the fallback on any device: PyTorch does the work.

16-bit inputs are computed in float32. Query rows are taken in chunks, so that the score matrix
never exists as a whole and keys that a chunk cannot see are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from hopwell.masks import Mask

#: Scores held at once by the chunked path (64 MiB in float32).
_SCORES_AT_ONCE = 1 << 24


class Terms(NamedTuple):
    """How scores become logits: ``scale`` of the scores, mask, softcap c, sink (heads_q,)."""

    scale: float
    mask: Mask
    softcap: float | None
    sink: Tensor | None


def forward(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    """Exact attention.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), of a floating dtype.
        k: (batch, seqlen_k, heads_k, head_dim).
        v: (batch, seqlen_k, heads_k, head_dim_v).
        terms: the mask must be canonical for these lengths.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) in q's dtype, contiguous, and the natural
        log-sum-exp (batch, heads_q, seqlen_q) in float32.
    """
    batch, seqlen_q, heads_q, _ = q.shape
    out = q.new_zeros(batch, seqlen_q, heads_q, v.shape[3])
    lse = q.new_full((batch, heads_q, seqlen_q), -inf, dtype=torch.float32)
    if out.numel() == 0:
        return out, lse
    if _sdpa_takes(q, k, v, terms):
        return _sdpa(q, k, v, terms)
    keys, values = _by_head(k), _by_head(v)
    for chunk in _chunks(q, k, terms):
        part = _probabilities(_grouped(q, chunk, keys), keys, chunk, terms)
        o = torch.matmul(part.p, values[:, :, chunk.first : chunk.stop])
        # 0 * NaN: a row that sees nothing is 0 whatever lies in values that others see.
        o = o.masked_fill(chunk.blind_rows(o)[..., None], 0)
        rows = slice(chunk.start, chunk.end)
        out[:, rows] = _ungrouped(o, heads_q, chunk).to(out.dtype)
        lse[:, :, rows] = part.lse.unflatten(2, (-1, len(chunk))).flatten(1, 2).float()
    return out, lse


def backward(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, terms: Terms
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and sink (None without a sink), each in its input's dtype.

    Probabilities are recomputed chunk by chunk; formulas as in :func:`hopwell.reference.backward`.
    Rows that see no key have zero gradients whatever arrives for them, NaN included.
    """
    heads_q = q.shape[2]
    keys, values = _by_head(k), _by_head(v)
    dq = torch.zeros_like(q, memory_format=torch.contiguous_format)
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    sink = terms.sink
    dsink = None if sink is None else keys.new_zeros(heads_q)
    for chunk in _chunks(q, k, terms) if q.numel() else ():
        qq = _grouped(q, chunk, keys)
        part = _probabilities(qq, keys, chunk, terms)
        seen = slice(chunk.first, chunk.stop)
        go = _grouped(grad_out, chunk, keys)
        dl = qq.new_zeros(qq.shape[:-1])
        if grad_lse is not None:
            rows = grad_lse[:, :, chunk.start : chunk.end].to(qq.dtype)
            dl = rows.unflatten(1, (keys.shape[1], -1)).flatten(2)
        blind = chunk.blind_rows(qq)
        go, qq = (rows.masked_fill(blind[..., None], 0) for rows in (go, qq))
        # Without a sink a blind row's log-sum-exp is the constant -inf.
        dl = dl.masked_fill(blind, 0) if sink is None else dl
        dp = torch.matmul(go, values[:, :, seen].mT)
        pull = dl - (part.p * dp).sum(-1)
        if dsink is not None:
            share = (part.p_sink * pull).unflatten(2, (-1, len(chunk)))
            dsink += share.sum(dim=(0, 3)).flatten()
        ds = part.p * (dp + pull[..., None]) * (terms.scale * part.cap_slope)
        dv[:, :, seen] += torch.matmul(part.p.mT, go)
        dk[:, :, seen] += torch.matmul(ds.mT, qq)
        step = torch.matmul(ds, keys[:, :, seen]).masked_fill(blind[..., None], 0)
        dq[:, chunk.start : chunk.end] = _ungrouped(step, heads_q, chunk).to(dq.dtype)
    grads = [dk.transpose(1, 2).to(k.dtype), dv.transpose(1, 2).to(v.dtype)]
    dk, dv = (grad.contiguous() for grad in grads)
    return dq, dk, dv, None if dsink is None or sink is None else dsink.to(sink.dtype)


# -- PyTorch's fused kernel, where it means the same -------------------------------------------


def _sdpa_takes(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> bool:
    """Whether the fused CPU kernel computes exactly this.

    Its causal mask is aligned to the top left (the same only for equal lengths), it knows neither
    a softcap nor a sink nor a value dimension of its own, and a row whose scores are NaN or all
    -inf it gives out as zeros with a log-sum-exp of 0.
    """
    square = q.shape[1] == k.shape[1]
    return (
        q.device.type == "cpu"
        and k.numel() > 0
        and q.shape[3] == v.shape[3]
        and terms.softcap is None
        and terms.sink is None
        and (terms.mask.is_full or (terms.mask.is_causal and square))
        and _scores_are_finite(q, k, terms.scale)
    )


def _scores_are_finite(q: Tensor, k: Tensor, scale: float) -> bool:
    """By the largest magnitudes in q and k: a bound, false also when either holds NaN or inf."""
    bound = q.shape[3] * max(scale, 1.0)
    for x in (q, k):
        low, high = torch.aminmax(x)
        bound *= max(-float(low), float(high))
    return bound < torch.finfo(_accumulator(q)).max


def _sdpa(q: Tensor, k: Tensor, v: Tensor, terms: Terms) -> tuple[Tensor, Tensor]:
    # Its 16-bit form approximates exp; in float32 the log-sum-exp is as good as ours.
    kind = _accumulator(q)
    group = q.shape[2] // k.shape[2]
    heads = [
        x.to(kind).transpose(1, 2)
        for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    ]
    # The public function computes the log-sum-exp and drops it; this is the operator beneath.
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *heads, 0.0, terms.mask.is_causal, scale=terms.scale
    )
    return out.transpose(1, 2).to(q.dtype).contiguous(), lse.float().contiguous()


# -- the chunked path --------------------------------------------------------------------------


class _Chunk(NamedTuple):
    """Query rows [start, end) and the keys [first, stop) that any of them can see."""

    start: int
    end: int
    first: int
    stop: int
    hidden: Tensor | None  # (rows, stop - first), True where a key is masked; None: nothing is

    def __len__(self) -> int:
        return self.end - self.start

    def blind_rows(self, like: Tensor) -> Tensor:
        """Boolean (group * rows): rows without a visible key; ``like`` is (b, h, group*rows, d)."""
        rows = len(self)
        if self.first == self.stop:
            blind = torch.ones(rows, dtype=torch.bool, device=like.device)
        elif self.hidden is None:
            blind = torch.zeros(rows, dtype=torch.bool, device=like.device)
        else:
            blind = self.hidden.all(dim=1)
        return blind.repeat(like.shape[2] // rows)


class _Rows(NamedTuple):
    """Of one chunk; rows are (batch, heads_k, group * rows)."""

    p: Tensor
    p_sink: Tensor
    lse: Tensor
    cap_slope: Tensor | float


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _by_head(x: Tensor) -> Tensor:
    """(batch, seqlen, heads, d) -> accumulator dtype, (batch, heads, seqlen, d)."""
    return x.to(_accumulator(x)).transpose(1, 2)


def _grouped(x: Tensor, chunk: _Chunk, keys: Tensor) -> Tensor:
    """A chunk's rows as (batch, heads_k, group * rows, d): heads that share a key side by side."""
    rows = x[:, chunk.start : chunk.end].to(keys.dtype).transpose(1, 2)
    return rows.unflatten(1, (keys.shape[1], -1)).flatten(2, 3)


def _ungrouped(x: Tensor, heads_q: int, chunk: _Chunk) -> Tensor:
    """(batch, heads_k, group * rows, d) -> (batch, rows, heads_q, d)."""
    return x.reshape(x.shape[0], heads_q, len(chunk), x.shape[3]).transpose(1, 2)


def _chunks(q: Tensor, k: Tensor, terms: Terms) -> Iterator[_Chunk]:
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    per_row = q.shape[0] * q.shape[2] * max(seqlen_k, 1)
    step = max(1, _SCORES_AT_ONCE // per_row)
    for start in range(0, seqlen_q, step):
        end = min(start + step, seqlen_q)
        # Bounds grow with the row: the first visible key is the first row's, the last the last's;
        # rows at either edge may see nothing, so both ends are taken over the rows that do.
        position = seqlen_k - seqlen_q
        first, stop = 0, seqlen_k
        if terms.mask.left is not None:
            first = min(max(0, start + position - terms.mask.left), seqlen_k)
        if terms.mask.right is not None:
            stop = max(first, min(seqlen_k, end + position + terms.mask.right))
        yield _Chunk(start, end, first, stop, _hidden(start, end, first, stop, position, q, terms))


def _hidden(
    start: int, end: int, first: int, stop: int, position: int, q: Tensor, terms: Terms
) -> Tensor | None:
    left, right = terms.mask.left, terms.mask.right
    if left is None and right is None:
        return None
    row = torch.arange(start, end, device=q.device)[:, None] + position
    key = torch.arange(first, stop, device=q.device)[None, :]
    hidden = torch.zeros(end - start, stop - first, dtype=torch.bool, device=q.device)
    if left is not None:
        hidden |= key < row - left
    if right is not None:
        hidden |= key > row + right
    return hidden


def _probabilities(q: Tensor, keys: Tensor, chunk: _Chunk, terms: Terms) -> _Rows:
    score = torch.matmul(q * terms.scale, keys[:, :, chunk.first : chunk.stop].mT)
    slope: Tensor | float = 1.0
    if terms.softcap is not None:
        t = torch.tanh(score / terms.softcap)
        score, slope = terms.softcap * t, 1 - t * t
    if chunk.hidden is not None:
        group = score.shape[2] // len(chunk)
        score = score.masked_fill(chunk.hidden.repeat(group, 1), -inf)
    lse = torch.logsumexp(score, dim=-1)
    sink = q.new_full(lse.shape, -inf)
    if terms.sink is not None:
        by_key_head = terms.sink.to(q.dtype).unflatten(0, (keys.shape[1], -1))
        sink = by_key_head.repeat_interleave(len(chunk), dim=1).expand(lse.shape)
        lse = torch.logaddexp(lse, sink)
    # exp(-inf - -inf) is not a number; a row without keys has no probability at all.
    finite = lse.masked_fill(lse == -inf, 0)
    return _Rows(torch.exp(score - finite[..., None]), torch.exp(sink - finite), lse, slope)

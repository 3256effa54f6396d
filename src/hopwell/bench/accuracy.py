"""Errors against float64, and the budget that a result of the same precision sets.

A mean hides a broken row, so beside the relative Frobenius error stand the largest row error and
the 99.9th percentile of the row errors. The log-sum-exp is checked as strictly as the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Score elements (float64) held at once: 1 GiB.
CHUNK_ELEMENTS = 2**27
#: |lse - reference| <= LSE_TOLERANCE * max(1, |reference| / LSE_SCALE).
LSE_TOLERANCE = 1e-4
LSE_SCALE = 64.0
#: Unit roundoff: half the distance from 1 to the next number.
UNIT_ROUNDOFF = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}


@dataclass(frozen=True)
class Reference:
    """Float64 attention of some (batch, head) pairs.

    ``o`` is (pairs, seqlen_q, head_dim_v), ``lse`` (pairs, seqlen_q) natural, both float64.
    """

    pairs: tuple[tuple[int, int], ...]
    o: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True)
class Errors:
    """Relative errors of an output, and the log-sum-exp's in units of its tolerance.

    ``row_*``: ||o_i - r_i|| / ||r_i|| over rows; a row whose reference is zero must be zero
    (its error is infinite otherwise). ``lse``: max |lse - r| / max(1, |r| / 64), None where no
    log-sum-exp was given; infinite where only one of the two is -inf. NaN counts as infinite.
    """

    frobenius: float
    row_max: float
    row_p999: float
    lse: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Errors:
        return cls(**data)


def spread_pairs(batch: int, heads: int, limit: int) -> tuple[tuple[int, int], ...]:
    """Up to ``limit`` (batch, head) pairs, evenly spread, the first and the last among them."""
    total = batch * heads
    count = min(total, max(limit, 1))
    step = (total - 1) / max(count - 1, 1)
    flat = sorted({round(index * step) for index in range(count)})
    return tuple((index // heads, index % heads) for index in flat)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    pairs: Sequence[tuple[int, int]] | None = None,
    precision: str | None = None,
) -> Reference:
    """Attention in float64 on the inputs' own device, in chunks.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim); k and v alike with their lengths and heads.
        causal: Bottom-right aligned: j <= i + seqlen_k - seqlen_q.
        scale: Multiplies the scores.
        pairs: (batch, head) pairs to compute; all of them if None.
        precision: Round the probabilities (relative to their row's maximum) and the output to
            this dtype, as a kernel of that precision must; everything else stays float64.
            This is the same-precision result that sets :func:`budget`.
    """
    import torch

    batch, seqlen_q, heads_q, _ = q.shape
    seqlen_k, heads_k = k.shape[1], k.shape[2]
    chosen = tuple(pairs) if pairs is not None else spread_pairs(batch, heads_q, batch * heads_q)
    o = torch.zeros(len(chosen), seqlen_q, v.shape[3], dtype=torch.float64, device=q.device)
    lse = torch.full((len(chosen), seqlen_q), -torch.inf, dtype=torch.float64, device=q.device)
    if seqlen_k == 0 or seqlen_q == 0:
        return Reference(chosen, o, lse)
    rows = max(1, min(seqlen_q, CHUNK_ELEMENTS // seqlen_k))
    together = max(1, CHUNK_ELEMENTS // (rows * seqlen_k))
    for first in range(0, len(chosen), together):
        group = slice(first, min(first + together, len(chosen)))
        b = torch.tensor([pair[0] for pair in chosen[group]], device=q.device)
        h = torch.tensor([pair[1] for pair in chosen[group]], device=q.device)
        kv = h // (heads_q // heads_k)
        keys, values = k[b, :, kv].double(), v[b, :, kv].double()
        for start in range(0, seqlen_q, rows):
            span = slice(start, min(start + rows, seqlen_q))
            scores = q[b, span, h].double() @ keys.mT
            scores *= scale
            if causal:
                _mask_causal(scores, start, seqlen_k - seqlen_q)
            o[group, span], lse[group, span] = _softmax_product(scores, values, precision)
    return Reference(chosen, o, lse)


def _mask_causal(scores: torch.Tensor, first_row: int, offset: int) -> None:
    import torch

    rows = torch.arange(first_row, first_row + scores.shape[1], device=scores.device)
    columns = torch.arange(scores.shape[2], device=scores.device)
    scores.masked_fill_(columns[None, :] > rows[:, None] + offset, -torch.inf)


def _softmax_product(
    scores: torch.Tensor, values: torch.Tensor, precision: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    maximum = scores.amax(-1, keepdim=True)
    # A row without a visible key has maximum -inf; any finite stand-in leaves its weights zero.
    maximum = torch.where(maximum == -torch.inf, 0.0, maximum)
    weights = scores.sub_(maximum).exp_()
    total = weights.sum(-1, keepdim=True)
    if precision is not None:
        weights = weights.to(getattr(torch, precision)).double()
    o = (weights @ values) / torch.where(total == 0, 1.0, total)
    if precision is not None:
        o = o.to(getattr(torch, precision)).double()
    return o, (maximum + total.log()).squeeze(-1)


def errors(o: torch.Tensor, lse: torch.Tensor | None, expected: Reference) -> Errors:
    """Compare an output (batch, seqlen_q, heads, head_dim_v) with its reference."""
    import torch

    b = torch.tensor([pair[0] for pair in expected.pairs], device=o.device)
    h = torch.tensor([pair[1] for pair in expected.pairs], device=o.device)
    return compare(o[b, :, h].double(), None if lse is None else lse[b, h].double(), expected)


def compare(o: torch.Tensor, lse: torch.Tensor | None, expected: Reference) -> Errors:
    """The same for (pairs, seqlen_q, head_dim_v) and (pairs, seqlen_q) of the same pairs."""
    import torch

    if o.numel() == 0:
        return Errors(0.0, 0.0, 0.0, None if lse is None else 0.0)
    difference = torch.linalg.vector_norm(o - expected.o, dim=-1).flatten()
    size = torch.linalg.vector_norm(expected.o, dim=-1).flatten()
    relative = torch.where(difference == 0, 0.0, difference / size)
    relative = torch.where(relative.isnan(), torch.inf, relative)
    total = float(torch.linalg.vector_norm(size))
    error = float(torch.linalg.vector_norm(difference))
    frobenius = error / total if total else (0.0 if error == 0 else float("inf"))
    rank = max(1, ceil(0.999 * relative.numel()))
    return Errors(
        frobenius=frobenius if frobenius == frobenius else float("inf"),
        row_max=float(relative.max()),
        row_p999=float(relative.kthvalue(rank).values),
        lse=None if lse is None else _lse_error(lse, expected.lse),
    )


def _lse_error(lse: torch.Tensor, expected: torch.Tensor) -> float:
    import torch

    difference = (lse - expected).abs() / (expected.abs() / LSE_SCALE).clamp(min=1.0)
    difference = torch.where(lse == expected, 0.0, difference)  # -inf on both sides
    return float(torch.where(difference.isnan(), torch.inf, difference).max())


@dataclass(frozen=True)
class Budget:
    """The largest errors that pass."""

    frobenius: float
    row_max: float
    row_p999: float
    lse: float = LSE_TOLERANCE

    def broken_by(self, found: Errors) -> tuple[str, ...]:
        """The errors that exceed the budget, as readable sentences."""
        rows = [
            ("frobenius", found.frobenius, self.frobenius),
            ("row_max", found.row_max, self.row_max),
            ("row_p999", found.row_p999, self.row_p999),
        ]
        if found.lse is not None:
            rows.append(("lse", found.lse, self.lse))
        return tuple(
            f"{name} {value:.3e} > {limit:.3e}" for name, value, limit in rows if not value <= limit
        )


def budget(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    expected: Reference,
    *,
    causal: bool,
    scale: float,
) -> Budget:
    """1.5 times the error of the same-precision result (2 times for the worst row).

    The floor beside it covers outputs too small for errors to average: a few roundings of the
    input's dtype, shrinking with the square root of the number of elements.
    """
    dtype = str(q.dtype).removeprefix("torch.")
    rounded = reference(q, k, v, causal=causal, scale=scale, pairs=expected.pairs, precision=dtype)
    model = compare(rounded.o, None, expected)
    unit = UNIT_ROUNDOFF[dtype]
    row_floor = 4 * unit / sqrt(max(v.shape[3], 1))
    return Budget(
        frobenius=1.5 * model.frobenius + 4 * unit / sqrt(max(expected.o.numel(), 1)),
        row_max=2.0 * model.row_max + row_floor,
        row_p999=1.5 * model.row_p999 + row_floor,
    )

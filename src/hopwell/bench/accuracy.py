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

#: |lse - reference| <= LSE_TOLERANCE * max(1, |reference| / LSE_SCALE).
LSE_TOLERANCE = 1e-4
LSE_SCALE = 64.0
#: Unit roundoffs that an output too small for errors to average may be away.
FLOOR = 2.0


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


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of a floating dtype."""
    import torch

    return torch.finfo(dtype).eps / 2


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
    """:func:`hopwell.reference.attention` of some (batch, head) pairs, on the inputs' device.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim); k and v alike with their lengths and heads.
        causal: Bottom-right aligned: j <= i + seqlen_k - seqlen_q.
        scale: Multiplies the scores.
        pairs: (batch, head) pairs to compute; all of them if None.
        precision: Name of the dtype to which the definition rounds probabilities and output;
            this is the same-precision result that sets :func:`budget`.
    """
    import torch

    from hopwell import reference as definition

    batch, seqlen_q, heads_q, _ = q.shape
    seqlen_k, heads_k = k.shape[1], k.shape[2]
    chosen = tuple(pairs) if pairs is not None else spread_pairs(batch, heads_q, batch * heads_q)
    o = torch.zeros(len(chosen), seqlen_q, v.shape[3], dtype=torch.float64, device=q.device)
    lse = torch.full((len(chosen), seqlen_q), -torch.inf, dtype=torch.float64, device=q.device)
    # The definition takes rows in blocks; pairs are gathered in groups, so that both stay bounded.
    together = max(1, definition.SCORES_AT_ONCE // max(seqlen_q * seqlen_k, 1))
    for first in range(0, len(chosen), together):
        group = slice(first, min(first + together, len(chosen)))
        b = torch.tensor([pair[0] for pair in chosen[group]], device=q.device)
        h = torch.tensor([pair[1] for pair in chosen[group]], device=q.device)
        kv = h // (heads_q // heads_k)
        found = definition.attention(
            q[b, :, h].unsqueeze(2),
            k[b, :, kv].unsqueeze(2),
            v[b, :, kv].unsqueeze(2),
            causal=causal,
            scale=scale,
            precision=None if precision is None else getattr(torch, precision),
        )
        o[group], lse[group] = found[0].squeeze(2), found[1].squeeze(1)
    return Reference(chosen, o, lse)


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

    def __str__(self) -> str:
        return ", ".join(f"{name} <= {limit:.2e}" for name, limit in asdict(self).items())

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

    The floor beside it covers outputs too small for errors to average: two roundings of the
    input's dtype, shrinking with the square root of the number of elements.
    """
    dtype = str(q.dtype).removeprefix("torch.")
    rounded = reference(q, k, v, causal=causal, scale=scale, pairs=expected.pairs, precision=dtype)
    model = compare(rounded.o, None, expected)
    floor = FLOOR * unit_roundoff(q.dtype)
    row_floor = floor / sqrt(max(v.shape[3], 1))
    return Budget(
        frobenius=1.5 * model.frobenius + floor / sqrt(max(expected.o.numel(), 1)),
        row_max=2.0 * model.row_max + row_floor,
        row_p999=1.5 * model.row_p999 + row_floor,
    )

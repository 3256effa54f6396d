"""The cells that a benchmark measures: sizes only, no tensors.

Standard grid: 16,384 tokens, heads x head_dim = 2048 (the forward protocol of both papers, spec
0x0D "FA4 Paper Benchmark Manifest", at half its tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hopwell.errors import InputError

HEAD_DIMS = (64, 128, 256)
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS = 16384
HIDDEN = 2048

_SHORT = re.compile(r"d([1-9]\d*)(c?)s([1-9]\d*)", re.ASCII)


@dataclass(frozen=True)
class Cell:
    """One problem size. Key and value may have their own length, heads and head dimension."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    causal: bool
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        """``d128cs4096``: head dimension, c if causal, query length."""
        return f"d{self.head_dim}{'c' if self.causal else ''}s{self.seqlen_q}"

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, K, V and O together (16-bit elements, 32 and 64 bit where asked)."""
        width = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}[self.dtype]
        q_and_o = self.batch * self.seqlen_q * self.heads_q * (self.head_dim + self.head_dim_v)
        k_and_v = self.batch * self.seqlen_k * self.heads_k * (self.head_dim + self.head_dim_v)
        return width * (q_and_o + k_and_v)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Cell:
        return cls(**data)


def standard_cell(head_dim: int, causal: bool, seqlen: int, dtype: str = "bfloat16") -> Cell:
    """The grid's cell: 16,384 tokens (at least one sequence), 2048 / head_dim heads."""
    heads = max(1, HIDDEN // head_dim)
    return Cell(
        batch=max(1, TOKENS // seqlen),
        seqlen_q=seqlen,
        seqlen_k=seqlen,
        heads_q=heads,
        heads_k=heads,
        head_dim=head_dim,
        head_dim_v=head_dim,
        causal=causal,
        dtype=dtype,
    )


def standard_grid() -> tuple[Cell, ...]:
    """The 36 cells of the forward grid, in bf16."""
    return tuple(
        standard_cell(head_dim, causal, seqlen)
        for head_dim in HEAD_DIMS
        for causal in (False, True)
        for seqlen in SEQLENS
    )


def parse_cells(names: Iterable[str]) -> tuple[Cell, ...]:
    """Cells from names such as ``d128s4096`` or ``d64cs512``.

    Raises:
        InputError: a name has another form.
    """
    cells = []
    for name in names:
        match = _SHORT.fullmatch(name)
        if match is None:
            raise InputError(
                "cell",
                expected="d<head_dim>[c]s<seqlen>, such as d128cs4096",
                actual=repr(name),
                consequence="Nothing was measured.",
            )
        cells.append(standard_cell(int(match[1]), match[2] == "c", int(match[3])))
    return tuple(cells)

"""The numerators of TFLOP/s against counts made one pair and one block at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopwell.bench.flops import Convention, forward_flops, scheduled_blocks, tflops, visible_pairs
from hopwell.bench.grid import Cell, parse_cells, standard_cell, standard_grid
from hopwell.errors import InputError

LENGTHS = [(1, 1), (1, 7), (7, 1), (5, 5), (64, 64), (130, 70), (70, 130), (3, 0), (0, 3)]


def test_paper_convention_reproduces_the_specifications_table() -> None:
    """Spec 0x0D, "A Numeric Reconciliation": B=32, S=1024, H=16, d=128."""
    dense = Cell(32, 1024, 1024, 16, 16, 128, 128, causal=False)
    causal = replace(dense, causal=True)
    assert forward_flops(dense) == 274_877_906_944
    assert forward_flops(causal) == 137_438_953_472
    assert tflops(dense, 0.20e-3) == pytest.approx(1374.39, abs=0.01)
    assert tflops(causal, 0.20e-3) == pytest.approx(687.19, abs=0.01)


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_useful_pairs_are_the_visible_ones(seqlen_q: int, seqlen_k: int, causal: bool) -> None:
    counted = sum(
        not causal or j <= i + seqlen_k - seqlen_q for i in range(seqlen_q) for j in range(seqlen_k)
    )
    assert visible_pairs(seqlen_q, seqlen_k, causal) == counted


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_scheduled_blocks_are_those_with_a_visible_pair(
    seqlen_q: int, seqlen_k: int, causal: bool
) -> None:
    tile_m, tile_n = 16, 8
    counted = {
        (i // tile_m, j // tile_n)
        for i in range(seqlen_q)
        for j in range(seqlen_k)
        if not causal or j <= i + seqlen_k - seqlen_q
    }
    assert scheduled_blocks(seqlen_q, seqlen_k, causal, tile_m, tile_n) == len(counted)


def test_conventions_order_as_their_meaning_says() -> None:
    cell = Cell(2, 1000, 1000, 4, 2, 72, 40, causal=True)
    useful = forward_flops(cell, Convention.USEFUL)
    scheduled = forward_flops(cell, Convention.SCHEDULED, tiles=(128, 128), bucket=(96, 96))
    dense = forward_flops(cell, Convention.DENSE_EQUIVALENT)
    paper = forward_flops(cell, Convention.PAPER)
    assert paper == dense / 2
    assert useful == pytest.approx(paper, rel=2e-3)
    assert useful > paper
    assert scheduled > useful
    assert dense == 2 * 2 * 4 * 1000 * 1000 * (72 + 40)


def test_the_scheduled_convention_needs_tiles() -> None:
    with pytest.raises(ValueError, match="tiles"):
        forward_flops(standard_cell(64, False, 512), Convention.SCHEDULED)


def test_standard_grid_keeps_tokens_and_width() -> None:
    grid = standard_grid()
    assert len(grid) == len(set(grid)) == 36
    for cell in grid:
        assert cell.batch * cell.seqlen_q == 16384
        assert cell.heads_q * cell.head_dim == 2048
        assert cell.tensor_bytes == 4 * 16384 * 2048 * 2


def test_cell_names_are_parsed_back() -> None:
    grid = standard_grid()
    assert parse_cells(cell.name for cell in grid) == grid
    with pytest.raises(InputError, match="d128cs4096"):
        parse_cells(["128x4096"])

"""Inputs that a Gaussian never shows: recorded activations and adversarial scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hopwell import data

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend

BF16, FP16 = torch.bfloat16, torch.float16
MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
DIMS = pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)], ids=str)


@MASKS
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("layer", data.provenance()["layers"])
def test_recorded_activations(attend: Attend, layer: int, dtype: torch.dtype, causal: bool) -> None:
    q, k, v = (x.to(attend.device, dtype) for x in data.recorded(layer))
    attend.check(q, k, v, causal=causal)


@MASKS
@DIMS
def test_very_negative_scores(attend: Attend, dims: tuple[int, int], causal: bool) -> None:
    """All true scores near -120: a masked or absent key scored 0 would take every row."""
    q, k, v = attend.draw(2, (333, 333), (2, 2), dims)
    base = (120.0 / dims[0] ** 0.5) ** 0.5
    q, k = (base + 0.05 * q.float()).bfloat16(), (-base + 0.05 * k.float()).bfloat16()
    _, lse = attend.check(q, k, v, causal=causal)
    assert lse.max() < -90


@MASKS
@DIMS
@pytest.mark.parametrize("where", [0, 100, 332])
def test_one_huge_key(attend: Attend, dims: tuple[int, int], where: int, causal: bool) -> None:
    """One key takes every row that sees it, in the first, a middle or the last block."""
    q, k, v = attend.draw(1, (333, 333), (2, 2), dims)
    q = (1.0 + 0.1 * q.float()).bfloat16()
    k[:, where] = 12.0
    out, _ = attend.check(q, k, v, causal=causal)
    taken = v[:, where].unsqueeze(1)
    assert (out[:, where:] - taken).abs().max() < 1e-2


@MASKS
@DIMS
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_the_maximum_moves_with_every_block(
    attend: Attend, dims: tuple[int, int], order: str, causal: bool
) -> None:
    """Rescaling in every block, or in none after the first."""
    q, k, v = attend.draw(1, (512, 512), (2, 2), dims)
    steps = torch.linspace(0, 40.0 / dims[0] ** 0.5, 512, device=attend.device)
    steps = steps if order == "rising" else steps.flip(0)
    q = (1.0 + 0.1 * q.float()).bfloat16()
    k = (steps[None, :, None, None] + 0.1 * k.float()).bfloat16()
    attend.check(q, k, v, causal=causal)


@MASKS
def test_constant_values_are_kept(attend: Attend, causal: bool) -> None:
    """Weights sum to one, so a constant comes back to the precision of the weights."""
    q, k, v = attend.draw(1, (600, 600), (2, 2), (128, 128))
    out, _ = attend(q, k, torch.full_like(v, 3.0), causal=causal)
    assert (out.float() - 3.0).abs().max() <= 3.0 * 2**-8


@MASKS
def test_not_a_number_stays_in_its_row_and_batch(attend: Attend, causal: bool) -> None:
    """One poisoned query row, and one poisoned key of another batch entry."""
    q, k, v = attend.draw(3, (300, 300), (2, 2), (128, 128))
    out, lse = attend(q, k, v, causal=causal)
    q[0, 40, 1], k[2, 7, 0] = torch.nan, torch.nan
    spoiled, spoiled_lse = attend(q, k, v, causal=causal)
    assert spoiled[0, 40, 1].isnan().all()
    assert spoiled_lse[0, 1, 40].isnan()
    keep = torch.ones(3, 300, 2, dtype=torch.bool, device=attend.device)
    keep[0, 40, 1] = keep[2, :, 0] = False
    assert torch.equal(out[keep], spoiled[keep])
    assert torch.equal(lse.transpose(1, 2)[keep], spoiled_lse.transpose(1, 2)[keep])

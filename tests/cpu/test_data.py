"""The recorded input is what its provenance says, and attention of it is the model's own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from hopwell import data
from hopwell.errors import InputError

DIRECTORY = Path(data.__file__).parent
LAYERS = data.provenance()["layers"]


def test_archive_and_page_match_their_hashes() -> None:
    provenance = data.provenance()
    for name in ("archive", "page"):
        content = (DIRECTORY / provenance[name]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == provenance[f"{name}_sha256"]
        assert len(content) <= 2 * 1024 * 1024


@pytest.mark.parametrize("layer", LAYERS)
def test_well_formed(layer: int) -> None:
    provenance = data.provenance()
    shape = (1, provenance["tokens"], provenance["heads"], provenance["head_dim"])
    for tensor in (*data.recorded(layer), data.recorded_context(layer)):
        assert tensor.shape == shape
        assert tensor.dtype == torch.float32
        assert tensor.isfinite().all()
        assert torch.equal(tensor, tensor.half().float())


@pytest.mark.parametrize("layer", LAYERS)
def test_attention_reproduces_the_model(layer: int) -> None:
    """Both sides were rounded to float16 once (2^-11); scores of 75 in layer 0 amplify that."""
    q, k, v = (tensor.double() for tensor in data.recorded(layer))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    context = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    expected = data.recorded_context(layer).double()
    assert (context - expected).norm() / expected.norm() < 2e-3
    # The recording tells the heads and the scale apart: neither a shuffle nor another scale passes.
    for wrong in (context.roll(1, dims=2), torch.einsum("bhij,bjhd->bihd", scores, v)):
        assert (wrong - expected).norm() / expected.norm() > 0.1


def test_first_layer_is_not_gaussian() -> None:
    q, k, _ = data.recorded(LAYERS[0])
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    assert scores.max() > 60
    assert scores.softmax(-1).max() > 0.999


def test_unknown_layer_is_a_typed_error() -> None:
    with pytest.raises(InputError, match="recorded layer"):
        data.recorded(3)

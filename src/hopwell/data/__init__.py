"""Real attention inputs, recorded from a pre-trained encoder over one page of English text.

Some faults never show on Gaussian inputs: scores here reach 75 in the first layer, where one key
can take a whole row. ``minilm.json`` holds the provenance, ``page.txt`` the text, and
``scripts/record_minilm.py`` made both.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopwell.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_DIRECTORY = Path(__file__).parent


@lru_cache(maxsize=1)
def provenance() -> dict[str, Any]:
    """Model, package, licences and hashes of the recording, and the layers that it holds."""
    record: dict[str, Any] = json.loads((_DIRECTORY / "minilm.json").read_text())
    return record


def _load(layer: int, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    import numpy as np
    import torch

    layers = provenance()["layers"]
    if layer not in layers:
        raise InputError(
            "recorded layer",
            expected=f"one of {layers}",
            actual=layer,
            consequence="There is no recording to load.",
        )
    with np.load(_DIRECTORY / provenance()["archive"]) as archive:
        return tuple(
            torch.from_numpy(archive[f"layer{layer}_{name}"]).float().unsqueeze(0) for name in names
        )


def recorded(layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one layer, each float32 of shape (1, 355, 12, 32), exact in float16.

    The model's softmax scale is the default, ``1 / sqrt(32)``, and its attention is not causal.
    Raises :class:`InputError` for a layer that was not recorded (``provenance()["layers"]``).
    """
    q, k, v = _load(layer, ("q", "k", "v"))
    return q, k, v


def recorded_context(layer: int) -> Tensor:
    """What the model itself computed from :func:`recorded`: float32 of shape (1, 355, 12, 32).

    The model ran in float64 and its inputs were rounded to float16 afterwards, so attention of the
    recorded inputs reproduces it to float16's precision, not exactly.
    """
    (context,) = _load(layer, ("context",))
    return context

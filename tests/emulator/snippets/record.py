"""The GPU's answers as files: a manifest, and the answers themselves, compressed.

Small answers are kept whole. Of a large one that has to agree bit for bit, four bytes of SHA-256
for every 64 elements are kept: enough to tell, and to say where.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.emulator.snippets.compare import canonical
from tests.emulator.snippets.snippet import Buffer, Snippet

Array = NDArray[Any]

FOLDER = Path(__file__).parent / "record"
SCHEMA = 1
#: An answer of more bytes than this is kept as digests, if it is compared by bits.
WHOLE = 8192
CHUNK = 64


def digests(values: Array) -> NDArray[np.uint32]:
    """One word for every CHUNK elements in C order."""
    flat = np.ascontiguousarray(values).reshape(-1)
    chunks = (flat[i : i + CHUNK].tobytes() for i in range(0, flat.size, CHUNK))
    words = [int.from_bytes(hashlib.sha256(chunk).digest()[:4], "little") for chunk in chunks]
    return np.array(words, np.uint32)


def is_digested(output: Buffer, values: Array) -> bool:
    assert output.comparison is not None
    return output.comparison.kind == "bits" and values.nbytes > WHOLE


@dataclass(frozen=True)
class Answer:
    """What one GPU wrote for one snippet, or the error that it ended with."""

    fingerprint: str
    error: str | None
    outputs: Mapping[str, Array]  # whole values, or digests
    digested: frozenset[str]
    tensor_maps: Mapping[str, bytes]


@dataclass(frozen=True)
class Record:
    machine: Mapping[str, str]
    answers: Mapping[str, Answer]


def answer(
    snippet: Snippet,
    error: str | None,
    values: Mapping[str, Array],
    tensor_maps: Mapping[str, bytes],
) -> Answer:
    """What is kept of an answer: ``values`` holds the outputs, whole, unless there is an error."""
    kept, digested = {}, set()
    for output in snippet.outputs if error is None else ():
        whole = canonical(output, values[output.name])
        kept[output.name] = np.ascontiguousarray(whole)
        if is_digested(output, whole):
            kept[output.name] = digests(whole)
            digested.add(output.name)
    return Answer(snippet.fingerprint, error, kept, frozenset(digested), tensor_maps)


def write(folder: Path, machine: Mapping[str, str], answers: Mapping[str, Answer]) -> int:
    """Writes a record, answers by snippet name. Returns its size in bytes."""
    blob = bytearray()
    entries: dict[str, Any] = {}
    for name, given in answers.items():
        outputs = {}
        for output, kept in given.outputs.items():
            outputs[output] = {
                "at": len(blob),
                "dtype": kept.dtype.str,
                "shape": list(kept.shape),
                "digested": output in given.digested,
            }
            blob += kept.tobytes()
        entries[name] = {"fingerprint": given.fingerprint, "outputs": outputs}
        if given.error is not None:
            entries[name]["error"] = given.error
        if given.tensor_maps:
            entries[name]["tensor_maps"] = {n: raw.hex() for n, raw in given.tensor_maps.items()}
    folder.mkdir(parents=True, exist_ok=True)
    packed = lzma.compress(bytes(blob), preset=9 | lzma.PRESET_EXTREME)
    (folder / "answers.xz").write_bytes(packed)
    rows = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(entry, separators=(',', ':'))}"
        for name, entry in entries.items()
    )
    head = json.dumps({"schema": SCHEMA, "machine": dict(machine)})[:-1]
    manifest = f'{head}, "answers": {{\n{rows}\n}}}}\n'
    (folder / "manifest.json").write_text(manifest)
    return len(packed) + len(manifest)


def read(folder: Path = FOLDER) -> Record | None:
    """The record in a folder, or None where there is none."""
    path = folder / "manifest.json"
    if not path.exists():
        return None
    manifest = json.loads(path.read_text())
    assert manifest["schema"] == SCHEMA, manifest["schema"]
    blob = lzma.decompress((folder / "answers.xz").read_bytes())
    answers = {}
    for name, entry in manifest["answers"].items():
        outputs = {
            output: np.frombuffer(
                blob, kept["dtype"], int(np.prod(kept["shape"], dtype=np.int64)), kept["at"]
            ).reshape(kept["shape"])
            for output, kept in entry["outputs"].items()
        }
        answers[name] = Answer(
            fingerprint=entry["fingerprint"],
            error=entry.get("error"),
            outputs=outputs,
            digested=frozenset(n for n, kept in entry["outputs"].items() if kept["digested"]),
            tensor_maps={n: bytes.fromhex(h) for n, h in entry.get("tensor_maps", {}).items()},
        )
    return Record(machine=manifest["machine"], answers=answers)

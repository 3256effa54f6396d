"""Every snippet: clean on the emulator, and equal to what a GPU answered (the kept record)."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tests.emulator.snippets import compare, emulated, record
from tests.emulator.snippets.library import library

from hopwell.emulator import tensor_map
from hopwell.emulator.registry import UnsupportedInstruction
from hopwell.errors import UnsupportedLayout

#: Bytes that all of the record may take.
BUDGET = 1_500_000

#: What the emulator refuses, by name, and why. Each is a blind spot that a test run shows.
NOT_MODELLED = {
    "atomic/compare and swap": "atomics of 128 bits",
}


@functools.cache
def _record() -> record.Record | None:
    return record.read()


def _answer(name: str) -> record.Answer:
    """The GPU's answer to this very snippet; without one, the test is skipped and says why."""
    kept = _record()
    if kept is None:
        pytest.skip("no GPU has answered: there is no record")
    answer = kept.answers.get(name)
    if answer is None:
        pytest.skip("no GPU has answered this snippet")
    if answer.fingerprint != library()[name].fingerprint:
        pytest.skip("stale: the GPU answered another version of this snippet")
    if answer.error is not None and not library()[name].refused:
        pytest.skip(f"the GPU gave no answer: {answer.error}")
    return answer


@pytest.mark.parametrize("name", library())
def test_agrees_with_the_gpu(name: str) -> None:
    snippet = library()[name]
    if name in NOT_MODELLED:
        with pytest.raises((UnsupportedInstruction, UnsupportedLayout)):
            emulated.run(snippet)
        pytest.skip(f"not modelled: {NOT_MODELLED[name]}")
    report, outputs = emulated.run(snippet)
    assert tuple(report.rules) == snippet.hazards
    if snippet.refused:
        assert snippet.refused in (_answer(name).error or "")
        return
    assert not report.runs[0].deadlock
    answer = _answer(name)
    for output in snippet.outputs:
        kept, computed = answer.outputs[output.name], outputs[output.name]
        if output.name in answer.digested:
            found = record.digests(compare.canonical(output, computed))
            chunks = np.flatnonzero(found != kept) * record.CHUNK
            assert not chunks.size, _chunks(snippet.lines, chunks, computed.shape)
        else:
            wrong = compare.differences(snippet, output, kept, computed)
            assert not wrong.any(), compare.explain(snippet, output, wrong, kept, computed)


def _chunks(lines: tuple[str, ...], starts: np.ndarray, shape: tuple[int, ...]) -> str:
    """Where digests differ: rows by their instruction, elements by range."""
    words = [f"{starts.size} chunks of {record.CHUNK} elements disagree"]
    for start in starts[:8]:
        row, element = divmod(int(start), shape[-1])
        line = lines[row] if row < len(lines) else f"row {row}"
        words.append(f"  {line}: elements {element} to {element + record.CHUNK - 1}")
    return "\n".join(words)


@pytest.mark.parametrize("name", [n for n, s in library().items() if s.tensor_maps])
def test_tensor_maps_are_those_of_the_driver(name: str) -> None:
    answer = _answer(name)
    if answer.error is not None:
        return  # refused before there was an answer
    for argument in library()[name].tensor_maps:
        decoded = tensor_map.decode(answer.tensor_maps[argument.name])
        assert decoded == emulated.described(argument, decoded.address - argument.offset)


def test_record_holds_no_forgotten_snippets_and_keeps_its_budget() -> None:
    kept = _record()
    if kept is None:
        pytest.skip("no GPU has answered: there is no record")
    assert set(kept.answers) <= set(library())
    assert sum(path.stat().st_size for path in record.FOLDER.iterdir()) <= BUDGET


def test_what_is_not_modelled_exists() -> None:
    assert set(NOT_MODELLED) <= set(library())

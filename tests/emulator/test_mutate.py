"""Mutations of PTX: what each operator makes, that it assembles, and what kills it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.emulator.snippets.emulated import launch_of
from tests.emulator.snippets.library import library

from hopwell.emulator import mutate
from hopwell.emulator.mutate import OPERATORS, Matrix, Mutant, Outcome, Row, mutants
from hopwell.errors import InputError
from hopwell.ptx.parser import parse

#: Snippets that hold what every operator changes.
SOURCES = (
    "bulk/ring",
    "bulk/store",
    "bulk/reduce to peer add.u32",
    "barrier/arrive and sync",
    "cluster/remote arrive",
    "cp.async/groups",
    "mbarrier/bytes",
    "mbarrier/handover",
    "memory/clocks",
    "memory/ld qualifiers",
    "memory/st qualifiers",
    "tensor/store 2d",
    "warp/vote",
    "wgmma/two groups",
)


def _mutants(name: str) -> list[Mutant]:
    return list(mutants(parse(library()[name].text, f"{name}.ptx")))


def _one(name: str, operator: str, description: str = "") -> Mutant:
    found = [m for m in _mutants(name) if m.operator == operator and description in m.description]
    assert found, (operator, description)
    return found[0]


def test_every_operator_is_exercised() -> None:
    made = Counter(m.operator for name in SOURCES for m in _mutants(name))
    assert set(made) == set(OPERATORS)


@pytest.mark.parametrize("name", SOURCES)
def test_a_mutant_differs_by_one_instruction_and_reads_back(name: str) -> None:
    text = library()[name].text
    module = parse(text)
    before = list(module.entries[0].instructions())
    found = _mutants(name)
    assert len({m.key for m in found}) == len(found)
    for mutant in found:
        after = list(mutant.module.entries[0].instructions())
        assert after != before
        at, more = mutant.number, len(after) - len(before)
        assert after[:at] == before[:at]
        assert after[at + 1 + more :] == before[at + 1 :]
        assert before[at] == mutant.instruction
        assert mutant.location.line > 0
        assert parse(mutant.text) == mutant.module


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("name", SOURCES)
def test_mutants_assemble(name: str, tmp_path: Path) -> None:
    tried = set()
    for mutant in _mutants(name):
        kind = (mutant.operator, mutant.change, mutant.instruction.opcode)
        if kind in tried:
            continue
        tried.add(kind)
        source = tmp_path / "mutant.ptx"
        source.write_text(mutant.text)
        command = ["ptxas", "-arch=sm_90a", str(source), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{mutant.key}: {mutant.description}: {done.stderr}"


@pytest.mark.parametrize(
    ("operator", "description", "text"),
    [
        ("wait removed", "", "setp.eq.u32 %p60, 0, 0;"),
        ("expect removed", "", "mbarrier.arrive.shared.b64 _, [%r8];"),
        ("parity changed", "inverted", "xor.b32 hopwell_mutant_word, %r6, 1;"),
        ("parity changed", "always 1", "[%r7], 1;"),
        ("bytes changed", "16 bytes fewer", "mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 496;"),
        ("count changed", "+1", "mbarrier.init.shared.b64 [full], 2;"),
        ("other mbarrier", "", "[%r7+8]"),
    ],
)
def test_what_stands_in_the_mutant(operator: str, description: str, text: str) -> None:
    mutant = _one("bulk/ring", operator, description)
    assert text in mutant.text
    assert text not in library()["bulk/ring"].text


def test_a_count_of_one_is_not_lowered() -> None:
    lowered = [
        m for m in _mutants("bulk/ring")
        if m.operator == "count changed" and m.description.startswith("-1")
    ]  # fmt: skip
    assert [m.instruction.operands[-1].value for m in lowered] == [32, 32]  # type: ignore[union-attr]


def test_the_matrix_names_what_kills(tmp_path: Path) -> None:
    name = "bulk/load to shared::cta"
    launch, _ = launch_of(library()[name])
    judged = mutate.judge(launch, seeds=2)
    assert judged(launch.ptx).killed_by == "survived"
    chosen = [
        _one(name, "wait removed"),
        _one(name, "bytes changed", "16 bytes more"),
        _one(name, "init removed"),
    ]
    seen: list[Row] = []
    matrix = mutate.run(chosen, judged, "a hash", processes=2, finished=seen.append)
    assert [row.key for row in matrix.rows] == [mutant.key for mutant in chosen]
    assert sorted(row.key for row in seen) == sorted(row.key for row in matrix.rows)
    assert matrix.survivors == ()
    assert "bytes-in-flight" in matrix.rows[0].outcome.rules
    assert matrix.rows[1].outcome.killed_by in ("hazard", "deadlock")
    assert "uninitialised-barrier" in matrix.rows[2].outcome.rules
    record = tmp_path / "matrix.json"
    matrix.write(record)
    assert Matrix.read(record) == matrix
    assert matrix.to_json()["killed"] == 3


def test_what_is_not_clean_is_not_judged() -> None:
    launch, _ = launch_of(library()["bulk/load to shared::cta"])
    broken = _one("bulk/load to shared::cta", "wait removed")
    with pytest.raises(InputError, match="a run without hazards"):
        mutate.judge(dataclasses.replace(launch, ptx=broken.text))


def test_every_end_is_told_apart() -> None:
    chosen = _mutants("bulk/ring")[:5]
    ends = {
        chosen[0].text: Outcome(rules=("stale-phase",), deadlock=True),
        chosen[1].text: Outcome(right=False),
        chosen[2].text: Outcome(),
    }

    def judged(text: str) -> Outcome:
        if text in ends:
            return ends[text]
        if text == chosen[3].text:
            time.sleep(60)
        raise ValueError("no such thing")

    matrix = mutate.run(chosen, judged, "a hash", seconds=2.0)
    killed = [row.outcome.killed_by for row in matrix.rows]
    assert killed == ["hazard", "wrong result", "survived", "timeout", "error"]
    assert matrix.rows[4].outcome.error == "ValueError: no such thing"
    (survivor,) = matrix.unexplained
    assert survivor.key == chosen[2].key
    explained = matrix.explained({survivor.key: "equivalent: the loop has ended"})
    assert explained.unexplained == ()
    assert "equivalent: the loop has ended" in explained.table()
    assert "not explained" in matrix.table()


def test_a_process_that_dies_is_an_error() -> None:
    (mutant,) = _mutants("bulk/ring")[:1]
    matrix = mutate.run([mutant], lambda text: os._exit(3), "a hash")
    assert matrix.rows[0].outcome.error == "the process ended with 3"


def test_of_two_entries_one_is_named() -> None:
    twice = library()["bulk/store"].text
    second = library()["warp/vote"].source.replace("snippet(", "other(")
    module = parse(twice + second)
    found = list(mutants(module, "other"))
    assert {m.kernel for m in found} == {"other"}
    unchanged = dataclasses.replace(found[0].module).entries[0]
    assert unchanged == module.entries[0]
    with pytest.raises(KeyError):
        list(mutants(module, "absent"))

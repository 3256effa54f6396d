"""Every rule has a kernel that breaks it and a control that does not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.emulator.rules import loops
from tests.emulator.rules.pair import Pair, kernel, launch_of, output_of
from tests.emulator.rules.table import PAIRS

from hopwell.emulator.api import emulate
from hopwell.emulator.hazards.report import HazardGroup
from hopwell.emulator.hazards.rules import RULES

FAILING_SEEDS, CLEAN_SEEDS = 6, 12

each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)


def test_every_rule_has_a_pair() -> None:
    assert {pair.rule for pair in PAIRS} == set(RULES)


def test_templates_differ_and_are_marked() -> None:
    for pair in PAIRS:
        assert pair.ptx(failing=True) != pair.ptx(failing=False), pair.id
        assert pair.marks(), pair.id


def _sides(pair: Pair, group: HazardGroup) -> None:
    """The report names the marked instructions, in their order where it is fixed."""
    marks = pair.marks()
    hazard = group.example
    first = None if hazard.first is None else hazard.first.location
    second = hazard.second.location
    assert second is not None
    if "first" in marks:
        assert first is not None
        assert {first.line} <= marks["first"]
        assert {second.line} <= marks["second"]
    elif "side" in marks:
        lines = {second.line} | ({first.line} if first is not None else set())
        assert lines <= marks["side"]
    else:
        assert {second.line} <= marks["seen"]


@each_pair
def test_failing(pair: Pair) -> None:
    report, _ = pair.run(failing=True, seeds=FAILING_SEEDS)
    for run in report.runs:
        assert {group.rule for group in run.groups} == {pair.rule}, f"seed {run.seed}"
        for group in run.groups:
            _sides(pair, group)
            assert pair.says(group.example.missing), group.example.missing
            assert group.example.ptx_section.startswith("PTX ISA")
    assert not report.clean


@each_pair
def test_clean(pair: Pair) -> None:
    report, output = pair.run(failing=False, seeds=CLEAN_SEEDS)
    assert report.clean, [(g.rule, g.example) for g in report.groups] or report.runs[0].deadlock
    assert report.same_results
    expected = np.asarray(pair.result(np.arange(1, 513, dtype=np.uint32)), np.uint32)
    np.testing.assert_array_equal(output[: len(expected)], expected)


@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 7])
def test_pipelines_from_no_tile_to_several(tiles: int) -> None:
    launch = launch_of(kernel(loops.pipeline(tiles), loops.SHARED), block=64)
    report = emulate(launch, seeds=CLEAN_SEEDS)
    assert report.clean, [(g.rule, g.example) for g in report.groups]
    given = np.arange(1, 32 * tiles + 1, dtype=np.uint32).reshape(tiles, 32)
    np.testing.assert_array_equal(output_of(launch)[:32], given.sum(0))


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
@each_pair
@pytest.mark.parametrize("failing", [True, False], ids=["failing", "clean"])
def test_ptxas_accepts(pair: Pair, failing: bool, tmp_path: Path) -> None:
    source = tmp_path / "kernel.ptx"
    source.write_text(pair.ptx(failing))
    done = subprocess.run(
        ["ptxas", "-arch=sm_90a", str(source), "-o", os.devnull],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""``hopwell bench emulator``: what it measures of a saved launch, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.emulator import pipeline_kernel

from hopwell import cli
from hopwell.bench import emulator as bench
from hopwell.commands import bench as command
from hopwell.commands.display import console
from hopwell.emulator import emulate
from hopwell.errors import MeasurementError


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "double.launch"
    pipeline_kernel.launch().save(path)
    return path


def test_a_launch_is_measured_with_hazards_on_and_off(saved: Path) -> None:
    told: list[str] = []
    on, off = bench.measure({"double": saved}, told.append)
    assert told == ["double, hazards on", "double, hazards off"]
    assert (on.hazards, off.hazards) == (True, False)
    (run,) = emulate(pipeline_kernel.launch()).runs
    assert on.instructions == off.instructions == run.instructions
    assert on.results == off.results == run.results
    assert on.clean
    for row in (on, off):
        assert 0 < row.run_seconds <= row.seconds
        assert row.instructions_per_second == pytest.approx(row.instructions / row.run_seconds)


def test_peak_memory_is_the_emulators_own(saved: Path) -> None:
    """NumPy and the emulator take some tens of MiB; this process, with PyTorch, takes more."""
    row, _ = bench.measure({"double": saved}, lambda step: None)
    assert 20 << 20 < row.peak_bytes < 200 << 20


def test_what_fails_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.launch"
    broken.write_bytes(b"no archive")
    with pytest.raises(MeasurementError, match=r"broken\.launch"):
        bench.measure({"broken": broken}, lambda step: None)


def test_our_forward_is_compiled_and_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, saved: Path
) -> None:
    pytest.importorskip("cutlass")
    record = tmp_path / "records" / "emulator.json"
    arguments = ("bench", "emulator", "--launch", str(saved), "--output", str(record), "--json")
    monkeypatch.setattr(sys, "argv", ["hopwell", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    report = json.loads(capsys.readouterr().out)
    assert (left.value.code, report["ok"]) == (0, True), report
    assert [row["workload"] for row in report["rows"]] == [bench.PEER] * 2 + [bench.OURS] * 2
    written = json.loads(record.read_text())
    assert written["schema"] == "hopwell.bench.emulator/1"
    assert written["rows"] == report["rows"]
    assert report["rows"][2]["instructions"] > 50_000
    monkeypatch.setenv("COLUMNS", "160")
    command.render_emulator(report, console())
    assert "hopwell forward" in capsys.readouterr().out

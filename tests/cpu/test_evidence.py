"""Evidence: a record counts for the artifact that it names and for no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopwell.bench import record as records
from hopwell.commands import evidence
from hopwell.errors import InputError
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

PLAN = shipped_forward_plans()[0]
CURRENT = "c" * 64


@pytest.fixture(autouse=True)
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first plan is compiled here, as CURRENT."""

    def find(plan: HopperForwardPlan) -> Any:
        manifest = SimpleNamespace(artifact_hash=CURRENT)
        return (SimpleNamespace(manifest=manifest), "cache") if plan == PLAN else None

    monkeypatch.setattr(evidence, "find", find)


def write(directory: Path, name: str, created: str, artifact: str, *rungs: str) -> None:
    made = records.Artifact(PLAN.name, "k" * 64, artifact, "symbol", "cache", rungs)
    identity = records.Identity("0", None, None, "s" * 64, {}, (made,))
    environment = records.Environment(None, None, None, None, "2", "3", "linux")
    record = records.Record(records.TESTS_GPU, created, identity, environment)
    records.write(record, directory / name)


def claims(directory: Path) -> dict[str, Any]:
    report = evidence.report(directory, "derived")
    kernel = next(row for row in report["kernels"] if row["plan_name"] == PLAN.name)
    claims: dict[str, Any] = kernel["claims"]
    return claims


def test_no_record_proves_nothing_beyond_compiled(tmp_path: Path) -> None:
    states = {rung: claim["state"] for rung, claim in claims(tmp_path).items()}
    assert states == {
        "derived": "reached",
        "compiled": "reached",
        "emulated": "not reached",
        "executed": "not reached",
        "timed": "not reached",
    }


def test_record_of_the_current_artifact_counts(tmp_path: Path) -> None:
    write(tmp_path, "run.json", "2026-01-01T00:00:00Z", CURRENT, "executed")
    found = claims(tmp_path)
    assert found["executed"] == {"state": "reached", "by": "run.json"}
    assert found["timed"] == {"state": "not reached", "by": None}


def test_record_of_another_artifact_is_stale(tmp_path: Path) -> None:
    write(tmp_path, "old.json", "2026-01-01T00:00:00Z", "d" * 64, "executed", "timed")
    assert claims(tmp_path)["executed"] == {"state": "stale", "by": "old.json"}
    # The newer record is of the current artifact: it wins, and the timing stays stale.
    write(tmp_path, "new.json", "2026-01-02T00:00:00Z", CURRENT, "executed")
    found = claims(tmp_path)
    assert found["executed"] == {"state": "reached", "by": "new.json"}
    assert found["timed"] == {"state": "stale", "by": "old.json"}


def test_a_newer_stale_record_does_not_hide_the_current_one(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "2026-01-01T00:00:00Z", CURRENT, "timed")
    write(tmp_path, "b.json", "2026-01-02T00:00:00Z", "d" * 64, "timed")
    assert claims(tmp_path)["timed"] == {"state": "reached", "by": "a.json"}


def test_a_failed_newest_test_run_takes_the_claim_away(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "2026-01-01T00:00:00Z", CURRENT, "executed", "timed")
    write(tmp_path, "b.json", "2026-01-02T00:00:00Z", CURRENT)
    assert claims(tmp_path)["executed"] == {"state": "not reached", "by": None}
    write(tmp_path, "c.json", "2026-01-03T00:00:00Z", CURRENT, "executed")
    assert claims(tmp_path)["executed"] == {"state": "reached", "by": "c.json"}


def test_what_is_not_compiled_here_is_unknown_and_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "run.json", "2026-01-01T00:00:00Z", CURRENT, "executed")
    monkeypatch.setattr(evidence, "find", lambda plan: None)
    found = claims(tmp_path)
    assert found["executed"] == {"state": "unknown (not compiled here)", "by": None}
    assert found["timed"] == {"state": "not reached", "by": None}


def test_a_directory_that_is_missing_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Run in a clone, or give --records"):
        evidence.report(tmp_path / "nowhere", "derived")


def test_required_rung_decides(tmp_path: Path) -> None:
    assert evidence.report(tmp_path, "derived")["ok"]
    assert not evidence.report(tmp_path, "compiled")["ok"]  # all the other plans are not


def test_unknown_rung_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rung"):
        evidence.report(tmp_path, "believed")


def test_a_file_that_is_no_record_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(InputError, match=r"broken\.json"):
        evidence.report(tmp_path, "derived")

"""The GPU tests' own bookkeeping: skipped aloud without a GPU, and never crediting a failure."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hopwell.bench import record

GPU_TESTS = Path(__file__).parents[1] / "gpu"


@pytest.fixture(scope="module")
def conftest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_conftest", GPU_TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(node: str, outcome: Any, when: Any = "call") -> pytest.TestReport:
    location = ("", None, "")
    return pytest.TestReport(f"tests/gpu/test_x.py::{node}", location, {}, outcome, None, when)


def artifact(name: str) -> record.Artifact:
    return record.Artifact(f"plan {name}", "key", name, "symbol", "wheel", ())


def test_without_a_gpu_every_test_is_skipped_with_the_reason() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(GPU_TESTS), "-q", "-rs", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "needs a Hopper GPU: PyTorch sees no CUDA device" in done.stdout
    assert " passed" not in done.stdout.splitlines()[-1]


def test_an_artifact_counts_as_executed_only_if_its_tests_passed(
    conftest: ModuleType, tmp_path: Path
) -> None:
    coverage = conftest.Coverage(tmp_path / "tests.json", "abc")
    coverage.artifacts = {name: artifact(name) for name in ("good", "bad")}
    coverage.tests = {"good": {"test_a[x]", "test_b"}, "bad": {"test_b", "test_c"}}
    for entry in (
        report("test_a[x]", "passed"),
        report("test_a[x]", "passed", "teardown"),
        report("test_b", "passed"),
        report("test_c", "failed"),
        report("test_d", "skipped", "setup"),
    ):
        coverage.pytest_runtest_logreport(entry)
    coverage.pytest_sessionfinish()
    written = record.read(tmp_path / "tests.json")
    assert written.kind == record.TESTS_GPU
    assert written.outcomes == {"passed": 2, "failed": 1, "skipped": 1}
    assert written.identity.commit == "abc"
    found = {entry.artifact_hash: entry for entry in written.identity.artifacts}
    assert found["good"].rungs == ("executed",)
    assert found["good"].tests == ("test_a[x]", "test_b")
    assert found["bad"].rungs == ()
    assert written.notes == ("failed: tests/gpu/test_x.py::test_c",)


def test_nothing_executed_writes_no_record(conftest: ModuleType, tmp_path: Path) -> None:
    conftest.Coverage(tmp_path / "tests.json", None).pytest_sessionfinish()
    assert not list(tmp_path.iterdir())

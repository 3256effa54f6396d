"""The GPU tests' own bookkeeping: skipped aloud without a GPU, and never crediting a failure."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

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
    assert "needs a Hopper GPU: no CUDA device" in done.stdout
    assert " passed" not in done.stdout.splitlines()[-1]


def test_required_gpu_that_is_not_there_is_a_failure() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    command = [sys.executable, "-m", "pytest", str(GPU_TESTS), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "--require-gpu"], capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs a Hopper GPU: no CUDA device" in done.stderr


def test_make_requires_the_gpu_and_names_each_record_anew() -> None:
    makefile = (GPU_TESTS.parents[1] / "Makefile").read_text()
    assert "pytest tests/gpu --require-gpu --record benchmarks/records\n" in makefile


def test_a_record_gets_a_name_of_its_own_in_a_directory(
    conftest: ModuleType, tmp_path: Path
) -> None:
    path = conftest.record_path(tmp_path, "0123456789abcdef")
    assert path.parent == tmp_path
    assert re.fullmatch(r"tests-gpu-\d{8}T\d{6}Z-0123456\.json", path.name)
    assert conftest.record_path(tmp_path / "new.json", None) == tmp_path / "new.json"
    (tmp_path / "old.json").touch()
    with pytest.raises(pytest.UsageError, match="never edited"):
        conftest.record_path(tmp_path / "old.json", None)


@pytest.mark.parametrize("required", [False, True])
def test_a_variant_that_cannot_run_is_skipped_or_fails(
    required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gpu import test_variants

    from hopwell.errors import CompilerMissing
    from plan_variants import VARIANTS

    def load(plan: Any) -> Any:
        raise CompilerMissing(plan.name, expected="a compiler", actual="none", consequence="None.")

    monkeypatch.setattr("hopwell.compile.load", load)
    request = SimpleNamespace(config=SimpleNamespace(getoption=lambda name: required))
    wanted = pytest.fail.Exception if required else pytest.skip.Exception
    with pytest.raises(wanted, match="no compiler"):
        test_variants.test_variant(cast(Any, None), cast(Any, request), next(iter(VARIANTS)))


def test_what_a_test_executes_is_credited_by_plan(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shipped plans and variants alike: both go through the same call."""
    monkeypatch.setattr(conftest, "artifact_of", lambda plan, rungs: artifact(plan))
    coverage = conftest.Coverage(None, None)
    assert coverage.executed("variant", "test_a") == "variant"
    coverage.executed("variant", "test_b")
    assert coverage.tests == {"variant": {"test_a", "test_b"}}
    assert list(coverage.artifacts) == ["variant"]


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


def test_a_kernel_from_elsewhere_fails_a_run_of_the_wheel(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(name="plan a")
    for source, made in (("cache", artifact("a")), ("wheel", artifact("b"))):
        found = replace(made, source=source)
        monkeypatch.setattr(conftest, "artifact_of", lambda *_, found=found: found)
        assert conftest.Coverage(None, None).executed(plan, "t") == made.artifact_hash
        coverage = conftest.Coverage(None, None, "wheel")
        if source == "wheel":
            assert coverage.executed(plan, "t") == made.artifact_hash
        else:
            with pytest.raises(AssertionError, match="plan a is from cache"):
                coverage.executed(plan, "t")
    makefile = (GPU_TESTS.parents[1] / "Makefile").read_text()
    assert "pytest tests/gpu --require-gpu --expect-source wheel" in makefile

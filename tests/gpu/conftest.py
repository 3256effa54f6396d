"""GPU tests: every result is tied to the kernel that made it, so that no fallback can pass.

``attend`` runs :func:`hopwell.attention` and asserts from the dispatch record that the Hopper
backend ran the shipped plan of the problem's bucket, under a kernel symbol. ``attend.check`` also
holds the result against float64, within the budget of a same-precision result (see
:func:`hopwell.bench.accuracy.budget`) and the log-sum-exp's tolerance.

``--record PATH`` (or ``HOPWELL_TEST_RECORD``) writes which artifacts the run covered;
``--require-gpu`` fails where tests would otherwise be skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hopwell
from hopwell.bench import accuracy, environment
from hopwell.bench.forward import artifact_of
from hopwell.bench.grid import Cell
from hopwell.bench.inputs import draw
from hopwell.bench.record import TESTS_GPU, Artifact, Record, write
from hopwell.dispatch import DispatchRecord
from hopwell.hopper.device import why_not_hopper
from hopwell.hopper.plan import HopperForwardPlan, bucket_of, forward_plan

HERE = Path(__file__).parent
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", help="write a record of the covered artifacts: a new file, or a directory"
    )
    parser.addoption("--commit", help="commit named in the record; git's if absent")
    parser.addoption("--expect-source", help="where every kernel must come from, such as wheel")
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail, instead of skipping, what lacks a Hopper GPU or a compiled kernel",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a Hopper GPU")
    # Options exist only where this directory was named on pytest's command line.
    record = config.getoption("--record", None) or os.environ.get("HOPWELL_TEST_RECORD")
    commit = config.getoption("--commit", None)
    path = record_path(Path(record), commit) if record else None
    coverage = Coverage(path, commit, config.getoption("--expect-source", None))
    config.pluginmanager.register(coverage, "hopwell-coverage")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    reason = why_not_hopper()
    if mine and reason is not None and config.getoption("--require-gpu", False):
        raise pytest.UsageError(f"--require-gpu: needs a Hopper GPU: {reason}")
    for item in mine:
        item.add_marker("gpu")
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a Hopper GPU: {reason}"))


def record_path(wanted: Path, commit: str | None) -> Path:
    """Where the record goes: ``wanted``, or in that directory under a name that is new."""
    path = wanted / environment.record_name("tests-gpu", commit) if wanted.is_dir() else wanted
    if path.exists():
        raise pytest.UsageError(f"--record: {path} is there, and a record is never edited")
    return path


class Coverage:
    """Which artifact was executed by which test; written as a record when the session ends."""

    def __init__(self, path: Path | None, commit: str | None, source: str | None = None) -> None:
        self.path = path
        self.commit = commit
        self.source = source
        self.artifacts: dict[str, Artifact] = {}
        self.tests: dict[str, set[str]] = {}
        self.outcomes = {"passed": 0, "failed": 0, "skipped": 0}
        self.failures: list[str] = []

    def executed(self, plan: HopperForwardPlan, test: str) -> str:
        """Credit the process's kernel of a plan to a test; gives the artifact's hash."""
        artifact = artifact_of(plan, ())
        key = artifact.artifact_hash
        self.artifacts.setdefault(key, artifact)
        assert self.source in (None, artifact.source), f"{plan.name} is from {artifact.source}"
        self.tests.setdefault(key, set()).add(test)
        return key

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1
        if report.failed:
            self.failures.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        if self.path is not None and self.artifacts:
            write(self.record(), self.path)

    def record(self) -> Record:
        """An artifact counts as executed only when every test that ran it passed."""
        failed = {node.split("::", 1)[-1] for node in self.failures}
        artifacts = [
            replace(
                artifact,
                tests=tuple(sorted(self.tests[key])),
                rungs=() if self.tests[key] & failed else ("executed",),
            )
            for key, artifact in self.artifacts.items()
        ]
        return Record(
            kind=TESTS_GPU,
            created=environment.now(),
            identity=environment.identity(artifacts, commit=self.commit),
            environment=environment.environment(),
            outcomes=self.outcomes,
            notes=tuple(f"failed: {node}" for node in self.failures),
        )


class Attend:
    """Runs attention and insists on the Hopper kernel."""

    device = "cuda"

    def __init__(self, executed: Callable[[HopperForwardPlan], str]) -> None:
        #: Credits a plan's kernel to the running test; gives the artifact's hash.
        self.executed = executed

    def draw(
        self,
        batch: int,
        lengths: tuple[int, int],
        heads: tuple[int, int],
        dims: tuple[int, int],
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
    ) -> Triple:
        """Standard normal q, k, v: (query, key) lengths and heads, (head_dim, head_dim_v)."""
        name = str(dtype).removeprefix("torch.")
        cell = Cell(batch, *lengths, *heads, *dims, causal=False, dtype=name)
        return draw(cell, seed, self.device)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) of one call that the shipped kernel of the bucket must have computed."""
        with hopwell.record_dispatch() as calls:
            out, lse = hopwell.attention(q, k, v, return_lse=True, **arguments)
        (ran,) = calls
        self.assert_kernel(ran, q, v, bool(arguments.get("causal", False)))
        return out, lse

    def profile(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **arguments: Any
    ) -> tuple[DispatchRecord, list[str]]:
        """One call's record, and all that the device did for it: kernels, copies and fills."""
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            with hopwell.record_dispatch() as calls:
                hopwell.attention(q, k, v, **arguments)
            torch.cuda.synchronize()
        (ran,) = calls
        events = profiler.events() or []
        return ran, [event.name for event in events if event.device_type.name == "CUDA"]

    def assert_kernel(
        self, ran: DispatchRecord, q: torch.Tensor, v: torch.Tensor, causal: bool
    ) -> None:
        """The record names the Hopper backend, the bucket's shipped plan, and a real kernel."""
        dtype = str(q.dtype).removeprefix("torch.")
        bucket = bucket_of(q.shape[3], v.shape[3])
        assert bucket is not None
        assert ran.backend == "hopper"
        assert ran.fallback is None
        # A single query sees every key: the problem's canonical form has no mask then.
        assert ran.plan == forward_plan(dtype, bucket, causal and q.shape[1] > 1)
        assert ran.kernel_symbol
        assert ran.compile_key
        assert ran.cache in ("memory", "hit", "wheel", "compiled")
        assert ran.plan is not None
        assert self.executed(ran.plan) == ran.artifact_hash

    def check(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
        pairs: int = 4096,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run and compare up to ``pairs`` (batch, head) pairs with float64."""
        out, lse = self(q, k, v, causal=causal, scale=scale)
        self.compare(out, lse, (q, k, v), causal=causal, scale=scale, pairs=pairs)
        return out, lse

    def compare(
        self,
        out: torch.Tensor,
        lse: torch.Tensor,
        inputs: Triple,
        *,
        causal: bool = False,
        scale: float | None = None,
        pairs: int = 4096,
    ) -> None:
        q, _, v = inputs
        assert out.shape == (*q.shape[:3], v.shape[3])
        assert out.dtype == q.dtype
        assert lse.shape == (q.shape[0], q.shape[2], q.shape[1])
        assert lse.dtype == torch.float32
        factor = q.shape[3] ** -0.5 if scale is None else scale
        chosen = accuracy.spread_pairs(q.shape[0], q.shape[2], pairs)
        expected = accuracy.reference(*inputs, causal=causal, scale=factor, pairs=chosen)
        allowed = accuracy.budget(*inputs, expected, causal=causal, scale=factor)
        broken = allowed.broken_by(accuracy.errors(out, lse, expected))
        assert not broken, f"{tuple(q.shape)} x {tuple(v.shape)} causal={causal}: {broken}"


@pytest.fixture
def attend(request: pytest.FixtureRequest) -> Iterator[Attend]:
    coverage = request.config.pluginmanager.get_plugin("hopwell-coverage")
    assert isinstance(coverage, Coverage)
    test = request.node.nodeid.split("::", 1)[-1]
    with torch.no_grad():
        yield Attend(lambda plan: coverage.executed(plan, test))
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            # No later test could say anything: the process has lost its device.
            pytest.exit(f"CUDA context lost in {test}: {error}", returncode=3)

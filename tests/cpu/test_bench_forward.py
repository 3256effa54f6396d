"""The forward benchmark's own honesty, on CPU tensors: what is wrong or unknown is not credited."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cpu.conftest import StandIn
from tests.cpu.test_bench_record import synthetic

from hopwell.bench import accuracy, environment, forward, new_process, record
from hopwell.bench.grid import Cell
from hopwell.bench.inputs import draw
from hopwell.bench.peers import PEERS, available_peers
from hopwell.errors import InputError, MeasurementError
from hopwell.hopper import device
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

CELL = Cell(1, 40, 50, 2, 1, 64, 64, causal=True)
INPUTS = draw(CELL, 0, "cpu")


@pytest.fixture
def session(
    stand_in: dict[HopperForwardPlan, StandIn], monkeypatch: pytest.MonkeyPatch
) -> forward._Session:
    """A session whose Hopper kernels are played by PyTorch on the CPU."""

    def artifact_of(plan: HopperForwardPlan, rungs: tuple[str, ...]) -> record.Artifact:
        return record.Artifact(plan.name, "key", "hash", "symbol", "wheel", rungs)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(forward, "artifact_of", artifact_of)
    return forward._Session([forward.ours()], [], None, forward.Options(commit="abc"))


def check(session: forward._Session) -> record.Row:
    expected = accuracy.reference(*INPUTS, causal=True, scale=CELL.scale)
    with torch.no_grad():
        return session._check(session.peers[0], CELL, INPUTS, "label", expected)


def spoil(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    right = forward._call_ours
    monkeypatch.setattr(forward, "_call_ours", lambda *arguments: change(*right(*arguments)))


def test_a_right_kernel_is_credited_with_where_it_came_from(session: forward._Session) -> None:
    for _ in range(2):  # the second call finds the kernel in memory: the row says the same
        row = check(session)
        assert row.dispatch.cache == "wheel"
        assert row.dispatch.kernel_symbol == "symbol"
        assert row.correctness is not None
        assert "row_max <= " in row.correctness.tolerance
    assert session.artifacts["hash"].rungs == ("executed",)


@pytest.mark.parametrize("part", [0, 1], ids=["out", "lse"])
def test_a_wrong_kernel_is_neither_credited_nor_timed(
    session: forward._Session, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Finite and only a little off: 3% of the output, or 1e-3 of the log-sum-exp."""

    def change(out: torch.Tensor, lse: torch.Tensor, ran: Any) -> Any:
        return (out * 1.03, lse, ran) if part == 0 else (out, lse + 1e-3, ran)

    spoil(monkeypatch, change)
    with pytest.raises(MeasurementError, match=["frobenius", "lse"][part]) as caught:
        check(session)
    assert not isinstance(caught.value, InputError)
    assert not session.artifacts


@pytest.mark.parametrize("missing", ["artifact_hash", "kernel_symbol"])
def test_a_kernel_without_a_name_is_not_credited(
    session: forward._Session, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    spoil(monkeypatch, lambda out, lse, ran: (out, lse, ran._replace(**{missing: None})))
    with pytest.raises(MeasurementError, match="artifact hash and a symbol"):
        check(session)
    assert not session.artifacts


# -- resuming ------------------------------------------------------------------------------------


def shipped(hash_: str) -> record.Record:
    """A record of the machine that runs the test, with a kernel that it holds as ``hash_``."""
    artifact = record.Artifact(
        shipped_forward_plans()[0].name, "key", hash_, "symbol", "wheel", ("executed",)
    )
    entry = synthetic()
    return replace(entry, identity=environment.identity([artifact], commit="abc"))


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        class manifest:
            artifact_hash = "h1"

    monkeypatch.setattr("hopwell.compile.find", lambda plan: (Found, "wheel"))


@pytest.mark.usefixtures("holds")
def test_a_record_is_resumed_by_what_made_it() -> None:
    previous = shipped("h1")
    forward.refuse_mixture(previous, environment.identity(commit="abc"), previous.environment)


def _other_gpu(entry: record.Record) -> record.Record:
    gpu = entry.environment.gpu
    assert gpu is not None
    changed = replace(entry.environment, gpu=replace(gpu, name="NVIDIA H100"))
    return replace(entry, environment=changed)


DIFFERENT: dict[str, Any] = {
    "sources": lambda r: replace(r, identity=replace(r.identity, source_sha256="0" * 64)),
    "packages": lambda r: replace(r, identity=replace(r.identity, dependencies={"torch": "1"})),
    "GPU": _other_gpu,
    "PyTorch": lambda r: replace(r, environment=replace(r.environment, torch="2.0")),
    "artifacts": lambda r: shipped("h2"),
}


@pytest.mark.usefixtures("holds")
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_record_of_something_else_is_not_resumed(name: str) -> None:
    here = shipped("h1")
    previous = DIFFERENT[name](here)
    with pytest.raises(MeasurementError, match=f"expected {name} .*start a new record"):
        forward.refuse_mixture(previous, environment.identity(commit="abc"), here.environment)


def test_a_record_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "why_not_hopper", lambda: None)
    path = tmp_path / "forward.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="never edited"):
        forward.run(forward.Options(), path=path)
    assert path.read_text() == "{}"


def test_record_names_hold_the_second_and_the_commit() -> None:
    name = environment.record_name("forward", "0123456789")
    assert name.startswith("forward-20")
    assert name.endswith("Z-0123456.json")
    assert len(name) == len("forward-20260102T030405Z-0123456.json")


# -- processes, peers, inputs, devices -------------------------------------------------------------


def test_new_processes_keep_bytecode_and_the_first_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    log = tmp_path / "log"
    program = (
        "import json, sys\n"
        f"log = open({str(log)!r}, 'a+'); log.write('x'); log.seek(0)\n"
        "print('noise')\n"
        "print(json.dumps({'bytecode': float(not sys.dont_write_bytecode),"
        " 'turn': float(len(log.read()))}))"
    )
    found = new_process.repeat(program, 5)
    assert found["bytecode"].minimum == 1.0
    assert (found["turn"].minimum, found["turn"].median, found["turn"].maximum) == (2, 4, 6)
    assert found["turn"].samples == 5
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"


def test_a_new_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        new_process.repeat("raise SystemExit('no such thing')", 1)


def test_warnings_about_refused_backends_stay_in_the_adapter() -> None:
    (peer,) = [peer for peer in available_peers()[0] if peer.name == "flash-attention-2"]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with peer.scope():
            warnings.warn("cuDNN attention kernel not used because", UserWarning, stacklevel=1)
            warnings.warn("another", FutureWarning, stacklevel=1)
        warnings.warn("outside", UserWarning, stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["another", "outside"]


def test_every_peer_is_found_or_absent() -> None:
    found, missing = available_peers()
    assert {peer.name for peer in found} | {peer.name for peer in missing} == set(PEERS)


def test_inputs_have_the_cells_shapes_and_follow_the_seed() -> None:
    q, k, v = draw(replace(CELL, head_dim_v=32, dtype="float16"), 3, "cpu")
    assert (q.shape, k.shape, v.shape) == ((1, 40, 2, 64), (1, 50, 1, 64), (1, 50, 1, 32))
    assert {x.dtype for x in (q, k, v)} == {torch.float16}
    assert torch.equal(q, draw(replace(CELL, dtype="float16"), 3, "cpu")[0])
    assert not torch.equal(q, draw(replace(CELL, dtype="float16"), 4, "cpu")[0])
    assert abs(float(q.float().std()) - 1) < 0.05


@pytest.mark.parametrize(
    ("cuda", "available", "capability", "reason"),
    [
        ("13.0", True, (9, 0), None),
        ("13.0", True, (10, 0), "Board (sm_100), not sm_90"),
        ("13.0", False, None, "no CUDA device"),
        (None, True, (9, 0), "no CUDA device"),  # PyTorch for ROCm: its gfx90a says (9, 0) too
    ],
)
def test_a_hopper_gpu_is_an_nvidia_gpu_of_capability_nine(
    monkeypatch: pytest.MonkeyPatch, cuda: Any, available: bool, capability: Any, reason: Any
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Board")
    assert device.why_not_hopper() == reason

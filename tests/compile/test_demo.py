"""The demo runs end to end, and fails when what it compares does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hopwell
from hopwell.commands import demo
from hopwell.commands.display import console
from hopwell.compile import compare
from hopwell.compile import key as keys

CPU_ONLY = not torch.cuda.is_available()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return demo.report(lambda _: None)


def test_everything_holds(report: dict[str, Any]) -> None:
    assert report["ok"]
    assert {row["backend"] for row in report["attention"]} >= {"cpu"}
    assert len(report["kernel"]["rows"]) > 10
    assert all(row["ok"] for row in report["kernel"]["rows"])
    if CPU_ONLY:
        assert report["kernel"]["not_executed"] == "no CUDA device"


def test_compiling_is_announced_only_when_it_happens(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_attention", lambda *_: {"broken": []})
    monkeypatch.setattr(demo, "_time", lambda _: {})
    for source in ("compiled", "cache"):
        steps: list[str] = []
        assert demo.report(steps.append)["kernel"]["source"] == source
        assert any("compiling" in step for step in steps) == (source == "compiled")


def test_without_the_compiler_the_cpu_results_are_shown(
    report: dict[str, Any],
    cache_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(keys, "toolchain", lambda arch: None)
    steps: list[str] = []
    made = demo.report(steps.append)
    assert not any("compiling" in step for step in steps)
    assert not made["ok"]
    assert made["error"]["type"] == "CompilerMissing"
    assert len(made["attention"]) == 2
    demo.render(made, console())
    out = capsys.readouterr().out
    assert "Attention against the definition" in out
    assert "pip install '.[compile]'" in out


def test_errors_are_those_of_the_dtype(report: dict[str, Any]) -> None:
    """bf16 keeps 8 bits: an error far below would mean that nothing was rounded or compared."""
    for row in report["attention"]:
        assert 2.0**-12 < row["errors"]["frobenius"] <= row["budget"]["frobenius"] < 2.0**-7


def test_wrong_attention_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = hopwell.attention

    def wrong(*tensors: torch.Tensor, **arguments: Any) -> Any:
        o, lse = right(*tensors, **arguments)
        o[0, 0, 0] *= 1.5  # one row of thousands
        return o, lse

    monkeypatch.setattr(hopwell, "attention", wrong)
    assert demo._attention(0, "cpu")["broken"]


def test_a_plan_that_is_not_what_was_compiled_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compare.expected

    def wrong(plan: Any) -> dict[str, Any]:
        values = right(plan)
        return {**values, next(iter(values)): "something else"}

    monkeypatch.setattr(compare, "expected", wrong)
    monkeypatch.setattr(demo, "_attention", lambda *_: {"broken": []})
    assert not demo.report(lambda _: None)["ok"]

"""The command line: exit status, JSON, and that both say what the library says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch

import hopwell
from hopwell import cli
from hopwell.commands import doctor
from hopwell.compile.cache import Cache
from hopwell.dispatch import SUPPORT
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans
from hopwell.settings import override

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Calls the entry point as a shell would; the cache is an empty one of the test's own."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(cache))
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hopwell", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


def report_of(out: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(out)
    return report


def test_module_runs_and_lists_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hopwell", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("demo", "doctor", "plans", "explain", "emulate", "cache", "bench", "evidence"):
        assert command in done.stdout


def test_version_is_that_of_the_distribution(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "version", {"hopwell": "9.8.7"}.__getitem__)
    assert run("--version")[:2] == (0, "hopwell 9.8.7\n")


# -- doctor ------------------------------------------------------------------------------------


def test_doctor_is_content_with_a_healthy_cpu_machine(run: Run) -> None:
    code, out, _ = run("doctor", "--json")
    report = report_of(out)
    verdicts = {row["name"]: row["verdict"] for row in report["capabilities"]}
    assert code == 0
    assert report["ok"]
    assert verdicts["attention on the CPU"] == "works"
    if not torch.cuda.is_available():
        assert verdicts["run Hopper kernels"] == "absent"


def test_doctor_shows_a_person_the_same(run: Run) -> None:
    code, out, _ = run("doctor")
    assert code == 0
    assert "attention on the CPU: works" in out


def test_doctor_fails_when_attention_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopwell, "attention", lambda q, k, v, **_: torch.zeros_like(q))
    code, out, _ = run("doctor", "--json")
    broken = [row for row in report_of(out)["capabilities"] if row["verdict"] == "broken"]
    assert code == 1
    assert [row["name"] for row in broken] == ["attention on the CPU"]
    assert "relative error 1.0e+00" in str(broken)


def test_doctor_names_what_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(distribution: str) -> str:
        if distribution.startswith("nvidia-"):
            raise PackageNotFoundError(distribution)
        return version(distribution)

    monkeypatch.setattr(doctor, "version", lacking)
    code, out, _ = run("doctor", "--json")
    compiling = next(
        row for row in report_of(out)["capabilities"] if row["name"] == "compile Hopper kernels"
    )
    assert code == 0  # a machine need not compile
    assert compiling["verdict"] == "absent"
    missing = [check["name"] for check in compiling["checks"] if not check["ok"]]
    assert "nvidia-cutlass-dsl" in missing


# -- plans -------------------------------------------------------------------------------------


def test_plans_list_is_what_ships(run: Run) -> None:
    code, out, _ = run("plans", "--list", "--json")
    rows = report_of(out)["plans"]
    assert code == 0
    shipped = shipped_forward_plans()
    assert [HopperForwardPlan.from_json(row["plan"]) for row in rows] == list(shipped)
    assert len(shipped) <= 64
    assert {row["artifact"] for row in rows} == {None}  # the cache of this test is empty
    person = run("plans", "--list")[1]
    assert person.count("bf16") == person.count("fp16") == len(shipped) // 2
    assert "hopwell cache warm" in person


def test_plan_in_full(run: Run) -> None:
    code, out, _ = run("plans", "bf16_d128x128_causal", "--json")
    report = report_of(out)
    plan = HopperForwardPlan.from_json(report["plan"])
    assert code == 0
    assert plan.causal
    counts = {row["name"]: row["count"] for row in report["mbarriers"]}
    assert counts["k_full"] == plan.stages
    assert sum(counts.values()) == 2 * plan.q_stages + 4 * plan.stages
    for name in counts:
        assert name in run("plans", plan.name)[1]


@pytest.mark.parametrize("name", ["no_such_plan", "causal"])
def test_plan_name_that_is_none_or_several(run: Run, name: str) -> None:
    code, out, _ = run("plans", name, "--json")
    assert code == 1
    assert report_of(out)["error"]["type"] == "InputError"


@pytest.mark.parametrize("arguments", [(), ("--list", "bf16_d128x128_causal")])
def test_plans_wants_a_list_or_a_name(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("plans", *arguments)[0] == 2


# -- explain -----------------------------------------------------------------------------------


def test_explain_gives_the_plan(run: Run) -> None:
    code, out, _ = run("explain", "--head-dim", "72", "--causal", "--json")
    report = report_of(out)
    assert code == 0
    assert report["backend"] == "hopper"
    assert (report["plan"]["head_dim"], report["plan"]["causal"]) == (96, True)
    assert report["plan_name"] in run("explain", "--head-dim", "72", "--causal")[1]


@pytest.mark.parametrize(
    ("flags", "predicate"),
    [
        (("--head-dim", "512"), "head_dims"),
        (("--head-dim", "68"), "head_dim_multiple"),
        (("--dtype", "float32"), "dtype"),
        (("--arch", "sm_80"), "arch"),
        (("--left", "128"), "mask"),
        (("--softcap", "30"), "softcap"),
        (("--sink",), "sink"),
        (("--grad",), "gradient"),
    ],
)
def test_explain_names_the_refusing_predicate(
    run: Run, flags: tuple[str, ...], predicate: str
) -> None:
    code, out, _ = run("explain", *flags, "--json")
    report = report_of(out)
    assert code == 1
    assert [row["predicate"] for row in report["refusals"]["hopper"]] == [predicate]
    assert predicate in {row.name for row in SUPPORT["hopper"]}
    person = run("explain", *flags)[1]
    assert predicate in person
    assert "hopper: refuses" in person


def test_explain_names_the_error_that_is_raised(run: Run) -> None:
    for flags, error in ((("--grad",), "GradientUnsupported"), (("--sink",), "UnsupportedProblem")):
        assert f"raises {error}" in run("explain", *flags)[1]
        assert report_of(run("explain", *flags, "--json")[1])["raises"]["type"] == error
    assert report_of(run("explain", "--json")[1])["raises"] is None


def test_explain_takes_every_feature_of_a_call(run: Run) -> None:
    flags = ("--scale", "0.5", "--lse", "--deterministic", "--strides", "other")
    code, out, _ = run("explain", *flags, "--fallback", "torch", "--json")
    report = report_of(out)
    asked = report["problem"]
    assert (code, report["backend"]) == (0, "torch")
    assert (asked["scale"], asked["return_lse"], asked["deterministic"]) == (0.5, True, True)
    assert {asked[f"{name}_strides"] for name in "qkv"} == {"other"}
    names = [row["predicate"] for row in report["refusals"]["hopper"]]
    assert names == ["q_strides", "k_strides", "v_strides"]
    assert "allowed fallback" in run("explain", "--sink", "--fallback", "torch")[1]
    assert run("explain", "--fallback", "cpu")[0] == 1
    assert run("explain", "--strides", "wide")[0] == 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_explain_takes_short_names(run: Run, dtype: str) -> None:
    code, out, _ = run("explain", "--dtype", dtype, "--device", "cuda:0", "--json")
    report = report_of(out)
    assert (code, report["backend"], report["problem"]["device"]) == (0, "hopper", "cuda")
    assert dtype in report["plan_name"]


def test_explain_on_the_cpu(run: Run) -> None:
    code, out, _ = run("explain", "--device", "cpu", "--left", "8", "--sink", "--json")
    assert code == 0
    assert report_of(out)["backend"] == "cpu"


def test_wrong_input_is_an_answer_and_no_traceback(run: Run) -> None:
    code, out, _ = run("explain", "--heads-q", "3", "--heads-k", "2", "--json")
    error = report_of(out)["error"]
    assert code == 1
    assert error["type"] == "InputError"
    assert error["expected"]
    assert error["consequence"]
    code, out, err = run("explain", "--heads-q", "3", "--heads-k", "2")
    assert (code, out) == (1, "")
    assert "InputError" in err
    assert "Traceback" not in err


def test_unknown_option_is_wrong_usage(run: Run) -> None:
    assert run("explain", "--colour")[0] == 2


# -- cache -------------------------------------------------------------------------------------


def test_cache_of_nothing(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("cache", "info", "--json")
    report = report_of(out)
    assert code == 0
    assert (report["directory"], report["entries"]) == (str(tmp_path / "cache"), [])


def test_cache_follows_the_settings(run: Run, tmp_path: Path) -> None:
    with override(cache_dir=tmp_path / "other"):
        assert report_of(run("cache", "info", "--json")[1])["directory"] == str(tmp_path / "other")
    with override(cache=False):
        report = report_of(run("cache", "info", "--json")[1])
    assert (report["directory"], report["entries"]) == (None, [])


def test_corrupt_entry_fails_info_and_is_cleared(run: Run, tmp_path: Path) -> None:
    layout = Cache(tmp_path / "cache").entries
    entry = layout / ("0" * 64) / ("1" * 64)
    entry.mkdir(parents=True, mode=0o700)
    (entry / "kernel.so").write_bytes(b"not a library")
    code, out, _ = run("cache", "info", "--json")
    assert code == 1
    assert [row["plan"] for row in report_of(out)["entries"]] == [None]
    code, out, _ = run("cache", "clear", "--json")
    assert (code, len(report_of(out)["entries"])) == (0, 1)
    assert run("cache", "info")[0] == 0


@pytest.mark.parametrize("place", ["file", "file/below", "dangling", "loop/below", "x" * 300])
@pytest.mark.parametrize("command", ["info", "clear"])
def test_a_place_that_is_no_directory_is_an_answer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(tmp_path / place))
    code, out, _ = run("cache", command, "--json")
    assert code == 1
    assert report_of(out)["error"]["type"] == "UnusableCache"
    assert run("doctor")[0] == 0
    assert run("plans", "--list")[0] == 0


@pytest.mark.parametrize("command", ["info", "clear"])
def test_looking_at_a_cache_makes_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    place = tmp_path / "not" / "yet"
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(place))
    before = sorted(tmp_path.iterdir())
    code, out, _ = run("cache", command, "--json")
    assert (code, report_of(out)["entries"]) == (0, [])
    assert sorted(tmp_path.iterdir()) == before


def test_a_place_where_nothing_can_be_made_is_a_typed_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPWELL_CACHE_DIR", "/proc/nope")
    code, out, err = run("cache", "info")
    assert (code, out) == (1, "")
    assert "UnusableCache" in err


def test_names_are_no_markup(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "[" / "red]kernels[" / "red]"
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(place))
    code, out, _ = run("cache", "info")
    assert code == 0
    assert str(place) in out
    assert "[/red]" in run("explain", "--device", "[/red]")[2]
    assert "[/red]" in run("plans", "[/red]")[2]


@pytest.mark.parametrize("encoding", ["ascii:strict", "latin-1:strict", "utf-8:strict"])
def test_a_path_that_the_terminal_cannot_show(tmp_path: Path, encoding: str) -> None:
    place = os.fsencode(tmp_path) + b"/\xff\xe2\x82\xac"
    environment = {**os.environb, b"HOPWELL_CACHE_DIR": place, b"PYTHONUTF8": b"0"}
    for command in ("info", "info --json", "clear"):
        done = subprocess.run(
            [sys.executable, "-m", "hopwell", "cache", *command.split()],
            env={**environment, b"PYTHONIOENCODING": encoding.encode()},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("columns", ["0", "1", "20", "-5", "many"])
def test_no_width_loses_what_a_table_says(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = run("explain", "--softcap", "3")[1]
    assert "softcap" in out
    assert run("plans", "--list")[1].count("bf16") == len(shipped_forward_plans()) // 2


def test_cache_that_others_can_write_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").chmod(0o777)
    code, out, _ = run("cache", "info", "--json")
    assert code == 1
    assert report_of(out)["error"]["type"] == "UnsafeCache"


def test_warming_nothing_is_an_error(run: Run) -> None:
    code, out, _ = run("cache", "warm", "--match", "no_such_plan", "--json")
    assert code == 1
    assert report_of(out)["error"]["actual"] == "no_such_plan"


# -- bench -------------------------------------------------------------------------------------


def test_summary_without_a_record_reaches_nothing(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("bench", "summary", "--records", str(tmp_path / "cache"), "--json")
    report = report_of(out)
    assert code == 1
    assert report["record"] is None
    assert {row["holds"] for row in report["targets"]} == {None}


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
@pytest.mark.parametrize("name", ["d0s512", "d64s0", "d64s512\n", "d٦٤s512", "", "d64cs"])
def test_a_cell_that_cannot_be_meant(run: Run, name: str) -> None:
    code, out, _ = run("bench", "forward", "--cell", name, "--json")
    assert code == 1
    assert report_of(out)["error"]["what"] == "cell"


def test_bench_writes_each_run_to_a_file_of_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopwell.commands import bench

    outputs: list[Path] = []

    def forward(options: Any, output: Path, *_: Any) -> dict[str, Any]:
        outputs.append(output)
        return {"ok": True}

    monkeypatch.setattr(bench, "forward", forward)
    code, _, _ = run("bench", "forward", "--commit", "0123456789", "--json")
    assert code == 0
    assert outputs[0].parent == Path("benchmarks/records")
    assert re.fullmatch(r"forward-\d{8}T\d{6}Z-0123456\.json", outputs[0].name)


def test_bench_without_a_gpu_measures_nothing(run: Run, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    code, out, _ = run("bench", "forward", "--output", str(record), "--json")
    assert code == 1
    assert report_of(out)["error"]["actual"] == "no CUDA device"
    assert not record.exists()


@pytest.mark.parametrize("command", [("evidence",), ("bench", "summary")])
def test_where_no_records_are_it_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Outside a checkout, where the default directory is not there."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert "InputError" in err
    assert "benchmarks/records" in err
    assert "Run in a clone, or give --records" in err


def test_evidence_says_how_to_compile(run: Run, tmp_path: Path) -> None:
    assert "hopwell cache warm" in run("evidence", "--records", str(tmp_path))[1]


def test_evidence_without_artifacts_fails(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("evidence", "--records", str(tmp_path / "cache"), "--json")
    report = report_of(out)
    assert code == 1
    assert {row["claims"]["compiled"]["state"] for row in report["kernels"]} == {"not reached"}
    assert "Not every kernel is compiled" in run("evidence", "--records", str(tmp_path))[1]

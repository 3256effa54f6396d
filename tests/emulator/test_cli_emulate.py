"""``hopwell emulate``: three kinds of targets, exit status, JSON, and arguments as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.emulator import pipeline_kernel
from tests.emulator.pipeline_kernel import DATA, STAGES

from hopwell import cli
from hopwell.commands.emulate import _folded, parse_seeds
from hopwell.emulator import Launch
from hopwell.emulator.arguments import launch_of, parse_arguments, triple
from hopwell.errors import CaptureError, InputError

Run = Callable[..., tuple[int, str, str]]

SHARED = DATA + STAGES * pipeline_kernel.BYTES


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the entry point as a shell would."""
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hopwell", "emulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], list[object]]:
    """Writes the kernel and its input; gives the command line that runs it."""

    def written(fault: str = "") -> list[object]:
        kernel = tmp_path / "double.ptx"
        kernel.write_text(pipeline_kernel.source(fault))
        x, y = pipeline_kernel.arrays(2)
        np.save(tmp_path / "x.npy", x)
        size = ",".join(map(str, y.shape))
        names = tmp_path / "names.json"
        names.write_text(json.dumps(pipeline_kernel.NAMES))
        arguments = f"@{tmp_path / 'x.npy'} zeros:f32:{size}"
        return [
            *(kernel, "--grid", "2", "--block", "64", "--shared", SHARED),
            *("--args", arguments, "--names", names),
        ]

    return written


# -- PTX -----------------------------------------------------------------------------------


def test_a_clean_kernel_gives_its_results_and_status_0(
    run: Run, files: Callable[..., list[object]], tmp_path: Path
) -> None:
    status, out, _ = run(*files(), "--seeds", "3", "--out", tmp_path / "results")
    assert status == 0
    assert out.splitlines()[0] == "clean: no hazard and no deadlock under 3 seeds"
    x, y = (np.load(tmp_path / "results" / f"{name}.npy") for name in "xy")
    np.testing.assert_array_equal(y, 2 * x)


def test_a_hazard_is_named_with_both_lines_of_code_and_status_1(
    run: Run, files: Callable[..., list[object]]
) -> None:
    status, out, _ = run(*files("warp sync"), "--seeds", "2")
    assert status == 1
    assert "warp-race" in out.splitlines()[0]
    assert "| ld.shared.f32" in out
    assert "| cp.async.bulk.shared::cluster.global" in out


def test_a_deadlock_says_who_waits_on_what(run: Run, files: Callable[..., list[object]]) -> None:
    status, out, _ = run(*files("release"), "--seeds", "1,")
    assert status == 1
    assert out.startswith("deadlock under seed 1")
    assert "empty[0]" in out
    assert "CTA (0,0,0) warp 0" in out


def test_json_holds_versioned_reports(run: Run, files: Callable[..., list[object]]) -> None:
    status, out, _ = run(*files("warp sync"), "--seeds", "2", "--json", "--pipelines")
    report = json.loads(out)
    assert status == 1
    assert report["schema"] == "hopwell.emulate/1"
    assert not report["ok"]
    (launch,) = report["launches"]
    assert launch["schema"] == "hopwell.emulation/1"
    assert launch["hazards"]["schema"] == "hopwell.hazards/1"
    assert launch["grid"] == [2, 1, 1]
    assert [entry["seed"] for entry in launch["runs"]] == [0, 1]
    assert launch["hazards"]["groups"][0]["rule"] == "warp-race"
    assert [p["full"]["name"] for p in launch["pipelines"]] == ["full[0]", "full[1]"] * 2
    assert launch["pipelines"][0]["payloads"][0]["what"] == "x bytes 0..255"
    assert launch["ledgers"][0]["calls"][0]["action"] == "sync"


def test_json_of_a_deadlock_holds_the_wait_for_graph(
    run: Run, files: Callable[..., list[object]]
) -> None:
    _, out, _ = run(*files("release"), "--seeds", "1", "--json", "--no-hazards")
    (launch,) = json.loads(out)["launches"]
    assert not launch["hazards_checked"]
    deadlock = launch["runs"][0]["deadlock"]
    assert deadlock["schema"] == "hopwell.deadlock/1"
    agents = [waiter["agent"] for waiter in deadlock["waiters"]]
    assert any(agent.startswith("CTA (0,0,0) warp 0") for agent in agents)


def test_every_field_of_the_json_is_documented(
    run: Run, files: Callable[..., list[object]]
) -> None:
    from hopwell.emulator import emulation

    _, out, _ = run(*files(), "--json", "--pipelines")
    (launch,) = json.loads(out)["launches"]
    documented = emulation.__doc__ or ""
    fields = {*launch, *launch["runs"][0], *launch["pipelines"][0], *launch["ledgers"][0]}
    fields |= {*launch["pipelines"][0]["full"], *launch["ledgers"][0]["calls"][0]}
    assert {field for field in fields if f"``{field}``" not in documented} == set()


def test_pipelines_and_ledgers_are_printed(run: Run, files: Callable[..., list[object]]) -> None:
    status, out, _ = run(*files(), "--pipelines")
    assert status == 0
    assert "Pipelines of CTA (0, 0, 0)" in out
    row = next(line for line in out.splitlines() if line.strip().startswith("full[1]"))
    assert row.split()[1:6] == ["empty[1]", "3", "2", "2", "2"]
    assert "  full[1] phase 1: x bytes 768..1023" in out.splitlines()
    assert "sync 0" in out
    assert "CTAs that are not shown: 1." in out


def test_a_timeline_is_written(
    run: Run, files: Callable[..., list[object]], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    status, out, _ = run(*files(), "--trace", path)
    assert status == 0
    assert str(path) in out.replace("\n", "")
    assert json.loads(path.read_text())["otherData"]["kernel"] == "double_tiles"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--grid", "0"], "--grid"),
        (["--block", "64,x"], "--block"),
        (["--seeds", "none"], "--seeds"),
        (["--kernel", "absent"], "--kernel"),
        (["--landing", "soon"], "--landing"),
        (["--args", "random:f99:4"], "random:f99:4"),
        (["--names", "absent.json"], "absent.json"),
        (["extra"], "target"),
    ],
)
def test_wrong_usage_has_status_2_and_names_the_option(
    run: Run, files: Callable[..., list[object]], change: list[object], named: str
) -> None:
    status, _, err = run(*files(), *change)
    assert status == 2
    assert named in err


def test_arguments_that_do_not_fit_the_kernel_have_status_1(
    run: Run, files: Callable[..., list[object]]
) -> None:
    status, _, err = run(*files(), "--args", "5")
    assert status == 1
    assert "CaptureError" in err


# -- saved launches and programs -----------------------------------------------------------


def test_a_saved_launch_runs(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "double.launch"
    pipeline_kernel.launch().save(path)
    status, out, _ = run(path, "--seeds", "1")
    assert status == 0
    assert "double_tiles" in out


def test_a_program_of_the_cute_dsl_gets_its_results(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("cutlass")
    program = Path(__file__).with_name("cute_program.py")
    status, out, err = run(program, "--seeds", "1", "--json")
    report = json.loads(out)
    assert status == 0
    assert len(report["launches"]) == 3
    # y = 1 + (2 + 3 + 4) x, as the program itself printed it.
    assert "[1.0, 10.0, 19.0, 28.0]" in err


def test_what_stops_a_program_is_told(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("cutlass")
    program = tmp_path / "stops.py"
    program.write_text("import sys\nassert sys.argv[1:] == ['-x', 'y']\nsys.exit(3)\n")
    status, out, _ = run(program, "--", "-x", "y")
    assert status == 1
    assert "the program left with status 3" in out


# -- arguments as text ---------------------------------------------------------------------


def test_arguments_are_read_in_order() -> None:
    given = [argument.value for argument in parse_arguments("5 0x10 -1 0.5 i32:-7 f16:1.5")]
    assert given[:4] == [5, 16, -1, 0.5]
    assert (given[4], given[4].dtype) == (-7, np.int32)
    assert (given[5], given[5].dtype) == (1.5, np.float16)


def test_arrays_are_made_in_their_type() -> None:
    ones, counted, noise, again, other = (
        argument.value
        for argument in parse_arguments(
            "ones:bf16:2x3 range:s64:4 random:f32:8x8:7 random:f32:8x8:7 random:f32:8x8:8"
        )
    )
    np.testing.assert_array_equal(ones, np.full((2, 3), 0x3F80, np.uint16))
    np.testing.assert_array_equal(counted, np.arange(4))
    np.testing.assert_array_equal(noise, again)
    assert not np.array_equal(noise, other)
    assert noise.ctypes.data % 256 == 0


def test_bf16_is_rounded_to_nearest_even() -> None:
    (value,) = parse_arguments("bf16:1.00390625")  # halfway between 1 and its neighbour
    assert value.value == 0x3F80


@pytest.mark.parametrize(
    "text", ["f32", "f32:x", "zeros:f32", "zeros:f32:0", "zeros:pred:4", "@absent.npy", "a:b:c:d:e"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=text.replace(".", r"\.")):
        parse_arguments(text)


def test_triples() -> None:
    assert triple("4", "grid") == (4, 1, 1)
    assert triple("4x2", "grid") == (4, 2, 1)
    assert triple((1, 2, 3), "grid") == (1, 2, 3)
    with pytest.raises(InputError, match="grid"):
        triple((1, 2, 3, 4), "grid")


def test_a_launch_takes_numbers_by_parameter_type() -> None:
    ptx = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .f32 a, .param .u64 n, .param .align 64 .b8 map[128]) { ret; }
"""
    launch = launch_of(ptx, "k", 1, 32, (0.5, 7, bytes(range(128))))
    assert isinstance(launch, Launch)
    assert launch.parameters[:4] == np.float32(0.5).tobytes()
    assert launch.parameters[8:16] == (7).to_bytes(8, "little")
    assert launch.parameters[64:] == bytes(range(128))
    with pytest.raises(CaptureError, match="arguments of k"):
        launch_of(ptx, "k", 1, 32, (0.5,))


def test_seeds() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("7,1") == (7, 1)
    assert parse_seeds("5,") == (5,)
    assert parse_seeds("5-7") == (5, 6, 7)


def test_repeated_calls_are_written_once() -> None:
    calls = ["sync 0", *["sync 2", "arrive 3"] * 3, "sync 1", "sync 1"]
    assert _folded(calls) == ["sync 0", "(sync 2, arrive 3) x 3", "(sync 1) x 2"]

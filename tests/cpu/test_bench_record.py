"""Records, what is read from them, and the plot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopwell.bench import environment, forward, plot, record, summary
from hopwell.bench.accuracy import Errors
from hopwell.bench.flops import tflops
from hopwell.bench.grid import Cell, standard_grid
from hopwell.bench.peers import PeerMismatch, available_peers, verify_operator
from hopwell.bench.timing import Statistic
from hopwell.data import provenance
from hopwell.errors import InputError

MILLISECOND = Statistic.of([0.9e-3, 1e-3, 1.1e-3])
GOOD = Errors(2.0e-3, 4e-3, 3e-3, 2e-6)
PLAN = {"head_dim": 128, "head_dim_v": 128}


def row(contender: str, cell: Cell, seconds: float, errors: Errors = GOOD) -> record.Row:
    return record.Row(
        contender=contender,
        version="1",
        problem=cell,
        inputs=forward.GAUSSIAN,
        dispatch=record.Dispatch(
            requested=contender, ran=contender, plan=PLAN, fallback=("device: expected cuda",)
        ),
        clocks=record.Clocks(2.5, 0.02, Statistic.of([seconds]), MILLISECOND),
        tflops=tflops(cell, seconds),
        correctness=record.Correctness("float64", 4, errors, True, "budget"),
        load=record.GpuState(1700.0, None, 650.0, 55.0),
    )


def synthetic(
    mine: float = 1.0e-3, errors: Errors = GOOD, host: float = 9e-6, spills: int = 0
) -> record.Record:
    """A whole grid and the recorded inputs: ours at ``mine`` seconds, the best peer at 1.0 ms."""
    rows = []
    for cell in standard_grid():
        rows += [
            row(record.OURS, cell, mine, errors),
            row("cudnn", cell, 1.3e-3),
            row("flash-attn-4", cell, 1.0e-3, replace(GOOD, lse=None)),
            row("flash-attention-2", cell, 1.6e-3),
        ]
    for layer in provenance()["layers"]:
        for causal in (False, True):
            cell = Cell(1, 128, 128, 12, 12, 32, 32, causal)
            for name, found in ((record.OURS, errors), ("cudnn", GOOD)):
                made = row(name, cell, 1.0, found)
                rows.append(replace(made, inputs=forward.recorded_label(layer), tflops=None))
    artifact = record.Artifact(
        "plan",
        "key",
        "hash",
        "symbol",
        "wheel",
        ("executed", "timed"),
        ("test_a",),
        {"plan": PLAN, "resources": {"spill_bytes": spills, "registers": 168}},
    )
    gpu_state = record.GpuState(345.0, 3201.0, 90.0, 30.0)
    gpu = record.Gpu(
        "NVIDIA H200",
        "9.0",
        132,
        150_000_000_000,
        62_914_560,
        1980.0,
        700.0,
        "P0",
        "Enabled",
        gpu_state,
        gpu_state,
    )
    return record.Record(
        kind=record.BENCH_FORWARD,
        created="2026-01-02T03:04:05Z",
        identity=environment.identity([artifact], commit="abc"),
        environment=replace(environment.environment(), gpu=gpu),
        measurement=forward.MEASUREMENT,
        rows=tuple(rows),
        host=(record.Host(record.OURS, Statistic.of([host])),),
        new_process={
            "import_hopwell": Statistic.of([0.002]),
            "first_call": Statistic.of([0.008]),
            "import_and_first_call": Statistic.of([0.010]),
            "compile": Statistic.of([2.0]),
        },
        absent={"another": "not built"},
    )


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    original = synthetic()
    record.write(original, tmp_path / "records" / "forward.json")
    assert record.read(tmp_path / "records" / "forward.json") == original
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["forward.json"]


def test_the_manifest_has_every_section_of_the_specification() -> None:
    """Spec 0x0D, "Reproduction And Rollback Manifest", and its four clocks as separate fields."""
    data = json.loads(json.dumps(synthetic(), default=lambda value: value.__dict__))
    assert {"commit", "source_sha256", "dependencies", "artifacts"} <= set(data["identity"])
    assert {"gpu", "driver", "cuda", "torch"} <= set(data["environment"])
    assert {"flop_convention", "warm_up", "synchronization", "statistic", "boundaries"} <= set(
        data["measurement"]
    )
    first = data["rows"][0]
    assert {"requested", "ran", "compile_key", "scheduler", "fallback"} <= set(first["dispatch"])
    clocks = {"developer_compile", "cold_first_call", "warm_kernel", "end_to_end"}
    assert set(first["clocks"]) == clocks == set(data["measurement"]["boundaries"])
    assert {"reference", "errors", "repeatable", "tolerance"} <= set(first["correctness"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "kind": 3}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InputError, match="schema"):
        record.read(path)


WRONG: list[tuple[str, object]] = [
    ("created", 3),
    ("kind", "bench.backward"),
    ("rows", {}),
    ("rows", "rows"),
    ("rows", [None]),
    ("notes", "a string is no list of strings"),
    ("host", [{"contender": "hopwell", "enqueue": 3}]),
    ("wheel_bytes", True),
    ("wheel_bytes", 1.5),
    ("new_process", []),
    ("new_process", {"compile": {"median": 10**400}}),
    ("outcomes", {"passed": "3"}),
    ("identity", None),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_record_with_a_wrong_type_is_refused(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "record.json"
    record.write(synthetic(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(InputError, match=r"record\.json"):
        record.read(path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"9" * 10_000, b"\0"])
def test_what_cannot_be_read_is_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "broken.json").write_bytes(content)
    for name in ("folder.json", "broken.json"):
        with pytest.raises(InputError, match=name):
            record.read(tmp_path / name)


def test_the_newest_of_a_kind_is_found(tmp_path: Path) -> None:
    old, new = synthetic(), replace(synthetic(), created="2026-02-01T00:00:00Z")
    tests = replace(new, kind=record.TESTS_GPU, created="2026-03-01T00:00:00Z")
    for name, entry in [("c", old), ("a", new), ("b", tests)]:
        record.write(entry, tmp_path / f"{name}.json")
    found = [entry for _, entry in record.read_all(tmp_path)]
    assert [entry.created for entry in found] == [old.created, new.created, tests.created]
    assert record.newest(found, record.BENCH_FORWARD) == new
    assert record.newest([], record.BENCH_FORWARD) is None


def verdicts(entry: record.Record) -> dict[str, bool | None]:
    return {verdict.target: verdict.holds for verdict in summary.summarise([entry])}


def test_a_good_record_meets_every_target() -> None:
    assert set(verdicts(synthetic()).values()) == {True}


@pytest.mark.parametrize(
    ("worse", "target"),
    [
        (synthetic(mine=1.2e-3), "forward speed"),
        (synthetic(errors=replace(GOOD, frobenius=2.3e-3)), "Frobenius"),
        (synthetic(errors=replace(GOOD, row_max=5.5e-3)), "largest row"),
        (synthetic(errors=replace(GOOD, row_p999=4e-3)), "99.9%"),
        (synthetic(errors=replace(GOOD, lse=2e-4)), "log-sum-exp"),
        (synthetic(host=20e-6), "host time"),
        (synthetic(spills=16), "spilled"),
    ],
)
def test_each_target_can_be_missed(worse: record.Record, target: str) -> None:
    missed = [name for name, holds in verdicts(worse).items() if not holds]
    assert len(missed) == 1
    assert missed[0].startswith(target)


def test_one_bad_cell_decides_an_error_target_and_is_named() -> None:
    entry = synthetic()
    bad = (
        replace(
            entry.rows[0],
            correctness=replace(entry.rows[0].correctness, errors=replace(GOOD, row_max=1.0)),
        )
        if entry.rows[0].correctness
        else entry.rows[0]
    )
    entry = replace(entry, rows=(bad, *entry.rows[1:]))
    (verdict,) = [v for v in summary.summarise([entry]) if v.target.startswith("largest row")]
    assert verdict.holds is False
    assert entry.rows[0].problem.name in verdict.where


@pytest.mark.parametrize("index", [0, 9, -3])
@pytest.mark.parametrize("name", ["frobenius", "row_max", "row_p999", "lse"])
def test_an_error_that_is_nan_is_the_worst_wherever_it_stands(index: int, name: str) -> None:
    rows = list(synthetic().rows)
    index = [i for i, row in enumerate(rows) if row.contender == record.OURS][index]
    correctness = rows[index].correctness
    assert correctness is not None
    nan = replace(correctness.errors, **{name: float("nan")})
    rows[index] = replace(rows[index], correctness=replace(correctness, errors=nan))
    verdicts = summary.summarise([replace(synthetic(), rows=tuple(rows))])
    assert [verdict.reached.split()[0] for verdict in verdicts if not verdict.holds] == ["nan"]


def test_a_manifest_of_something_else_is_not_measured() -> None:
    identity = synthetic().identity
    for manifest in ({"plan": [1], "resources": 5}, {"plan": {"head_dim": "128"}, "resources": {}}):
        artifacts = tuple(replace(entry, manifest=manifest) for entry in identity.artifacts)
        changed = replace(synthetic(), identity=replace(identity, artifacts=artifacts))
        verdicts = summary.summarise([changed])
        assert [v.reached for v in verdicts if v.holds is None] == ["not measured"]


def test_what_was_not_measured_does_not_pass() -> None:
    assert {v.holds for v in summary.summarise([])} == {None}
    bare = replace(synthetic(), rows=(), host=(), new_process={})
    names = [v.target for v in summary.summarise([bare]) if v.holds is not None]
    assert names == ["spilled bytes, head_dim <= 128"]  # of the artifacts, which are there


def without(entry: record.Record, gone: Callable[[record.Row], bool]) -> record.Record:
    return replace(entry, rows=tuple(row for row in entry.rows if not gone(row)))


SPEED, ERRORS = {"forward speed"}, {"Frobenius", "largest row", "99.9%"}
OURS_ALONE = {"log-sum-exp", "problems whose"}
GAPS: dict[str, tuple[Callable[[record.Row], bool], set[str], str]] = {
    "one cell of one peer": (
        lambda row: row.contender == "cudnn" and row.problem.name == "d256cs16384",
        SPEED | ERRORS,
        "cudnn on 1 of 36 cells (d256cs16384)",
    ),
    "a whole peer": (
        lambda row: row.contender == "flash-attn-4",
        SPEED | ERRORS,
        "flash-attn-4 on 36 of 36 cells",
    ),
    "a cell of everyone": (
        lambda row: row.problem.name == "d64s512",
        SPEED | ERRORS | OURS_ALONE,
        "hopwell on 1 of 36 cells (d64s512)",
    ),
    "recorded inputs": (
        lambda row: row.inputs == forward.recorded_label(provenance()["layers"][-1]),
        ERRORS | OURS_ALONE,
        f"recorded, layer {provenance()['layers'][-1]}, causal",
    ),
    "peers on recorded inputs": (
        lambda row: row.contender != record.OURS and row.tflops is None,
        ERRORS,
        f"recorded, layer {provenance()['layers'][0]}, full",
    ),
}


@pytest.mark.parametrize("gap", GAPS)
def test_an_incomplete_record_passes_nothing_that_the_gap_could_change(gap: str) -> None:
    gone, wanted, where = GAPS[gap]
    open_ = [v for v in summary.summarise([without(synthetic(), gone)]) if v.holds is None]
    assert len(open_) == len(wanted)
    for verdict in open_:
        assert verdict.target.startswith(tuple(wanted))
        assert verdict.reached == "not measured"
        assert where in verdict.where


def test_spilled_bytes_are_the_assemblers_and_nothing_else() -> None:
    entry = synthetic()
    (artifact,) = entry.identity.artifacts
    for resources, holds in (
        ({"spill_bytes": 0, "spills_of_something_else": 9}, True),
        ({"spill_bytes": 4}, False),
        ({"other": 1}, None),
    ):
        changed = replace(artifact, manifest={"plan": PLAN, "resources": resources})
        now = replace(entry, identity=replace(entry.identity, artifacts=(changed,)))
        assert verdicts(now)["spilled bytes, head_dim <= 128"] is holds


def test_speed_is_compared_with_the_best_peer() -> None:
    entry = synthetic(mine=1.25e-3)
    cells = standard_grid()
    assert [forward.ratio_to_best_peer(entry, c) for c in cells] == pytest.approx([0.8] * 36)
    assert forward.geometric_mean(entry) == pytest.approx(0.8)
    alone = replace(entry, rows=entry.of(record.OURS))
    assert forward.ratio_to_best_peer(alone, cells[0]) is None
    assert forward.geometric_mean(alone) is None


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="plots need hopwell[bench]")
    path = tmp_path / f"forward.{suffix}"
    plot.draw(synthetic(), path)
    data = path.read_bytes()
    if suffix == "svg":
        for text in (b"d = 128, causal", b"flash-attn-4", b"TFLOP/s", b"NVIDIA H200", b"16k"):
            assert text in data
        plot.draw(synthetic(), tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == data
    else:
        assert data.startswith(b"\x89PNG")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved."""
    figures: list[Any] = []
    module = pytest.importorskip("matplotlib.figure", reason="plots need hopwell[bench]")
    monkeypatch.setattr(module.Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


def test_value_axes_hold_zero_and_every_value(tmp_path: Path, drawn: list[Any]) -> None:
    """Later panels are faster than the first, whose axis they share."""
    entry = synthetic()
    rows = tuple(
        replace(row, tflops=row.tflops and row.tflops * row.problem.head_dim) for row in entry.rows
    )
    plot.draw(replace(entry, rows=rows), tmp_path / "a.png")
    axes = drawn[0].axes
    assert len(axes) == 6
    top = max(row.tflops or 0 for row in rows)
    assert {axis.get_ylim() for axis in axes} == {(0, 1.08 * top)}


def test_a_single_point_is_marked_and_every_contender_is_named(
    tmp_path: Path, drawn: list[Any]
) -> None:
    """A peer that lacks the first panel's head dimension is in the legend too."""
    rows = tuple(
        row
        for row in synthetic().rows
        if row.problem.seqlen_q == 4096 and (row.contender, row.problem.head_dim) != ("cudnn", 64)
    )
    plot.draw(replace(synthetic(), rows=rows), tmp_path / "a.png")
    lines = [line for axis in drawn[0].axes for line in axis.get_lines()]
    assert {len(line.get_xdata()) for line in lines} == {1}
    assert all(line.get_marker() not in ("", "None", None) for line in lines)
    assert all(line.get_markersize() >= 5 for line in lines)
    names = {text.get_text() for text in drawn[0].legends[0].get_texts()}
    assert names == {"hopwell", "cudnn", "flash-attn-4", "flash-attention-2"}


def test_a_record_without_times_has_no_plot(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="timed"):
        plot.draw(replace(synthetic(), rows=()), tmp_path / "empty.svg")


def test_reading_records_imports_neither_torch_nor_matplotlib() -> None:
    program = (
        "import sys; import hopwell.bench.record, hopwell.bench.summary, hopwell.bench.plot;"
        "print([m for m in ('torch', 'matplotlib', 'cutlass', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_source_hash_follows_the_sources(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = environment.source_sha256(tmp_path)
    assert environment.source_sha256(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    changed = environment.source_sha256(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    renamed = environment.source_sha256(tmp_path)
    (tmp_path / "runtime.c").write_text("int x;\n")  # it goes into every kernel
    assert len({before, changed, renamed, environment.source_sha256(tmp_path)}) == 4


def test_peers_are_found_or_say_why_not() -> None:
    found, missing = available_peers()
    names = [peer.name for peer in found] + [peer.name for peer in missing]
    assert sorted(names) == ["cudnn", "flash-attention-2", "flash-attn-4"]
    assert all(peer.reason for peer in missing)


def test_a_peer_that_runs_something_else_is_caught() -> None:
    """On a CPU, PyTorch's flash backend is another operator: exactly what must not go unseen."""
    import torch

    (peer,) = [peer for peer in available_peers()[0] if peer.name == "flash-attention-2"]
    q, k, v = (torch.randn(1, 8, 2, 16) for _ in range(3))
    with pytest.raises(PeerMismatch, match="flash_attention_for_cpu"):
        verify_operator(peer, peer.bind(q, k, v, False, 0.25))


def test_without_a_hopper_gpu_the_benchmark_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="Hopper GPU"):
        forward.run(forward.Options())

"""Timelines: the Trace Event Format, and that ping-pong can be seen in one of our own kernels."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.emulator import pipeline_kernel

from hopwell.emulator import emulate, trace
from hopwell.emulator.recorder import Recorder, Span

Event = dict[str, Any]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two CTAs of the pipeline kernel, written and read back."""
    launch = pipeline_kernel.launch(ctas=2)
    (run,) = emulate(launch, names=pipeline_kernel.NAMES, record=True).runs
    path: Path = tmp_path_factory.mktemp("trace") / "run.json"
    trace.write(run.recording, path, kernel=launch.kernel, seed=run.seed)
    return dict(json.loads(path.read_text()))


def of_phase(document: dict[str, Any], phase: str) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_the_file_says_what_its_clock_is(document: dict[str, Any]) -> None:
    other = document["otherData"]
    assert other["schema"] == "hopwell.trace/1"
    assert other["kernel"] == "double_tiles"
    assert "not the hardware's clock" in other["clock"]


def test_there_is_a_process_for_each_cta_and_a_row_for_each_warp_and_engine(
    document: dict[str, Any],
) -> None:
    named = of_phase(document, "M")
    processes = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    assert sorted(processes.values()) == ["CTA (0,0,0)", "CTA (1,0,0)"]
    for process in processes:
        rows = [e for e in named if e["name"] == "thread_name" and e["pid"] == process]
        assert next(e["args"]["name"] for e in rows) == "bulk-copy"
        assert {"warp 0", "warp 1"} <= {e["args"]["name"] for e in rows}
    threads = [e["tid"] for e in named if e["name"] == "thread_name"]
    assert len(set(threads)) == len(threads)
    assert not set(threads) & set(processes)


def test_slices_of_a_row_do_not_overlap(document: dict[str, Any]) -> None:
    rows: dict[int, list[Event]] = {}
    for event in of_phase(document, "X"):
        if event["cat"] != "code":  # which lies inside running spans
            rows.setdefault(event["tid"], []).append(event)
    for slices in rows.values():
        slices.sort(key=lambda event: event["ts"])
        for event, following in itertools.pairwise(slices):
            assert event["dur"] > 0
            assert event["ts"] + event["dur"] <= following["ts"]


def test_every_arrow_has_two_ends_inside_slices(document: dict[str, Any]) -> None:
    starts = {event["id"]: event for event in of_phase(document, "s")}
    ends = {event["id"]: event for event in of_phase(document, "f")}
    assert starts.keys() == ends.keys()
    assert starts
    slices = of_phase(document, "X")
    for event in [*starts.values(), *ends.values()]:
        assert any(
            s["tid"] == event["tid"] and s["ts"] <= event["ts"] < s["ts"] + s["dur"] for s in slices
        ), event
    assert all(starts[key]["ts"] <= ends[key]["ts"] for key in starts)


# -- our own forward -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def forward() -> Recorder:
    """One CTA: 128 queries in two warpgroups, four blocks of keys."""
    pytest.importorskip("cutlass")
    import torch
    from tests.emulator.hopwell_forward import traced_launch

    from hopwell.hopper.plan import forward_plan

    plan = forward_plan("bfloat16", (128, 128), False)
    assert plan.ping_pong
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, plan.tile_m, 1, 128, generator=generator).bfloat16()
    k, v = (
        torch.randn(1, 4 * plan.tile_n, 1, 128, generator=generator).bfloat16() for _ in range(2)
    )
    launch = traced_launch(plan, q, k, v, 128**-0.5, 1)
    (run,) = emulate(launch, record=True).runs
    assert not run.groups
    return run.recording


def products(recording: Recorder) -> list[Span]:
    found = [span for span in recording.spans if span.kind == "wgmma"]
    return sorted(found, key=lambda span: span.start)


def test_warpgroups_of_our_forward_take_turns(forward: Recorder) -> None:
    """Ping-pong: after the first scores, each issues both products of a block, then the other."""
    rows = [span.row for span in products(forward)]
    first, second = (f"warpgroup {group} tensor core" for group in (1, 2))
    turn = [first, first, second, second]
    assert sorted(rows[:2]) == [first, second]
    assert rows[2:] == [*(turn * 3), first, second]


def test_products_of_our_forward_overlap_across_warpgroups(forward: Recorder) -> None:
    """While one warpgroup's scores are made, the other's values still are: both are in flight."""
    spans = products(forward)
    overlaps = [
        (one, other)
        for one in spans
        for other in spans
        if one.row < other.row and one.start < other.stop and other.start < one.stop
    ]
    assert len(overlaps) >= 4


def test_loads_of_our_forward_run_ahead_of_their_use(forward: Recorder) -> None:
    loads = [span for span in forward.spans if span.row == "tma-load"]
    assert {span.name.split()[0] for span in loads} == {"q", "k", "v"}
    blocks = products(forward)
    ahead = [load for load in loads if any(load.start < p.start < load.stop for p in blocks)]
    assert ahead, "no load is in flight while a product is issued"


def test_code_of_our_forward_lies_inside_running_spans(forward: Recorder) -> None:
    running: dict[str, list[Span]] = {}
    for span in forward.spans:
        if span.kind == "running":
            running.setdefault(span.row, []).append(span)
    code = [span for span in forward.spans if span.kind == "code"]
    assert {"softmax.py", "ring.py", "producer.py"} <= {s.name.split(":")[0] for s in code}
    for span in code:
        assert any(r.start <= span.start and span.stop <= r.stop for r in running[span.row])


def test_softmax_of_one_warpgroup_runs_while_the_other_multiplies(forward: Recorder) -> None:
    """What ping-pong is for: exponentials hide behind the other warpgroup's products."""
    softmax = [
        span for span in forward.spans if span.kind == "code" and span.name.startswith("softmax")
    ]
    for warp, other in ((4, 2), (8, 1)):
        row = f"warpgroup {other} tensor core"
        hidden = [
            s
            for s in softmax
            for product in products(forward)
            if s.row == f"warp {warp}" and product.row == row
            if s.start < product.stop and product.start < s.stop
        ]
        assert len(hidden) >= 3, f"warp {warp}"


def test_slices_of_our_forward_nest_in_the_order_of_the_file(forward: Recorder) -> None:
    """As Perfetto reads them: by time, then as the file has them; each inside what is open."""
    events = trace.document(forward, kernel="forward", seed=0)["traceEvents"]
    depth = 0
    open_slices: dict[int, list[float]] = {}
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: float(e["ts"])):
        ends = open_slices.setdefault(event["tid"], [])
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1], event
        ends.append(end)
        depth = max(depth, len(ends))
    assert depth == 2

"""What a recording holds: spans, pipelines with their payloads, ledgers of named barriers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.emulator import pipeline_kernel
from tests.emulator.pipeline_kernel import BYTES, NAMES, STAGES, TILES

from hopwell.emulator import emulate
from hopwell.emulator.recorder import Recorder, Span

CTA = (0, 0, 0)


def record(fault: str = "", ctas: int = 1, seed: int = 0) -> Recorder:
    launch = pipeline_kernel.launch(fault, ctas)
    (run,) = emulate(launch, seeds=[seed], names=NAMES, record=True).runs
    return run.recording


@pytest.fixture(scope="module")
def recording() -> Recorder:
    return record()


def spans(recording: Recorder, row: str, kind: str) -> list[Span]:
    found = [s for s in recording.spans if s.cta == CTA and s.row == row and s.kind == kind]
    return sorted(found, key=lambda span: span.start)


def test_without_a_recording_nothing_is_kept() -> None:
    launch = pipeline_kernel.launch()
    (run,) = emulate(launch).runs
    assert run.recording is None
    np.testing.assert_array_equal(launch.buffer("y").array, 2 * launch.buffer("x").array)


def test_each_stage_counts_its_acquires_commits_waits_and_releases(recording: Recorder) -> None:
    found = recording.pipelines.pipelines
    assert [(p.full.name, p.empty and p.empty.name) for p in found] == [
        ("full[0]", "empty[0]"),
        ("full[1]", "empty[1]"),
    ]
    turns = TILES // STAGES
    for pipeline in found:
        # The producer waits once more at its end, for the last release.
        counts = {"acquire": turns + 1, "commit": turns, "wait": turns, "release": turns}
        assert pipeline.counts == counts
        assert pipeline.full.arrivers == {"warp 0": turns}
        assert pipeline.full.waiters == {"warp 1": turns}
        assert pipeline.full.phases == turns
    assert recording.pipelines.others == []


def test_each_payload_is_known_by_what_it_is_and_its_phase(recording: Recorder) -> None:
    for stage, pipeline in enumerate(recording.pipelines.pipelines):
        wanted = [(tile * BYTES, (tile + 1) * BYTES - 1) for tile in range(stage, TILES, STAGES)]
        assert [payload.what for payload in pipeline.full.payloads] == [
            f"x bytes {first}..{last}" for first, last in wanted
        ]
        assert [payload.phase for payload in pipeline.full.payloads] == [0, 1]
        assert {payload.bytes for payload in pipeline.full.payloads} == {BYTES}
        assert {payload.by for payload in pipeline.full.payloads} == {"warp 0"}


def test_a_warp_runs_or_is_blocked_at_every_moment(recording: Recorder) -> None:
    for warp in ("warp 0", "warp 1"):
        row = sorted(
            spans(recording, warp, "running") + spans(recording, warp, "blocked"),
            key=lambda span: span.start,
        )
        assert row[0].start == 0
        for span, following in itertools.pairwise(row):
            assert span.stop == following.start


def test_blocked_spans_name_the_barrier_and_its_phase(recording: Recorder) -> None:
    assert [s.name for s in spans(recording, "warp 0", "blocked")] == [
        f"empty[{stage}] phase {phase}" for phase in range(2) for stage in range(STAGES)
    ]
    assert "full[0] phase 0" in [s.name for s in spans(recording, "warp 1", "blocked")]


def test_a_copy_lasts_from_its_issue_to_the_wait_for_it(recording: Recorder) -> None:
    copies = spans(recording, "bulk-copy", "copy")
    assert [s.facts["bytes"] for s in copies] == [BYTES] * TILES
    (first,) = [s for s in spans(recording, "warp 1", "blocked") if s.name == "full[0] phase 0"]
    assert copies[0].start == first.stop  # the consumer was there before the first copy
    assert copies[1].stop > copies[1].start  # the second was issued ahead


# Under these no wait gives up, which would add turns of its loop.
@pytest.mark.parametrize("seed", [2, 4, 6])
def test_the_clock_is_not_the_order_in_which_warps_happened_to_run(
    recording: Recorder, seed: int
) -> None:
    def timeline(recorded: Recorder) -> list[tuple[object, ...]]:
        return sorted((s.cta, s.row, s.name, s.start, s.stop) for s in recorded.spans)

    assert timeline(record(seed=seed)) == timeline(recording)


def test_ctas_have_timelines_of_their_own() -> None:
    recorded = record(ctas=3)
    assert {span.cta for span in recorded.spans} == {(x, 0, 0) for x in range(3)}
    assert [p.full.cta for p in recorded.pipelines.pipelines] == [
        (x, 0, 0) for x in range(3) for _ in range(STAGES)
    ]


def test_a_deadlock_leaves_warps_stuck_at_what_they_wait_for() -> None:
    recorded = record("release")
    stuck = {s.row: s.name for s in recorded.spans if s.kind == "stuck"}
    assert stuck == {"warp 0": "empty[0] phase 0", "warp 1": "full[0] phase 1"}
    counts = [pipeline.counts for pipeline in recorded.pipelines.pipelines]
    assert [c["release"] for c in counts] == [0, 0]


def test_the_ledger_has_each_call_once_for_warps_that_agree(recording: Recorder) -> None:
    (ledger,) = recording.ledgers
    assert (ledger.cta, ledger.warpgroup, ledger.warps) == (CTA, 0, (0, 1))
    (call,) = ledger.calls
    assert (call.action, call.barrier, call.round) == ("sync", 0, 0)


def test_a_flow_leads_from_whoever_completed_a_phase_to_who_waited(recording: Recorder) -> None:
    flows = {flow.name: flow for flow in recording.flows}
    release = flows["empty[0] phase 0"]
    assert (release.start.row, release.stop.row) == ("warp 1", "warp 0")
    assert release.start.time <= release.stop.time
    assert flows["full[0] phase 0"].start.row == "warp 0"

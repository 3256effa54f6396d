"""The wait-for graph: causes, words and cycles, from what a machine knows of blocked warps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hopwell.emulator.deadlock import (
    ClusterWait,
    Edge,
    GroupWait,
    LanesWait,
    MbarrierWait,
    MemoryWait,
    NamedBarrierWait,
    Place,
    RegisterWait,
    Signaller,
    Waiter,
    Wanted,
    explain,
    to_dict,
)
from hopwell.emulator.hazards import RULES
from hopwell.ptx.nodes import Location, SourceLine

FULL = MbarrierWait("k_full[1]", 2, 2, 1, 0, 1, parity=0, seen=1)
EMPTY = MbarrierWait("k_empty[1]", 1, 1, 2, 0, 2, parity=1, seen=0)


def place(line: int, opcode: str = "mbarrier.try_wait.parity") -> Place:
    return Place(opcode, Location("kernel.ptx", line, 1), SourceLine("kernel.py", line + 1000, 1))


def waiter(agent: str, wanted: Wanted, *signallers: Signaller) -> Waiter:
    return Waiter(agent, place(10), wanted, signallers)


def cause(wanted: Wanted, *signallers: Signaller) -> str:
    return explain([waiter("warp 4", wanted, *signallers)]).cause


def test_a_ring_in_which_both_wait_names_both_lines_and_the_cycle() -> None:
    producer = Signaller("warp 0", place(50, "mbarrier.arrive.expect_tx"), arrivals=4)
    consumer = Signaller("warp 4", place(60, "mbarrier.arrive"), arrivals=1)
    graph = explain([waiter("warp 4", FULL, producer), waiter("warp 0", EMPTY, consumer)])
    assert graph.cause == "deadlock"
    assert graph.cycles == (("warp 0", "warp 4"),)
    assert Edge("warp 4", "warp 0", "its signal on mbarrier k_full[1]") in graph.edges
    text = "\n".join(graph.lines())
    assert "warp 4 waits at kernel.py:1010 (mbarrier.try_wait.parity)" in text
    assert "for phase 2 (parity 0) to complete" in text
    assert "phase 2 is in progress with 1 of 1 arrivals and 0 bytes pending" in text
    assert "to be signalled by warp 0 at kernel.py:1050 (mbarrier.arrive.expect_tx)" in text
    assert "cycle: warp 0 -> warp 4 -> warp 0" in text
    assert json.loads(json.dumps(to_dict(graph)))["cycles"] == [["warp 0", "warp 4"]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(pending_arrivals=0, pending_bytes=512), "expected-bytes-too-many"),
        (dict(pending_arrivals=0, pending_bytes=512, copies_in_flight=1), "missing-arrival"),
        (dict(pending_bytes=-4096, ever_armed=False), "barrier-never-armed"),
        (dict(pending_bytes=-4096, ever_armed=True), "expected-bytes-too-few"),
        (dict(seen=0), "stale-phase"),
        (dict(awaited=3), "stale-phase"),
        (dict(owner_exited=True), "peer-cta-gone"),
        (dict(), "missing-arrival"),
    ],
)
def test_what_the_state_of_an_mbarrier_shows(changes: dict[str, int], expected: str) -> None:
    assert cause(replace(FULL, **changes)) == expected  # type: ignore[arg-type]


def test_an_arrival_is_missing_when_nobody_is_left_to_bring_it() -> None:
    gone = Signaller("warp 0", place(50), arrivals=2, state="exited")
    (finding,) = explain([waiter("warp 4", FULL, gone)]).findings
    assert finding.cause == "missing-arrival"
    assert "warp 0 exited without the arrival" in finding.words
    assert "kernel.py:1050" in finding.words

    (finding,) = explain([waiter("warp 4", FULL, Signaller("warp 4", place(50)))]).findings
    assert finding.cause == "missing-arrival"
    assert "only it could arrive there itself" in finding.words


def test_the_cause_comes_before_those_that_wait_for_it() -> None:
    """Three warps wait for each other's turn; one of them shows why."""
    graph = explain(
        [
            waiter("warp 8", MemoryWait(("semaphore[0]",), (3,)), Signaller("warp 4")),
            waiter("warp 4", replace(FULL, pending_arrivals=0, pending_bytes=32768)),
            waiter("warp 0", EMPTY, Signaller("warp 4"), Signaller("warp 8")),
        ]
    )
    assert graph.cause == "expected-bytes-too-many"
    assert graph.findings[0].waiter.agent == "warp 4"
    assert "32768 bytes pending" in graph.findings[0].words
    assert graph.cycles == ()


def test_named_barriers() -> None:
    peer = Signaller("warp 8")
    assert cause(NamedBarrierWait(2, 256, 128, (256, 128)), peer) == "named-barrier-count"
    assert cause(NamedBarrierWait(2, 384, 128), *[peer] * 4) == "named-barrier-count"
    assert cause(NamedBarrierWait(2, 256, 128), *[peer] * 4) == "deadlock"
    assert cause(NamedBarrierWait(2, 256, 128)) == "missing-arrival"


def test_other_waits() -> None:
    exited = Signaller("CTA (1,0,0) warp 0", state="exited")
    assert cause(ClusterWait(256, 128, ("CTA (1,0,0) warp 0",)), exited) == "peer-cta-gone"
    assert cause(MemoryWait(("flag",))) == "unchanging-memory"
    assert cause(GroupWait("bulk", 2, 0)) == "missing-copy"
    assert cause(RegisterWait(7168, 512)) == "register-pool-exhausted"
    (finding,) = explain([waiter("warp 4", LanesWait(0xFF, 0b1001))]).findings
    assert finding.cause == "divergent-sync"
    assert "for lanes 1-2, 4-7 of its warp" in finding.words
    assert "lanes 0, 3 are here" in finding.words


def test_a_cycle_is_found_once_and_as_short_as_it_is() -> None:
    needs = {"a": ["b"], "b": ["c", "a"], "c": ["a"], "d": ["a"]}
    graph = explain(
        [waiter(w, EMPTY, *[Signaller(other) for other in others]) for w, others in needs.items()]
    )
    assert graph.cycles == (("a", "b"), ("a", "b", "c"))


def test_causes_that_are_rules_are_in_the_table() -> None:
    for name in ("expected-bytes-too-many", "barrier-never-armed", "stale-phase", "peer-cta-gone"):
        assert name in RULES
    assert "deadlock" in RULES

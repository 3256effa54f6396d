"""Kernels that hang: who waits at which line for what, and who was to signal it."""

from __future__ import annotations

import pytest
from tests.emulator.rules.memory import CELLS
from tests.emulator.rules.pair import (
    CLUSTER_SYNC,
    barriers,
    declared,
    expect,
    kernel,
    launch_of,
    load,
    wait,
)

from hopwell.emulator.api import emulate
from hopwell.emulator.deadlock import WaitForGraph

SEEDS = 5


def _graphs(text: str, **launch: int) -> list[WaitForGraph]:
    """The graph under each seed, all of which have to hang."""
    report = emulate(launch_of(text, **launch), seeds=SEEDS)
    assert not report.clean
    return [run.deadlock for run in report.runs]


def _line(text: str, mark: str) -> str:
    """Where a comment stands, as reports say it."""
    (number,) = [n for n, line in enumerate(text.splitlines(), 1) if f"// {mark}" in line]
    return f"kernel.ptx:{number} "


@pytest.mark.parametrize("arrivals", [1, 31])
def test_an_mbarrier_with_too_few_arrivals(arrivals: int) -> None:
    text = kernel(
        barriers(full=32)
        + f"""setp.lt.u32 %p1, %x, {arrivals};
        @%p1 mbarrier.arrive.shared::cta.b64 _, [full]; // arrive
        """
        + wait("full", 0, "full", "wait"),
        declared("full"),
    )
    for graph in _graphs(text):
        (finding,) = graph.findings
        assert finding.waiter.agent == "CTA (0,0,0) warp 0"
        assert str(finding.waiter.place).startswith(_line(text, "wait"))
        assert "on mbarrier full, for phase 0 (parity 0)" in finding.words
        assert f"{32 - arrivals} of 32 arrivals and 0 bytes pending" in finding.words
        assert f"to be signalled by CTA (0,0,0) warp 0 at {_line(text, 'arrive')}" in finding.words
        assert graph.cause == "missing-arrival"


def test_a_circle_of_two_warps() -> None:
    text = kernel(
        barriers(left=32, right=32)
        + """setp.ge.u32 %p1, %x, 32;
        @%p1 bra $other;
        """
        + wait("left", 0, "left", "first")
        + """mbarrier.arrive.shared::cta.b64 _, [right]; // for right
        ret;
        $other:
        """
        + wait("right", 0, "right", "second")
        + "mbarrier.arrive.shared::cta.b64 _, [left]; // for left\n",
        declared("left", "right"),
    )
    first, second = "CTA (0,0,0) warp 0", "CTA (0,0,0) warp 1"
    for graph in _graphs(text, block=64):
        assert graph.cycles == ((first, second),)
        said = {finding.waiter.agent: finding.words for finding in graph.findings}
        assert f"to be signalled by {second} at {_line(text, 'for left')}" in said[first]
        assert f"to be signalled by {first} at {_line(text, 'for right')}" in said[second]
        assert {(edge.waiter, edge.needed) for edge in graph.edges} == {
            (first, second),
            (second, first),
        }
        assert "cycle: CTA (0,0,0) warp 0 -> CTA (0,0,0) warp 1" in "\n".join(graph.lines())


def test_bytes_that_do_not_come() -> None:
    text = kernel(
        barriers(full=1)
        + expect("full", 256)
        + " // expect\n"
        + load("cells", "%in", 128, "full")
        + wait("full", 0, "full", "wait"),
        CELLS + declared("full"),
    )
    for graph in _graphs(text):
        (finding,) = graph.findings
        assert graph.cause == "expected-bytes-too-many"
        assert "0 of 1 arrivals and 128 bytes pending" in finding.words
        assert _line(text, "expect") in finding.words


def test_one_who_exited_instead_of_arriving() -> None:
    text = kernel(
        barriers(full=32)
        + """setp.ge.u32 %p1, %x, 32;
        @%p1 bra $other;
        mbarrier.arrive.shared::cta.b64 _, [full]; // once
        ret;
        $other:
        """
        + wait("full", 0, "one")
        + wait("full", 1, "two", "wait"),
        declared("full"),
    )
    for graph in _graphs(text, block=64):
        (finding,) = graph.findings
        assert finding.waiter.agent == "CTA (0,0,0) warp 1"
        assert "for phase 1 (parity 1)" in finding.words
        assert "CTA (0,0,0) warp 0 exited without the arrival" in finding.words
        assert f"warp 0 at {_line(text, 'once')}" in finding.words
        assert finding.words.endswith("once so far: exited")


def test_a_named_barrier_that_a_warp_goes_round() -> None:
    text = kernel(
        """setp.ge.u32 %p1, %x, 64;
        @%p1 bra $other;
        bar.sync 3, 96; // wait
        ret;
        $other:
        bar.sync 4, 64; // elsewhere
        """,
    )
    for graph in _graphs(text, block=96):
        said = {finding.waiter.agent: finding for finding in graph.findings}
        assert len(said) == 3
        words = said["CTA (0,0,0) warp 0"].words
        assert "at named barrier 3: 64 of 96 threads have arrived" in words
        assert "at named barrier 4: 32 of 64" in said["CTA (0,0,0) warp 2"].words


def test_a_cluster_barrier_that_a_cta_does_not_reach() -> None:
    text = kernel(
        barriers(full=1)
        + "setp.eq.u32 %p1, %rank, 0;\n@%p1 bra $arrive;\n"
        + wait("full", 0, "full", "wait")
        + "$arrive:\n"
        + CLUSTER_SYNC,
        declared("full"),
    )
    for graph in _graphs(text, grid=2, cluster=2):
        said = {finding.waiter.agent: finding.words for finding in graph.findings}
        waiting = said["CTA (0,0,0) warp 0"]
        assert "at the cluster barrier: 32 of 64 threads have arrived" in waiting
        assert "CTA (1,0,0) warp 0 have not" in waiting
        assert "on mbarrier full of cluster rank 1, for phase 0" in said["CTA (1,0,0) warp 0"]


def test_a_loop_on_memory_that_nobody_changes() -> None:
    text = kernel(
        """$turn:
        ld.relaxed.gpu.global.u32 %r1, [%work]; // poll
        setp.eq.u32 %p1, %r1, 0;
        @%p1 bra $turn;
        """,
    )
    for graph in _graphs(text):
        (finding,) = graph.findings
        assert graph.cause == "unchanging-memory"
        number = _line(text, "poll").removeprefix("kernel.ptx:").strip()
        assert f"ld.relaxed.gpu.global.u32 at line {number}" in finding.words


def test_a_lane_that_waits_alone() -> None:
    text = kernel(
        barriers(full=1)
        + "@!%p0 bra $meet;\n"
        + wait("full", 0, "full", "wait")
        + "$meet:\nbar.warp.sync -1; // meet\n",
        declared("full"),
    )
    for graph in _graphs(text):
        alone = [f for f in graph.findings if f.waiter.agent == "CTA (0,0,0) warp 0 lane 0"]
        assert len(alone) == 1
        assert str(alone[0].waiter.place).startswith(_line(text, "wait"))


def test_lanes_that_wait_for_others_of_their_warp_say_for_which() -> None:
    text = kernel(
        """setp.lt.u32 %p1, %x, 7;
        @%p1 bra A;
        bar.sync 3;
        bra B;
    A:  bar.warp.sync 0xffffffff; // lanes
    B:
        """
    )
    for graph in _graphs(text):
        said = {finding.waiter.agent: finding for finding in graph.findings}
        finding = said["CTA (0,0,0) warp 0 lanes 0x7f"]
        assert str(finding.waiter.place).startswith(_line(text, "lanes"))
        assert "for lanes 7-31 of its warp" in finding.words
        assert finding.cause == "divergent-sync"

"""Every rule that the checker finds in accesses: a scene that breaks it, and one that is clean."""

from __future__ import annotations

import numpy as np
import pytest
from tests.emulator.hazard_scene import ONE, Scene, op

from hopwell.emulator.hazards import RULES, Clock, Named
from hopwell.emulator.lanes import FULL, lanes_of


def test_shared_memory_race_and_its_clean_twin() -> None:
    scene = Scene()
    a, b = scene.warps[:2]
    scene.write(a)
    scene.read(b)
    assert scene.rules == ["shared-memory-race"]
    assert scene.hazard.second.line == "kernel.py:1200"
    assert "no release after the write by CTA (0,0,0) warp 0 lane 0 reaches" in scene.hazard.missing

    scene = Scene()
    scene.write(a)
    scene.handoff(a, b)
    scene.read(b)
    scene.handoff(b, a)
    scene.write(a)
    assert scene.rules == []


def test_write_after_read_names_the_release_that_came_too_early() -> None:
    scene = Scene()
    a, b = scene.warps[:2]
    empty = scene.barrier("kv_empty[1]")
    scene.write(a)
    scene.handoff(a, b)
    empty.arrive(b, FULL, pc=321)
    scene.read(b)
    empty.finish()
    empty.wait(a)
    scene.write(a)
    assert scene.rules == ["shared-memory-race"]
    assert "its arrive on kv_empty[1] at kernel.py:1321" in scene.hazard.missing


def test_elected_lane_releases_before_the_other_lanes_have_read() -> None:
    for synchronised in (False, True):
        scene = Scene()
        a, b = scene.warps[:2]
        full, empty = scene.barrier("full"), scene.barrier("empty")
        scene.load(a, full)
        full.finish()
        full.wait(b)
        scene.read(b)
        if synchronised:
            scene.checker.warp_sync(b, FULL)
        empty.arrive(b, ONE)
        empty.finish()
        empty.wait(a, ONE)
        scene.load(a, full)
        assert scene.rules == ([] if synchronised else ["warp-race"])


def test_broadcast_read_is_remembered_for_every_lane() -> None:
    """All lanes read the same bytes; only lane 31 releases."""
    scene = Scene()
    a, b = scene.warps[:2]
    scene.write(a)
    scene.handoff(a, b)
    same = np.zeros(32, np.int64)
    scene.checker.read(b, FULL, op(200), scene.shared, same, 4)
    scene.checker.acquire(a, FULL, scene.checker.release(b, lanes_of(1 << 31)))
    scene.write(a)
    assert scene.rules == ["warp-race"]


def test_lanes_of_one_warp_race_without_warp_sync() -> None:
    for synchronised in (False, True):
        scene = Scene()
        w = scene.warps[0]
        scene.write(w)
        if synchronised:
            scene.checker.warp_sync(w, FULL)
        turned = np.roll(16 * np.arange(32), 1)
        scene.checker.read(w, FULL, op(200), scene.shared, turned, 16)
        assert scene.rules == ([] if synchronised else ["warp-race"])


def test_each_lane_may_read_its_own_bytes_at_once() -> None:
    scene = Scene()
    w = scene.warps[0]
    scene.write(w)
    scene.read(w)
    scene.write(w)
    assert scene.rules == []


@pytest.mark.parametrize(
    ("values", "rules"),
    [(None, ["warp-race"]), ([5] * 32, []), (list(range(32)), ["warp-race"])],
    ids=["unknown", "equal", "different"],
)
def test_two_lanes_write_the_same_bytes(values: list[int] | None, rules: list[str]) -> None:
    scene = Scene()
    given = None if values is None else np.array(values, np.uint32)
    offsets = np.repeat(16 * np.arange(16), 2)
    scene.checker.write(scene.warps[0], FULL, op(1), scene.shared, offsets, 4, values=given)
    assert scene.rules == rules


def test_distributed_shared_race() -> None:
    for released in (False, True):
        scene = Scene()
        a, b = scene.warps[0], scene.warps[4]
        scene.write(a, region=scene.peer)
        if released:
            scene.handoff(a, b)
        scene.read(b, region=scene.peer)
        assert scene.rules == ([] if released else ["distributed-shared-race"])


def test_global_race_and_release_through_memory() -> None:
    flag = np.array([4096])
    for scope, semantics, rules in [
        ("gpu", "release", []),
        ("gpu", "relaxed", ["global-race"]),
        ("cta", "release", ["global-race"]),
    ]:
        scene = Scene()
        a, b = scene.warps[0], scene.warps[4]
        check, memory = scene.checker, scene.buffer
        scene.write(a, region=memory)
        check.warp_sync(a, FULL)
        check.atomic(a, ONE, op(1), memory, flag, 4, semantics, scope)
        check.read(b, ONE, op(2), memory, flag, 4, True, "acquire", "gpu")
        check.warp_sync(b, FULL)
        scene.read(b, region=memory)
        # A flag whose scope does not reach the reader is itself in a race.
        assert scene.rules == (rules if scope == "gpu" else rules * 2)


def test_release_and_acquire_patterns_of_fences() -> None:
    flag = np.array([4096])
    for fence_a, fence_b in [(True, True), (True, False), (False, True)]:
        scene = Scene()
        a, b = scene.warps[0], scene.warps[4]
        check, memory = scene.checker, scene.buffer
        scene.write(a, region=memory)
        check.warp_sync(a, FULL)
        if fence_a:
            check.fence(a, FULL, "acq_rel", "gpu")
        check.write(a, ONE, op(1), memory, flag, 4, True, "relaxed", "gpu")
        check.read(b, ONE, op(2), memory, flag, 4, True, "relaxed", "gpu")
        if fence_b:
            check.fence(b, ONE, "sc", "gpu")
        check.warp_sync(b, FULL)
        scene.read(b, region=memory)
        assert scene.rules == ([] if fence_a and fence_b else ["global-race"])


def test_atomics_do_not_hide_one_another() -> None:
    """A plain read after the last of two atomics must come after the first one too."""
    for ordered in (False, True):
        scene = Scene()
        a, b, c = scene.warps[:3]
        here = np.array([0])
        for w in (a, b):
            scene.checker.atomic(w, ONE, op(w), scene.buffer, here, 4)
        for w in (a, b) if ordered else (b,):
            scene.handoff(w, c)
        scene.checker.read(c, ONE, op(3), scene.buffer, here, 4)
        assert scene.rules == ([] if ordered else ["global-race"])


def test_missing_proxy_fence() -> None:
    for before, after, rules in [
        (False, False, ["missing-proxy-fence"]),
        (True, False, []),
        (False, True, []),
    ]:
        scene = Scene()
        a, b = scene.warps[:2]
        scene.write(a)
        if before:
            scene.checker.proxy_fence(a, FULL)
        scene.cta_sync()
        if after:
            scene.checker.proxy_fence(b, ONE)
        scene.store(b)
        assert scene.rules == rules


def test_a_fence_of_one_lane_does_not_fence_for_the_others() -> None:
    scene = Scene()
    a = scene.warps[0]
    scene.write(a)
    scene.checker.proxy_fence(a, ONE)
    scene.cta_sync()
    scene.wgmma(a)
    assert scene.rules == ["missing-proxy-fence"]
    assert scene.hazard.first is not None
    assert scene.hazard.first.start == 16  # lane 0 fenced its own bytes


def test_cp_async_needs_a_fence_before_the_tensor_cores() -> None:
    for fenced in (False, True):
        scene = Scene()
        w = scene.warps[0]
        copy = scene.checker.issue(w, FULL, op(1, "cp.async"), "cp.async")
        scene.checker.engine_write(copy, scene.shared, np.arange(0, 512, 16), 16)
        for lane in range(32):
            column = scene.checker.column("cp.async", (w, lane))
            scene.checker.completes(copy, column, 1)
            scene.checker.acquire(w, lanes_of(1 << lane), Clock.single(column, 1))
        if fenced:
            scene.checker.proxy_fence(w, FULL)
        scene.checker.warp_sync(w, FULL)
        scene.read(w)
        scene.wgmma(w)
        assert scene.rules == ([] if fenced else ["missing-proxy-fence"])


def test_a_lane_that_waits_for_its_cp_async_does_not_wait_for_the_others() -> None:
    for synchronised in (False, True):
        scene = Scene()
        w = scene.warps[0]
        copy = scene.checker.issue(w, FULL, op(1, "cp.async"), "cp.async")
        scene.checker.engine_write(copy, scene.shared, np.arange(0, 512, 16), 16)
        for lane in range(32):
            column = scene.checker.column("cp.async", (w, lane))
            scene.checker.completes(copy, column, 1)
            scene.checker.acquire(w, lanes_of(1 << lane), Clock.single(column, 1))
        scene.read(w)  # its own bytes
        assert scene.rules == []
        if synchronised:
            scene.checker.warp_sync(w, FULL)
        turned = np.roll(16 * np.arange(32), 1)
        scene.checker.read(w, FULL, op(200), scene.shared, turned, 16)
        assert scene.rules == ([] if synchronised else ["warp-race"])


def test_bytes_in_flight() -> None:
    for waits in (False, True):
        scene = Scene()
        a, b = scene.warps[:2]
        full = scene.barrier("k_full[0]")
        scene.load(a, full)
        full.arrive(a)
        full.finish()
        if waits:
            full.wait(b)
        scene.read(b)
        assert scene.rules == ([] if waits else ["bytes-in-flight"])
    # A wait of one lane does not tell the others.
    scene = Scene()
    full = scene.barrier("full")
    scene.load(a, full)
    full.finish()
    full.wait(b, ONE)
    scene.read(b)
    assert scene.rules == ["warp-race"]
    assert "only lane 0 of CTA (0,0,0) warp 1 has waited" in scene.hazard.missing


def _ring(turns: int, wait: str) -> Scene:
    """A ring of one stage: a producer, a consumer that reads at the same place each turn."""
    scene = Scene()
    a, b = scene.warps[:2]
    full, empty = scene.barrier("full"), scene.barrier("empty")
    for turn in range(turns):
        if turn:
            empty.finish()
            empty.wait(a, ONE)
        scene.load(a, full)
        if wait == "parity never flipped" and turn:
            full.wait(b)  # finds the phase of the turn before, and returns
        full.arrive(a)
        full.finish()
        if wait == "each turn" or turn == 0:
            full.wait(b)
        scene.read(b)
        scene.checker.warp_sync(b, FULL)
        empty.arrive(b)
    return scene


def test_stale_phase_and_missing_wait_are_told_apart() -> None:
    assert _ring(4, "each turn").rules == []
    assert _ring(2, "parity never flipped").rules == ["stale-phase"]
    assert _ring(2, "first turn only").rules == ["bytes-in-flight"]


def test_a_wait_one_phase_behind_is_stale_each_time() -> None:
    """Two stages in flight; the consumer's parity starts wrong, so it is always one late."""
    scene = Scene()
    a, b = scene.warps[:2]
    full = scene.barrier("full")
    scene.checker.waited(b, FULL, full.column, 0)
    scene.load(a, full)
    scene.read(b)
    assert scene.rules == ["stale-phase"]
    assert "was let through before any phase was complete" in scene.hazard.missing


def test_stage_released_before_the_read() -> None:
    scene = Scene()
    a, b = scene.warps[:2]
    full, empty = scene.barrier("full"), scene.barrier("empty")
    scene.load(a, full)
    full.finish()
    full.wait(b)
    empty.arrive(b, FULL)
    empty.finish()
    empty.wait(a, ONE)
    scene.load(a, full, pc=101)
    scene.read(b)  # the schedule in which the copy is already under way
    assert scene.rules == ["stage-released-early"]

    scene = Scene()
    full, empty = scene.barrier("full"), scene.barrier("empty")
    scene.load(a, full)
    full.finish()
    full.wait(b)
    empty.arrive(b, FULL)
    scene.read(b)  # the schedule in which the read comes first
    empty.finish()
    empty.wait(a, ONE)
    scene.load(a, full, pc=101)
    assert scene.rules == ["stage-released-early"]


def test_stage_released_before_the_wait_for_its_wgmma() -> None:
    for early in (True, False):
        scene = Scene()
        a, b = scene.warps[:2]
        full, empty = scene.barrier("full"), scene.barrier("empty")
        scene.load(a, full)
        full.finish()
        full.wait(b)
        scene.wgmma(b)
        if early:
            empty.arrive(b, ONE)
        scene.wait_group(b, "wgmma", lanes=FULL)
        if not early:
            empty.arrive(b, ONE)
        empty.finish()
        empty.wait(a, ONE)
        scene.load(a, full, pc=101)
        assert scene.rules[:1] == (["stage-released-early"] if early else [])


def test_wgmma_operand_overwritten() -> None:
    for waited in (False, True):
        scene = Scene()
        w = scene.warps[0]
        scene.write(w)
        scene.checker.proxy_fence(w, FULL)
        scene.checker.warp_sync(w, FULL)
        scene.wgmma(w)
        if waited:
            scene.wait_group(w, "wgmma", lanes=FULL)
        scene.write(w, pc=211)
        assert scene.rules == ([] if waited else ["wgmma-operand-overwritten"])
    # A producer that does not wait for the empty barrier at all.
    scene = Scene()
    a, b = scene.warps[:2]
    full = scene.barrier("full")
    scene.load(a, full)
    full.finish()
    full.wait(b)
    scene.wgmma(b)
    scene.load(a, full, pc=101)
    assert "wgmma-operand-overwritten" in scene.rules


def test_read_completion_is_enough_for_the_source_only() -> None:
    scene = Scene()
    w = scene.warps[0]
    scene.write(w)
    scene.checker.proxy_fence(w, FULL)
    scene.checker.warp_sync(w, FULL)
    scene.store(w)
    scene.wait_group(w, "bulk-read")
    scene.checker.warp_sync(w, FULL)
    scene.write(w, pc=211)  # the source
    assert scene.rules == []
    scene.read(w, region=scene.buffer)  # the destination
    assert scene.rules == ["read-completion-only"]
    assert "wait without .read" in scene.hazard.missing

    scene = Scene()
    scene.write(w)
    scene.checker.proxy_fence(w, FULL)
    scene.checker.warp_sync(w, FULL)
    scene.store(w)
    scene.write(w, pc=211)
    assert scene.rules == ["bytes-in-flight"]


def test_bulk_groups_of_two_lanes_complete_apart() -> None:
    scene = Scene()
    w = scene.warps[0]
    scene.write(w)
    scene.checker.proxy_fence(w, FULL)
    scene.checker.warp_sync(w, FULL)
    for lane in (0, 1):
        one = lanes_of(1 << lane)
        copy = scene.checker.issue(w, one, op(110), "tma-store")
        scene.checker.engine_read(copy, scene.shared, np.array([0]), 512)
        column = scene.checker.column("bulk-read", (w, lane))
        scene.checker.completes(copy, column, 1)
    scene.checker.acquire(w, lanes_of(2), Clock.single(column, 1))
    scene.checker.warp_sync(w, FULL)
    scene.write(w, pc=211)
    assert scene.rules == ["bytes-in-flight"]  # lane 0 has not waited for its own


@pytest.mark.parametrize("told_apart", [True, False])
def test_storage_aliased(told_apart: bool) -> None:
    kinds = (frozenset({"tma-load", "wgmma"}), frozenset({"generic"})) if told_apart else ((), ())
    names = (Named(0, 512, "sQ", frozenset(kinds[0])), Named(0, 512, "sO", frozenset(kinds[1])))
    for drained in (False, True):
        scene = Scene(names)
        a, b = scene.warps[:2]
        full = scene.barrier("q_full")
        scene.load(a, full)
        full.finish()
        full.wait(b)
        scene.wgmma(b)
        if drained:
            scene.wait_group(b, "wgmma", lanes=FULL)
        scene.write(b)
        assert scene.rules == ([] if drained else ["storage-aliased"])
    assert not told_apart or scene.shared.name_of(0, 16, "generic") == "sO"


def test_uninitialised_read() -> None:
    scene = Scene()
    w = scene.warps[0]
    scene.write(w, 0)
    scene.checker.warp_sync(w, FULL)
    scene.read(w, 256)
    assert scene.rules == ["uninitialised-read"]
    assert (scene.hazard.second.start, scene.hazard.second.stop) == (512, 768)
    scene = Scene()
    scene.read(w, region=scene.buffer)
    assert scene.rules == []


def test_uninitialised_barrier() -> None:
    here = np.array([8])
    scene = Scene()
    a, b = scene.warps[:2]
    check = scene.checker
    check.mbarrier_use(a, ONE, op(1), scene.shared, here)
    assert scene.rules == ["uninitialised-barrier"]

    for ordered in (False, True):
        scene = Scene()
        check = scene.checker
        check.mbarrier_init(a, ONE, op(1), scene.shared, here)
        check.mbarrier_use(a, ONE, op(2), scene.shared, here)  # its own lane
        if ordered:
            scene.cta_sync()
        check.mbarrier_use(b, FULL, op(3), scene.shared, np.zeros(32, np.int64) + 8)
        assert scene.rules == ([] if ordered else ["uninitialised-barrier"])


def test_relaxed_arrive_publishes_initialisations_through_their_fence() -> None:
    here = np.array([8])
    for fenced in (False, True):
        scene = Scene()
        a, peer = scene.warps[0], scene.warps[4]
        check = scene.checker
        check.mbarrier_init(a, ONE, op(1), scene.shared, here)
        scene.write(a, 512)
        if fenced:
            check.fence(a, ONE, "mbarrier_init", "cluster")
        check.acquire(peer, FULL, check.release_relaxed(a, FULL))
        check.mbarrier_use(peer, ONE, op(2), scene.shared, here)
        scene.read(peer, 512)  # the fence publishes nothing else
        extra = [] if fenced else ["uninitialised-barrier"]
        assert scene.rules == [*extra, "distributed-shared-race"]


def test_copy_that_outlives_its_cta() -> None:
    for waited in (False, True):
        scene = Scene()
        w = scene.warps[0]
        scene.write(w)
        scene.checker.proxy_fence(w, FULL)
        scene.checker.warp_sync(w, FULL)
        scene.store(w)
        if waited:
            scene.wait_group(w, "bulk-read")
        for mate in scene.warps[:4]:
            assert scene.rules == []
            scene.checker.exit(mate, FULL)
        assert scene.rules == ([] if waited else ["dangling-copy"])


def test_machine_reports_take_the_same_way() -> None:
    scene = Scene()
    for _ in range(3):
        scene.checker.report(
            "wgmma-accumulator-in-flight", scene.warps[0], FULL, op(9), "no wait", op(8), register=3
        )
    (group,) = scene.checker.groups
    assert group.count == 3
    assert group.example.facts == {"register": 3}
    assert group.example.ptx_section == RULES["wgmma-accumulator-in-flight"].section
    with pytest.raises(KeyError, match="no rule is called 'nonsense'"):
        scene.checker.report("nonsense", scene.warps[0], FULL, op(9))


def test_lanes_that_have_exited_do_not_hold_up_a_warp_sync() -> None:
    scene = Scene()
    a, b = scene.warps[:2]
    half = lanes_of(0xFFFF)
    scene.checker.exit(a, lanes_of(0xFFFF0000))
    scene.write(a, lanes=half)
    scene.checker.warp_sync(a, half)
    scene.checker.acquire(b, FULL, scene.checker.release(a, ONE))
    scene.checker.read(b, half, op(1), scene.shared, 16 * np.arange(16), 16)
    assert scene.rules == []


def test_clock_single_knows_one_completion_only() -> None:
    clock = Clock.single(-3, 5)
    assert (clock.general, clock.fenced) == ({-3: 5}, {})


def test_an_atomic_does_not_hide_the_weak_read_before_it() -> None:
    """The atomics may meet without order; the plain read before one of them may not."""
    scene = Scene()
    a, b = scene.warps[:2]
    here = np.array([0])
    scene.checker.read(a, ONE, op(1), scene.buffer, here, 4)
    scene.checker.atomic(a, ONE, op(2), scene.buffer, here, 4)
    scene.checker.atomic(b, ONE, op(3), scene.buffer, here, 4)
    assert scene.rules == ["global-race"]
    assert scene.hazard.first is not None
    assert scene.hazard.first.line == "kernel.py:1001"


def test_an_atomic_of_wider_scope_does_not_hide_a_narrow_one() -> None:
    scene = Scene()
    a, peer = scene.warps[0], scene.warps[4]
    here = np.array([0])
    scene.checker.atomic(a, ONE, op(1), scene.buffer, here, 4, scope="cta")
    scene.checker.atomic(a, ONE, op(2), scene.buffer, here, 4, scope="gpu")
    scene.checker.atomic(peer, ONE, op(3), scene.buffer, here, 4, scope="gpu")
    assert scene.rules == ["global-race"]
    assert scene.hazard.first is not None
    assert scene.hazard.first.line == "kernel.py:1001"


def test_an_atomic_initialises() -> None:
    scene = Scene()
    w = scene.warps[0]
    scene.checker.atomic(w, ONE, op(1), scene.shared, np.array([0]), 4)
    scene.checker.read(w, ONE, op(2), scene.shared, np.array([0]), 4)
    assert scene.rules == []


def test_a_barrier_of_some_lanes_tells_these_lanes_only() -> None:
    for reader, rules in [(1, []), (2, ["shared-memory-race"])]:
        scene = Scene()
        a, b = scene.warps[:2]
        scene.write(a)
        scene.checker.warp_sync(a, FULL)
        scene.checker.acquire(b, ONE, scene.checker.release(a, ONE))
        scene.checker.warp_sync(b, lanes_of(0b11))
        scene.checker.read(b, lanes_of(1 << reader), op(1), scene.shared, np.array([0]), 16)
        assert scene.rules == rules

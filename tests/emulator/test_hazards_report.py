"""Hazards as data and as text, shadow memory, and what the checker forgets."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.emulator.hazard_scene import ONE, Scene, op

from hopwell.emulator.hazards import (
    RULES,
    Access,
    Checker,
    Hazard,
    HazardGroup,
    NullChecker,
    lines,
    merge_groups,
    to_dict,
    to_json,
    verdict,
)
from hopwell.emulator.hazards import checker as checker_module
from hopwell.emulator.hazards.shadow import INITIAL, Named, Region, distinct
from hopwell.emulator.lanes import FULL
from hopwell.ptx.nodes import Location, SourceLine


def _racing() -> Scene:
    scene = Scene((Named(0, 1024, "sP"),))
    for _ in range(3):
        scene.write(scene.warps[0])
        scene.read(scene.warps[1])
    return scene


def test_hazards_of_one_cause_are_one_group() -> None:
    groups = _racing().checker.groups
    assert [(g.rule, g.count) for g in groups] == [
        ("shared-memory-race", 3),  # store, then load
        ("shared-memory-race", 2),  # load, then store
    ]
    assert verdict(groups) == "5 hazards with 2 causes: shared-memory-race"
    assert verdict([]) == "clean: no hazard"
    merged = merge_groups([groups, _racing().checker.groups])
    assert [g.count for g in merged] == [6, 4]
    assert merged[0].seeds == [7]


def test_json_has_both_sides_and_a_version() -> None:
    found = json.loads(to_json(_racing().checker.groups))
    assert found["schema"] == "hopwell.hazards/1"
    assert found["hazards"] == 5
    first = found["groups"][0]
    assert first["ptx_section"] == RULES["shared-memory-race"].section
    assert first["first"]["ptx"] == {"file": "kernel.ptx", "line": 210, "column": 1}
    assert first["second"]["source"]["line"] == 1200
    assert first["second"]["buffer"] == "sP"
    assert (first["second"]["start"], first["second"]["stop"]) == (0, 512)
    assert first["facts"] == {"bytes": 512}
    assert to_dict([])["groups"] == []


def test_text_puts_the_verdict_first_and_both_lines_in_each_group() -> None:
    text = lines(_racing().checker.groups)
    assert text[0].startswith("5 hazards with 2 causes")
    joined = "\n".join(text)
    assert "1. shared-memory-race" in joined
    assert "kernel.py:1210  st" in joined
    assert "kernel.py:1200  ld" in joined
    assert "write by CTA (0,0,0) warp 0 lane 0: sP, shared of CTA (0,0,0) bytes 0..511" in joined


def test_every_rule_says_what_to_do() -> None:
    for name, rule in RULES.items():
        assert name == name.lower()
        assert rule.section.startswith("PTX ISA ")
        for text in (rule.meaning, rule.breaks, rule.fix):
            assert text.endswith("."), name
        assert not rule.title.endswith("."), name


def test_shadow_refines_its_grain_and_keeps_what_it_knew() -> None:
    region = Region("r", "shared", 64, (0, 0, 0), True)
    index = region.cells(np.array([16]), 16)
    region.writes[index] = 9
    assert region.grain == 16
    index = region.cells(np.array([18]), 2)  # new arrays from here on
    region.writes[index] = 11
    assert region.grain == 2
    assert region.writes.tolist() == [INITIAL] * 8 + [9, 11, *[9] * 6] + [INITIAL] * 16
    assert region.sets.tolist() == [0] * 32


def test_rows_in_order_are_one_slice() -> None:
    region = Region("r", "shared", 4096, (0, 0, 0), True)
    assert region.cells(np.arange(0, 4096, 16), 16) == slice(0, 256)
    turned = np.arange(0, 4096, 16) ^ 16
    cells = region.cells(turned, 16)
    assert isinstance(cells, np.ndarray)
    assert sorted(cells.tolist()) == list(range(256))
    wide = region.cells(np.array([0, 128]), 64)
    assert isinstance(wide, np.ndarray)
    assert wide.tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize("size", [3, 2000])
def test_distinct_values(size: int) -> None:
    numbers = np.array([5, 5, 7] + [1, 2] * (size // 2), np.int32)
    assert sorted(distinct(numbers)) == sorted(set(numbers.tolist()))


def test_a_long_clean_run_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker_module, "_FORGET_AFTER", 300)
    scene = Scene()
    a, b = scene.warps[:2]
    full, empty = scene.barrier("full"), scene.barrier("empty")
    scene.checker._forget_at = 300
    largest = 0
    for turn in range(400):
        if turn:
            empty.finish()
            empty.wait(a, ONE)
        scene.load(a, full)
        full.arrive(a)
        full.finish()
        full.wait(b)
        scene.wgmma(b, group=turn)
        scene.wait_group(b, "wgmma", turn, FULL)
        scene.read(b)
        scene.checker.warp_sync(b, FULL)
        empty.arrive(b)
        largest = max(largest, len(scene.checker._events))
    assert scene.rules == []
    assert largest <= 301
    assert len(scene.checker._sets) <= 301
    assert len(scene.checker._open[0, 0, 0]) <= 513


def test_forgetting_loses_no_hazard() -> None:
    scene = Scene()
    a, b = scene.warps[:2]
    scene.write(a, 2048)
    scene.checker._forget()
    scene.read(b, 2048)
    scene.checker._forget()
    scene.checker.acquire(b, FULL, scene.checker.release(a, FULL))
    scene.read(b, 2048, pc=222)
    assert scene.rules == ["shared-memory-race"]
    scene.write(a, 2048, pc=223)
    assert scene.rules == ["shared-memory-race"] * 2  # the second read stands for both


def test_null_checker_takes_every_call() -> None:
    null = NullChecker()
    for name in dir(Checker):
        if not name.startswith("_") and callable(getattr(Checker, name)):
            getattr(null, name)(1, FULL, op(1))
    assert null.groups == []
    clock = null.release(0, FULL)
    clock.join(null.release_relaxed(0, FULL))
    assert clock.general == {}
    assert null.issue(0, FULL, op(1), "wgmma") is None


def _hazard(first: int, second: int, rule: str = "bytes-in-flight") -> HazardGroup:
    """A hazard between PTX lines, four of which come from one source line each."""
    sides = [
        Access("a", "read", "op", Location("k.ptx", line, 1), SourceLine("k.py", line // 4, 1))
        for line in (first, second)
    ]
    return HazardGroup(Hazard(rule, sides[0], sides[1], "a wait", 1), seeds=[1])


def test_unrolled_instructions_are_one_cause() -> None:
    """One missing wait before eight reads of two copies, and something else besides."""
    reads = [_hazard(8 + n % 2, 100 + n) for n in range(8)]
    other = _hazard(8, 100, "shared-memory-race")
    far = _hazard(40, 200)
    merged = merge_groups([[*reads, other, far]])
    assert [(g.rule, g.count, len(g.also)) for g in merged] == [
        ("bytes-in-flight", 8, 7),
        ("shared-memory-race", 1, 0),
        ("bytes-in-flight", 1, 0),
    ]
    text = "\n".join(lines(merged))
    assert "also     k.py:2 (PTX 9) and k.py:25 (PTX 101)" in text
    assert "and 5 more pairs of instructions" in text
    assert len(to_dict(merged)["groups"][0]["also"]) == 7


def test_two_causes_that_a_third_pair_joins_become_one() -> None:
    merged = merge_groups([[_hazard(8, 100), _hazard(40, 200)], [_hazard(8, 200)]])
    assert [(g.count, len(g.also)) for g in merged] == [(3, 2)]


def test_hazards_import_no_torch_and_no_terminal() -> None:
    code = (
        "import sys; import hopwell.emulator.hazards, hopwell.emulator.deadlock; "
        "print([m for m in ('torch', 'rich', 'cutlass', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

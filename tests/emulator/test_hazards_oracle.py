"""The checker against brute force: small random traces, every pair of accesses, every path.

The oracle knows no vector clocks. It keeps one node per lane and event and one edge per thing
that orders, and asks for each conflicting pair whether a path leads from one to the other, and
through a proxy fence where the pair crosses proxies. A path may pass through an engine, from the
issue of its work to the completion, only where that work touched the same byte: who knows that
a copy has overwritten a byte knows that what came before the copy there is over, but not what
else its issuer did.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopwell.emulator.hazards import Checker, Clock
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.ptx.nodes import Location

BYTES = 32
LANES = 3  # lanes that exist in each warp of a trace


def _op(pc: int) -> Any:
    node = SimpleNamespace(opcode="test", location=Location("trace", pc, 1), source=None)
    return SimpleNamespace(pc=pc, node=node)


@dataclass
class _Access:
    """One lane's or engine's access to bytes: ``node`` ends it, ``begin`` starts it."""

    step: int
    write: bool
    bytes: frozenset[int]
    begin: int
    node: int | None  # None while an engine's completion has no node yet
    asynchronous: bool
    strong: bool = False
    unit: object = None  # accesses of one unit do not conflict with each other


@dataclass
class Oracle:
    """Nodes, edges and accesses of one trace."""

    edges: list[set[int]] = field(default_factory=list)
    fences: set[int] = field(default_factory=set)
    accesses: list[_Access] = field(default_factory=list)
    last: dict[tuple[int, int], int] = field(default_factory=dict)

    def node(self, *before: int) -> int:
        self.edges.append(set())
        new = len(self.edges) - 1
        for node in before:
            self.edges[node].add(new)
        return new

    def step(self, warp: int, lane: int, *before: int) -> int:
        """The next node of a lane's program order."""
        own = [self.last[warp, lane]] if (warp, lane) in self.last else []
        self.last[warp, lane] = self.node(*own, *before)
        return self.last[warp, lane]

    def reach(self, byte: int, writes: bool) -> list[set[int]]:
        """Per node all that come after it, through engines too that touch this byte."""
        after: list[set[int]] = [set() for _ in self.edges]
        through: dict[int, set[int]] = {}
        for work in self.accesses:
            if work.node is None or work.node == work.begin:
                continue
            if byte in work.bytes and (work.write or not writes):
                through.setdefault(work.begin, set()).add(work.node)
        for node in range(len(self.edges) - 1, -1, -1):  # edges lead to later nodes only
            for following in self.edges[node] | through.get(node, set()):
                after[node] |= after[following] | {following}
        return after

    def first_race(self) -> int | None:
        """The step of the earliest access that races with one before it."""
        racing = []
        for byte in range(BYTES):
            after = {writes: self.reach(byte, writes) for writes in (False, True)}
            here = [access for access in self.accesses if byte in access.bytes]
            for i, one in enumerate(here):
                later = here[i + 1 :]
                racing += [two.step for two in later if self._races(one, two, after[one.write])]
        return min(racing, default=None)

    def _races(self, one: _Access, two: _Access, after: list[set[int]]) -> bool:
        if not (one.write or two.write) or (one.unit is not None and one.unit is two.unit):
            return False
        if one.strong and two.strong:
            return False
        if one.node is None or two.begin not in after[one.node] | {one.node}:
            return True
        if not one.write or one.asynchronous or not two.asynchronous:
            return False
        # A generic write that an engine of the async proxy meets: some fence lies between.
        return not any(
            fence in after[one.node] and two.begin in after[fence] for fence in self.fences
        )


ALL = (1 << LANES) - 1
MASKS = [0b001, 0b010, 0b011, 0b101, ALL, ALL, ALL]
Step = tuple[Any, ...]


def _memory(draw: random.Random, warps: int) -> list[Step]:
    kind = draw.choice(["read", "read", "write", "atomic"])
    size, base = draw.choice([4, 8, 16]), draw.randrange(2)
    spread = draw.choice(["same", "apart", "apart", "turned"])
    return [(kind, draw.randrange(warps), draw.choice(MASKS), size, base, spread)]


def _handed(draw: random.Random, warps: int) -> list[Step]:
    """One warp's past to another, as an elected lane does it; now and then a part is left out."""
    giver, taker = draw.randrange(warps), draw.randrange(warps)
    steps: list[Step] = [("fence", giver, ALL), ("sync", giver, ALL)]
    steps += [("release", giver, 1, taker), ("acquire", taker, ALL, taker)]
    return [step for step in steps if draw.random() > 0.1]


def _copied(draw: random.Random, warps: int) -> list[Step]:
    """A copy from its issue to the wait for it."""
    giver, taker, number = draw.randrange(warps), draw.randrange(warps), draw.randrange(4)
    engine = draw.choice(["tma", "tma", "cp.async"])
    issued = ("issue", giver, 1, draw.random() < 0.5, engine, draw.randrange(2))
    return [("sync", giver, ALL), issued, ("complete", number), ("wait", taker, ALL, number)]


def _alone(draw: random.Random, warps: int) -> list[Step]:
    """One step of any kind."""
    w, mask, number = draw.randrange(warps), draw.choice(MASKS), draw.randrange(3)
    engine = draw.choice(["tma", "cp.async"])
    choices: list[Step] = [
        ("release", w, mask, number),
        ("acquire", w, mask, number),
        ("sync", w, mask),
        ("fence", w, mask),
        ("barrier",),
        ("issue", w, mask, draw.random() < 0.5, engine, draw.randrange(2)),
        ("complete", number),
        ("wait", w, mask, number),
    ]
    return [draw.choice(choices)]


def trace(draw: random.Random) -> list[Step]:
    """Accesses, and enough order among them that many traces are long and clean."""
    warps = draw.randint(1, 3)
    parts = [_memory, _memory, _memory, _handed, _handed, _copied, _alone]
    chosen = [draw.choice(parts)(draw, warps) for _ in range(draw.randint(3, 18))]
    return [step for part in chosen for step in part]


def _offsets(lanes: Lanes, size: int, base: int, spread: str) -> np.ndarray:
    turn = {"same": 0 * lanes.index, "apart": lanes.index, "turned": (lanes.index + 1) % LANES}
    return (turn[spread] * size + base * size) % (BYTES - size + 1) // size * size


class Run:
    """One trace, through the checker and into the oracle."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.oracle = Oracle()
        exist = lanes_of(ALL)
        self.warps = [self.checker.new_warp(f"warp {i}", (0, 0, 0), i, exist) for i in range(3)]
        self.region = self.checker.new_region("memory", "shared", BYTES, (0, 0, 0), True)
        self.clocks = [Clock(), Clock(), Clock()]
        self.channels: list[list[int]] = [[], [], []]
        self.work: list[tuple[Any, _Access]] = []
        self.done: dict[int, int] = {}
        self.now = 0

    def memory(self, kind: str, w: int, bits: int, size: int, base: int, spread: str) -> None:
        lanes = lanes_of(bits)
        offsets = _offsets(lanes, size, base, spread)
        call = getattr(self.checker, kind)
        extra = {"values": np.zeros(lanes.count)} if kind == "write" else {}
        call(self.warps[w], lanes, _op(self.now), self.region, offsets, size, **extra)
        unit = object()
        for lane, offset in zip(lanes.index.tolist(), offsets.tolist(), strict=True):
            node = self.oracle.step(w, lane)
            touched = frozenset(range(offset, offset + size))
            self.oracle.accesses.append(
                _Access(
                    self.now, kind != "read", touched, node, node, False, kind == "atomic", unit
                )
            )

    def release(self, w: int, bits: int, channel: int) -> None:
        self.clocks[channel].join(self.checker.release(self.warps[w], lanes_of(bits)))
        for lane in lanes_of(bits).index.tolist():
            self.channels[channel].append(self.oracle.step(w, lane))

    def acquire(self, w: int, bits: int, channel: int) -> None:
        self.checker.acquire(self.warps[w], lanes_of(bits), self.clocks[channel].copy())
        for lane in lanes_of(bits).index.tolist():
            self.oracle.step(w, lane, *self.channels[channel])

    def sync(self, w: int, bits: int) -> None:
        self.checker.warp_sync(self.warps[w], lanes_of(bits))
        lanes = lanes_of(bits).index.tolist()
        arrived = [self.oracle.step(w, lane) for lane in lanes]
        for lane in lanes:
            self.oracle.step(w, lane, *arrived)

    def fence(self, w: int, bits: int) -> None:
        self.checker.proxy_fence(self.warps[w], lanes_of(bits))
        for lane in lanes_of(bits).index.tolist():
            self.oracle.fences.add(self.oracle.step(w, lane))

    def barrier(self) -> None:
        """bar.sync of all warps, as a machine does it."""
        everyone = lanes_of(ALL)
        together = Clock()
        for warp in self.warps:
            self.checker.warp_sync(warp, everyone)
            together.join(self.checker.release(warp, everyone))
        for warp in self.warps:
            self.checker.acquire(warp, everyone, together)
        places = [(w, lane) for w in range(3) for lane in range(LANES)]
        arrived = [self.oracle.step(*place) for place in places]
        for place in places:
            self.oracle.step(*place, *arrived)

    def issue(self, w: int, bits: int, write: bool, engine: str, base: int) -> None:
        lanes = lanes_of(bits)
        name = "tma-load" if engine == "tma" else "cp.async"
        handle = self.checker.issue(self.warps[w], lanes, _op(self.now), name)
        start = base * 16
        call = self.checker.engine_write if write else self.checker.engine_read
        call(handle, self.region, np.array([start]), 16)
        begin = self.oracle.node(*[self.oracle.step(w, x) for x in lanes.index.tolist()])
        access = _Access(
            self.now, write, frozenset(range(start, start + 16)), begin, None, engine == "tma"
        )
        self.oracle.accesses.append(access)
        self.work.append((handle, access))

    def complete(self, which: int) -> None:
        if which >= len(self.work) or which in self.done:
            return
        handle, access = self.work[which]
        column = self.checker.column("bulk", which)
        self.checker.completes(handle, column, 1)
        self.done[which] = self.oracle.node()
        access.node = self.done[which]

    def wait(self, w: int, bits: int, which: int) -> None:
        if which not in self.done:
            return
        column = self.checker.column("bulk", which)
        self.checker.acquire(self.warps[w], lanes_of(bits), Clock.single(column, 1))
        for lane in lanes_of(bits).index.tolist():
            self.oracle.step(w, lane, self.done[which])

    def play(self, steps: list[Step]) -> int | None:
        """The step at which the checker reports first."""
        for self.now, (kind, *arguments) in enumerate(steps):
            if kind in ("read", "write", "atomic"):
                self.memory(kind, *arguments)
            else:
                getattr(self, kind)(*arguments)
            if self.checker.groups:
                return self.now
        return None


def _check(steps: list[Step]) -> None:
    run = Run()
    first = run.play(steps)
    assert first == run.oracle.first_race()


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_reports_the_first_race_exactly_where_the_oracle_does(draw: random.Random) -> None:
    _check(trace(draw))


@pytest.mark.parametrize("seed", range(8))
def test_the_same_over_many_traces(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(250):
        _check(trace(draw))

"""A small stage for tests of the checker: warps, memory, barriers as a machine has them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from hopwell.emulator.hazards import AsyncOp, Checker, Clock, Hazard, Named, Region
from hopwell.emulator.lanes import FULL, Lanes, lanes_of
from hopwell.ptx.nodes import Location, SourceLine

ONE = lanes_of(1)
ORIGIN = (0, 0, 0)


def op(pc: int, opcode: str = "test.op") -> Any:
    """A decoded instruction on PTX line ``pc``, compiled from kernel.py line ``pc`` + 1000."""
    node = SimpleNamespace(
        opcode=opcode,
        location=Location("kernel.ptx", pc, 1),
        source=SourceLine("kernel.py", pc + 1000, 1),
    )
    return SimpleNamespace(pc=pc, node=node)


def rows(start: int, size: int = 16, lanes: Lanes = FULL) -> np.ndarray:
    """One offset per lane, ``size`` bytes apart."""
    return start + size * np.arange(lanes.count, dtype=np.int64)


class Barrier:
    """An mbarrier as far as order goes: arrivals join the phase, waiters learn the last one."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.name = name
        self.column = scene.checker.column("mbarrier", name, name)
        self.phase = -1  # the last complete one
        self.pending = Clock()
        self.complete = Clock()
        self.copies: list[AsyncOp] = []

    def arrive(self, w: int, lanes: Lanes = ONE, pc: int = 900) -> None:
        arrive = op(pc, "mbarrier.arrive")
        self.pending.join(self.scene.checker.release(w, lanes, arrive, self.name))

    def finish(self) -> None:
        """Complete the phase; its copies have landed."""
        self.phase += 1
        for copy in self.copies:
            self.scene.checker.landed(copy)
            self.scene.checker.completes(copy, self.column, self.phase + 1)
        self.copies.clear()
        self.pending.advance(self.column, self.phase + 1)
        self.complete = self.pending.copy()

    def wait(self, w: int, lanes: Lanes = FULL) -> None:
        self.scene.checker.acquire(w, lanes, self.complete)
        self.scene.checker.waited(w, lanes, self.column, self.phase + 1)


class Scene:
    """Two CTAs of one cluster with four warps each, their shared memory, and one global buffer."""

    def __init__(self, names: tuple[Named, ...] = ()) -> None:
        self.checker = Checker(seed=7)
        self.warps = [
            self.checker.new_warp(f"CTA ({x},0,0) warp {i}", (x, 0, 0), i, cluster=ORIGIN)
            for x in (0, 1)
            for i in range(4)
        ]
        self.shared, self.peer = (
            self.checker.new_region(
                f"shared of CTA ({x},0,0)", "shared", 4096, (x, 0, 0), False, names
            )
            for x in (0, 1)
        )
        self.buffer = self.checker.new_region("tensor", "global", 8192, None, True)

    def barrier(self, name: str) -> Barrier:
        return Barrier(self, name)

    def load(
        self,
        w: int,
        barrier: Barrier,
        start: int = 0,
        size: int = 512,
        pc: int = 100,
        region: Region | None = None,
    ) -> AsyncOp:
        """A tensor load of ``size`` bytes that ``barrier`` completes."""
        copy = self.checker.issue(
            w, ONE, op(pc, "cp.async.bulk.tensor"), "tma-load", "tile", barrier.column
        )
        here = self.shared if region is None else region
        self.checker.engine_read(copy, self.buffer, np.array([0]), size)
        self.checker.engine_write(copy, here, np.arange(start, start + size, 16), 16)
        barrier.copies.append(copy)
        return copy

    def store(self, w: int, start: int = 0, size: int = 512, group: int = 0, pc: int = 110) -> None:
        """A bulk store to the global buffer, in its own group."""
        copy = self.checker.issue(w, ONE, op(pc, "cp.async.bulk"), "tma-store", "output")
        self.checker.engine_read(copy, self.shared, np.array([start]), size)
        self.checker.engine_write(copy, self.buffer, np.array([start]), size)
        for kind in ("bulk-read", "bulk"):
            self.checker.completes(copy, self.checker.column(kind, (w, 0)), group)

    def wait_group(self, w: int, kind: str, group: int = 0, lanes: Lanes = ONE) -> None:
        """cp.async.bulk.wait_group (with .read for "bulk-read"), wgmma.wait_group."""
        key = w if kind == "wgmma" else (w, 0)
        self.checker.acquire(w, lanes, Clock.single(self.checker.column(kind, key), group))

    def wgmma(self, w: int, start: int = 0, size: int = 512, group: int = 0, pc: int = 120) -> None:
        """A committed wgmma with an operand in shared memory."""
        work = self.checker.issue(w, FULL, op(pc, "wgmma.mma_async"), "wgmma")
        self.checker.engine_read(work, self.shared, np.array([start]), size)
        self.checker.completes(work, self.checker.column("wgmma", w), group)

    def read(self, w: int, start: int = 0, pc: int = 200, lanes: Lanes = FULL, **more: Any) -> None:
        region = more.pop("region", self.shared)
        self.checker.read(w, lanes, op(pc, "ld"), region, rows(start, 16, lanes), 16, **more)

    def write(
        self, w: int, start: int = 0, pc: int = 210, lanes: Lanes = FULL, **more: Any
    ) -> None:
        region = more.pop("region", self.shared)
        self.checker.write(w, lanes, op(pc, "st"), region, rows(start, 16, lanes), 16, **more)

    def handoff(self, giver: int, taker: int) -> None:
        """Everything that a warp did, to another: bar.warp.sync, arrive, wait."""
        self.checker.warp_sync(giver, FULL)
        self.checker.acquire(taker, FULL, self.checker.release(giver, FULL))

    def cta_sync(self) -> None:
        """bar.sync of the first CTA."""
        together = Clock()
        for w in self.warps[:4]:
            self.checker.warp_sync(w, FULL)
            together.join(self.checker.release(w, FULL))
        for w in self.warps[:4]:
            self.checker.acquire(w, FULL, together)

    @property
    def rules(self) -> list[str]:
        return [group.rule for group in self.checker.groups]

    @property
    def hazard(self) -> Hazard:
        (group,) = self.checker.groups
        return group.example

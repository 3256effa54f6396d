"""Copies of single lanes to shared memory: cp.async (PTX ISA 9.7.9.25.3)."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.asynchronous import Copy
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.instructions.barriers import find_mbarrier
from hopwell.emulator.instructions.bulk import one_range
from hopwell.emulator.instructions.memory import locate
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.emulator.memory import Memory
from hopwell.emulator.registry import effect
from hopwell.emulator.warp import BulkGroups
from hopwell.ptx.nodes import Instruction, Register

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


@effect("cp.async.ca", "cp.async.cg")
def cp_async(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.3.1 cp.async: each lane copies 4, 8 or 16 bytes to shared memory on its own.

    A source size below the copy's leaves the rest zero, as ``ignore-src`` does all. It belongs
    to the generic proxy.
    """
    operands = list(node.operands)
    target, origin = bind.address(operands[0]), bind.address(operands[1])
    size = bind.uniform(operands[2], "b32")
    fewer = (
        operands[3]
        if len(operands) > 3 and not node.modifiers[-1].startswith("L2::cache")
        else None
    )
    ignoring = isinstance(fewer, Register) and bind.scope.register(fewer).bank == "pred"
    length = None if fewer is None else bind.read(fewer, "pred" if ignoring else "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        count = size(warp, lanes)
        if length is None:
            lengths = np.full(32, count)
        elif ignoring:
            lengths = np.where(length(warp), 0, count)
        else:
            lengths = length(warp).astype(np.int64)
        for memory, part, offsets in locate(warp, "shared", target(warp), lanes, count):
            if memory is not None:
                _copy_lanes(warp, bind, part, memory, offsets, origin(warp), lengths, count)

    return execute


def _copy_lanes(
    warp: "Warp",
    bind: Binder,
    lanes: Lanes,
    target: Memory,
    offsets: NDArray[np.int64],
    origins: NDArray[np.int64],
    lengths: NDArray[Any],
    count: int,
) -> None:
    checker = warp.checker
    handle = checker.issue(
        warp.agent, lanes, bind.op, "cp.async", f"cp.async of {count} bytes", None
    )
    sources: list[tuple[Memory, int, int, int]] = []
    full = lanes_of(sum(1 << int(i) for i in lanes.index if lengths[i] > 0))
    where = dict(zip(lanes.index.tolist(), offsets.tolist(), strict=True))
    if full.count:
        for memory, part, begins in locate(warp, "global", origins, full, count):
            if memory is None:
                continue
            if memory.region is not None:
                checker.engine_read(handle, memory.region, begins, count)
            for lane, begin in zip(part.index.tolist(), begins.tolist(), strict=True):
                sources.append((memory, begin, where[lane], int(lengths[lane])))
    if target.region is not None:
        checker.engine_write(handle, target.region, offsets, count)

    def fetch() -> Any:
        return [memory.data[begin : begin + n].copy() for memory, begin, _, n in sources]

    def store(data: Any) -> None:
        for offset in offsets.tolist():
            target.data[offset : offset + count] = 0
        for (_, _, offset, n), piece in zip(sources, data, strict=True):
            target.data[offset : offset + n] = piece

    copy = Copy(
        warp, bind.op, "cp.async", handle, fetch, store,
        bytes=count * lanes.count, lanes=lanes, payload=f"{lanes.count} times {count} bytes",
    )  # fmt: skip
    for lane in lanes.index.tolist():
        groups = warp.copies.setdefault(lane, BulkGroups())
        groups.open.append(copy)
        checker.completes(
            handle, checker.column("cp.async", (warp.agent, lane)), groups.committed + 1
        )
    warp.machine.issue(copy)


@effect("cp.async.commit_group")
def cp_async_commit(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.3.2 cp.async.commit_group."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        for lane in lanes.index.tolist():
            groups = warp.copies.setdefault(lane, BulkGroups())
            groups.committed += 1
            groups.groups.append((groups.committed, groups.open))
            groups.open = []

    return execute


@effect("cp.async.wait_group", "cp.async.wait_all")
def cp_async_wait(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.3.3 cp.async.wait_group N, wait_all: as for bulk groups; wait_all also commits."""
    everything = "wait_all" in node.modifiers
    allowed = None if everything else bind.uniform(node.operands[0], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        newest = 0 if allowed is None else allowed(warp, lanes)
        for lane in lanes.index.tolist():
            groups = warp.copies.setdefault(lane, BulkGroups())
            if everything and groups.open:
                groups.committed += 1
                groups.groups.append((groups.committed, groups.open))
                groups.open = []
            done = 0
            while len(groups.groups) > newest:
                done, copies = groups.groups.popleft()
                if warp.machine.recorder is not None:
                    warp.machine.recorder.copies_waited(warp, copies, False)
                for copy in copies:
                    warp.machine.land(copy)
            if done:
                warp.learn(lane, "cp.async", done)

    return execute


@effect("cp.async.mbarrier.arrive")
def cp_async_arrive(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.15 cp.async.mbarrier.arrive{.noinc}: an arrival once the lane's copies landed.

    Without ``.noinc`` the pending count is raised first, so that the arrival nets to nothing.
    """
    address = bind.address(node.operands[0])
    noinc = any(m == "noinc" for m in node.modifiers)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        machine, checker = warp.machine, warp.checker
        for lane in lanes.index.tolist():
            groups = warp.copies.setdefault(lane, BulkGroups())
            place = one_range(warp, "shared", int(address(warp)[lane]), 8, lane)
            barrier = None if place is None else find_mbarrier(warp, lanes_of(1 << lane), *place)
            if barrier is None:
                continue
            # Landing the copies here is the latest that this arrival allows them.
            groups.committed += 1
            groups.groups.append((groups.committed, groups.open))
            groups.open = []
            for _, copies in groups.groups:
                for copy in copies:
                    machine.land(copy)
            clock = checker.release(warp.agent, lanes_of(1 << lane)).copy()
            clock.advance(checker.column("cp.async", (warp.agent, lane)), groups.committed)
            if barrier.arriving is None:
                barrier.arriving = clock
            else:
                barrier.arriving.join(clock)
            if noinc:
                barrier.pending -= 1
                if machine.recorder is not None:
                    machine.recorder.arrive(warp, barrier, False)
            machine.advance(barrier)

    return execute

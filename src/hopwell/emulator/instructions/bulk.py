"""Asynchronous copies: cp.async, bulk copies and tensor copies (PTX ISA 9.7.9.25)."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator import copy_layout, layout, tensor_map
from hopwell.emulator.asynchronous import Copy
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.instructions.barriers import find_mbarrier
from hopwell.emulator.instructions.memory import locate
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.emulator.mbarrier import Mbarrier
from hopwell.emulator.memory import Memory
from hopwell.emulator.registry import effect
from hopwell.emulator.warp import BulkGroups
from hopwell.ptx.nodes import Address, Instruction, Operand, Vector

if TYPE_CHECKING:
    from hopwell.emulator.machine import Cta
    from hopwell.emulator.warp import Warp

_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_ROW = 16


def one_range(
    warp: "Warp", space: str, address: int, size: int, lane: int
) -> tuple[Memory, int] | None:
    """The memory and offset of one lane's ``size`` bytes, or None with a report."""
    addresses = np.full(32, address, np.int64)
    for memory, _, offsets in locate(warp, space, addresses, lanes_of(1 << lane), size):
        if memory is not None:
            return memory, int(offsets[0])
    return None


def _rows(offset: int, size: int) -> tuple[NDArray[np.int64], int]:
    """A contiguous range, as rows for the checker."""
    return np.array([offset], np.int64), size


def _groups(warp: "Warp", lane: int) -> BulkGroups:
    found = warp.bulk.get(lane)
    if found is None:
        found = warp.bulk[lane] = BulkGroups()
    return found


# -- destinations and completions --------------------------------------------------------


class _Completion:
    """How a bulk copy says that it is done: an mbarrier's bytes, or a bulk group."""

    def __init__(self, node: Instruction, bind: Binder, barrier: Operand | None) -> None:
        self.by_barrier = any(m.startswith("mbarrier::complete_tx") for m in node.modifiers)
        self.address = None if barrier is None else bind.address(barrier)

    def barrier_of(self, warp: "Warp", lane: int) -> tuple[Mbarrier | None, int]:
        """The mbarrier that a lane names, with its offset in shared memory."""
        assert self.address is not None
        place = one_range(warp, "shared", int(self.address(warp)[lane]), 8, lane)
        if place is None:
            return None, 0
        lanes = lanes_of(1 << lane)
        return find_mbarrier(warp, lanes, *place, asynchronous=True), place[1]


def _issuers(lanes: Lanes, once: bool, *operands: NDArray[Any]) -> list[Lanes]:
    """Active lanes in sets that issue one copy each.

    Every lane issues its own: ptxas puts a loop over the lanes around loads and reductions, and
    on an H200 a load by 32 lanes completes 32 times its bytes. Only for plain stores to global
    memory (``once``), which may as well happen once, it emits a single instruction for lanes
    whose operands agree; that copy belongs to all of them, and any may commit it and wait for it.
    """
    if lanes.count == 1:
        return [lanes]
    if not once:
        return [lanes_of(1 << lane) for lane in lanes.index.tolist()]
    sets: dict[tuple[Any, ...], int] = {}
    for lane in lanes.index.tolist():
        key = tuple(operand[lane].item() for operand in operands)
        sets[key] = sets.get(key, 0) | 1 << lane
    return [lanes_of(bits) for bits in sets.values()]


def _start(
    warp: "Warp",
    lanes: Lanes,
    bind: Binder,
    kind: str,
    description: str,
    fetch: Callable[[], Any],
    store: Callable[[Any], None],
    reads: Iterable[tuple[Memory, NDArray[np.int64], int]],
    writes: Iterable[tuple[Memory, NDArray[np.int64], int]],
    *,
    barrier: Mbarrier | None = None,
    size: int = 0,
    destination: "Cta | None" = None,
    payload: str = "",
) -> None:
    """Tell the checker what an engine is about to touch, and let it go."""
    checker = warp.checker
    column = None if barrier is None else barrier.column
    handle = checker.issue(warp.agent, lanes, bind.op, kind, description, column)
    if barrier is not None and barrier.memory.region is not None:
        where = np.array([barrier.offset], np.int64)
        checker.mbarrier_use(warp.agent, lanes, bind.op, barrier.memory.region, where, handle)
    for memory, starts, length in reads:
        if memory.region is not None and len(starts):
            checker.engine_read(handle, memory.region, starts, length)
    for memory, starts, length in writes:
        if memory.region is not None and len(starts):
            checker.engine_write(handle, memory.region, starts, length)
    copy = Copy(
        warp, bind.op, kind, handle, fetch, store,
        barrier=barrier, bytes=size, destination=destination, lanes=lanes, payload=payload,
    )  # fmt: skip
    for lane in lanes.index.tolist() if barrier is None else ():
        groups = _groups(warp, lane)
        groups.open.append(copy)
        time = groups.committed + 1
        checker.completes(handle, checker.column("bulk-read", (warp.agent, lane)), time)
        checker.completes(handle, checker.column("bulk", (warp.agent, lane)), time)
    warp.machine.issue(copy)


# -- bulk copies -------------------------------------------------------------------------


@effect("cp.async.bulk", "cp.reduce.async.bulk")
def bulk_copy(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.4.1 cp.async.bulk and 9.7.9.25.4.2 cp.reduce.async.bulk: contiguous bytes.

    Each active lane issues one. Size and addresses are multiples of 16 bytes.
    """
    spaces = [m for m in node.modifiers if m.partition("::")[0] in ("shared", "global")]
    if len(spaces) != 2:
        raise bind.fail("destination and source spaces expected")
    to, source = (space.partition("::")[0] for space in spaces)
    operands = list(node.operands)
    target, origin = bind.address(operands[0]), bind.address(operands[1])
    size = bind.read(operands[2], "b32")
    by_barrier = any(m.startswith("mbarrier") for m in node.modifiers)
    completion = _Completion(node, bind, operands[3] if by_barrier else None)
    multicast = "multicast::cluster" in node.modifiers
    mask = bind.read(operands[4 if by_barrier else 3], "b16") if multicast else None
    operation = next((m for m in node.modifiers if m in _REDUCTIONS), None)
    if "cp_mask" in node.modifiers:
        raise bind.fail("byte masks are not modelled")
    element = node.modifiers[-1] if operation else ""
    if operation and element == "f32":
        # Unlike the tensor form, this one flushes subnormal inputs and results (9.7.9.25.4.2).
        element = "f32.ftz"

    def execute(warp: "Warp", lanes: Lanes) -> None:
        once = to == "global" and operation is None
        for alike in _issuers(lanes, once, target(warp), origin(warp), size(warp)):
            lane = alike.first
            count = int(size(warp)[lane])
            where, origin_address = int(target(warp)[lane]), int(origin(warp)[lane])
            if count % 16 or where % 16 or origin_address % 16:
                warp.checker.report(
                    "misaligned-access", warp.agent, lanes_of(1 << lane), bind.op, bytes=count,
                    expected="addresses and size that are multiples of 16 bytes",
                )  # fmt: skip
                continue
            begin = one_range(warp, source, origin_address, count, lane)
            barrier, barrier_offset = completion.barrier_of(warp, lane) if by_barrier else (None, 0)
            if begin is None or (by_barrier and barrier is None):
                continue
            chosen = None if mask is None else int(mask(warp)[lane])
            for end, signalled, cta in _destinations(
                warp, lane, to, where, count, barrier, barrier_offset, chosen
            ):
                _bulk(warp, alike, bind, to, begin, end, count, signalled, cta, operation, element)

    return execute


def _destinations(
    warp: "Warp",
    lane: int,
    space: str,
    address: int,
    size: int,
    barrier: Mbarrier | None,
    barrier_offset: int,
    multicast: int | None,
) -> list[tuple[tuple[Memory, int], Mbarrier | None, "Cta | None"]]:
    """Where a copy's data goes: one place, or the same offset in each CTA of a mask."""
    if multicast is None:
        end = one_range(warp, space, address, size, lane)
        if end is None:
            return []
        cta = warp.cta.cluster.ctas[end[0].rank] if space == "shared" else None
        return [(end, barrier, cta)]
    offset = (address & (1 << layout.RANK_SHIFT) - 1) - layout.SHARED_BASE
    found: list[tuple[tuple[Memory, int], Mbarrier | None, Cta | None]] = []
    for rank, cta in enumerate(warp.cta.cluster.ctas):
        if multicast >> rank & 1:
            signalled = find_mbarrier(
                warp, lanes_of(1 << lane), cta.shared, barrier_offset, asynchronous=True
            )
            if signalled is not None:
                found.append(((cta.shared, offset), signalled, cta))
    return found


def _bulk(
    warp: "Warp",
    lanes: Lanes,
    bind: Binder,
    to: str,
    begin: tuple[Memory, int],
    end: tuple[Memory, int],
    count: int,
    barrier: Mbarrier | None,
    cta: "Cta | None",
    operation: str | None,
    element: str,
) -> None:
    source, first = begin
    target, place = end

    def fetch() -> Any:
        return source.data[first : first + count].copy()

    def store(data: Any) -> None:
        into = target.data[place : place + count]
        if operation is None:
            into[:] = data
        else:
            kind = copy_layout.storage(element)
            into[:] = copy_layout.reduce(operation, element, into.view(kind), data.view(kind)).view(
                np.uint8
            )

    kind = "tma-reduce" if operation else "tma-store" if to == "global" else "bulk-copy"
    named, offset = end if to == "global" else begin
    _start(
        warp, lanes, bind, kind, f"bulk copy of {count} bytes", fetch, store,
        [(source, *_rows(first, count))], [(target, *_rows(place, count))],
        barrier=barrier, size=count, destination=cta,
        payload=f"{named.name} bytes {offset}..{offset + count - 1}",
    )  # fmt: skip


# -- tensor copies -----------------------------------------------------------------------


@effect("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
def tensor_copy(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.5.2 cp.async.bulk.tensor and 9.7.9.25.5.3 cp.reduce.async.bulk.tensor.

    A box of a tensor, described by a tensor map, to or from shared memory in the map's swizzle.
    A load fills elements outside the tensor and counts the whole box; a store drops them.
    """
    if any(m.startswith(("im2col", "tile::", "cta_group")) for m in node.modifiers):
        raise bind.fail("only tiled copies of one CTA are modelled")
    spaces = [m for m in node.modifiers if m.partition("::")[0] in ("shared", "global")]
    loads = spaces[0].startswith("shared")
    operation = next((m for m in node.modifiers if m in _REDUCTIONS), None)
    operands = node.operands
    shared_operand, tensor_operand = (
        (operands[0], operands[1]) if loads else (operands[1], operands[0])
    )
    assert isinstance(tensor_operand, Address)
    shared = bind.address(shared_operand)
    described = bind.address(Address(tensor_operand.base, tensor_operand.offset))
    box = tensor_operand.coordinates
    places = box.elements if isinstance(box, Vector) else () if box is None else (box,)
    coordinates = [bind.read(c, "s32") for c in places]
    completion = _Completion(node, bind, operands[2] if loads else None)
    multicast = "multicast::cluster" in node.modifiers
    mask = bind.read(operands[3], "b16") if multicast else None

    def execute(warp: "Warp", lanes: Lanes) -> None:
        boxes = [get(warp) for get in coordinates]
        once = not loads and operation is None
        for alike in _issuers(lanes, once, shared(warp), described(warp), *boxes):
            lane = alike.first
            where = int(shared(warp)[lane])
            tensor = _map_at(warp, lane, int(described(warp)[lane]))
            if tensor is None:
                continue
            at = [int(box[lane]) for box in boxes]
            if not _acceptable(warp, alike, bind, tensor, at, where, loads):
                continue
            tile = copy_layout.tile(tensor, at, store=not loads)
            reached = _reached(warp, alike, tensor, tile)
            if reached is None:
                continue
            if loads:
                barrier, offset = completion.barrier_of(warp, lane)
                chosen = None if mask is None else int(mask(warp)[lane])
                for end, signalled, cta in _destinations(
                    warp, lane, "shared", where, tile.room, barrier, offset, chosen
                ):
                    _tensor_load(warp, alike, bind, reached, tile, at, end, signalled, cta)
            else:
                _tensor_store(warp, alike, bind, tensor, reached, tile, at, where, operation)

    return execute


def _acceptable(
    warp: "Warp", lanes: Lanes, bind: Binder, tensor: Any, at: list[int], where: int, loads: bool
) -> bool:
    """Whether the engine takes these operands; an H200 raises ILLEGAL_INSTRUCTION otherwise."""
    refusals = [
        ("misaligned-access", "a shared address that is a multiple of 128 bytes", f"{where:#x}",
         where % copy_layout.SHARED_ALIGNMENT),
        ("misaligned-access", "a first coordinate at a multiple of 16 bytes", at[0],
         at[0] * tensor.itemsize % 16),
        ("out-of-bounds-global", "coordinates of a store that are not negative", tuple(at),
         not loads and min(at) < 0),
    ]  # fmt: skip
    for rule, expected, actual, refused in refusals:
        if refused:
            warp.checker.report(rule, warp.agent, lanes, bind.op, expected=expected, actual=actual)
            return False
    return True


def _map_at(warp: "Warp", lane: int, address: int) -> Any:
    """The tensor map at a generic address; None with a report where there is no memory."""
    place = one_range(warp, "generic", address, tensor_map.BYTES, lane)
    if place is None:
        return None
    memory, offset = place
    if memory.region is not None:  # in memory that threads can write: with tensormap.replace
        where = np.array([offset], np.int64)
        warp.checker.read(
            warp.agent, lanes_of(1 << lane), warp.op, memory.region, where, tensor_map.BYTES
        )
    raw = memory.data[offset : offset + tensor_map.BYTES].tobytes()
    cached = warp.machine.tensor_maps.get(raw)
    if cached is None:
        cached = warp.machine.tensor_maps[raw] = tensor_map.decode(raw)
    return cached


def _reached(warp: "Warp", lanes: Lanes, tensor: Any, tile: Any) -> tuple[Memory, int] | None:
    """The buffer that holds a tile, and where in it the map's address lies (maybe before it).

    A map of ragged tensors may begin far outside any memory, as long as its tiles do not.
    """
    first, end = ((tensor.address + byte) % (1 << 64) for byte in tile.extent)
    if not tile.row_bytes:
        return next(iter(warp.machine.globals)), 0
    memory = warp.machine.globals.find(first, end - first)
    if memory is None:
        warp.checker.report(
            "out-of-bounds-global", warp.agent, lanes, warp.op, address=f"{first:#x}",
            bytes=end - first, limit="the tile lies outside the launch's buffers",
        )  # fmt: skip
        return None
    return memory, first - memory.base - tile.extent[0]


def _box(memory: Memory, at: list[int]) -> str:
    """A tensor's box in words: "q (0,128,0)"."""
    return f"{memory.name} ({','.join(map(str, at))})"


def _tensor_load(
    warp: "Warp",
    lanes: Lanes,
    bind: Binder,
    reached: tuple[Memory, int],
    tile: Any,
    at: list[int],
    end: tuple[Memory, int],
    barrier: Mbarrier | None,
    cta: "Cta | None",
) -> None:
    target, place = end
    memory, origin = reached
    if barrier is None:
        return
    _start(
        warp, lanes, bind, "tma-load", f"tensor load of {tile.bytes} bytes at {tuple(at)}",
        lambda: copy_layout.read_global(tile, memory.data, origin),
        lambda data: copy_layout.write_shared(tile, data, target.data, place),
        [(memory, tile.rows + origin, tile.row_bytes)],
        [(target, *copy_layout.shared_runs(tile, place))],
        barrier=barrier, size=tile.bytes, destination=cta, payload=_box(memory, at),
    )  # fmt: skip


def _tensor_store(
    warp: "Warp",
    lanes: Lanes,
    bind: Binder,
    tensor: Any,
    reached: tuple[Memory, int],
    tile: Any,
    at: list[int],
    where: int,
    operation: str | None,
) -> None:
    begin = one_range(warp, "shared", where, tile.room, lanes.first)
    if begin is None:
        return
    source, place = begin
    memory, origin = reached

    def store(data: Any) -> None:
        if operation is None:
            copy_layout.write_global(tile, data, memory.data, origin)
        else:
            copy_layout.reduce_global(tile, data, memory.data, origin, operation, tensor.element)

    kind = "tma-reduce" if operation else "tma-store"
    _start(
        warp, lanes, bind, kind, f"tensor store of {tile.bytes} bytes at {tuple(at)}",
        lambda: copy_layout.read_shared(tile, source.data, place), store,
        [(source, *copy_layout.shared_runs(tile, place))],
        [(memory, tile.rows + origin, tile.row_bytes)],
        size=tile.bytes, payload=_box(memory, at),
    )  # fmt: skip


@effect("cp.async.bulk.prefetch")
def prefetch(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.4.3 cp.async.bulk.prefetch: a hint."""
    return lambda warp, lanes: None


# -- groups ------------------------------------------------------------------------------


@effect("cp.async.bulk.commit_group")
def commit(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.2.1 cp.async.bulk.commit_group: a lane's open bulk copies become a group."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        for lane in lanes.index.tolist():
            groups = warp.bulk.get(lane)
            if groups is None:
                groups = warp.bulk[lane] = BulkGroups()
            groups.committed += 1
            group = groups.committed, groups.open
            groups.open = []
            groups.groups.append(group)
            groups.unread.append(group)

    return execute


@effect("cp.async.bulk.wait_group")
def wait(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.25.2.2 cp.async.bulk.wait_group{.read} N: all but the lane's N newest groups are done.

    With ``.read`` only their sources have been read: the destinations may still be unwritten.
    """
    reading = "read" in node.modifiers
    allowed = bind.uniform(node.operands[0], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        newest = allowed(warp, lanes)
        for lane in lanes.index.tolist():
            groups = warp.bulk.get(lane)
            if groups is None:
                continue
            queue = groups.unread if reading else groups.groups
            done = 0
            while len(queue) > newest:
                done, copies = queue.popleft()
                if warp.machine.recorder is not None:
                    warp.machine.recorder.copies_waited(warp, copies, reading)
                for copy in copies:
                    if reading:
                        copy.read()
                    else:
                        warp.machine.land(copy)
            if done:
                kind = "bulk-read" if reading else "bulk"
                warp.learn(lane, kind, done)
                if not reading:
                    warp.learn(lane, "bulk-read", done)

    return execute

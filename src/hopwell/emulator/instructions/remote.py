"""Asynchronous stores and reductions to a peer's shared memory (PTX ISA 9.7.9.12, 9.7.13.15)."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.asynchronous import Copy
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.instructions.barriers import find_mbarrier
from hopwell.emulator.instructions.memory import OPERATIONS, access_type, check_alignment, locate
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.emulator.mbarrier import Mbarrier
from hopwell.emulator.memory import Memory
from hopwell.emulator.registry import effect
from hopwell.ptx.nodes import Instruction

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


@effect("st.async", "red.async")
def remote(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.12 st.async and 9.7.13.15 red.async: each lane's value arrives on its own and
    completes its bytes on an mbarrier of the CTA that it goes to."""
    if any(m.startswith("mmio") or m == "global" for m in node.modifiers):
        raise bind.fail("only shared::cluster destinations are modelled")
    kind = access_type(node, bind)
    address, barrier = bind.address(node.operands[0]), bind.address(node.operands[2])
    sources = [bind.read(o, kind.name) for o in bind.elements(node.operands[1])]
    name = next((m for m in node.modifiers if m in OPERATIONS), None)
    operation = None if node.name == "st" or name is None else OPERATIONS[name]
    size = kind.bytes * len(sources)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        values = np.stack([get(warp) for get in sources], axis=1)
        for memory, part, offsets in locate(warp, "shared", address(warp), lanes, size):
            if memory is None or not check_alignment(warp, offsets, size, part):
                continue
            for signalled, who in _signalled(warp, barrier(warp), part):
                chosen = np.isin(part.index, who.index)
                _send(
                    warp, bind, who, memory, offsets[chosen], values[who.index], signalled,
                    operation,
                )  # fmt: skip

    return execute


def _signalled(
    warp: "Warp", addresses: NDArray[np.int64], lanes: Lanes
) -> list[tuple[Mbarrier, Lanes]]:
    """The mbarriers that lanes name, each with its lanes."""
    found = []
    for memory, part, offsets in locate(warp, "shared", addresses, lanes, 8):
        for offset in np.unique(offsets).tolist():
            who = lanes_of(sum(1 << int(lane) for lane in part.index[offsets == offset]))
            mbarrier = find_mbarrier(warp, who, memory, offset, asynchronous=True)
            if mbarrier is not None:
                found.append((mbarrier, who))
    return found


def _send(
    warp: "Warp",
    bind: Binder,
    lanes: Lanes,
    memory: Memory,
    offsets: NDArray[np.int64],
    values: NDArray[Any],
    barrier: Mbarrier,
    operation: Any,
) -> None:
    checker = warp.checker
    width = values.itemsize
    size = width * values.shape[1]
    engine = "st.async" if operation is None else "red.async"
    handle = checker.issue(
        warp.agent, lanes, bind.op, engine, f"{bind.op.opcode} of {size} bytes", barrier.column
    )
    if memory.region is not None:
        checker.engine_write(handle, memory.region, offsets, size)

    def store(data: NDArray[Any]) -> None:
        for row, offset in zip(data, offsets.tolist(), strict=True):
            for i, value in enumerate(row):
                cell = memory.data[offset + i * width : offset + (i + 1) * width].view(data.dtype)
                cell[0] = value if operation is None else operation(cell[0], value)

    copy = Copy(
        warp, bind.op, engine, handle, lambda: values, store,
        barrier=barrier, bytes=size * lanes.count,
        destination=warp.cta.cluster.ctas[memory.rank], lanes=lanes,
    )  # fmt: skip
    warp.machine.issue(copy)

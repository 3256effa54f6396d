"""tensormap.replace: a field of a tensor map in memory gets another value."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator import tensor_map
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.instructions.memory import check_alignment, locate, state_space
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.emulator.memory import Memory
from hopwell.emulator.registry import effect
from hopwell.ptx.nodes import Instruction

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp

_WORD = 4


@effect("tensormap.replace")
def replace(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.28 tensormap.replace.tile.field [map], {entry,} value: a weak store by each lane.

    ptxas emits loads, masks and stores of the words that hold the field; so it is seen here.
    """
    field, (space, _) = node.modifiers[2], state_space(node)
    wide = "u64" if node.modifiers[-1] == "b64" else "u32"
    address, value = bind.address(node.operands[0]), bind.read(node.operands[-1], wide)
    entry = bind.read(node.operands[1], "u32") if len(node.operands) == 3 else None

    def execute(warp: "Warp", lanes: Lanes) -> None:
        for memory, part, offsets in locate(warp, space, address(warp), lanes, tensor_map.BYTES):
            if memory is None or not check_alignment(warp, offsets, tensor_map.BYTES, part):
                continue
            for lane, offset in zip(part.index.tolist(), offsets.tolist(), strict=True):
                which = 0 if entry is None else int(entry(warp)[lane])
                old = memory.data[offset : offset + tensor_map.BYTES]
                new = tensor_map.replaced(old.tobytes(), field, int(value(warp)[lane]), which)
                _store(warp, lane, bind, memory, offset, np.frombuffer(new, np.uint8))
        warp.machine.version += 1

    return execute


def _store(
    warp: "Warp", lane: int, bind: Binder, memory: Memory, offset: int, new: NDArray[np.uint8]
) -> None:
    """Store the words of a map that change."""
    place = slice(offset, offset + tensor_map.BYTES)
    changed = (memory.data[place] != new).reshape(-1, _WORD).any(axis=1)
    for word in np.flatnonzero(changed).tolist():
        if memory.region is not None:
            where = np.array([offset + word * _WORD], np.int64)
            warp.checker.write(
                warp.agent, lanes_of(1 << lane), bind.op, memory.region, where, _WORD
            )
    memory.data[place] = new

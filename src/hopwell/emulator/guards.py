"""Checks of registers, put around the few instructions that need them.

Which do is decided when a program is decoded: registers that wgmma uses, and what derives from
registers that some path reads before it writes them. All others run without any check.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from hopwell.emulator.decode import PREDICATE_VIEW, DecodedOp, Slot, Step
from hopwell.emulator.instructions.wgmma import check_registers, state_of
from hopwell.emulator.lanes import FULL_MASK, mask_of
from hopwell.emulator.registry import find_effect

if TYPE_CHECKING:
    from hopwell.emulator.program import Program
    from hopwell.emulator.warp import Fragment

_MOVING: Final = ("shfl", "ld", "vote", "match", "redux", "cvta", "mapa")
"""Effects whose result only carries a value on, as computations do."""


def undefined_slice(ops: list[DecodedOp], suspects: frozenset[Slot]) -> frozenset[Slot]:
    """Registers that may hold something computed from one of ``suspects``."""
    tainted = set(suspects)
    size = -1
    while size != len(tainted):
        size = len(tainted)
        for op in ops:
            if _carries(op) and op.reads & tainted:
                tainted |= op.writes
    return frozenset(tainted)


def _carries(op: DecodedOp) -> bool:
    return find_effect(op.opcode) is None or op.node.name in _MOVING


def copied_into(ops: list[DecodedOp], registers: frozenset[Slot]) -> frozenset[Slot]:
    """``registers``, and those that moves between registers copy into them."""
    found = set(registers)
    size = -1
    while size != len(found):
        size = len(found)
        for op in ops:
            if _is_copy(op) and op.writes & found:
                found |= op.reads
    return frozenset(found)


def _is_copy(op: DecodedOp) -> bool:
    """Whether the instruction moves one register into another, always."""
    return op.node.name == "mov" and op.guard is None and len(op.reads) == len(op.writes) == 1


def guarded_registers(
    program: "Program", op: DecodedOp, step: Step, tainted: frozenset[Slot]
) -> Step:
    """``step``, with the checks that its registers need."""
    touched = (op.reads | op.writes) & program.fenced_registers
    if touched and not op.opcode.startswith("wgmma.mma_async"):
        step = _in_flight(op, step, program.fenced_registers)
    if (op.reads | op.writes) & tainted:
        step = _defined(program, op, step, tainted)
    return step


def _in_flight(op: DecodedOp, step: Step, fenced: frozenset[Slot]) -> Step:
    """Touching a register of a wgmma in flight is a hazard; any access asks for a fence.

    A copy asks for one only where its source did: compilers put copies between a fence and its
    wgmma, and ptxas, which gives both the same register, makes nothing of them.
    """
    marks = dict.fromkeys(op.writes & fenced, op)
    reads = {} if _is_copy(op) else dict.fromkeys(op.reads & fenced, op)
    source, copy = (*op.reads, *op.writes) if _is_copy(op) else (None, None)

    def checked(fragment: "Fragment") -> object:
        warp = fragment.warp
        state = warp.wgmma
        if state is not None and (state.accumulators or state.operands):
            check_registers(warp, op)
        result = step(fragment)
        if reads:
            (state or state_of(warp)).consulted.update(reads)
        if marks:
            unfenced = (state or state_of(warp)).unfenced
            if copy is None or source in unfenced:
                unfenced.update(marks)
            else:
                unfenced.pop(copy, None)
        return result

    return checked


def _defined(program: "Program", op: DecodedOp, step: Step, tainted: frozenset[Slot]) -> Step:
    """Follow values that nothing wrote, lane by lane; using one is a hazard, moving it is not.

    A compiler may well load some lanes only and compute with all, as long as no store, address,
    barrier or branch depends on the others. Across lanes (shuffles) nothing is followed.
    """
    reads = tuple(op.reads & tainted)
    writes = tuple(op.writes & tainted)
    carries = _carries(op)
    guard = op.guard

    def checked(fragment: "Fragment") -> object:
        warp, bits = fragment.warp, fragment.lanes.bits
        undefined = warp.undefined
        if guard is not None:
            if undefined.get(guard[0], 0) & bits:
                _report(program, fragment, op, guard[0])
            row = warp.views[PREDICATE_VIEW][guard[0].index]
            bits &= mask_of(np.logical_not(row) if guard[1] else row)
        if op.selects:
            found = _selected(fragment, op) & bits
        else:
            found = 0
            for slot in reads:
                found |= undefined[slot]
            found &= bits
        if found and not carries:
            _report(program, fragment, op, next(s for s in reads if undefined[s] & found))
            found = 0
        result = step(fragment)
        for slot in writes:
            undefined[slot] = undefined[slot] & ~bits | found
        return result

    return checked


def _selected(fragment: "Fragment", op: DecodedOp) -> int:
    """Lanes whose selp takes an undefined value, or chooses by one."""
    first, second, predicate = (fragment.warp.undefined.get(slot, 0) for slot in op.selects)
    chosen = mask_of(fragment.warp.views[PREDICATE_VIEW][op.selects[2].index])
    return first & chosen | second & ~chosen | predicate


def _report(program: "Program", fragment: "Fragment", op: DecodedOp, slot: Slot) -> None:
    warp = fragment.warp
    warp.checker.report(
        "uninitialised-read", warp.agent, fragment.lanes, op,
        missing="no instruction wrote the register, or what it was computed from, on this path",
        registers=program.names_of([slot]),
    )  # fmt: skip
    warp.undefined[slot] &= ~fragment.lanes.bits & FULL_MASK

"""Checks of registers, put around the few instructions that need them.

Which do is decided when a program is decoded: registers that wgmma uses, and registers that
some path reads before it writes them. All other instructions run without any check.
"""

from typing import TYPE_CHECKING

from hopwell.emulator.decode import DecodedOp, Slot, Step
from hopwell.emulator.instructions.wgmma import check_registers, state_of

if TYPE_CHECKING:
    from hopwell.emulator.program import Program
    from hopwell.emulator.warp import Fragment


def guarded_registers(program: "Program", op: DecodedOp, step: Step) -> Step:
    """``step``, with the checks that its registers need."""
    if op.opcode.startswith("wgmma.mma_async"):
        return _initialised(program, op, step)
    touched = (op.reads | op.writes) & program.wgmma_registers
    if touched:
        step = _in_flight(op, step, op.writes & program.wgmma_registers)
    return _initialised(program, op, step)


def _in_flight(op: DecodedOp, step: Step, written: frozenset[Slot]) -> Step:
    """Touching a register of a wgmma in flight is a hazard; writing one asks for a fence."""
    marks = dict.fromkeys(written, op)

    def checked(fragment: "Fragment") -> object:
        warp = fragment.warp
        state = warp.wgmma
        if state is not None and (state.accumulators or state.operands):
            check_registers(warp, op)
        result = step(fragment)
        if marks:
            (state or state_of(warp)).unfenced.update(marks)
        return result

    return checked


def _initialised(program: "Program", op: DecodedOp, step: Step) -> Step:
    """Reading a register that some lane has not written is a hazard."""
    reads = tuple(op.reads & program.suspects)
    writes = tuple(op.writes & program.suspects)
    if not reads and not writes:
        return step

    def checked(fragment: "Fragment") -> object:
        warp, lanes = fragment.warp, fragment.lanes
        defined = warp.defined
        for slot in reads:
            if lanes.bits & ~defined[slot]:
                warp.checker.report(
                    "uninitialised-read", warp.agent, lanes, op,
                    registers=program.names_of([slot]),
                )  # fmt: skip
                defined[slot] |= lanes.bits
        result = step(fragment)
        for slot in writes:
            defined[slot] |= lanes.bits
        return result

    return checked

"""Warpgroup matrix instructions (PTX ISA 9.7.15): asynchronous, in groups, per warp in order.

Each warp of the warpgroup computes its own 16 rows of the 64. What the tensor core reads and
writes is in flight from the instruction to the ``wait_group`` that covers its group.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hopwell.emulator import wgmma_layout
from hopwell.emulator.conditions import Blocked, WarpgroupIssued
from hopwell.emulator.decode import B32_VIEW, VIEWS, Binder, DecodedOp, Execute, Slot
from hopwell.emulator.lanes import FULL, Lanes
from hopwell.emulator.layout import SHARED_BASE
from hopwell.emulator.matrix_product import multiply
from hopwell.emulator.registry import effect
from hopwell.emulator.unison import WARPS
from hopwell.ptx.nodes import Immediate, Instruction, Vector

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp

_F32_VIEW = VIEWS.index("f32")
_S32_VIEW = VIEWS.index("s32")
_ADDRESS_BITS = (1 << 18) - 1
"""A matrix descriptor holds 14 bits of an address in units of 16 bytes."""


@dataclass(eq=False)
class Product:
    """One ``wgmma.mma_async`` of one warp, in flight."""

    op: DecodedOp
    handle: Any
    form: wgmma_layout.Form
    a: tuple[int, ...] | wgmma_layout.Descriptor
    b: wgmma_layout.Descriptor
    d: tuple[int, ...]
    accumulate: bool
    negate: bool
    transposed: tuple[bool, bool]
    registers: frozenset[Slot]
    done: bool = False


@dataclass(eq=False)
class WgmmaState:
    """A warp's matrix instructions.

    Attributes:
        open: not yet committed.
        groups: committed groups with their numbers, oldest first.
        accumulators: registers being accumulated into, and by which instruction.
        operands: registers being read as A.
        fenced: whether there was a ``wgmma.fence`` at all.
        unfenced: registers written since the last one.
        consulted: registers read since then; only a wgmma that writes them minds.
    """

    open: list[Product] = field(default_factory=list)
    groups: deque[tuple[int, list[Product]]] = field(default_factory=deque)
    committed: int = 0
    accumulators: dict[Slot, Product] = field(default_factory=dict)
    operands: dict[Slot, Product] = field(default_factory=dict)
    fenced: bool = False
    unfenced: dict[Slot, DecodedOp] = field(default_factory=dict)
    consulted: dict[Slot, DecodedOp] = field(default_factory=dict)


def state_of(warp: "Warp") -> WgmmaState:
    """The warp's matrix instructions; made at the first."""
    if warp.wgmma is None:
        warp.wgmma = WgmmaState()
    return warp.wgmma


@effect("wgmma.fence")
def wgmma_fence(node: Instruction, bind: Binder) -> Execute:
    """9.7.15.7.1 wgmma.fence: orders register accesses between wgmma and everything else."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        state = state_of(warp)
        state.fenced = True
        state.unfenced.clear()
        state.consulted.clear()

    return execute


@effect("wgmma.mma_async")
def wgmma_mma(node: Instruction, bind: Binder) -> Execute:
    """9.7.15.5.2 wgmma.mma_async: D = A B + (scale-d ? D : 0), A from registers or shared."""
    form = wgmma_layout.form(node.modifiers)
    operands = list(node.operands)
    d = tuple(bind.destination_slot(o) for o in bind.elements(operands[0]))
    if len(d) != form.registers:
        raise bind.fail(f"{len(d)} accumulator registers, {form.registers} are expected")
    a_registers: tuple[Slot, ...] = ()
    a_descriptor = None
    if isinstance(operands[1], Vector):
        a_registers = tuple(bind.source_slot(o, _b32()) for o in operands[1].elements)
    else:
        a_descriptor = bind.uniform(operands[1], "b64")
    b_descriptor = bind.uniform(operands[2], "b64")
    rest = operands[3:]
    accumulate = bind.uniform(rest[0], "pred" if not isinstance(rest[0], Immediate) else "b32")
    numbers = [_immediate(bind, o) for o in rest[1:]]
    negate = form.scalable and numbers[0] * numbers[1] == -1
    transposes = numbers[2:] if form.scalable else numbers
    transposed = (
        bool(transposes[0]) if a_descriptor is not None and transposes else False,
        bool(transposes[-1]) if transposes else False,
    )
    registers = frozenset(d) | frozenset(a_registers)
    bind.wgmma_registers = set(registers)
    indices = tuple(slot.index for slot in d), tuple(slot.index for slot in a_registers)
    accumulators, op = frozenset(d), bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        if lanes is not FULL:
            warp.checker.report("wgmma-divergence", warp.agent, lanes, op)
            return
        state = state_of(warp)
        warp.cta.unison("wgmma-divergence", warp).step(warp, op)
        _check_fence(warp, state, registers, accumulators, form, op)
        a = indices[1] if a_descriptor is None else _descriptor(a_descriptor(warp, lanes))
        b = _descriptor(b_descriptor(warp, lanes))
        handle = warp.checker.issue(warp.agent, lanes, op, "wgmma", node.opcode, None)
        product = Product(
            op, handle, form, a, b, indices[0], bool(accumulate(warp, lanes)), negate,
            transposed, registers,
        )  # fmt: skip
        if not _read_operands(warp, product):
            return
        column = warp.checker.column("wgmma", _group_key(warp))
        warp.checker.completes(handle, column, state.committed + 1)
        state.open.append(product)
        state.accumulators.update(dict.fromkeys(accumulators, product))
        state.operands.update(dict.fromkeys(a_registers, product))
        if warp.machine.recorder is not None:
            warp.machine.recorder.wgmma(warp, op)
        if warp.machine.policy.lands_at_issue():
            _perform_until(warp, state, product)

    return execute


def _b32() -> Any:
    from hopwell.emulator.types import TYPES

    return TYPES["b32"]


def _immediate(bind: Binder, operand: Any) -> int:
    if not isinstance(operand, Immediate):
        raise bind.fail("scales and transposes have to be constants")
    return int(operand.value)


def _descriptor(bits: int) -> wgmma_layout.Descriptor:
    return wgmma_layout.descriptor(bits & (1 << 64) - 1)


def _check_fence(
    warp: "Warp",
    state: WgmmaState,
    registers: frozenset[Slot],
    accumulators: frozenset[Slot],
    form: wgmma_layout.Form,
    op: DecodedOp,
) -> None:
    """9.7.15.7.1: a fence stands before a warpgroup's first wgmma, and between any other access to
    a register and the wgmma that uses it. Two that only read do not mind each other.

    The only accesses that need none are accumulators of the same shape in wgmma's own sequence.
    """
    if not state.fenced:
        state.fenced = True
        warp.checker.report(
            "missing-wgmma-fence", warp.agent, FULL, op,
            missing="no wgmma.fence before the first wgmma of the warpgroup",
        )  # fmt: skip
    for uses, earlier, access in (
        (registers, state.unfenced, "write"),
        (accumulators, state.consulted, "read"),
    ):
        touched = uses & earlier.keys() if earlier else None
        if not touched:
            continue
        slot = max(touched, key=lambda slot: (earlier[slot].pc, slot))
        warp.checker.report(
            "missing-wgmma-fence", warp.agent, FULL, op, first=earlier[slot],
            missing=f"no wgmma.fence between the {access} of the register and this instruction",
            registers=warp.cta.program.names_of(touched),
        )  # fmt: skip
        for slot in touched:
            del earlier[slot]


def _read_operands(warp: "Warp", product: Product) -> bool:
    """Tell the checker which shared memory the tensor core reads; whether all of it exists."""
    shared = warp.cta.shared
    form = product.form
    row = warp.index % 4 * wgmma_layout.ROWS
    reads = []
    if isinstance(product.a, wgmma_layout.Descriptor):
        reads.append((product.a, row, wgmma_layout.ROWS, product.transposed[0]))
    reads.append((product.b, 0, form.n, product.transposed[1]))
    for descriptor, first, count, transposed in reads:
        starts, size = wgmma_layout.spans(descriptor, first, count, transposed)
        starts = starts - SHARED_BASE
        if int(starts[0]) < 0 or int(starts[-1]) + size > shared.size:
            warp.checker.report(
                "out-of-bounds-shared", warp.agent, FULL, product.op,
                address=f"{descriptor.start:#x}", bytes=size,
                limit=f"shared memory ends at {SHARED_BASE + shared.size:#x}",
            )  # fmt: skip
            return False
        if shared.region is not None:
            warp.checker.engine_read(product.handle, shared.region, starts, size)
    return True


def _perform_until(warp: "Warp", state: WgmmaState, last: Product) -> None:
    """Perform everything up to ``last``: the tensor core works in order."""
    for _, products in state.groups:
        for product in products:
            _perform(warp, product)
    for product in state.open:
        _perform(warp, product)
        if product is last:
            break


def _perform(warp: "Warp", product: Product) -> None:
    if product.done:
        return
    product.done = True
    form = product.form
    shared = warp.cta.shared.data
    if isinstance(product.a, wgmma_layout.Descriptor):
        a = wgmma_layout.operand(
            shared, SHARED_BASE, product.a, warp.index % 4 * wgmma_layout.ROWS,
            wgmma_layout.ROWS, form.a_type, product.transposed[0],
        )  # fmt: skip
    else:
        registers = warp.banks["b32"][list(product.a)]
        a = wgmma_layout.fragment(registers, form.a_type)
    b = wgmma_layout.operand(
        shared, SHARED_BASE, product.b, 0, form.n, form.b_type, product.transposed[1]
    ).T
    bank = warp.banks["b32"]
    if form.accumulator == "f32":
        bank = bank.view(np.float32)
    elif form.accumulator == "s32":
        bank = bank.view(np.int32)
    index = list(product.d)
    c = None
    if product.accumulate:
        c = wgmma_layout.accumulators_to_matrix(bank[index], form.accumulator)
    result = multiply(
        a, b, c, form.a_type, form.b_type, form.accumulator,
        negate=product.negate, saturate=form.saturate,
    )  # fmt: skip
    bank[index] = wgmma_layout.matrix_to_accumulators(result, form.accumulator)


@effect("wgmma.commit_group")
def wgmma_commit(node: Instruction, bind: Binder) -> Execute:
    """9.7.15.7.2 wgmma.commit_group: what is open becomes a group."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        state = state_of(warp)
        state.committed += 1
        state.groups.append((state.committed, state.open))
        state.open = []
        if warp.machine.recorder is not None:
            warp.machine.recorder.wgmma_commit(warp, state.committed)

    return execute


@effect("wgmma.wait_group")
def wgmma_wait(node: Instruction, bind: Binder) -> Execute:
    """9.7.15.7.3 wgmma.wait_group N: all but the N newest groups are complete.

    The four warps issue a product together (on an H200 the issue of one that came 200 us early
    took 200 us), so that it is complete, for all four, when the wait of one returns.
    """
    allowed = bind.uniform(node.operands[0], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        state = state_of(warp)
        done = state.committed - allowed(warp, lanes)
        if not state.groups or state.groups[0][0] > done:
            return
        mates = warp.cta.warpgroup(warp)
        if any(mate.live and state_of(mate).committed < done for mate in mates):
            raise Blocked(WarpgroupIssued(mates, done))
        for mate in mates:
            _complete(mate, done)
        while state.groups and state.groups[0][0] <= done:
            for product in state.groups.popleft()[1]:
                _release_registers(state, product)
        warp.learn_all("wgmma", _group_key(warp), done)
        if warp.machine.recorder is not None:
            warp.machine.recorder.wgmma_wait(warp, done)

    return execute


def _group_key(warp: "Warp") -> tuple[object, int]:
    return warp.cta, warp.index // WARPS


def _complete(warp: "Warp", number: int) -> None:
    """Perform a warp's share of all groups up to ``number``."""
    for group, products in state_of(warp).groups:
        for product in products if group <= number else ():
            if warp.live:
                _perform(warp, product)
            warp.checker.landed(product.handle)


def _release_registers(state: WgmmaState, product: Product) -> None:
    for held in (state.accumulators, state.operands):
        for slot in product.registers:
            if held.get(slot) is product:
                del held[slot]


def check_registers(warp: "Warp", op: DecodedOp) -> None:
    """Report an instruction that touches a register which a wgmma in flight owns."""
    state = warp.wgmma
    if state is None:
        return
    if state.accumulators:
        touched = (op.reads | op.writes) & state.accumulators.keys()
        if touched:
            _report(warp, op, "wgmma-accumulator-in-flight", touched, state.accumulators)
    if state.operands and op.writes:
        touched = op.writes & state.operands.keys()
        if touched:
            _report(warp, op, "wgmma-operand-in-flight", touched, state.operands)


def _report(
    warp: "Warp", op: DecodedOp, rule: str, touched: frozenset[Slot], held: dict[Slot, Product]
) -> None:
    product = max((held[slot] for slot in touched), key=lambda product: product.op.pc)
    warp.checker.report(
        rule, warp.agent, warp.fragment.lanes, op, first=product.op,
        missing="no wgmma.wait_group that covers the instruction's group in between",
        registers=warp.cta.program.names_of(touched),
    )  # fmt: skip


__all__ = ["B32_VIEW", "WgmmaState", "check_registers", "state_of"]

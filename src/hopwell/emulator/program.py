"""A function of a PTX module, flat and ready to run.

Names become slots and addresses, labels become positions, and each branch learns where diverged
lanes meet again: at the immediate post-dominator of its block, as ptxas places the convergence
barriers of structured code.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import hopwell.emulator.instructions  # noqa: F401  registers every instruction
from hopwell.emulator.control_flow import ControlFlow, possibly_undefined
from hopwell.emulator.decode import DecodedOp, Slot, Slots, Step, bank_of, decode
from hopwell.emulator.guards import copied_into, guarded_registers, undefined_slice
from hopwell.emulator.layout import Place, layout_of_module
from hopwell.errors import HopwellError, PtxNameError
from hopwell.ptx import nodes
from hopwell.ptx.scopes import DeclaredRegister, FlatFunction, Scope, flatten

_OWN = ("local", "param")
"""Spaces of a body's variables that every lane has for itself; ``.param`` ones pass arguments."""


class ProgramError(HopwellError, ValueError):
    """A PTX module that cannot be run: a missing entry, a register of several elements."""


@dataclass
class Program:
    """A decoded entry function. Holds no launch: one program serves many.

    Attributes:
        function: its syntax.
        ops, steps: the instructions, and what performs each; equal positions.
        slots: the register banks.
        parameters: where each parameter lies.
        static_shared: bytes of shared memory that variables of fixed size take.
        symbols: where the module's variables lie, and the body's in shared memory.
        locals: where the body's variables in local memory lie, by block and name.
        local_bytes: local memory of each lane.
        control: the control-flow graph.
        wgmma_registers: registers that wgmma reads or accumulates into.
        fenced_registers: those, and what is copied into them.
        suspects: registers that some path reads before it writes them.
        tainted: those, and what is computed from them.
    """

    function: nodes.Function
    module: nodes.Module
    ops: list[DecodedOp] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    slots: Slots = field(default_factory=Slots)
    parameters: dict[str, Place] = field(default_factory=dict)
    static_shared: int = 0
    symbols: dict[str, Place] = field(default_factory=dict)
    locals: dict[tuple[int, str], Place] = field(default_factory=dict)
    local_bytes: int = 0
    control: ControlFlow | None = None
    wgmma_registers: frozenset[Slot] = frozenset()
    fenced_registers: frozenset[Slot] = frozenset()
    suspects: frozenset[Slot] = frozenset()
    tainted: frozenset[Slot] = frozenset()
    register_names: dict[Slot, str] = field(default_factory=dict)
    register_slots: dict[DeclaredRegister, Slot] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The entry's name."""
        return self.function.name

    def slot_of(self, register: DeclaredRegister) -> Slot:
        """The slot of a register, a new one when it is first named."""
        slot = self.register_slots.get(register)
        if slot is None:
            slot = self.register_slots[register] = self.slots.new(bank_of(register.type))
            self.register_names[slot] = register.name
        return slot

    def names_of(self, slots: Iterable[Slot]) -> str:
        """The PTX names of registers, a few of them."""
        names = sorted(self.register_names.get(slot, "?") for slot in slots)
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def variable_at(self, space: str, address: int) -> str:
        """The variable that holds an address, with the bytes from its start; "" for none."""
        for name, place in self.symbols.items():
            offset = address - place.address
            if place.space == space and 0 <= offset < place.size:
                return f"{name}+{offset}" if offset else name
        return ""

    def directive(self, name: str) -> tuple[int, ...] | None:
        """A directive's integers, e.g. ``reqntid``; None where it is not given."""
        found = self.function.directives.get(name)
        return None if found is None else tuple(int(v) for v in found)


class _Names:
    """What the names in one block mean to a program: the scope of the binders of decode."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self.program = program
        self.scope = scope
        self._slots: dict[str, Slot] = {}

    def register(self, operand: nodes.Register) -> Slot:
        """The slot of a register."""
        found = self._slots.get(operand.name)
        if found is None:
            declared = self.scope.register(operand)
            if declared.vector is not None:
                raise ProgramError(
                    f"{operand.location}: register",
                    expected="a scalar register",
                    actual=f"{declared.name}, a .{declared.vector}",
                    consequence="Vector registers are not modelled.",
                )
            found = self._slots[operand.name] = self.program.slot_of(declared)
        return found

    def address_of(self, operand: nodes.Symbol | nodes.Address) -> int:
        """The address that a symbol stands for, in its own space, with the offset added."""
        base = operand.base if isinstance(operand, nodes.Address) else operand
        offset = operand.offset
        if isinstance(base, nodes.Immediate):
            return int(base.value) + offset
        assert isinstance(base, nodes.Symbol)
        if isinstance(operand, nodes.Address):
            offset += base.offset
        return self._place(base).address + offset

    def space_of(self, symbol: nodes.Symbol) -> str:
        """The state space of a variable; "param" for a parameter."""
        return self._place(symbol).space

    def _place(self, symbol: nodes.Symbol) -> Place:
        # Shared variables of a body were laid out with the module's.
        found = self.scope.variable(symbol.name)
        if found is not None and found[1].space in _OWN:
            return self.program.locals[found[0], symbol.name]
        place = self.program.parameters.get(symbol.name, self.program.symbols.get(symbol.name))
        if place is None:
            raise PtxNameError(
                f"{symbol.location}: symbol",
                expected="a variable or parameter",
                actual=symbol.name,
                consequence="The program cannot run.",
            )
        return place


def build(module: nodes.Module, entry: str | None = None) -> Program:
    """Decode an entry of ``module``, by name or the only one.

    Raises:
        ProgramError: there is no such entry, or a register of it has several elements.
        PtxNameError: a name in it is unknown, or declared twice.
        UnsupportedInstruction: it holds an instruction that is not registered.
    """
    entries = {function.name: function for function in module.entries}
    if entry is None and len(entries) == 1:
        entry = next(iter(entries))
    if entry not in entries:
        raise ProgramError(
            "Entry",
            expected=f"one of {', '.join(entries) or 'none: the module has no entry with a body'}",
            actual=repr(entry),
            consequence="Nothing ran.",
        )
    function = entries[entry]
    offsets = function.parameter_offsets
    parameters = {
        p.name: Place("param", offsets[p.name], p.size_bytes) for p in function.parameters
    }
    program = Program(function, module, parameters=parameters)
    program.symbols, program.static_shared = layout_of_module(module, function)
    flat = flatten(function)
    _lay_out_locals(program, flat.scopes)
    _decode_all(program, flat)
    _link(program, flat)
    return program


def _lay_out_locals(program: Program, scopes: Iterable[Scope]) -> None:
    for scope in scopes:
        for name, variable in scope.variables.items():
            if variable.space in _OWN:
                start = program.local_bytes + -program.local_bytes % variable.aligned_bytes
                program.local_bytes = start + variable.size_bytes
                program.locals[scope.block, name] = Place("local", start, variable.size_bytes)


def _decode_all(program: Program, flat: FlatFunction) -> None:
    names = [_Names(program, scope) for scope in flat.scopes]
    wgmma: set[Slot] = set()
    for pc, node, scope in flat.instructions:
        op = DecodedOp(pc, node)
        program.ops.append(op)
        step, binder = decode(op, program.slots, names[scope.block])
        program.steps.append(step)
        if node.opcode.startswith("wgmma.mma_async"):
            wgmma |= binder.wgmma_registers
    program.wgmma_registers = frozenset(wgmma)


def _link(program: Program, flat: FlatFunction) -> None:
    branches = [placed for placed in flat.instructions if placed.node.name in ("bra", "brx")]
    for pc, node, scope in branches:
        target = node.operands[-1]
        assert isinstance(target, nodes.LabelReference)
        listed = node.name == "brx"
        program.ops[pc].targets = scope.branch_targets(target) if listed else (scope.label(target),)
    program.control = ControlFlow.of(program.ops)
    for pc, _, _ in branches:
        program.ops[pc].reconverge = program.control.reconvergence(pc)
    program.suspects = possibly_undefined(program.ops, program.control)
    program.fenced_registers = copied_into(program.ops, program.wgmma_registers)
    program.tainted = undefined_slice(program.ops, program.suspects)
    for op in program.ops:
        step = program.steps[op.pc]
        program.steps[op.pc] = guarded_registers(program, op, step, program.tainted)

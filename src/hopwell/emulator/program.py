"""A function of a PTX module, flat and ready to run.

Nested scopes are resolved here, labels become positions, and each branch learns where diverged
lanes meet again: at the immediate post-dominator of its block, as ptxas places the convergence
barriers of structured code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import hopwell.emulator.instructions  # noqa: F401  registers every instruction
from hopwell.emulator.control_flow import ControlFlow, possibly_undefined
from hopwell.emulator.decode import DecodedOp, Slot, Slots, Step, bank_of, decode
from hopwell.emulator.guards import copied_into, guarded_registers, undefined_slice
from hopwell.emulator.layout import PARAMETER_WINDOW, SHARED_BASE, Place, layout_of_module
from hopwell.errors import HopwellError
from hopwell.ptx import nodes


class ProgramError(HopwellError, ValueError):
    """A PTX module that cannot be run: an unknown name, a missing entry."""


@dataclass
class Program:
    """A decoded entry function. Holds no launch: one program serves many.

    Attributes:
        function: its syntax.
        ops, steps: the instructions, and what performs each; equal positions.
        slots: the register banks.
        parameters: byte offset of each parameter in parameter space.
        parameter_bytes: the size of parameter space.
        static_shared: bytes of shared memory that variables of fixed size take.
        symbols: where the module's variables lie.
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
    parameters: dict[str, int] = field(default_factory=dict)
    parameter_bytes: int = 0
    static_shared: int = 0
    symbols: dict[str, Place] = field(default_factory=dict)
    local_bytes: int = 0
    control: ControlFlow | None = None
    wgmma_registers: frozenset[Slot] = frozenset()
    fenced_registers: frozenset[Slot] = frozenset()
    suspects: frozenset[Slot] = frozenset()
    tainted: frozenset[Slot] = frozenset()
    register_names: dict[Slot, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The entry's name."""
        return self.function.name

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


class _Scope:
    """Names of one ``{ }`` block; what it does not know its parent does."""

    def __init__(self, program: Program, parent: "_Scope | None") -> None:
        self.program = program
        self.parent = parent
        self.registers: dict[str, Slot] = {}
        self.ranges: dict[str, tuple[int, str]] = {}
        self.labels: dict[str, int] = {}
        self.symbols: dict[str, Place] = program.symbols if parent is None else {}

    def declare(self, statement: nodes.RegisterDeclaration) -> None:
        if statement.vector is not None:
            raise ProgramError(
                f"{statement.location}: register",
                expected="a scalar register",
                actual=f".{statement.vector}",
                consequence="Vector registers are not modelled.",
            )
        bank = bank_of(statement.type)
        for name, count in statement.names:
            if count is None:
                self.registers[name] = self._new(bank, name)
            else:
                self.ranges[name] = count, bank

    def _new(self, bank: str, name: str) -> Slot:
        slot = self.program.slots.new(bank)
        self.program.register_names[slot] = name
        return slot

    def register(self, operand: nodes.Register) -> Slot:
        """The slot of a register, found from the innermost block outwards."""
        name = operand.name
        scope: _Scope | None = self
        stem = name.rstrip("0123456789")
        while scope is not None:
            found = scope.registers.get(name)
            if found is not None:
                return found
            count, bank = scope.ranges.get(stem, (0, ""))
            if count and name != stem and int(name[len(stem) :]) < count:
                slot = scope.registers[name] = scope._new(bank, name)
                return slot
            scope = scope.parent
        raise ProgramError(
            f"{operand.location}: register",
            expected="a declared name",
            actual=name,
            consequence="The program cannot run.",
        )

    def place(self, name: str) -> Place | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.symbols:
                return scope.symbols[name]
            scope = scope.parent
        return None

    def address_of(self, operand: nodes.Symbol | nodes.Address) -> int:
        """The address that a symbol stands for, in its own space, with the offset added."""
        base = operand.base if isinstance(operand, nodes.Address) else operand
        offset = operand.offset
        if isinstance(base, nodes.Immediate):
            return int(base.value) + offset
        assert isinstance(base, nodes.Symbol)
        if isinstance(operand, nodes.Address):
            offset += base.offset
        if base.name in self.program.parameters:
            return self.program.parameters[base.name] + offset
        place = self.place(base.name)
        if place is None:
            raise ProgramError(
                f"{operand.location}: symbol",
                expected="a variable or parameter",
                actual=base.name,
                consequence="The program cannot run.",
            )
        return place.address + offset

    def space_of(self, symbol: nodes.Symbol) -> str:
        """The state space of a variable; "param" for a parameter."""
        place = self.place(symbol.name)
        return "param" if place is None else place.space

    def label(self, name: str) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.parent
        return None


def build(module: nodes.Module, entry: str | None = None) -> Program:
    """Decode an entry of ``module``, by name or the only one.

    Raises:
        ProgramError: there is no such entry, or a name in it is unknown.
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
    program = Program(function, module, parameters=dict(function.parameter_offsets))
    program.parameter_bytes = max(
        (program.parameters[p.name] + p.size_bytes for p in function.parameters), default=0
    )
    program.symbols, program.static_shared = layout_of_module(module, function)
    assert function.body is not None
    flat: list[tuple[nodes.Instruction, _Scope]] = []
    _flatten(program, function.body.statements, _Scope(program, None), flat)
    targets = _decode_all(program, flat)
    _link(program, targets)
    return program


def _flatten(
    program: Program,
    statements: Iterable[nodes.Statement],
    scope: _Scope,
    flat: list[tuple[nodes.Instruction, _Scope]],
) -> None:
    for statement in statements:
        if isinstance(statement, nodes.Instruction):
            flat.append((statement, scope))
        elif isinstance(statement, nodes.Label):
            scope.labels[statement.name] = len(flat)
        elif isinstance(statement, nodes.Block):
            _flatten(program, statement.statements, _Scope(program, scope), flat)
        elif isinstance(statement, nodes.RegisterDeclaration):
            scope.declare(statement)
        elif isinstance(statement, nodes.Variable):
            _declare_variable(program, scope, statement)
        # Directives, prototypes and branch targets say nothing that running needs.


def _declare_variable(program: Program, scope: _Scope, variable: nodes.Variable) -> None:
    if variable.space == "local":
        start = program.local_bytes + -program.local_bytes % variable.aligned_bytes
        program.local_bytes = start + variable.size_bytes
        scope.symbols[variable.name] = Place("local", start, variable.size_bytes)
    # Shared variables of a body were laid out with the module's.


def _decode_all(
    program: Program, flat: list[tuple[nodes.Instruction, _Scope]]
) -> dict[int, tuple[str, _Scope]]:
    targets = {}
    wgmma: set[Slot] = set()
    for pc, (node, scope) in enumerate(flat):
        op = DecodedOp(pc, node)
        program.ops.append(op)
        step, binder = decode(op, program.slots, scope)
        program.steps.append(step)
        if node.name == "bra":
            target = node.operands[0]
            assert isinstance(target, nodes.LabelReference | nodes.Symbol)
            targets[pc] = target.name, scope
        if node.opcode.startswith("wgmma.mma_async"):
            wgmma |= binder.wgmma_registers
    program.wgmma_registers = frozenset(wgmma)
    return targets


def _link(program: Program, targets: Mapping[int, tuple[str, _Scope]]) -> None:
    for pc, (name, scope) in targets.items():
        target = scope.label(name)
        if target is None:
            raise ProgramError(
                f"{program.ops[pc].node.location}: label",
                expected="one that a surrounding block declares",
                actual=name,
                consequence="The program cannot run.",
            )
        program.ops[pc].target = target
    program.control = ControlFlow.of(program.ops)
    for pc in targets:
        program.ops[pc].reconverge = program.control.reconvergence(pc)
    program.suspects = possibly_undefined(program.ops, program.control)
    program.fenced_registers = copied_into(program.ops, program.wgmma_registers)
    program.tainted = undefined_slice(program.ops, program.suspects)
    for op in program.ops:
        step = program.steps[op.pc]
        program.steps[op.pc] = guarded_registers(program, op, step, program.tainted)


def shared_base(program: Program) -> int:
    """The shared-window address of the first byte of dynamic shared memory."""
    return SHARED_BASE + program.static_shared


__all__ = ["PARAMETER_WINDOW", "Program", "ProgramError", "build", "shared_base"]

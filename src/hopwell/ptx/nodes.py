"""The syntax tree of a PTX module.

Nodes are values: frozen, compared by what they say and not by where they stand, so that a module
equals the module read back from its own text. Types, state spaces and directives are spelled
without their leading dot ("b32", "shared", "reqntid"); opcodes as written ("mul.lo.s32"); names of
registers as written ("%r1").

Names are not resolved here beyond their kind: nested blocks may repeat labels and registers, and a
``Register`` or ``LabelReference`` means the innermost declaration around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the PTX text. Lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


#: Where nodes stand that no text holds, such as those a mutation makes.
NOWHERE = Location("<made>", 0, 0)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line of the program that an instruction was compiled from, through ``.loc``.

    ``function`` is the name of the function that holds the line where it was inlined, and
    ``inlined_at`` the line that called it; both are None for code that was not inlined.
    """

    file: str
    line: int
    column: int
    function: str | None = None
    inlined_at: SourceLine | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


# -- operands ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """``%r1`` or ``P1``. ``component`` is "x" for ``%v.x``, an element of a vector register."""

    name: str
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    component: str | None = None


@dataclass(frozen=True, slots=True)
class Special:
    """A special register with its component: ``%tid.x``, ``%laneid``, ``%clock64``."""

    name: str
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Immediate:
    """A constant, evaluated.

    Integers are exact, between -2**63 and 2**64 - 1, with ``bits`` None. Floating-point constants
    also carry their encoding and its ``width``: 32 for ``0f...``, 64 for ``0d...`` and decimals.
    """

    value: int | float
    bits: int | None = None
    location: Location = field(default=NOWHERE, repr=False)
    width: int | None = None

    def _key(self) -> tuple[object, ...]:
        # By encoding, where there is one: NaN equals itself, and -0.0 is not 0.0.
        return (self.value if self.bits is None else None, self.bits, self.width)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Immediate) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, parameter or function, plus ``offset`` bytes."""

    name: str
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: a result that nobody wants."""

    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LabelReference:
    """The label that a branch goes to, or the list of labels or prototype that it names."""

    name: str
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    """``!%p``: a predicate operand, negated."""

    register: Register
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Vector:
    """``{%r1, %r2}``."""

    elements: tuple[Operand, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """``%r1|%p1``: two results of one instruction; either may be a ``Sink``."""

    first: Operand
    second: Operand
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """``[%rd1+8]``, ``[symbol]``, ``[0]``, ``[%rd1, {%r1, %r2}]`` with coordinates of a tensor.

    ``sampler`` is the second of three parts, in texture instructions alone. A base that is an
    ``Immediate`` has offset 0.
    """

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: Vector | Register | None = None
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    sampler: Register | Symbol | None = None


@dataclass(frozen=True, slots=True)
class Arguments:
    """``(param0, param1)``: what a call passes, or where it puts what is returned."""

    elements: tuple[Operand, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)


Operand: TypeAlias = (
    Register
    | Special
    | Immediate
    | Symbol
    | Vector
    | Address
    | Pair
    | Not
    | Sink
    | LabelReference
    | Arguments
)


# -- statements of a body ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """``@%p1`` or ``@!%p1``: the instruction runs where the predicate is true, or false."""

    register: str
    negated: bool
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``opcode`` has all its modifiers."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None = None
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    source: SourceLine | None = None

    @property
    def name(self) -> str:
        """ "mul" of "mul.lo.s32"."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """("lo", "s32") of "mul.lo.s32"; "shared::cta" is one."""
        return tuple(self.opcode.split(".")[1:])


@dataclass(frozen=True, slots=True)
class Label:
    """``name:``."""

    name: str
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Block:
    """``{ ... }``: a scope for registers, variables and labels."""

    statements: tuple[Statement, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction in the block and in the blocks inside it, in order."""
        for statement in self.statements:
            if isinstance(statement, Instruction):
                yield statement
            elif isinstance(statement, Block):
                yield from statement.instructions()


@dataclass(frozen=True, slots=True)
class RegisterDeclaration:
    """``.reg .b32 %r<10>, x;``. A count n declares name0 to name(n-1); None the name itself."""

    type: str
    names: tuple[tuple[str, int | None], ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    vector: str | None = None


@dataclass(frozen=True, slots=True)
class Generic:
    """``generic(symbol)`` in an initialiser: the generic address of a variable."""

    symbol: Symbol
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Masked:
    """``0xff00(symbol)`` in an initialiser: one byte of an address."""

    mask: int
    value: Symbol | Generic
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Initializer:
    """``{1, 2, {3, 4}}`` in an initialiser; what is missing at the end is zero."""

    elements: tuple[InitialValue, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)


InitialValue: TypeAlias = Immediate | Symbol | Generic | Masked | Initializer

#: Bytes of one value of a type. Sub-byte types and predicates take no memory of their own.
TYPE_BYTES: Mapping[str, int] = {
    **{f"{kind}{width}": width // 8 for kind in "bus" for width in (8, 16, 32, 64)},
    "b128": 16,
    "f16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "e4m3": 1,
    "e5m2": 1,
    "texref": 8,
    "samplerref": 8,
    "surfref": 8,
}


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in ``space``: "shared", "global", "const", "local", "param", "tex".

    ``shape`` is None for a scalar; a None in it is an extent left out, as in ``name[]``.
    ``alignment`` is in bytes, None where not written. ``linkage`` holds "extern", "visible",
    "weak" or "common". ``attributes`` are those of ``.attribute(...)``, as written.
    """

    space: str
    type: str
    alignment: int | None
    name: str
    shape: tuple[int | None, ...] | None = None
    initializer: InitialValue | None = None
    vector: str | None = None
    linkage: tuple[str, ...] = ()
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    attributes: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes that the variable takes: 0 where an extent was left out and nothing fills it."""
        return _size_bytes(self.type, self.vector, self.shape, self.initializer)

    @property
    def aligned_bytes(self) -> int:
        """The alignment written, or the natural one, in bytes."""
        return self.alignment or _size_bytes(self.type, self.vector, None, None)


def _size_bytes(
    type: str,
    vector: str | None,
    shape: tuple[int | None, ...] | None,
    initializer: InitialValue | None,
) -> int:
    size = TYPE_BYTES[type] * (int(vector[1:]) if vector else 1)
    for extent in shape or ():
        if extent is None:
            extent = len(initializer.elements) if isinstance(initializer, Initializer) else 0
        size *= extent
    return size


@dataclass(frozen=True, slots=True)
class BranchTargets:
    """``name: .branchtargets L1, L2;``, or ``.calltargets`` with functions for ``kind``."""

    name: str
    targets: tuple[str, ...]
    kind: str = "branchtargets"
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CallPrototype:
    """``name: .callprototype (...) _ (...);``: what an indirect call passes and gets."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: tuple[Parameter, ...]
    directives: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Directive:
    """A directive that is kept as text: ``.loc``, ``.pragma``, ``.file``, ``.alias``."""

    name: str
    text: str
    location: Location = field(default=NOWHERE, compare=False, repr=False)


Statement: TypeAlias = (
    Instruction
    | Label
    | Block
    | RegisterDeclaration
    | Variable
    | BranchTargets
    | CallPrototype
    | Directive
)


# -- modules -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, or a returned value, of a function. ``space`` is "param" or "reg".

    ``pointer`` is the state space of ``.ptr .global .align 16`` with the alignment in bytes (None
    where not written), and ``shape`` the extents of ``name[128]``; alignments in bytes.
    """

    type: str
    name: str
    alignment: int | None = None
    shape: tuple[int | None, ...] | None = None
    space: str = "param"
    pointer: tuple[str | None, int | None] | None = None
    vector: str | None = None
    location: Location = field(default=NOWHERE, compare=False, repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes that the parameter takes."""
        return _size_bytes(self.type, self.vector, self.shape, None)

    @property
    def aligned_bytes(self) -> int:
        """The alignment written, or the natural one, in bytes."""
        return self.alignment or _size_bytes(self.type, self.vector, None, None)


@dataclass(frozen=True, slots=True)
class Function:
    """An ``.entry`` or a ``.func``; ``body`` is None where it is declared only.

    ``directives`` holds those between parameters and body: {"reqntid": (384, 1, 1), "noreturn": ()}
    with what was written, so ``.reqntid 384`` gives (384,).
    """

    name: str
    entry: bool
    parameters: tuple[Parameter, ...]
    returns: tuple[Parameter, ...] = ()
    directives: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    body: Block | None = None
    linkage: tuple[str, ...] = ()
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    attributes: tuple[str, ...] = ()

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of the body, in order."""
        return iter(()) if self.body is None else self.body.instructions()

    @property
    def parameter_offsets(self) -> dict[str, int]:
        """Byte offset of each parameter in an entry's parameter space."""
        offsets: dict[str, int] = {}
        end = 0
        for parameter in self.parameters:
            end += -end % parameter.aligned_bytes
            offsets[parameter.name] = end
            end += parameter.size_bytes
        return offsets


@dataclass(frozen=True, slots=True)
class Data:
    """``.b8 1, 2`` in a section. Values that are no integers are kept as text: "label+4"."""

    type: str
    values: tuple[int | str, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Section:
    """``.section .debug_str { ... }``: DWARF, kept as it is."""

    name: str
    items: tuple[Label | Data, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)


ModuleStatement: TypeAlias = Function | Variable | Directive | Section


@dataclass(frozen=True, slots=True)
class Module:
    """One PTX module. ``files`` maps the numbers that ``.loc`` uses to the paths of ``.file``."""

    version: tuple[int, int]
    target: str
    address_size: int
    files: Mapping[int, str]
    statements: tuple[ModuleStatement, ...]
    location: Location = field(default=NOWHERE, compare=False, repr=False)
    target_options: tuple[str, ...] = ()

    @property
    def functions(self) -> tuple[Function, ...]:
        """Entries and device functions in order, those that are declared only among them."""
        return tuple(s for s in self.statements if isinstance(s, Function))

    @property
    def entries(self) -> tuple[Function, ...]:
        """Entries that have a body."""
        return tuple(f for f in self.functions if f.entry and f.body is not None)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Variables of the module's own scope."""
        return tuple(s for s in self.statements if isinstance(s, Variable))

    def function(self, name: str) -> Function | None:
        """The function of that name, with its body if it has one here; None if there is none."""
        found = [f for f in self.functions if f.name == name]
        return next((f for f in found if f.body is not None), found[0] if found else None)

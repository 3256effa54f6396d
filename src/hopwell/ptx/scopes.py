"""What a name means where it stands, and a function's instructions in one list.

Blocks nest and may repeat each other's names: a name means its innermost declaration around it.
Names of counted registers are read as ptxas reads them: all digits at the end are the number, so
that ``%r07`` is ``%r7``, and nothing can name those of ``.reg .b32 %r2<4>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from hopwell.errors import PtxNameError
from hopwell.ptx.nodes import (
    Block,
    BranchTargets,
    Function,
    Instruction,
    Label,
    LabelReference,
    Location,
    Register,
    RegisterDeclaration,
    Statement,
    Variable,
)


class RegisterType(NamedTuple):
    """What a register was declared with: "b32", and "v2" or "v4" for one of several elements."""

    type: str
    vector: str | None = None


class DeclaredRegister(NamedTuple):
    """One register of a function, the same for every spelling and place of its name."""

    block: int
    name: str
    type: str
    vector: str | None


class Scope:
    """Names of one ``{ }`` block; what it does not declare, its parent may.

    ``block`` numbers the blocks of a function in the order of their text, from 0 for the function
    itself. ``labels`` holds positions among the function's instructions, ``targets`` lists of them
    by name.
    """

    def __init__(self, parent: Scope | None = None, block: int = 0) -> None:
        self.parent = parent
        self.block = block
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}
        self.variables: dict[str, Variable] = {}
        self._single: set[str] = set()
        self._counted: dict[str, tuple[int, RegisterType]] = {}
        #: Registers of this block by each spelling that was looked up, and the single ones.
        self._known: dict[str, DeclaredRegister] = {}

    def declare(self, name: str, count: int | None, type: RegisterType) -> bool:
        """Adds a register, or ``count`` of them. False if the block has that very name already."""
        if name in (self._single if count is None else self._counted):
            return False
        if count is None:
            self._single.add(name)
            self._known[name] = DeclaredRegister(self.block, name, *type)
        else:
            self._counted[name] = count, type
        return True

    def find(self, name: str) -> DeclaredRegister | None:
        """The register that a name means, or None."""
        scope: Scope | None = self
        while scope is not None:
            found = scope._known.get(name) or scope._counted_register(name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def _counted_register(self, name: str) -> DeclaredRegister | None:
        stem = name.rstrip("0123456789")
        if stem == name or stem not in self._counted:
            return None
        count, type = self._counted[stem]
        number = int(name[len(stem) :])
        if number >= count:
            return None
        found = self._known[name] = DeclaredRegister(self.block, f"{stem}{number}", *type)
        return found

    def register(self, operand: Register) -> DeclaredRegister:
        """The register that an operand means. Raises PtxNameError where there is none."""
        found = self.find(operand.name)
        return found or _unknown("register", operand.name, operand.location)

    def label(self, operand: LabelReference) -> int:
        """The position that a branch goes to. Raises PtxNameError where there is none."""
        for scope in self._outwards():
            if operand.name in scope.labels:
                return scope.labels[operand.name]
        _unknown("label", operand.name, operand.location)

    def branch_targets(self, operand: LabelReference) -> tuple[int, ...]:
        """The positions in a ``.branchtargets`` list. Raises PtxNameError where there is none."""
        for scope in self._outwards():
            if operand.name in scope.targets:
                names = scope.targets[operand.name]
                return tuple(self.label(LabelReference(n, operand.location)) for n in names)
        _unknown("list of branch targets", operand.name, operand.location)

    def variable(self, name: str) -> tuple[int, Variable] | None:
        """A variable of a block, and that block's number; None for one of the module."""
        for scope in self._outwards():
            if name in scope.variables:
                return scope.block, scope.variables[name]
        return None

    def _outwards(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent


class Placed(NamedTuple):
    """An instruction, its position among all of its function, and what its names mean."""

    position: int
    node: Instruction
    scope: Scope


class FlatFunction(NamedTuple):
    """A function without nesting: its instructions in order, and the scope of every block."""

    instructions: tuple[Placed, ...]
    scopes: tuple[Scope, ...]


def flatten(function: Function) -> FlatFunction:
    """Resolves the blocks of a function.

    Raises PtxNameError where a block declares a label, a register or a variable twice.
    """
    root = Scope()
    for parameter in (*function.parameters, *function.returns):
        if parameter.space == "reg":
            root.declare(parameter.name, None, RegisterType(parameter.type, parameter.vector))
    flat = _Flat([], [root])
    if function.body is not None:
        flat.block(function.body)
    return FlatFunction(tuple(flat.instructions), tuple(flat.scopes))


class _Flat(NamedTuple):
    """A flat function in the making; the first scope is the function's own."""

    instructions: list[Placed]
    scopes: list[Scope]

    def block(self, block: Block, parent: Scope | None = None) -> None:
        scope = Scope(parent or self.scopes[0], len(self.scopes))
        self.scopes.append(scope)
        self._statements(block.statements, scope)

    def _statements(self, statements: Iterable[Statement], scope: Scope) -> None:
        for statement in statements:
            if isinstance(statement, Instruction):
                self.instructions.append(Placed(len(self.instructions), statement, scope))
            elif isinstance(statement, Block):
                self.block(statement, scope)
            elif isinstance(statement, Label):
                if statement.name in scope.labels:
                    _twice("label", statement.name, statement.location)
                scope.labels[statement.name] = len(self.instructions)
            elif isinstance(statement, BranchTargets):
                scope.targets[statement.name] = statement.targets
            elif isinstance(statement, RegisterDeclaration):
                type = RegisterType(statement.type, statement.vector)
                for name, count in statement.names:
                    if not scope.declare(name, count, type):
                        _twice("register", name, statement.location)
            elif isinstance(statement, Variable):
                if statement.name in scope.variables:
                    _twice("variable", statement.name, statement.location)
                scope.variables[statement.name] = statement


def _unknown(kind: str, name: str, location: Location) -> NoReturn:
    raise PtxNameError(
        f"{location}: {kind}",
        expected="one that a block around it declares",
        actual=name,
        consequence="Nothing is known to which it could refer.",
    )


def _twice(kind: str, name: str, location: Location) -> NoReturn:
    raise PtxNameError(
        f"{location}: {kind}",
        expected="one declaration in a block",
        actual=f"a second one of {name}",
        consequence="The name would have two meanings.",
    )

"""The one kernel of a compiled PTX module: its instructions, and which of them writes a register.

Imports no plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hopwell import ptx
from hopwell.ptx.nodes import Address, Arguments, Instruction, Operand, Pair, Register, Vector
from hopwell.ptx.scopes import DeclaredRegister, Placed, flatten

_Found = TypeVar("_Found")

#: Instructions whose first operand is one that they read.
_READERS = ("bar", "barrier", "brx", "nanosleep")


@dataclass(frozen=True)
class Kernel:
    """The entry of a PTX module, flat."""

    name: str
    required_threads: int | None
    #: Names of dynamic shared memory, which starts at offset 0.
    dynamic_shared: frozenset[str]
    instructions: tuple[Placed, ...]
    definitions: Mapping[DeclaredRegister, tuple[Placed, ...]] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Kernel:
        """Raises ValueError unless the text is a whole PTX module that holds one entry."""
        module = ptx.parse(text)
        if len(module.entries) != 1:
            raise ValueError(f"expected one entry in the PTX, found {len(module.entries)}")
        (entry,) = module.entries
        threads = None
        if "reqntid" in entry.directives:
            threads = math.prod(map(int, entry.directives["reqntid"]))
            if threads == 0:
                raise ValueError(f"{entry.name} requires a CTA without threads")
        flat = flatten(entry)
        variables = [*module.variables, *(v for s in flat.scopes for v in s.variables.values())]
        definitions: dict[DeclaredRegister, list[Placed]] = {}
        for placed in flat.instructions:
            for register in _written(placed.node):
                definitions.setdefault(placed.scope.register(register), []).append(placed)
        return cls(
            entry.name,
            threads,
            # The array of no length, which the launch gives one.
            frozenset(v.name for v in variables if v.space == "shared" and not v.size_bytes),
            flat.instructions,
            {register: tuple(found) for register, found in definitions.items()},
        )


def _written(node: Instruction) -> tuple[Register, ...]:
    """Registers that an instruction writes: those of its first operand, or none."""
    if not node.operands or (node.name in _READERS and "red" not in node.modifiers):
        return ()
    first = node.operands[0]
    results: tuple[Operand, ...] = (first,)
    if isinstance(first, Vector | Arguments):
        results = first.elements
    elif isinstance(first, Pair):
        results = (first.first, first.second)
    return tuple(result for result in results if isinstance(result, Register))


def operand(node: Instruction, position: int) -> Operand:
    """One of the operands; a negative position counts from the last.

    Raises ValueError if there are not so many: the text is no PTX.
    """
    return _at(node, node.operands, position)


def address(node: Instruction, position: int) -> Address:
    """One of the operands in square brackets. Raises ValueError if there are not so many."""
    return _at(node, [o for o in node.operands if isinstance(o, Address)], position)


def _at(node: Instruction, among: Sequence[_Found], position: int) -> _Found:
    if not -len(among) <= position < len(among):
        raise ValueError(f"{node.location}: {node.opcode} lacks operands")
    return among[position]

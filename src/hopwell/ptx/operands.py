"""Operands of instructions, and which names are registers (PTX ISA, chapter 6)."""

from __future__ import annotations

import re

from hopwell.ptx.cursor import Cursor
from hopwell.ptx.lexer import WORD, Tokens
from hopwell.ptx.nodes import (
    Address,
    Arguments,
    Immediate,
    LabelReference,
    Location,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from hopwell.ptx.scopes import Scope

#: PTX ISA, chapter 10 (Special Registers).
_SPECIAL = re.compile(
    r"""%(?:
        (?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyzw])?
      | laneid | warpid | nwarpid | smid | nsmid | gridid | is_explicit_cluster
      | cluster_ctarank | cluster_nctarank | lanemask_(?:eq|le|lt|ge|gt)
      | clock(?:_hi|64)? | globaltimer(?:_lo|_hi)? | pm[0-7](?:_64)? | envreg\d+
      | (?:total|aggr|dynamic)_smem_size | reserved_smem_offset_\w+ | current_graph_exec
    )""",
    re.VERBOSE | re.ASCII,
)
_COMPONENT = re.compile(r"([^.]+)\.([xyzwrgba])", re.ASCII)


class OperandReader(Cursor):
    """Reads operands. A name is a register where an open scope declares it, or with a ``%``."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self.scope = Scope()

    def operands(self, opcode: str) -> tuple[Operand, ...]:
        """All operands of an instruction, through its semicolon."""
        if self.accept(";"):
            return ()
        call = opcode.startswith("call")
        found = [self.operand(call)]
        while self.accept(","):
            found.append(self.operand(call))
        self.expect(";", f"the operands of {opcode}")
        if opcode.startswith(("bra", "brx", "call")):
            return self._with_labels(opcode, found)
        return tuple(found)

    def _with_labels(self, opcode: str, found: list[Operand]) -> tuple[Operand, ...]:
        """The operand that names a label of a branch, or the targets or prototype of a call."""
        position = len(found) - 1
        if opcode.startswith("call"):
            target = 1 if isinstance(found[0], Arguments) else 0
            if position == target or isinstance(found[position], Arguments):
                return tuple(found)
        last = found[position]
        if not isinstance(last, Symbol) or last.offset:
            self.error(
                f"the operands of {opcode}", "the name of a label at the end", self.index - 2
            )
        return (*found[:position], LabelReference(last.name, last.location))

    def operand(self, call: bool = False) -> Operand:
        index = self.index
        if self.kinds[index] == WORD:
            return self._word()
        text = self.texts[index]
        if text == "[":
            return self._address()
        if text == "{":
            return self._vector()
        if text == "!" and self.kinds[index + 1] == WORD:
            self.index += 1
            register = self.named(self.location())
            if not isinstance(register, Register):
                self.error("a negated operand", "a predicate register", index + 1)
            return Not(register, self.location(index))
        if text == "(" and call:
            return self._arguments()
        if text in (";", ",", "}", ""):
            self.error("an operand is missing", "an operand")
        return self.constant()

    def _word(self) -> Operand:
        start = self.index
        if self.texts[start] == "WARP_SZ":
            return self.constant()
        location = self.location()
        first = self.named(location)
        following = self.texts[self.index]
        if following == "|" and isinstance(first, (Register, Sink)):
            self.index += 1
            if self.kinds[self.index] != WORD:
                self.error("a pair of results", "a register or _")
            second = self.named(self.location())
            if not isinstance(second, (Register, Sink)):
                self.error("a pair of results", "a register or _", self.index - 1)
            return Pair(first, second, location)
        if following == "+" and isinstance(first, Symbol):
            return Symbol(first.name, location, self.integer())
        return first

    def named(self, location: Location) -> Register | Special | Symbol | Sink:
        """What one word means as an operand."""
        name = self.texts[self.index]
        self.index += 1
        if name == "_":
            return Sink(location)
        if name[0] == "%" and _SPECIAL.fullmatch(name):
            return Special(name, location)
        component = None
        if "." in name:
            parts = _COMPONENT.fullmatch(name)
            if parts is None:
                self.error("an operand", "a register, or one element of it", self.index - 1)
            name, component = parts.groups()
        if name[0] == "%" or self.scope.find(name) is not None:
            return Register(name, location, component)
        if component is not None or ":" in name:
            self.error("an operand", "a register that is declared", self.index - 1)
        return Symbol(name, location)

    def _vector(self) -> Vector:
        location = self.location()
        self.index += 1
        elements = [self._element()]
        while self.accept(","):
            elements.append(self._element())
        self.expect("}", "the elements of a vector")
        return Vector(tuple(elements), location)

    def _element(self) -> Operand:
        # Nearly all are registers: of an accumulator there are up to 128.
        if self.kinds[self.index] == WORD and self.texts[self.index] != "WARP_SZ":
            return self.named(self.location())
        if self.texts[self.index] in ("{", "[", "!"):
            self.error("the elements of a vector", "a register or a constant")
        return self.constant()

    def _arguments(self) -> Arguments:
        location = self.location()
        self.index += 1
        elements: list[Operand] = []
        if not self.accept(")"):
            elements.append(self.operand())
            while self.accept(","):
                elements.append(self.operand())
            self.expect(")", "the arguments of a call")
        return Arguments(tuple(elements), location)

    def _address(self) -> Address:
        location = self.location()
        self.index += 1
        base = self._base("an address")
        offset = 0
        if not isinstance(base, Immediate) and self.texts[self.index] == "+":
            offset = self.integer()
        coordinates: Vector | Register | None = None
        sampler: Register | Symbol | None = None
        if self.accept(","):
            if self.texts[self.index] != "{":
                second = self._base("the second part of an address")
                if isinstance(second, Immediate):
                    self.error("an address", "coordinates or a sampler", self.index - 1)
                if self.accept(","):
                    sampler = second
                elif isinstance(second, Register):
                    coordinates = second
                else:
                    self.error("an address", "coordinates after the sampler")
            if coordinates is None:
                if self.texts[self.index] != "{":
                    self.error("the coordinates of an address", "'{'")
                coordinates = self._vector()
        self.expect("]", "an address")
        return Address(base, offset, coordinates, location, sampler)

    def _base(self, what: str) -> Register | Symbol | Immediate:
        if self.kinds[self.index] != WORD or self.texts[self.index] == "WARP_SZ":
            return self.constant()
        base = self.named(self.location())
        if isinstance(base, (Special, Sink)):
            self.error(what, "a register, a variable or a constant", self.index - 1)
        return base

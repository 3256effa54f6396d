"""What the integers of a compiled kernel are for a given warp, and what that warp may execute.

Knows the integer arithmetic from which kernels form barrier numbers, counts and addresses, and
nothing of what the kernel computes. What it cannot know it says is unknown; it never guesses.
Imports no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopwell.compile.entry import Kernel
from hopwell.ptx.nodes import (
    Address,
    Immediate,
    LabelReference,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
)
from hopwell.ptx.scopes import DeclaredRegister, Placed, Scope

WARP = 32


@dataclass(frozen=True)
class Value:
    """A constant part plus, unless ``exact``, something unknown."""

    constant: int
    exact: bool = True

    @property
    def known(self) -> int | None:
        """The value, or None when a part of it is unknown."""
        return self.constant if self.exact else None


UNKNOWN = Value(0, False)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _amount(shift: int) -> int:
    """PTX takes the amount of a shift as unsigned, and all above the width as the width."""
    return min(shift & 0xFFFFFFFF, 32)


_ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "mad.lo": lambda a, b, c: a * b + c,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "neg": lambda a: -a,
    "shl": lambda a, b: a << _amount(b),
    "shr.s32": lambda a, b: a >> _amount(b),
    "shr": lambda a, b: (a & 0xFFFFFFFF) >> _amount(b),
    "min.s32": min,
    "max.s32": max,
}
#: How many operands those take that do not take two.
_OPERANDS = {"not": 1, "neg": 1, "mad": 3}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_MAX_DEPTH = 64


class WarpView:
    """What the first lane of one warp would compute, as far as thread position decides it."""

    def __init__(self, kernel: Kernel, warp: int) -> None:
        self.kernel = kernel
        self.warp = warp
        self._special = {"%tid.x": Value(warp * WARP), "%tid.y": Value(0), "%tid.z": Value(0)}
        self._known: dict[DeclaredRegister, Value] = {}

    def value(self, operand: Operand, scope: Scope, depth: int = 0) -> Value:
        """Integer or predicate (0 or 1) value of an operand that stands in ``scope``."""
        if isinstance(operand, Immediate):
            return Value(operand.value) if isinstance(operand.value, int) else UNKNOWN
        if isinstance(operand, Special):
            return self._special.get(operand.name, UNKNOWN)
        if isinstance(operand, Symbol):
            known = operand.name in self.kernel.dynamic_shared
            return Value(operand.offset) if known else UNKNOWN
        if not isinstance(operand, Register) or operand.component is not None:
            return UNKNOWN
        register = scope.register(operand)
        if register not in self._known:
            self._known[register] = UNKNOWN  # a loop through itself stays unknown
            self._known[register] = self._defined_value(register, depth + 1)
        return self._known[register]

    def address(self, operand: Address, scope: Scope) -> Value:
        """Value of ``[register+offset]`` or ``[symbol+offset]``."""
        base = self.value(operand.base, scope)
        return Value(base.constant + operand.offset, base.exact)

    def _defined_value(self, register: DeclaredRegister, depth: int) -> Value:
        definitions = self.kernel.definitions.get(register, ())
        if len(definitions) != 1 or depth > _MAX_DEPTH:
            return UNKNOWN
        _, node, scope = definitions[0]
        result = node.operands[0]
        if isinstance(result, Pair):
            result = result.first
        # Not the second result, nor one element of a vector.
        first = isinstance(result, Register) and scope.register(result) == register
        if not first or node.guard is not None:
            return UNKNOWN
        return self._evaluate(definitions[0], depth)

    def _evaluate(self, placed: Placed, depth: int) -> Value:
        node, scope = placed.node, placed.scope
        sources = [self.value(operand, scope, depth) for operand in node.operands[1:]]
        if node.name in ("mov", "cvt", "cvta") and len(sources) == 1:
            return sources[0]
        if node.opcode.startswith("shfl.sync.idx"):
            # Lane 0's value; this view is lane 0.
            return sources[0] if len(sources) > 1 and sources[1] == Value(0) else UNKNOWN
        if node.name == "selp" and len(sources) == 3:
            if_true, if_false, condition = sources
            return (if_true if condition.constant else if_false) if condition.exact else UNKNOWN
        if node.name == "setp":
            compare = _COMPARE.get(node.modifiers[0]) if node.modifiers else None
            if compare is None or len(sources) != 2 or not all(s.exact for s in sources):
                return UNKNOWN
            return Value(int(compare(sources[0].constant, sources[1].constant)))
        return _arithmetic(node.opcode, sources)


def _arithmetic(opcode: str, sources: list[Value]) -> Value:
    if "wide" in opcode or ".hi" in opcode or ".f" in opcode:
        return UNKNOWN
    if opcode.startswith(("and.pred", "or.pred", "xor.pred", "not.pred")):
        return _logic(opcode.split(".")[0], sources)
    parts = opcode.split(".")
    function = next(
        (_ARITHMETIC[name] for name in (".".join(parts[:2]), parts[0]) if name in _ARITHMETIC),
        None,
    )
    if function is None or len(sources) != _OPERANDS.get(parts[0], 2):
        return UNKNOWN
    if all(source.exact for source in sources):
        return Value(_signed(function(*(source.constant for source in sources))))
    if parts[0] in ("add", "sub"):
        # A known offset from something unknown.
        return Value(_signed(function(*(source.constant for source in sources))), False)
    return UNKNOWN


def _logic(name: str, sources: list[Value]) -> Value:
    if len(sources) != _OPERANDS.get(name, 2):
        return UNKNOWN
    exact = [bool(s.constant) for s in sources if s.exact]
    if name == "and" and False in exact:
        return Value(0)
    if name == "or" and True in exact:
        return Value(1)
    if len(exact) != len(sources):
        return UNKNOWN
    if name == "not":
        return Value(int(not exact[0]))
    return Value(int({"and": all(exact), "or": any(exact), "xor": sum(exact) % 2 == 1}[name]))


def reachable(view: WarpView) -> set[int]:
    """Positions of the instructions that the view's warp may execute.

    A branch whose predicate depends on thread position alone is followed one way, any other both.
    """
    instructions = view.kernel.instructions
    seen: set[int] = set()
    pending = [0]
    while pending:
        position = pending.pop()
        while position < len(instructions) and position not in seen:
            seen.add(position)
            placed = instructions[position]
            node = placed.node
            position += 1
            if node.name not in ("bra", "ret", "exit"):
                continue
            taken = _taken(view, placed)
            if not taken.exact or taken.constant:
                labels = [o for o in node.operands if isinstance(o, LabelReference)]
                pending += map(placed.scope.label, labels)
            if taken.known:
                break
    return seen


def _taken(view: WarpView, placed: Placed) -> Value:
    """Whether an instruction's guard lets the warp execute it: 1 or 0."""
    guard = placed.node.guard
    if guard is None:
        return Value(1)
    value = view.value(Register(guard.register, guard.location), placed.scope)
    return Value(1 - value.constant) if value.exact and guard.negated else value

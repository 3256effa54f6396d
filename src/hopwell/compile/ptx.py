"""Reads the statements of a compiled kernel's PTX, and what its integers are for a given warp.

Not a PTX front end: it knows the integer arithmetic from which kernels form barrier numbers,
counts and addresses, and nothing of what the kernel computes. What it cannot know it says is
unknown; it never guesses. Imports no plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WARP = 32

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"([$\w]+):\s*")
_STATEMENT = re.compile(r"(?:@(!?)(%?\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)[^{]*\)([^{]*)\{")
#: Dynamic shared memory: the array of no length that the launch gives one.
_DYNAMIC_SHARED = re.compile(r"\.extern\s+\.shared\b[^;]*?([\w$]+)\s*\[\s*\]")


@dataclass(frozen=True)
class Statement:
    """One instruction. ``guard`` is (predicate, negated) or None."""

    index: int
    opcode: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None

    def starts(self, prefixes: str | tuple[str, ...]) -> bool:
        return self.opcode.startswith(prefixes)

    def operand(self, position: int, among: str = "") -> str:
        """One of the operands, or of those that start with ``among``. Raises ValueError if there
        are not so many: the text is no PTX.
        """
        chosen = [operand for operand in self.operands if operand.startswith(among)]
        if not -len(chosen) <= position < len(chosen):
            raise ValueError(f"{self.opcode} lacks operands: {', '.join(self.operands)}")
        return chosen[position]


@dataclass(frozen=True)
class Kernel:
    """The entry of a PTX module: its statements in order, and where its labels point."""

    name: str
    required_threads: int | None
    #: Names of dynamic shared memory, which starts at offset 0.
    dynamic_shared: frozenset[str]
    statements: tuple[Statement, ...]
    labels: dict[str, int]
    definitions: dict[str, tuple[Statement, ...]] = field(repr=False)

    @classmethod
    def parse(cls, ptx: str) -> Kernel:
        """Raises ValueError unless the module holds exactly one entry."""
        text = _COMMENT.sub("", ptx)
        entries = list(_ENTRY.finditer(text))
        if len(entries) != 1:
            raise ValueError(f"expected one entry in the PTX, found {len(entries)}")
        name, directives = entries[0].groups()
        body = text[entries[0].end() :]
        if body.count("}") != body.count("{") + 1:
            raise ValueError(f"the PTX of {name} is not whole: it does not end")
        statements, labels = _statements(body)
        required = re.search(r"\.reqntid\s+([\d,\s]+)", directives)
        threads = None
        if required is not None:
            threads = 1
            for extent in required.group(1).split(","):
                threads *= int(extent)
            if threads == 0:
                raise ValueError(f"{name} requires a CTA without threads")
        definitions: dict[str, tuple[Statement, ...]] = {}
        for statement in statements:
            for register in _defined(statement):
                definitions[register] = (*definitions.get(register, ()), statement)
        return cls(
            name,
            threads,
            frozenset(_DYNAMIC_SHARED.findall(text)),
            tuple(statements),
            labels,
            definitions,
        )


def split(operands: str) -> tuple[str, ...]:
    """Splits at commas outside brackets: ``{%r1, %r2}, [%r3], 1`` has three operands."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(operands):
        if char in "[{(":
            depth += 1
        elif char in ")}]":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(operands[start:i].strip())
            start = i + 1
    last = operands[start:].strip()
    return tuple([*parts, last] if last else parts)


def _statements(body: str) -> tuple[list[Statement], dict[str, int]]:
    statements: list[Statement] = []
    labels: dict[str, int] = {}
    pending = ""
    for raw in body.splitlines():
        line = raw.strip()
        if not pending:
            label = _LABEL.match(line)
            if label is not None:
                # Inline assembly repeats its own labels; only the compiler's are unique.
                if label.group(1).startswith("$"):
                    labels[label.group(1)] = len(statements)
                line = line[label.end() :]
            line = re.sub(r"^[{}]\s*$", "", line)
            if not line or line.startswith("."):
                continue
        pending += " " + line
        while ";" in pending:
            text, pending = pending.split(";", 1)
            pending = pending.strip().strip("{}").strip()
            found = _STATEMENT.fullmatch(text.strip().lstrip("{").strip())
            if found is not None:
                negated, predicate, opcode, operands = found.groups()
                guard = (predicate, bool(negated)) if predicate else None
                statements.append(Statement(len(statements), opcode, split(operands), guard))
    return statements, labels


def _defined(statement: Statement) -> Sequence[str]:
    """Registers that a statement writes (its first operand, for the instructions known here)."""
    if not statement.operands or statement.starts(("st.", "red.", "bar", "bra", "wgmma", "setmax")):
        return ()
    return re.findall(r"%\w+", statement.operands[0]) if "[" not in statement.operands[0] else ()


# -- integers ------------------------------------------------------------------------------


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
        self._known: dict[str, Value] = {}

    def value(self, operand: str, depth: int = 0) -> Value:
        """Integer or predicate (0 or 1) value of a register, an immediate or a shared symbol."""
        operand = operand.strip()
        if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", operand):
            return Value(int(operand, 0))
        if operand == "%tid.x":
            return Value(self.warp * WARP)
        if operand in ("%tid.y", "%tid.z"):
            return Value(0)
        if not operand.startswith("%"):
            return Value(0) if operand in self.kernel.dynamic_shared else UNKNOWN
        if operand not in self._known:
            self._known[operand] = UNKNOWN  # a loop through itself stays unknown
            self._known[operand] = self._defined_value(operand, depth + 1)
        return self._known[operand]

    def address(self, operand: str) -> Value:
        """Value of ``[register+offset]`` or ``[symbol+offset]``."""
        total = Value(0)
        for term in operand.strip("[] ").replace("-", "+-").split("+"):
            part = self.value(term)
            total = Value(total.constant + part.constant, total.exact and part.exact)
        return total

    def _defined_value(self, register: str, depth: int) -> Value:
        definitions = self.kernel.definitions.get(register, ())
        if len(definitions) != 1 or depth > _MAX_DEPTH or definitions[0].guard is not None:
            return UNKNOWN
        return self._evaluate(definitions[0], depth)

    def _evaluate(self, statement: Statement, depth: int) -> Value:
        opcode = statement.opcode
        sources = [self.value(operand, depth) for operand in statement.operands[1:]]
        name, _, rest = opcode.partition(".")
        if name in ("mov", "cvt", "cvta") and len(sources) == 1:
            return sources[0]
        if opcode.startswith("shfl.sync.idx"):
            # Lane 0's value; this view is lane 0.
            return sources[0] if len(sources) > 1 and sources[1] == Value(0) else UNKNOWN
        if name == "selp":
            if_true, if_false, condition = sources
            return (if_true if condition.constant else if_false) if condition.exact else UNKNOWN
        if name == "setp":
            compare = _COMPARE.get(rest.split(".")[0])
            if compare is None or len(sources) != 2 or not all(s.exact for s in sources):
                return UNKNOWN
            return Value(int(compare(sources[0].constant, sources[1].constant)))
        return _arithmetic(opcode, sources)


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
    """Indices of the statements that the view's warp may execute.

    A branch whose predicate depends on thread position alone is followed one way, any other both.
    """
    kernel = view.kernel
    seen: set[int] = set()
    pending = [0]
    while pending:
        index = pending.pop()
        while index < len(kernel.statements) and index not in seen:
            seen.add(index)
            statement = kernel.statements[index]
            index += 1
            if statement.opcode in ("ret", "exit") and statement.guard is None:
                break
            target = statement.operands[0] if statement.operands else ""
            if not statement.starts("bra") or target not in kernel.labels:
                continue
            taken = Value(1)
            if statement.guard is not None:
                register, negated = statement.guard
                taken = view.value(register)
                if taken.exact and negated:
                    taken = Value(1 - taken.constant)
            if not taken.exact or taken.constant:
                pending.append(kernel.labels[target])
            if taken.exact and taken.constant:
                break
    return seen

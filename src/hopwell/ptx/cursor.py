"""A position in the tokens, and the constant expressions that stand anywhere in PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from hopwell.ptx import lexer
from hopwell.ptx.lexer import NUMBER, WORD, Tokens
from hopwell.ptx.nodes import Immediate, Location

_MASK = (1 << 64) - 1
_WARP_SIZE = 32

#: An integer and whether its type is .u64 rather than .s64 (PTX ISA 4.5.6).
Typed = tuple[int, bool]

_PRECEDENCE = {
    **dict.fromkeys(("*", "/", "%"), 10),
    **dict.fromkeys(("+", "-"), 9),
    **dict.fromkeys(("<<", ">>"), 8),
    **dict.fromkeys(("<", ">", "<=", ">="), 7),
    **dict.fromkeys(("==", "!="), 6),
    "&": 5,
    "^": 4,
    "|": 3,
    "&&": 2,
    "||": 1,
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: (a // b) if (a < 0) == (b < 0) else -(-a // b),
    "%": lambda a, b: a % b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "&": lambda a, b: a & b,
    "^": lambda a, b: a ^ b,
    "|": lambda a, b: a | b,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _wrap(value: int, unsigned: bool) -> Typed:
    """The value in 64 bits."""
    value &= _MASK
    return (value if unsigned or not value >> 63 else value - (1 << 64)), unsigned


def _apply(operator: str, left: Typed, right: Typed) -> Typed:
    """One binary operator at 64 bits: C's rules, but % is unsigned. Raises ZeroDivisionError."""
    unsigned = left[1] or right[1] or operator == "%"
    if operator in ("<<", ">>"):
        # The type is the left operand's. Past the width ptxas takes the amount modulo 64.
        amount = right[0] & 63
        value = left[0] << amount if operator == "<<" else left[0] >> amount
        return _wrap(value, left[1])
    if operator in ("&&", "||"):
        truth = (left[0] and right[0]) if operator == "&&" else (left[0] or right[0])
        return int(bool(truth)), False
    a, b = _wrap(left[0], unsigned)[0], _wrap(right[0], unsigned)[0]
    if operator in _COMPARISONS:
        return int(_COMPARISONS[operator](a, b)), False
    return _wrap(_ARITHMETIC[operator](a, b), unsigned)


class Cursor:
    """Reads tokens one after the other; every error shows the line it stands at."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.kinds = tokens.kinds
        self.texts = tokens.texts
        self.index = 0

    def location(self, index: int | None = None) -> Location:
        return self.tokens.location(self.index if index is None else index)

    def error(self, what: str, expected: object, index: int | None = None) -> NoReturn:
        self.tokens.error(what, self.index if index is None else index, expected=expected)

    def accept(self, text: str) -> bool:
        """Steps over the token if it is this one."""
        if self.texts[self.index] != text:
            return False
        self.index += 1
        return True

    def expect(self, text: str, where: str) -> None:
        """Steps over the token, which must be this one."""
        if self.texts[self.index] != text:
            self.error(where, repr(text))
        self.index += 1

    def take(self, kind: int, what: str, expected: str) -> str:
        """Steps over a token of a kind and gives its text."""
        if self.kinds[self.index] != kind:
            self.error(what, expected)
        self.index += 1
        return self.texts[self.index - 1]

    def identifier(self, what: str) -> str:
        """Steps over a name that has no dots."""
        name = self.take(WORD, what, "a name")
        if "." in name or ":" in name:
            self.error(what, "a name without dots", self.index - 1)
        return name

    # -- constants -------------------------------------------------------------------------

    def constant(self) -> Immediate:
        """An integer expression, or a floating-point literal; decimals may have a sign."""
        start = self.index
        sign = self.texts[start] if self.texts[start] in ("-", "+") else ""
        index = start + len(sign)
        if self.kinds[index] == NUMBER:
            real = lexer.floating(sign + self.texts[index])
            if real is not None:
                self.index = index + 1
                value, bits, width = real
                return Immediate(value, bits, self.location(start), width)
        return Immediate(self.integer(), None, self.location(start))

    def integer(self) -> int:
        """The value of an integer expression (PTX ISA 4.5.4 to 4.5.6)."""
        return self._conditional()[0]

    def literal(self) -> int:
        """The value of an integer that stands alone."""
        return self._literal()[0]

    def _conditional(self) -> Typed:
        condition = self._binary(1)
        if not self.accept("?"):
            return condition
        if_true = self._conditional()
        self.expect(":", "a conditional expression")
        if_false = self._conditional()
        return if_true if condition[0] else if_false

    def _binary(self, lowest: int) -> Typed:
        left = self._unary()
        while True:
            operator = self.texts[self.index]
            precedence = _PRECEDENCE.get(operator, 0)
            if precedence < lowest:
                return left
            at = self.index
            self.index += 1
            right = self._binary(precedence + 1)
            try:
                left = _apply(operator, left, right)
            except ZeroDivisionError:
                self.error("a constant divided by zero", "a divisor that is not zero", at)

    def _unary(self) -> Typed:
        operator = self.texts[self.index]
        if operator == "(":
            return self._parenthesis()
        if operator not in ("-", "+", "~", "!"):
            return self._literal()
        self.index += 1
        value, unsigned = self._unary()
        if operator == "-":
            # 2**63 is unsigned for its size alone: its negative is the least signed integer.
            return _wrap(-value, unsigned and value != 1 << 63)
        if operator == "~":
            return _wrap(~value, True)  # unsigned, whatever its operand is
        return (value, unsigned) if operator == "+" else (int(not value), False)

    def _parenthesis(self) -> Typed:
        self.index += 1
        cast = self.texts[self.index]
        if cast in (".s64", ".u64"):
            self.index += 1
            self.expect(")", "a cast")
            return _wrap(self._unary()[0], cast == ".u64")
        value = self._conditional()
        self.expect(")", "a constant expression")
        return value

    def _literal(self) -> Typed:
        if self.accept("WARP_SZ"):
            return _WARP_SIZE, False
        text = self.texts[self.index]
        if self.kinds[self.index] != NUMBER:
            self.error("a constant", "an integer expression")
        if lexer.floating(text) is not None:
            self.error("a constant expression", "an integer: reals stand alone")
        try:
            value = lexer.integer(text)
        except ValueError:
            self.error("an integer literal", "digits of its base, within 64 bits")
        self.index += 1
        return value

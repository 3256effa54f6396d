"""PTX text to tokens: three lists, so that the parser's lookahead is one index.

Grammar of tokens: PTX ISA, chapter 4 (Syntax). An opcode with its modifiers, or a special register
with its component, is one word, as no white space stands inside it.
"""

from __future__ import annotations

import math
import re
import struct
from bisect import bisect_right
from typing import NoReturn

from hopwell.errors import PtxSyntaxError
from hopwell.ptx.nodes import Location

WORD, NUMBER, DIRECTIVE, STRING, PUNCTUATION, END = range(1, 7)

# One group for each kind, in the order of their numbers: a match's lastindex is its kind.
_TOKEN = re.compile(
    r"""
    ( (?:[A-Za-z_$][\w$]*|%[\w$]+)(?:(?:\.|::)[\w$]+)* )
  | ( (?: 0[fF][0-9a-fA-F]{8} | 0[dD][0-9a-fA-F]{16} | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U?
        | (?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U? ) (?![\w$.]) )
  | ( \.[A-Za-z_][\w$]*(?:::[\w$]+)* )
  | ( "[^"\n]*" )
  | ( <<|>>|<=|>=|==|!=|&&|\|\||/(?!\*)|[][{}(),;:@!|+\-*%&^~<>=?] )
    """,
    re.VERBOSE | re.ASCII,
)
_DECIMAL = re.compile(r"[+-]?(?=.*[.eE])[\d.]+(?:[eE][+-]?\d+)?", re.ASCII)
#: Comments that LLVM puts around what a program wrote as assembly.
_INLINE = re.compile(r"//[ ](?:begin|end)[ ]inline[ ]asm\b")
_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)


class Tokens:
    """The tokens of a text: ``kinds[i]``, ``texts[i]``, ``starts[i]`` (offset), one END last."""

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename
        self.kinds: list[int] = []
        self.texts: list[str] = []
        self.starts: list[int] = []
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]
        self._inline = [found.start() for found in _INLINE.finditer(text)]
        self._scan()

    def _scan(self) -> None:
        kinds, texts, starts = self.kinds.append, self.texts.append, self.starts.append
        text, token, space = self.text, _TOKEN.match, _SPACE.match
        position = space(text).end()  # type: ignore[union-attr]  # it matches the empty string
        while (found := token(text, position)) is not None:
            kinds(found.lastindex)  # type: ignore[arg-type]  # every alternative is a group
            texts(found.group())
            starts(position)
            position = space(text, found.end()).end()  # type: ignore[union-attr]
        if position < len(text):
            self.starts.append(position)
            self._refuse(position)
        kinds(END)
        texts("")
        starts(position)

    def _refuse(self, position: int) -> NoReturn:
        rest = self.text[position:]
        if rest.startswith("/*"):
            what, expected = "a comment does not end", "*/"
        elif rest.startswith('"'):
            what, expected = "a string does not end on its line", '"'
        elif "0" <= rest[0] <= "9":
            what, expected = "a malformed number", "an integer or floating-point literal"
        else:
            what, expected = "a character that PTX does not know", "a token"
        word = rest.split(maxsplit=1)[0][:40]
        self.error(what, len(self.starts) - 1, expected=expected, actual=repr(word))

    def location(self, index: int) -> Location:
        """Where a token starts."""
        start = self.starts[index]
        line = bisect_right(self._lines, start)
        return Location(self.filename, line, start - self._lines[line - 1] + 1)

    def inline(self, index: int) -> bool:
        """Whether a token stands between ``// begin inline asm`` and ``// end inline asm``."""
        return bisect_right(self._inline, self.starts[index]) % 2 == 1

    def error(
        self, what: str, index: int, *, expected: object, actual: object | None = None
    ) -> NoReturn:
        """Raises PtxSyntaxError at a token; ``actual`` is the token unless given."""
        at = self.location(index)
        if actual is None:
            actual = repr(self.texts[index]) if self.texts[index] else "the end of the text"
        begin = self._lines[at.line - 1]
        line = self.text[begin:].split("\n", 1)[0].rstrip()
        raise PtxSyntaxError(
            what,
            expected=expected,
            actual=actual,
            file=at.file,
            line=at.line,
            column=at.column,
            text=line,
        )


def integer(text: str) -> tuple[int, bool]:
    """Value of an integer literal, and whether it is unsigned (PTX ISA 4.5.1).

    Raises ValueError where 64 bits do not hold it, or an octal one has a digit 8.
    """
    digits = text[:-1] if text.endswith("U") else text
    octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
    value = int(digits, 8) if octal else int(digits, 0)
    if value >> 64:
        raise ValueError(f"{text} needs more than 64 bits")
    return value, text.endswith("U") or value >> 63 != 0


def floating(text: str) -> tuple[float, int, int] | None:
    """Value, encoding and width in bits of a floating-point literal (PTX ISA 4.5.2).

    None where the literal is none: an integer, or an encoding with a sign.
    """
    prefix = text[:2].lower()
    if prefix == "0f":
        return _decode(int(text[2:], 16), 32)
    if prefix == "0d":
        return _decode(int(text[2:], 16), 64)
    if prefix not in ("0x", "0b") and _DECIMAL.fullmatch(text):
        value = float(text)
        return value, int.from_bytes(struct.pack(">d", value), "big"), 64
    return None


def _decode(bits: int, width: int) -> tuple[float, int, int]:
    (value,) = struct.unpack(">f" if width == 32 else ">d", bits.to_bytes(width // 8, "big"))
    return (math.nan if math.isnan(value) else value), bits, width

"""Literals and constant expressions: their values, and what is refused."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopwell.ptx import PtxSyntaxError, parse
from hopwell.ptx.lexer import Tokens
from hopwell.ptx.nodes import Immediate, Initializer

HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def value_of(expression: str) -> Immediate:
    """The first element of an initialiser, as the parser evaluates it."""
    (variable,) = parse(f"{HEADER}.global .u64 a[] = {{{expression}}};").variables
    assert isinstance(variable.initializer, Initializer)
    (element,) = variable.initializer.elements
    assert isinstance(element, Immediate)
    return element


@given(st.integers(0, 2**64 - 1), st.booleans())
def test_integer_literals_of_every_base(value: int, unsigned: bool) -> None:
    suffix = "U" if unsigned else ""
    for text in (f"{value}", f"0x{value:x}", f"0X{value:X}", f"0{value:o}", f"0b{value:b}"):
        found = value_of(text + suffix)
        assert found == Immediate(value)
        assert type(found.value) is int


@given(st.integers(0, 2**32 - 1))
def test_single_precision_literals_keep_their_bits(bits: int) -> None:
    found = value_of(f"0f{bits:08x}")
    assert (found.bits, found.width) == (bits, 32)
    (expected,) = struct.unpack(">f", bits.to_bytes(4, "big"))
    assert found.value == expected or (math.isnan(found.value) and math.isnan(expected))
    assert found == value_of(f"0F{bits:08X}")


@given(st.integers(0, 2**64 - 1))
def test_double_precision_literals_keep_their_bits(bits: int) -> None:
    found = value_of(f"0d{bits:016x}")
    assert (found.bits, found.width) == (bits, 64)
    assert found == value_of(f"0D{bits:016X}")


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["e", "E"]))
def test_decimal_reals_are_doubles(value: float, exponent: str) -> None:
    text = f"{value:.17e}".replace("e", exponent)
    found = value_of(text)
    assert found.value == value
    assert found.width == 64
    assert found.bits == struct.unpack(">Q", struct.pack(">d", value))[0]


def test_zeros_of_both_signs_and_kinds_differ() -> None:
    zeros = [value_of(text) for text in ("0", "0.0", "-0.0", "0f00000000", "0f80000000")]
    assert len(set(zeros)) == 5
    assert value_of("0f7FC00000") == value_of("0f7fc00000") != value_of("0f7FC00001")


# Each of these ptxas 13.0 evaluates to the same 64 bits, in an array of .u64.
EXPRESSIONS = [
    ("(1 << 4) | 3", 19),
    ("1 + 2 * 3 - 8 / 3", 5),
    ("7 / -2", -3),
    ("-7 / 2", -3),
    ("-7 % 10", (2**64 - 7) % 10),
    ("2 - 3U", 2**64 - 1),
    ("-1 > 0U", 1),
    ("-1 > 0", 0),
    ("-1 >> 1", -1),
    ("~0", 2**64 - 1),
    ("~5 >> 63", 1),
    ("(.s64)(~5) >> 63", -1),
    ("(.u64)(-1) >> 63", 1),
    ("1 << 65", 2),
    ("!3 + !0", 1),
    ("1 == 1 && 2 != 2 || 1", 1),
    ("6 & 3 ^ 1 | 8", 11),
    ("74 < (5 ? -8 : 3U)", 0),
    ("0 ? 1 : 0 ? 2 : 3", 3),
    ("WARP_SZ * 2", 64),
    ("-9223372036854775808", -(2**63)),
    ("0x7FFFFFFFFFFFFFFF + 1", -(2**63)),
    ("- - 3", 3),
    ("017", 15),
]


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS)
def test_constant_expressions(expression: str, value: int) -> None:
    assert value_of(expression).value == value


REFUSED = [
    ("08", "an integer literal"),
    ("0x1FFFFFFFFFFFFFFFF", "an integer literal"),
    ("0f3F80", "a malformed number"),
    ("12abc", "a malformed number"),
    ("0xAu", "a malformed number"),
    ("1 / 0", "divided by zero"),
    ("1 % (2 - 2)", "divided by zero"),
    ("-0f3F800000", "reals stand alone"),
    ("1 + 2.0", "reals stand alone"),
    ("(1", "a constant expression"),
    ("1 +", "a constant"),
    ("1 ? 2", "a conditional expression"),
    ("#", "a character"),
    ("/* never", "a comment does not end"),
    ('"never', "a string does not end"),
]


@pytest.mark.parametrize(("expression", "message"), REFUSED)
def test_malformed_constants_are_refused(expression: str, message: str) -> None:
    with pytest.raises(PtxSyntaxError, match=message) as caught:
        value_of(expression)
    assert caught.value.line == 4


@given(st.text(alphabet="0123456789abcdefUuxX.eE+-()<>?:|&%$_ \t\n/*\"'", max_size=40))
def test_any_text_is_tokens_or_a_syntax_error(text: str) -> None:
    try:
        tokens = Tokens(text, "text")
    except PtxSyntaxError:
        return
    # Nothing but space and comments lies between two tokens.
    for token, start in zip(tokens.texts, tokens.starts, strict=True):
        assert text[start : start + len(token)] == token


def test_columns_and_lines_count_from_one() -> None:
    tokens = Tokens("a // comment\n\t/* two\nlines */ b.c::d", "name")
    assert tokens.texts == ["a", "b.c::d", ""]
    assert str(tokens.location(0)) == "name:1:1"
    assert str(tokens.location(1)) == "name:3:10"

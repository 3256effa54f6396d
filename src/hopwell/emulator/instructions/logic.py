"""Logic, shifts and byte permutation. PTX ISA 9.7.8 and 9.7.9.7 (prmt)."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hopwell.emulator.instructions.integer import same
from hopwell.emulator.instructions.modifiers import BITS, Modifiers, typed
from hopwell.emulator.numerics import integers
from hopwell.emulator.numerics.bits import Array
from hopwell.emulator.registry import Compute
from hopwell.ptx.nodes import Immediate, Pair

_BINARY: Final = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def _register_binary(name: str, function: Callable[..., Array]) -> None:
    @typed(name, ("pred", *BITS))
    def binary(m: Modifiers) -> Compute:
        """d = a op b, bit by bit."""
        return same(function, m.type, 2)


for _name, _function in _BINARY.items():
    _register_binary(_name, _function)


@typed("not", ("pred", *BITS))
def complement(m: Modifiers) -> Compute:
    """d = ~a."""
    return same(np.invert, m.type, 1)


@typed("cnot", BITS)
def cnot(m: Modifiers) -> Compute:
    """d = 1 where a is 0, else 0."""
    return same(lambda a: (a == 0).astype(a.dtype), m.type, 1)


_A, _B, _C = 0xF0, 0xCC, 0xAA

_TWO_STEPS: Final[dict[int, Callable[..., Array]]] = {
    _A & _B & _C: lambda a, b, c: a & b & c,
    _A | _B | _C: lambda a, b, c: a | b | c,
    _A ^ _B ^ _C: lambda a, b, c: a ^ b ^ c,
    (_A & _B) | _C: lambda a, b, c: (a & b) | c,
    (_A | _B) & _C: lambda a, b, c: (a | b) & c,
    (_A & _B) ^ _C: lambda a, b, c: (a & b) ^ c,
    (_A ^ _B) & _C: lambda a, b, c: (a ^ b) & c,
    (_A ^ _B) | _C: lambda a, b, c: (a ^ b) | c,
}
"""The functions that compilers make most, by their table."""


def _by_table(table: int) -> Callable[[Array, Array, Array], Array]:
    """Bit by bit: bit 4a + 2b + c of ``table``."""
    if table in _TWO_STEPS:
        return _TWO_STEPS[table]

    def apply(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros_like(a)
        for index in range(8):
            if table >> index & 1:
                term = (a if index & 4 else ~a) & (b if index & 2 else ~b)
                result |= term & (c if index & 1 else ~c)
        return result

    return apply


@typed("lop3", ("b32",))
def lop3(m: Modifiers) -> Compute:
    """d = any function of three bits, given by its table immLut.

    With .and or .or, and a predicate q as the last source: the second destination is
    (d != 0) op q. PTX ISA 9.7.8.6.
    """
    table = m.node.operands[4]
    if not isinstance(table, Immediate):
        raise m.unsupported("the table has to be a constant")
    function = _by_table(int(table.value))
    sources = ("b32", "b32", "b32", "u32")
    boolean = m.choice("and", "or", default="")
    if not boolean:
        return Compute(lambda a, b, c, _: function(a, b, c), sources, ("b32",))
    combine = _BINARY[boolean]

    def apply(a: Array, b: Array, c: Array, _: Array, q: Array) -> tuple[Array, Array]:
        result = function(a, b, c)
        return result, combine(result != 0, q)

    if not isinstance(m.node.operands[0], Pair):
        raise m.unsupported("needs two destinations d|p")
    return Compute(apply, (*sources, "pred"), ("b32", "pred"))


@typed("shf", ("b32",))
def shf(m: Modifiers) -> Compute:
    """d = the upper (.l) or lower (.r) half of the 64 bits b:a moved by c.

    .clamp takes c from 32 on as 32, .wrap takes c modulo 32.
    """
    left = m.choice("l", "r") == "l"
    wrap = m.choice("clamp", "wrap") == "wrap"
    half = np.uint64(32)

    def shift(a: Array, b: Array, c: Array) -> Array:
        count = (c & 31 if wrap else np.minimum(c, 32)).astype(np.uint64)
        both = b.astype(np.uint64) << half | a
        return (both << count >> half if left else both >> count).astype(np.uint32)

    return Compute(shift, ("b32", "b32", "u32"), ("b32",))


@typed("shl", BITS)
def shl(m: Modifiers) -> Compute:
    """d = a << b; 0 for b from the width on."""
    # NumPy's shifts give 0, or copies of the sign, for counts from the width on, as PTX does.
    if m.type == "b32":
        return Compute(np.left_shift, ("b32", "u32"), ("b32",))
    return Compute(lambda a, b: a << integers.shift_count(b, a), (m.type, "u32"), (m.type,))


@typed("shr", (*BITS, "u16", "u32", "u64", "s16", "s32", "s64"))
def shr(m: Modifiers) -> Compute:
    """d = a >> b, filled with zeros, or with the sign for signed types; b clamps at the width."""
    if m.type in ("b32", "u32"):
        return Compute(np.right_shift, (m.type, "u32"), (m.type,))
    return Compute(lambda a, b: a >> integers.shift_count(b, a), (m.type, "u32"), (m.type,))


def _selections() -> dict[str, list[list[int]]]:
    """By mode and low two bits of the selector: which byte goes to bytes 0, 1, 2, 3."""
    return {
        "f4e": [[n, n + 1, n + 2, n + 3] for n in range(4)],
        "b4e": [[n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8] for n in range(4)],
        "rc8": [[n] * 4 for n in range(4)],
        "ecl": [[max(i, n) for i in range(4)] for n in range(4)],
        "ecr": [[min(i, n) for i in range(4)] for n in range(4)],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3]] * 2,
    }


_SELECTIONS: Final[dict[str, Any]] = {
    mode: np.array(table, np.intp) for mode, table in _selections().items()
}
_NIBBLES: Final = np.array([[0, 4, 8, 12]], np.uint32)


def _octets(a: Array, b: Array) -> Array:
    """Bytes 0 to 7 of b:a, one row a lane."""
    return np.stack((a, b), axis=1).view(np.uint8)


@typed("prmt", ("b32",))
def prmt(m: Modifiers) -> Compute:
    """d = four of the eight bytes of b:a, chosen by c.

    Plain: a nibble of c for each byte of d, whose top bit asks for copies of the byte's sign.
    Modes f4e, b4e, rc8, ecl, ecr, rc16: the low two bits of c choose the row of a table.
    """
    mode = m.choice(*_SELECTIONS, default="")
    sources = ("b32", "b32", "b32")
    selector = m.node.operands[3]
    if mode:
        rows = _SELECTIONS[mode]

        def by_mode(a: Array, b: Array, c: Array) -> Array:
            chosen = np.take_along_axis(_octets(a, b), rows[c & 3], 1)
            return chosen.view(np.uint32)[:, 0]

        return Compute(by_mode, sources, ("b32",))
    if isinstance(selector, Immediate) and not int(selector.value) & 0x8888:
        columns = np.array([int(selector.value) >> shift & 7 for shift in (0, 4, 8, 12)])

        def fixed(a: Array, b: Array, _: Array) -> Array:
            return np.take(_octets(a, b), columns, 1).view(np.uint32)[:, 0]

        return Compute(fixed, sources, ("b32",))

    def by_nibbles(a: Array, b: Array, c: Array) -> Array:
        nibbles = c[:, None] >> _NIBBLES
        chosen = np.take_along_axis(_octets(a, b), (nibbles & 7).astype(np.intp), 1)
        signs = (chosen.view(np.int8) >> 7).view(np.uint8)
        return np.where(nibbles & 8, signs, chosen).view(np.uint32)[:, 0]

    return Compute(by_nibbles, sources, ("b32",))

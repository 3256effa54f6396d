"""Integer arithmetic. PTX ISA 9.7.1 and 9.7.2 (extended precision)."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hopwell.emulator.instructions.modifiers import BITS, INTEGERS, Modifiers, typed
from hopwell.emulator.numerics import integers
from hopwell.emulator.numerics.bits import Array
from hopwell.emulator.registry import Compute

WIDE: Final = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
EXTENDED: Final = ("u32", "s32", "u64", "s64")
PAIRS: Final = {"u16x2": np.uint16, "s16x2": np.int16}


def same(function: Callable[..., Any], type_name: str, count: int) -> Compute:
    """A computation of ``count`` sources and one result, all of one type."""
    return Compute(function, (type_name,) * count, (type_name,))


def by_halves(function: Callable[..., Array], dtype: Any) -> Callable[..., Array]:
    """``function`` applied to the elements of type ``dtype`` that are packed in each source."""

    def apply(*sources: Array) -> Array:
        result = function(*[source.view(dtype) for source in sources])
        return result.view(sources[0].dtype)

    return apply


def _with_carry(
    m: Modifiers,
    function: Callable[..., tuple[Array, Array]],
    carry_in: bool,
    multiply: Callable[..., Array] | None = None,
) -> Compute:
    """The carry-aware forms of add, sub and mad; a carry that is not asked for is dropped."""
    carry_out = m.flag("cc")
    count = 2 if multiply is None else 3

    def apply(*sources: Array) -> Any:
        carry = sources[count] if carry_in else None
        if multiply is None:
            total, out = function(sources[0], sources[1], carry)
        else:
            total, out = function(multiply(sources[0], sources[1]), sources[2], carry)
        return (total, out) if carry_out else total

    return Compute(apply, (m.type,) * count, (m.type,), carry_in, carry_out)


@typed("add", INTEGERS)
def add(m: Modifiers) -> Compute:
    """d = a + b. .sat (s32) clamps to the type; .cc writes the carry (9.7.2.1)."""
    if m.type in EXTENDED and "cc" in m.node.modifiers:
        return _with_carry(m, integers.add_carrying, carry_in=False)
    if m.type == "s32" and m.flag("sat"):
        return same(integers.add_saturating, m.type, 2)
    return same(np.add, m.type, 2)


@typed("sub", INTEGERS)
def sub(m: Modifiers) -> Compute:
    """d = a - b. .sat (s32) clamps to the type; .cc writes the borrow (9.7.2.3)."""
    if m.type in EXTENDED and "cc" in m.node.modifiers:
        return _with_carry(m, integers.subtract_borrowing, carry_in=False)
    if m.type == "s32" and m.flag("sat"):
        return same(integers.subtract_saturating, m.type, 2)
    return same(np.subtract, m.type, 2)


@typed("addc", EXTENDED)
def addc(m: Modifiers) -> Compute:
    """d = a + b + CC.CF (9.7.2.2)."""
    return _with_carry(m, integers.add_carrying, carry_in=True)


@typed("subc", EXTENDED)
def subc(m: Modifiers) -> Compute:
    """d = a - (b + CC.CF) (9.7.2.4)."""
    return _with_carry(m, integers.subtract_borrowing, carry_in=True)


@typed("add", PAIRS)
def add_pair(m: Modifiers) -> Compute:
    """Each half: d = a + b."""
    return same(by_halves(np.add, PAIRS[m.type]), m.type, 2)


_PRODUCT: Final[dict[str, Callable[..., Array]]] = {
    "lo": np.multiply,
    "hi": integers.multiply_high,
    "wide": integers.multiply_wide,
}


def _part(m: Modifiers) -> str:
    return m.choice("lo", "hi", *(["wide"] if m.type in WIDE else []))


@typed("mul", INTEGERS)
def mul(m: Modifiers) -> Compute:
    """d = the lower (.lo) or upper (.hi) half of a * b, or all of it (.wide)."""
    part = _part(m)
    return Compute(_PRODUCT[part], (m.type, m.type), (WIDE[m.type] if part == "wide" else m.type,))


@typed("mad", INTEGERS)
def mad(m: Modifiers) -> Compute:
    """d = the chosen half of a * b, or all of it, + c. .sat with .hi.s32 clamps the sum."""
    part = _part(m)
    multiply = _PRODUCT[part]
    if part != "wide" and m.type in EXTENDED and "cc" in m.node.modifiers:
        return _with_carry(m, integers.add_carrying, False, multiply)
    result = WIDE[m.type] if part == "wide" else m.type
    add_to: Any = np.add
    if part == "hi" and m.type == "s32" and m.flag("sat"):
        add_to = integers.add_saturating
    return Compute(lambda a, b, c: add_to(multiply(a, b), c), (m.type, m.type, result), (result,))


@typed("madc", EXTENDED)
def madc(m: Modifiers) -> Compute:
    """d = the chosen half of a * b, + c + CC.CF (9.7.2.6)."""
    return _with_carry(m, integers.add_carrying, True, _PRODUCT[m.choice("lo", "hi")])


def _product24(m: Modifiers) -> Callable[[Array, Array], Array]:
    """Bits 0 to 31 (.lo) or 16 to 47 (.hi) of the product of the low 24 bits."""
    shift = 0 if m.choice("lo", "hi") == "lo" else 16
    dtype = np.int32 if m.type == "s32" else np.uint32

    def multiply(a: Array, b: Array) -> Array:
        return (integers.widen(a << 8 >> 8) * integers.widen(b << 8 >> 8) >> shift).astype(dtype)

    return multiply


@typed("mul24", ("u32", "s32"))
def mul24(m: Modifiers) -> Compute:
    """d = the low (.lo) or high (.hi) 32 bits of the 48-bit product of 24-bit numbers."""
    return same(_product24(m), m.type, 2)


@typed("mad24", ("u32", "s32"))
def mad24(m: Modifiers) -> Compute:
    """d = mul24(a, b) + c; .hi.sat.s32 clamps the sum."""
    multiply = _product24(m)
    add_to: Any = integers.add_saturating if m.type == "s32" and m.flag("sat") else np.add
    return same(lambda a, b, c: add_to(multiply(a, b), c), m.type, 3)


@typed("sad", INTEGERS)
def sad(m: Modifiers) -> Compute:
    """d = c + |a - b|, the difference taken without wrapping before its sign is known."""
    return same(lambda a, b, c: c + (np.maximum(a, b) - np.minimum(a, b)), m.type, 3)


@typed("div", INTEGERS)
def div(m: Modifiers) -> Compute:
    """d = a / b rounded towards zero; all ones for b = 0, which PTX leaves open."""
    return same(integers.divide, m.type, 2)


@typed("rem", INTEGERS)
def rem(m: Modifiers) -> Compute:
    """d = a - b * (a / b), with the sign of a; all ones for b = 0, which PTX leaves open."""
    return same(integers.remainder, m.type, 2)


@typed("abs", ("s16", "s32", "s64"))
def absolute(m: Modifiers) -> Compute:
    """d = |a|; the lowest number stays."""
    return same(np.abs, m.type, 1)


@typed("neg", ("s16", "s32", "s64"))
def neg(m: Modifiers) -> Compute:
    """d = -a; the lowest number stays."""
    return same(np.negative, m.type, 1)


def _extreme(m: Modifiers, function: Callable[..., Array]) -> Callable[..., Array]:
    if m.type in ("s32", "s16x2") and m.flag("relu"):
        return lambda a, b: np.maximum(function(a, b), 0)
    return function


def _register_extremes(name: str, function: Callable[..., Array]) -> None:
    @typed(name, INTEGERS)
    def extreme(m: Modifiers) -> Compute:
        """d = min(a, b) or max(a, b); .relu (s32) raises negative results to 0."""
        return same(_extreme(m, function), m.type, 2)

    @typed(name, PAIRS)
    def extreme_pair(m: Modifiers) -> Compute:
        """min or max of each half; .relu (s16x2) raises negative results to 0."""
        return same(by_halves(_extreme(m, function), PAIRS[m.type]), m.type, 2)


_register_extremes("min", np.minimum)
_register_extremes("max", np.maximum)


@typed("popc", ("b32", "b64"))
def popc(m: Modifiers) -> Compute:
    """d = how many bits of a are set."""
    return Compute(integers.population, (m.type,), ("u32",))


@typed("clz", ("b32", "b64"))
def clz(m: Modifiers) -> Compute:
    """d = how many zeros precede the highest set bit of a; the width for a = 0."""
    width = np.uint32(m.type[1:])
    return Compute(lambda a: width - integers.bit_length(a), (m.type,), ("u32",))


@typed("bfind", EXTENDED)
def bfind(m: Modifiers) -> Compute:
    """d = the highest bit of a that is not a sign bit, all ones if there is none.

    .shiftamt: by how many places a has to move left for that bit to be the highest.
    """
    one, none = np.uint32(1), np.uint32(0xFFFFFFFF)
    width = np.uint32(m.type[1:])
    shift_amount = m.flag("shiftamt")

    def find(a: Array) -> Array:
        # A negative number's highest zero is where its complement has its highest one.
        magnitude = a if a.dtype.kind == "u" else integers.unsigned(np.where(a < 0, ~a, a))
        length = integers.bit_length(magnitude)
        if shift_amount:
            return np.where(length == 0, none, width - length)
        return length - one

    return Compute(find, (m.type,), ("u32",))


@typed("fns", ("b32",))
def fns(m: Modifiers) -> Compute:
    """d = the position of the offset-th set bit of the mask from base; all ones for none."""
    return Compute(integers.nth_set, ("b32", "u32", "s32"), ("b32",))


@typed("brev", ("b32", "b64"))
def brev(m: Modifiers) -> Compute:
    """d = the bits of a in the opposite order."""
    return same(integers.reverse, m.type, 1)


@typed("bfe", EXTENDED)
def bfe(m: Modifiers) -> Compute:
    """d = c bits of a from bit b on, extended by its top bit for signed types."""
    return Compute(integers.extract_field, (m.type, "u32", "u32"), (m.type,))


@typed("bfi", BITS[1:])
def bfi(m: Modifiers) -> Compute:
    """f = b with the low d bits of a at bit c."""
    return Compute(integers.insert_field, (m.type, m.type, "u32", "u32"), (m.type,))


@typed("bmsk", ("b32",))
def bmsk(m: Modifiers) -> Compute:
    """d = b ones from bit a on; .clamp cuts at 32, .wrap takes a and b modulo 32."""
    wrap = m.choice("clamp", "wrap") == "wrap"

    def mask(a: Array, b: Array) -> Array:
        start, width = (a & 31, b & 31) if wrap else (np.minimum(a, 32), np.minimum(b, 32))
        ones = (np.uint64(1) << width.astype(np.uint64)) - np.uint64(1)
        return (ones << start.astype(np.uint64)).astype(np.uint32)

    return same(mask, "b32", 2)


@typed("szext", ("u32", "s32"))
def szext(m: Modifiers) -> Compute:
    """d = the low b bits of a, extended by zeros (u32) or by their sign (s32).

    .clamp takes b from 32 on as 32, .wrap takes b modulo 32.
    """
    wrap = m.choice("clamp", "wrap") == "wrap"

    def extend(a: Array, b: Array) -> Array:
        width = b & 31 if wrap else np.minimum(b, 32)
        rest = (32 - width).astype(a.dtype)
        return a << rest >> rest

    return Compute(extend, (m.type, "u32"), (m.type,))


_BYTES: Final = {"u32": np.uint8, "s32": np.int8}


def _dot_types(m: Modifiers) -> tuple[str, str, str]:
    """The types of a, b and d. The second type may be the same word as the first."""
    second = m.choice("u32", "s32")
    return m.type, second, "u32" if m.type == second == "u32" else "s32"


@typed("dp4a", ("u32", "s32"))
def dp4a(m: Modifiers) -> Compute:
    """d = c + the sum of the products of the four bytes of a and b."""
    first, second, result = _dot_types(m)

    def dot(a: Array, b: Array, c: Array) -> Array:
        x = a.view(_BYTES[first]).astype(np.int64) * b.view(_BYTES[second])
        return (x.reshape(-1, 4).sum(1) + c).astype(c.dtype)

    return Compute(dot, (first, second, result), (result,))


@typed("dp2a", ("u32", "s32"))
def dp2a(m: Modifiers) -> Compute:
    """d = c + the two halves of a times the two lower (.lo) or upper (.hi) bytes of b."""
    first, second, result = _dot_types(m)
    start = 0 if m.choice("lo", "hi") == "lo" else 2
    halves = np.uint16 if first == "u32" else np.int16

    def dot(a: Array, b: Array, c: Array) -> Array:
        octets = b.view(_BYTES[second]).reshape(-1, 4)[:, start : start + 2]
        x = a.view(halves).reshape(-1, 2).astype(np.int64) * octets
        return (x.sum(1) + c).astype(c.dtype)

    return Compute(dot, (first, second, result), (result,))

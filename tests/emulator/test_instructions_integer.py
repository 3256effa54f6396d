"""Integer instructions against Python's integers, lane by lane."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.emulator.decoding import decode, run

from hopwell.emulator.registry import UnsupportedInstruction
from hopwell.emulator.types import TYPES

INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
EXTENDED = ("u32", "s32", "u64", "s64")


def width(type_name: str) -> int:
    return TYPES[type_name].bits


def wrap(x: int, type_name: str) -> int:
    """``x`` modulo the type."""
    bits = width(type_name)
    x &= (1 << bits) - 1
    return x - (1 << bits) if TYPES[type_name].signed and x >> (bits - 1) else x


def clamp(x: int, type_name: str) -> int:
    bits = width(type_name)
    low = -(1 << bits - 1) if type_name[0] == "s" else 0
    return max(low, min(low + (1 << bits) - 1, x))


def some(type_name: str, seed: int, count: int = 96) -> Any:
    """Values of the type: its ends, small numbers and random ones of every length."""
    bits = width(type_name)
    rng = np.random.default_rng(seed)
    ends = [0, 1, 2, 3, 1 << bits - 1, (1 << bits - 1) - 1, (1 << bits) - 1, (1 << bits) - 2]
    lengths = rng.integers(0, bits + 1, count - len(ends))
    random = [int.from_bytes(rng.bytes(8), "little") & ((1 << int(n)) - 1) for n in lengths]
    values = np.array([wrap(x, type_name) for x in ends + random], TYPES[type_name].dtype)
    rng.shuffle(values)
    return values


def check(
    opcode: str,
    sources: tuple[str, ...],
    expected: Callable[..., int],
    operands: str = "d a b",
    values: dict[int, Any] | None = None,
) -> None:
    """Every lane of the instruction gives what ``expected`` gives of its sources."""
    arrays = [some(name, seed) for seed, name in enumerate(sources)]
    for position, array in (values or {}).items():
        arrays[position] = array
    compute = decode(opcode, operands)
    assert compute.sources == sources
    found = run(opcode, *arrays, operands=operands).tolist()
    for lane, result in enumerate(found):
        lanes = [int(array[lane]) for array in arrays]
        assert result == wrap(expected(*lanes), compute.results[0]), (opcode, lanes, result)


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("t", INTEGERS)
def test_arithmetic(t: str) -> None:
    check(f"add.{t}", (t, t), lambda a, b: a + b)
    check(f"sub.{t}", (t, t), lambda a, b: a - b)
    check(f"mul.lo.{t}", (t, t), lambda a, b: a * b)
    check(f"mul.hi.{t}", (t, t), lambda a, b: a * b >> width(t))
    check(f"mad.lo.{t}", (t, t, t), lambda a, b, c: a * b + c)
    check(f"mad.hi.{t}", (t, t, t), lambda a, b, c: (a * b >> width(t)) + c)
    check(f"sad.{t}", (t, t, t), lambda a, b, c: c + abs(a - b))
    check(f"div.{t}", (t, t), quotient)
    check(f"rem.{t}", (t, t), lambda a, b: a - b * quotient(a, b) if b else -1)
    check(f"min.{t}", (t, t), min)
    check(f"max.{t}", (t, t), max)


@pytest.mark.parametrize("t", ["s16", "s32", "s64"])
def test_signs(t: str) -> None:
    check(f"abs.{t}", (t,), abs)
    check(f"neg.{t}", (t,), lambda a: -a)


@pytest.mark.parametrize(
    ("t", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")]
)
def test_wide(t: str, wide: str) -> None:
    check(f"mul.wide.{t}", (t, t), lambda a, b: a * b)
    check(f"mad.wide.{t}", (t, t, wide), lambda a, b, c: a * b + c)


def test_saturation_and_rectification() -> None:
    pair = ("s32", "s32")
    check("add.sat.s32", pair, lambda a, b: clamp(a + b, "s32"))
    check("sub.sat.s32", pair, lambda a, b: clamp(a - b, "s32"))
    check("mad.hi.sat.s32", ("s32",) * 3, lambda a, b, c: clamp((a * b >> 32) + c, "s32"))
    check("min.relu.s32", pair, lambda a, b: max(min(a, b), 0))
    check("max.relu.s32", pair, lambda a, b: max(a, b, 0))


@pytest.mark.parametrize("t", ["u32", "s32"])
def test_24_bits(t: str) -> None:
    def product(a: int, b: int) -> int:
        return cut(a) * cut(b)

    def cut(x: int) -> int:
        x &= 0xFFFFFF
        return x - (1 << 24) if t == "s32" and x >> 23 else x

    check(f"mul24.lo.{t}", (t, t), product)
    check(f"mul24.hi.{t}", (t, t), lambda a, b: product(a, b) >> 16)
    check(f"mad24.lo.{t}", (t, t, t), lambda a, b, c: product(a, b) + c)
    check(f"mad24.hi.{t}", (t, t, t), lambda a, b, c: (product(a, b) >> 16) + c)
    if t == "s32":
        check(
            "mad24.hi.sat.s32",
            ("s32",) * 3,
            lambda a, b, c: clamp(wrap(product(a, b) >> 16, "s32") + c, "s32"),
        )


def halves(x: int, t: str) -> list[int]:
    return [wrap(x & 0xFFFF, t), wrap(x >> 16, t)]


def join(parts: list[int]) -> int:
    return (parts[0] & 0xFFFF) | (parts[1] & 0xFFFF) << 16


@pytest.mark.parametrize("t", ["u16", "s16"])
def test_pairs(t: str) -> None:
    def by_halves(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
        return lambda a, b: join(
            [function(x, y) for x, y in zip(halves(a, t), halves(b, t), strict=True)]
        )

    pair = (f"{t}x2", f"{t}x2")
    check(f"add.{t}x2", pair, by_halves(lambda x, y: x + y))
    check(f"min.{t}x2", pair, by_halves(min))
    check(f"max.{t}x2", pair, by_halves(max))
    if t == "s16":
        check("min.relu.s16x2", pair, by_halves(lambda x, y: max(min(x, y), 0)))
        check("max.relu.s16x2", pair, by_halves(lambda x, y: max(x, y, 0)))


@pytest.mark.parametrize("t", EXTENDED)
def test_extended_precision(t: str) -> None:
    a, b, c = (some(t, seed) for seed in range(3))
    carry = np.arange(len(a)) % 2 == 1
    modulus = 1 << width(t)
    u, v, w = ([int(x) % modulus for x in array] for array in (a, b, c))

    def agree(opcode: str, sources: tuple[Any, ...], exact: list[int], reads: bool) -> None:
        total, out = run(opcode, *sources, carry=carry)
        assert [int(x) % modulus for x in total] == [x % modulus for x in exact], opcode
        assert out.tolist() == [not 0 <= x < modulus for x in exact], opcode
        if reads:
            dropped = run(opcode.replace(".cc", ""), *sources, carry=carry)
            assert dropped.tolist() == total.tolist()

    lanes = range(len(u))
    agree(f"add.cc.{t}", (a, b), [u[i] + v[i] for i in lanes], False)
    agree(f"addc.cc.{t}", (a, b), [u[i] + v[i] + int(carry[i]) for i in lanes], True)
    agree(f"sub.cc.{t}", (a, b), [u[i] - v[i] for i in lanes], False)
    agree(f"subc.cc.{t}", (a, b), [u[i] - v[i] - int(carry[i]) for i in lanes], True)
    for part, shift in (("lo", 0), ("hi", width(t))):
        product = [(int(a[i]) * int(b[i]) >> shift) % modulus for i in lanes]
        agree(f"mad.{part}.cc.{t}", (a, b, c), [product[i] + w[i] for i in lanes], False)
        exact = [product[i] + w[i] + int(carry[i]) for i in lanes]
        agree(f"madc.{part}.cc.{t}", (a, b, c), exact, True)


@pytest.mark.parametrize("bits", [32, 64])
def test_bits(bits: int) -> None:
    t = f"b{bits}"
    check(f"popc.{t}", (t,), lambda a: a.bit_count())
    check(f"clz.{t}", (t,), lambda a: bits - a.bit_length())
    check(f"brev.{t}", (t,), lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    for kind in "us":
        s = f"{kind}{bits}"
        check(f"bfind.{s}", (s,), lambda a: (~a if a < 0 else a).bit_length() - 1)
        check(
            f"bfind.shiftamt.{s}",
            (s,),
            lambda a: bits - n if (n := (~a if a < 0 else a).bit_length()) else -1,
        )


@pytest.mark.parametrize("t", EXTENDED)
def test_extract_field(t: str) -> None:
    top = width(t) - 1

    def extract(a: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        if length == 0:
            return 0
        sign = a >> min(position + length - 1, top) & 1 if t[0] == "s" else 0
        bits = [
            a >> position + i & 1 if i < length and position + i <= top else sign
            for i in range(top + 1)
        ]
        return sum(bit << i for i, bit in enumerate(bits))

    rng = np.random.default_rng(0)
    small = {1: rng.integers(0, 70, 96), 2: rng.integers(0, 70, 96)}
    check(f"bfe.{t}", (t, "u32", "u32"), extract, values=small)
    check(f"bfe.{t}", (t, "u32", "u32"), extract)


@pytest.mark.parametrize("t", ["b32", "b64"])
def test_insert_field(t: str) -> None:
    def insert(a: int, b: int, position: int, length: int) -> int:
        for i in range(length & 255):
            if (position & 255) + i < width(t):
                b &= ~(1 << (position & 255) + i)
                b |= (a >> i & 1) << (position & 255) + i
        return b

    rng = np.random.default_rng(0)
    small = {2: rng.integers(0, 70, 96), 3: rng.integers(0, 70, 96)}
    check(f"bfi.{t}", (t, t, "u32", "u32"), insert, values=small)
    check(f"bfi.{t}", (t, t, "u32", "u32"), insert)


def test_masks_and_extension() -> None:
    rng = np.random.default_rng(0)
    small = {0: rng.integers(0, 40, 96), 1: rng.integers(0, 40, 96)}
    check(
        "bmsk.clamp.b32",
        ("b32", "b32"),
        lambda a, b: (1 << min(b, 32)) - 1 << min(a, 32),
        values=small,
    )
    check("bmsk.wrap.b32", ("b32", "b32"), lambda a, b: (1 << b % 32) - 1 << a % 32, values=small)

    def extended(a: int, n: int, signed: bool) -> int:
        x = a & (1 << n) - 1
        return x - (1 << n) if signed and n and x >> n - 1 else x

    for t in ("u32", "s32"):
        signed = t == "s32"
        sources, values = (t, "u32"), {1: small[1]}
        check(
            f"szext.clamp.{t}",
            sources,
            lambda a, b, s=signed: extended(a, min(b, 32), s),
            values=values,
        )
        check(
            f"szext.wrap.{t}", sources, lambda a, b, s=signed: extended(a, b % 32, s), values=values
        )


def test_nth_set_bit() -> None:
    mask = [0b10110, 0b10110, 0b10110, 0b10110, 0b10110, 0b10110, 0]
    base = [0, 1, 2, 4, 3, 1, 0]
    offset = [1, 2, -2, -2, 0, 0, 1]
    found = run("fns.b32", mask, base, offset, operands="d a b c").tolist()
    assert found == [1, 2, 1, 2, 0xFFFFFFFF, 1, 0xFFFFFFFF]


@pytest.mark.parametrize("first", ["u32", "s32"])
@pytest.mark.parametrize("second", ["u32", "s32"])
def test_dot_products(first: str, second: str) -> None:
    result = "u32" if first == second == "u32" else "s32"

    def parts(x: int, bits: int, t: str) -> list[int]:
        return [wrap(x >> bits * i, f"{t[0]}{bits}") for i in range(32 // bits)]

    def dp4a(a: int, b: int, c: int) -> int:
        return c + sum(x * y for x, y in zip(parts(a, 8, first), parts(b, 8, second), strict=True))

    def dp2a(start: int) -> Callable[[int, int, int], int]:
        return lambda a, b, c: (
            c
            + sum(
                x * y
                for x, y in zip(
                    parts(a, 16, first), parts(b, 8, second)[start : start + 2], strict=True
                )
            )
        )

    sources = (first, second, result)
    check(f"dp4a.{first}.{second}", sources, dp4a)
    check(f"dp2a.lo.{first}.{second}", sources, dp2a(0))
    check(f"dp2a.hi.{first}.{second}", sources, dp2a(2))


@pytest.mark.parametrize(
    "opcode",
    ["add.sat.u32", "add.rn.s32", "mul.s32", "mul.wide.s64", "add.cc.u16", "min.relu.u32",
     "abs.u32",
     "bfind.b32", "popc.u32", "dp4a.u32", "add.foo.s32", "add", "mul.lo.hi.s32", "addc.sat.s32"],
)  # fmt: skip
def test_unknown_forms(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode)

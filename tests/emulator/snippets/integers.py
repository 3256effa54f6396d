"""Integer and logic instructions: bit for bit, over edges and random operands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import COUNT, Array, elementwise
from tests.emulator.snippets.snippet import Snippet

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")


def _nonzero_divisors(type_: str) -> list[Array]:
    """Operands of a division: no zero divisor (unspecified), no overflow (least by -1)."""
    dividend, divisor = inputs.operands((type_, type_), COUNT)
    divisor = np.where(divisor == 0, np.array(3, divisor.dtype), divisor)
    if type_.startswith("s"):
        least = np.array(1 << inputs.bits_of(type_) - 1, dividend.dtype)
        overflow = (dividend == least) & (divisor == np.array(-1).astype(divisor.dtype))
        divisor = np.where(overflow, np.array(3, divisor.dtype), divisor)
    return [dividend, divisor]


def _positions(type_: str, width: int, last: int) -> list[Array]:
    """A value, and position and length operands below ``width``, inside the value and beyond it.

    The ISA restricts those of bfe and bfi to 0..255.
    """
    first = inputs.column(type_, 5, COUNT)
    return [first, *(inputs.below(40 + i, COUNT, width) for i in range(last))]


def _two_and_positions(type_: str) -> list[Array]:
    return [inputs.column(type_, 3, COUNT), *_positions(type_, 70, 2)]


def arithmetic() -> Iterator[Snippet]:
    for t in INTEGERS:
        yield elementwise(f"integer/add.{t}", [f"add.{t}", f"sub.{t}"], (t, t), t)
        yield elementwise(f"integer/mul.{t}", [f"mul.lo.{t}", f"mul.hi.{t}"], (t, t), t)
        yield elementwise(f"integer/mad.{t}", [f"mad.lo.{t}", f"mad.hi.{t}"], (t, t, t), t)
        yield elementwise(f"integer/sad.{t}", [f"sad.{t}"], (t, t, t), t)
        yield elementwise(f"integer/min.{t}", [f"min.{t}", f"max.{t}"], (t, t), t)
        yield elementwise(
            f"integer/div.{t}",
            [f"div.{t}", f"rem.{t}"],
            (t, t),
            t,
            columns=partial(_nonzero_divisors, t),
        )
    for t in ("s16", "s32", "s64"):
        yield elementwise(f"integer/abs.{t}", [f"abs.{t}", f"neg.{t}"], (t,), t)
    for t, wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")):
        yield elementwise(f"integer/mul.wide.{t}", [f"mul.wide.{t}"], (t, t), wide)
        yield elementwise(f"integer/mad.wide.{t}", [f"mad.wide.{t}"], (t, t, wide), wide)
    yield elementwise("integer/add.sat", ["add.sat.s32", "sub.sat.s32"], ("s32", "s32"), "s32")
    yield elementwise("integer/mad.hi.sat", ["mad.hi.sat.s32"], ("s32", "s32", "s32"), "s32")
    yield elementwise("integer/relu", ["min.relu.s32", "max.relu.s32"], ("s32", "s32"), "s32")
    for t in ("u32", "s32"):
        yield elementwise(f"integer/mul24.{t}", [f"mul24.lo.{t}", f"mul24.hi.{t}"], (t, t), t)
        yield elementwise(f"integer/mad24.{t}", [f"mad24.lo.{t}", f"mad24.hi.{t}"], (t, t, t), t)
    yield elementwise(
        "integer/packed",
        ["add.u16x2", "add.s16x2", "min.u16x2", "min.s16x2", "max.u16x2", "max.s16x2"]
        + ["min.relu.s16x2", "max.relu.s16x2"],
        ("b32", "b32"),
        "b32",
    )
    for mode in ("u32.u32", "u32.s32", "s32.u32", "s32.s32"):
        result = "u32" if mode == "u32.u32" else "s32"
        yield elementwise(
            f"integer/dp4a.{mode}",
            [f"dp4a.{mode}", f"dp2a.lo.{mode}", f"dp2a.hi.{mode}"],
            ("b32", "b32", result),
            result,
        )


def extended_precision() -> Iterator[Snippet]:
    """The condition code: sums, differences and products of limbs, and the carry that is left."""
    # {a} and {b} are 64-bit; their halves are the limbs.
    split = "mov.b64 {%r30, %r31}, {a}; mov.b64 {%r32, %r33}, {b}; "
    join = "mov.b64 {d}, {%r34, %r35};"
    chains = {
        "add": "add.cc.u32 %r34, %r30, %r32; addc.cc.u32 %r35, %r31, %r33; addc.u32 %r36, 0, 0; "
        "xor.b32 %r34, %r34, %r36; ",
        "add signed": "add.cc.s32 %r34, %r30, %r32; addc.s32 %r35, %r31, %r33; ",
        "sub": "sub.cc.u32 %r34, %r30, %r32; subc.cc.u32 %r35, %r31, %r33; subc.u32 %r36, 0, 0; "
        "xor.b32 %r34, %r34, %r36; ",
        "mad": "mad.lo.cc.u32 %r34, %r30, %r32, %r31; madc.hi.cc.u32 %r35, %r30, %r32, %r33; "
        "madc.lo.u32 %r36, %r31, %r33, 0; xor.b32 %r35, %r35, %r36; ",
        "mad signed": "mad.lo.cc.s32 %r34, %r30, %r32, %r31; madc.hi.s32 %r35, %r30, %r32, %r33; ",
        "mad high": "mad.hi.cc.u32 %r34, %r30, %r32, %r31; addc.u32 %r35, %r33, 0; ",
    }
    yield elementwise(
        "integer/condition code",
        [split + chain + join for chain in chains.values()],
        ("b64", "b64"),
        "b64",
    )
    yield elementwise(
        "integer/condition code 64",
        [
            "add.cc.u64 %d30, {a}, {b}; addc.u64 {d}, {a}, 0;",
            "sub.cc.u64 %d30, {a}, {b}; subc.u64 {d}, {b}, 0;",
            "add.cc.s64 %d30, {a}, {b}; addc.cc.s64 {d}, {b}, {a};",
        ],
        ("b64", "b64"),
        "b64",
    )


def bits() -> Iterator[Snippet]:
    for t in ("b16", "b32", "b64"):
        opcodes = [f"and.{t}", f"or.{t}", f"xor.{t}"]
        yield elementwise(f"logic/and.{t}", opcodes, (t, t), t)
        yield elementwise(f"logic/not.{t}", [f"not.{t}", f"cnot.{t}"], (t,), t)
        signed = t.replace("b", "s")
        unsigned = t.replace("b", "u")
        yield elementwise(
            f"logic/shift.{t}",
            [f"shl.{t}", f"shr.{t}", f"shr.{unsigned}", f"shr.{signed}"],
            (t, "u32"),
            t,
            columns=partial(_positions, t, 80, 1),
        )
    yield elementwise(
        "logic/predicates",
        ["and.pred", "or.pred", "xor.pred", "not.pred {d}, {a};"],
        ("pred", "pred"),
        "pred",
    )
    for t in ("b32", "b64"):
        yield elementwise(f"logic/popc.{t}", [f"popc.{t}", f"clz.{t}"], (t,), "u32")
        yield elementwise(f"logic/brev.{t}", [f"brev.{t}"], (t,), t)
    for t in ("u32", "s32", "u64", "s64"):
        yield elementwise(f"logic/bfind.{t}", [f"bfind.{t}", f"bfind.shiftamt.{t}"], (t,), "u32")
        yield elementwise(
            f"logic/bfe.{t}",
            [f"bfe.{t}"],
            (t, "u32", "u32"),
            t,
            columns=partial(_positions, t, 256, 2),
        )
        yield elementwise(
            f"logic/bfe small.{t}",
            [f"bfe.{t}"],
            (t, "u32", "u32"),
            t,
            columns=partial(_positions, t, 36, 2),
        )
    for t in ("b32", "b64"):
        yield elementwise(
            f"logic/bfi.{t}",
            [f"bfi.{t} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};"],
            (t, t, "u32", "u32"),
            t,
            columns=partial(_two_and_positions, t),
        )
    yield elementwise(
        "logic/shf",
        [f"shf.{d}.{m}.b32" for d in "lr" for m in ("wrap", "clamp")],
        ("b32", "b32", "u32"),
        "b32",
        columns=lambda: [inputs.column("b32", 3, COUNT), *_positions("b32", 70, 1)],
    )
    yield elementwise(
        "logic/szext",
        [f"szext.{m}.{t}" for m in ("wrap", "clamp") for t in ("u32", "s32")],
        ("b32", "u32"),
        "b32",
        columns=lambda: _positions("b32", 70, 1),
    )
    yield elementwise(
        "logic/bmsk",
        [f"bmsk.{m}.b32" for m in ("wrap", "clamp")],
        ("u32", "u32"),
        "b32",
        columns=lambda: _positions("b32", 70, 2)[1:],
    )
    yield elementwise(
        "logic/fns",
        ["fns.b32"],
        ("b32", "u32", "s32"),
        "b32",
        columns=lambda: [
            inputs.random_bits(3, COUNT, 32),
            inputs.below(4, COUNT, 32),
            inputs.below(5, COUNT, 21) - 10,
        ],
    )
    luts = (0x00, 0x80, 0xFE, 0x96, 0xCA, 0xE8, 0x1B, 0x6A, 0xF8, 0x3D, 0xFF)
    yield elementwise(
        "logic/lop3",
        [f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, 0x{lut:02x};" for lut in luts],
        ("b32", "b32", "b32"),
        "b32",
    )
    yield elementwise(
        "logic/lop3 with predicate",
        [
            f"setp.ne.b32 %p30, {{c}}, 5;"
            f" lop3.{op}.b32 %r30|%p31, {{a}}, {{b}}, {{c}}, 0x{lut:02x}, {q};"
            " selp.b32 %r31, 0x80000000, 0, %p31; xor.b32 {d}, %r30, %r31;"
            for op, lut, q in (("or", 0x80, "%p30"), ("and", 0x96, "%p30"), ("or", 0x2C, "!%p30"))
        ],
        ("b32", "b32", "b32"),
        "b32",
    )
    yield elementwise(
        "logic/prmt",
        ["prmt.b32"] + [f"prmt.b32.{m}" for m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")],
        ("b32", "b32", "b32"),
        "b32",
    )


def compare() -> Iterator[Snippet]:
    for t in INTEGERS:
        signs = ("eq", "ne", "lt", "le", "gt", "ge")
        unsigned = ("lo", "ls", "hi", "hs") if t.startswith("u") else ()
        # Equal operands are rare among random ones: {c} chooses the second among two.
        width = inputs.bits_of(t)
        register = {16: "%h", 32: "%r", 64: "%d"}[width] + "30"
        near = f"selp.b{width} {register}, {{a}}, {{b}}, {{c}}; "
        yield elementwise(
            f"compare/setp.{t}",
            [f"{near}setp.{c}.{t} {{d}}, {{a}}, {register};" for c in signs + unsigned],
            (t, t, "pred"),
            "pred",
        )
        yield elementwise(
            f"compare/set.{t}",
            [f"{near}set.{c}.u32.{t} {{d}}, {{a}}, {register};" for c in ("lt", "ne")]
            + [f"{near}set.{c}.f32.{t} {{d}}, {{a}}, {register};" for c in ("le", "eq")]
            + [f"{near}set.ge.xor.s32.{t} {{d}}, {{a}}, {register}, {{c}};"],
            (t, t, "pred"),
            "b32",
        )
    both = "selp.b32 %r30, 1, 0, %p30; selp.b32 %r31, 2, 0, %p31; or.b32 {d}, %r30, %r31;"
    yield elementwise(
        "compare/setp pair",
        ["setp.lt.s32 %p30|%p31, {a}, {b}; " + both]
        + [
            f"setp.gt.{op}.u32 %p30|%p31, {{a}}, {{b}}, {{c}}; {both}"
            for op in ("and", "or", "xor")
        ]
        + [f"setp.gt.and.u32 %p30|%p31, {{a}}, {{b}}, !{{c}}; {both}"],
        ("b32", "b32", "pred"),
        "b32",
    )
    for t in ("b16", "b32", "b64", "u32", "s64", "f32", "f64"):
        yield elementwise(f"compare/selp.{t}", [f"selp.{t}"], (t, t, "pred"), t)
    for t in ("b16", "b32", "b64", "u32", "s32", "f32"):
        yield elementwise(f"compare/slct.{t}", [f"slct.{t}.s32"], (t, t, "s32"), t)
    yield elementwise(
        "compare/slct float", ["slct.b32.f32", "slct.ftz.b32.f32"], ("b32", "b32", "f32"), "b32"
    )


def moves() -> Iterator[Snippet]:
    yield elementwise(
        "move/split and join",
        [
            "mov.b64 {%r30, %r31}, {a}; mov.b64 {d}, {%r31, %r30};",
            "mov.b64 {%h30, %h31, %h32, %h33}, {a}; mov.b64 {d}, {%h33, %h31, %h32, %h30};",
            "mov.b64 {%r30, %r31}, {a}; mov.b32 {%h30, %h31}, %r30; mov.b32 %r32, {%h31, %h30};"
            " mov.b64 {d}, {%r32, %r31};",
            "mov.b64 {_, %r31}, {a}; mov.b64 {d}, {%r31, 7};",
            "mov.b128 %q0, {{a}, {a}}; mov.b128 {%d30, {d}}, %q0;",
        ],
        ("b64",),
        "b64",
    )


def snippets() -> Iterator[Snippet]:
    yield from arithmetic()
    yield from extended_precision()
    yield from bits()
    yield from compare()
    yield from moves()

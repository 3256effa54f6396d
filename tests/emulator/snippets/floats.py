"""Floating-point instructions: roundings, ftz, sat and relu; approximations by their error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import COUNT, Array, elementwise
from tests.emulator.snippets.snippet import Comparison, Snippet

ROUNDINGS = ("rn", "rz", "rm", "rp")
#: Double precision keeps NaN payloads in a way that the ISA leaves open.
ANY_NAN = Comparison("bits", "f64", any_nan=True)


def _every_modifier(opcode: str, type_: str, *tails: str) -> list[str]:
    return [f"{opcode}.{r}{tail}.{type_}" for tail in tails for r in ROUNDINGS]


def single() -> Iterator[Snippet]:
    tails = ("", ".ftz", ".sat", ".ftz.sat")
    pair, triple = ("f32", "f32"), ("f32", "f32", "f32")
    for opcode in ("add", "sub", "mul"):
        yield elementwise(
            f"float/{opcode}.f32", _every_modifier(opcode, "f32", *tails), pair, "f32"
        )
    yield elementwise("float/fma.f32", _every_modifier("fma", "f32", *tails), triple, "f32")
    yield elementwise("float/mad.f32", ["mad.rn.f32", "mad.rz.ftz.f32"], triple, "f32")
    yield elementwise("float/div.f32", _every_modifier("div", "f32", "", ".ftz"), pair, "f32")
    for opcode in ("rcp", "sqrt"):
        yield elementwise(
            f"float/{opcode}.f32", _every_modifier(opcode, "f32", "", ".ftz"), ("f32",), "f32"
        )
    yield elementwise(
        "float/sign.f32",
        ["abs.f32", "abs.ftz.f32", "neg.f32", "neg.ftz.f32"],
        ("f32",),
        "f32",
    )
    yield elementwise("float/copysign", ["copysign.f32"], pair, "f32")
    yield elementwise(
        "float/min.f32",
        [f"{o}{m}.f32" for o in ("min", "max") for m in ("", ".ftz", ".NaN", ".xorsign.abs")]
        + ["min.ftz.NaN.f32", "max.NaN.xorsign.abs.f32"],
        pair,
        "f32",
    )
    yield elementwise(
        "float/testp.f32",
        [
            f"testp.{t}.f32"
            for t in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        ],
        ("f32",),
        "pred",
    )


def approximate() -> Iterator[Snippet]:
    """Bounds are the ISA's: of |relative| or |absolute| error, twice, since both sides may err."""

    def relative(name: str, opcodes: list[str], power: float) -> Snippet:
        bound = Comparison("relative", "f32", 2.0 * 2.0**power, any_nan=True, flush=2.0**-126)
        return elementwise(f"approximate/{name}", opcodes, ("f32",), "f32", comparison=bound)

    yield relative("rcp.approx", ["rcp.approx.f32", "rcp.approx.ftz.f32"], -23)
    yield relative("sqrt.approx", ["sqrt.approx.f32", "sqrt.approx.ftz.f32"], -23)
    yield relative("rsqrt.approx", ["rsqrt.approx.f32", "rsqrt.approx.ftz.f32"], -22.9)
    yield relative("ex2.approx", ["ex2.approx.f32", "ex2.approx.ftz.f32"], -22)
    yield relative("tanh.approx", ["tanh.approx.f32"], -11)
    yield elementwise(
        "approximate/ex2.approx used range",
        ["ex2.approx.f32", "ex2.approx.ftz.f32"],
        ("f32",),
        "f32",
        comparison=Comparison("relative", "f32", 2.0**-21, flush=2.0**-126),
        columns=lambda: [_between(1, -140.0, 10.0)],
    )
    for name, low, high, error in (
        ("lg2 near one", 0.5, 2.0, Comparison("absolute", "f32", 2.0**-20)),
        ("lg2", 2.0, 1e30, Comparison("relative", "f32", 2.0**-20)),
    ):
        yield elementwise(
            f"approximate/{name}",
            ["lg2.approx.f32", "lg2.approx.ftz.f32"],
            ("f32",),
            "f32",
            comparison=error,
            columns=partial(_column_between, 2, low, high),
        )
    yield elementwise(
        "approximate/sin",
        ["sin.approx.f32", "cos.approx.f32", "sin.approx.ftz.f32", "cos.approx.ftz.f32"],
        ("f32",),
        "f32",
        comparison=Comparison("absolute", "f32", 2.0 * 2.0**-20.5),
        columns=lambda: [_between(3, -np.pi, np.pi)],
    )
    specials = np.resize(inputs.special_floats("f32"), COUNT)
    yield elementwise(
        "approximate/specials",
        ["ex2.approx.f32", "ex2.approx.ftz.f32"]
        + ["rcp.approx.f32", "rcp.approx.ftz.f32", "rsqrt.approx.f32", "rsqrt.approx.ftz.f32"]
        + ["sqrt.approx.f32", "sqrt.approx.ftz.f32", "tanh.approx.f32"],
        ("f32",),
        "f32",
        comparison=Comparison("relative", "f32", 2.0**-10, flush=2.0**-126),
        columns=lambda: [specials],
    )
    yield elementwise(
        "approximate/lg2 specials",
        ["lg2.approx.f32", "lg2.approx.ftz.f32"],
        ("f32",),
        "f32",
        # The ISA bounds the absolute error in (0.5, 2), where results are smaller than one.
        comparison=Comparison("relative", "f32", 2.0**-21, any_nan=True, flush=2.0**-21),
        columns=lambda: [specials],
    )
    yield elementwise(
        "approximate/div",
        ["div.approx.f32", "div.approx.ftz.f32", "div.full.f32", "div.full.ftz.f32"],
        ("f32", "f32"),
        "f32",
        comparison=Comparison("ulp", "f32", 4),
        columns=lambda: [inputs.moderate_floats(seed, COUNT, "f32", 40) for seed in (4, 5)],
    )
    yield elementwise(
        "approximate/f64",
        ["rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"],
        ("f64",),
        "f64",
        comparison=Comparison("relative", "f64", 2.0**-19),
        columns=lambda: [inputs.moderate_floats(6, COUNT, "f64", 300) & np.uint64(2**63 - 1)],
    )
    half = [("ex2.approx.f16", "f16", 2.0**-9), ("tanh.approx.f16", "f16", 2.0**-9.9)]
    half += [("ex2.approx.ftz.bf16", "bf16", 2.0**-6), ("tanh.approx.bf16", "bf16", 2.0**-7)]
    for opcode, type_, bound in half:
        packed = opcode + "x2"
        yield elementwise(
            f"approximate/{opcode}",
            [opcode],
            (type_,),
            type_,
            comparison=Comparison("relative", type_, bound, any_nan=True, flush=2.0**-14),
        )
        yield elementwise(
            f"approximate/{packed}",
            [packed],
            (type_ + "x2",),
            type_ + "x2",
            comparison=Comparison("relative", type_ + "x2", bound, any_nan=True, flush=2.0**-14),
        )


def _between(seed: int, low: float, high: float) -> Array:
    fraction = inputs.random_bits(seed, COUNT, 32).astype(np.float64) / 2**32
    return (low + (high - low) * fraction).astype(np.float32).view(np.uint32)


def _column_between(seed: int, low: float, high: float) -> list[Array]:
    return [_between(seed, low, high)]


def double() -> Iterator[Snippet]:
    pair = ("f64", "f64")
    for opcode, sources in (
        *((o, pair) for o in ("add", "sub", "mul", "div")),
        ("fma", ("f64", "f64", "f64")),
        ("rcp", ("f64",)),
        ("sqrt", ("f64",)),
    ):
        yield elementwise(
            f"float/{opcode}.f64",
            _every_modifier(opcode, "f64", ""),
            sources,
            "f64",
            comparison=ANY_NAN,
            count=384,
            unroll=1,
        )
    yield elementwise("float/min.f64", ["min.f64", "max.f64"], pair, "f64", comparison=ANY_NAN)
    yield elementwise("float/sign.f64", ["abs.f64", "neg.f64"], ("f64",), "f64", comparison=ANY_NAN)
    yield elementwise(
        "float/testp.f64",
        [f"testp.{t}.f64" for t in ("finite", "infinite", "number", "notanumber", "subnormal")],
        ("f64",),
        "pred",
    )


def _with_fill(type_: str) -> list[Array]:
    """Operands of fma, some of them the NaN that a copy engine fills with."""
    columns = inputs.operands((type_,) * 3, COUNT)
    fill = {16: 0x7FF7, 32: 0x7FF77FF7}[inputs.bits_of(type_)]
    for i, column in enumerate(columns):
        column[8 * i :: 24] = fill
        column[8 * i + 1 :: 48] = fill ^ 1 << inputs.bits_of(type_) - 1
        column[8 * i + 2 :: 48] = fill & 0xFFFF
    return columns


def half() -> Iterator[Snippet]:
    """f16, bf16 and their packed forms."""
    for t in ("f16", "bf16", "f16x2", "bf16x2"):
        pair, triple = (t, t), (t, t, t)
        ieee = t.startswith("f16")
        tails = ["", ".rn"] + ([".ftz", ".sat", ".rn.ftz.sat"] if ieee else [])
        for opcode in ("add", "sub", "mul"):
            yield elementwise(f"half/{opcode}.{t}", [f"{opcode}{m}.{t}" for m in tails], pair, t)
        tails = ["", ".relu"] + ([".ftz", ".sat", ".ftz.relu"] if ieee else [])
        yield elementwise(f"half/fma.{t}", [f"fma.rn{m}.{t}" for m in tails], triple, t)
        yield elementwise(
            f"half/fma oob.{t}",
            [f"fma.rn.oob.{t}", f"fma.rn.oob.relu.{t}"],
            triple,
            t,
            columns=partial(_with_fill, t),
        )
        tails = ["", ".ftz"] if ieee else [""]
        yield elementwise(
            f"half/sign.{t}", [f"{o}{m}.{t}" for o in ("abs", "neg") for m in tails], (t,), t
        )
        tails = ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"] + ([".ftz"] if ieee else [])
        yield elementwise(
            f"half/min.{t}", [f"{o}{m}.{t}" for o in ("min", "max") for m in tails], pair, t
        )


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
FLOAT_COMPARISONS = COMPARISONS + ("equ", "neu", "ltu", "leu", "gtu", "geu") + ("num", "nan")


def compare() -> Iterator[Snippet]:
    registers = {"f16": "%h30", "bf16": "%h30", "f32": "%r30", "f64": "%d30"}
    for t, register in registers.items():
        width = inputs.bits_of(t)
        near = f"selp.b{width} {register}, {{a}}, {{b}}, {{c}}; "
        opcodes = [f"setp.{c}.{t}" for c in FLOAT_COMPARISONS]
        if t in ("f32", "f16"):
            opcodes += [f"setp.{c}.ftz.{t}" for c in ("eq", "lt", "geu")]
        yield elementwise(
            f"compare/setp.{t}",
            [f"{near}{opcode} {{d}}, {{a}}, {register};" for opcode in opcodes],
            (t, t, "pred"),
            "pred",
        )
        opcodes = [f"set.{c}.{r}.{t}" for c in ("lt", "neu") for r in ("u32", "s32")]
        opcodes += [f"set.ge.f32.{t}"] if t in ("f32", "f64") else []
        yield elementwise(
            f"compare/set.{t}",
            [f"{near}{opcode} {{d}}, {{a}}, {register};" for opcode in opcodes],
            (t, t, "pred"),
            "b32",
        )
    for t in ("f16", "bf16"):
        both = "selp.b32 %r30, 1, 0, %p30; selp.b32 %r31, 2, 0, %p31; or.b32 {d}, %r30, %r31;"
        yield elementwise(
            f"compare/setp.{t}x2",
            [f"setp.{c}.{t}x2 %p30|%p31, {{a}}, {{b}}; {both}" for c in FLOAT_COMPARISONS]
            + [f"setp.lt.or.{t}x2 %p30|%p31, {{a}}, {{b}}, {{c}}; {both}"],
            (f"{t}x2", f"{t}x2", "pred"),
            "b32",
        )
        yield elementwise(
            f"compare/set.{t}x2",
            [
                f"set.{c}.{r}.{t}x2 {{d}}, {{a}}, {{b}};"
                for c in ("lt", "geu")
                for r in (f"{t}x2", "u32")[:1]
            ],
            (f"{t}x2", f"{t}x2"),
            "b32",
        )
        yield elementwise(
            f"compare/set to {t}",
            [f"set.{c}.{t}.{t} {{d}}, {{a}}, {{b}};" for c in ("lt", "geu")],
            (t, t),
            t,
        )


def snippets() -> Iterator[Snippet]:
    yield from single()
    yield from approximate()
    yield from double()
    yield from half()
    yield from compare()

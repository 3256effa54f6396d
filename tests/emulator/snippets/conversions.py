"""cvt: every 16-bit value exhaustively, wider ones at midpoints, edges and at random."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import Array, elementwise
from tests.emulator.snippets.snippet import Comparison, Snippet

ROUNDINGS = ("rn", "rz", "rm", "rp")
WHOLE = ("rni", "rzi", "rmi", "rpi")
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
COUNT = 1024
EVERY = 1 << 16


def _every_16_bits() -> list[Array]:
    return [inputs.every(16)]


def _every_16_bits_twice() -> list[Array]:
    """Every pattern in the lower half, and every one in another order in the upper half."""
    low = inputs.every(16).astype(np.uint32)
    return [low | (low * np.uint32(40503)) << np.uint32(16)]


exhaustive = partial(elementwise, columns=_every_16_bits, count=EVERY, unroll=8)


def _cvt(modes: list[str], to: str, from_: str) -> list[str]:
    return [f"cvt{''.join('.' + m for m in mode.split())}.{to}.{from_}" for mode in modes]


def _contains(to: str, from_: str) -> bool:
    """Whether every value of ``from_`` is one of ``to``: cvt allows no .sat then."""
    wider = inputs.bits_of(to) > inputs.bits_of(from_)
    return wider and (to[0] == from_[0] or from_[0] == "u")


def between_integers() -> Iterator[Snippet]:
    for from_ in INTEGERS:
        for to in INTEGERS:
            if to == from_:
                continue
            # A narrower result lies extended in a 32-bit register: that is compared too.
            result = "b64" if to in ("u64", "s64") else "b32"
            opcodes = _cvt([""] if _contains(to, from_) else ["", "sat"], to, from_)
            yield elementwise(
                f"convert/{to}.{from_}",
                opcodes,
                (from_,),
                result,
                count=256,
            )


def to_floats() -> Iterator[Snippet]:
    for from_ in INTEGERS:
        for to in ("f16", "bf16", "f32", "f64"):
            if to == "bf16" and from_ in ("u8", "s8"):
                continue  # ptxas takes no 8-bit register beside bf16
            yield elementwise(
                f"convert/{to}.{from_}",
                _cvt(list(ROUNDINGS), to, from_),
                (from_,),
                to,
                count=256,
            )


def to_integers() -> Iterator[Snippet]:
    for from_ in ("f16", "bf16", "f32", "f64"):
        for to in INTEGERS:
            narrow = from_ == "bf16"  # results lie in registers of their own width; no .sat
            if narrow and to in ("u8", "s8"):
                continue
            modes = list(WHOLE) + ([] if narrow else ["rzi sat"])
            result = to if narrow else "b64" if to in ("u64", "s64") else "b32"
            modes += ["rni ftz", "rmi ftz", "rpi ftz sat"] if from_ == "f32" else []
            full = from_ == "f16" and to in ("s8", "u8", "s16", "u32", "s64")
            columns = partial(_around_integers, from_)
            make = exhaustive if full else partial(elementwise, columns=columns, count=COUNT)
            yield make(f"convert/{to}.{from_}", _cvt(modes, to, from_), (from_,), result)


def _around_integers(type_: str) -> list[Array]:
    """Halves, quarters and edges of every integer type, then the usual column."""
    quarter = np.arange(-64, 64) / 4.0
    edges = [s * (2.0**p + d) for p in (7, 8, 15, 16, 31, 32, 63, 64) for s in (-1, 1)
             for d in (-1, -0.5, 0, 0.5, 1)]  # fmt: skip
    values = inputs.from_float64(type_, np.concatenate([quarter, np.array(edges)]))
    rest = inputs.column(type_, 9, COUNT - values.size)
    return [np.concatenate([values, rest])]


def between_floats() -> Iterator[Snippet]:
    nans = Comparison("bits", "f64", any_nan=True)
    for t, other in (("f16", "bf16"), ("bf16", "f16")):
        modes = ["", "ftz", "sat", "ftz sat"] if t == "f16" else [""]
        yield exhaustive(
            f"convert/f32.{t}",
            _cvt(modes, "f32", t),
            (t,),
            "f32",
            comparison=Comparison("bits", "f32", any_nan=True),
        )
        yield exhaustive(f"convert/f64.{t}", _cvt([""], "f64", t), (t,), "f64", comparison=nans)
        yield exhaustive(f"convert/{t}.{t}", _cvt(list(WHOLE), t, t), (t,), t)
        yield exhaustive(f"convert/{other}.{t}", _cvt(list(ROUNDINGS), other, t), (t,), other)
    midpoints = {
        to: partial(_midpoints, e, m, (11,))
        for to, e, m in (("f16", 5, 10), ("bf16", 8, 7), ("tf32", 8, 10))
    }
    for to, modes in {
        "f16": [*ROUNDINGS, "rn ftz", "rn sat", "rn relu", "rz relu", "rn satfinite"],
        "bf16": [*ROUNDINGS, "rn relu", "rz relu", "rn satfinite"],
        "tf32": ["rna", "rn", "rz", "rn relu", "rz relu", "rna satfinite"],
    }.items():
        result = "b32" if to == "tf32" else to
        for label, columns, count in (
            ("midpoints", midpoints[to], 4 * COUNT),
            ("classes", partial(inputs.operands, ("f32",), COUNT), COUNT),
        ):
            yield elementwise(
                f"convert/{to}.f32 {label}",
                _cvt(modes, to, "f32"),
                ("f32",),
                result,
                columns=columns,
                count=count,
                comparison=Comparison("bits", "f32" if to == "tf32" else to, any_nan=True),
            )
    for to in ("f16", "bf16", "f32"):
        modes = [*ROUNDINGS] + (["rn ftz", "rn sat"] if to == "f32" else [])
        yield elementwise(
            f"convert/{to}.f64",
            _cvt(modes, to, "f64"),
            ("f64",),
            to,
            columns=_doubles,
            count=COUNT,
            comparison=Comparison("bits", to, any_nan=True),
        )
    yield elementwise(
        "convert/f64.f32",
        _cvt(["", "ftz", "sat"], "f64", "f32"),
        ("f32",),
        "f64",
        comparison=Comparison("bits", "f64", any_nan=True),
    )
    yield elementwise(
        "convert/f32.f32",
        _cvt([*WHOLE, "rni ftz", "rzi sat", "sat", "ftz sat"], "f32", "f32"),
        ("f32",),
        "f32",
        columns=lambda: _around_integers("f32"),
        count=COUNT,
    )
    yield elementwise(
        "convert/f64.f64",
        _cvt([*WHOLE, "rni sat"], "f64", "f64"),
        ("f64",),
        "f64",
        columns=lambda: _around_integers("f64"),
        count=COUNT,
        comparison=Comparison("bits", "f64", any_nan=True),
    )


def _midpoints(exponent: int, mantissa: int, seeds: tuple[int, ...]) -> list[Array]:
    return [inputs.halfway_f32(exponent, mantissa, seed, 4 * COUNT) for seed in seeds]


def _doubles() -> list[Array]:
    """f64 at the midpoints of f32, bf16 and f16, and of every class."""
    part = COUNT // 4
    near = [
        inputs.to_float64("f32", inputs.halfway_f32(e, m, 13, part)).view(np.uint64)
        + (inputs.below(14, part, 3) - 1).astype(np.uint64)
        for e, m in ((5, 10), (8, 7))
    ]
    single = inputs.to_float64("f32", inputs.column("f32", 15, part)).view(np.uint64)
    half = np.uint64(1 << 28)
    near.append(single + half + (inputs.below(16, part, 3) - 1).astype(np.uint64))
    return [np.concatenate([*near, inputs.column("f64", 17, part)])]


def not_numbers() -> Iterator[Snippet]:
    """NaN to NaN: which sign and which payload come out, bit for bit."""
    for from_, to in (
        *((f, t) for f in ("f16", "bf16", "f32", "f64") for t in ("f16", "bf16", "f32", "f64")),
        ("f32", "tf32"),
    ):
        modes = ["rni"] if from_ == to else ["rn"]
        if inputs.bits_of(to) > inputs.bits_of(from_):
            modes = [""]
        modes = ["rna", "rn", "rz"] if to == "tf32" else modes
        if (from_, to) == ("f32", "bf16"):
            modes.append("rz")
        yield elementwise(
            f"convert/NaN {to}.{from_}",
            _cvt(modes, to, from_),
            (from_,),
            "b32" if to == "tf32" else to,
            columns=partial(_nans, from_),
            count=128,
        )


def _nans(type_: str) -> list[Array]:
    """Quiet and signalling NaNs of both signs: one payload bit, all of them, and random ones."""
    exponent, mantissa = inputs.FLOATS[type_]
    width = exponent + mantissa + 1
    payloads = [1 << i for i in range(mantissa)] + [(1 << mantissa) - 1]
    payloads += [int(x) for x in inputs.random_bits(31, 64 - len(payloads), mantissa)]
    top = ((1 << exponent) - 1) << mantissa
    bits = [s | top | (p or 1) for p in payloads for s in (0, 1 << width - 1)]
    return [np.array(bits, inputs.UNSIGNED[width])]


def packed() -> Iterator[Snippet]:
    """Two f32 into one register, and the 8-bit types."""
    for to, (e, m) in {"f16x2": (5, 10), "bf16x2": (8, 7)}.items():
        modes = ["rn", "rz", "rn relu", "rz relu", "rn satfinite", "rn satfinite relu"]
        modes = [mode.replace("satfinite relu", "relu satfinite") for mode in modes]
        yield elementwise(
            f"convert/{to}.f32",
            _cvt(modes, to, "f32"),
            ("f32", "f32"),
            to,
            columns=partial(_midpoints, e, m, (21, 22)),
            count=4 * COUNT,
        )
    for to, (e, m) in {"e4m3x2": (4, 3), "e5m2x2": (5, 2)}.items():
        modes = ["rn satfinite", "rn satfinite relu"]
        yield elementwise(
            f"convert/{to}.f32 midpoints",
            _cvt(modes, to, "f32"),
            ("f32", "f32"),
            "b16",
            columns=partial(_midpoints, e, m, (23, 24)),
            count=4 * COUNT,
        )
        yield elementwise(
            f"convert/{to}.f32 classes",
            _cvt(modes, to, "f32"),
            ("f32", "f32"),
            "b16",
            columns=partial(inputs.operands, ("f32", "f32"), COUNT),
            count=COUNT,
        )
        yield exhaustive(
            f"convert/{to}.f16x2",
            _cvt(modes, to, "f16x2"),
            ("f16x2",),
            "b16",
            columns=_every_16_bits_twice,
        )
        yield exhaustive(
            f"convert/f16x2.{to}", _cvt(["rn", "rn relu"], "f16x2", to), ("b16",), "f16x2"
        )
    for to in ("u16", "s16", "u8", "s8"):
        sources = ("s32", "s32") if to.endswith("16") else ("s32", "s32", "b32")
        tail = "" if to.endswith("16") else ".b32"
        yield elementwise(f"convert/pack.{to}", [f"cvt.pack.sat.{to}.s32{tail}"], sources, "b32")


def snippets() -> Iterator[Snippet]:
    yield from between_integers()
    yield from to_floats()
    yield from to_integers()
    yield from between_floats()
    yield from not_numbers()
    yield from packed()

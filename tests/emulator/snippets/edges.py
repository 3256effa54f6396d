"""Edges at which only hardware decides: flushing, zeros under relu, the NaN of a fill."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import Array, elementwise
from tests.emulator.snippets.snippet import Snippet

COUNT = 256
ROUNDINGS = ("rn", "rz", "rm", "rp")
EVERY = 1 << 16


def _near_least_normal(type_: str) -> list[Array]:
    """a, b and c with a * b + c within a few units of the least normal number, either sign.

    b lies in the middle of the range, so that no operand is subnormal. In the second half c is
    the negative of that number and a twice as large.
    """
    exponent, mantissa = inputs.FLOATS[type_]
    bias = (1 << exponent - 1) - 1
    least = 2.0 ** (1 - bias)
    fraction = inputs.random_bits(31, COUNT, 32) / 2.0**32
    b = np.ldexp(1.0 + fraction, -bias // 2)
    halves = np.arange(COUNT) >= COUNT // 2
    b_bits = inputs.from_float64(type_, b)
    a = np.where(halves, 2.0, 1.0) * least / inputs.to_float64(type_, b_bits)
    step = inputs.below(32, COUNT, 7) - 3
    a_bits = inputs.from_float64(type_, a).astype(np.int64) + step
    sign = inputs.below(33, COUNT, 2) << exponent + mantissa
    c = np.where(halves, (1 << mantissa) | sign ^ (1 << exponent + mantissa), 0)
    dtype = b_bits.dtype
    return [(a_bits | sign).astype(dtype), b_bits, c.astype(dtype)]


def _quotients() -> list[Array]:
    """f32 a and b with a / b within a few units of the least normal number."""
    b = inputs.moderate_floats(34, COUNT, "f32", 4) & np.uint32(0x7FFFFFFF)
    least = inputs.to_float64("f32", b) * 2.0**-126
    # Least normal quotients of numbers below one would need subnormal dividends.
    b = np.where(least < 2.0**-125, b + np.uint32(6 << 23), b)
    exact = inputs.from_float64("f32", inputs.to_float64("f32", b) * 2.0**-126)
    return [(exact.astype(np.int64) + inputs.below(35, COUNT, 7) - 3).astype(np.uint32), b]


def _doubles_near_least_single() -> list[Array]:
    step = inputs.below(36, COUNT, 1 << 31) >> inputs.below(37, COUNT, 24)
    sign = inputs.below(38, COUNT, 2) << 63
    least = np.float64(2.0**-126).view(np.int64)
    return [((least - step + 8) | sign).astype(np.uint64)]


def flushing() -> Iterator[Snippet]:
    """Is a result small before or after it is rounded?"""
    for type_, roundings in (("f32", ROUNDINGS), ("f16", ("rn",))):
        columns = partial(_near_least_normal, type_)
        opcodes = [f"{o}.{type_}" for r in roundings for o in (f"fma.{r}.ftz", f"fma.{r}")]
        products = [
            f"mul.{r}{m}.{type_} {{d}}, {{a}}, {{b}};" for r in roundings for m in (".ftz", "")
        ]
        yield elementwise(
            f"edge/ftz of fma.{type_}", opcodes, (type_,) * 3, type_, columns=columns, count=COUNT
        )
        yield elementwise(
            f"edge/ftz of mul.{type_}", products, (type_,) * 3, type_, columns=columns, count=COUNT
        )
    yield elementwise(
        "edge/ftz of div.f32",
        [f"div.{r}.ftz.f32" for r in ROUNDINGS],
        ("f32", "f32"),
        "f32",
        columns=_quotients,
        count=COUNT,
    )
    yield elementwise(
        "edge/ftz of cvt.f32.f64",
        [f"cvt.{r}.ftz.f32.f64" for r in ROUNDINGS],
        ("f64",),
        "f32",
        columns=_doubles_near_least_single,
        count=COUNT,
    )


def _zeros(type_: str, operands: int) -> list[Array]:
    """Every combination of zeros, ones, least numbers, infinities and NaN."""
    exponent, mantissa = inputs.FLOATS[type_]
    sign = 1 << exponent + mantissa
    top = ((1 << exponent) - 1) << mantissa
    positive = (0, 1, ((1 << exponent - 1) - 1) << mantissa, top, top | 1)
    values = np.array(
        [p | s for p in positive for s in (0, sign)], inputs.UNSIGNED[exponent + mantissa + 1]
    )
    size = {1: 128, 2: 128, 3: 1024}[operands]
    return [np.resize(inputs.grid_of(values, i, operands), size) for i in range(operands)]


def rectified() -> Iterator[Snippet]:
    """.relu and .sat of minus zero, of NaN, of what is negative only before it is rounded."""
    for type_ in ("f16", "bf16"):
        tails = [".relu", ".ftz.relu", ".sat", ""] if type_ == "f16" else [".relu", ""]
        yield elementwise(
            f"edge/relu of fma.{type_}",
            [f"fma.rn{tail}.{type_}" for tail in tails],
            (type_,) * 3,
            type_,
            columns=partial(_zeros, type_, 3),
            count=1024,
        )
    for to in ("f16", "bf16", "tf32"):
        yield elementwise(
            f"edge/relu of cvt.{to}.f32",
            [f"cvt.{mode}.relu.{to}.f32" for mode in ("rn", "rz")],
            ("f32",),
            "b32" if to == "tf32" else to,
            columns=partial(_zeros, "f32", 1),
            count=128,
        )
    for to in ("e4m3x2", "e5m2x2", "f16x2", "bf16x2"):
        mode = "rn.satfinite.relu" if to.startswith("e") else "rn.relu"
        yield elementwise(
            f"edge/relu of cvt.{to}.f32",
            [f"cvt.{mode}.{to}.f32"],
            ("f32", "f32"),
            "b16" if to.startswith("e") else to,
            columns=partial(_zeros, "f32", 2),
            count=128,
        )


def _every_operand(type_: str) -> list[Array]:
    """Every 16-bit pattern, and two ordinary numbers."""
    return [inputs.every(16), *(inputs.moderate_floats(seed, EVERY, type_) for seed in (41, 42))]


def out_of_bounds() -> Iterator[Snippet]:
    """fma.oob knows one NaN that stands for an element outside a tensor."""
    for type_ in ("f16", "bf16"):
        yield elementwise(
            f"edge/oob of fma.{type_}",
            [
                f"fma.rn.oob{tail}.{type_} {{d}}, {operands};"
                for tail, operands in (
                    ("", "{a}, {b}, {c}"),
                    ("", "{b}, {a}, {c}"),
                    ("", "{b}, {c}, {a}"),
                    (".relu", "{a}, {b}, {c}"),
                )
            ],
            (type_,) * 3,
            type_,
            columns=partial(_every_operand, type_),
            count=EVERY,
            unroll=8,
        )


def snippets() -> Iterator[Snippet]:
    yield from flushing()
    yield from rectified()
    yield from out_of_bounds()

"""Conversions against rational numbers, in every mode."""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.emulator import exact_oracle as oracle
from tests.emulator.decoding import decode, run
from tests.emulator.test_instructions_floating import saturated
from tests.emulator.test_instructions_integer import INTEGERS, clamp, some, width, wrap

from hopwell.emulator.registry import UnsupportedInstruction

ALL_INTEGERS = ("u8", "s8", *INTEGERS)
FLOATS = ("f16", "bf16", "f32", "f64")
MODES = ("rn", "rz", "rm", "rp")
MIXED = [(a, b) for a in FLOATS for b in ALL_INTEGERS]


def patterns(name: str, count: int = 400) -> list[int]:
    return oracle.specials(name) + oracle.random_patterns(name, count, 21)


@pytest.mark.parametrize("source", ALL_INTEGERS)
@pytest.mark.parametrize("result", ALL_INTEGERS)
def test_between_integers(result: str, source: str) -> None:
    x = some(source, 0)
    cut = run(f"cvt.{result}.{source}", x, operands="d a")
    assert cut.tolist() == [wrap(a, result) for a in x.tolist()]
    ends = [1 << 100, -(1 << 100)]
    if all(clamp(clamp(end, source), result) == clamp(end, source) for end in ends):
        with pytest.raises(UnsupportedInstruction, match="sat"):
            decode(f"cvt.sat.{result}.{source}", "d a")
    else:
        clamped = run(f"cvt.sat.{result}.{source}", x, operands="d a")
        assert clamped.tolist() == [clamp(a, result) for a in x.tolist()]


def whole(value: Fraction, mode: str) -> int:
    if mode == "rni":
        return round(value)  # Python rounds ties to even as well.
    if mode == "rzi":
        return math.trunc(value)
    return math.floor(value) if mode == "rmi" else math.ceil(value)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize(("source", "result"), MIXED)
def test_to_integers(source: str, result: str, mode: str) -> None:
    bits = patterns(source)
    # Whole numbers and halves in the range of the result, where the rounding matters.
    for shift in range(0, width(result) + 1, 3):
        for half in (2 << shift, (2 << shift) + 1, (2 << shift) - 1):
            bits.append(oracle.round_to(Fraction(half, 2), source, "rn"))
    found = run(f"cvt.{mode}.{result}.{source}", oracle.to_array(bits, source), operands="d a")
    high, low = clamp(1 << 100, result), clamp(-(1 << 100), result)
    for x, actual in zip(bits, found.tolist(), strict=True):
        number = oracle.decode(x, source)
        if number.kind == "nan":
            special = source == "f64" or width(result) == 64
            expected = wrap(special << (width(result) - 1), result)
        elif number.kind == "infinite":
            expected = low if number.negative else high
        else:
            expected = clamp(whole(number.signed, mode), result)
        assert actual == expected, (hex(x), actual, expected)


def test_flushing_before_rounding_up() -> None:
    tiny = np.array([1e-40, -1e-40], np.float32)
    assert run("cvt.rpi.s32.f32", tiny, operands="d a").tolist() == [1, 0]
    assert run("cvt.rpi.ftz.s32.f32", tiny, operands="d a").tolist() == [0, 0]
    assert run("cvt.rmi.ftz.sat.s32.f32", tiny, operands="d a").tolist() == [0, 0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("result", "source"), MIXED)
def test_from_integers(result: str, source: str, mode: str) -> None:
    x = some(source, 3, 400)
    found = oracle.to_bits(run(f"cvt.{mode}.{result}.{source}", x, operands="d a"))
    for a, actual in zip(x.tolist(), found, strict=True):
        expected = oracle.round_to(Fraction(a), result, mode) if a else 0
        assert actual == expected, (a, hex(actual), hex(expected))


FRACTIONS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}


def converted(bits: int, source: str, result: str, mode: str) -> int:
    number = oracle.decode(bits, source)
    sign = oracle.LAYOUTS[result].sign if number.negative else 0
    if number.kind == "nan":
        if (source, result) == ("bf16", "f32"):
            return bits << 16
        if "f64" not in (source, result):
            return oracle.LAYOUTS[result].nan
        # As an H200 answers: quiet, with the upper bits of the payload.
        mine, other = FRACTIONS[source], FRACTIONS[result]
        payload = (bits & (1 << mine) - 1) << 64 >> 64 + mine - other
        return sign | oracle.LAYOUTS[result].infinity | 1 << other - 1 | payload
    if number.kind == "infinite":
        return oracle.LAYOUTS[result].infinity | sign
    return oracle.round_to(number.signed, result, mode) if number.value else sign


WIDENING = [("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("f32", "f64")]


@pytest.mark.parametrize(("source", "result"), WIDENING)
def test_widening(source: str, result: str) -> None:
    bits = patterns(source)
    found = oracle.to_bits(
        run(f"cvt.{result}.{source}", oracle.to_array(bits, source), operands="d a")
    )
    assert found == [converted(x, source, result, "rz") for x in bits]


NARROWING = [*((b, a) for a, b in WIDENING), ("f16", "bf16"), ("bf16", "f16")]


def near(source: str, result: str) -> list[int]:
    """Encodings of the wider type at, and next to, ties of the narrower one."""
    halfway = []
    for x in oracle.random_patterns(result, 300, 9):
        number = oracle.decode(x, result)
        step = oracle.decode(x + 1, result).value - number.value
        if number.kind == "finite" and oracle.decode(x + 1, result).kind == "finite":
            value = number.value + step / 2
            bits = oracle.round_to(value, source, "rz")
            sign = oracle.LAYOUTS[source].sign if number.negative else 0
            halfway += [bits | sign, bits + 1 | sign, max(bits - 1, 0) | sign]
    return halfway


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("source", "result"), NARROWING)
def test_narrowing(source: str, result: str, mode: str) -> None:
    bits = patterns(source) + near(source, result)
    found = run(f"cvt.{mode}.{result}.{source}", oracle.to_array(bits, source), operands="d a")
    for x, actual in zip(bits, oracle.to_bits(found), strict=True):
        expected = converted(x, source, result, mode)
        assert actual == expected, (hex(x), hex(actual), hex(expected))


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("t", FLOATS)
def test_whole_numbers_of_the_same_type(t: str, mode: str) -> None:
    bits = patterns(t)
    found = run(f"cvt.{mode}.{t}.{t}", oracle.to_array(bits, t), operands="d a")
    for x, actual in zip(bits, oracle.to_bits(found), strict=True):
        number = oracle.decode(x, t)
        if number.kind == "finite":
            value = whole(number.signed, mode)
            sign = oracle.LAYOUTS[t].sign if number.negative else 0
            expected = oracle.round_to(Fraction(value), t, "rn") if value else sign
        else:
            expected = converted(x, t, t, "rn")
        assert actual == expected, (hex(x), hex(actual))


def test_flushing_and_saturating_float32() -> None:
    tiny = oracle.to_array([1, 0x80000001], "f32")
    assert oracle.to_bits(run("cvt.ftz.f32.f32", tiny, operands="d a")) == [0, 0x80000000]
    assert run("cvt.rn.ftz.f32.f64", [1e-40], operands="d a").tolist() == [0]
    assert run("cvt.ftz.f64.f32", tiny, operands="d a").tolist() == [0, 0]
    assert run("cvt.rp.ftz.f16.f32", tiny, operands="d a").tolist() == [0, 0]
    bits = patterns("f32")
    found = run("cvt.sat.f32.f32", oracle.to_array(bits, "f32"), operands="d a")
    assert oracle.to_bits(found) == [saturated(x, "f32") for x in bits]
    found = run("cvt.rn.sat.f16.f32", oracle.to_array(bits, "f32"), operands="d a")
    rounded = [converted(x, "f32", "f16", "rn") for x in bits]
    assert oracle.to_bits(found) == [saturated(x, "f16") for x in rounded]
    assert run("cvt.rn.sat.f32.s32", [-3, 0, 7], operands="d a").tolist() == [0, 0, 1]


def test_bf16_to_f16_may_leave_its_rounding_out() -> None:
    x = oracle.to_array(patterns("bf16"), "bf16")
    plain, rounded = (run(f"cvt{mode}.f16.bf16", x, operands="d a") for mode in ("", ".rn"))
    assert plain.tobytes() == rounded.tobytes()


def bounded(bits: int, name: str, relu: bool, finite: bool) -> int:
    """.relu and .satfinite of an encoding."""
    form = oracle.LAYOUTS[name]
    if oracle.is_nan(bits, name):
        return bits
    if relu and bits & form.sign:
        return 0
    if finite and bits & (form.sign - 1) == form.infinity:
        return bits - 1
    return bits


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("t", ["f16", "bf16"])
def test_scalars_and_pairs_from_float32(t: str, mode: str, relu: bool, finite: bool) -> None:
    suffix = ".relu" * relu + ".satfinite" * finite
    bits = patterns("f32") + near("f32", t)
    expected = [bounded(converted(x, "f32", t, mode), t, relu, finite) for x in bits]
    x = oracle.to_array(bits, "f32")
    found = oracle.to_bits(run(f"cvt.{mode}{suffix}.{t}.f32", x, operands="d a"))
    assert found == expected
    y = x[::-1].copy()
    pairs = oracle.to_bits(run(f"cvt.{mode}{suffix}.{t}x2.f32", x, y))
    assert pairs == [a << 16 | b for a, b in zip(expected, expected[::-1], strict=True)]


@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32(mode: str) -> None:
    bits = [x for x in patterns("f32") + near("f32", "bf16") if not oracle.is_nan(x, "f32")]
    bits += [(x << 13 | low) for x in range(0x1FC00, 0x1FC20) for low in (0xFFF, 0x1000, 0x1001)]
    x = oracle.to_array(bits, "f32")
    expected = [converted(a, "f32", "tf32", mode) << 13 for a in bits]
    assert run(f"cvt.{mode}.tf32.f32", x, operands="d a").tolist() == expected
    finite = [min(a & 0x7FFFFFFF, 0x7F7FE000) | a & 0x80000000 for a in expected]
    assert run(f"cvt.{mode}.satfinite.tf32.f32", x, operands="d a").tolist() == finite
    found = run(f"cvt.{mode}.tf32.f32", [math.nan], operands="d a").tolist()
    assert found == [0x7FC00000 if mode == "rna" else 0x7FFFE000]
    if mode != "rna":
        found = run(f"cvt.{mode}.relu.tf32.f32", x, operands="d a").tolist()
        assert found == [0 if a >> 31 else a for a in expected]


# -- eight bits ------------------------------------------------------------------------------


def fp8_values(kind: str) -> dict[int, Fraction]:
    """The finite encodings of e4m3 (bias 7, one NaN) or e5m2 (bias 15, as IEEE)."""
    mantissa, bias, top = (3, 7, 0x7E) if kind == "e4m3" else (2, 15, 0x7B)
    values = {}
    for bits in range(top + 1):
        exponent, fraction = bits >> mantissa, bits & ((1 << mantissa) - 1)
        if exponent:
            fraction |= 1 << mantissa
        values[bits] = fraction * Fraction(2) ** (max(exponent, 1) - bias - mantissa)
    return values


def to_fp8(number: oracle.Number, kind: str, relu: bool) -> int:
    """The nearest encoding, by search; ties go to the even one."""
    if number.kind == "nan":
        return 0x7F
    if relu and number.negative:
        return 0
    values = fp8_values(kind)
    largest = max(values)
    size = values[largest] if number.kind == "infinite" else number.value
    best = min(values, key=lambda bits: (abs(values[bits] - size), bits & 1))
    return best | (0x80 if number.negative else 0)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_to_eight_bits(kind: str, relu: bool) -> None:
    suffix = ".satfinite" + ".relu" * relu
    values = list(fp8_values(kind).values())
    ties = [float(a + b) / 2 for a, b in itertools.pairwise(values)]
    ties += [math.nextafter(x, math.inf) for x in ties] + [math.nextafter(x, 0) for x in ties]
    for source in ("f32", "f16"):
        bits = oracle.specials(source) + oracle.random_patterns(source, 200, 4)
        dtype: Any = np.float32 if source == "f32" else np.float16
        bits += oracle.to_bits(np.array(ties + [-x for x in ties], dtype))
        bits = bits[: len(bits) // 2 * 2]
        x = oracle.to_array(bits, source)
        expected = [to_fp8(oracle.decode(a, source), kind, relu) for a in bits]
        if source == "f32":
            found = run(f"cvt.rn{suffix}.{kind}x2.f32", x, x[::-1].copy())
            pairs = [a << 8 | b for a, b in zip(expected, expected[::-1], strict=True)]
        else:
            found = run(f"cvt.rn{suffix}.{kind}x2.f16x2", x.view(np.uint32), operands="d a")
            pairs = [a | b << 8 for a, b in zip(expected[::2], expected[1::2], strict=True)]
        assert found.tolist() == pairs


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_from_eight_bits(kind: str) -> None:
    bits = np.arange(256, dtype=np.uint8)
    found = run(f"cvt.rn.f16x2.{kind}x2", bits.view(np.uint16), operands="d a")
    values = fp8_values(kind)
    for code, half in zip(bits.tolist(), oracle.to_bits(found.view(np.float16)), strict=True):
        number = oracle.decode(half, "f16")
        if code & 0x7F in values:
            assert number.value == values[code & 0x7F]
            assert number.negative == bool(code & 0x80)
        elif kind == "e5m2" and code & 0x7F == 0x7C:
            assert number.kind == "infinite"
        else:
            assert half == 0x7FFF
    rectified = run(f"cvt.rn.relu.f16x2.{kind}x2", bits.view(np.uint16), operands="d a")
    halves = rectified.view(np.uint16)
    assert not halves[128:240].any()
    assert halves[:120].tolist() == found.view(np.uint16)[:120].tolist()


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
def test_pack(bits: int, kind: str) -> None:
    a, b, c = some("s32", 0), some("s32", 1), some("b32", 2)
    a[::2] %= 1 << bits
    low = -(1 << bits - 1) if kind == "s" else 0
    mask = (1 << bits) - 1

    def clamped(x: int) -> int:
        return max(low, min(low + mask, x)) & mask

    pairs = [clamped(x) << bits | clamped(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    opcode = f"cvt.pack.sat.{kind}{bits}.s32"
    if bits == 16:
        assert run(opcode, a, b).tolist() == pairs
    else:
        expected = [
            (z << 2 * bits | p) & 0xFFFFFFFF for p, z in zip(pairs, c.tolist(), strict=True)
        ]
        assert run(f"{opcode}.b32", a, b, c, operands="d a b c").tolist() == expected


@pytest.mark.parametrize(
    "opcode",
    ["cvt.f16.f32", "cvt.s32.f32", "cvt.rn.s32.f32", "cvt.f32.s32", "cvt.rn.f64.f32",
     "cvt.rna.f16.f32", "cvt.rn.sat.bf16.f32", "cvt.rna.relu.tf32.f32", "cvt.rm.relu.f16.f32",
     "cvt.rn.satfinite.e4m3x2.bf16x2",
     "cvt.rn.e4m3x2.f32", "cvt.rn.relu.f32.f64", "cvt.satfinite.s32.s32", "cvt.rni.f16.f32",
     "cvt.rs.f16x2.f32", "cvt.rn.f16x2.bf16x2", "cvt.pack.sat.u32.s32", "cvt.u32"],
)  # fmt: skip
def test_unknown_forms(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode)

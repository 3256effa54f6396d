"""f16 and bf16 instructions against rational numbers; pairs against two scalars."""

import math

import numpy as np
import pytest
from tests.emulator import exact_oracle as oracle
from tests.emulator.decoding import decode, run
from tests.emulator.test_instructions_floating import OPERANDS, lanes, saturated

from hopwell.emulator.numerics.approximate import BOUNDS
from hopwell.emulator.registry import UnsupportedInstruction

SUFFIXES = ["", ".ftz", ".sat", ".ftz.sat"]
ARITHMETIC = ["add", "add.rn", "sub", "mul", "fma.rn"]


def bits_of(name: str, *values: float) -> list[int]:
    """Encodings of numbers that the format represents."""
    if name == "f16":
        return oracle.to_bits(np.array(values, np.float16))
    return [bits >> 16 for bits in oracle.to_bits(np.array(values, np.float32))]


CASES = [
    *(("f16", opcode, suffix) for opcode in ARITHMETIC for suffix in SUFFIXES),
    *(("bf16", opcode, "") for opcode in ARITHMETIC),
    *((name, "fma.rn", ".relu") for name in ("f16", "bf16")),
]


@pytest.mark.parametrize(("name", "opcode", "suffix"), CASES)
def test_arithmetic(name: str, opcode: str, suffix: str) -> None:
    operation = opcode.split(".")[0]
    count = oracle.COUNTS[operation]
    columns = lanes(name, count, 2000)
    full = f"{opcode}{suffix}.{name}"
    arrays = [oracle.to_array(column, name) for column in columns]
    result = run(full, *arrays, operands=OPERANDS[count])
    for *sources, actual in zip(*columns, oracle.to_bits(result), strict=True):
        expected = oracle.expected(operation, sources, name, "rn", "ftz" in suffix)
        if "sat" in suffix:
            expected = saturated(expected, name)
        if "relu" in suffix and expected & oracle.LAYOUTS[name].sign:
            expected = 0
        assert actual == expected, (full, [hex(x) for x in sources], hex(actual), hex(expected))
    packed = run(f"{full}x2", *[x.view(np.uint32) for x in arrays], operands=OPERANDS[count])
    assert packed.tobytes() == result.tobytes()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fma_near_ties(name: str) -> None:
    """Products that are ties, and thirds that decide them from far below."""
    form = oracle.LAYOUTS[name]
    one, half = form.bias << form.mantissa, form.mantissa // 2
    lanes = [
        (one | 1 << shift, one | 1 << other, sign | exponent << form.mantissa | 1)
        for shift in range(form.mantissa)
        for other in (half, half + 1, form.mantissa - 1)
        for exponent in range(max(1, form.bias - 60), form.bias)
        for sign in (0, form.sign)
    ]
    arrays = [oracle.to_array(column, name) for column in zip(*lanes, strict=True)]
    found = oracle.to_bits(run(f"fma.rn.{name}", *arrays, operands="d a b c"))
    for lane, actual in zip(lanes, found, strict=True):
        assert actual == oracle.expected("fma", lane, name, "rn"), [hex(x) for x in lane]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_min_and_max(name: str) -> None:
    a = bits_of(name, 1, -0.0, 0.0, math.nan, math.nan, -3)
    b = bits_of(name, 2, 0.0, -0.0, 1, math.nan, 2)
    nan = oracle.LAYOUTS[name].nan

    def result(opcode: str) -> list[int]:
        arrays = [oracle.to_array(x, name) for x in (a, b)]
        found = run(f"{opcode}.{name}", *arrays)
        packed = run(f"{opcode}.{name}x2", *[x.view(np.uint32) for x in arrays])
        assert packed.tobytes() == found.tobytes()
        return oracle.to_bits(found)

    assert result("min") == [*bits_of(name, 1, -0.0, -0.0, 1), nan, *bits_of(name, -3)]
    assert result("max") == [*bits_of(name, 2, 0.0, 0.0, 1), nan, *bits_of(name, 2)]
    assert result("min.NaN") == [*bits_of(name, 1, -0.0, -0.0), nan, nan, *bits_of(name, -3)]
    assert result("max.NaN") == [*bits_of(name, 2, 0.0, 0.0), nan, nan, *bits_of(name, 2)]
    signs = bits_of(name, 1, -0.0, -0.0), nan, nan, bits_of(name, -2)
    assert result("min.NaN.xorsign.abs") == [*signs[0], nan, nan, *signs[3]]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_signs(name: str) -> None:
    x = oracle.to_array(bits_of(name, 1, -2, 0.0, -math.inf, 1, 1), name)
    negated = bits_of(name, -1, 2, -0.0, math.inf, -1, -1)
    assert oracle.to_bits(run(f"neg.{name}", x, operands="d a")) == negated
    absolute = bits_of(name, 1, 2, 0.0, math.inf, 1, 1)
    assert oracle.to_bits(run(f"abs.{name}", x, operands="d a")) == absolute
    pairs = run(f"neg.{name}x2", x.view(np.uint32), operands="d a")
    assert oracle.to_bits(pairs.view(np.uint16)) == negated
    pairs = run(f"abs.{name}x2", x.view(np.uint32), operands="d a")
    assert oracle.to_bits(pairs.view(np.uint16)) == absolute


def test_subnormal_f16_is_flushed_on_request() -> None:
    tiny = oracle.to_array([1, 0x8001], "f16")
    assert oracle.to_bits(run("abs.ftz.f16", tiny, operands="d a")) == [0, 0]
    assert oracle.to_bits(run("neg.ftz.f16", tiny, operands="d a")) == [0x8000, 0]
    assert oracle.to_bits(run("max.ftz.f16", tiny, tiny)) == [0, 0x8000]


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("function", ["ex2", "tanh"])
def test_approximations(name: str, function: str) -> None:
    values = np.linspace(-6, 6, 200).astype(np.float32)
    bits = bits_of(name, *values.astype(np.float16).astype(np.float32))
    ftz = ".ftz" if (function, name) == ("ex2", "bf16") else ""
    x = oracle.to_array(bits, name)
    found = run(f"{function}.approx{ftz}.{name}", x, operands="d a")
    packed = run(f"{function}.approx{ftz}.{name}x2", x.view(np.uint32), operands="d a")
    assert packed.tobytes() == found.tobytes()
    bound = BOUNDS[f"{function}.approx.{name}"]
    for source, result in zip(bits, oracle.to_bits(found), strict=True):
        argument = float(oracle.decode(source, name).signed)
        exact = 2.0**argument if function == "ex2" else math.tanh(argument)
        actual = float(oracle.decode(result, name).signed)
        limit = (bound.relative or 0) * abs(exact) + (bound.absolute or 0)
        assert abs(actual - exact) <= limit, (argument, actual)


@pytest.mark.parametrize(
    "opcode",
    ["add.rz.f16", "add.ftz.bf16", "fma.f16", "add.relu.f16", "ex2.approx.bf16", "tanh.f16",
     "ex2.approx.ftz.f16", "add.oob.f16",
     "min.sat.f16", "mul.foo.bf16x2", "ex2.approx.relu.f16x2"],
)  # fmt: skip
def test_unknown_forms(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode)

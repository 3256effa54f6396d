"""float32 and float64 instructions: modifiers against rational numbers, NaN, zeros, bounds."""

import math
from typing import Any

import numpy as np
import pytest
from tests.emulator import exact_oracle as oracle
from tests.emulator.decoding import decode, run

from hopwell.emulator.numerics.approximate import BOUNDS
from hopwell.emulator.registry import UnsupportedInstruction

INF = math.inf
NAN = oracle.LAYOUTS["f32"].nan
OPERANDS = {1: "d a", 2: "d a b", 3: "d a b c"}
MODES = ("rn", "rz", "rm", "rp")


def lanes(name: str, count: int, size: int = 300) -> list[list[int]]:
    """Columns of encodings, specials in every combination among them."""
    columns = [oracle.random_patterns(name, size, seed + 11) for seed in range(count)]
    values = oracle.specials(name)
    rows = np.random.default_rng(5).integers(0, len(values), (size, count))
    return [column + [values[i] for i in rows[:, j]] for j, column in enumerate(columns)]


def saturated(bits: int, name: str) -> int:
    one = oracle.LAYOUTS[name].bias << oracle.LAYOUTS[name].mantissa
    number = oracle.decode(bits, name)
    if number.kind == "nan" or number.negative or bits == 0:
        return 0
    return min(bits, one)


@pytest.mark.parametrize(
    ("operation", "sat"),
    [
        *((name, sat) for name in ("add", "sub", "mul", "fma", "mad") for sat in (False, True)),
        *((name, False) for name in ("div", "rcp", "sqrt")),
    ],
)
@pytest.mark.parametrize("ftz", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_float32(operation: str, mode: str, ftz: bool, sat: bool) -> None:
    inner = "fma" if operation == "mad" else operation
    count = oracle.COUNTS[inner]
    columns = lanes("f32", count)
    opcode = f"{operation}.{mode}{'.ftz' * ftz}{'.sat' * sat}.f32"
    arrays = [oracle.to_array(column, "f32") for column in columns]
    found = oracle.to_bits(run(opcode, *arrays, operands=OPERANDS[count]))
    for *sources, actual in zip(*columns, found, strict=True):
        expected = oracle.expected(inner, sources, "f32", mode, ftz)
        if sat:
            expected = saturated(expected, "f32")
        assert actual == expected, (opcode, [hex(x) for x in sources], hex(actual), hex(expected))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt"])
def test_float64(operation: str, mode: str) -> None:
    inner = "fma" if operation == "mad" else operation
    count = oracle.COUNTS[inner]
    columns = lanes("f64", count, 100)
    arrays = [oracle.to_array(column, "f64") for column in columns]
    found = oracle.to_bits(run(f"{operation}.{mode}.f64", *arrays, operands=OPERANDS[count]))
    for *sources, actual in zip(*columns, found, strict=True):
        expected = oracle.expected(inner, sources, "f64", mode)
        same_nan = oracle.is_nan(expected, "f64") and oracle.is_nan(actual, "f64")
        assert same_nan or actual == expected, (operation, mode, [hex(x) for x in sources])


@pytest.mark.parametrize("opcode", ["add", "add.rm.ftz", "sub.rp", "mul.rz.ftz", "fma.rm"])
def test_pairs_of_float32_are_two_numbers(opcode: str) -> None:
    count = 3 if opcode.startswith("fma") else 2
    columns = lanes("f32", count, 50)
    arrays = [oracle.to_array(column, "f32") for column in columns]
    scalar = run(f"{opcode}.f32", *arrays, operands=OPERANDS[count])
    pairs = [array.view(np.uint64) for array in arrays]
    packed = run(f"{opcode}.f32x2", *pairs, operands=OPERANDS[count])
    assert packed.tobytes() == scalar.tobytes()


def test_the_default_mode_is_to_nearest() -> None:
    a = oracle.to_array(oracle.random_patterns("f32", 64, 0), "f32")
    b = oracle.to_array(oracle.random_patterns("f32", 64, 1), "f32")
    for name in ("add", "sub", "mul"):
        assert run(f"{name}.f32", a, b).tobytes() == run(f"{name}.rn.f32", a, b).tobytes()


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def test_min_and_max() -> None:
    nan = math.nan
    a, b = f32(1, -0.0, 0.0, nan, 2, nan, -0.0), f32(2, 0.0, -0.0, 1, nan, nan, -5)
    assert oracle.to_bits(run("min.f32", a, b)) == [
        *oracle.to_bits(f32(1, -0.0, -0.0, 1, 2)), NAN, *oracle.to_bits(f32(-5)),
    ]  # fmt: skip
    assert oracle.to_bits(run("max.f32", a, b)) == [
        *oracle.to_bits(f32(2, 0.0, 0.0, 1, 2)), NAN, *oracle.to_bits(f32(-0.0)),
    ]  # fmt: skip
    for name in ("min", "max"):
        found = oracle.to_bits(run(f"{name}.NaN.f32", a, b))
        assert [x == NAN for x in found] == [False] * 3 + [True] * 3 + [False]


def test_min_and_max_flush_and_take_three() -> None:
    tiny = np.float32(1e-40)
    assert run("max.ftz.f32", f32(tiny), f32(-1)).tolist() == [0]
    assert run("max.f32", f32(tiny), f32(-1)).tolist() == [tiny]
    three = f32(3, math.nan), f32(1, 2), f32(2, 5)
    assert run("min.f32", *three, operands="d a b c").tolist() == [1, 2]
    assert run("max.f32", *three, operands="d a b c").tolist() == [3, 5]
    assert np.isnan(run("max.NaN.f32", *three, operands="d a b c")).tolist() == [False, True]
    signed = f32(-3, 1), f32(1, -2), f32(2, -5)
    assert run("max.abs.f32", *signed, operands="d a b c").tolist() == [3, 5]
    with pytest.raises(UnsupportedInstruction, match="two sources"):
        decode("max.xorsign.abs.f32", "d a b c")


def test_xorsign() -> None:
    a, b = f32(-3, 3, -3, 1), f32(2, -2, -2, 2)
    assert run("min.xorsign.abs.f32", a, b).tolist() == [-2, -2, 2, 1]
    assert run("max.xorsign.abs.f32", a, b).tolist() == [-3, -3, 3, 2]


def test_float64_min_and_max() -> None:
    a, b = [-0.0, math.nan, 4.0], [0.0, 1.0, -4.0]
    assert [math.copysign(1, x) for x in run("min.f64", a, b)] == [-1, 1, -1]
    assert run("max.f64", a, b).tolist() == [0, 1, 4]


def test_signs() -> None:
    x = f32(-1, 0.0, -0.0, -math.inf, 1e-40)
    assert run("abs.f32", x, operands="d a").tolist() == [1, 0, 0, math.inf, np.float32(1e-40)]
    assert oracle.to_bits(run("neg.f32", x, operands="d a")) == oracle.to_bits(
        f32(1, -0.0, 0.0, math.inf, -1e-40)
    )
    assert oracle.to_bits(run("neg.ftz.f32", x, operands="d a"))[-1] == 0x80000000
    assert oracle.to_bits(run("abs.f32", f32(math.nan), operands="d a")) == [NAN]
    assert run("neg.f64", [1.5], operands="d a").tolist() == [-1.5]
    assert run("abs.f64", [-1.5], operands="d a").tolist() == [1.5]
    assert run("copysign.f32", f32(-1, 1), f32(2, -3)).tolist() == [-2, 3]
    assert run("copysign.f64", [-0.0], [2.0]).tolist() == [-2]


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("finite", "1111000"),
        ("infinite", "0000110"),
        ("number", "1111110"),
        ("notanumber", "0000001"),
        ("normal", "1110000"),
        ("subnormal", "0001000"),
    ],
)
@pytest.mark.parametrize("t", ["f32", "f64"])
def test_testp(question: str, answers: str, t: str) -> None:
    small = 1e-40 if t == "f32" else 1e-310
    values = [1.0, 0.0, -2.0, small, math.inf, -math.inf, math.nan]
    found = run(f"testp.{question}.{t}", values, operands="p a")
    assert found.tolist() == [x == "1" for x in answers]


# -- approximations --------------------------------------------------------------------------

FUNCTIONS = {
    "rcp": lambda x: 1 / x,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sin": math.sin,
    "cos": math.cos,
    "lg2": math.log2,
    "ex2": lambda x: 2.0**x,
    "tanh": math.tanh,
}
DOMAIN = {"sqrt": (1e-30, 1e30), "rsqrt": (1e-30, 1e30), "lg2": (1e-30, 1e30), "ex2": (-120, 120)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_approximations_are_within_the_bound(name: str) -> None:
    low, high = DOMAIN.get(name, (-6.28, 6.28))
    rng = np.random.default_rng(0)
    x = (
        rng.uniform(low, high, 500)
        if low < 0
        else np.exp(rng.uniform(np.log(low), np.log(high), 500))
    )
    x = x.astype(np.float32)
    bound = BOUNDS[f"{name}.approx.f32"]
    found = run(f"{name}.approx.f32", x, operands="d a")
    flushed = [] if name == "tanh" else [run(f"{name}.approx.ftz.f32", x, operands="d a")]
    for argument, *results in zip(x.tolist(), found.tolist(), *map(list, flushed), strict=True):
        exact = FUNCTIONS[name](argument)
        limits = [
            (bound.relative or 0) * abs(exact),
            bound.absolute or 0,
            (bound.ulp or 0) * float(np.spacing(np.float32(abs(exact)))),
        ]
        for result in results:
            assert abs(result - exact) <= max(limits), (name, argument)


@pytest.mark.parametrize(
    ("opcode", "argument", "result"),
    [
        ("ex2.approx.f32", [-INF, INF, -0.0, 1e-40, -130.0], [0, INF, 1, 1, 2.0**-130]),
        ("ex2.approx.ftz.f32", [-130.0, 1e-40, -126.0], [0, 1, 2.0**-126]),
        ("lg2.approx.f32", [0.0, -0.0, INF, 2.0**-130], [-INF, -INF, INF, -130]),
        ("lg2.approx.ftz.f32", [2.0**-130, 8.0], [-INF, 3]),
        ("rcp.approx.ftz.f32", [0.0, -0.0, 1e-40, INF, 2.0**127], [INF, -INF, INF, 0, 0]),
        ("rcp.approx.f32", [2.0**127, -INF], [2.0**-127, -0.0]),
        ("rsqrt.approx.f32", [0.0, -0.0, INF, 4.0], [INF, -INF, 0, 0.5]),
        ("sqrt.approx.f32", [0.0, -0.0, INF, 4.0], [0, -0.0, INF, 2]),
        ("sqrt.approx.ftz.f32", [1e-40, -1e-40], [0, -0.0]),
        ("tanh.approx.f32", [INF, -INF, -0.0], [1, -1, -0.0]),
        ("sin.approx.ftz.f32", [0.0, -0.0, 1e-40], [0, -0.0, 0]),
        ("cos.approx.ftz.f32", [0.0, -0.0, 1e-40], [1, 1, 1]),
    ],
)  # fmt: skip
def test_ends_of_approximations(opcode: str, argument: list[float], result: list[float]) -> None:
    found = run(opcode, f32(*argument), operands="d a")
    assert oracle.to_bits(found) == oracle.to_bits(f32(*result))


@pytest.mark.parametrize("opcode", ["sin", "cos", "lg2", "ex2", "rsqrt", "sqrt", "tanh", "rcp"])
def test_approximations_give_canonical_nan(opcode: str) -> None:
    nan = oracle.to_array([0xFFC00001], "f32")
    assert oracle.to_bits(run(f"{opcode}.approx.f32", nan, operands="d a")) == [NAN]


def test_approximate_division() -> None:
    a, b = f32(1, 1, math.inf, 6), f32(3, 2.0**127, 2.0**127, 2)
    assert run("div.full.f32", a, b).tolist()[:2] == [np.float32(1) / np.float32(3), 2.0**-127]
    found = run("div.approx.f32", a, b)
    assert found.tolist()[:2] == [np.float32(1) / np.float32(3), 0]
    assert oracle.to_bits(found)[2] == NAN
    assert run("div.full.ftz.f32", a, b).tolist()[1] == 0


def test_gross_float64_approximations() -> None:
    x = [3.0, 0.0, -math.inf, 1e-310, 7.5]
    found = run("rcp.approx.ftz.f64", x, operands="d a")
    assert all(bits & 0xFFFFFFFF == 0 for bits in oracle.to_bits(found))
    assert found.tolist()[1:4] == [math.inf, 0, math.inf]
    assert abs(found[0] * 3 - 1) <= (BOUNDS["rcp.approx.ftz.f64"].relative or 0)
    root = run("rsqrt.approx.ftz.f64", [4.0, 0.0], operands="d a")
    assert root.tolist() == [0.5, math.inf]
    for name in ("rcp", "rsqrt"):
        found = run(f"{name}.approx.ftz.f64", [math.nan], operands="d a")
        assert oracle.to_bits(found) == [0x7FFFFFFF00000000]
    assert run("rsqrt.approx.f64", [16.0], operands="d a").tolist() == [0.25]


@pytest.mark.parametrize(
    "opcode",
    ["add.rna.f32", "fma.f32", "add.ftz.f64", "add.sat.f64", "div.f32", "div.approx.f64", "sin.f32",
     "ex2.approx.sat.f32", "min.rn.f32", "sqrt.approx.f64", "rcp.approx.f64", "tanh.approx.ftz.f32",
     "add.rn.rz.f32", "testp.foo.f32", "fma.rn.f32.f16", "min.NaN.f64"],
)  # fmt: skip
def test_unknown_forms(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode)

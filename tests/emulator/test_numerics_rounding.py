"""float32 and float64 arithmetic in every mode against rational numbers, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator import exact_oracle as oracle

from hopwell.emulator.numerics import arithmetic, bits, formats, rounding

# Infinities and NaN among the patterns: the machine runs with NumPy's warnings off.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODES = ("rn", "rz", "rm", "rp")
CASES = [
    (operation, name, mode)
    for operation in oracle.OPERATIONS
    for name in ("f32", "f64")
    for mode in MODES
]


def agree(operation: str, name: str, mode: str, lanes: list[tuple[int, ...]]) -> None:
    """The operation gives the expected bits in every lane."""
    function = arithmetic.operation(operation, name, mode)
    sources = [oracle.to_array(column, name) for column in zip(*lanes, strict=True)]
    with np.errstate(all="ignore"):
        found = oracle.to_bits(function(*sources))
    for lane, actual in zip(lanes, found, strict=True):
        expected = oracle.expected(operation, lane, name, mode)
        if oracle.is_nan(expected, name):
            assert oracle.is_nan(actual, name), [hex(x) for x in lane]
        else:
            assert actual == expected, ([hex(x) for x in lane], hex(actual), hex(expected))


@pytest.mark.parametrize(("operation", "name", "mode"), CASES)
def test_specials_and_random_patterns(operation: str, name: str, mode: str) -> None:
    count = oracle.COUNTS[operation]
    columns = [oracle.random_patterns(name, 600, seed) for seed in range(count)]
    lanes = list(zip(*columns, strict=True))
    values = oracle.specials(name)
    rng = np.random.default_rng(3)
    lanes += [tuple(values[i] for i in row) for row in rng.integers(0, len(values), (400, count))]
    agree(operation, name, mode, lanes)


@settings(deadline=None, max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize(("operation", "name", "mode"), CASES)
def test_patterns(operation: str, name: str, mode: str, data: st.DataObject) -> None:
    lane = st.tuples(*[oracle.patterns(name)] * oracle.COUNTS[operation])
    agree(operation, name, mode, data.draw(st.lists(lane, min_size=1, max_size=6)))


@settings(deadline=None, max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_fma_near_ties(name: str, mode: str, data: st.DataObject) -> None:
    """Products of two numbers of a few more bits than fit, and a third that decides the tie."""
    form = oracle.LAYOUTS[name]
    one = form.bias << form.mantissa
    low = st.integers(0, 1 << (form.mantissa // 2 + 2))
    lanes: list[tuple[int, ...]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        a, b = one | data.draw(low), one | data.draw(low) << (form.mantissa // 2 - 2)
        exponent = data.draw(st.integers(max(1, form.bias - 3 * form.mantissa), form.bias))
        c = data.draw(st.integers(0, 1)) * form.sign | exponent << form.mantissa
        lanes.append((a, b, c | data.draw(st.sampled_from([0, 1]))))
    agree("fma", name, mode, lanes)


def test_fma_decides_a_tie_by_what_float64_drops() -> None:
    """1 + 2**-24 is a tie of float32; 2**-80 more, or less, lies outside float64."""
    a = np.full(3, 1 + 2.0**-12, np.float32)
    b = np.full(3, 1 + 2.0**-12, np.float32)
    tie = (1 + 2.0**-12) ** 2  # 1 + 2**-11 + 2**-24
    c = np.array([0.0, 2.0**-80, -(2.0**-80)], np.float32)
    even = np.float32(1 + 2.0**-11)
    above = np.nextafter(even, np.float32(2))
    assert tie == 1 + 2.0**-11 + 2.0**-24
    assert arithmetic.fma32_nearest(a, b, c).tolist() == [even, above, even]


@pytest.mark.parametrize("mode", [*MODES, "rna"])
@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_quantise(name: str, mode: str) -> None:
    values = [
        oracle.decode(x, "f64")
        for x in oracle.random_patterns("f64", 500, 1) + oracle.specials("f64")
    ]
    near = oracle.to_array(oracle.random_patterns(name, 2000, 2), name)
    exact = formats.DECODE[name](near)
    steps = np.array([1 + 2.0**-12, 1 - 2.0**-9, 1 + 2.0**-25, 1.5, 1 + 2.0**-11])
    wide = np.concatenate(
        [
            exact * np.resize(steps, len(exact)),
            np.array([float(x.signed) for x in values if x.kind == "finite"]),
        ]
    )
    wide = wide[np.isfinite(wide)]
    found = oracle.to_bits(
        formats.ENCODE[name](rounding.quantise(wide, formats.FORMATS[name], mode))
    )
    for x, actual in zip(wide.tolist(), found, strict=True):
        number = oracle.decode(oracle.to_bits(np.array([x]))[0], "f64")
        expected = (
            oracle.round_to(number.signed, name, mode)
            if number.value
            else number.negative * oracle.LAYOUTS[name].sign
        )
        assert actual == expected, (x, hex(actual), hex(expected))


def test_numpy_rounds_float64_to_float16_once() -> None:
    """The half instructions rely on it: ties decided by bits far below, subnormals included."""
    exact = oracle.to_array(oracle.random_patterns("f16", 3000, 5), "f16").astype(np.float64)
    exact = exact[np.isfinite(exact)]
    halfway = (exact + np.nextafter(exact.astype(np.float16), np.float16(np.inf))) / 2
    wide = np.concatenate([np.nextafter(halfway, -np.inf), halfway, np.nextafter(halfway, np.inf)])
    wide = wide[np.isfinite(wide)]
    with np.errstate(all="ignore"):
        found = oracle.to_bits(wide.astype(np.float16))
    for x, actual in zip(wide.tolist(), found, strict=True):
        number = oracle.decode(oracle.to_bits(np.array([x]))[0], "f64")
        if number.value:
            assert actual == oracle.round_to(number.signed, "f16", "rn")


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_flush(name: str) -> None:
    patterns = oracle.specials(name) + oracle.random_patterns(name, 200, 0)
    with np.errstate(all="ignore"):
        found = oracle.to_bits(bits.flush(oracle.to_array(patterns, name)))
    for pattern, actual in zip(patterns, found, strict=True):
        if oracle.is_nan(pattern, name):
            assert oracle.is_nan(actual, name)
        else:
            assert actual == oracle.flush(pattern, name)


@pytest.mark.parametrize("name", ["f16", "f32"])
def test_canonical(name: str) -> None:
    patterns = oracle.specials(name)
    with np.errstate(all="ignore"):
        found = oracle.to_bits(bits.canonical(oracle.to_array(patterns, name)))
    nan = oracle.LAYOUTS[name].nan
    assert found == [nan if oracle.is_nan(x, name) else x for x in patterns]


def test_saturate_and_rectify() -> None:
    x = np.array([-np.inf, -1, -0.0, 0, 0.5, 1, 2, np.inf, np.nan], np.float32)
    saturated = bits.saturate(x)
    assert saturated.tolist() == [0, 0, 0, 0, 0.5, 1, 1, 1, 0]
    assert not np.signbit(saturated).any()
    rectified = bits.rectify(x)
    assert rectified[:-1].tolist() == [0, 0, 0, 0, 0.5, 1, 2, np.inf]
    assert np.isnan(rectified[-1])
    assert not np.signbit(rectified[:-1]).any()

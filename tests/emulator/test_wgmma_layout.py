"""wgmma's layouts against PTX's canonical layouts, tensor copies, and loops over elements."""

from __future__ import annotations

import itertools
import math
import timeit
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from hopwell.emulator import copy_layout as copies
from hopwell.emulator import matrix_product as products
from hopwell.emulator import wgmma_layout as wgmma
from hopwell.emulator.tensor_map import TensorMap
from hopwell.errors import UnsupportedLayout

NO, FULL, HALF, QUARTER = 0, 1, 2, 3  # Swizzle codes of a descriptor: none, 128, 64, 32 bytes.
BASE = 1024  # Shared address of a CTA's first byte.


def encode(start: int, leading: int, stride: int, swizzle: int, base_offset: int = 0) -> int:
    return (start >> 4) | leading >> 4 << 16 | stride >> 4 << 32 | base_offset << 49 | swizzle << 62


def canonical(shape: Any, strides: Any) -> npt.NDArray[np.int64]:
    """Offsets of a CuTe layout by coordinate: the first mode of each pair fastest."""

    def line(sizes: Any, steps: Any) -> list[int]:
        places = itertools.product(*(range(n) for n in reversed(sizes)))
        return [sum(i * s for i, s in zip(p, reversed(steps), strict=True)) for p in places]

    rows, columns = (line(n, s) for n, s in zip(shape, strides, strict=True))
    return np.array([[r + c for c in columns] for r in rows])


# PTX ISA 9.7.15.5.1.2.1.3, figures 166 to 170: element type, the exact layout (M or N, K) in
# elements, swizzle bits, and leading and stride byte offsets of the descriptor.
FIGURES = [
    ("tf32", 4, False, ((8, 2), (4, 4)), ((4, 32), (1, 64)), NO, 64 * 4, 32 * 4),
    ("tf32", 4, False, ((8, 2), (4, 4)), ((8, 64), (1, 4)), QUARTER, 16, 64 * 4),
    ("bf16", 2, True, ((8, 1, 2), (8, 2)), ((1, 8, 64), (8, 128)), NO, 128 * 2, 64 * 2),
    ("bf16", 2, True, ((8, 2, 2), (8, 2)), ((1, 8, 128), (16, 256)), QUARTER, 128 * 2, 256 * 2),
    ("bf16", 2, True, ((8, 4, 2), (8, 2)), ((1, 8, 256), (32, 512)), HALF, 256 * 2, 512 * 2),
]
SPANS = {NO: 0, FULL: 128, HALF: 64, QUARTER: 32}


@pytest.mark.parametrize(
    ("element", "size", "transposed", "shape", "strides", "swizzle", "leading", "stride"), FIGURES
)
def test_chunks_follow_the_figures(
    element: str,
    size: int,
    transposed: bool,
    shape: Any,
    strides: Any,
    swizzle: int,
    leading: int,
    stride: int,
) -> None:
    offsets = canonical(shape, strides) * size
    rows, depth = offsets.shape
    # The figures show two instructions' worth of K where K-major; take the first.
    offsets = offsets[:, : 32 // size]
    addresses = copies.swizzle(4096 + offsets, SPANS[swizzle])
    matrix = wgmma.descriptor(encode(4096, leading, stride, swizzle))
    chunks = wgmma.chunks(matrix, 0, rows, transposed)
    expected = addresses.T[:, ::8] if transposed else addresses[:, :: 16 // size]
    np.testing.assert_array_equal(chunks, expected)
    assert depth * size >= 32


def test_fields_of_a_descriptor() -> None:
    found = wgmma.descriptor(encode(0x3FFF0, 0x1230, 0x20400, FULL, base_offset=5))
    assert found == wgmma.Descriptor(0x3FFF0, 0x1230, 0x20400, 5, 128)
    # What compiled kernels hold: stride 1024, 128-byte swizzle.
    assert wgmma.descriptor(0x4000004000010006) == wgmma.Descriptor(96, 16, 1024, 0, 128)
    assert wgmma.descriptor(0x8000002002000000) == wgmma.Descriptor(0, 8192, 512, 0, 64)


def test_a_base_offset_begins_the_pattern_later() -> None:
    """A tile two lines into a 128-byte pattern, with base offset 2, is laid out as at its start."""
    start = wgmma.descriptor(encode(1024, 16, 1024, FULL))
    moved = wgmma.descriptor(encode(1024 + 256, 16, 1024, FULL, base_offset=2))
    rows = wgmma.chunks(start, 0, 8)
    np.testing.assert_array_equal(wgmma.chunks(moved, 0, 8) - 256, rows)


def load(
    values: npt.NDArray[Any], box: int, span: int, shared: npt.NDArray[Any], address: int
) -> None:
    """Copy a matrix (rows, columns) into shared memory as boxes, one after another.

    Boxes are ``box`` columns wide and all rows high, as kernels lay out their stages.
    """
    rows, columns = values.shape
    size = values.itemsize
    element = {1: "u8", 2: "u16", 4: "u32"}[size]
    tensor_map = TensorMap(
        element, 0, (columns, rows), (columns * size,), (box, min(rows, 256)), (1, 1), swizzle=span
    )
    for n in range(columns // box):
        tile = copies.tile(tensor_map, (n * box, 0))
        data = copies.read_global(tile, values.reshape(-1).view(np.uint8), 0)
        copies.write_shared(tile, data, shared, address + n * tile.bytes)


SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "s8": 1}


@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("element", ["bf16", "tf32", "e4m3"])
@pytest.mark.parametrize("rows", [64, 176])
def test_k_steps_through_a_swizzled_tile(span: int, element: str, rows: int) -> None:
    """Start addresses advance by 32 bytes inside a swizzle atom, then by a whole box."""
    size = SIZES[element]
    rng = np.random.default_rng(4)
    depth = 2 * span // size
    values = rng.integers(0, 1 << 8 * size, (rows, depth)).astype(f"u{size}")
    shared = np.zeros(2 * rows * span + 2048, dtype=np.uint8)
    place = 1024
    load(values, span // size, span, shared, place)
    code = {128: FULL, 64: HALF, 32: QUARTER}[span]
    k = 32 // size
    for step in range(depth // k):
        box, inner = divmod(step * 32, span)
        start = BASE + place + box * rows * span + inner
        matrix = wgmma.descriptor(encode(start, 16, 8 * span, code))
        expected = values[:, step * k : (step + 1) * k]
        found = wgmma.operand(shared, BASE, matrix, 0, rows, element)
        np.testing.assert_array_equal(found, expected)
        # One warp's rows are a part of the same matrix.
        part = wgmma.operand(shared, BASE, matrix, 32, 16, element)
        np.testing.assert_array_equal(part, expected[32:48])


@pytest.mark.parametrize("span", [128, 64, 32])
@pytest.mark.parametrize("width", [64, 192])
def test_k_steps_through_a_transposed_tile(span: int, width: int) -> None:
    """M or N lies contiguous: boxes of one swizzle span, 16 lines of K per instruction."""
    rng = np.random.default_rng(5)
    depth = 80
    values = rng.integers(0, 1 << 16, (depth, width)).astype(np.uint16)
    shared = np.zeros(values.nbytes + 2048, dtype=np.uint8)
    load(values, span // 2, span, shared, 1024)
    code = {128: FULL, 64: HALF, 32: QUARTER}[span]
    for step in range(depth // 16):
        start = BASE + 1024 + step * 16 * span
        matrix = wgmma.descriptor(encode(start, depth * span, 8 * span, code))
        expected = values[16 * step : 16 * step + 16].T
        found = wgmma.operand(shared, BASE, matrix, 0, width, "bf16", transposed=True)
        np.testing.assert_array_equal(found, expected)
        part = wgmma.operand(shared, BASE, matrix, 48, 16, "bf16", transposed=True)
        np.testing.assert_array_equal(part, expected[48:64])


def test_core_matrices_without_a_swizzle() -> None:
    rng = np.random.default_rng(6)
    shared = rng.integers(0, 256, 8192, dtype=np.uint8)
    half = shared.view(np.uint16)
    matrix = wgmma.descriptor(encode(BASE + 64, 2048, 256, NO))
    found = wgmma.operand(shared, BASE, matrix, 0, 32, "f16")
    for row, k in itertools.product(range(32), range(16)):
        place = 64 + row // 8 * 256 + row % 8 * 16 + k // 8 * 2048 + k % 8 * 2
        assert found[row, k] == half[place // 2]
    found = wgmma.operand(shared, BASE, matrix, 0, 32, "f16", transposed=True)
    for row, k in itertools.product(range(32), range(16)):
        place = 64 + row // 8 * 256 + k % 8 * 16 + k // 8 * 2048 + row % 8 * 2
        assert found[row, k] == half[place // 2]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("swizzle", [NO, FULL, HALF, QUARTER])
def test_spans_cover_the_chunks_exactly(transposed: bool, swizzle: int) -> None:
    stride = 8 * (SPANS[swizzle] or 16)
    matrix = wgmma.descriptor(encode(3072 + 32 * (swizzle == FULL), 8192, stride, swizzle))
    for first, count in ((0, 64), (16, 16), (0, 72)):
        starts, size = wgmma.spans(matrix, first, count, transposed)
        covered = (starts[:, None] + np.arange(size)).reshape(-1)
        chunks = wgmma.chunks(matrix, first, count, transposed).reshape(-1, 1)
        expected = np.sort((chunks + np.arange(16)).reshape(-1))
        np.testing.assert_array_equal(covered, expected)
    # Whole lines are one run, however the swizzle permutes their chunks.
    assert swizzle != FULL or wgmma.spans(matrix, 0, 64, False)[1] == 32


def test_registers_of_a() -> None:
    """The formulas of figure 148 and its neighbours: m16n8k16's, for each warp."""
    registers = np.arange(128, dtype=np.uint32).reshape(4, 32) * 0x01010101
    half = wgmma.fragment(registers, "f16")
    byte = wgmma.fragment(registers, "s8")
    word = wgmma.fragment(registers, "tf32")
    assert (half.shape, byte.shape, word.shape) == ((16, 16), (16, 32), (16, 8))
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            column = thread * 2 + i % 2 + (8 if i >= 4 else 0)
            assert half[row, column] == registers[i // 2, lane] & 0xFFFF
        for i in range(16):
            row = group if i < 4 or 8 <= i < 12 else group + 8
            column = thread * 4 + i % 4 + (16 if i >= 8 else 0)
            assert byte[row, column] == registers[i // 4, lane] & 0xFF
        for i in range(4):
            row, column = (group, group + 8)[i % 2], thread + 4 * (i // 2)
            assert word[row, column] == registers[i, lane]
    np.testing.assert_array_equal(word[wgmma.fragment_map()], registers)


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_registers_of_the_accumulator(n: int) -> None:
    """Figure 149: pairs of columns, rows 8 apart, then the next eight columns."""
    registers = np.arange(n // 2 * 32, dtype=np.float32).reshape(n // 2, 32)
    matrix = wgmma.accumulators_to_matrix(registers, "f32")
    assert matrix.shape == (16, n)
    for i, lane in itertools.product(range(n // 2), range(32)):
        row = lane // 4 + 8 * (i // 2 % 2)
        column = i // 4 * 8 + lane % 4 * 2 + i % 2
        assert matrix[row, column] == registers[i, lane]
    np.testing.assert_array_equal(wgmma.matrix_to_accumulators(matrix, "f32"), registers)
    np.testing.assert_array_equal(matrix[wgmma.accumulator_map(n, "f32")], registers)

    rng = np.random.default_rng(7)
    halves = rng.integers(0, 0x7C00, (n // 4, 32, 2)).astype(np.uint16)
    packed = halves.view(np.uint32)[..., 0]
    matrix = wgmma.accumulators_to_matrix(packed, "f16")
    for i, lane, part in itertools.product(range(n // 4), range(32), range(2)):
        row, column = lane // 4 + 8 * (i % 2), i // 2 * 8 + lane % 4 * 2 + part
        assert matrix.view(np.uint16)[row, column] == halves[i, lane, part]
    np.testing.assert_array_equal(wgmma.matrix_to_accumulators(matrix, "f16"), packed)
    lower = matrix.view(np.uint16)[wgmma.accumulator_map(n, "f16")]
    np.testing.assert_array_equal(lower, halves[..., 0])


FORMS = [
    ("m64n128k16.f32.bf16.bf16", (128, 16, "bf16", "bf16", "f32", False), 64),
    ("m64n72k16.f16.f16.f16", (72, 16, "f16", "f16", "f16", False), 18),
    ("m64n16k8.f32.tf32.tf32", (16, 8, "tf32", "tf32", "f32", False), 8),
    ("m64n8k32.f16.e4m3.e5m2", (8, 32, "e4m3", "e5m2", "f16", False), 2),
    ("m64n8k32.s32.s8.u8.satfinite", (8, 32, "s8", "u8", "s32", True), 4),
    ("m64n48k32.satfinite.s32.u8.u8", (48, 32, "u8", "u8", "s32", True), 24),
    ("m64n256k256.s32.b1.b1.and.popc", (256, 256, "b1", "b1", "s32", False), 128),
]


@pytest.mark.parametrize(("text", "fields", "registers"), FORMS)
def test_forms(text: str, fields: tuple[Any, ...], registers: int) -> None:
    found = wgmma.form(["mma_async", "sync", "aligned", *text.split(".")])
    assert found == wgmma.Form(*fields)
    assert found.registers == registers
    assert found.transposable == (found.a_type in ("f16", "bf16"))
    assert found.scalable == (found.accumulator != "s32")


@pytest.mark.parametrize(
    "text",
    [
        "sp.m64n128k32.f32.bf16.bf16",
        "m64n128k32.f32.bf16.bf16",
        "m64n264k16.f32.bf16.bf16",
        "m64n12k16.f32.bf16.bf16",
        "m64n40k32.s32.s8.s8",
        "m64n8k16.f16.bf16.bf16",
        "m64n8k32.f32.e4m3.bf16",
        "m64n8k256.s32.b1.b1.xor.popc",
        "m64n8k256.s32.b1.b1",
        "m64n8k16.f32.bf16",
        "",
    ],
)
def test_forms_that_ptx_does_not_have_or_we_do_not_model(text: str) -> None:
    with pytest.raises(UnsupportedLayout):
        wgmma.form(["mma_async", "sync", "aligned", *text.split(".")])


KINDS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "tf32": np.float32,
}


@pytest.mark.parametrize("element", KINDS)
def test_decoded_values(element: str) -> None:
    size = np.dtype(KINDS[element]).itemsize
    if size < 4:
        bits = np.arange(1 << 8 * size).astype(f"u{size}")
    else:
        bits = np.random.default_rng(8).integers(0, 1 << 32, 4096).astype(np.uint32)
        bits &= 0xFFFFE000
    with np.errstate(invalid="ignore"):
        expected = bits.view(KINDS[element]).astype(np.float64)
        found = products.decode(bits, element)
        np.testing.assert_array_equal(found, expected)
    if element == "tf32":
        keep = np.isfinite(expected)
        noisy = np.where(keep, bits | np.uint32(0x1FFF), bits)
        np.testing.assert_array_equal(products.decode(noisy[keep], element), expected[keep])


def exact(a: npt.NDArray[Any], b: npt.NDArray[Any], c: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Exact sums as fractions."""
    fraction = np.vectorize(Fraction, otypes=[object])
    return fraction(a) @ fraction(b) + fraction(c)


def aligned(
    x: npt.NDArray[Any], y: npt.NDArray[Any], c: npt.NDArray[Any], bits: int
) -> npt.NDArray[Any]:
    """Sums of terms that were each cut ``bits`` below the largest exponent, as fractions."""

    def exponent(value: float) -> int:
        return math.frexp(value)[1] - 1 if value else -9999

    sums = np.empty(c.shape, object)
    for i, j in np.ndindex(c.shape):
        terms = [Fraction(float(c[i, j]))]
        top = exponent(float(c[i, j]))
        for a, b in zip(x[i].tolist(), y[:, j].tolist(), strict=True):
            terms.append(Fraction(a) * Fraction(b))
            top = max(top, exponent(a) + exponent(b))
        unit = Fraction(2) ** (top - bits)
        sums[i, j] = sum(math.trunc(term / unit) for term in terms) * unit
    return sums


def toward_zero(value: Fraction, digits: int) -> Fraction:
    """A fraction cut to a number of significant bits."""
    if not value:
        return value
    unit = Fraction(2) ** (math.frexp(float(value))[1] - digits)
    return math.trunc(value / unit) * unit


PAIRS = [
    ("f16", "f16", "f32", 16),
    ("f16", "f16", "f16", 16),
    ("bf16", "bf16", "f32", 16),
    ("tf32", "tf32", "f32", 8),
    ("e4m3", "e4m3", "f32", 32),
    ("e5m2", "e4m3", "f32", 32),
    ("e4m3", "e5m2", "f16", 32),
]


@pytest.mark.parametrize(("a_type", "b_type", "accumulator", "depth"), PAIRS)
@pytest.mark.parametrize("negate", [False, True])
def test_products_stay_within_the_bound_of_exact_sums(
    a_type: str, b_type: str, accumulator: str, depth: int, negate: bool
) -> None:
    rng = np.random.default_rng(9)
    # Wide exponents, so that terms cancel and small ones matter.
    scale = np.exp2(rng.integers(-4, 4, (16, depth)))
    a = (rng.standard_normal((16, depth)) * scale).astype(KINDS[a_type])
    b = rng.standard_normal((depth, 8)).astype(KINDS[b_type])
    kind = np.float16 if accumulator == "f16" else np.float32
    c = (rng.standard_normal((16, 8)) * 8).astype(kind)
    sizes = (f"u{a.itemsize}", f"u{b.itemsize}")
    bits = a.view(sizes[0]), b.view(sizes[1])
    result = products.multiply(*bits, c, a_type, b_type, accumulator, negate=negate)
    assert result.dtype == kind
    x, y = products.decode(bits[0], a_type), products.decode(bits[1], b_type)
    truth = exact(-x if negate else x, y, c)
    bound = products.accumulation_bound(x, y, c.astype(np.float64), a_type, accumulator)
    error = np.abs(np.vectorize(Fraction, otypes=[object])(result.astype(np.float64)) - truth)
    assert (error.astype(np.float64) <= bound).all()
    expected = aligned(-x if negate else x, y, c, 13 if "e" in a_type else 25)
    if accumulator == "f32":
        expected = np.vectorize(toward_zero)(expected, 14 if "e" in a_type else 24)
    np.testing.assert_array_equal(result, expected.astype(np.float64).astype(kind))
    # The bound means something: it is small against the terms.
    digits = 10 if accumulator == "f16" else 13 if "e" in a_type else 23
    assert (bound <= (depth + 2) * 2.0 ** (1 - digits) * (np.abs(x) @ np.abs(y) + np.abs(c))).all()


def test_without_an_accumulator_nothing_is_added() -> None:
    a, b = np.full((16, 16), 0x3F80, np.uint16), np.full((16, 8), 0x4000, np.uint16)
    assert (products.multiply(a, b, None, "bf16", "bf16", "f32") == 32).all()
    c = np.full((16, 8), 0.5, np.float32)
    assert (products.multiply(a, b, c, "bf16", "bf16", "f32") == 32.5).all()


def test_fp8_sums_keep_fourteen_significant_bits() -> None:
    one = np.full((16, 32), 0x38, np.uint8)  # 1.0 in e4m3
    c = np.full((16, 8), 2.0**20 + 1, np.float32)
    result = products.multiply(one, one[:8].T, c, "e4m3", "e4m3", "f32")
    assert (result == 2.0**20).all()
    below = products.multiply(one, one[:8].T, -c, "e4m3", "e4m3", "f32")
    assert (below == -(2.0**20)).all()
    large = np.full((16, 32), 0x60, np.uint8)  # 32.0: products of 1024 are not cut
    below = products.multiply(large, large[:8].T, -c, "e4m3", "e4m3", "f32")
    assert (below == -(2.0**20) + 32 * 1024).all()


@pytest.mark.parametrize(("accumulator", "bits"), [("f32", 0x7FFFFFFF), ("f16", 0x7FFF)])
def test_what_is_no_number_is_always_the_same_one(accumulator: str, bits: int) -> None:
    a = np.zeros((16, 16), np.uint16)
    a[0, :2], a[1, 0], a[2, 0] = (0x7C00, 0xFC00), 0xFE01, 0x7C00
    b = np.full((16, 8), 0x3C00, np.uint16)
    with np.errstate(invalid="ignore"):
        result = products.multiply(a, b, None, "f16", "f16", accumulator)
    found = result.view(f"u{result.itemsize}")
    assert (found[:2] == bits).all()
    assert np.isposinf(result[2]).all()
    assert not found[3:].any()


def test_integers_wrap_or_saturate() -> None:
    a, b = np.full((16, 32), 0x7F, np.uint8), np.full((32, 8), 0x7F, np.uint8)
    c = np.full((16, 8), np.iinfo(np.int32).max - 5, np.int32)
    total = 32 * 127 * 127 + int(c[0, 0])
    wrapped = products.multiply(a, b, c, "s8", "s8", "s32")
    assert (wrapped == total - (1 << 32)).all()
    assert (products.multiply(a, b, c, "s8", "s8", "s32", saturate=True) == (1 << 31) - 1).all()
    low = products.multiply(a | 0x80, b, -c, "s8", "u8", "s32", saturate=True)
    assert (low == np.iinfo(np.int32).min).all()
    few = products.multiply(a | 0x80, b, None, "s8", "u8", "s32", saturate=True)
    assert (few == -32 * 127).all()
    assert not products.accumulation_bound(a, b, c, "s8", "s32").any()


def test_single_bits_count_common_ones() -> None:
    rng = np.random.default_rng(10)
    shared = rng.integers(0, 256, 4096, dtype=np.uint8)
    matrix = wgmma.descriptor(encode(BASE, 128, 256, NO))
    a = wgmma.operand(shared, BASE, matrix, 0, 16, "b1")
    b = wgmma.operand(shared, BASE, matrix, 16, 8, "b1")
    assert a.shape == (16, 256)
    result = products.multiply(a, b.T, None, "b1", "b1", "s32")

    def number(row: int) -> int:
        place = row // 8 * 256 + row % 8 * 16
        return int.from_bytes(
            bytes(shared[place : place + 16]) + bytes(shared[place + 128 : place + 144]), "little"
        )

    expected = [[bin(number(m) & number(16 + n)).count("1") for n in range(8)] for m in range(16)]
    assert result.tolist() == expected


@pytest.mark.parametrize("a_source", ["K-major", "M-major", "registers"])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_a_warpgroup_multiplies_tiles_that_copies_brought(
    a_source: str, b_transposed: bool
) -> None:
    """Tiles through shared memory, four K steps, four warps: the whole path of a kernel."""
    rng = np.random.default_rng(12)
    n, depth = 192, 64
    # Small integers: every sum is exact, so the order of the steps does not matter.
    a = rng.integers(-8, 8, (64, depth)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-8, 8, (depth, n)).astype(ml_dtypes.bfloat16)
    shared = np.zeros(64 * 1024, dtype=np.uint8)
    b_place = 16 * 1024
    a_held = np.ascontiguousarray(a.T if a_source == "M-major" else a).view(np.uint16)
    b_held = np.ascontiguousarray(b if b_transposed else b.T).view(np.uint16)
    load(a_held, 64, 128, shared, 0)
    load(b_held, 64, 128, shared, b_place)
    bits = a.view(np.uint16)

    result = np.zeros((64, n), dtype=np.float32)
    for warp in range(4):
        registers = np.zeros((n // 2, 32), dtype=np.float32)
        rows = slice(16 * warp, 16 * warp + 16)
        for step in range(depth // 16):
            advance = 2048 * step if b_transposed else 32 * step
            b_matrix = wgmma.descriptor(encode(BASE + b_place + advance, 8192, 1024, FULL))
            if a_source == "registers":
                row, word = wgmma.fragment_map()
                part = np.ascontiguousarray(bits[rows, 16 * step : 16 * step + 16])
                a_part = wgmma.fragment(part.view(np.uint32)[row, word], "bf16")
            else:
                m_major = a_source == "M-major"
                advance = 2048 * step if m_major else 32 * step
                a_matrix = wgmma.descriptor(encode(BASE + advance, 16, 1024, FULL))
                a_part = wgmma.operand(shared, BASE, a_matrix, 16 * warp, 16, "bf16", m_major)
            b_part = wgmma.operand(shared, BASE, b_matrix, 0, n, "bf16", b_transposed).T
            c = wgmma.accumulators_to_matrix(registers, "f32") if step else None
            d = products.multiply(a_part, b_part, c, "bf16", "bf16", "f32")
            registers = wgmma.matrix_to_accumulators(d, "f32")
        result[rows] = wgmma.accumulators_to_matrix(registers, "f32")
    np.testing.assert_array_equal(result, a.astype(np.float32) @ b.astype(np.float32))


def test_one_warps_share_is_computed_without_a_loop() -> None:
    """About 150 us; the limit leaves room for a busy machine, not for work per element."""
    shared = np.zeros(1 << 16, dtype=np.uint8)
    a_matrix = wgmma.descriptor(encode(BASE, 16, 1024, FULL))
    b_matrix = wgmma.descriptor(encode(BASE + 16384, 16, 1024, FULL))
    registers = np.zeros((64, 32), dtype=np.float32)

    def step() -> npt.NDArray[Any]:
        a = wgmma.operand(shared, BASE, a_matrix, 16, 16, "bf16")
        b = wgmma.operand(shared, BASE, b_matrix, 0, 128, "bf16")
        c = wgmma.accumulators_to_matrix(registers, "f32")
        d = products.multiply(a, b.T, c, "bf16", "bf16", "f32")
        return wgmma.matrix_to_accumulators(d, "f32")

    seconds = min(timeit.repeat(step, number=100, repeat=20)) / 100
    assert seconds < 1500e-6, f"{seconds * 1e6:.0f} us"

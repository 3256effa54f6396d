"""Tensor copies against a loop over single elements, and swizzles against PTX's own tables."""

from __future__ import annotations

import itertools
import timeit
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopwell.emulator import copy_layout as copies
from hopwell.emulator.tensor_map import TensorMap
from hopwell.errors import InputError, UnsupportedLayout

# PTX ISA 5.5.7: for each line of 128 bytes of a pattern, which chunk of the line is found at
# each place. Chunks of 16 bytes; one line per row of the table there.
PATTERNS = {
    (32, 16): ["01234567", "10325476"],
    (64, 16): ["01234567", "10325476", "23016745", "32107654"],
    (128, 16): [
        "01234567",
        "10325476",
        "23016745",
        "32107654",
        "45670123",
        "54761032",
        "67452301",
        "76543210",
    ],
    (128, 32): ["01234567", "23016745", "45670123", "67452301"],
    (128, 64): ["01234567", "45670123"],
}


@pytest.mark.parametrize(("span", "atom"), PATTERNS)
def test_swizzle_follows_the_table_of_its_mode(span: int, atom: int) -> None:
    table = PATTERNS[span, atom]
    for line in range(16):
        for place, chunk in enumerate(table[line % len(table)]):
            linear = np.array([4096 + line * 128 + int(chunk) * 16 + 5])
            assert copies.swizzle(linear, span, atom)[0] == 4096 + line * 128 + place * 16 + 5


def table_place(address: int, span: int, atom: int) -> int:
    """Shared address after a swizzle, by table; address of any byte."""
    if not span:
        return address
    row = PATTERNS[span, atom][address // 128 % len(PATTERNS[span, atom])]
    return address // 128 * 128 + row.index(str(address // 16 % 8)) * 16 + address % 16


def slow_load(
    tensor_map: TensorMap,
    coordinates: tuple[int, ...],
    memory: npt.NDArray[Any],
    base: int,
    shared: npt.NDArray[Any],
    destination: int,
) -> list[int]:
    """Element by element, straight from the definition. Returns the bytes written."""
    size, written = tensor_map.itemsize, []
    steps = (1, *tensor_map.element_strides[1:])
    ranges = [range(0, n, s) for n, s in zip(tensor_map.box, steps, strict=True)]
    for n, reverse in enumerate(itertools.product(*ranges[::-1])):
        place = [c + i for c, i in zip(coordinates, reverse[::-1], strict=True)]
        inside = all(0 <= p < e for p, e in zip(place, tensor_map.extents, strict=True))
        strides = (size, *tensor_map.strides)
        source = base + sum(p * s for p, s in zip(place, strides, strict=True))
        for byte in range(size):
            target = table_place(destination + n * size + byte, tensor_map.swizzle, tensor_map.atom)
            shared[target] = memory[source + byte] if inside else 0
            written.append(target)
    return written


@st.composite
def copies_of_tiles(draw: st.DrawFn) -> tuple[TensorMap, tuple[int, ...], int]:
    element = draw(st.sampled_from(["u8", "bf16", "f32", "u64"]))
    size = {"u8": 1, "bf16": 2, "f32": 4, "u64": 8}[element]
    span, atom = draw(st.sampled_from([(0, 16), *PATTERNS]))
    rank = draw(st.integers(1, 5))
    inner = (span or 16 * draw(st.integers(1, 3))) // size
    outer = [draw(st.integers(1, 6)) for _ in range(rank - 1)]
    steps = [draw(st.integers(1, 2)) for _ in range(rank - 1)]
    extents = [draw(st.integers(1, 2 * inner)), *(draw(st.integers(1, 6)) for _ in outer)]
    strides, pitch = [], -(-extents[0] * size // 16) * 16
    for extent in extents[1:]:
        strides.append(pitch + 16 * draw(st.integers(0, 1)))
        pitch = strides[-1] * extent
    tensor_map = TensorMap(
        element=element,
        address=0,
        extents=tuple(extents),
        strides=tuple(strides),
        box=(inner, *outer),
        element_strides=(1, *steps),
        swizzle=span,
        atom=atom,
    )
    coordinates = [draw(st.integers(-inner - 1, 2 * inner))]
    coordinates += [draw(st.integers(-3, 6)) for _ in outer]
    return tensor_map, tuple(coordinates), draw(st.integers(0, 15)) * 128


@settings(max_examples=150, deadline=None)
@given(copies_of_tiles())
def test_a_load_equals_the_loop_over_elements(case: tuple[TensorMap, tuple[int, ...], int]) -> None:
    tensor_map, coordinates, destination = case
    base = 48
    rng = np.random.default_rng(1)
    memory = rng.integers(0, 256, base + tensor_map.span, dtype=np.uint8)
    shared = rng.integers(0, 256, destination + tensor_map.tile_bytes + 128, dtype=np.uint8)
    expected = shared.copy()
    written = slow_load(tensor_map, coordinates, memory, base, expected, destination)

    tile = copies.tile(tensor_map, coordinates)
    copies.write_shared(tile, copies.read_global(tile, memory, base), shared, destination)

    np.testing.assert_array_equal(shared, expected)
    # Every byte of the box is written exactly once, and none beside it.
    assert sorted(written) == list(range(destination, destination + tile.bytes))
    assert tile.bytes == tensor_map.tile_bytes
    chunks = copies.shared_chunks(tile, destination)
    assert chunks.tolist() == [w for w in written[::1] if w % 16 == 0]


@settings(max_examples=150, deadline=None)
@given(copies_of_tiles())
def test_a_store_changes_what_a_load_reads_and_nothing_else(
    case: tuple[TensorMap, tuple[int, ...], int],
) -> None:
    tensor_map, coordinates, source = case
    rng = np.random.default_rng(2)
    memory = rng.integers(0, 256, tensor_map.span, dtype=np.uint8)
    before = memory.copy()
    shared = rng.integers(0, 256, source + tensor_map.tile_bytes, dtype=np.uint8)
    tile = copies.tile(tensor_map, coordinates)
    data = copies.read_shared(tile, shared, source)
    copies.write_global(tile, data, memory, 0)

    touched = np.zeros(memory.size, dtype=bool)
    for start in tile.rows:
        touched[start : start + tile.row_bytes] = True
    np.testing.assert_array_equal(memory[~touched], before[~touched])
    assert touched.sum() == tile.rows.size * tile.row_bytes
    if tile.row_bytes:
        assert np.flatnonzero(touched)[[0, -1]].tolist() == [tile.extent[0], tile.extent[1] - 1]

    element = data.view(f"u{tile.itemsize}").reshape(tile.shape)
    inside = np.zeros(tile.shape, dtype=bool)
    inside[tile.inside] = True
    again = copies.read_global(tile, memory, 0).view(f"u{tile.itemsize}").reshape(tile.shape)
    np.testing.assert_array_equal(again, np.where(inside, element, 0))


def test_elements_outside_can_arrive_as_nan() -> None:
    tensor_map = TensorMap("bf16", 0, (8, 2), (16,), (8, 4), (1, 1), fill_nan=True)
    memory = np.zeros(32, dtype=np.uint8)
    tile = copies.tile(tensor_map, (4, 1))
    data = copies.read_global(tile, memory, 0).view(ml_dtypes.bfloat16).reshape(4, 8)
    finite = np.isfinite(data.astype(np.float32))
    assert finite.sum() == 4
    assert finite[0, :4].all()


def test_a_tile_wholly_outside_is_all_fill_and_touches_nothing() -> None:
    tensor_map = TensorMap("f32", 0, (8, 2), (32,), (8, 2), (1, 1))
    for coordinates in ((0, 2), (0, -2), (8, 0), (-8, 0), (0, 1 << 30)):
        tile = copies.tile(tensor_map, coordinates)
        memory = np.full(64, 7, dtype=np.uint8)
        assert not copies.read_global(tile, memory, 0).any()
        copies.write_global(tile, np.ones(64, dtype=np.uint8), memory, 0)
        assert (memory == 7).all()
        assert tile.rows.size == 0
        assert tile.clipped
        assert tile.bytes == 64


PLAIN = TensorMap("bf16", 0, (64, 64), (128,), (64, 8), (1, 1), swizzle=128)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"interleave": 16}, "interleave"),
    ],
)
def test_copies_that_are_not_modelled(change: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedLayout, match=what):
        copies.tile(replace(PLAIN, **change), (0, 0))


def test_coordinates_must_fit_the_rank() -> None:
    with pytest.raises(InputError, match="rank of the tensor map"):
        copies.tile(PLAIN, (0, 0, 0))


def test_a_map_beyond_its_buffer_is_an_error_rather_than_a_read() -> None:
    tile = copies.tile(PLAIN, (0, 60))
    with pytest.raises(InputError, match="outside its buffer"):
        copies.read_global(tile, np.zeros(64 * 128 - 1, dtype=np.uint8), 0)


def test_a_ragged_tensor_is_cut_where_its_sequence_ends() -> None:
    """Kernels bound a sequence of a packed tensor by a map that starts far before it.

    Rows count down to the end of a huge extent, and a further dimension with the same stride
    moves the window to the sequence: no byte behind its last row is written.
    """
    height, row = 1 << 30, 128
    tensor_map = TensorMap(
        "bf16", 0, (64, height, (1 << 31) - 1), (row, row), (64, 8, 1), (1, 1, 1), swizzle=128
    )
    memory = np.zeros(40 * row, dtype=np.uint8)
    start, length = 10, 5
    tile = copies.tile(tensor_map, (0, height - length, start + length))
    data = np.arange(8 * row, dtype=np.uint64).astype(np.uint8) | np.uint8(1)
    copies.write_global(tile, data, memory, -height * row)
    written = memory.reshape(40, row).any(axis=1)
    assert np.flatnonzero(written).tolist() == [10, 11, 12, 13, 14]
    np.testing.assert_array_equal(memory[10 * row : 15 * row], data[: 5 * row])
    assert tile.extent[0] - height * row == 10 * row


def test_a_broadcast_tensor_cannot_be_reduced_into() -> None:
    tile = copies.tile(replace(PLAIN, strides=(0,)), (0, 0))
    with pytest.raises(UnsupportedLayout, match="strides other than zero"):
        copies.reduce_global(
            tile, np.zeros(tile.bytes, np.uint8), np.zeros(128, np.uint8), 0, "add", "bf16"
        )


def test_a_reduction_leaves_out_what_lies_outside() -> None:
    tensor_map = TensorMap("f32", 0, (6, 3), (32,), (8, 2), (1, 1))
    memory = np.arange(24, dtype=np.float32)
    tile = copies.tile(tensor_map, (0, 2))
    data = np.full(16, 100, dtype=np.float32)
    copies.reduce_global(tile, data.view(np.uint8), memory.view(np.uint8), 0, "add", "f32")
    expected = np.arange(24, dtype=np.float32)
    expected[16:22] += 100
    np.testing.assert_array_equal(memory, expected)


WORDS = [0, 1, 2, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


ORACLE: dict[tuple[str, str], Callable[[int, int], int]] = {
    ("add", "u32"): lambda o, n: (o + n) % (1 << 32),
    ("add", "s32"): lambda o, n: (o + n) % (1 << 32),
    ("min", "u32"): lambda o, n: min(o, n),
    ("max", "u32"): lambda o, n: max(o, n),
    ("min", "s32"): lambda o, n: min(o, n, key=signed),
    ("max", "s32"): lambda o, n: max(o, n, key=signed),
    ("inc", "u32"): lambda o, n: 0 if o >= n else o + 1,
    ("dec", "u32"): lambda o, n: n if o == 0 or o > n else o - 1,
    ("and", "b32"): lambda o, n: o & n,
    ("or", "b32"): lambda o, n: o | n,
    ("xor", "b32"): lambda o, n: o ^ n,
}


@pytest.mark.parametrize(("operation", "element"), ORACLE)
def test_integer_reductions(operation: str, element: str) -> None:
    pairs = list(itertools.product(WORDS, WORDS))
    kind = copies.storage(element)
    old, new = (np.array(side, dtype=np.uint32).view(kind) for side in zip(*pairs, strict=True))
    result = copies.reduce(operation, element, old, new)
    assert result.dtype == kind
    expected = [ORACLE[operation, element](o, n) for o, n in pairs]
    assert result.view(np.uint32).tolist() == expected


@pytest.mark.parametrize(("element", "kind"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_half_precision_sums_round_to_nearest_even(element: str, kind: type[Any]) -> None:
    bits = np.random.default_rng(3).integers(0, 1 << 16, (2, 20_000)).astype(np.uint16)
    old, new = bits.view(kind)
    with np.errstate(all="ignore"):
        exact = old.astype(np.float64) + new.astype(np.float64)
        result = copies.reduce("add", element, *(b.view(copies.storage(element)) for b in bits))
        # Both formats' sums fit float32 closely enough that its rounding is harmless.
        expected = exact.astype(np.float32).astype(kind).astype(np.float64)
    found = result.view(kind).astype(np.float64)
    np.testing.assert_array_equal(found, expected)


def test_minimum_and_maximum_prefer_numbers_and_order_zeros() -> None:
    old = np.array([np.nan, 1, -0.0, 0.0, np.nan], dtype=np.float16)
    new = np.array([2, np.nan, 0.0, -0.0, np.nan], dtype=np.float16)
    low = copies.reduce("min", "f16", old, new)
    high = copies.reduce("max", "f16", old, new)
    assert low[:2].tolist() == high[:2].tolist() == [2, 1]
    assert np.signbit(low[2:4]).all()
    assert not np.signbit(high[2:4]).any()
    assert np.isnan([low[4], high[4]]).all()


def test_the_flushing_sum_drops_subnormals_and_keeps_signs() -> None:
    tiny = np.finfo(np.float32).tiny
    old = np.array([tiny / 2, -tiny / 2, tiny, 1.5 * tiny], dtype=np.float32)
    new = np.array([1, -tiny / 4, tiny, -tiny], dtype=np.float32)
    result = copies.reduce("add", "f32.ftz", old, new)
    assert result.tolist() == [1, 0, 2 * tiny, 0]
    assert np.signbit(result).tolist() == [False, True, False, False]
    assert copies.reduce("add", "f32", old, new)[3] == 0.5 * tiny


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "f64", "f32.ftz"])
def test_every_sum_that_is_no_number_is_the_same_one(element: str) -> None:
    kind = copies.storage(element)
    size = np.dtype(kind).itemsize
    infinity = {"bf16": 0x7F80, "f16": 0x7C00, "f64": 0x7FF << 52}.get(element, 0x7F800000)
    top = 1 << 8 * size - 1
    old = np.array([infinity, infinity + 1, infinity], dtype=f"u{size}").view(kind)
    new = np.array([infinity | top, 0, infinity], dtype=f"u{size}").view(kind)
    with np.errstate(invalid="ignore"):
        result = copies.reduce("add", element, old, new).view(f"u{size}")
    assert result.tolist() == [top - 1, top - 1, infinity]


@pytest.mark.parametrize(("operation", "element"), [("min", "f32"), ("inc", "s32"), ("mul", "u32")])
def test_reductions_that_ptx_does_not_have(operation: str, element: str) -> None:
    with pytest.raises(UnsupportedLayout, match="no such reduction"):
        copies.reduce(operation, element, np.zeros(1), np.zeros(1))


def test_a_tile_is_copied_without_a_loop() -> None:
    """About 20 us; the limit leaves room for a busy machine, not for work per chunk."""
    memory = np.zeros(1 << 20, dtype=np.uint8)
    shared = np.zeros(1 << 17, dtype=np.uint8)
    tensor_map = TensorMap("bf16", 0, (64, 4096), (128,), (64, 128), (1, 1), swizzle=128)

    def load() -> None:
        tile = copies.tile(tensor_map, (0, 256))
        copies.write_shared(tile, copies.read_global(tile, memory, 0), shared, 1024)

    seconds = min(timeit.repeat(load, number=100, repeat=20)) / 100
    assert seconds < 300e-6, f"{seconds * 1e6:.0f} us"

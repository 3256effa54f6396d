"""Tensor maps: bits against a table written field by field, and the rules of the format."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopwell.emulator import tensor_map as maps
from hopwell.emulator.tensor_map import TensorMap
from hopwell.errors import TensorMapError, UnsupportedLayout

# (lowest bit, bits) in the 1024-bit descriptor.
ADDRESS, RANK, TYPE, INTERLEAVE, SWIZZLE = (0, 64), (68, 3), (71, 4), (75, 2), (77, 2)
NAN, TF32, ATOM, SPAN_96 = (79, 1), (80, 1), (83, 2), (86, 1)
STRIDES_LOW = [(96 + 32 * d, 32) for d in range(4)]
STRIDES_HIGH = [(224 + 4 * d, 4) for d in range(4)]
EXTENTS = [(256 + 32 * d, 32) for d in range(5)]
STEPS = [(416 + 3 * d, 3) for d in range(5)]
BOXES = [(440 + 8 * d, 8) for d in range(5)]

PLAIN = TensorMap(
    element="bf16",
    address=0x7F1234567890,
    extents=(128, 1000, 3),
    strides=(256, 1 << 36),
    box=(64, 128, 1),
    element_strides=(1, 1, 1),
    swizzle=128,
)


def bits(**fields: tuple[tuple[int, int], int]) -> bytes:
    number = sum(value << low for (low, _), value in fields.values())
    return number.to_bytes(128, "little")


def read(data: bytes, field: tuple[int, int]) -> int:
    low, size = field
    return int.from_bytes(data, "little") >> low & (1 << size) - 1


def test_every_field_lies_where_ptxas_puts_it() -> None:
    data = maps.encode(replace(PLAIN, element_strides=(1, 2, 8), fill_nan=True))
    assert read(data, ADDRESS) == 0x7F1234567890
    assert read(data, RANK) == 2
    assert read(data, TYPE) == 10
    assert read(data, INTERLEAVE) == 0
    assert read(data, SWIZZLE) == 3
    assert read(data, NAN) == 1
    assert [read(data, f) for f in STRIDES_LOW] == [16, 0, 0, 0]
    assert [read(data, f) for f in STRIDES_HIGH] == [0, 1, 0, 0]
    assert [read(data, f) for f in EXTENTS] == [127, 999, 2, 0, 0]
    assert [read(data, f) for f in STEPS] == [0, 1, 7, 0, 0]
    assert [read(data, f) for f in BOXES] == [63, 127, 0, 0, 0]


@pytest.mark.parametrize(
    ("code", "tf32", "element", "size"),
    [
        (0, 0, "u8", 1),
        (1, 0, "u16", 2),
        (2, 0, "u32", 4),
        (3, 0, "s32", 4),
        (4, 0, "u64", 8),
        (5, 0, "s64", 8),
        (6, 0, "f16", 2),
        (7, 0, "f32", 4),
        (8, 0, "f32.ftz", 4),
        (9, 0, "f64", 8),
        (10, 0, "bf16", 2),
        (7, 1, "tf32", 4),
        (8, 1, "tf32.ftz", 4),
    ],
)
def test_element_types(code: int, tf32: int, element: str, size: int) -> None:
    found = maps.decode(bits(a=(TYPE, code), b=(TF32, tf32), c=(BOXES[0], 15)))
    assert (found.element, found.itemsize) == (element, size)
    assert maps.decode(maps.encode(found)) == found


@st.composite
def tensor_maps(draw: st.DrawFn) -> TensorMap:
    rank = draw(st.integers(1, 5))
    element = draw(st.sampled_from(["u8", "s32", "u64", "f16", "bf16", "f32", "f64", "tf32"]))
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    limit = (swizzle or 256) // 16
    inner = draw(st.integers(1, limit)) * 16 // maps.itemsize(element)

    def each(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    return TensorMap(
        element=element,
        address=draw(st.integers(0, (1 << 57) - 1)) * 16,
        extents=each(1, 1 << 32, rank),
        strides=tuple(16 * n for n in each(0, (1 << 36) - 1, rank - 1)),
        box=(inner, *each(1, 256, rank - 1)),
        element_strides=each(1, 8, rank),
        swizzle=swizzle,
        atom=draw(st.sampled_from([16, 32, 64])) if swizzle == 128 else 16,
        fill_nan=element in maps.FLOATING and draw(st.booleans()),
    )


@given(tensor_maps())
def test_encoded_and_decoded_again(tensor_map: TensorMap) -> None:
    assert maps.decode(maps.encode(tensor_map)) == tensor_map


@given(tensor_maps(), st.binary(min_size=68, max_size=68), st.integers(0, 15))
def test_what_is_not_initialised_is_not_read(
    tensor_map: TensorMap, rubbish: bytes, low: int
) -> None:
    data = maps.encode(tensor_map)[:60] + rubbish
    flags = struct.unpack_from("<I", data, 8)[0] | low | 1 << 21
    assert maps.decode(data[:8] + struct.pack("<I", flags) + data[12:]) == tensor_map


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"a": (TYPE, 11)}, "element type"),
        ({"a": (TYPE, 13)}, "element type"),
        ({"a": (SPAN_96, 1)}, "96 bytes"),
        ({"a": (SWIZZLE, 3), "b": (ATOM, 2)}, "8-byte flip"),
    ],
)
def test_formats_that_are_not_modelled(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedLayout, match=what):
        maps.decode(bits(**fields))


@pytest.mark.parametrize("fields", [{"a": (RANK, 5)}, {"a": (INTERLEAVE, 3)}])
def test_bits_that_are_no_tensor_map(fields: dict[str, Any]) -> None:
    with pytest.raises(TensorMapError, match="hold something else"):
        maps.decode(bits(**fields))


def test_a_descriptor_has_128_bytes() -> None:
    with pytest.raises(TensorMapError, match="128 bytes"):
        maps.decode(bytes(64))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"extents": (), "strides": (), "box": (), "element_strides": ()}, "rank"),
        ({"strides": (256,)}, "numbers of strides"),
        ({"extents": (128, 0, 3)}, "extents"),
        ({"extents": (128, 1, (1 << 32) + 1)}, "extents"),
        ({"box": (64, 257, 1)}, "box"),
        ({"element_strides": (1, 9, 1)}, "element strides"),
        ({"address": 8}, "address"),
        ({"address": 16, "interleave": 32}, "address"),
        ({"strides": (264, 1 << 36)}, "strides in bytes"),
        ({"strides": (256, 1 << 40)}, "strides in bytes"),
        ({"box": (60, 1, 1)}, "multiple of 16"),
        ({"swizzle": 64}, "at most 64"),
        ({"element": "u16", "fill_nan": True}, "floating-point"),
        (
            {
                "interleave": 16,
                "extents": (8, 8),
                "strides": (16,),
                "box": (8, 8),
                "element_strides": (1, 1),
            },
            "rank of an interleaved",
        ),
    ],
)
def test_rules_of_the_encoder(change: dict[str, Any], what: str) -> None:
    with pytest.raises(TensorMapError, match=what):
        maps.encode(replace(PLAIN, **change))


def test_span_reaches_the_last_element() -> None:
    assert replace(PLAIN, strides=(256, 4096)).span == 2 * 4096 + 999 * 256 + 127 * 2 + 2


def test_a_tile_skips_along_every_dimension_but_the_first() -> None:
    tensor_map = replace(PLAIN, box=(64, 7, 8), element_strides=(3, 2, 8))
    assert tensor_map.tile == (64, 4, 1)
    assert tensor_map.tile_bytes == 64 * 4 * 2


def test_a_map_must_stay_inside_its_buffer() -> None:
    tensor_map = replace(PLAIN, strides=(256, 256_000))
    start, size = tensor_map.address, tensor_map.span
    maps.validate(tensor_map, start, size)
    maps.validate(tensor_map, start - 64, size + 64)
    for address, extent in ((start, size - 1), (start + 16, size), (start - 64, size)):
        with pytest.raises(TensorMapError, match="inside the buffer"):
            maps.validate(tensor_map, address, extent)


@pytest.mark.parametrize(
    ("field", "entry", "value", "changed"),
    [
        ("global_address", 0, 0x7F0000000100, {"address": 0x7F0000000100}),
        ("rank", 0, 1, {"extents": (128, 1000), "strides": (256,), "box": (64, 128),
                        "element_strides": (1, 1)}),
        ("elemtype", 0, 6, {"element": "f16"}),
        ("swizzle_mode", 0, 2, {"swizzle": 64, "box": (32, 128, 1)}),
        ("fill_mode", 0, 1, {"fill_nan": True}),
        ("global_dim", 2, 7, {"extents": (128, 1000, 7)}),
        ("global_stride", 1, (3 << 36) + 64, {"strides": (256, (3 << 36) + 64)}),
        ("element_stride", 1, 2, {"element_strides": (1, 2, 1)}),
        ("box_dim", 1, 9, {"box": (64, 9, 1)}),
    ],
)  # fmt: skip
def test_a_replaced_field_is_the_encoded_one(
    field: str, entry: int, value: int, changed: dict[str, Any]
) -> None:
    data = maps.replaced(maps.encode(PLAIN), field, value, entry)
    if field == "swizzle_mode":
        data = maps.replaced(data, "box_dim", 32, 0)
    expected = replace(PLAIN, **changed)
    assert maps.decode(data) == expected
    if field != "rank":  # which leaves what lies beyond it
        assert data == maps.encode(expected)

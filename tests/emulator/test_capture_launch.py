"""Launches as data: parameters, buffers, addresses that move, tensor maps that are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hopwell.emulator import tensor_map
from hopwell.emulator.capture.launch import ENDLESS, Buffer, Launch, aligned_copy
from hopwell.emulator.capture.parameters import parameters_of
from hopwell.emulator.tensor_map import TensorMap
from hopwell.errors import CaptureError, TensorMapError

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry first(.param .u8 first_a) { ret; }
.visible .entry second(
    .param .f32 second_scale,
    .param .align 64 .b8 second_map[128],
    .param .u64 .ptr .global .align 16 second_out,
    .param .align 4 .b8 second_shape[12]
)
.reqntid 32
{ ret; }
"""


def make(x: NDArray[Any], described: TensorMap, out: NDArray[Any], **options: Any) -> Launch:
    arguments = [0.5, described, out, b"\x01\0\0\0" * 3]
    launch = Launch.of(PTX, "second", (2, 1, 1), (32, 1, 1), arguments, **options)
    return Launch(
        PTX,
        "second",
        launch.grid,
        launch.block,
        parameters=launch.parameters,
        buffers=(Buffer("x", x), *launch.buffers),
        **options,
    )


def matrix(x: NDArray[Any], *, extents: tuple[int, ...] | None = None, move: int = 0) -> TensorMap:
    """A map of the rows of a float32 matrix."""
    return TensorMap(
        element="f32",
        address=x.ctypes.data + move,
        extents=extents or (x.shape[1], x.shape[0]),
        strides=(x.strides[0],),
        box=(8, 8),
        element_strides=(1, 1),
    )


@pytest.fixture
def launch() -> Launch:
    x = aligned_copy(np.arange(16 * 8, dtype=np.float32).reshape(16, 8))
    return make(x, matrix(x), np.zeros(4, np.float32), shared_bytes=64, registers=40)


def test_parameters_stand_at_their_alignment() -> None:
    layout = parameters_of(PTX, "second")
    assert [(entry.type, entry.offset, entry.size) for entry in layout] == [
        ("f32", 0, 4),
        ("b8", 64, 128),
        ("u64", 192, 8),
        ("b8", 200, 12),
    ]
    assert [list(entry.tensor_maps) for entry in layout] == [[], [64], [], []]
    assert [entry.size for entry in parameters_of(PTX, "first")] == [1]


def test_an_unknown_kernel_is_named_with_those_there_are() -> None:
    with pytest.raises(CaptureError, match="first, second, got third"):
        parameters_of(PTX, "third")


def test_arguments_become_parameters_and_buffers(launch: Launch) -> None:
    out = launch.buffer("second_out")
    assert launch.parameters[:4] == np.float32(0.5).tobytes()
    assert launch.parameters[192:200] == out.address.to_bytes(8, "little")
    assert launch.parameters[200:] == b"\x01\0\0\0" * 3
    assert [
        (pointer.offset, pointer.buffer.name, pointer.displacement) for pointer in launch.pointers
    ] == [(64, "x", 0), (192, "second_out", 0)]
    assert launch.buffer_at(out.address + 15) is out
    assert launch.buffer_at(out.address + 16) is not out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([0.5], "4: f32, b8, u64, b8, got 1"),
        (["half", b"", 0, b""], "a value of 4 bytes, type f32, got 'half'"),
        ([0.5, b"\0" * 128, -(2**63) - 1, b"\0" * 12], "a value of 8 bytes, type u64"),
        ([0.5, b"\0" * 128, 0, b"\0" * 11], r"sizes \[4, 128, 8, 12\]"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[object], expected: str) -> None:
    with pytest.raises(CaptureError, match=expected):
        Launch.of(PTX, "second", (1, 1, 1), (32, 1, 1), arguments)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"grid": (0, 1, 1)}, "grid .* three positive extents"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "a multiple of the cluster"),
        ({"parameters": b"ab"}, "expected 1 bytes, got 2 bytes"),
    ],
)
def test_an_impossible_launch_is_refused(options: dict[str, Any], expected: str) -> None:
    usual: dict[str, Any] = {"grid": (1, 1, 1), "block": (32, 1, 1), "parameters": b"a"}
    with pytest.raises(CaptureError, match=expected):
        Launch(PTX, "first", **{**usual, **options})


def test_a_buffer_is_one_range_of_memory() -> None:
    with pytest.raises(CaptureError, match="C-contiguous"):
        Buffer("x", np.zeros((4, 4))[:, :2])


def test_a_saved_launch_is_the_same_at_other_addresses(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "one.launch"
    launch.save(path)
    loaded = Launch.load(path)
    same = ("ptx", "kernel", "grid", "block", "cluster", "shared_bytes", "registers", "filename")
    assert [getattr(loaded, name) for name in same] == [getattr(launch, name) for name in same]
    for before, after in zip(launch.buffers, loaded.buffers, strict=True):
        assert before.name == after.name
        assert before.address != after.address
        np.testing.assert_array_equal(before.array, after.array)
    assert [mapped.map.address for mapped in loaded.tensor_maps] == [loaded.buffer("x").address]
    assert loaded.parameters[:64] == launch.parameters[:64]
    assert loaded.parameters[72:192] == launch.parameters[72:192]


def test_a_copy_leaves_the_original_alone(launch: Launch) -> None:
    copy = launch.copy()
    copy.buffer("x").array[...] = 7
    assert launch.buffer("x").array[0, 1] == 1
    assert copy.pointers[0].buffer is copy.buffer("x")
    assert copy.buffer("x").address % 256 == 0


def test_relocation_wants_memory_of_the_same_sizes(launch: Launch) -> None:
    with pytest.raises(CaptureError, match=r"expected \[512, 16\], got \[512, 8\]"):
        launch.relocated([launch.buffers[0], Buffer("small", np.zeros(2, np.float32))])


def test_what_looks_like_an_address_inside_a_map_is_left_alone(launch: Launch) -> None:
    parameters = bytearray(launch.parameters)
    parameters[64 + 64 : 64 + 72] = launch.buffer("x").address.to_bytes(8, "little")
    odd = Launch(
        PTX,
        "second",
        launch.grid,
        launch.block,
        parameters=bytes(parameters),
        buffers=launch.buffers,
    )
    assert [pointer.offset for pointer in odd.pointers] == [64, 192]
    assert odd.copy().parameters[128:136] == odd.parameters[128:136]


def test_tensor_maps_are_checked_against_the_buffers() -> None:
    x = aligned_copy(np.zeros((16, 8), np.float32))
    out = np.zeros(4, np.float32)
    make(x, matrix(x), out).check_tensor_maps()
    make(x, matrix(x, extents=(8, 8), move=8 * 32), out).check_tensor_maps()
    with pytest.raises(
        TensorMapError, match="a tensor inside x, 512 bytes, got one that ends at byte 544"
    ):
        make(x, matrix(x, extents=(8, 17)), out).check_tensor_maps()
    with pytest.raises(TensorMapError, match=r"the address of one of \['x', 'second_out'\]"):
        make(x, matrix(x, move=1 << 20), out).check_tensor_maps()


def test_a_ragged_map_begins_an_endless_dimension_before_its_tensor(tmp_path: Path) -> None:
    """Its last dimension repeats the rows' stride, so that a sequence's end can be its bound."""
    x = aligned_copy(np.zeros((16, 8), np.float32))
    stride = x.strides[0]
    ragged = TensorMap(
        element="f32",
        address=(x.ctypes.data - ENDLESS * stride) % 2**64,
        extents=(8, ENDLESS, 2**31 - 1),
        strides=(stride, stride),
        box=(8, 8, 1),
        element_strides=(1, 1, 1),
    )
    launch = make(x, ragged, np.zeros(4, np.float32))
    launch.check_tensor_maps()
    assert launch.pointers[0].displacement % 2**64 == -ENDLESS * stride % 2**64
    launch.save(tmp_path / "ragged.launch")
    loaded = Launch.load(tmp_path / "ragged.launch")
    moved = loaded.buffer("x").address - ENDLESS * stride
    assert loaded.tensor_maps[0].map.address == moved % 2**64
    assert loaded.tensor_maps[0].buffer is loaded.buffer("x")
    assert tensor_map.decode(loaded.parameters[64:192]).extents == ragged.extents

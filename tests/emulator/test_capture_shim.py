"""The native stand-in for the CUDA runtime: launches through its C interface, and its errors."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np
import pytest

from hopwell.emulator.capture import shim
from hopwell.emulator.capture.cubin import image_at
from hopwell.errors import CaptureError

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 scale_x, .param .f32 scale_by) { ret; }
"""
#: As short as an ELF file can be: a header that says where nothing follows.
ELF = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF", 2, 190, 1, 0, 64, 64, 0, 64, 56, 0, 64, 0, 0)


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("_", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint32),
    ]


def start(native: ctypes.CDLL, image: bytes, x: np.ndarray) -> int:
    """What a host function does: load code, find its kernel, launch it with a cluster."""
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    native._cudaLibraryLoadData(ctypes.byref(library), image, None, None, 0, None, None, 0)
    native._cudaLibraryGetKernel(ctypes.byref(kernel), library, b"scale")
    attributes = (Attribute * 2)(
        Attribute(6, b"", (1,)), Attribute(4, b"", (2, 1, 1))
    )  # 4 is cudaLaunchAttributeClusterDimension
    config = Config((4, 2, 1), (64, 1, 1), 1000, None, attributes, 2)
    address, by = ctypes.c_uint64(x.ctypes.data), ctypes.c_float(1.5)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(by))
    return native._cudaLaunchKernelEx(ctypes.byref(config), kernel, arguments)


def test_a_launch_arrives_as_it_was_made() -> None:
    x, launches = np.zeros(8, np.float32), []

    def receive(native: shim.NativeLaunch) -> None:
        launches.append(native.described(PTX, []))

    with shim.receiving(receive):
        assert start(shim.load(), ELF, x) == 0
    (launch,) = launches
    assert launch.grid == (4, 2, 1)
    assert launch.block == (64, 1, 1)
    assert launch.cluster == (2, 1, 1)
    assert launch.shared_bytes == 1000
    assert launch.parameters == struct.pack("<Qf", x.ctypes.data, 1.5)
    assert launch.registers is None


def test_an_exception_fails_the_launch_and_waits() -> None:
    def receive(native: shim.NativeLaunch) -> None:
        raise ValueError(native.kernel)

    with shim.receiving(receive) as failures:
        assert start(shim.load(), ELF, np.zeros(1)) == shim.LAUNCH_FAILURE
        with pytest.raises(ValueError, match="scale"):
            failures.release()
        failures.release()  # once


def test_a_launch_that_nobody_receives_fails() -> None:
    with shim.receiving(lambda launch: None):
        pass
    assert start(shim.load(), ELF, np.zeros(1)) == shim.LAUNCH_FAILURE


def test_code_is_found_inside_a_fat_binary() -> None:
    entry = struct.pack("<HHIQ", 2, 0x101, 64, len(ELF)).ljust(64, b"\0") + ELF
    other = struct.pack("<HHIQ", 1, 0x101, 64, 8).ljust(72, b"\0")
    image = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(other) + len(entry)) + other + entry
    memory = ctypes.create_string_buffer(image)
    assert image_at(ctypes.addressof(memory)) == ELF


def test_other_code_is_refused() -> None:
    memory = ctypes.create_string_buffer(b"//PTX text")
    with pytest.raises(CaptureError, match="a cubin"):
        image_at(ctypes.addressof(memory))


def test_the_device_answers_for_a_hopper() -> None:
    native, value = shim.load(), ctypes.c_int()
    for attribute, expected in ((75, 9), (76, 0), (16, 132), (97, 232448)):
        assert native._cudaDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
        assert value.value == expected


def test_without_a_compiler_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CaptureError, match=r"\$CC, cc, gcc or clang.*Install a C compiler"):
        shim.library.__wrapped__()
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(CaptureError, match="none of no-such-compiler on the PATH"):
        shim.library.__wrapped__()


def test_a_failing_compiler_shows_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho no headers here >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(CaptureError, match="exit status 3: no headers here"):
        shim.library.__wrapped__()

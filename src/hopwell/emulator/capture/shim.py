"""The native library that stands for the CUDA runtime: built at first use, heard from Python."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopwell.emulator.capture.cubin import image_at, registers_of
from hopwell.emulator.capture.device import HOPPER
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.capture.memory import Extent, with_memory
from hopwell.emulator.capture.parameters import pack_parameters, parameters_of, short_name
from hopwell.errors import CaptureError

_SOURCE = Path(__file__).with_name("shim.c")
#: cudaErrorLaunchFailure: what a host function is told when its launch was not performed.
LAUNCH_FAILURE = 719


class _Extent(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32)]

    def triple(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class _Launch(ctypes.Structure):
    """``struct launch`` of shim.c."""

    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("image", ctypes.c_void_p),
        ("grid", _Extent),
        ("block", _Extent),
        ("cluster", _Extent),
        ("shared_bytes", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
    ]


_Receiver = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))


@dataclass(frozen=True)
class NativeLaunch:
    """A launch as the host function made it; ``arguments`` live only while it is received."""

    kernel: str
    image: bytes
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    arguments: Any

    def described(self, ptx: str, extents: Iterable[Extent]) -> Launch:
        """The launch as data: its code's text, and the memory that its caller passed.

        Raises:
            TensorMapError: a tensor map among the parameters describes other memory.
        """
        layout = parameters_of(ptx, self.kernel)
        values = [
            ctypes.string_at(self.arguments[index], entry.size)
            for index, entry in enumerate(layout)
        ]
        launch = Launch(
            ptx=ptx,
            kernel=self.kernel,
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            shared_bytes=self.shared_bytes,
            parameters=pack_parameters(layout, values),
            registers=registers_of(self.image, self.kernel),
            filename=f"{short_name(self.kernel)}.ptx",
        )
        return with_memory(launch, extents)


@functools.cache
def library() -> Path:
    """The shim, compiled for this process by ``$CC``, cc, gcc or clang.

    Raises:
        CaptureError: there is no C compiler, or it failed.
    """
    command = _compiler()
    directory = tempfile.mkdtemp(prefix="hopwell-shim-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "libhopwell_shim.so"
    done = subprocess.run(
        [*command, "-O1", "-fPIC", "-shared", "-o", str(path), str(_SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CaptureError(
            f"compiling {_SOURCE.name} with {shlex.join(command)}",
            expected="a shared library",
            actual=f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}",
            consequence="Launches of CuTe DSL kernels cannot be captured.",
        )
    return path


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CC", ""))
    candidates = [chosen] if chosen else [["cc"], ["gcc"], ["clang"]]
    for command in candidates:
        if shutil.which(command[0]):
            return command
    raise CaptureError(
        "capturing launches of CuTe DSL kernels",
        expected="a C compiler: $CC, cc, gcc or clang",
        actual=f"none of {', '.join(command[0] for command in candidates)} on the PATH",
        consequence="The library that receives launches cannot be built. Install a C compiler, "
        "or run the kernel's PTX directly.",
    )


@functools.cache
def load(globally: bool = False) -> ctypes.CDLL:
    """The shim in this process; ``globally`` lets code find it by CUDA's public names."""
    mode = ctypes.RTLD_GLOBAL if globally else ctypes.RTLD_LOCAL
    native = ctypes.CDLL(str(library()), mode=mode)
    for attribute, value in HOPPER.attributes.items():
        native.hopwell_set_attribute(attribute, value)
    return native


class Failures:
    """What receivers raised: it cannot pass through native code, so it waits here."""

    def __init__(self) -> None:
        self._first: BaseException | None = None

    def hold(self, error: BaseException) -> None:
        """Keep an exception, unless one waits already: what follows a failure means little."""
        self._first = self._first or error

    def release(self) -> None:
        """Raise what waits, once."""
        error, self._first = self._first, None
        if error is not None:
            raise error


@contextmanager
def receiving(
    on_launch: Callable[[NativeLaunch], None], globally: bool = False
) -> Iterator[Failures]:
    """Hand every launch of this process to a function while the block runs.

    When the function raises, the host function is told that its launch failed; whoever called it
    raises the cause with :meth:`Failures.release`.
    """
    native, failures = load(globally), Failures()

    def receive(pointer: Any) -> int:
        raw = pointer.contents
        try:
            on_launch(
                NativeLaunch(
                    kernel=raw.kernel.decode(),
                    image=image_at(raw.image),
                    grid=raw.grid.triple(),
                    block=raw.block.triple(),
                    cluster=raw.cluster.triple(),
                    shared_bytes=raw.shared_bytes,
                    arguments=raw.arguments,
                )
            )
        except BaseException as error:
            failures.hold(error)
            return LAUNCH_FAILURE
        return 0

    receiver = _Receiver(receive)
    native.hopwell_receive(receiver)
    try:
        yield failures
    finally:
        native.hopwell_receive(_Receiver())

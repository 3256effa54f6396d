"""Launches of Triton kernels by programs that run on CPU tensors."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from hopwell.emulator import tensor_map
from hopwell.emulator.capture import stand_ins
from hopwell.emulator.capture.cubin import registers_of
from hopwell.emulator.capture.device import HOPPER
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.capture.memory import Extent, extents_of, with_memory
from hopwell.emulator.capture.parameters import pack_parameters, parameters_of, short_name
from hopwell.errors import CaptureError

OnLaunch = Callable[[Launch], object]

_FLOATS = {"fp16": "<e", "fp32": "<f", "f32": "<f", "fp64": "<d"}
#: Element types by the numbers in which Triton's metadata has them, the descriptor's own.
_ELEMENTS = {
    0: "u8",
    1: "u16",
    2: "u32",
    3: "s32",
    4: "u64",
    5: "s64",
    6: "f16",
    7: "f32",
    8: "f32.ftz",
    9: "f64",
    10: "bf16",
}
_SWIZZLES = (0, 32, 64, 128)


@contextmanager
def capture(on_launch: OnLaunch | None = None) -> Iterator[list[Launch]]:
    """Receive the launches of every Triton kernel that is started in the block.

    Like :func:`hopwell.emulator.capture.cute.capture`, for kernels of ``@triton.jit`` started as
    ``kernel[grid](...)`` on CPU torch tensors: they are compiled for Hopper, without a GPU.
    An autotuned kernel takes its first configuration: there is nothing to time.

    Raises:
        CaptureError: Triton is not installed, or an argument is of a kind that is not known.
    """
    try:
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime import driver
    except ImportError as error:
        raise CaptureError(
            "capturing launches of Triton kernels",
            expected="Triton (triton on PyPI)",
            actual=str(error),
            consequence="Nothing was run. A kernel's PTX can be run without it.",
        ) from error
    launches: list[Launch] = []

    def receive(launch: Launch) -> None:
        launches.append(launch)
        if on_launch is not None:
            on_launch(launch)

    def _init_handles(kernel: Any) -> None:
        kernel.function = 0
        kernel._run = _Runner(kernel, receive)

    with ExitStack() as stack:
        stack.enter_context(stand_ins.torch_stand_ins())
        stack.enter_context(stand_ins.replaced(driver, "_active", _driver()))
        stack.enter_context(stand_ins.replaced(CompiledKernel, "_init_handles", _init_handles))
        yield launches


def _driver() -> Any:
    """What Triton asks its GPU driver before it compiles and launches."""
    import torch
    from triton.backends.compiler import GPUTarget

    def benchmarker(call: Any, *, quantiles: Any = None, **_: Any) -> list[float]:
        return [0.0] * len(quantiles or (0.5,))

    # Triton keeps compiled kernels by device: those of a capture end with it.
    device = object()
    return SimpleNamespace(
        get_current_device=lambda: device,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", HOPPER.major * 10 + HOPPER.minor, 32),
        get_active_torch_device=lambda: torch.device("cpu"),
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: benchmarker,
        get_empty_cache_for_benchmark=lambda: torch.empty(0),
        clear_cache=lambda cache: None,
        utils=SimpleNamespace(
            get_device_properties=lambda device: {
                "max_shared_mem": HOPPER.shared_memory_per_block_optin,
                "multiprocessor_count": HOPPER.multi_processor_count,
                "max_num_regs": HOPPER.regs_per_multiprocessor,
                "warpSize": HOPPER.warp_size,
            },
        ),
    )


class _Runner:
    """What Triton calls to launch a compiled kernel."""

    def __init__(self, kernel: Any, receive: Callable[[Launch], None]) -> None:
        self._kernel = kernel
        self._receive = receive

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: Any,
        function: Any,
        packed: Any,
        data: Any,
        enter_hook: Any,
        exit_hook: Any,
        *args: Any,
    ) -> None:
        kernel, metadata = self._kernel, self._kernel.metadata
        names = list(kernel.src.signature)
        extents = [
            extent
            for name, value in zip(names, args, strict=True)
            for extent in extents_of(str(name), _memory_of(value))
        ]
        scratch = [
            _scratch(metadata, kind, x * y * z * metadata.num_ctas)
            for kind in ("global", "profile")
        ]
        extents += [extent for extent, _ in scratch if extent is not None]
        values = [
            *_values(kernel.src.signature.values(), args, iter(metadata.tensordesc_meta or ())),
            *(address.to_bytes(8, "little") for _, address in scratch),
        ]
        ptx = kernel.asm["ptx"]
        layout = parameters_of(ptx, metadata.name)
        launch = Launch(
            ptx=ptx,
            kernel=metadata.name,
            grid=(x * metadata.num_ctas, y, z),
            block=(metadata.num_warps * metadata.warp_size, 1, 1),
            cluster=(metadata.num_ctas, 1, 1),
            shared_bytes=metadata.shared,
            parameters=pack_parameters(layout, values),
            registers=registers_of(kernel.asm["cubin"], metadata.name),
            filename=f"{short_name(metadata.name)}.ptx",
        )
        self._receive(with_memory(launch, extents))


def _memory_of(value: Any) -> Any:
    """The tensor behind an argument: a descriptor's base, and so in tuples."""
    if isinstance(value, tuple):
        return [_memory_of(entry) for entry in value]
    return getattr(value, "base", value)


def _scratch(metadata: Any, kind: str, ctas: int) -> tuple[Extent | None, int]:
    """Memory of the launch's own that a kernel asks for (descriptors made on the device)."""
    size = (getattr(metadata, f"{kind}_scratch_size", 0) or 0) * ctas
    if size == 0:
        return None, 0
    alignment = getattr(metadata, f"{kind}_scratch_align")
    memory = np.zeros(size + alignment, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % alignment
    return Extent(f"{kind}_scratch", start, start + size, memory), start


def _values(
    signature: Iterable[Any], args: Iterable[Any], descriptors: Iterator[Any]
) -> Iterator[bytes]:
    """The bytes of each parameter, of arguments that are not constants of the code."""
    for kind, value in zip(signature, args, strict=True):
        if isinstance(kind, tuple):
            yield from _values(kind, value, descriptors)
        elif kind.startswith("tensordesc"):
            yield from _descriptor(value, next(descriptors, None))
        elif kind != "constexpr":
            yield _scalar(kind, value)


def _scalar(kind: str, value: Any) -> bytes:
    if kind.startswith("*"):
        address = value.data_ptr() if hasattr(value, "data_ptr") else int(value or 0)
        return address.to_bytes(8, "little")
    if kind == "bf16":  # the upper half of a float32, cut as Triton's own launcher cuts it
        return struct.pack("<f", value)[2:]
    if kind in _FLOATS:
        return struct.pack(_FLOATS[kind], value)
    integer = re.fullmatch(r"[iu](\d+)", kind)
    if integer is None:
        raise CaptureError(
            "argument of a Triton kernel",
            expected="a pointer, a number or a tensor descriptor",
            actual=kind,
            consequence="The launch cannot be run.",
        )
    size = max(int(integer[1]), 8) // 8
    return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")


def _descriptor(value: Any, meta: Any) -> Iterator[bytes]:
    """A tensor descriptor: its map, then the extents and strides that device code reads."""
    if meta is None or meta.get("is_im2col") or meta.get("fp4_padded"):
        raise CaptureError(
            "tensor descriptor given to a Triton kernel",
            expected="one that the copy engine reads, tiled",
            actual=f"{meta}",
            consequence="The launch cannot be run.",
        )
    size = meta["elem_size"]
    element = "tf32" if value.round_f32_to_tf32 else _ELEMENTS[meta["elem_type"]]
    described = tensor_map.TensorMap(
        element=element,
        address=value.base.data_ptr(),
        extents=tuple(reversed(value.shape)),
        strides=tuple(step * size for step in reversed(value.strides[:-1])),
        box=tuple(reversed(meta["block_size"])),
        element_strides=(1,) * len(value.shape),
        swizzle=_SWIZZLES[meta["swizzle"]],
        fill_nan=value.padding == "nan",
    )
    yield tensor_map.encode(described)
    yield from (int(extent).to_bytes(4, "little") for extent in value.shape)
    yield from (int(step).to_bytes(8, "little") for step in value.strides)

"""What stands for the GPU when programs run on CPU tensors: all that is replaced, in one place.

:func:`torch_stand_ins` answers what programs ask ``torch.cuda`` and tensors before they launch;
:func:`compiler_stand_ins` makes the CuTe DSL compile for Hopper and load its host code against the
shim. Both undo themselves.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hopwell.emulator.capture.device import HOPPER
from hopwell.errors import CaptureError

_ABSENT = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute while the block runs."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def required(owner: Any, name: str) -> Any:
    """An attribute of the CuTe DSL that capturing rests on.

    Raises:
        CaptureError: this version has none.
    """
    found = getattr(owner, name, None)
    if found is None:
        raise CaptureError(
            "the installed CuTe DSL",
            expected=f"{getattr(owner, '__name__', owner)}.{name}, as in nvidia-cutlass-dsl 4.8",
            actual="no such name",
            consequence="Its launches cannot be captured. Install a version between 4.8.1 and "
            "4.10.",
        )
    return found


# -- torch ---------------------------------------------------------------------------------


@contextmanager
def torch_stand_ins() -> Iterator[None]:
    """CPU tensors that say they are CUDA's, and a ``torch.cuda`` with one Hopper device."""
    import torch

    properties = SimpleNamespace(**vars(HOPPER))
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "get_device_capability": lambda device=None: (HOPPER.major, HOPPER.minor),
        "get_device_name": lambda device=None: HOPPER.name,
        "get_device_properties": lambda device=None: properties,
        "Stream": _Stream,
        "Event": _Event,
        "current_stream": _Stream,
        "default_stream": _Stream,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(replaced(torch.cuda, name, answer))
        # On the class: a mode is off while it handles a function, such as a whole backward pass.
        stack.enter_context(replaced(torch.Tensor, "is_cuda", property(lambda tensor: True)))
        stack.enter_context(replaced(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor))
        stack.enter_context(_cpu_for_cuda())
        yield


class _Stream:
    """CUDA's default stream. Launches are performed as they are made: there is no other order."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Event:
    """An event of such a stream: always over, and of no time."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return math.nan


def _cpu_for_cuda() -> Any:
    """A mode in which what is asked of a CUDA device is done on the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        if isinstance(value, str) and value.partition(":")[0] == "cuda":
            return "cpu"
        return value

    class CpuForCuda(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
            return function(*map(on_cpu, args), **kwargs)

    return CpuForCuda()


# -- CuTe DSL ------------------------------------------------------------------------------


@contextmanager
def compiler_stand_ins(shim: Path, directory: Path) -> Iterator[None]:
    """The CuTe DSL compiles for Hopper, keeps PTX and cubin in ``directory``, and takes CPU
    tensors for the device's; what it compiles calls the shim.

    Raises:
        CaptureError: the CuTe DSL is not installed, or not one that this knows.
    """
    with environment(CUTE_DSL_LIBS=str(shim)), ExitStack() as stack:
        dsl, jit, builder, runtime, testing, utils = _compiler_modules()
        # Both front ends read these settings once, when they are made: as cutlass is imported.
        for front_end in required(dsl.DSLSingletonMeta, "_instances").values():
            settings = front_end.envar
            changes = {
                "keep_ptx": True,
                "keep_cubin": True,
                "dump_dir": str(directory),
                "lineinfo": True,
                "shared_libs": str(shim),
                "disable_file_caching": True,
                "_arch": HOPPER.architecture,
            }
            for name, value in changes.items():
                stack.enter_context(replaced(settings, name, value))
        for owner, name, value in (
            (jit.CudaDialectJitCompiledFunction, "num_devices", 1),
            (builder.TVMFFIFunctionBuilder, "decode_param_tensor", _any_device(builder)),
            (runtime._Tensor, "__init__", _device_memory(runtime)),
            # There is nothing to time.
            (testing, "benchmark", lambda *_, **__: math.nan),
            (utils.HardwareInfo, "__init__", lambda self, device_id=0: None),
            (utils.HardwareInfo, "get_max_active_clusters", _active_clusters),
            (utils.HardwareInfo, "get_l2_cache_size_in_bytes", lambda self: HOPPER.L2_cache_size),
            (
                utils.HardwareInfo,
                "get_device_multiprocessor_count",
                lambda self: HOPPER.multi_processor_count,
            ),
        ):
            required(owner, name)
            stack.enter_context(replaced(owner, name, value))
        yield


def _compiler_modules() -> Any:
    try:
        import cutlass.utils as utils
        from cutlass.base_dsl import dsl
        from cutlass.base_dsl.tvm_ffi_builder import tvm_ffi_builder as builder
        from cutlass.cute import runtime, testing
        from cutlass.cutlass_dsl import cuda_jit_executor as jit
    except ImportError as error:
        raise CaptureError(
            "capturing launches of CuTe DSL kernels",
            expected="the CuTe DSL and TVM-FFI (hopwell[compile])",
            actual=str(error),
            consequence="Nothing was run. A kernel's PTX can be run without them.",
        ) from error
    return dsl, jit, builder, runtime, testing, utils


def _active_clusters(self: Any, cluster_size: int, stream: Any = None) -> int:
    return HOPPER.multi_processor_count // cluster_size


def _any_device(builder: Any) -> Callable[..., Any]:
    """The generated argument check compares a tensor's device type with the declared one: here
    with itself, so that CPU tensors pass for the device's."""
    decode = required(builder.TVMFFIFunctionBuilder, "decode_param_tensor")
    required(builder.TVMFFIFunctionBuilder, "load_dltensor_device_type")

    def decode_param_tensor(self: Any, block: Any, param: Any, *rest: Any) -> Any:
        self.load_dltensor_device_type = lambda tensor: self.i32(param.dlpack_device_type)
        try:
            return decode(self, block, param, *rest)
        finally:
            del self.load_dltensor_device_type

    return decode_param_tensor


def _device_memory(runtime: Any) -> Callable[..., Any]:
    """CuTe tensors made from CPU tensors are in global memory, and know what they were made of."""
    initialise = required(runtime._Tensor, "__init__")

    def __init__(self: Any, tensor: Any, *args: Any, **options: Any) -> None:
        self.__hopwell_source__ = tensor
        if hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__"):
            tensor = DeviceTensor(tensor)
        initialise(self, tensor, *args, **options)

    return __init__


# -- DLPack --------------------------------------------------------------------------------

#: dlpack.h: the kinds of device, and where ``DLTensor.device`` stands in what a capsule holds.
_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_DEVICE_TYPE_OFFSET = 8


class DeviceTensor:
    """A tensor whose DLPack form calls its memory the device's."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        # Without a maximal version it is a DLManagedTensor, whose DLTensor stands first.
        capsule = self._tensor.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, b"dltensor")
        kind = ctypes.c_int32.from_address(address + _DEVICE_TYPE_OFFSET)
        if kind.value == _DLPACK_CPU:
            kind.value = _DLPACK_CUDA
        return capsule

"""The CUDA driver through ctypes: as much of it as running a snippet takes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.emulator.snippets.snippet import Buffer, Scalar, Snippet, TensorMap

Array = NDArray[Any]

CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
ERROR_LOG, ERROR_LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size

#: CUtensorMapDataType, by PTX type.
TENSOR_TYPES = {
    "u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5,
    "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "f32.ftz": 10, "tf32": 11, "tf32.ftz": 12,
}  # fmt: skip
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
FILLS = {"zero": 0, "nan": 1}


class DriverError(RuntimeError):
    """A call into the driver failed: its name, and the driver's own name for the error."""


class _ClusterDimension(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class _AttributeValue(ctypes.Union):
    _fields_ = [("pad", c_char * 64), ("cluster", _ClusterDimension)]


class _Attribute(ctypes.Structure):
    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", _AttributeValue)]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("attribute_count", c_uint),
    ]


class Device:
    """The first GPU, with its primary context current on this thread."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", c_uint(0))
        device = c_int()
        self._call("cuDeviceGet", byref(device), c_int(0))
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            text = c_char_p()
            self._library.cuGetErrorName(c_int(status), byref(text))
            raise DriverError(f"{name}: {(text.value or b'error').decode()} ({status})")

    def run(self, snippet: Snippet, image: bytes) -> tuple[dict[str, Array], dict[str, bytes]]:
        """Runs a snippet from its cubin (or PTX text): outputs and tensor maps by name."""
        function = self._load(snippet, image)
        addresses: dict[str, int] = {}
        contents = {name: np.ascontiguousarray(a) for name, a in snippet.inputs.items()}
        for name, array in contents.items():
            pointer = c_uint64()
            self._call("cuMemAlloc_v2", byref(pointer), c_size_t(max(array.nbytes, 1)))
            addresses[name] = pointer.value
            source = c_void_p(array.ctypes.data)
            self._call("cuMemcpyHtoD_v2", pointer, source, c_size_t(array.nbytes))
        tensor_maps: dict[str, bytes] = {}
        storage: list[Any] = []
        for argument in snippet.arguments:
            if isinstance(argument, Buffer):
                storage.append(c_uint64(addresses[argument.name]))
            elif isinstance(argument, Scalar):
                storage.append(ctypes.create_string_buffer(argument.value.tobytes()))
            else:
                encoded = self._encode(argument, addresses[argument.buffer])
                tensor_maps[argument.name] = encoded
                storage.append(ctypes.create_string_buffer(encoded, len(encoded)))
        self._launch(snippet, function, storage)
        outputs = {}
        for output in snippet.outputs:
            array = np.empty_like(contents[output.name])
            self._call(
                "cuMemcpyDtoH_v2",
                c_void_p(array.ctypes.data),
                c_uint64(addresses[output.name]),
                c_size_t(array.nbytes),
            )
            outputs[output.name] = array
        for address in addresses.values():
            self._call("cuMemFree_v2", c_uint64(address))
        return outputs, tensor_maps

    def _load(self, snippet: Snippet, image: bytes) -> c_void_p:
        log = ctypes.create_string_buffer(4096)
        options = (c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        module, function = c_void_p(), c_void_p()
        text = ctypes.create_string_buffer(image)  # ends with the NUL that PTX text wants
        try:
            self._call("cuModuleLoadDataEx", byref(module), text, c_uint(2), options, values)
        except DriverError as error:
            raise DriverError(f"{error} {log.value.decode(errors='replace')}") from None
        self._call("cuModuleGetFunction", byref(function), module, snippet.kernel.encode())
        size = c_int(snippet.shared_bytes)
        self._call("cuFuncSetAttribute", function, c_int(MAX_DYNAMIC_SHARED), size)
        return function

    def _launch(self, snippet: Snippet, function: c_void_p, storage: Sequence[Any]) -> None:
        attribute = _Attribute(id=CLUSTER_DIMENSION)
        attribute.value.cluster = _ClusterDimension(*snippet.cluster)
        config = _LaunchConfig(
            grid=(c_uint * 3)(*snippet.grid),
            block=(c_uint * 3)(*snippet.block),
            shared_bytes=snippet.shared_bytes,
            attributes=ctypes.pointer(attribute),
            attribute_count=int(snippet.cluster != (1, 1, 1)),
        )
        pointers = (c_void_p * max(len(storage), 1))(*(ctypes.addressof(s) for s in storage))
        self._call("cuLaunchKernelEx", byref(config), function, pointers, c_void_p())
        self._call("cuCtxSynchronize")

    def _encode(self, tensor_map: TensorMap, base: int) -> bytes:
        rank = len(tensor_map.extents)
        raw = ctypes.create_string_buffer(128 + 64)
        aligned = ctypes.addressof(raw) + -ctypes.addressof(raw) % 64
        self._call(
            "cuTensorMapEncodeTiled",
            c_void_p(aligned),
            c_int(TENSOR_TYPES[tensor_map.type]),
            c_uint(rank),
            c_void_p(base + tensor_map.offset),
            (c_uint64 * rank)(*tensor_map.extents),
            (c_uint64 * max(rank - 1, 1))(*tensor_map.strides),
            (c_uint * rank)(*tensor_map.box),
            (c_uint * rank)(*tensor_map.element_strides),
            c_int(0),  # not interleaved
            c_int(SWIZZLES[tensor_map.swizzle]),
            c_int(0),  # no L2 promotion
            c_int(FILLS[tensor_map.fill]),
        )
        return ctypes.string_at(aligned, 128)

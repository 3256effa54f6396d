"""Tensors that say they live on a GPU, and a recording CUDA runtime, for launches without one."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
import tvm_ffi


class _Managed(ctypes.Structure):
    """The head of DLPack's DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    )


CUDA = 2


def on_gpu(tensor: torch.Tensor, device: int = 0) -> Any:
    """The same memory, called device memory. Nothing may touch it: only a launch is recorded."""
    capsule = tensor.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = _Managed.from_address(pointer(capsule, b"dltensor"))
    managed.device_type, managed.device_id = CUDA, device
    return tvm_ffi.from_dlpack(capsule)


def arguments(
    device: int = 0, *, rows: int = 130, heads: int = 2, dim: int = 64
) -> tuple[Any, ...]:
    """q, k, v, o, lse, scale and num_sms of one small problem."""
    shape = (1, rows, heads, dim)
    qkvo = [on_gpu(torch.zeros(shape, dtype=torch.bfloat16), device) for _ in range(4)]
    return (*qkvo, on_gpu(torch.zeros(1, heads, rows), device), 0.125, 132)

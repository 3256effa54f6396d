"""Tensors that say they live on a GPU, for launches without one."""

from __future__ import annotations

from typing import Any

import torch


class OnGpu:
    """The metadata and the address of a tensor, called device memory. Nothing may touch it."""

    def __init__(self, tensor: torch.Tensor, device: int = 0) -> None:
        self.tensor = tensor
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.device = torch.device("cuda", device)

    def stride(self) -> tuple[int, ...]:
        return self.tensor.stride()

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()


def arguments(
    device: int = 0, *, rows: int = 130, heads: int = 2, dim: int = 64
) -> tuple[Any, ...]:
    """q, k, v, o, lse, scale and num_sms of one small problem."""
    shape = (1, rows, heads, dim)
    qkvo = [OnGpu(torch.zeros(shape, dtype=torch.bfloat16), device) for _ in range(4)]
    return (*qkvo, OnGpu(torch.zeros(1, heads, rows), device), 0.125, 132)

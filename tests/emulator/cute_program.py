"""A small CuTe DSL program on CPU tensors: y = a * x + y, then a copy through a tensor map.

Started as a program it launches each kernel in one way that the DSL has, and prints y.
"""

from __future__ import annotations

from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import from_dlpack

THREADS = 64


@cute.kernel
def axpy_kernel(a: cutlass.Float32, x: cute.Tensor, y: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    index = block * THREADS + thread
    if index < cute.size(x):
        y[index] = a * x[index] + y[index]


@cute.jit
def axpy(a: cutlass.Float32, x: cute.Tensor, y: cute.Tensor) -> None:
    axpy_kernel(a, x, y).launch(
        grid=(cute.ceil_div(cute.size(x), THREADS), 1, 1), block=(THREADS, 1, 1)
    )


def as_cute(tensor: torch.Tensor, **options: Any) -> Any:
    return from_dlpack(tensor, assumed_align=16, **options).mark_layout_dynamic()


def main() -> None:
    x = torch.arange(100, dtype=torch.float32)
    y = torch.ones(100)
    axpy(2.0, as_cute(x), as_cute(y))  # compiled at its first call
    compiled = cute.compile(axpy, 3.0, as_cute(x), as_cute(y))
    compiled(3.0, as_cute(x), as_cute(y))
    through_ffi = cute.compile(
        axpy,
        4.0,
        as_cute(x, enable_tvm_ffi=True),
        as_cute(y, enable_tvm_ffi=True),
        options="--enable-tvm-ffi",
    )
    through_ffi(4.0, x, y)
    assert x.is_cuda
    assert torch.ones(2, device="cuda").cuda().device.type == "cpu"
    print(y[:4].tolist())


if __name__ == "__main__":
    main()

"""Triton kernels on CPU tensors: a masked sum, a matrix product, and one through descriptors."""

# Triton reads annotations as its own types: the kernels have none.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def add(x_ptr, y_ptr, scale, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < n)
    y = tl.load(y_ptr + index, mask=index < n)
    tl.store(y_ptr + index, x * scale + y, mask=index < n)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, k, N: tl.constexpr, BLOCK: tl.constexpr):
    row, col = tl.arange(0, N), tl.arange(0, N)
    inner = tl.arange(0, BLOCK)
    acc = tl.zeros((N, N), tl.float32)
    for start in range(0, k, BLOCK):
        a = tl.load(a_ptr + row[:, None] * k + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner[:, None]) * N + col[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + row[:, None] * N + col[None, :], acc.to(tl.float16))


@triton.jit
def copy(x, y, N: tl.constexpr):
    y.store([0, 0], x.load([N, 0]))


def main() -> None:
    x, y = torch.arange(100.0), torch.ones(100)
    add[(1,)](x, y, 0.5, 100, BLOCK=128)
    torch.testing.assert_close(y, 0.5 * x + 1)

    torch.manual_seed(0)
    a, b = torch.randn(64, 128).half(), torch.randn(128, 64).half()
    c = torch.empty(64, 64, dtype=torch.float16)
    product[(1,)](a, b, c, 128, N=64, BLOCK=64)
    torch.testing.assert_close(c, (a.double() @ b.double()).half(), rtol=2e-3, atol=2e-3)

    rows = torch.randn(64, 64).half()
    half = torch.empty(32, 64, dtype=torch.float16)
    shapes = [32, 64]
    copy[(1,)](
        TensorDescriptor.from_tensor(rows, shapes), TensorDescriptor.from_tensor(half, shapes), 32
    )
    torch.testing.assert_close(half, rows[32:], rtol=0, atol=0)
    print("all right")


if __name__ == "__main__":
    main()

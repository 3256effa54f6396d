"""Strides and sizes: whatever the copy engine can address is read in place, and rightly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend

MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
DIMS = pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256)], ids=str)


@MASKS
@DIMS
def test_head_major_views(attend: Attend, dims: tuple[int, int], causal: bool) -> None:
    """(batch, heads, seqlen, head_dim) memory seen through a transpose."""
    q, k, v = attend.draw(2, (200, 333), (6, 2), dims)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not views[0].is_contiguous()
    found = attend.check(*views, causal=causal)
    for one, other in zip(found, attend(q, k, v, causal=causal), strict=True):
        assert torch.equal(one, other)


@MASKS
@DIMS
def test_strided_inputs_are_not_copied(attend: Attend, dims: tuple[int, int], causal: bool) -> None:
    """The device runs the one kernel: nothing makes transposed or sliced inputs contiguous."""
    q, k, v = attend.draw(2, (200, 333), (6, 2), dims)
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    sliced = [x[:, ::2, :1] for x in (q, k, v)]
    for tensors in (transposed, sliced):
        assert not any(x.is_contiguous() for x in tensors)
        attend.check(*tensors, causal=causal)  # the first call of a shape may load the kernel
        ran, names = attend.profile(*tensors, causal=causal)
        assert names == [ran.kernel_symbol]


@MASKS
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)], ids=str)
def test_slices_of_packed_qkv(attend: Attend, dims: tuple[int, int], causal: bool) -> None:
    packed = torch.randn(2, 300, 3, 4, dims[0], device=attend.device).bfloat16()
    attend.check(*packed.unbind(2), causal=causal)
    grouped = torch.randn(2, 300, 4, 3, dims[0], device=attend.device).bfloat16()
    attend.check(*grouped.unbind(3), causal=causal)


@MASKS
@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_expanded_dimensions(attend: Attend, dimension: int, causal: bool) -> None:
    """Stride 0 in batch, length or heads."""
    tensors = []
    for x in attend.draw(3, (150, 150), (4, 4), (128, 128)):
        tensors.append(x.narrow(dimension, 0, 1).expand(x.shape))
        assert tensors[-1].stride(dimension) == 0
    attend.check(*tensors, causal=causal)


@MASKS
def test_size_one_dimensions_with_odd_strides(attend: Attend, causal: bool) -> None:
    """A stride that is never used may hold anything."""
    q, k, v = attend.draw(1, (140, 260), (1, 1), (64, 64))
    odd = [x.as_strided(x.shape, (7, x.stride(1), 3, 1)) for x in (q, k, v)]
    attend.check(*odd, causal=causal)
    one = q[:, :1].as_strided((1, 1, 1, 64), (5, 9, 3, 1))
    attend.check(one, k, v, causal=causal)


@MASKS
@DIMS
def test_padding_beside_the_used_range_never_matters(
    attend: Attend, dims: tuple[int, int], causal: bool
) -> None:
    """NaN before, after and between rows, heads and columns: same bits as without padding."""
    tensors = attend.draw(2, (131, 267), (4, 2), dims)
    padded = []
    for x in tensors:
        batch, length, heads, dim = x.shape
        home = torch.full(
            (batch + 2, length + 70, heads + 2, dim + 16),
            torch.nan,
            device=attend.device,
            dtype=x.dtype,
        )
        inside = home[1 : batch + 1, 35 : length + 35, 1 : heads + 1, 8 : dim + 8]
        inside.copy_(x)
        padded.append(inside)
    out, lse = attend.check(*padded, causal=causal)
    plain_out, plain_lse = attend(*tensors, causal=causal)
    assert torch.equal(out, plain_out)
    assert torch.equal(lse, plain_lse)


@MASKS
@pytest.mark.parametrize("large", ["queries", "keys"])
def test_more_than_2_to_31_elements(attend: Attend, large: str, causal: bool) -> None:
    """Offsets beyond 32 bits in q and out, or in k and v; the last pairs lie beyond them."""
    long = 2**31 // (3 * 8 * 128) + 1000
    lengths = (long, 200) if large == "queries" else (200, long)
    q, k, v = attend.draw(3, lengths, (8, 8), (128, 128))
    assert max(q.numel(), k.numel()) > 2**31
    attend.check(q, k, v, causal=causal, pairs=2)


def test_a_batch_stride_beyond_2_to_31_elements(attend: Attend) -> None:
    home = torch.empty(2**31 + 2**20, device=attend.device, dtype=torch.bfloat16)
    strides = (2**31 + 64, 2 * 64, 64, 1)
    q, k, v = (home[offset:].as_strided((2, 130, 2, 64), strides) for offset in (0, 2**17, 2**18))
    for x in (q, k, v):
        x.normal_()
    attend.check(q, k, v)


@MASKS
@pytest.mark.parametrize(("batch", "heads"), [(65_536, 1), (70_001, 2)])
def test_batches_beyond_the_grid_limit(
    attend: Attend, batch: int, heads: int, causal: bool
) -> None:
    attend.check(*attend.draw(batch, (5, 9), (heads, 1), (64, 64)), causal=causal, pairs=200_000)


@MASKS
def test_many_heads(attend: Attend, causal: bool) -> None:
    attend.check(
        *attend.draw(1, (20, 20), (70_000, 70_000), (64, 64)), causal=causal, pairs=200_000
    )

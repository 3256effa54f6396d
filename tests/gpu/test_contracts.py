"""What the function promises, for every bucket: values, lengths, heads, masks, empty work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import hopwell
from hopwell.hopper.plan import BUCKETS, HopperForwardPlan, forward_plan, shipped_forward_plans

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend

BF16, FP16 = torch.bfloat16, torch.float16
MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
BUCKET = pytest.mark.parametrize("bucket", BUCKETS, ids=str)

#: Inside every bucket: its edge, odd multiples of eight, values wider and narrower than keys.
HEAD_DIMS = (
    (8, 8),
    (40, 40),
    (64, 64),
    (72, 72),
    (80, 80),
    (96, 96),
    (104, 104),
    (128, 128),
    (160, 160),
    (192, 128),
    (192, 192),
    (256, 256),
    (64, 128),
    (128, 64),
    (8, 256),
    (200, 136),
    (176, 40),
)


@MASKS
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("dims", HEAD_DIMS, ids=str)
def test_head_dims(attend: Attend, dims: tuple[int, int], dtype: torch.dtype, causal: bool) -> None:
    attend.check(*attend.draw(2, (257, 391), (4, 2), dims, dtype), causal=causal)


@MASKS
@BUCKET
def test_every_length_up_to_a_tile_and_one(
    attend: Attend, bucket: tuple[int, int], causal: bool
) -> None:
    plan = forward_plan("bfloat16", bucket, causal)
    for length in range(1, max(plan.tile_m, plan.tile_n) + 2):
        q, k, v = attend.draw(1, (length, length), (2, 1), bucket, seed=length)
        attend.check(q, k, v, causal=causal)


@MASKS
@BUCKET
def test_lengths_around_tile_edges(attend: Attend, bucket: tuple[int, int], causal: bool) -> None:
    plan = forward_plan("bfloat16", bucket, causal)
    m, n = plan.tile_m, plan.tile_n
    for seqlen_q in (1, m - 1, m, m + 1, 2 * m + 3):
        for seqlen_k in (1, n - 1, n, n + 1, 2 * n, 2 * n + 1, 5 * n - 1):
            q, k, v = attend.draw(1, (seqlen_q, seqlen_k), (2, 2), bucket, seed=seqlen_k)
            attend.check(q, k, v, causal=causal)


@MASKS
@pytest.mark.parametrize(
    "heads", [(8, 8), (8, 4), (6, 2), (10, 2), (21, 3), (5, 1), (7, 1), (64, 1)], ids=str
)
@pytest.mark.parametrize("dims", [(64, 64), (128, 128)], ids=str)
def test_grouped_heads_of_any_ratio(
    attend: Attend, dims: tuple[int, int], heads: tuple[int, int], causal: bool
) -> None:
    attend.check(*attend.draw(2, (150, 280), heads, dims), causal=causal)


@BUCKET
def test_causal_is_aligned_to_the_last_key(attend: Attend, bucket: tuple[int, int]) -> None:
    """Every offset between the lengths, within a tile and beyond it, both signs."""
    for seqlen_q, seqlen_k in [(1, 500), (130, 131), (200, 777), (131, 130), (500, 1), (777, 200)]:
        attend.check(*attend.draw(2, (seqlen_q, seqlen_k), (3, 1), bucket), causal=True)


@BUCKET
def test_a_row_without_a_visible_key_is_zero(attend: Attend, bucket: tuple[int, int]) -> None:
    """More queries than keys: the first rows see nothing, whole tiles of them too."""
    seqlen_q, seqlen_k = 450, 100
    out, lse = attend.check(*attend.draw(2, (seqlen_q, seqlen_k), (2, 1), bucket), causal=True)
    blind = seqlen_q - seqlen_k
    assert torch.equal(out[:, :blind], torch.zeros_like(out[:, :blind]))
    assert torch.equal(lse[:, :, :blind], torch.full_like(lse[:, :, :blind], -torch.inf))
    assert lse[:, :, blind:].isfinite().all()


@MASKS
@pytest.mark.parametrize(("batch", "lengths"), [(0, (64, 64)), (2, (0, 64)), (2, (0, 0))], ids=str)
def test_empty_work_launches_nothing(
    attend: Attend, batch: int, lengths: tuple[int, int], causal: bool
) -> None:
    q, k, v = attend.draw(batch, lengths, (4, 2), (128, 64))
    with hopwell.record_dispatch() as calls:
        out, lse = hopwell.attention(q, k, v, causal=causal, return_lse=True)
    (ran,) = calls
    assert ran.backend == "hopper"
    assert ran.kernel_symbol is None
    assert torch.equal(out, torch.zeros_like(out))
    assert out.shape == (batch, lengths[0], 4, 64)
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))
    assert lse.shape == (batch, 4, lengths[0])


@MASKS
@BUCKET
def test_queries_without_any_key(attend: Attend, bucket: tuple[int, int], causal: bool) -> None:
    """The kernel itself writes the rows of a problem that has no keys."""
    out, lse = attend(*attend.draw(3, (300, 0), (4, 2), bucket), causal=causal)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))


@MASKS
@BUCKET
def test_out_is_the_same_without_the_log_sum_exp(
    attend: Attend, bucket: tuple[int, int], causal: bool
) -> None:
    inputs = attend.draw(2, (300, 300), (4, 2), bucket)
    out, _ = attend(*inputs, causal=causal)
    with hopwell.record_dispatch() as calls:
        alone = hopwell.attention(*inputs, causal=causal)
    assert calls[0].kernel_symbol
    assert torch.equal(alone, out)


@MASKS
@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 4.0])
def test_scale(attend: Attend, scale: float, causal: bool) -> None:
    attend.check(*attend.draw(1, (300, 300), (2, 2), (128, 128)), causal=causal, scale=scale)


@MASKS
@BUCKET
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
def test_long_sequences(
    attend: Attend, bucket: tuple[int, int], dtype: torch.dtype, causal: bool
) -> None:
    q, k, v = attend.draw(1, (4096, 4096), (4, 2), bucket, dtype)
    attend.check(q, k, v, causal=causal, pairs=2)


@pytest.mark.parametrize("plan", shipped_forward_plans(), ids=lambda plan: str(plan.name))
def test_the_device_ran_the_recorded_symbol(attend: Attend, plan: HopperForwardPlan) -> None:
    """The profiler, not our own record, names the one kernel that ran."""
    dtype = getattr(torch, plan.dtype)
    q, k, v = attend.draw(1, (200, 200), (2, 1), (plan.head_dim, plan.head_dim_v), dtype)
    attend(q, k, v, causal=plan.causal)
    ran, names = attend.profile(q, k, v, causal=plan.causal)
    assert ran.plan == plan
    assert names == [ran.kernel_symbol]

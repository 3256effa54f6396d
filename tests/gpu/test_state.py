"""State that outlives a call: streams, graphs, allocators, persistent tiles, repeated runs."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch

import hopwell
from hopwell.hopper.plan import BUCKETS, forward_plan

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend

MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
BUCKET = pytest.mark.parametrize("bucket", BUCKETS, ids=str)


@MASKS
@BUCKET
def test_persistent_loop_wraps_to_further_tiles(
    attend: Attend, bucket: tuple[int, int], causal: bool
) -> None:
    """One tile more than CTAs, a few per CTA, and a ragged last one."""
    plan = forward_plan("bfloat16", bucket, causal)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    ctas = sms * plan.ctas_per_sm
    for heads, length in [(ctas + 1, plan.tile_m), (37, 4 * plan.tile_m + 5), (ctas, 3)]:
        q, k, v = attend.draw(2, (length, length + 70), (heads, 1), bucket)
        attend.check(q, k, v, causal=causal)


@MASKS
@BUCKET
def test_repeated_runs_are_bitwise_equal(
    attend: Attend, bucket: tuple[int, int], causal: bool
) -> None:
    q, k, v = attend.draw(2, (1000, 1500), (8, 2), bucket)
    out, lse = attend(q, k, v, causal=causal)
    for _ in range(30):
        again, again_lse = attend(q, k, v, causal=causal, deterministic=True)
        assert torch.equal(out, again)
        assert torch.equal(lse, again_lse)


@pytest.mark.parametrize("bucket", [(64, 64), (128, 128), (256, 256)], ids=str)
def test_shapes_in_sequence_do_not_disturb_each_other(
    attend: Attend, bucket: tuple[int, int]
) -> None:
    """One kernel, many shapes; at the end the first ones still give the same bits."""
    choose = random.Random(5)
    seen = []
    for seed in range(40):
        lengths = (choose.randint(1, 700), choose.randint(1, 700))
        group = choose.choice([1, 2, 3, 7])
        tensors = attend.draw(choose.randint(1, 4), lengths, (2 * group, 2), bucket, seed=seed)
        causal = choose.random() < 0.5
        seen.append((tensors, causal, attend.check(*tensors, causal=causal)))
    for tensors, causal, (out, lse) in reversed(seen):
        again, again_lse = attend(*tensors, causal=causal)
        assert torch.equal(out, again)
        assert torch.equal(lse, again_lse)


@MASKS
@BUCKET
def test_a_dirty_allocator_changes_nothing(
    attend: Attend, bucket: tuple[int, int], causal: bool
) -> None:
    """Outputs land in memory full of NaN, and nothing else is assumed to be zero."""
    q, k, v = attend.draw(2, (300, 400), (4, 2), bucket)
    out, lse = attend.check(q, k, v, causal=causal)
    for size in (out.numel(), lse.numel() * 2, 1 << 20, 1 << 24):
        blocks = [
            torch.full((size,), torch.nan, device=attend.device, dtype=q.dtype) for _ in range(8)
        ]
        del blocks
        again, again_lse = attend(q, k, v, causal=causal)
        assert torch.equal(out, again)
        assert torch.equal(lse, again_lse)


@MASKS
def test_the_current_stream_is_used(attend: Attend, causal: bool) -> None:
    """Inputs that a delayed copy on the same side stream writes must be seen."""
    real = attend.draw(2, (512, 512), (8, 8), (128, 128))
    buffers = [torch.full_like(x, torch.nan) for x in real]
    attend(*buffers, causal=causal)  # loads the kernel, which may synchronise
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for buffer, x in zip(buffers, real, strict=True):
            buffer.copy_(x)
        out, lse = attend(*buffers, causal=causal)
    torch.cuda.current_stream().wait_stream(stream)
    attend.compare(out, lse, real, causal=causal)


def test_streams_run_at_once(attend: Attend) -> None:
    problems = [attend.draw(1, (300 + 50 * i, 600), (4, 2), (128, 128), seed=i) for i in range(6)]
    alone = [attend.check(*tensors, causal=True) for tensors in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    together = []
    for stream, tensors in zip(streams, problems, strict=True):
        with torch.cuda.stream(stream):
            together.append(attend(*tensors, causal=True))
    torch.cuda.synchronize()
    for (out, lse), (other, other_lse) in zip(alone, together, strict=True):
        assert torch.equal(out, other)
        assert torch.equal(lse, other_lse)


def test_threads_call_at_once(attend: Attend) -> None:
    q, k, v = attend.draw(2, (400, 400), (4, 4), (128, 128))
    out, _ = attend.check(q, k, v)
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                with hopwell.record_dispatch() as calls:
                    found = hopwell.attention(q, k, v)
                assert isinstance(found, torch.Tensor)
                if [ran.backend for ran in calls] != ["hopper"]:
                    wrong.append(f"recorded {calls}")
                if not torch.equal(found, out):
                    wrong.append("other bits")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@MASKS
@BUCKET
def test_a_graph_replays_with_new_data(
    attend: Attend, bucket: tuple[int, int], causal: bool
) -> None:
    q, k, v = attend.draw(2, (333, 500), (6, 2), bucket)
    attend.check(q, k, v, causal=causal)  # a kernel must be loaded before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attend(q, k, v, causal=causal)
    for seed in (1, 2):
        fresh = attend.draw(2, (333, 500), (6, 2), bucket, seed=seed)
        for buffer, x in zip((q, k, v), fresh, strict=True):
            buffer.copy_(x)
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        attend.compare(out, lse, fresh, causal=causal)


_CAPTURE_COLD = """
import torch, hopwell
from hopwell.errors import CompileDuringCapture
q, k, v = (torch.randn(1, 64, 1, 64, device="cuda").bfloat16() for _ in range(3))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
try:
    with torch.no_grad(), torch.cuda.graph(graph):
        hopwell.attention(q, k, v, backend="hopper")
except CompileDuringCapture:
    print("raised")
torch.cuda.synchronize()
with torch.no_grad(), hopwell.record_dispatch() as calls:
    out = hopwell.attention(q, k, v, backend="hopper")
assert out.isfinite().all() and calls[0].backend == "hopper" and calls[0].kernel_symbol
print("usable")
"""


def test_a_first_call_during_capture_raises(attend: Attend) -> None:
    """In a new process, which has loaded nothing; afterwards the process still works."""
    done = subprocess.run(
        [sys.executable, "-c", _CAPTURE_COLD], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["raised", "usable"], done.stderr[-2000:]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_a_device_that_is_not_current(attend: Attend) -> None:
    tensors = attend.draw(1, (300, 300), (4, 2), (128, 128))
    out, lse = attend.check(*tensors)
    away_out, away_lse = attend(*(x.to("cuda:1") for x in tensors))
    assert torch.cuda.current_device() == 0
    assert torch.equal(out, away_out.to("cuda:0"))
    assert torch.equal(lse, away_lse.to("cuda:0"))

"""Our own forward kernel's launches: from an artifact through its runtime, and from its source."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from tests.emulator.hopwell_forward import NAMES, artifact_launch, traced_launch

from hopwell.compile import find_or_build
from hopwell.emulator.api import emulate
from hopwell.emulator.capture import Launch
from hopwell.hopper.plan import HopperForwardPlan, forward_plan

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("cutlass") is None, reason="not installed: cutlass"
    ),
    pytest.mark.timeout(120),
]

ROWS, SCALE = 200, 0.125


@pytest.fixture(scope="module")
def plan() -> HopperForwardPlan:
    return forward_plan("bfloat16", (64, 64), True)


@pytest.fixture(scope="module")
def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    packed = torch.randn(1, ROWS, 2, 3, 64).bfloat16()
    return [packed[..., part, :] for part in range(3)]


def assert_right(launch: Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    report = emulate(launch, seeds=2)
    assert report.groups == []
    assert report.clean
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * SCALE
    scores = scores.masked_fill(torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())
    words = torch.from_numpy(launch.buffer("o").array.view(np.int16))
    torch.testing.assert_close(
        words.view(torch.bfloat16).reshape(out.shape).double(), out, rtol=2e-2, atol=1e-2
    )
    lse = launch.buffer("lse").array.view(np.float32).reshape(1, 2, ROWS)
    np.testing.assert_allclose(lse, scores.logsumexp(-1).numpy(), rtol=1e-5, atol=1e-5)


def test_an_artifact_launches_through_its_own_runtime(
    plan: HopperForwardPlan, tensors: list[torch.Tensor]
) -> None:
    artifact, _ = find_or_build(plan)
    q, k, v = tensors
    launch = artifact_launch(artifact, q, k, v, SCALE, ctas=2)
    assert launch.grid == (2, 1, 1)
    assert launch.kernel == artifact.manifest.kernel_symbol
    assert [buffer.name for buffer in launch.buffers] == ["q, k, v", "o", "lse"]
    assert [mapped.map.address for mapped in launch.tensor_maps[:3]] == [
        x.data_ptr() for x in (q, k, v)
    ]
    assert_right(launch, q, k, v)


def test_source_lines_come_with_a_new_compilation(
    plan: HopperForwardPlan, tensors: list[torch.Tensor]
) -> None:
    q, k, v = (x.contiguous() for x in tensors)
    launch = traced_launch(plan, q, k, v, SCALE, ctas=3)
    assert [buffer.name for buffer in launch.buffers] == list(NAMES)
    assert "hopper/consumer.py" in launch.ptx
    assert_right(launch, q, k, v)

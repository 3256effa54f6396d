"""Launches of our own forward kernel, without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from tests.compile.cuda_tensors import OnGpu

from hopwell.compile.artifact import Artifact
from hopwell.compile.kernel import Kernel
from hopwell.emulator.capture import Launch
from hopwell.emulator.capture.memory import Extent, extents_of
from hopwell.emulator.capture.shim import NativeLaunch, receiving
from hopwell.errors import LaunchError
from hopwell.hopper.plan import HopperForwardPlan

NAMES = ("q", "k", "v", "o", "lse")


def artifact_launch(
    artifact: Artifact,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    ctas: int,
) -> Launch:
    """The launch that a compiled plan makes of CPU tensors (batch, seqlen, heads, head_dim).

    ``ctas`` bounds the persistent grid, for one CTA on each multiprocessor. The output and the
    log-sum-exp are the launch's buffers "o" and "lse", poisoned with NaN. There are no source
    lines: artifacts hold none.
    """
    tensors, extents = _tensors(q, k, v)
    launches: list[Launch] = []

    def receive(native: NativeLaunch) -> None:
        launches.append(native.described(artifact.ptx(), extents))

    with receiving(receive, globally=True) as failures:
        try:
            kernel: Any = Kernel(artifact, "compiled")
            kernel(*map(OnGpu, tensors), scale, ctas)
        except LaunchError:
            failures.release()
            raise
    (launch,) = launches
    return launch


def traced_launch(
    plan: HopperForwardPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    ctas: int,
) -> Launch:
    """Like :func:`artifact_launch`, compiled anew from its source and with its lines."""
    from cutlass import cute

    from hopwell.emulator.capture.cute import capture
    from hopwell.hopper.forward import trace

    tensors, _ = _tensors(q, k, v)
    with capture() as launches:
        function, arguments = trace(plan)
        compiled = cute.compile(
            function, *arguments, options=f"--enable-tvm-ffi --gpu-arch {plan.arch}"
        )
        compiled(*tensors, scale, ctas)
    (launch,) = launches
    return launch


def _tensors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[list[torch.Tensor], list[Extent]]:
    batch, rows, heads, _ = q.shape
    out = torch.full((batch, rows, heads, v.shape[-1]), torch.nan, dtype=q.dtype)
    lse = torch.full((batch, heads, rows), torch.nan)
    tensors = [q, k, v, out, lse]
    named = zip(NAMES, tensors, strict=True)
    return tensors, [extent for name, value in named for extent in extents_of(name, value)]

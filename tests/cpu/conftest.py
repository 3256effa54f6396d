"""Shared by the CPU tests: seeded tensors, and a kernel that PyTorch plays on CPU tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor

from hopwell import cpu, dispatch, execution
from hopwell.hopper import launch
from hopwell.hopper.plan import HopperForwardPlan
from hopwell.masks import Mask

# Reproducible in CI; a failing example is printed with its arguments.
hypothesis.settings.register_profile("hopwell", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("hopwell")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _at(address: int, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What lies in memory, as a kernel reads and writes it: nothing but an address is known."""
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


@dataclass
class StandIn:
    """Takes the place of a compiled kernel: same call, same reading of memory, calls kept."""

    plan: HopperForwardPlan
    key: str = "key"
    artifact_hash: str = "hash"
    symbol: str = "symbol"
    source: str = "compiled"
    compile_seconds: float = 1.5
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def bind(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float, num_sms: int
    ) -> Callable[[int, int, int, int, int], None]:
        tensors = [(x.shape, x.stride(), x.dtype) for x in (q, k, v, o, lse)]

        def bound(*addresses: int) -> None:
            q, k, v, o, lse = (_at(a, *like) for a, like in zip(addresses, tensors, strict=True))
            self(q, k, v, o, lse, scale, num_sms)

        return bound

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, scale: float, num_sms: int
    ) -> None:
        self.calls.append((q.stride(), k.stride(), v.stride(), scale, num_sms))
        mask = Mask(None, 0 if self.plan.causal else None).canonical(q.shape[1], k.shape[1])
        out, natural = cpu.forward(q, k, v, cpu.Terms(scale, mask, None, None))
        o.copy_(out)
        if lse.shape != (0, 0, 0):  # else nobody wants it
            lse.copy_(natural)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[HopperForwardPlan, StandIn]:
    """The Hopper path on CPU tensors: kernels are stand-ins, by plan; 132 SMs."""
    kernels: dict[HopperForwardPlan, StandIn] = {}

    def load(plan: HopperForwardPlan) -> StandIn:
        return kernels.setdefault(plan, StandIn(plan))

    rows = tuple(row for row in dispatch.SUPPORT["hopper"] if row.name not in ("device", "arch"))
    monkeypatch.setattr("hopwell.compile.load", load, raising=False)
    monkeypatch.setattr(launch, "sm_count", lambda index: 132)
    monkeypatch.setattr(launch, "_resident", {})
    monkeypatch.setattr(dispatch, "SUPPORT", {"hopper": rows})
    monkeypatch.setattr(execution, "_prepared", {})
    monkeypatch.setattr(execution, "_last", {})
    return kernels

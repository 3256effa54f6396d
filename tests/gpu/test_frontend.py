"""The function on a GPU beyond the kernel: compilation, refusals, gradients, fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import hopwell
from hopwell.errors import GradientUnsupported, UnsupportedProblem

if TYPE_CHECKING:
    from tests.gpu.conftest import Attend


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_torch_compile_keeps_one_graph(attend: Attend, compiler: str) -> None:
    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out, lse = hopwell.attention(q * 1.0, k, v, causal=True, return_lse=True)
        return out * 1.0, lse

    q, k, v = attend.draw(2, (200, 300), (4, 2), (128, 128))
    attend.check(q, k, v, causal=True)
    compiled = torch.compile(block, fullgraph=True, backend=compiler)
    with hopwell.record_dispatch() as calls:
        out, lse = compiled(q, k, v)
    (ran,) = calls
    attend.assert_kernel(ran, q, v, causal=True)
    attend.compare(out, lse, (q, k, v), causal=True)


def test_torch_export_runs_the_kernel(attend: Attend) -> None:
    class Block(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return hopwell.attention(q, k, v, return_lse=True)

    q, k, v = attend.draw(2, (200, 300), (4, 2), (64, 64))
    exported = torch.export.export(Block(), (q, k, v)).module()
    with hopwell.record_dispatch() as calls:
        out, lse = exported(q, k, v)
    (ran,) = calls
    attend.assert_kernel(ran, q, v, causal=False)
    attend.compare(out, lse, (q, k, v))


REFUSED: dict[str, dict[str, Any]] = {
    "mask": dict(window=(16, 0)),
    "softcap": dict(softcap=30.0),
    "sink": dict(sink=True),
    "dtype": dict(dtype=torch.float32),
    "head_dims": dict(dims=(264, 264)),
    "head_dim_multiple": dict(dims=(68, 68)),
    "q_strides": dict(shift=1),
}


def _refused(attend: Attend, wanted: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    arguments = dict(wanted)
    dims = arguments.pop("dims", (64, 64))
    dtype = arguments.pop("dtype", torch.bfloat16)
    tensors = list(attend.draw(1, (64, 64), (2, 2), dims, dtype))
    if arguments.pop("shift", 0):
        # The same values one element (two bytes) later: the copy engine wants 16-byte addresses.
        home = torch.empty(tensors[0].numel() + 1, device=attend.device, dtype=dtype)
        home[1:].copy_(tensors[0].flatten())
        tensors[0] = home[1:].view(tensors[0].shape)
    if arguments.get("sink"):
        arguments["sink"] = torch.zeros(2, device=attend.device)
    return tensors, arguments


@pytest.mark.parametrize("predicate", REFUSED)
def test_a_refusal_names_its_predicate(attend: Attend, predicate: str) -> None:
    tensors, arguments = _refused(attend, REFUSED[predicate])
    with pytest.raises(UnsupportedProblem) as caught:
        hopwell.attention(*tensors, **arguments)
    assert predicate in {row.predicate for row in caught.value.refusals["hopper"]}
    assert {row.predicate for row in caught.value.refusals["cpu"]} == {"device"}


@pytest.mark.parametrize("predicate", REFUSED)
def test_an_allowed_fallback_is_recorded(attend: Attend, predicate: str) -> None:
    tensors, arguments = _refused(attend, REFUSED[predicate])
    with hopwell.record_dispatch() as calls:
        out = hopwell.attention(*tensors, fallback="torch", **arguments)
    (ran,) = calls
    assert isinstance(out, torch.Tensor)
    assert out.is_cuda
    assert out.isfinite().all()
    assert ran.backend == "torch"
    assert ran.kernel_symbol is None
    assert ran.fallback is not None
    assert predicate in {row.predicate for row in ran.fallback}


def test_a_gradient_raises(attend: Attend) -> None:
    q, k, v = attend.draw(1, (64, 64), (2, 2), (64, 64))
    k.requires_grad_()
    with torch.enable_grad(), pytest.raises(GradientUnsupported):
        hopwell.attention(q, k, v)
    attend.check(q, k, v)  # the fixture's no_grad: the same tensors run


def test_a_fallback_gives_gradients(attend: Attend) -> None:
    q, k, v = (x.requires_grad_() for x in attend.draw(1, (64, 64), (2, 2), (64, 64)))
    with torch.enable_grad():
        out = hopwell.attention(q, k, v, fallback="torch")
        assert isinstance(out, torch.Tensor)
        out.float().square().sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad.abs().sum() > 0

"""The custom op under torch.compile, torch.export and PyTorch's own checks of custom ops."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from hopwell import attention
from hopwell.dispatch import record_dispatch
from hopwell.errors import GradientUnsupported, InputError

OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"window": (3, 0), "softcap": 2.0, "scale": 0.5},
]


def inputs(seqlen: int = 12, grad: bool = False) -> list[Tensor]:
    shapes = [(2, seqlen, 4, 8), (2, seqlen + 3, 2, 8), (2, seqlen + 3, 2, 6), (4,)]
    return [torch.randn(*shape).requires_grad_(grad) for shape in shapes]


def call(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, **options: Any) -> Any:
    return attention(q, k, v, sink=sink, return_lse=True, **options)


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool) -> None:
    q, k, v, sink = inputs(grad=grad)
    op = torch.ops.hopwell.attention.default
    torch.library.opcheck(op, (q, k, v))
    torch.library.opcheck(op, (q, k, v, sink), {"window_left": 3, "window_right": 0})
    torch.library.opcheck(op, (q, k, v), {"scale": 0.3, "softcap": 1.5, "deterministic": True})


def test_opcheck_of_the_backward() -> None:
    q, k, v, sink = inputs()
    grads = torch.randn(2, 12, 4, 6), torch.randn(2, 4, 12)
    op = torch.ops.hopwell.attention_backward.default
    torch.library.opcheck(op, (*grads, q, k, v, sink), {"window_right": 0})
    torch.library.opcheck(op, (grads[0], None, q, k, v), {"softcap": 1.0})


@pytest.mark.parametrize("options", OPTIONS)
def test_compile_without_graph_breaks(options: dict[str, Any]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    leaves = inputs(grad=True)
    with record_dispatch() as calls:
        got = compiled(*leaves, **options)
    assert [entry.backend for entry in calls] == ["cpu"]
    want = call(*leaves, **options)
    pulled = [torch.randn_like(x) for x in want]
    for have, wanted in zip(
        (*got, *torch.autograd.grad(got, leaves, pulled)),
        (*want, *torch.autograd.grad(want, leaves, pulled)),
        strict=True,
    ):
        torch.testing.assert_close(have, wanted)


@pytest.mark.skipif(not shutil.which("c++"), reason="Inductor compiles C++; none is installed")
def test_compile_with_the_default_backend() -> None:
    torch.compiler.reset()

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(2 * q, k, v, causal=True).sin()

    q, k, v, _ = inputs()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(q, k, v), layer(q, k, v))


def test_one_graph_for_all_lengths() -> None:
    torch.compiler.reset()
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=keep)
    for seqlen in (12, 7, 30, 65):
        given = inputs(seqlen)
        for have, want in zip(
            compiled(*given, causal=True), call(*given, causal=True), strict=True
        ):
            assert torch.equal(have, want)
    assert len(graphs) == 1


def test_a_window_may_depend_on_a_shape() -> None:
    torch.compiler.reset()

    def half(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attention(q, k, v, window=(q.shape[1] // 2, 0))

    compiled = torch.compile(half, fullgraph=True, dynamic=True, backend="aot_eager")
    for seqlen in (12, 31):
        q, k, v, _ = inputs(seqlen)
        assert torch.equal(compiled(q, k, v), half(q, k, v))


class _Layer(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Any:
        return attention(q, k, v, causal=True, sink=sink, return_lse=True)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    # q and k share no dimension here: k is longer by a constant, as in inputs().
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(
        _Layer(),
        tuple(inputs()),
        dynamic_shapes=({1: length}, {1: length + 3}, {1: length + 3}, {}),
        strict=strict,
    )
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.hopwell.attention.default in targets
    given = inputs(29)
    for have, want in zip(program.module()(*given), _Layer()(*given), strict=True):
        torch.testing.assert_close(have, want)


def test_mistakes_show_while_tracing() -> None:
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    q, k, v, sink = inputs()
    with pytest.raises(Exception, match="heads_q a multiple of heads_k"):
        compiled(q[:, :, :3], k, v, sink[:3])
    with pytest.raises(Exception, match=r"(?s)InputError|at least 0"):
        compiled(q, k, v, sink, window=(-1, 0))


def test_meta_and_fake_tensors() -> None:
    q, k, v, _ = (x.to("meta") for x in inputs())
    out, lse = torch.ops.hopwell.attention(q, k, v)
    assert (out.shape, out.dtype) == ((2, 12, 4, 6), torch.float32)
    assert lse.shape == (2, 4, 12)
    with pytest.raises(InputError, match="heads"):
        torch.ops.hopwell.attention(q, k[:, :, :0], v[:, :, :0])
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 8, 4, 64, device="cuda", dtype=torch.bfloat16)
        out, lse = attention(x, x, x, return_lse=True)
        assert (out.device.type, out.dtype, lse.dtype) == ("cuda", torch.bfloat16, torch.float32)
        grad = torch.empty(2, 8, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with pytest.raises(GradientUnsupported):
            attention(grad, x, x)

"""``torch.ops.hopwell.attention``: the custom op under :func:`hopwell.attention`.

One schema per layout, always returning (out, lse), the window as two optional ints. Registered
through ``torch.library.Library``, whose ``impl`` costs microseconds per call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from hopwell import dispatch
from hopwell.errors import GradientUnsupported
from hopwell.execution import Options, run
from hopwell.masks import Mask
from hopwell.problem import check_tensors

_OPTIONS = (
    "SymInt? window_left=None, SymInt? window_right=None, float? scale=None, float? softcap=None"
)

_Two = tuple[Tensor, Tensor]
_Four = tuple[Tensor, Tensor, Tensor, Tensor]

_library = torch.library.Library("hopwell", "DEF")
_library.define(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? sink=None, *, {_OPTIONS}, "
    'bool deterministic=False, str backend="auto", str fallback="error", '
    "bool needs_grad=False) -> (Tensor out, Tensor lse)"
)
_library.define(
    "attention_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, "
    f"Tensor? sink=None, *, {_OPTIONS}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)"
)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    *,
    window_left: int | None = None,
    window_right: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    deterministic: bool = False,
    backend: str = "auto",
    fallback: str = "error",
    needs_grad: bool = False,
) -> _Two:
    options = Options(
        window_left,
        window_right,
        scale,
        softcap,
        return_lse=True,
        deterministic=deterministic,
        backend=backend,
        fallback=fallback,
        needs_grad=needs_grad,
    )
    return run(q, k, v, sink, options)


def _forward_fake(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None, **options: Any
) -> _Two:
    check_tensors(q, k, v, sink)
    batch, seqlen_q, heads_q, _ = q.shape
    out = q.new_empty(batch, seqlen_q, heads_q, v.shape[3])
    return out, q.new_empty(batch, heads_q, seqlen_q, dtype=torch.float32)


def _backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    *,
    window_left: int | None = None,
    window_right: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> _Four:
    from hopwell import cpu

    mask = Mask(window_left, window_right).canonical(q.shape[1], k.shape[1])
    terms = cpu.Terms(q.shape[3] ** -0.5 if scale is None else scale, mask, softcap, sink)
    dq, dk, dv, dsink = cpu.backward(grad_out, grad_lse, q, k, v, terms)
    return dq, dk, dv, q.new_empty(0) if dsink is None else dsink


def _backward_fake(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    **options: Any,
) -> _Four:
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    return dq, dk, dv, q.new_empty(0) if sink is None else sink.new_empty(sink.shape)


# -- autograd --------------------------------------------------------------------------------


@contextmanager
def _below_autograd() -> Iterator[None]:
    """Dispatch past autograd at this level; an outer ``torch.func`` level still differentiates.

    PyTorch switches gradients off inside a Function's forward, and nested transforms would
    inherit that: their derivative would silently be zero.
    """
    with ExitStack() as stack:
        if torch._C._are_functorch_transforms_active():
            stack.enter_context(torch.enable_grad())
            stack.enter_context(forward_ad._set_fwd_grad_enabled(True))
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        yield


class _Attention(_SingleLevelFunction):
    """Differentiable in q, k, v and sink, through out and lse. Options arrive as one tuple.

    Single level: below the dispatcher, ``torch.func`` has already taken its own level off.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        options: tuple[tuple[str, Any], ...],
    ) -> _Two:
        ctx.save_for_backward(q, k, v, sink)
        ctx.set_materialize_grads(False)
        ctx.options = {key: value for key, value in options if key in _BACKWARD_OPTIONS}
        with _below_autograd():
            # The backend has to know now: one without a backward refuses here, at the forward.
            result: _Two = torch.ops.hopwell.attention.default(
                q, k, v, sink, **{**dict(options), "needs_grad": True}
            )
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_out, grad_lse = grads
        q, k, v, sink = ctx.saved_tensors
        if grad_out is None:
            grad_out = q.new_zeros(*q.shape[:3], v.shape[3])
        dq, dk, dv, dsink = torch.ops.hopwell.attention_backward.default(
            grad_out, grad_lse, q, k, v, sink, **ctx.options
        )
        return dq, dk, dv, None if sink is None else dsink, None


class _AttentionBackward(_SingleLevelFunction):
    """The first derivative, which ``create_graph`` may record; the second is an error."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> _Four:
        *tensors, options = arguments
        with _below_autograd():
            result: _Four = torch.ops.hopwell.attention_backward.default(*tensors, **dict(options))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise GradientUnsupported(
            "second derivative of attention",
            expected="first derivatives only",
            actual="a derivative of a gradient",
            consequence="Nothing was computed.",
        )


_BACKWARD_OPTIONS = ("window_left", "window_right", "scale", "softcap")


def _recorded(function: Any, *arguments: Any) -> Any:
    """Apply a single-level Function, which PyTorch allows only when asked, inside transforms."""
    with enable_single_level_autograd_function():
        return function.apply(*arguments)


def _wants_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _refuse_forward_mode(*tensors: Tensor | None) -> None:
    if forward_ad._current_level < 0:
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise GradientUnsupported(
            "forward-mode derivative",
            expected="inputs without a tangent",
            actual="a dual tensor",
            consequence="Nothing was computed. Reverse mode is supported on the CPU backend.",
        )


def _refuse_while_tracing(*tensors: Tensor) -> None:
    # Tensors without data cannot be dispatched, but no kernel has a backward whatever they hold.
    if torch._guards.detect_fake_mode(tensors) is not None:
        raise dispatch.gradient_unsupported()


def _forward_autograd(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None = None, **options: Any
) -> _Two:
    _refuse_forward_mode(q, k, v, sink)
    if _wants_grad(q, k, v, sink):
        if q.device.type != "cpu" and options.get("fallback", "error") == "error":
            _refuse_while_tracing(q, k, v)
        return _recorded(_Attention, q, k, v, sink, tuple(options.items()))
    with _below_autograd():
        result: _Two = torch.ops.hopwell.attention.default(q, k, v, sink, **options)
    return result


def _backward_autograd(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None = None,
    **options: Any,
) -> _Four:
    arguments = (grad_out, grad_lse, q, k, v, sink)
    _refuse_forward_mode(*arguments)
    if _wants_grad(*arguments):
        return _recorded(_AttentionBackward, *arguments, tuple(options.items()))
    with _below_autograd():
        result: _Four = torch.ops.hopwell.attention_backward.default(*arguments, **options)
    return result


_library.impl("attention", _forward, "CompositeExplicitAutograd")
_library.impl("attention_backward", _backward, "CompositeExplicitAutograd")
_library.impl("attention", _forward_autograd, "Autograd")
_library.impl("attention_backward", _backward_autograd, "Autograd")
# Not register_fake, which searches all loaded modules for its caller, a millisecond each time.
_library.impl("attention", _forward_fake, "Meta")
_library.impl("attention_backward", _backward_fake, "Meta")

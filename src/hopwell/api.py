"""``hopwell.attention``: check the arguments, choose who computes, run."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hopwell import dispatch
from hopwell import torch_ops as torch_ops  # registers torch.ops.hopwell
from hopwell.execution import Options, repeat, run
from hopwell.problem import (
    Problem,
    Window,
    check_data,
    check_flags,
    check_positive,
    check_tensors,
    check_window,
    real,
)

# Bound once: each is asked on every eager call.
_grad_enabled = torch.is_grad_enabled
_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_is_compiling = torch.compiler.is_compiling
_new = tuple.__new__


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    return_lse: Literal[False] = ...,
    deterministic: bool = ...,
    backend: str = ...,
    fallback: str = ...,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    return_lse: Literal[True],
    deterministic: bool = ...,
    backend: str = ...,
    fallback: str = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    sink: Tensor | None = ...,
    return_lse: bool,
    deterministic: bool = ...,
    backend: str = ...,
    fallback: str = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
    fallback: str = "error",
) -> Tensor | tuple[Tensor, Tensor]:
    """Exact attention, ``softmax(scale * q k^T) v``, on the kernel that takes the problem.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim); bfloat16, float16, float32 or float64. The last
            dimension is contiguous, other strides are honoured, nothing is copied.
        k: (batch, seqlen_k, heads_k, head_dim), q's dtype and device; heads_k divides heads_q and
            query head ``h`` reads key head ``h // (heads_q // heads_k)``.
        v: (batch, seqlen_k, heads_k, head_dim_v).
        causal: query ``i`` sees key ``j`` when ``j <= i + seqlen_k - seqlen_q``.
        window: (left, right) in tokens around that position, inclusive; None is unbounded.
        scale: finite and positive; default ``1 / sqrt(head_dim)``.
        softcap: scores become ``softcap * tanh(score / softcap)``.
        sink: (heads_q,), in natural-log units, not scaled: adds ``exp(sink)`` to the denominator.
        return_lse: also return the natural log-sum-exp.
        deterministic: bitwise equal results and gradients in repeated runs. The kernels and the CPU
            reduce in a fixed order, asked or not; a PyTorch fallback on a GPU is as repeatable as
            its matrix products.
        backend: ``"auto"``, ``"hopper"`` or ``"cpu"``.
        fallback: ``"error"``, or ``"torch"`` to let PyTorch compute what no backend takes.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) in q's dtype; with ``return_lse`` also lse
        (batch, heads_q, seqlen_q), float32. A query that sees no key has out 0 and lse -inf
        (with a sink: lse = sink), and zero gradients. Differentiable in q, k, v and sink on the
        CPU, through both results.

    Raises:
        InputError: a value, shape, device or stride that cannot be meant.
        InputTypeError: a wrong Python type or dtype.
        UnsupportedProblem: no backend takes it; the message names every predicate that refused.
        GradientUnsupported: an input requires grad and the kernel has no backward.
        CompileDuringCapture: a CUDA graph is being captured and the kernel never ran before.
    """
    if not (type(causal) is type(return_lse) is type(deterministic) is bool):
        check_flags(causal=causal, return_lse=return_lse, deterministic=deterministic)
    if not (type(backend) is type(fallback) is str):
        dispatch.check_backend(backend, fallback)
    left, right = (None, None) if window is None else check_window(window)
    right = 0 if causal else right  # never negative, so causal is the tighter bound
    if not (scale is softcap is None):
        scale, softcap = real("scale", scale), real("softcap", softcap)
    # What NamedTuple's own constructor does, in half the time.
    options = _new(
        Options,
        (left, right, scale, softcap, return_lse, deterministic, backend, fallback, False),
    )
    if not _is_compiling():
        repeated = repeat(q, k, v, options) if sink is None else None
        if repeated is not None:
            return repeated if return_lse else repeated[0]
        plain = _is_plain(q, k, v, sink)
    else:
        plain = False
    if plain:
        out, lse = run(q, k, v, sink, options, plain=True)
    else:
        out, lse = _through_op(q, k, v, sink, options)
    return (out, lse) if return_lse else out


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    backend: str = "auto",
    fallback: str = "error",
) -> dispatch.Explanation:
    """What :func:`attention` would do with these arguments: its plan, or every refusal.

    Runs and compiles nothing. Arguments and input errors are those of :func:`attention`.
    """
    tensors = (x for x in (q, k, v, sink) if isinstance(x, Tensor))
    problem = Problem.from_tensors(
        q,
        k,
        v,
        causal=causal,
        window=window,
        scale=scale,
        softcap=softcap,
        sink=sink,
        return_lse=return_lse,
        deterministic=deterministic,
        needs_grad=torch.is_grad_enabled() and any(x.requires_grad for x in tensors),
    )
    return dispatch.explain(problem, backend, fallback)


def _is_plain(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> bool:
    """Whether the dispatcher may be bypassed.

    Only for plain tensors while nothing watches or transforms the call: no gradient, tracer, mode,
    transform, tangent or lazy negation.
    """
    return not (
        type(q) is not Tensor
        or type(k) is not Tensor
        or type(v) is not Tensor
        or not (sink is None or (type(sink) is Tensor and not sink.is_neg()))
        or (_grad_enabled() and _any_requires_grad(q, k, v, sink))
        or _function_modes()
        or _dispatch_modes()
        or _transforms() is not None
        or _tracing() is not None
        or forward_ad._current_level >= 0
        or q.is_neg()
        or k.is_neg()
        or v.is_neg()
    )


def _any_requires_grad(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> bool:
    return (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (sink is not None and sink.requires_grad)
    )


def _through_op(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, options: Options
) -> tuple[Tensor, Tensor]:
    check_positive("scale", options.scale)
    check_positive("softcap", options.softcap)
    dispatch.check_backend(options.backend, options.fallback)
    if not torch.compiler.is_compiling():
        # While tracing, the op's fake implementation does this.
        check_tensors(q, k, v, sink)
        check_data(q)
    result: tuple[Tensor, Tensor] = torch.ops.hopwell.attention.default(
        q,
        k,
        v,
        sink,
        window_left=options.window_left,
        window_right=options.window_right,
        scale=options.scale,
        softcap=options.softcap,
        deterministic=options.deterministic,
        backend=options.backend,
        fallback=options.fallback,
    )
    return result

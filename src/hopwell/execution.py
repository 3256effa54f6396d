"""A decided call, ready to run on tensors of one signature: what dispatch chose, bound to code."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopwell import cpu, dispatch
from hopwell.hopper import launch as hopper_launch
from hopwell.problem import TMA_ALIGNMENT, Problem

#: How a kernel came into the process, in the words of a dispatch record.
_CACHE_WORD = {"cache": "hit", "wheel": "wheel", "compiled": "compiled"}


#: Prepared calls by signature. Bounded: a service with ever-changing lengths must not grow it.
_prepared: dict[tuple[Any, ...], Call] = {}
_PREPARED_LIMIT = 4096


class Options(NamedTuple):
    """What a call asks for besides its tensors; the mask as window bounds, causal folded in.

    Values are of exactly these types: in a key, 1, 1.0 and True would pass for each other.
    """

    window_left: int | None
    window_right: int | None
    scale: float | None
    softcap: float | None
    return_lse: bool
    deterministic: bool
    backend: str
    fallback: str
    needs_grad: bool = False


def prepared(q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, options: Options) -> Call:
    """The call that these arguments ask for, checked and decided once per signature.

    Raises:
        InputError, InputTypeError, UnsupportedProblem, GradientUnsupported: as ``attention``.
    """
    try:
        key = (
            q.shape,
            k.shape,
            v.shape,
            q.stride(),
            k.stride(),
            v.stride(),
            q.dtype,
            k.dtype,
            v.dtype,
            q.device,
            k.device,
            v.device,
            # Not a property of the layout: it has to be looked at on every call.
            q.data_ptr() % TMA_ALIGNMENT,
            k.data_ptr() % TMA_ALIGNMENT,
            v.data_ptr() % TMA_ALIGNMENT,
            None if sink is None else (sink.shape, sink.dtype, sink.device, sink.layout),
            options,
        )
    except RuntimeError:  # a layout without strides or address: the checks below name it
        key = None
    call = _prepared.get(key) if key is not None else None
    if call is None:
        problem = Problem.from_tensors(
            q,
            k,
            v,
            window=(options.window_left, options.window_right),
            scale=options.scale,
            softcap=options.softcap,
            sink=sink,
            return_lse=options.return_lse,
            deterministic=options.deterministic,
            needs_grad=options.needs_grad,
        )
        choice = dispatch.choose(problem, options.backend, options.fallback)
        call = Call(problem, choice, q, k, v)
        if key is not None:
            if len(_prepared) >= _PREPARED_LIMIT:
                _prepared.clear()
            _prepared[key] = call
    return call


def _outline(x: Tensor) -> Tensor:
    """``x`` without its memory: the cheapest thing that ``empty_like`` can copy sizes from."""
    x.untyped_storage().resize_(0)
    return x


class Call:
    """Computes ``problem`` as ``choice`` says, for any tensors with this problem's signature.

    The first call of a kernel loads it (and compiles it, where nothing else has).
    """

    __slots__ = ("_kernel", "_launch", "_lse", "_out", "choice", "problem")

    def __init__(
        self, problem: Problem, choice: dispatch.Choice, q: Tensor, k: Tensor, v: Tensor
    ) -> None:
        self.problem = problem
        self.choice = choice
        self._launch: hopper_launch.Launch | None = None
        self._kernel: Any = None
        if choice.plan is not None and not problem.is_empty:
            num_sms = hopper_launch.sm_count(q.device.index)
            self._launch = hopper_launch.Launch.of(choice.plan, problem, q, k, v, num_sms)
            p = problem
            self._out = _outline(q.new_empty(p.batch, p.seqlen_q, p.heads_q, p.head_dim_v))
            # The kernel writes only the rows that its tensor has: none where nobody asked.
            extents = (p.batch, p.heads_q, p.seqlen_q) if p.return_lse else (0, 0, 0)
            self._lse = _outline(q.new_empty(extents, dtype=torch.float32))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run; out (batch, seqlen_q, heads_q, head_dim_v) and lse (batch, heads_q, seqlen_q).

        A kernel leaves lse empty, (0, 0, 0), where the problem does not ask for it.
        """
        launch = self._launch
        if launch is None:
            return self._without_kernel(q, k, v, sink)
        if launch.device is None or launch.device == torch.cuda.current_device():
            return self._with_kernel(launch, q, k, v)
        with hopper_launch.on_device(launch.device):
            return self._with_kernel(launch, q, k, v)

    def _with_kernel(
        self, launch: hopper_launch.Launch, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(self._out)
        lse = torch.empty_like(self._lse) if self.problem.return_lse else self._lse
        kernel = self._kernel
        if kernel is None:
            return self._first(launch, q, k, v, out, lse)
        launch(kernel, q, k, v, out, lse)
        if dispatch.recording():
            self._record(kernel, "memory")
        return out, lse

    def _first(
        self,
        launch: hopper_launch.Launch,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor]:
        plan = self.choice.plan
        assert plan is not None  # a launch exists only with a plan
        kernel, fresh = hopper_launch.load(plan, launch.device)
        launch(kernel, q, k, v, out, lse)
        # Only now is its code on the device: before, a graph capture must not meet it.
        hopper_launch.keep(plan, launch.device, kernel)
        self._kernel = kernel
        if dispatch.recording():
            self._record(kernel, _CACHE_WORD[kernel.source] if fresh else "memory")
        return out, lse

    def _record(self, kernel: Any, cache: str) -> None:
        dispatch.record(
            dispatch.DispatchRecord(
                problem=self.problem,
                backend=self.choice.backend,
                plan=self.choice.plan,
                compile_key=kernel.key,
                artifact_hash=kernel.artifact_hash,
                kernel_symbol=kernel.symbol,
                cache=cache,
                compile_seconds=kernel.compile_seconds if cache == "compiled" else None,
            )
        )

    def _without_kernel(
        self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        p = self.problem
        result = cpu.forward(q, k, v, cpu.Terms(p.scale, p.mask, p.softcap, sink))
        if dispatch.recording():
            dispatch.record(
                dispatch.DispatchRecord(
                    problem=p,
                    backend=self.choice.backend,
                    plan=self.choice.plan,
                    fallback=self.choice.fallback,
                )
            )
        return result

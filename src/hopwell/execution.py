"""A decided call, ready to run on tensors of one signature: what dispatch chose, bound to code."""

# Annotations are values here, not text: a named tuple compiles each that is text.

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hopwell import dispatch
from hopwell.hopper import launch as hopper_launch
from hopwell.problem import TMA_ALIGNMENT, Problem

if TYPE_CHECKING:
    from hopwell.compile.kernel import Bound

# Bound once: each is asked on every call.
_empty_like = torch.empty_like
_function_modes = torch._C._len_torch_function_stack
_recording = dispatch.recording
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

#: Prepared calls by signature. Bounded: a service with ever-changing lengths must not grow it.
_prepared: "dict[tuple[Any, ...], Call]" = {}
_PREPARED_LIMIT = 4096

#: The last plain kernel call by its options, for :func:`repeat`: what its tensors have to be like,
#: its kernel, and itself.
_last: "dict[Options, tuple[Callable[..., bool], Bound, Call]]" = {}


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


def repeat(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor] | None:
    """The last call with these options once more; None where anything else has changed.

    The tensors and what PyTorch would do with them (modes, transforms, tracing, gradients) are
    compared in one step, with the guard of ``torch.compile``: that is what this is for.
    """
    last = _last.get(options)
    if last is None:
        return None
    holds, bound, call = last
    if not holds(q, k, v):
        return None
    at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    device = call.device
    if (
        (at_q | at_k | at_v) % TMA_ALIGNMENT
        or (device is not None and device != _current_device())
        # These two are no business of the dispatcher, so the guard does not see them.
        or _function_modes()
        or forward_ad._current_level >= 0
        or _recording() is not None
    ):
        return None
    out = _empty_like(call.out)
    lse = _empty_like(call.lse) if call.wants_lse else call.lse
    bound(at_q, at_k, at_v, out.data_ptr(), lse.data_ptr())
    return out, lse


def _remember(call: "Call", bound: "Bound", options: Options, *tensors: Tensor) -> None:
    """Let :func:`repeat` do it from the next time on."""
    if any(x.requires_grad for x in tensors):
        return  # the guard does not know whether gradients were enabled
    if len({id(x) for x in tensors}) < len(tensors):
        return  # the guard holds for distinct tensors only
    if call.holds is None or not call.holds(*tensors):
        call.holds = _guard(*tensors)
    if call.holds is not None:
        if len(_last) >= _PREPARED_LIMIT:
            _last.clear()
        _last[options] = call.holds, bound, call


def _guard(*tensors: Tensor) -> Callable[..., bool] | None:
    """What tells whether other tensors, here and now, are like these; None if PyTorch lacks it."""
    try:
        from torch._C._dynamo import guards

        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        make: Any = guards.TensorGuards
        made = make(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = made.check
        return check
    except (ImportError, AttributeError, TypeError):
        return None


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    options: Options,
    plain: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute what these arguments ask for, checked and decided once per signature.

    ``plain`` says that nothing watches or transforms the call. Returns out (batch, seqlen_q,
    heads_q, head_dim_v) and lse (batch, heads_q, seqlen_q). A kernel leaves lse empty, (0, 0, 0),
    where the options do not ask for it.

    Raises:
        InputError, InputTypeError, UnsupportedProblem, GradientUnsupported: as ``attention``.
    """
    try:
        # Not a property of the layout: they have to be looked at on every call.
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
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
            (at_q | at_k | at_v) % TMA_ALIGNMENT
            and (at_q % TMA_ALIGNMENT, at_k % TMA_ALIGNMENT, at_v % TMA_ALIGNMENT),
            sink if sink is None else (sink.shape, sink.dtype, sink.device, sink.layout),
            options,
        )
    except RuntimeError:  # a layout without strides or address: the checks below name it
        return Call.of(q, k, v, sink, options)(q, k, v, sink)
    call = _prepared.get(key)
    if call is None:
        call = Call.of(q, k, v, sink, options)
        if len(_prepared) >= _PREPARED_LIMIT:
            _prepared.clear()
        _prepared[key] = call
    bound, device = call.bound, call.device
    if (
        bound is None
        or (device is not None and device != _current_device())
        or _recording() is not None
    ):
        return call(q, k, v, sink)
    out = _empty_like(call.out)
    lse = _empty_like(call.lse) if call.wants_lse else call.lse
    bound(at_q, at_k, at_v, out.data_ptr(), lse.data_ptr())
    if plain and sink is None:
        _remember(call, bound, options, q, k, v)
    return out, lse


def _outline(x: Tensor) -> Tensor:
    """``x`` without its memory: the cheapest thing that ``empty_like`` can copy sizes from."""
    x.untyped_storage().resize_(0)
    return x


class Call:
    """Computes ``problem`` as ``choice`` says, for any tensors with this problem's signature.

    The first call of a kernel loads it (and compiles it, where nothing else has), and binds it:
    from then on ``bound`` takes addresses, and ``out`` and ``lse`` say what it writes.
    """

    __slots__ = (
        "_kernel",
        "_launch",
        "bound",
        "choice",
        "device",
        "holds",
        "lse",
        "out",
        "problem",
        "wants_lse",
    )

    def __init__(
        self, problem: Problem, choice: dispatch.Choice, q: Tensor, k: Tensor, v: Tensor
    ) -> None:
        self.problem = problem
        self.choice = choice
        self.wants_lse = problem.return_lse
        self.bound: Bound | None = None
        self.holds: Callable[..., bool] | None = None
        self.device: int | None = None
        self._launch: hopper_launch.Launch | None = None
        self._kernel: Any = None
        if choice.plan is not None and not problem.is_empty:
            num_sms = hopper_launch.sm_count(q.device.index)
            self._launch = hopper_launch.Launch.of(choice.plan, problem, q, k, v, num_sms)
            self.device = self._launch.device
            p = problem
            self.out = _outline(q.new_empty(p.batch, p.seqlen_q, p.heads_q, p.head_dim_v))
            # The kernel writes only the rows that its tensor has: none where nobody asked.
            extents = (p.batch, p.heads_q, p.seqlen_q) if p.return_lse else (0, 0, 0)
            self.lse = _outline(q.new_empty(extents, dtype=torch.float32))

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, options: Options) -> "Call":
        """Check the arguments, choose who computes."""
        asked = Options(*options)
        problem = Problem.from_tensors(
            q,
            k,
            v,
            window=(asked.window_left, asked.window_right),
            scale=asked.scale,
            softcap=asked.softcap,
            sink=sink,
            return_lse=asked.return_lse,
            deterministic=asked.deterministic,
            needs_grad=asked.needs_grad,
        )
        return cls(problem, dispatch.choose(problem, asked.backend, asked.fallback), q, k, v)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run, on any current device, the first time or with somebody recording."""
        launch = self._launch
        if launch is None:
            return self._without_kernel(q, k, v, sink)
        if launch.device is None or launch.device == _current_device():
            return self._with_kernel(launch, q, k, v)
        with hopper_launch.on_device(launch.device):
            return self._with_kernel(launch, q, k, v)

    def _with_kernel(
        self, launch: hopper_launch.Launch, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        plan = self.choice.plan
        assert plan is not None  # a launch exists only with a plan
        out = torch.empty_like(self.out)
        lse = torch.empty_like(self.lse) if self.wants_lse else self.lse
        kernel, bound, cache = self._kernel, self.bound, "memory"
        if bound is None:
            kernel, fresh = hopper_launch.load(plan, launch.device)
            bound = launch.bind(kernel, q, k, v, out, lse)
            if fresh:
                cache = dispatch.CACHE_WORD[kernel.source]
        bound(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr())
        if self.bound is None:
            # Only now is its code on the device: before, a graph capture must not meet it.
            hopper_launch.keep(plan, launch.device, kernel)
            self._kernel, self.bound = kernel, bound
        if dispatch.recording():
            self._record(kernel, cache)
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
        from hopwell import cpu  # here: a GPU call has no time for it

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

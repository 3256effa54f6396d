"""One launch of the forward kernel: extents, strides, scale and grid beside the plan's code.

The plan is what was compiled and holds no extents; everything that a call adds is here.
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from hopwell.errors import CompileDuringCapture
from hopwell.hopper.plan import HopperForwardPlan
from hopwell.hopper.support import tile_count
from hopwell.problem import TMA_ALIGNMENT, TMA_STRIDE_LIMIT, Problem

if TYPE_CHECKING:
    from torch import Tensor

    from hopwell.compile.kernel import Bound

Strides = tuple[int, ...]

#: Kernels that have been launched on a device in this process: their code is resident there.
_resident: dict[tuple[HopperForwardPlan, int | None], Any] = {}


class Launch(NamedTuple):
    """What the kernel is called with besides pointers.

    ``q_strides``, ``k_strides`` and ``v_strides`` (elements) are None when the tensor goes as it
    is, else the equivalent strides to view it through. ``num_sms`` bounds the persistent grid,
    ``grid`` is the number of CTAs that follows. ``device`` is the CUDA index (None off CUDA).
    """

    problem: Problem
    scale: float
    num_sms: int
    grid: int
    device: int | None
    q_strides: Strides | None
    k_strides: Strides | None
    v_strides: Strides | None

    @classmethod
    def of(
        cls,
        plan: HopperForwardPlan,
        problem: Problem,
        q: "Tensor",
        k: "Tensor",
        v: "Tensor",
        num_sms: int,
    ) -> "Launch":
        """Derive the launch of ``plan`` for tensors that ``problem`` describes."""
        return cls(
            problem=problem,
            scale=problem.scale,
            num_sms=num_sms,
            grid=min(num_sms * plan.ctas_per_sm, tile_count(plan, problem)),
            device=q.device.index,
            q_strides=addressable_strides(q),
            k_strides=addressable_strides(k),
            v_strides=addressable_strides(v),
        )

    def bind(
        self, kernel: Any, q: "Tensor", k: "Tensor", v: "Tensor", out: "Tensor", lse: "Tensor"
    ) -> "Bound":
        """What enqueues ``kernel`` for tensors like these, on the current stream of their device.

        That device must be current. The call takes the addresses of q, k, v, out and lse.
        """
        if self.q_strides is not None:
            q = q.as_strided(q.shape, self.q_strides)
        if self.k_strides is not None:
            k = k.as_strided(k.shape, self.k_strides)
        if self.v_strides is not None:
            v = v.as_strided(v.shape, self.v_strides)
        bound: Bound = kernel.bind(q, k, v, out, lse, self.scale, self.num_sms)
        return bound


def addressable_strides(x: "Tensor") -> Strides | None:
    """Strides through which a tensor map can describe ``x``, or None when its own do.

    PyTorch leaves any number in the stride of a dimension that holds at most one index; a tensor
    map must still be able to encode it. Such strides become those of a packed tensor.
    """
    free = [size <= 1 or x.numel() == 0 for size in x.shape]
    item = x.element_size()
    strides = x.stride()
    if not any(
        loose and (stride * item % TMA_ALIGNMENT or stride * item >= TMA_STRIDE_LIMIT)
        for loose, stride in zip(free[:-1], strides[:-1], strict=True)
    ):
        return None
    packed = [1] * x.dim()
    for dim in range(x.dim() - 2, -1, -1):
        packed[dim] = packed[dim + 1] * max(x.shape[dim + 1], 1)
    return tuple(packed[dim] if free[dim] else stride for dim, stride in enumerate(strides))


def load(plan: HopperForwardPlan, device: int | None) -> tuple[Any, bool]:
    """The plan's kernel, and whether it has never been launched on this device by this process.

    ``device`` must be current: it is its stream that may be capturing.

    Raises:
        CompileDuringCapture: it would have to be compiled or loaded while a CUDA graph captures.
    """
    kernel = _resident.get((plan, device))
    if kernel is not None:
        return kernel, False
    _refuse_during_capture(plan, device)
    # Here, not at the top: the package must import without what loads kernels.
    from hopwell import compile as compiler

    return compiler.load(plan), True


def run(
    plan: HopperForwardPlan,
    problem: Problem,
    q: "Tensor",
    k: "Tensor",
    v: "Tensor",
    out: "Tensor",
    lse: "Tensor",
) -> None:
    """Load the plan's kernel, call it once on q's device and its current stream.

    Args:
        out: (batch, seqlen_q, heads_q, head_dim_v), q's dtype.
        lse: (batch, heads_q, seqlen_q), float32, contiguous.
    """
    if problem.is_empty:
        return
    device = q.device.index
    launch = Launch.of(plan, problem, q, k, v, sm_count(device))
    with on_device(device):
        kernel, _ = load(plan, device)
        bound = launch.bind(kernel, q, k, v, out, lse)
        bound(q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr())
    keep(plan, device, kernel)


def keep(plan: HopperForwardPlan, device: int | None, kernel: Any) -> None:
    """Note that ``kernel`` was launched on ``device``: from now on it may run under capture."""
    _resident[plan, device] = kernel


def on_device(index: int | None) -> Any:
    """Context manager that makes a CUDA device current; does nothing off CUDA."""
    import torch

    return torch.cuda.device(-1 if index is None else index)


@cache
def sm_count(index: int | None) -> int:
    """Streaming multiprocessors of a CUDA device."""
    import torch

    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def _refuse_during_capture(plan: HopperForwardPlan, device: int | None) -> None:
    import torch

    if device is not None and torch.cuda.is_current_stream_capturing():
        raise CompileDuringCapture(
            "kernel during CUDA graph capture",
            expected="a kernel that has run on this device before",
            actual=f"first use of {plan.name} on cuda:{device}",
            consequence="Nothing was launched. Call attention once before the capture starts.",
        )

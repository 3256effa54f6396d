"""Other attention implementations behind one interface, each optional, each verified.

A peer that cannot run says why. One that runs proves which implementation did: the operator that
PyTorch dispatched, and later the names of the kernels on the device.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopwell.bench.timing import Work

if TYPE_CHECKING:
    import torch

Bind = Callable[
    ["torch.Tensor", "torch.Tensor", "torch.Tensor", bool, float], Callable[[], "torch.Tensor"]
]


@dataclass(frozen=True)
class Peer:
    """One implementation.

    Attributes:
        name: Shown in tables and records.
        version: Of the library that holds the kernel.
        bind: (q, k, v, causal, scale) -> a call without arguments that gives the output.
            Tensors and output are (batch, seqlen, heads, head_dim).
        scope: Selects the implementation while calls run.
        operator: PyTorch operator that must be dispatched; None if the library is called directly.
        kernel_marks: One of these must occur in the name of a kernel that ran.
    """

    name: str
    version: str
    bind: Bind
    scope: Callable[[], AbstractContextManager[object]] = nullcontext
    operator: str | None = None
    kernel_marks: tuple[str, ...] = ()

    def work(self, calls: list[Callable[[], torch.Tensor]]) -> Work:
        return Work(calls=calls, scope=self.scope)


@dataclass(frozen=True)
class Absent:
    """A peer that cannot run here."""

    name: str
    reason: str


class PeerMismatch(RuntimeError):
    """Another implementation ran than the one that was asked for."""


def available_peers() -> tuple[list[Peer], list[Absent]]:
    """The peers that can be imported, and the others with their reason."""
    found: list[Peer] = []
    missing: list[Absent] = []
    for name, make in PEERS.items():
        try:
            found.append(make())
        except Exception as error:  # an import of foreign code may raise anything
            missing.append(Absent(name, f"{type(error).__name__}: {error}"))
    return found, missing


def _flash_attention_4() -> Peer:
    module = importlib.import_module("flash_attn.cute.interface")
    function = module.flash_attn_func

    def bind(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
    ) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            result = function(q, k, v, softmax_scale=scale, causal=causal)
            o: torch.Tensor = result[0] if isinstance(result, tuple) else result
            return o

        return call

    return Peer(
        name="flash-attn-4",
        version=importlib.metadata.version("flash-attn-4"),
        bind=bind,
        kernel_marks=("FlashAttentionForward", "flash_fwd", "flash_attn"),
    )


def _bind_sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> Callable[[], torch.Tensor]:
    import torch

    # Views once, outside the timed call: PyTorch wants (batch, heads, seqlen, head_dim).
    qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[2] != k.shape[2]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return lambda: sdpa(qt, kt, vt, is_causal=causal, scale=scale, enable_gqa=grouped).transpose(
        1, 2
    )


def _sdpa_peer(
    name: str, backend: str, version: str, operator: str, marks: tuple[str, ...]
) -> Peer:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, backend)

    @contextmanager
    def scope() -> Iterator[None]:
        # Of a problem that the one backend refuses, PyTorch raises and also warns, a line for
        # every backend that was not asked. The error alone is the answer.
        with warnings.catch_warnings(), sdpa_kernel([chosen]):
            warnings.simplefilter("ignore", UserWarning)
            yield

    return Peer(name, version, _bind_sdpa, scope, operator, marks)


def _cudnn() -> Peer:
    import torch

    version = torch.backends.cudnn.version()
    if version is None:
        raise RuntimeError("this PyTorch has no cuDNN")
    return _sdpa_peer(
        "cudnn",
        "CUDNN_ATTENTION",
        str(version),
        "aten::_scaled_dot_product_cudnn_attention",
        ("cudnn", "sdpa"),
    )


def _flash_attention_2() -> Peer:
    import torch

    return _sdpa_peer(
        "flash-attention-2",
        "FLASH_ATTENTION",
        f"torch {torch.__version__}",
        "aten::_scaled_dot_product_flash_attention",
        ("flash_fwd",),
    )


#: By name, what makes each peer: those that a complete comparison holds.
PEERS: dict[str, Callable[[], Peer]] = {
    "flash-attn-4": _flash_attention_4,
    "cudnn": _cudnn,
    "flash-attention-2": _flash_attention_2,
}


def verify_operator(peer: Peer, call: Callable[[], Any]) -> None:
    """Run the call once and check the operator that PyTorch dispatched.

    Raises:
        PeerMismatch: another operator ran.
        RuntimeError: PyTorch refused the backend for this problem.
    """
    seen: set[str] = set()
    with peer.scope():
        if peer.operator is None:
            call()
            return
        with _watch_operators(seen):
            call()
    if peer.operator not in seen:
        raise PeerMismatch(f"{peer.name}: expected {peer.operator}, ran {sorted(seen)}")


def _watch_operators(seen: set[str]) -> AbstractContextManager[object]:
    """Collects the names of the operators that PyTorch dispatches inside the block."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.add(func._schema.name)
            return func(*args, **(kwargs or {}))

    watch: AbstractContextManager[object] = Watch()  # type: ignore[no-untyped-call]
    return watch


def kernel_names(call: Callable[[], Any]) -> tuple[str, ...]:
    """Names of the device kernels that one call launches, from PyTorch's profiler.

    Profile after timing: an attached profiler slows later launches.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    events = profiler.events() or []
    return tuple(sorted({e.name for e in events if e.device_type.name == "CUDA"}))


def verify_kernels(peer: Peer, names: tuple[str, ...]) -> bool:
    """Whether one of the kernels carries the peer's mark."""
    return any(mark in name for mark in peer.kernel_marks for name in names)

"""From a plan to something that can be called: memo, wheel, cache, compiler, in this order."""

from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hopwell.compile import key as keys
from hopwell.compile import shipped
from hopwell.compile.artifact import Artifact
from hopwell.compile.key import Plan
from hopwell.errors import CompileDuringCapture, CompileError, LaunchError, UnsafeCache

if TYPE_CHECKING:
    from hopwell.compile.cache import Cache

Source = Literal["wheel", "cache", "compiled"]


class _CudaFailure(RuntimeError):
    """What the linked runtime (runtime.c) raises; :class:`LaunchError` is made from it."""


class Kernel:
    """A loaded kernel. Calling it launches on PyTorch's current stream and returns at once.

    ``kernel(q, k, v, o, lse, scale, num_sms)``: q, k, v, o are (batch, seqlen, heads, head_dim)
    CUDA tensors of the plan's dtype, last dimension contiguous; lse is (batch, heads, seqlen_q)
    float32, contiguous; scale multiplies the scores (natural units); num_sms bounds the
    persistent grid. o and lse are written. Raises :class:`LaunchError` when CUDA refuses, and
    :class:`CompileDuringCapture` when the first call comes while a graph is being captured.
    """

    __slots__ = ("_call", "_function", "artifact", "compile_seconds", "source")

    def __init__(self, artifact: Artifact, source: Source) -> None:
        self.artifact = artifact
        self.source = source
        #: Seconds that this process spent compiling it; 0 when it was found.
        self.compile_seconds = artifact.manifest.compile_seconds if source == "compiled" else 0.0
        self._function = _open(artifact)
        self._call = self._first_call

    @property
    def key(self) -> str:
        return self.artifact.manifest.key

    @property
    def artifact_hash(self) -> str:
        return self.artifact.manifest.artifact_hash

    @property
    def symbol(self) -> str:
        """Name of the kernel in PTX, cubin and profiles."""
        return self.artifact.manifest.kernel_symbol

    def _first_call(self, *arguments: Any) -> None:
        # The first call loads the module into CUDA, which a capture does not allow.
        _refuse_capture(self.artifact.manifest.plan_name, "loaded")
        self._function(*arguments)
        self._call = self._function

    def __call__(
        self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, num_sms: int
    ) -> None:
        try:
            self._call(q, k, v, o, lse, scale, num_sms)
        except _CudaFailure as error:
            raise _launch_error(str(error), self.artifact.manifest.plan_name) from None

    def __repr__(self) -> str:
        return (
            f"Kernel({self.artifact.manifest.plan_name}, {self.source}, {self.artifact_hash[:12]})"
        )


_kernels: dict[Plan, Kernel] = {}
_lock = threading.Lock()


def load(plan: Plan) -> Kernel:
    """The kernel of a plan: loaded before, shipped in the wheel, cached, or compiled now.

    Raises :class:`CompilerMissing` when it has to be compiled and ``hopwell[compile]`` is not
    installed, :class:`CompileError` when it does not compile, :class:`UnsafeCache` when the
    cache directory could be written by someone else, and :class:`CompileDuringCapture` when any
    of it would happen while a CUDA graph is being captured.
    """
    kernel = _kernels.get(plan)
    if kernel is not None:
        return kernel
    _refuse_capture(plan.name, "compiled or loaded")
    with _lock:
        if plan not in _kernels:
            _kernels[plan] = Kernel(*find_or_build(plan))
        return _kernels[plan]


def find(plan: Plan) -> tuple[Artifact, Source] | None:
    """The artifact of a plan that the wheel or the cache holds. Compiles and loads nothing.

    Raises :class:`UnsafeCache`.
    """
    request = keys.request_of(plan)
    packaged = shipped.find(request)
    if packaged is not None:
        return packaged, "wheel"
    cache = _open_cache()
    cached = cache.find(request, _key(plan)) if cache is not None else None
    return (cached, "cache") if cached is not None else None


def find_or_build(plan: Plan) -> tuple[Artifact, Source]:
    """The artifact of a plan and where it came from; compiled now if it is nowhere.

    Loads nothing into the process. Raises like :func:`load`.
    """
    found = find(plan)
    if found is not None:
        return found
    request, key, cache = keys.request_of(plan), _key(plan), _open_cache()
    if cache is None or key is None:
        # The directory must outlive this call: the process goes on running what is in it.
        scratch = tempfile.mkdtemp(prefix="hopwell-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        return _compile(plan, Path(scratch)), "compiled"
    with cache.lock(key):
        cached = cache.find(request, key)  # another process may have just compiled it
        if cached is not None:
            return cached, "cache"
        cache.remove_stale()
        return cache.publish(request, key, functools.partial(_compile, plan)), "compiled"


def _key(plan: Plan) -> str | None:
    """The compile key with this machine's compiler, or None without one."""
    compiler = keys.toolchain(plan.arch)
    return keys.compile_key(plan, compiler) if compiler is not None else None


def _open_cache() -> Cache | None:
    # Here, not at the top: the first call of a shipped kernel has no time for what it does not use.
    from hopwell.compile import cache as caches

    directory = caches.directory()
    if directory is None:
        return None
    try:
        return caches.Cache(directory)
    except UnsafeCache:  # an OSError too, but never one to pass over
        raise
    except OSError:
        return None  # a read-only or missing home: compile for this process alone


def _compile(plan: Plan, directory: Path) -> Artifact:
    from hopwell.compile import build  # the compiler is imported below it, and only there

    return build.build(plan, directory)


# -- into the process ----------------------------------------------------------------------


def _open(artifact: Artifact) -> Callable[..., None]:
    import tvm_ffi

    tvm_ffi.register_error("HopwellLaunchError", _CudaFailure)
    try:
        module = tvm_ffi.load_module(str(artifact.library))
        function: Callable[..., None] = getattr(module, artifact.manifest.export_symbol)
    except (AttributeError, RuntimeError) as error:
        raise CompileError(
            f"loading {artifact.library}",
            expected=f"a library that exports {artifact.manifest.export_symbol}",
            actual=str(error),
            consequence="The kernel cannot run. `hopwell cache clear` removes the entry.",
        ) from error
    return function


def _refuse_capture(plan_name: str, what: str) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    if torch.cuda.is_current_stream_capturing():
        raise CompileDuringCapture(
            f"kernel {plan_name} during graph capture",
            expected="a kernel that was called before the capture",
            actual=f"one that would be {what} now",
            consequence="The graph is invalid. Call attention once outside the capture first.",
        )


def _launch_error(message: str, plan_name: str) -> LaunchError:
    call, code, name, text = [*message.split("|"), "", "", ""][:4]
    if name == "no CUDA runtime":
        return LaunchError(
            f"launching {plan_name}",
            expected="a CUDA runtime 12.8 or newer in the process (a CUDA build of PyTorch)",
            actual=f"none that has {call}",
            consequence="Nothing was launched.",
        )
    return LaunchError(
        f"launching {plan_name}",
        expected=f"{call} to succeed",
        actual=f"{name} ({code}): {text}",
        consequence="Nothing was launched; the output holds no result.",
    )

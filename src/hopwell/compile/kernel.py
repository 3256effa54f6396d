"""From a plan to something that can be called: memo, wheel, cache, compiler, in this order."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import struct
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
from hopwell.errors import (
    CompileDuringCapture,
    CompileError,
    HopwellError,
    InputError,
    InputTypeError,
    LaunchError,
    UnsafeCache,
)

if TYPE_CHECKING:
    from hopwell.compile.cache import Cache

Source = Literal["wheel", "cache", "compiled"]


#: Launches with everything but the addresses of q, k, v, o and lse settled.
Bound = Callable[[int, int, int, int, int], None]

# What crosses into runtime.c: per tensor device type, device, dtype (two), rank, shape, strides;
# then scale and num_sms. And what each call adds: five addresses, the stream, whether to load.
_RANK = 4
_DESCRIPTION = struct.Struct(f"{5 * (5 + 2 * _RANK)}qdq")
_pack_call = struct.Struct("7Q").pack
# DLPack's numbers (dlpack.h): the kind and bits of a dtype, the type of a device.
_DTYPES = {
    "torch.float16": (2, 16),
    "torch.bfloat16": (4, 16),
    "torch.float32": (2, 32),
    "torch.float64": (2, 64),
}
_DEVICES = {"cpu": 1, "cuda": 2}
# What hopwell_launch returns.
_FAILED, _NOT_LOADED = 1, 2


class Kernel:
    """A loaded kernel. Calling it launches on PyTorch's current stream and returns at once.

    ``kernel(q, k, v, o, lse, scale, num_sms)``: q, k, v, o are (batch, seqlen, heads, head_dim)
    CUDA tensors of the plan's dtype, last dimension contiguous; lse is (batch, heads, seqlen_q)
    float32, contiguous; scale multiplies the scores (natural units); num_sms bounds the
    persistent grid. o and lse are written.

    Raises :class:`LaunchError` when CUDA refuses, :class:`InputError` or :class:`InputTypeError`
    when the tensors are not what the plan was compiled for, and :class:`CompileDuringCapture`
    when the first call on a device comes while a graph is being captured.
    """

    __slots__ = ("_failure", "_launch", "artifact", "compile_seconds", "source")

    def __init__(self, artifact: Artifact, source: Source) -> None:
        self.artifact = artifact
        self.source = source
        #: Seconds that this process spent compiling it; 0 when it was found.
        self.compile_seconds = artifact.manifest.compile_seconds if source == "compiled" else 0.0
        self._launch, self._failure = _open(artifact)

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

    def bind(self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, num_sms: int) -> Bound:
        """The call for tensors of these shapes, strides, dtypes and device, whatever they hold.

        What it returns takes the addresses (``data_ptr()``) of q, k, v, o and lse. Nobody checks
        that memory of that size is there: that is the caller's to know.
        """
        tensors = (*_describe(q), *_describe(k), *_describe(v), *_describe(o), *_describe(lse))
        description = _DESCRIPTION.pack(*tensors, scale, num_sms)
        launch, pack, stream, device = self._launch, _pack_call, _stream_getter(), q.device.index

        def bound(q: int, k: int, v: int, o: int, lse: int) -> None:
            if code := launch(description, pack(q, k, v, o, lse, stream(device), 0)):
                if code == _NOT_LOADED:
                    # Loading a module into CUDA is what a capture does not allow.
                    _refuse_capture(self.artifact.manifest.plan_name, "loaded")
                    code = launch(description, pack(q, k, v, o, lse, stream(device), 1))
                if code:
                    raise self._error()

        return bound

    def __call__(
        self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, num_sms: int
    ) -> None:
        bound = self.bind(q, k, v, o, lse, scale, num_sms)
        bound(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr())

    def _error(self) -> HopwellError:
        kind, _, message = self._failure().decode(errors="replace").partition(": ")
        name = self.artifact.manifest.plan_name
        if kind == "LaunchError":
            return _launch_error(message, name)
        error = InputTypeError if kind == "TypeError" else InputError
        return error(
            f"launching {name}",
            expected="tensors such as the plan was compiled for",
            actual=message,
            consequence="Nothing was launched.",
        )

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
        return _compile_for_this_process(plan), "compiled"
    with cache.lock(key):
        cached = cache.find(request, key)  # another process may have just compiled it
        if cached is not None:
            return cached, "cache"
        cache.remove_stale()
        try:
            return cache.publish(request, key, functools.partial(_compile, plan)), "compiled"
        except HopwellError:
            raise
        except OSError:  # a full disk, a quota, a directory that has become read-only
            return _compile_for_this_process(plan), "compiled"


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


def _compile_for_this_process(plan: Plan) -> Artifact:
    # The directory must outlive this call: the process goes on running what is in it.
    scratch = tempfile.mkdtemp(prefix="hopwell-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return _compile(plan, Path(scratch))


def _compile(plan: Plan, directory: Path) -> Artifact:
    from hopwell.compile import build  # the compiler is imported below it, and only there

    return build.build(plan, directory)


# -- into the process ----------------------------------------------------------------------


def _open(artifact: Artifact) -> tuple[Callable[[bytes, bytes], int], Callable[[], bytes]]:
    """The two functions that runtime.c exports from every kernel."""
    try:
        # Calls release the interpreter's lock: a launch waits when the device's queue is full.
        library = ctypes.CDLL(str(artifact.library))
        launch, failure = library.hopwell_launch, library.hopwell_failure
    except (AttributeError, OSError) as error:
        raise CompileError(
            f"loading {artifact.library}",
            expected="a library that exports hopwell_launch",
            actual=str(error),
            consequence="The kernel cannot run. `hopwell cache clear` removes the entry.",
        ) from error
    # No argtypes: bytes go as their address, which is what a declared pointer would do slower.
    failure.restype = ctypes.c_char_p
    return launch, failure


def _describe(x: Any) -> tuple[int, ...]:
    """A tensor as runtime.c's ``struct description`` has it."""
    try:
        shape, strides = tuple(x.shape), tuple(x.stride())
        kind, device = _DTYPES[str(x.dtype)], _DEVICES[x.device.type]
        index = x.device.index or 0
    except (AttributeError, KeyError) as error:
        raise InputTypeError(
            "argument of a kernel",
            expected="tensors on a CUDA device, of a floating dtype",
            actual=f"{type(x).__name__} ({error})",
            consequence="Nothing was launched.",
        ) from None
    if len(shape) > _RANK:
        raise InputError(
            "argument of a kernel",
            expected=f"at most {_RANK} dimensions",
            actual=shape,
            consequence="Nothing was launched.",
        )
    rest = (0,) * (_RANK - len(shape))
    return (device, index, *kind, len(shape), *shape, *rest, *strides, *rest)


def _stream_getter() -> Callable[[int], int]:
    """PyTorch's current stream of a device, as CUDA's handle."""
    import torch

    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return raw
    if torch.backends.cuda.is_built():
        return lambda device: torch.cuda.current_stream(device).cuda_stream
    return lambda device: 0  # without CUDA, PyTorch has no streams but the default one


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

"""Launches of CuTe DSL kernels by programs that run on CPU tensors."""

from __future__ import annotations

import hashlib
import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hopwell.emulator.capture import stand_ins
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.capture.memory import extents_of
from hopwell.emulator.capture.parameters import short_name
from hopwell.emulator.capture.shim import Failures, NativeLaunch, library, receiving
from hopwell.errors import CaptureError

OnLaunch = Callable[[Launch], object]


@contextmanager
def capture(on_launch: OnLaunch | None = None) -> Iterator[list[Launch]]:
    """Receive the launches of every CuTe DSL kernel that is compiled in the block.

    The program in the block runs on CPU tensors (or asks for CUDA tensors, and gets CPU ones) and
    sees a Hopper GPU. Its launches are appended to the list that the block is given;
    ``on_launch`` is called with each as it is made, and may perform it: a launch's buffers *are*
    the program's tensors, so that a program of several kernels goes on with right values. What it
    raises reaches the program where it launched.

    Raises:
        CaptureError: no C compiler, no CuTe DSL, or a launch whose code or arguments are not
            understood.
    """
    launches: list[Launch] = []
    given = threading.local()

    def receive(native: NativeLaunch) -> None:
        ptx = _find_code(native.image, native.kernel)
        launch = native.described(ptx, getattr(given, "extents", []))
        launches.append(launch)
        if on_launch is not None:
            on_launch(launch)

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="hopwell-ptx-"))
        stack.enter_context(stand_ins.torch_stand_ins())
        stack.enter_context(stand_ins.compiler_stand_ins(library(), Path(directory)))
        failures = stack.enter_context(receiving(receive))
        for owner, name, hook in _hooks(given, failures):
            stack.enter_context(stand_ins.replaced(owner, name, hook))
        yield launches


#: The PTX of every cubin that a capture of this process compiled, by the cubin's hash: programs
#: keep compiled functions, and may launch them in a later capture.
_ptx_of: dict[bytes, str] = {}


def _remember_code(cubin: bytes, ptx: str) -> None:
    _ptx_of[hashlib.sha256(cubin).digest()] = ptx


def _find_code(cubin: bytes, kernel: str) -> str:
    ptx = _ptx_of.get(hashlib.sha256(cubin).digest())
    if ptx is None:
        raise CaptureError(
            f"launch of {short_name(kernel)}",
            expected="a kernel that was compiled while launches are captured",
            actual="code that was compiled or loaded before",
            consequence="Its PTX is unknown. Compile it inside the capture, without a cache.",
        )
    return ptx


def _hooks(
    given: threading.local, failures: Failures
) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """What is heard of the compiler: the code it made, and the arguments of its calls."""
    from cutlass.base_dsl import dsl, jit_executor
    from cutlass.cutlass_dsl import cuda_jit_executor, tvm_ffi_provider

    def remember(signature: inspect.Signature | None, args: Any, kwargs: Any) -> None:
        names = list(signature.parameters) if signature is not None else []
        names += [f"argument{index}" for index in range(len(names), len(args))]
        named = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        given.extents = [
            extent for name, value in named.items() for extent in extents_of(name, value)
        ]

    def after_compiling(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if self.__cubin__ and self.__ptx__:
                _remember_code(self.__cubin__, self.__ptx__)

        return __init__

    def before_plain_call(original: Any) -> Any:
        def generate_execution_args(self: Any, args: Any, kwargs: Any) -> Any:
            remember(self.signature, args, kwargs)
            return original(self, args, kwargs)

        return generate_execution_args

    def before_implicit_call(original: Any) -> Any:
        def generate_mlir(
            self: Any,
            body: Any,
            name: Any,
            attrs: Any,
            args: Any,
            kwargs: Any,
            sig: Any,
            *rest: Any,
            **options: Any,
        ) -> Any:
            remember(sig, args, kwargs)
            return original(self, body, name, attrs, args, kwargs, sig, *rest, **options)

        return generate_mlir

    def around_call(original: Any) -> Any:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            remember(self.execution_args.signature, args, kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                failures.release()

        return __call__

    def around_program(original: Any) -> Any:
        def run_compiled_program(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                failures.release()

        return run_compiled_program

    for owner, name, hook in (
        (cuda_jit_executor.CudaDialectJitCompiledFunction, "__init__", after_compiling),
        (jit_executor.ExecutionArgs, "generate_execution_args", before_plain_call),
        (dsl.BaseDSL, "generate_mlir", before_implicit_call),
        (jit_executor.JitExecutor, "run_compiled_program", around_program),
        (tvm_ffi_provider.TVMFFIJitCompiledFunction, "__call__", around_call),
        (tvm_ffi_provider.TVMFFIJitCompiledFunctionWithKwargs, "__call__", around_call),
    ):
        yield owner, name, hook(stand_ins.required(owner, name))

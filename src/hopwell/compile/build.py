"""Compiles a plan: trace, compile to PTX and cubin, export, link. Needs no GPU and no tensors.

The only module that imports the compiler.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from hopwell.compile import artifact as files
from hopwell.compile import key as keys
from hopwell.compile.artifact import Artifact, Manifest
from hopwell.compile.compare import compare, expected
from hopwell.compile.inspect import Actual, inspect
from hopwell.compile.key import Plan, Toolchain
from hopwell.errors import CompileError, CompilerMissing

#: The DSL reads its settings from the environment. These change no code; any other would make
#: an artifact that its key does not describe.
_HARMLESS_SETTINGS = {
    "CUTE_DSL_ARCH",  # the target is an option of each compilation here
    "CUTE_DSL_CACHE_DIR",
    "CUTE_DSL_DISABLE_FILE_CACHING",
    "CUTE_DSL_DUMP_DIR",
    "CUTE_DSL_KEEP_PTX",
    "CUTE_DSL_KEEP_CUBIN",
    "CUTE_DSL_LIBS",
    "CUTE_DSL_LOG_LEVEL",
    "CUTE_DSL_LOG_TO_CONSOLE",
    "CUTE_DSL_LOG_TO_FILE",
    "CUTE_DSL_NO_CACHE",
    "CUTE_DSL_SHOW_STACKTRACE",
}
#: What the assembler says when it drops what the plan asked for: C7508 setmaxnreg ignored, C7509
#: to C7519 wgmma serialised, and its warnings in general.
_REFUSED_REMARK = re.compile(r"\(C75\d\d\)|Performance Loss|warning|serialized|ignored")
_TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINK_TIMEOUT_SECONDS = 120


def build(plan: Plan, directory: Path) -> Artifact:
    """Compiles ``plan`` into ``directory`` (which exists and is empty).

    Raises :class:`CompilerMissing` without the compiler or a C compiler, and
    :class:`CompileError` when the plan does not compile, when the assembler serialised a
    warpgroup MMA or ignored a register request, or when the kernel is not what the plan expects.
    """
    compiler = keys.toolchain(plan.arch)
    if compiler is None:
        raise CompilerMissing(
            "kernel compiler",
            expected="nvidia-cutlass-dsl, from the extra hopwell[compile]",
            actual="no usable installation",
            consequence=f"Plan {plan.name} has no compiled kernel here and cannot be compiled.",
        )
    _check_settings()
    link_with = linker()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hopwell-") as scratch:
        compiled, log = _compile(plan, Path(scratch))
        ptx, cubin = compiled.__ptx__, compiled.__cubin__
        symbol = _export_symbol(plan)
        object_file = Path(scratch) / "kernel.o"
        compiled.export_to_c(object_file_path=str(object_file), function_name=symbol)
        launched = _launched_shared_bytes(str(compiled.ir_module))
        actual = inspect(ptx, cubin, launched)
        _check_expectation(plan, actual)
        _link(object_file, directory / files.LIBRARY, symbol, link_with)
    _check_variant(compiler)
    manifest = Manifest(
        schema=keys.SCHEMA,
        plan_kind=type(plan).__name__,
        plan=plan.to_json(),
        plan_name=plan.name,
        request=keys.request_of(plan),
        key=keys.compile_key(plan, compiler),
        export_symbol=symbol,
        kernel_symbol=_entry(ptx),
        ptx_sha256=files.ptx_hash(ptx),
        sass_sha256=files.sass_hash(cubin),
        cubin_sha256=keys.sha256(cubin),
        so_sha256=keys.sha256((directory / files.LIBRARY).read_bytes()),
        host=keys.host_abi(),
        toolchain=compiler.to_json(),
        assembler=_assembler(cubin) | _linker_versions(link_with),
        sources=keys.sources(plan.kernel_module),
        dependencies=_dependencies(),
        assembler_log=log,
        compile_seconds=round(time.perf_counter() - start, 3),
        shared_launched=launched,
        resources=actual.to_json() | {"spill_bytes": _spill_bytes(log)},
    )
    return files.write(directory, manifest, ptx, cubin)


def _check_settings() -> None:
    unknown = sorted(
        name
        for name in os.environ
        if name.startswith("CUTE_DSL_") and name not in _HARMLESS_SETTINGS
    )
    if unknown:
        raise CompileError(
            "compiler settings in the environment",
            expected=f"none but {sorted(_HARMLESS_SETTINGS)}",
            actual=unknown,
            consequence="The kernel would not be the one that its key names. Unset them.",
        )


def _compile(plan: Plan, scratch: Path) -> tuple[Any, str]:
    """The compiled function and the assembler's log."""
    from cutlass import cute

    kernel = importlib.import_module(plan.kernel_module)
    options = keys.COMPILE_OPTIONS.format(arch=plan.arch)
    options += f" --keep-ptx --keep-cubin --dump-dir {shlex.quote(str(scratch))}"
    console = io.StringIO()
    try:
        function, arguments = kernel.trace(plan)
        with (
            # The DSL prints the assembler's remarks.
            contextlib.redirect_stderr(console),
            contextlib.redirect_stdout(console),
            warnings.catch_warnings(),
        ):
            # What the DSL deprecates is no reason to fail in a process that is strict for itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            compiled = cute.compile(function, *arguments, options=options)
    except Exception as error:  # whatever the DSL raises: it has no common base class
        raise CompileError(
            f"compiling {plan.name}",
            expected="a kernel",
            actual=_TERMINAL_COLOUR.sub("", f"{type(error).__name__}: {error}"),
            consequence="The plan has no kernel.",
        ) from error
    log = _assembler_log(console.getvalue())
    _check_log(plan, log)
    return compiled, log


def _assembler_log(console: str) -> str:
    """The assembler's messages, one a line, out of what the DSL prints.

    The DSL puts the log into remarks of its own, in colour, sometimes indented and wrapped, its
    first message behind a heading on the same line.
    """
    messages: list[str] = []
    for section in _TERMINAL_COLOUR.sub("", console).split("ptxas output:")[1:]:
        for raw in section.splitlines():
            line = " ".join(raw.split())
            if line.startswith(("suggestion:", "-->", "remark")):
                break
            if line.startswith("ptxas"):
                messages.append(line)
            elif line and messages:
                messages[-1] += " " + line
    # Times differ from run to run; everything else of a manifest is reproducible.
    return "\n".join(dict.fromkeys(m for m in messages if "Compile time" not in m))


def _spill_bytes(log: str) -> int:
    """Bytes per thread that the assembler stores to and loads from spill slots."""
    return sum(int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))


def _check_log(plan: Plan, log: str) -> None:
    refused = [line for line in log.splitlines() if _REFUSED_REMARK.search(line)]
    if refused or "ptxas info" not in log:
        raise CompileError(
            f"assembling {plan.name}",
            expected="an assembler log without a warning about wgmma or setmaxnreg",
            actual=" | ".join(refused) or "no assembler log",
            consequence="The kernel would not run as planned, or nobody could tell.",
        )


def _check_expectation(plan: Plan, actual: Actual) -> None:
    """Every value that the plan names; a plan without an expectation names none."""
    wrong = [row for row in compare(expected(plan), actual) if not row.ok]
    if wrong:
        raise CompileError(
            f"the compiled {plan.name}",
            expected="; ".join(f"{row.name}: {row.expected}" for row in wrong),
            actual="; ".join(f"{row.name}: {row.actual}" for row in wrong),
            consequence="The kernel is not the one that was planned, and is not kept.",
        )


def _launched_shared_bytes(host_ir: str) -> int | None:
    """Dynamic shared memory that the exported host code asks for, or None when it computes it.

    Read from the host half's IR: the constant stored in the launch configuration's third field.
    """
    config = r"\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)"
    field = re.search(rf"(%\w+) = llvm\.getelementptr %\w+\[0, 2\][^\n]*{config}", host_ir)
    stored = field and re.search(rf"llvm\.store (%\w+), {field.group(1)} :", host_ir)
    constant = stored and re.search(
        rf"{stored.group(1)} = llvm\.mlir\.constant\((\d+) : i64\)", host_ir
    )
    return int(constant.group(1)) if constant else None


def _export_symbol(plan: Plan) -> str:
    return re.sub(r"\W", "_", plan.name)


def _entry(ptx: str) -> str:
    entries = re.findall(r"\.entry\s+([\w$]+)", ptx)
    if len(entries) != 1:
        raise CompileError(
            "entries of the PTX",
            expected="exactly one kernel",
            actual=entries,
            consequence="An artifact holds one kernel.",
        )
    return str(entries[0])


def linker() -> str:
    """Path of the C compiler that links kernels: the one that CC names, else cc or gcc.

    Raises :class:`CompilerMissing`; a CC that is not there is never replaced by another.
    """
    asked = os.environ.get("CC", "")
    found = shutil.which(asked) if asked else shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise CompilerMissing(
            "C compiler",
            expected="the one program that CC names" if asked else "cc or gcc on PATH",
            actual=f"CC={asked}, which is not there" if asked else "neither",
            consequence="Kernels cannot be linked, so none is compiled. Install gcc, or set CC.",
        )
    return found


def _link(object_file: Path, library: Path, symbol: str, program: str) -> None:
    """Links the exported object with our runtime."""
    command = [program, *keys.LINK_OPTIONS, "-o", str(library), str(object_file)]
    command += [f"-DHOPWELL_ENTRY=__tvm_ffi_{symbol}", str(keys.RUNTIME_SOURCE)]
    command += ["-ldl", "-lpthread"]
    done = _run(command)
    if done.returncode != 0:
        raise CompileError(
            "linking the exported kernel",
            expected=f"{Path(program).name} to succeed",
            actual=f"status {done.returncode}: {done.stderr.strip()}",
            consequence="The plan has no kernel.",
        )


def _linker_versions(program: str) -> dict[str, str]:
    """What compiled the runtime and what linked it, in their own words."""

    def first_line(*option: str) -> str:
        return next(iter(_run([program, *option]).stdout.splitlines()), "unknown")

    return {"c_compiler": first_line("--version"), "linker": first_line("-Wl,--version")}


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_LINK_TIMEOUT_SECONDS
    )


def _check_variant(compiler: Toolchain) -> None:
    """The DSL chooses among its installed variants by itself; the key says which one we mean."""
    loaded = Path(sys.modules["cutlass._mlir._mlir_libs._cutlass_ir"].__file__ or "").name
    if f".{compiler.libs}." not in loaded:
        raise CompileError(
            "compiler variant",
            expected=compiler.libs,
            actual=loaded,
            consequence="The artifact would carry a key that names another compiler.",
        )


def _assembler(cubin: bytes) -> dict[str, str]:
    """Version and options of the assembler, from the note that it leaves in the cubin."""
    note = next((s.data for s in files.elf_sections(cubin) if s.name == ".note.nv.tkinfo"), b"")
    texts = [text.decode(errors="replace") for text in re.findall(rb"[ -~]{4,}", note)]
    version = next((text for text in texts if "release" in text), "unknown")
    options = next((text for text in texts if "-arch" in text), "unknown")
    return {"version": version, "options": options.strip()}


def _dependencies() -> dict[str, str]:
    """Versions of what the kernel was built with; to run, it needs none of them."""
    names = ("apache-tvm-ffi", "nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found

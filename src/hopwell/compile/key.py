"""The compile key: what an artifact's code depends on, and nothing else.

Two hashes name an artifact. The *request* covers what a machine can know without a compiler: the
plan, the sources that its kernel is traced from, and the host that will run it. The *key* adds the
toolchain. A machine with the compiler looks for the key; one that only runs kernels looks for the
request and takes the toolchain that the artifact records.

Python's and PyTorch's versions are in neither: the exported code calls neither.
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import hopwell

#: Layout of a manifest and of a cache entry; part of every hash.
SCHEMA = 1
#: What runtime.c exports and :mod:`hopwell.compile.kernel` calls; changes with either's structs.
CALL_ABI = "hopwell_launch 1"
#: Options of the DSL and its assembler. The assembler's remarks are how its warnings are seen.
COMPILE_OPTIONS = "--enable-tvm-ffi --gpu-arch {arch} remarks{{ptx}}"
#: Options of the host linker: nothing of the build machine may enter the file, and nothing that
#: the kernel needs may be missing from it.
LINK_OPTIONS = (
    "-O2",
    "-fPIC",
    "-shared",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-z,relro,-z,noexecstack,-z,defs",
)
RUNTIME_SOURCE = Path(__file__).with_name("runtime.c")

_PACKAGE = os.path.dirname(hopwell.__file__)
#: What may touch a module's name in a text.
_AROUND = "();:'`\""


class Plan(Protocol):
    """What compiling needs to know of a plan."""

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...

    @property
    def kernel_module(self) -> str:
        """Dotted name of the module whose ``trace(plan)`` gives the kernel."""
        ...

    @property
    def expectation_module(self) -> str | None:
        """Dotted name of the module whose ``expected(plan)`` names what the artifact must hold.

        None for a plan of which nothing is expected but that it compiles.
        """
        ...

    def to_json(self) -> dict[str, Any]: ...


class Toolchain(NamedTuple):
    """The compiler. ``libs`` has the assembler; the manifest also records that one's version."""

    dsl: str
    libs: str
    libs_version: str
    options: str

    def to_json(self) -> dict[str, str]:
        return self._asdict()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# -- sources -------------------------------------------------------------------------------


def _bytes(file: str) -> bytes:
    with open(file, "rb", buffering=0) as stream:
        return stream.readall()


def _list(directory: str) -> set[str]:
    """What is in a directory, directories with a slash; nothing where there is no directory."""
    try:
        with os.scandir(directory) as entries:
            return {f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries}
    except OSError:
        return set()


def _module_file(module: str, listing: Callable[[str], set[str]]) -> str | None:
    """A module's file, found without importing it when it is Hopwell's own."""
    root, _, rest = module.partition(".")
    if root == "hopwell":
        base = f"{_PACKAGE}/{rest.replace('.', '/')}"
        directory, _, name = base.rpartition("/")
        if f"{name}.py" in listing(directory):
            return f"{base}.py"
        package = f"{name}/" in listing(directory) and "__init__.py" in listing(base)
        return f"{base}/__init__.py" if package else None
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a name inside a module, not a module
        return None
    return spec.origin if spec is not None else None


def _imports(text: str, package: str) -> set[str]:
    """Modules of ``package`` and of Hopwell that a source file may import, anywhere in it.

    A name in a text counts too, which can only make the closure larger. By hand, because a
    process that runs a shipped kernel asks: to compile patterns would cost it more than to search.
    """
    found: set[str] = set()
    text = text.replace("\\\n", " ") + "\n"
    at = text.find("import")
    while at >= 0:
        start = at + len("import")
        names = text[start : text.find("\n", start)]
        if names.lstrip().startswith("("):
            names = text[start : text.find(")", start)]
        before = text[text.rfind("\n", 0, at) + 1 : at].split()
        module = before[-1] if before[-2:-1] and before[-2].endswith("from") else ""
        if package in (module or names) or "hopwell" in (module or names):
            lines = (line.partition("#")[0] for line in names.splitlines())
            for name in " ".join(lines).split(","):
                if words := name.replace("(", " ").replace("\\", " ").split():
                    word = words[0].strip(_AROUND)
                    found.update((module, f"{module}.{word}") if module else (word,))
        at = text.find("import", start)
    return {name for name in found if name.split(".")[0] in (package, "hopwell")}


@cache
def sources(module: str) -> dict[str, str]:
    """sha256 of every file that a kernel module's code can come from, by name.

    The import closure of ``module`` inside its package, the build that turns it into an artifact
    and vouches for it, and the runtime that is linked in. Package ``__init__`` files count only
    where something is imported from them by name.
    """
    package = module.split(".")[0]
    listing = cache(_list)  # most names are no modules: each directory is read once per walk
    pending, tried, seen = [module], {"hopwell"}, {}
    while pending:
        name = pending.pop()
        if name in tried:
            continue
        tried.add(name)
        if (file := _module_file(name, listing)) is not None:
            data = _bytes(file)
            seen[name] = sha256(data)
            pending.extend(_imports(data.decode(), package))
    seen["hopwell/compile/build.py"] = sha256(_bytes(f"{_PACKAGE}/compile/build.py"))
    seen["hopwell/compile/runtime.c"] = sha256(_bytes(f"{_PACKAGE}/compile/runtime.c"))
    return dict(sorted(seen.items()))


# -- toolchain and host --------------------------------------------------------------------


@cache
def _installed() -> dict[str, str]:
    """Versions of the installed distributions, by normalised name (PyPA, recording installs).

    From the names of their metadata directories: to read those costs a first call milliseconds.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        with contextlib.suppress(OSError):
            for entry in os.listdir(place or "."):
                if entry.endswith(".dist-info"):
                    name, _, version = entry.removesuffix(".dist-info").partition("-")
                    found.setdefault(name.lower(), version)
    return found


def _version(distribution: str) -> str | None:
    return _installed().get(distribution.replace("-", "_"))


def _driver_major() -> int | None:
    """CUDA version that the driver supports, or None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int(0)
        return (
            version.value // 1000 if driver.cuDriverGetVersion(ctypes.byref(version)) == 0 else None
        )
    except (OSError, AttributeError):
        return None


@cache
def toolchain(arch: str) -> Toolchain | None:
    """The installed compiler, or None. Reads package metadata; imports nothing of it.

    Of several installed variants the DSL loads the newest that the driver supports, or the newest
    where there is no driver; the build checks that it did.
    """
    dsl = _version("nvidia-cutlass-dsl")
    if dsl is None:
        return None
    driver = _driver_major()
    for major in (13, 12):
        version = _version(f"nvidia-cutlass-dsl-libs-cu{major}")
        if version is not None and (driver is None or driver >= major):
            options = COMPILE_OPTIONS.format(arch=arch) + " " + " ".join(LINK_OPTIONS)
            return Toolchain(dsl, f"cu{major}", version, options)
    return None


def host_abi() -> dict[str, str]:
    """What the exported host code is built for, and how it is called."""
    return {"system": platform.system(), "machine": platform.machine(), "call": CALL_ABI}


# -- the two hashes ------------------------------------------------------------------------


def request_of(plan: Plan) -> str:
    """Hash of plan, kernel sources and host: what can be known without a compiler."""
    return sha256(
        _canonical(
            {
                "schema": SCHEMA,
                "plan": {"kind": type(plan).__name__, "arch": plan.arch, **plan.to_json()},
                "sources": sources(plan.kernel_module),
                "host": host_abi(),
            }
        )
    )


def compile_key(plan: Plan, compiler: Toolchain) -> str:
    """Hash of the request and the toolchain."""
    return sha256(_canonical({"request": request_of(plan), "toolchain": compiler.to_json()}))

"""``hopwell doctor``: what this machine can run, and why not.

Each capability lists the checks that it stands on. A capability that the machine does not promise
(a Hopper kernel without a Hopper GPU) is absent, which is healthy; one that it promises and does
not keep (a Hopper GPU on which kernels cannot be loaded) is broken.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from hopwell.commands.display import INSTALL_COMPILER, Report, table
from hopwell.errors import HopwellError

if TYPE_CHECKING:
    from rich.console import Console


_COMPILE_EXTRA = f"In a clone: {INSTALL_COMPILER}"
_HOPPER_GPU = "Run on an H100, H200 or GH200."


@dataclass(frozen=True)
class Check:
    """One fact about the machine. ``found`` says what is there, ``remedy`` what would mend it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Capability:
    """Something that the machine may be able to do, and whether it ought to."""

    name: str
    promised: bool
    checks: tuple[Check, ...]

    @property
    def works(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def verdict(self) -> str:
        if self.works:
            return "works"
        return "broken" if self.promised else "absent"


def _package(distribution: str, module: str, remedy: str) -> Check:
    """Whether a distribution is installed, without importing it."""
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return Check(distribution, False, "not installed", remedy)
    present = importlib.util.find_spec(module) is not None
    return Check(distribution, present, found if present else f"{found}, but no {module}", remedy)


def _attempt(name: str, probe: Callable[[], str], remedy: str) -> Check:
    try:
        return Check(name, True, probe())
    except (HopwellError, OSError, ImportError, RuntimeError) as error:
        return Check(name, False, f"{type(error).__name__}: {error}", remedy)


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("Python", sys.version_info >= (3, 10), found, "Install Python 3.10 or newer.")


def _cpu_attention() -> str:
    """Attention of the recorded input against the definition."""
    import hopwell
    from hopwell.data import provenance, recorded
    from hopwell.reference import attention as reference

    layer = provenance()["layers"][0]
    q, k, v = recorded(layer)
    actual = hopwell.attention(q, k, v, backend="cpu").double()
    expected = reference(q.double(), k.double(), v.double())[0]
    error = float((actual - expected).norm() / expected.norm())
    if not error < 1e-4:
        raise RuntimeError(f"relative error {error:.1e} against float64 on recorded input")
    return f"relative error {error:.1e} against float64 on recorded input"


def _gpus() -> tuple[bool, Check]:
    """Whether a Hopper GPU is present, and the check that says so."""
    import torch

    from hopwell.hopper.device import why_not_hopper

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    reasons = [why_not_hopper(index) for index in range(count)] or [why_not_hopper()]
    hopper = None in reasons
    if hopper:
        found = torch.cuda.get_device_name(reasons.index(None))
    else:
        found = ", ".join(filter(None, reasons))
        found += "" if torch.version.cuda else " (PyTorch was built without CUDA)"
    return hopper, Check("Hopper GPU", hopper, found, _HOPPER_GPU)


def _cache() -> str:
    """A corrupt entry is a miss and is replaced: it stands in nobody's way."""
    from hopwell.commands import cache

    found = cache.info()
    if found["directory"] is None:
        return "off: each process compiles for itself"
    whole = sum(entry["plan"] is not None for entry in found["entries"])
    corrupt = len(found["entries"]) - whole
    return f"{whole} kernels in {found['directory']}" + (f", {corrupt} corrupt" if corrupt else "")


def _kernels(compiles: bool) -> Check:
    """Whether every shipped kernel is there, or can be made."""
    from hopwell.compile import find
    from hopwell.hopper.plan import shipped_forward_plans

    plans = shipped_forward_plans()
    there = sum(find(plan) is not None for plan in plans)
    found = f"{there} of {len(plans)} compiled"
    if compiles:
        found += ", the rest at their first use" if there < len(plans) else ""
    return Check("kernels", compiles or there == len(plans), found, _COMPILE_EXTRA)


def examine() -> tuple[Capability, ...]:
    """Every capability with its checks."""
    from hopwell.compile.build import linker

    cpu = (
        _python(),
        _package("torch", "torch", "pip install torch"),
        _attempt("result", _cpu_attention, "Reinstall torch and hopwell."),
    )
    compiler = (
        _package("nvidia-cutlass-dsl", "cutlass", _COMPILE_EXTRA),
        _package("nvidia-cutlass-dsl-libs-cu13", "cutlass", _COMPILE_EXTRA),
        _package("apache-tvm-ffi", "tvm_ffi", _COMPILE_EXTRA),
        _attempt("C compiler", linker, "Install gcc, or set CC."),
    )
    cache = _attempt("kernel cache", _cache, "hopwell cache info tells more.")
    kernels = _kernels(cache.ok and all(check.ok for check in compiler))
    present, gpu = _gpus()
    plots = _package("matplotlib", "matplotlib", "In a clone: pip install '.[bench]'")
    return (
        Capability("attention on the CPU", True, cpu),
        Capability("compile Hopper kernels", False, (*compiler, cache)),
        Capability("run Hopper kernels", present, (gpu, kernels)),
        Capability("plot benchmarks", False, (plots,)),
    )


def report() -> Report:
    """The capabilities as data; ``ok`` when nothing that the machine promises is broken."""
    capabilities = examine()
    return {
        "ok": all(capability.verdict != "broken" for capability in capabilities),
        "capabilities": [
            {
                "name": capability.name,
                "verdict": capability.verdict,
                "checks": [vars(check) for check in capability.checks],
            }
            for capability in capabilities
        ],
    }


def render(report: Report, console: Console) -> None:
    """Capabilities first, then what each stands on."""
    for capability in report["capabilities"]:
        rows = [
            (check["name"], check["ok"], check["found"] if check["ok"] else _mended(check))
            for check in capability["checks"]
        ]
        title = f"{capability['name']}: {capability['verdict']}"
        console.print(table(title, ("check", "ok", "found"), rows))


def _mended(check: Mapping[str, str]) -> str:
    return f"{check['found']}. {check['remedy']}"

"""Reads the identity and environment sections of a record from the running machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import hopwell
from hopwell.bench.record import Artifact, Environment, Gpu, GpuState, Identity

#: Distributions whose version can change a number or a compiled artifact.
DISTRIBUTIONS = (
    "torch",
    "triton",
    "numpy",
    "apache-tvm-ffi",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-cu13",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-runtime",
    "flash-attn-4",
    "quack-kernels",
)

#: Suffixes of what decides how the package behaves: Python, and the runtime inside each kernel.
SOURCES = (".py", ".c")

_QUERY = (
    "driver_version",
    "clocks.max.sm",
    "power.limit",
    "pstate",
    "persistence_mode",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
)


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def record_name(kind: str, commit: str | None = None) -> str:
    """``forward-20260102T030405Z-0123abc.json``: each run has a file of its own."""
    commit = commit or _git("rev-parse", "HEAD") or "unknown"
    return f"{kind}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{commit[:7]}.json"


def identity(artifacts: Iterable[Artifact] = (), *, commit: str | None = None) -> Identity:
    """Versions, commit (asked of git unless given) and the hash of the package's files."""
    modified = None
    if commit is None:
        commit = _git("rev-parse", "HEAD")
        status = _git("status", "--porcelain", "--untracked-files=no")
        modified = None if commit is None or status is None else bool(status)
    return Identity(
        hopwell=hopwell_version(),
        commit=commit,
        modified=modified,
        source_sha256=source_sha256(),
        dependencies={name: found for name in DISTRIBUTIONS if (found := _version(name))},
        artifacts=tuple(artifacts),
    )


def hopwell_version() -> str:
    """The installed version; a source tree on the path has none."""
    return _version("hopwell") or "source tree"


def source_sha256(root: Path | None = None) -> str:
    """Over names and bytes of the package's Python and C files, in sorted order."""
    root = root or Path(hopwell.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def environment(before: GpuState | None = None) -> Environment:
    """The machine as it is now; ``before`` is the reading taken when the run began."""
    import torch

    query = _nvidia_smi()
    gpu = None
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        after = _state(query)
        gpu = Gpu(
            name=device.name,
            capability=f"{device.major}.{device.minor}",
            sm_count=device.multi_processor_count,
            memory_bytes=device.total_memory,
            l2_bytes=device.L2_cache_size,
            max_sm_mhz=_number(query.get("clocks.max.sm")),
            power_limit_watts=_number(query.get("power.limit")),
            performance_state=query.get("pstate"),
            persistence_mode=query.get("persistence_mode"),
            before=before or after,
            after=after,
        )
    cudnn = torch.backends.cudnn.version()
    return Environment(
        gpu=gpu,
        driver=query.get("driver_version"),
        cuda=torch.version.cuda,
        cudnn=None if cudnn is None else str(cudnn),
        torch=torch.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
    )


def gpu_state() -> GpuState:
    """Clocks, power and temperature now."""
    return _state(_nvidia_smi())


class LoadSampler:
    """Readings while work runs, through NVML where PyTorch can reach it (a millisecond each)."""

    def __init__(self) -> None:
        self._readings: list[GpuState] = []
        self._reachable = True

    def __call__(self) -> None:
        import torch

        if not self._reachable:
            return
        try:
            self._readings.append(
                GpuState(
                    sm_mhz=float(torch.cuda.clock_rate()),
                    memory_mhz=None,
                    power_watts=torch.cuda.power_draw() / 1000.0,
                    temperature_c=float(torch.cuda.temperature()),
                )
            )
        except Exception:  # NVML is optional, and a sandbox may refuse any of its calls
            self._reachable = False

    def median(self) -> GpuState | None:
        """Median of each reading since the last call; None without readings."""
        readings, self._readings = self._readings, []
        if not readings:
            return None
        return GpuState(
            sm_mhz=median(r.sm_mhz for r in readings if r.sm_mhz is not None),
            memory_mhz=None,
            power_watts=median(r.power_watts for r in readings if r.power_watts is not None),
            temperature_c=median(r.temperature_c for r in readings if r.temperature_c is not None),
        )


def _state(query: dict[str, str]) -> GpuState:
    return GpuState(
        sm_mhz=_number(query.get("clocks.sm")),
        memory_mhz=_number(query.get("clocks.mem")),
        power_watts=_number(query.get("power.draw")),
        temperature_c=_number(query.get("temperature.gpu")),
    )


def _nvidia_smi() -> dict[str, str]:
    text = _output(
        ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    )
    if not text:
        return {}
    return dict(
        zip(_QUERY, (part.strip() for part in text.splitlines()[0].split(",")), strict=True)
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None  # nvidia-smi writes "[N/A]" for what a board does not report


def _git(*arguments: str) -> str | None:
    return _output(["git", "-C", str(Path(hopwell.__file__).parent), *arguments])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

"""How fast the emulator is, and how much memory it takes, on fixed launches.

Each measurement is a fresh process that loads a saved launch, so that its peak memory is the
emulator's own: neither PyTorch nor a compiler is in it. Started as
``python -m hopwell.bench.emulator LAUNCH on|off`` it is that process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopwell.errors import CaptureError, MeasurementError

if TYPE_CHECKING:
    from hopwell.emulator.capture.launch import Launch

#: The version of a record; a field that changes its meaning, or goes, raises the number.
SCHEMA = "hopwell.bench.emulator/1"

SEQLEN, HEAD_DIM = 512, 128
#: What issue and documentation promise for flash-attn-4's forward with hazards on.
SECONDS, PEAK_BYTES = 10.0, 2 << 30

OURS = "hopwell forward"
PEER = "flash-attn-4 forward"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """One launch, run once under seed 0.

    Attributes:
        workload: which launch.
        hazards: whether hazards were looked for.
        seconds: of the whole call, reading the PTX included.
        run_seconds: of the run alone.
        instructions: warp instructions executed.
        instructions_per_second: of the run alone.
        peak_bytes: the process's largest resident set.
        clean: no hazard and no deadlock.
        results: SHA-256 of each buffer after the run.
    """

    workload: str
    hazards: bool
    seconds: float
    run_seconds: float
    instructions: int
    instructions_per_second: float
    peak_bytes: int
    clean: bool
    results: dict[str, str]


def measure(launches: dict[str, Path], tell: Tell) -> list[Measured]:
    """Measure saved launches with hazards on and off, each in a process of its own.

    Raises:
        MeasurementError: a process failed, or the results differ between on and off.
    """
    rows: list[Measured] = []
    for workload, path in launches.items():
        pair = []
        for mode in ("on", "off"):
            tell(f"{workload}, hazards {mode}")
            pair.append(Measured(workload, mode == "on", **_in_process(path, mode)))
        if pair[0].results != pair[1].results:
            raise MeasurementError(
                f"results of {workload}",
                expected="the same with hazards on and off",
                actual="different bits",
                consequence="Looking for hazards changes what is computed.",
            )
        rows += pair
    return rows


def _in_process(path: Path, mode: str) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__, str(path), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementError(
            f"emulation of {path.name}",
            expected="a run to its end",
            actual=done.stderr.strip().splitlines()[-1:],
            consequence="Nothing was measured.",
        )
    return dict(json.loads(done.stdout))


def captured(
    directory: Path, tell: Tell, *, peer: bool = True
) -> tuple[dict[str, Path], dict[str, str]]:
    """Compile and save the launches that can be had here; and why others cannot."""
    launches, absent = {}, {}
    for name, capture in ((PEER, _peer), (OURS, _ours))[not peer :]:
        tell(f"compiling {name}")
        path = directory / f"{name.replace(' ', '-')}.launch"
        try:
            capture().save(path)
        except Exception as error:  # compiling foreign code may raise anything
            absent[name] = f"{type(error).__name__}: {error}"
        else:
            launches[name] = path
    return launches, absent


def _inputs() -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(1)
    shape = (1, SEQLEN, 1, HEAD_DIM)
    return [torch.randn(shape, generator=generator).bfloat16() for _ in range(3)]


def _only(launches: list[Launch]) -> Launch:
    if len(launches) != 1:
        raise CaptureError(
            "launches of the forward",
            expected="one",
            actual=len(launches),
            consequence="It is not measured.",
        )
    return launches[0]


def _peer() -> Launch:
    """flash-attn-4's forward, from the package, as it is called on CPU tensors."""
    from hopwell.emulator.capture.cute import capture

    copies: list[Launch] = []
    with capture(lambda launch: copies.append(launch.copy())):
        from flash_attn.cute.interface import flash_attn_func

        flash_attn_func(*_inputs())
    return _only(copies)


def _ours() -> Launch:
    """Our forward's plan for the same problem."""
    import torch
    from cutlass import cute

    from hopwell.emulator.capture.cute import capture
    from hopwell.hopper.forward import trace
    from hopwell.hopper.plan import bucket_of, forward_plan

    bucket = bucket_of(HEAD_DIM, HEAD_DIM)
    assert bucket is not None
    plan = forward_plan("bfloat16", bucket, False)
    q, k, v = _inputs()
    lse = torch.zeros(1, 1, SEQLEN)
    with capture() as launches:
        function, fakes = trace(plan)
        options = f"--enable-tvm-ffi --gpu-arch {plan.arch}"
        compiled = cute.compile(function, *fakes, options=options)
        compiled(q, k, v, torch.zeros_like(q), lse, HEAD_DIM**-0.5, 132)
    return _only(launches)


def record(launch: Path | None, commit: str | None, tell: Tell) -> dict[str, Any]:
    """Measure what can be had here; ``launch`` is a saved one of flash-attn-4's forward."""
    from hopwell.bench import environment

    with tempfile.TemporaryDirectory(prefix="hopwell-bench-") as directory:
        given = {} if launch is None else {PEER: launch}
        launches, absent = captured(Path(directory), tell, peer=launch is None)
        rows = measure({**given, **launches}, tell)
    return {
        "schema": SCHEMA,
        "created": environment.now(),
        "identity": asdict(environment.identity(commit=commit)),
        "environment": {**asdict(environment.environment()), "cpus": os.cpu_count()},
        "problem": {"seqlen": SEQLEN, "head_dim": HEAD_DIM, "heads": 1, "dtype": "bfloat16"},
        "targets": {"seconds": SECONDS, "peak_bytes": PEAK_BYTES},
        "rows": [asdict(row) for row in rows],
        "absent": absent,
    }


def _peak_bytes() -> int:
    """The largest resident set of this process.

    Linux keeps it for the program that runs now (proc(5), VmHWM); what getrusage(2) gives can be
    that of the process which started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    # Bytes on macOS, kilobytes elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Emulate one saved launch and print what it took."""
    from hopwell.emulator import Launch, emulate

    launch = Launch.load(sys.argv[1])
    start = time.perf_counter()
    report = emulate(launch, seeds=1, hazards=sys.argv[2] == "on")
    seconds = time.perf_counter() - start
    (run,) = report.runs
    taken = {
        "seconds": seconds,
        "run_seconds": run.seconds,
        "instructions": run.instructions,
        "instructions_per_second": run.instructions / run.seconds,
        "peak_bytes": _peak_bytes(),
        "clean": report.clean,
        "results": run.results,
    }
    print(json.dumps(taken))


if __name__ == "__main__":
    main()

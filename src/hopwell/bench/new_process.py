"""Clocks that only a new process can show: imports, the first call, a compilation.

A process has its CUDA context and its tensors before the clock starts: those belong to PyTorch.
One process goes first and is not counted: it leaves the bytecode that every later one finds, as
after an installation. Seconds by name: ``import_torch``; ``import_hopwell`` and ``first_call``,
and both together as ``import_and_first_call``; ``import_cutlass`` and ``compile``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from hopwell.bench.timing import Statistic

_FIRST_CALL = """
import json, time
t0 = time.perf_counter()
import torch
t1 = time.perf_counter()
q, k, v = (torch.randn(1, 128, 1, 128, device="cuda").bfloat16() for _ in range(3))
torch.cuda.synchronize()
t2 = time.perf_counter()
import hopwell
from hopwell.dispatch import record_dispatch
t3 = time.perf_counter()
with torch.no_grad(), record_dispatch() as calls:
    hopwell.attention(q, k, v, backend="hopper")
torch.cuda.synchronize()
t4 = time.perf_counter()
assert calls[0].cache in ("wheel", "hit"), calls[0].cache
print(json.dumps({"import_torch": t1 - t0, "import_hopwell": t3 - t2, "first_call": t4 - t3,
                  "import_and_first_call": t4 - t2}))
"""

# With torch there already, as in any process that calls attention: the compiler's TVM package
# imports torch too, and that is not what a plan costs.
_COMPILE = """
import json, pathlib, tempfile, time
import torch
t0 = time.perf_counter()
import cutlass, cutlass.cute
t1 = time.perf_counter()
from hopwell.compile.build import build
from hopwell.hopper.plan import forward_plan
with tempfile.TemporaryDirectory() as directory:
    build(forward_plan("bfloat16", (128, 128), False), pathlib.Path(directory))
    t2 = time.perf_counter()
print(json.dumps({"import_cutlass": t1 - t0, "compile": t2 - t1}))
"""


def measure(*, first_calls: int = 5, compilations: int = 2) -> dict[str, Statistic]:
    """Seconds by name; compilations only where the compiler is installed.

    Raises:
        RuntimeError: a process failed.
    """
    found = repeat(_FIRST_CALL, first_calls)
    if importlib.util.find_spec("cutlass") is not None:
        found |= repeat(_COMPILE, compilations)
    return found


def repeat(program: str, times: int) -> dict[str, Statistic]:
    """Statistics over new processes of the JSON that ``program`` prints, after an unmeasured one.

    Raises:
        RuntimeError: a process failed.
    """
    found = [_run(program) for _ in range(1 + times)][1:]
    return {name: Statistic.of([sample[name] for sample in found]) for name in found[0]}


def _run(program: str) -> dict[str, float]:
    # A user's process keeps bytecode; whoever runs the benchmark may have switched that off.
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a new process failed: {done.stderr.strip()[-800:]}")
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds

"""What the compile tests share: a tiny plan, and new processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
#: Python path of a new process: the package, and the tests as ``tests.compile``.
PYTHONPATH = f"{ROOT / 'src'}:{ROOT}"


@dataclass(frozen=True)
class TinyPlan:
    """The least that can be compiled: see tiny_kernel.py."""

    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "_".join(("hopwell_tiny", *self.faults))

    @property
    def arch(self) -> str:
        return "sm_90a"

    @property
    def kernel_module(self) -> str:
        return "tests.compile.tiny_kernel"

    @property
    def expectation_module(self) -> None:
        """Nothing is expected: its faults are there to be found by other means."""
        return None

    def to_json(self) -> dict[str, Any]:
        return {"faults": list(self.faults)}


def run_program(
    program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python source in a new process that has the tests' modules; fails when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done

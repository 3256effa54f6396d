"""What the compile tests share: a tiny plan, a cache of their own, new processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hopwell.compile import key as keys

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"

if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # the DSL imports the tiny kernel's module by name


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

    def to_json(self) -> dict[str, Any]:
        return {"faults": list(self.faults)}


@pytest.fixture(autouse=True)
def _tiny_is_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(keys.KERNEL_MODULES, "TinyPlan", "tiny_kernel")


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test, below a directory that is the user's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(directory))
    return directory


def run_program(
    program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python source in a new process that has the tests' modules; fails when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{HERE}", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done

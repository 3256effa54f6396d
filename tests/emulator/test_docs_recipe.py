"""The recipe "add an instruction" of docs/emulator.md is true: its blocks run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "emulator.md").read_text("utf-8")
RECIPE = PAGE.partition("\n## Add an instruction\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", RECIPE, re.MULTILINE | re.DOTALL)

each_block = pytest.mark.parametrize("block", BLOCKS, ids=["computation", "effect"])


def code_of(block: str) -> str:
    """The PTX that a block runs."""
    (text,) = re.findall(r'PTX = """\n(.*?)"""', block, re.DOTALL)
    return str(text)


@each_block
def test_block_runs_as_it_stands(block: str, tmp_path: Path) -> None:
    path = tmp_path / "my_instructions.py"
    path.write_text(block, "utf-8")
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@each_block
def test_without_the_block_the_instruction_is_not_there(block: str, tmp_path: Path) -> None:
    code = tmp_path / "kernel.ptx"
    code.write_text(code_of(block), "utf-8")
    command = [sys.executable, "-m", "hopwell", "emulate", str(code), "--block", "64"]
    done = subprocess.run(
        [*command, "--args", "zeros:u32:64"],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "add an instruction" in done.stderr + done.stdout


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
@each_block
def test_ptxas_accepts_its_kernel(block: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(code_of(block), "utf-8")
    (arch,) = re.findall(r"\.target (\w+)", code_of(block))
    done = subprocess.run(
        ["ptxas", f"-arch={arch}", str(path), "-o", os.devnull],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

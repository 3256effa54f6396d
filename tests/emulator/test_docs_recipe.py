"""The Python of docs/emulator.md runs as it stands; so does the recipe "add an instruction"."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "emulator.md").read_text("utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPE = BLOCK.findall(PAGE.partition("\n## Add an instruction\n")[2].partition("\n## ")[0])
OTHERS = [block for block in BLOCK.findall(PAGE) if block not in RECIPE]

each_block = pytest.mark.parametrize("block", RECIPE, ids=["computation", "effect"])


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that has the repository's docs."""
    (folder / "docs").symlink_to(ROOT / "docs")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def code_of(block: str) -> str:
    """The PTX that a block runs."""
    (text,) = re.findall(r'PTX = """\n(.*?)"""', block, re.DOTALL)
    return str(text)


@each_block
def test_the_recipe_runs(block: str, tmp_path: Path) -> None:
    (tmp_path / "my_instructions.py").write_text(block, "utf-8")
    done = python(tmp_path, "my_instructions.py")
    assert done.returncode == 0, done.stderr


@each_block
def test_without_the_recipe_the_instruction_is_not_there(block: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text(code_of(block), "utf-8")
    options = ("--block", "64", "--args", "zeros:u32:64")
    done = python(tmp_path, "-m", "hopwell", "emulate", "kernel.ptx", *options)
    assert done.returncode == 1
    assert "docs/emulator.md, 'add an instruction'" in done.stderr + done.stdout


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas is not on PATH")
@each_block
def test_ptxas_accepts_the_recipe(block: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.ptx"
    path.write_text(code_of(block), "utf-8")
    (arch,) = re.findall(r"\.target (\w+)", code_of(block))
    done = subprocess.run(
        ["ptxas", f"-arch={arch}", str(path), "-o", os.devnull],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", OTHERS, ids=["Python", "save a launch"])
def test_other_blocks_run(block: str, tmp_path: Path) -> None:
    if "hang.py" in block and importlib.util.find_spec("cutlass") is None:
        pytest.skip("the CuTe DSL is not installed")
    (tmp_path / "block.py").write_text(block, "utf-8")
    done = python(tmp_path, "block.py")
    assert done.returncode == 0, done.stderr
    assert "waits at" in done.stdout or (tmp_path / "hang.launch").exists()


@pytest.mark.parametrize(
    ("words", "example", "holds"),
    [
        (r"at line (\d+), which arrived once", "hang.ptx", "mbarrier.arrive"),
        (r"In line (\d+), write 1 for 32", "hang.ptx", "[empty], 32;"),
        (r"line (\d+) expects 512 bytes", "hang.py", "TILE * 4"),
        (r"the fence that line (\d+) has", "missing_proxy_fence.ptx", "// fence.proxy.async"),
    ],
)
def test_lines_that_the_page_names_are_there(words: str, example: str, holds: str) -> None:
    (number,) = re.findall(words, PAGE)
    text = (ROOT / "docs" / "examples" / example).read_text("utf-8")
    assert holds in text.splitlines()[int(number) - 1]

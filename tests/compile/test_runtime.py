"""The runtime that is linked into every kernel, driven by a CUDA runtime that records its calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compile.helpers import run_program

HERE = Path(__file__).parent

PRELUDE = """
import ctypes, os, sys
stub = os.environ.get("STUB")
if stub:
    ctypes.CDLL(stub, mode=ctypes.RTLD_GLOBAL)
import torch
from tests.compile.helpers import TinyPlan
from hopwell.compile import load
from hopwell.errors import LaunchError
from tests.compile.cuda_tensors import arguments
kernel = load(TinyPlan())
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("stub") / "libstub.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "stub_cudart.c")]
    subprocess.run(command, check=True)
    return str(library)


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("runtime") / "cache")


def test_a_launch_reaches_cuda_as_the_kernel_was_compiled(stub: str, warm_cache: str) -> None:
    program = PRELUDE + "kernel(*arguments())\nkernel(*arguments())\nprint(kernel.symbol)"
    done = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache)
    lines = done.stdout.splitlines()
    assert lines.count("cudaLibraryLoadData") == 1
    assert lines[0] == "image ba55ed50"  # a fat binary: the cubin inside the library
    assert f"kernel {lines[-1]}" in lines
    launches = [line for line in lines if line.startswith("launch")]
    # 130 rows in tiles of 64, 2 heads, 1 batch; three 8 KiB tiles and one mbarrier.
    assert len(launches) == 2
    assert launches[0].startswith("launch 3 2 1 / 256 1 1 / 24584 / stream (nil) / kernel 0x2000")


def test_the_artifact_knows_the_shared_memory_that_is_launched(stub: str, warm_cache: str) -> None:
    program = PRELUDE + "kernel(*arguments())\nprint(kernel.artifact.manifest.shared_launched)"
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    launch = next(line for line in lines if line.startswith("launch"))
    assert launch.split(" / ")[2] == lines[-1] == "24584"


def test_each_device_is_prepared_on_its_own_first_launch(stub: str, warm_cache: str) -> None:
    program = PRELUDE + (
        "kernel(*arguments(0))\nkernel(*arguments(1))\nkernel(*arguments(1))\nkernel(*arguments(0))"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    prepared = [line.split()[-1] for line in lines if line.startswith("attribute 8 ")]
    assert prepared == ["0", "1"]
    assert lines.count("cudaLibraryLoadData") == 1
    devices = [line.split()[-1] for line in lines if line.startswith("launch")]
    assert devices == ["0", "1", "1", "0"]


@pytest.mark.parametrize(
    "call", ["cudaLibraryLoadData", "cudaLibraryGetKernel", "cudaLaunchKernelExC", "cudaGetDevice"]
)
def test_a_refusal_is_a_typed_error(stub: str, warm_cache: str, call: str) -> None:
    program = PRELUDE + (
        "try:\n    kernel(*arguments())\nexcept LaunchError as error:\n    print(error)\n"
        "os.environ.pop('STUB_FAIL')\nctypes.CDLL(None).unsetenv(b'STUB_FAIL')\n"
        "kernel(*arguments())\nprint('recovered')"
    )
    done = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache, STUB_FAIL=call)
    expected = f"expected {call} to succeed, got cudaErrorIllegalAddress (700): an illegal memory"
    assert expected in done.stdout
    assert done.stdout.splitlines()[-1] == "recovered"


def test_without_cuda_a_kernel_loads_and_says_so_when_called(warm_cache: str) -> None:
    program = PRELUDE + (
        "print('loaded', kernel.source)\n"
        "try:\n    kernel(*arguments())\nexcept LaunchError as error:\n    print(error)"
    )
    done = run_program(program, HOPWELL_CACHE_DIR=warm_cache)
    assert "loaded" in done.stdout
    assert "expected a CUDA runtime 12.8 or newer" in done.stdout


def test_wrong_arguments_never_reach_cuda(stub: str, warm_cache: str) -> None:
    program = PRELUDE + (
        "q, *rest = arguments()\n"
        "for bad in ((q,), (None, *rest), (torch.zeros(1, 8, 2, 64), *rest)):\n"
        "    try:\n        kernel(*bad)\n        print('accepted')\n"
        "    except (TypeError, ValueError):\n        print('refused')"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    assert lines == ["refused"] * 3

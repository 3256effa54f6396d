"""The runtime that is linked into every kernel, driven by a CUDA runtime that records its calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.compile.helpers import run_program

from hopwell.compile import kernel as kernels
from hopwell.hopper.plan import forward_plan

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


def test_a_bound_call_launches_what_it_was_bound_to(stub: str, warm_cache: str) -> None:
    program = PRELUDE + (
        "given = arguments(1)\nq, k, v, o, lse, *_ = given\nbound = kernel.bind(*given)\n"
        "bound(*(x.data_ptr() for x in (q, k, v, o, lse)))\nkernel(*given)\n"
        "bound(*(x.data_ptr() for x in (v, q, k, lse, o)))"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    assert lines.count("cudaLibraryLoadData") == 1
    launches = [line for line in lines if line.startswith("launch")]
    assert len(launches) == 3
    assert len(set(launches)) == 1


def test_the_launch_is_on_the_current_stream(stub: str, warm_cache: str) -> None:
    program = PRELUDE + (
        "asked = []\n"
        "def current(device):\n    asked.append(device)\n    return 0xabc0 + len(asked)\n"
        "torch._C._cuda_getCurrentRawStream = current\n"
        "bound = kernel.bind(*arguments(1))\n"
        "for _ in range(2):\n    bound(*(x.data_ptr() for x in arguments(1)[:5]))\n"
        "print(set(asked))"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    streams = [line.split(" / ")[3] for line in lines if line.startswith("launch")]
    assert streams == ["stream 0xabc2", "stream 0xabc3"]  # the first was not loaded yet
    assert lines[-1] == "{1}"


def test_a_misaligned_address_is_refused(stub: str, warm_cache: str) -> None:
    program = PRELUDE + (
        "from hopwell.errors import InputError\n"
        "given = arguments()\nkernel(*given)\nbound = kernel.bind(*given)\n"
        "addresses = [x.data_ptr() for x in given[:5]]\naddresses[1] += 8\n"
        "try:\n    bound(*addresses)\nexcept InputError as error:\n    print(error)"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    assert sum(line.startswith("launch ") for line in lines) == 1
    assert "data alignment=16 bytes" in lines[-1]


def test_a_capture_is_refused_on_each_device_that_has_no_code_yet(
    stub: str, warm_cache: str
) -> None:
    program = PRELUDE + (
        "from hopwell.errors import CompileDuringCapture\n"
        "torch.cuda.is_initialized = lambda: True\n"
        "def call(device, capturing):\n"
        "    torch.cuda.is_current_stream_capturing = lambda: capturing\n"
        "    try:\n        kernel(*arguments(device))\n"
        "    except CompileDuringCapture:\n        print('refused', device, flush=True)\n"
        "for step in ((0, True), (0, False), (0, True), (1, True), (1, False), (1, True)):\n"
        "    call(*step)"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    seen = [line for line in lines if line.startswith(("launch ", "refused"))]
    assert [line.split()[-1] for line in seen] == ["0", "0", "0", "1", "1", "1"]
    assert [line.split()[0] for line in seen] == ["refused", "launch", "launch"] * 2


def test_threads_keep_their_errors_and_streams_apart(stub: str, warm_cache: str) -> None:
    program = PRELUDE + (
        "import threading\nfrom hopwell.errors import InputError\n"
        "own = threading.local()\n"
        "torch._C._cuda_getCurrentRawStream = lambda device: own.stream\n"
        "kernels, wrong = arguments(), list(arguments())\n"
        "own.stream = 0xf\nkernel(*kernels)\n"
        "wrong[3] = wrong[4]\n"
        "def right():\n    own.stream = 0x10\n"
        "    for _ in range(200):\n        kernel(*kernels)\n"
        "def failing():\n    own.stream = 0x20\n"
        "    for _ in range(200):\n"
        "        try:\n            kernel(*wrong)\n            print('accepted')\n"
        "        except InputError as error:\n            assert 'o.ndim' in str(error) or 'ndim=4'"
        " in str(error), error\n"
        "threads = [threading.Thread(target=f) for f in (right, failing, right, failing)]\n"
        "[t.start() for t in threads]\n[t.join() for t in threads]"
    )
    lines = run_program(program, STUB=stub, HOPWELL_CACHE_DIR=warm_cache).stdout.splitlines()
    streams = [line.split(" / ")[3] for line in lines if line.startswith("launch ")]
    assert streams == ["stream 0xf"] + ["stream 0x10"] * 400
    assert "accepted" not in lines


FIRST_CALL = """
import ctypes, os, sys
ctypes.CDLL(os.environ["STUB"], mode=ctypes.RTLD_GLOBAL)
import torch
before = set(sys.modules)
from hopwell import compile, dispatch
from hopwell.compile import kernel
from hopwell.hopper import launch
# A machine without a GPU calls its memory a GPU's.
kernel._DEVICES["cpu"] = kernel._DEVICES["cuda"]
launch.sm_count = lambda index: 132
rows = tuple(row for row in dispatch.SUPPORT["hopper"] if row.name not in ("device", "arch"))
dispatch.SUPPORT = {"hopper": rows}
import hopwell
q = torch.randn(1, 128, 1, 64).bfloat16()
with dispatch.record_dispatch() as calls:
    for _ in range(4):
        hopwell.attention(q, q, q)
print(*(call.cache for call in calls))
print(sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def test_a_first_call_needs_nothing_but_torch(stub: str) -> None:
    """Neither the compiler nor what it is made of: a cached kernel runs without them."""
    plan = forward_plan("bfloat16", (64, 64), False)
    kernels.find_or_build(plan)
    *lines, caches, modules = run_program(FIRST_CALL, STUB=stub).stdout.splitlines()
    assert caches == "hit memory memory memory"
    assert sum(line.startswith("launch ") for line in lines) == 4
    assert modules == "['hopwell']"


def test_a_library_asks_for_nothing_but_libc(warm_cache: str) -> None:
    program = PRELUDE + "print(kernel.artifact.library)"
    library = run_program(program, HOPWELL_CACHE_DIR=warm_cache).stdout.strip()
    command = ["nm", "-D", "--undefined-only", library]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    needed = [line.split()[-1] for line in listing.splitlines() if " U " in line]
    assert needed
    assert all("@GLIBC_" in symbol for symbol in needed)

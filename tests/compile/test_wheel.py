"""The wheel carries kernels: installed where no compiler is, it loads them and compiles nothing."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from tests.compile.helpers import ROOT

from hopwell.compile import artifact as files
from hopwell.compile import kernel as kernels
from hopwell.compile import shipped, wheel
from hopwell.compile.artifact import Artifact
from hopwell.hopper.plan import forward_plan, shipped_forward_plans

PLANS = tuple(forward_plan(dtype, (64, 64), False) for dtype in ("bfloat16", "float16"))
COMPILER = ("nvidia_cutlass_dsl", "cutlass", "apache_tvm_ffi", "tvm_ffi")


@pytest.fixture(scope="module")
def artifacts() -> list[Artifact]:
    return [kernels.find_or_build(plan)[0] for plan in PLANS]


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the build back end makes of the sources."""
    pytest.importorskip("hatchling", reason="the build back end is not installed")
    out = tmp_path_factory.mktemp("pure")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def shipping(pure: Path, artifacts: list[Artifact]) -> Path:
    return wheel.add_kernels(pure, artifacts)


@pytest.fixture(scope="module")
def bare(shipping: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment: the wheel and its dependencies, no compiler."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    query = [str(python), "-c", "import site; print(site.getsitepackages()[0])"]
    packages = Path(
        subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    )
    # Debian's Python names directories that need not exist.
    for entry in filter(Path.is_dir, map(Path, site.getsitepackages())):
        for source in entry.iterdir():
            named = source.name.lower().replace("-", "_")
            if not named.startswith((*COMPILER, "hopwell", "__editable__")):
                (packages / source.name).symlink_to(source)
    command = ["pip", "--python", str(python), "install", "--no-deps", "--no-index", str(shipping)]
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    return python


def test_the_command_makes_the_wheel(
    pure: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / pure.name
    shutil.copy(pure, given)
    plans = [plan for plan in shipped_forward_plans() if "bf16_d64x64" in plan.name]
    assert wheel.main([str(given), "--jobs", "2", "--match", "bf16_d64x64"]) == 0
    (made,) = tmp_path.glob("*manylinux*.whl")
    assert f"{made}: {len(plans)} kernels" in capsys.readouterr().out
    with zipfile.ZipFile(made) as archive:
        manifests = [name for name in archive.namelist() if name.endswith(files.MANIFEST)]
        found = {json.loads(archive.read(name))["plan_name"] for name in manifests}
    assert found == {plan.name for plan in plans}
    assert len(found) == 2


def test_a_wheel_of_no_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        wheel.main([str(tmp_path / "hopwell-py3-none-any.whl"), "--match", "no_such_plan"])
    assert not list(tmp_path.iterdir())


def test_the_wheel_is_whole(shipping: Path, pure: Path, artifacts: list[Artifact]) -> None:
    assert "manylinux_2_" in shipping.name
    with zipfile.ZipFile(shipping) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        listed = {line.split(",")[0] for line in archive.read(record).decode().splitlines()}
        (info,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        text = archive.read(info).decode()
    with zipfile.ZipFile(pure) as archive:
        assert set(archive.namelist()) <= names
    assert listed == names
    assert "Root-Is-Purelib: false" in text
    assert "Tag: py3-none-manylinux_2_" in text
    for artifact in artifacts:
        for name in (files.LIBRARY, files.PTX, files.CUBIN, files.MANIFEST):
            assert f"hopwell/kernels/{artifact.manifest.request}/{name}" in names


def test_equal_contents_make_equal_wheels(
    pure: Path, shipping: Path, artifacts: list[Artifact]
) -> None:
    before = shipping.read_bytes()
    assert wheel.add_kernels(pure, artifacts) == shipping
    assert shipping.read_bytes() == before


def test_kernels_of_other_sources_are_refused(pure: Path, artifacts: list[Artifact]) -> None:
    stale = dict(artifacts[0].manifest.sources)
    stale["hopwell.hopper.plan"] = "0" * 64
    manifest = artifacts[0].manifest._replace(sources=stale)
    with pytest.raises(ValueError, match=r"hopwell\.hopper\.plan in the wheel"):
        wheel.add_kernels(pure, [artifacts[0]._replace(manifest=manifest)])


def test_the_tag_follows_what_the_libraries_need() -> None:
    assert wheel.platform_tag([b"\0GLIBC_2.2.5\0"]).startswith("manylinux_2_28_")
    newer = [b"\0GLIBC_2.2.5\0", b"x\0GLIBC_2.34\0GLIBC_2.3\0"]
    assert wheel.platform_tag(newer).startswith("manylinux_2_34_")


LOAD = """
import importlib.util, json, sys
import torch
from hopwell.compile import load
from hopwell.errors import CompilerMissing, LaunchError
from hopwell.hopper.plan import forward_plan
assert importlib.util.find_spec("cutlass") is importlib.util.find_spec("tvm_ffi") is None
kernel = load(forward_plan("bfloat16", (64, 64), False))
assert "hopwell.compile.build" not in sys.modules
print(kernel.source, kernel.artifact_hash, kernel.symbol)
sys.path.insert(0, sys.argv[1])
from tests.compile.cuda_tensors import arguments
try:
    kernel(*arguments())
except LaunchError as error:
    print(error)
try:
    load(forward_plan("bfloat16", (128, 128), True))
except CompilerMissing as error:
    print(error)
"""


def test_installed_without_the_compiler_a_kernel_loads(
    bare: Path, artifacts: list[Artifact], tmp_path: Path
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HOPWELL"))}
    done = subprocess.run(
        [str(bare), "-c", LOAD, str(ROOT)],
        env={**environment, "HOPWELL_CACHE_DIR": str(tmp_path / "empty")},
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    loaded, launched, missing = done.stdout.splitlines()
    manifest = artifacts[0].manifest
    assert loaded == f"wheel {manifest.artifact_hash} {manifest.kernel_symbol}"
    assert "expected a CUDA runtime 12.8 or newer" in launched
    assert "hopwell[compile]" in missing


def test_a_damaged_shipped_kernel_is_a_miss(
    artifacts: list[Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "KERNELS", tmp_path)
    request = artifacts[0].manifest.request
    assert shipped.find(request) is None
    shutil.copytree(artifacts[0].directory, tmp_path / request)
    found = shipped.find(request)
    assert found is not None
    assert kernels.find(PLANS[0]) == (found, "wheel")
    (tmp_path / request / files.LIBRARY).write_bytes(b"damaged")
    assert shipped.find(request) is None

"""Compiling: reproducible, independent of what surrounds it, and strict about the assembler."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.compile.cuda_tensors import arguments
from tests.compile.helpers import TinyPlan, run_program

from hopwell.compile import artifact as files
from hopwell.compile import build as builds
from hopwell.compile import cache as caches
from hopwell.compile import compare
from hopwell.compile import kernel as kernels
from hopwell.compile import key as keys
from hopwell.compile.build import build
from hopwell.errors import CompileDuringCapture, CompileError, CompilerMissing
from hopwell.hopper.plan import forward_plan

Manifests = dict[str, dict[str, Any]]

#: A dictionary or set whose order leaks into a kernel shows only under different hash seeds.
BUILD = """
import json, pathlib, sys, tempfile
{prelude}
from tests.compile.helpers import TinyPlan
from hopwell.compile.build import build
from hopwell.hopper.plan import forward_plan
found = {{}}
for plan in (TinyPlan(), forward_plan("bfloat16", (64, 64), True)):
    with tempfile.TemporaryDirectory() as directory:
        manifest = build(plan, pathlib.Path(directory)).manifest.to_json()
    found[plan.name] = {{name: value for name, value in manifest.items() if "seconds" not in name}}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def plain() -> Manifests:
    """Manifests of a build in a process of its own."""
    return _build(PYTHONHASHSEED="1")


def _build(prelude: str = "", **environment: str) -> Manifests:
    program = BUILD.format(prelude=prelude)
    found: Manifests = json.loads(run_program(program, **environment).stdout.splitlines()[-1])
    return found


def test_two_processes_make_the_same_artifact(plain: Manifests) -> None:
    """PTX, machine code and the whole library, byte for byte, and every other field."""
    assert _build(PYTHONHASHSEED="2", COLUMNS="40") == plain
    assert len(plain) == 2


@pytest.mark.parametrize("arch", ["sm_100a", "sm_80"])
def test_another_target_in_the_process_changes_nothing(plain: Manifests, arch: str) -> None:
    """The compiler may have been imported for another GPU before."""
    assert _build("import cutlass.cute", CUTE_DSL_ARCH=arch) == plain


def test_the_manifest_says_what_was_made(tmp_path: Path) -> None:
    plan = TinyPlan()
    artifact = build(plan, tmp_path)
    manifest = artifact.manifest
    assert files.read(tmp_path, keys.request_of(plan), manifest.key).manifest == manifest
    files.verify(artifact)
    assert manifest.plan_name == plan.name
    assert manifest.export_symbol == "hopwell_tiny"
    assert f".entry {manifest.kernel_symbol}(" in artifact.ptx()
    assert manifest.so_sha256 == keys.sha256(artifact.library.read_bytes())
    assert manifest.toolchain["libs"] in ("cu12", "cu13")
    assert "release" in manifest.assembler["version"]
    assert "-arch sm_90a" in manifest.assembler["options"]
    assert manifest.shared_launched == 3 * 64 * 64 * 2 + 8
    assert manifest.assembler["linker"].startswith(("GNU ld", "GNU gold", "LLD", "mold"))
    assert any(character.isdigit() for character in manifest.assembler["c_compiler"])
    assert manifest.resources["spill_bytes"] == 0
    assert str(tmp_path) not in artifact.ptx()
    assert str(Path(__file__).parent).encode() not in artifact.library.read_bytes()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("serialise", "wgmma.mma_async instructions are serialized"),
        ("unbounded", "'setmaxnreg' ignored"),
        ("local", r"\(C75\d\d\)"),
    ],
)
def test_an_assembler_warning_fails_the_build(tmp_path: Path, fault: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        build(TinyPlan((fault,)), tmp_path)


def test_no_assembler_log_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that stops showing the log must not silence the warnings."""
    options = keys.COMPILE_OPTIONS.replace(" remarks{{ptx}}", "")
    assert options != keys.COMPILE_OPTIONS
    monkeypatch.setattr(keys, "COMPILE_OPTIONS", options)
    with pytest.raises(CompileError, match="no assembler log"):
        build(TinyPlan(), tmp_path)


def test_the_log_is_found_in_wrapped_and_coloured_remarks() -> None:
    console = (
        "\x1b[96mremark[ptxas]:\x1b[0m ptxas detected local memory usage\n\n  --> a.py:1:2\n"
        "          ptxas output:\n          ptxas info    : (C7508) Potential Performance Loss:\n"
        "          'setmaxnreg' ignored.\n          ptxas info    : Used 58 registers\n"
        "  \x1b[92msuggestion:\x1b[0m avoid it\n"
    )
    assert builds._assembler_log(console).splitlines() == [
        "ptxas info : (C7508) Potential Performance Loss: 'setmaxnreg' ignored.",
        "ptxas info : Used 58 registers",
    ]


def test_settings_that_change_code_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    with pytest.raises(CompileError, match="CUTE_DSL_LINEINFO"):
        build(TinyPlan(), tmp_path)


def test_a_kernel_that_does_not_compile_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.compile import tiny_kernel

    monkeypatch.setattr(tiny_kernel, "THREADS", "many")
    with pytest.raises(CompileError, match="compiling hopwell_tiny") as caught:
        build(TinyPlan(), tmp_path)
    assert "\x1b" not in str(caught.value)


def test_without_the_compiler_the_extra_is_named(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "toolchain", lambda _arch: None)
    with pytest.raises(CompilerMissing, match=r"hopwell\[compile\]"):
        kernels.find_or_build(TinyPlan())
    assert kernels.find(TinyPlan()) is None


@pytest.mark.parametrize(
    ("asked", "message"), [("", "cc or gcc"), ("no-such-compiler", "CC=no-such-compiler")]
)
def test_without_a_linker_it_is_named_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, message: str
) -> None:
    """A CC that is not there is not replaced by the gcc that is."""
    monkeypatch.setenv("CC", asked)
    if not asked:
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(builds, "_compile", lambda *_: pytest.fail("compiled"))
    with pytest.raises(CompilerMissing, match=message):
        build(TinyPlan(), tmp_path)


def test_the_linker_is_the_one_that_cc_names(monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = builds.linker()
    monkeypatch.setenv("CC", gcc)
    monkeypatch.setenv("PATH", "")
    assert builds.linker() == gcc


class Expecting(TinyPlan):
    """The tiny kernel with an expectation: this module's :func:`expected`."""

    @property
    def expectation_module(self) -> str:  # type: ignore[override]
        return __name__


THREADS = {"threads": 256}


def expected(plan: Expecting) -> dict[str, object]:
    return {"element type": "bf16", **THREADS}


def test_a_kernel_that_is_not_what_its_plan_expects_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    build(Expecting(), good)
    monkeypatch.setitem(THREADS, "threads", 512)
    with pytest.raises(CompileError, match="threads: 512") as caught:
        build(Expecting(), bad)
    assert caught.value.actual == "threads: 256"  # and only the row that fails
    assert not list(bad.iterdir())


def test_a_plan_without_an_expectation_says_so() -> None:
    assert TinyPlan().expectation_module is None
    assert compare.expected(TinyPlan()) == {}
    assert compare.expected(forward_plan("bfloat16", (64, 64), True))


def test_a_linker_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "LINK_OPTIONS", ("-shared", "-no-such-option"))
    with pytest.raises(CompileError, match="no-such-option"):
        build(TinyPlan(), tmp_path)


def test_the_ptx_hash_ignores_where_it_was_compiled() -> None:
    body = ".visible .entry k()\n{\n\tadd.s32 %r1, %r2, 3;\n\tret;\n}\n"
    noisy = (
        '// Compiler Build ID: 1\n.file 1 "/home/me/forward.py"\n'
        + body.replace("\tadd", "\t.loc 1 7 3\n\tadd  ".rstrip())
        + ".section .debug_str\n{\n.b8 47\n}\n"
    )
    assert files.ptx_hash(noisy) == files.ptx_hash(body)
    assert files.ptx_hash(body.replace(", 3", ", 4")) != files.ptx_hash(body)


def test_memo_cache_and_compiler_in_this_order(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_kernels", {})
    first = kernels.load(TinyPlan())
    assert first.source == "compiled"
    assert first.compile_seconds > 0
    assert kernels.load(TinyPlan()) is first
    monkeypatch.setattr(kernels, "_kernels", {})
    monkeypatch.setitem(sys.modules, "hopwell.compile.build", None)  # importing it would fail
    second = kernels.load(TinyPlan())
    assert (second.source, second.compile_seconds) == ("cache", 0.0)
    assert (second.key, second.artifact_hash) == (first.key, first.artifact_hash)
    assert second.symbol.startswith("kernel_")


def test_nothing_is_loaded_or_called_first_during_a_capture(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_kernels", {})
    kernel = kernels.load(TinyPlan())
    launched: list[bool] = []
    loaded = False

    def launch(description: bytes, call: bytes) -> int:
        nonlocal loaded
        load = bool(call[-8])
        if not loaded and not load:
            return 2
        loaded = True
        launched.append(load)
        return 0

    monkeypatch.setattr(kernel, "_launch", launch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(CompileDuringCapture, match="compiled or loaded"):
        kernels.load(TinyPlan(("other",)))
    assert kernels.load(TinyPlan()) is kernel
    with pytest.raises(CompileDuringCapture, match="loaded now"):
        kernel(*arguments())
    assert launched == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kernel(*arguments())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    kernel(*arguments())
    assert launched == [True, False]


def test_a_cache_that_is_off_compiles_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPWELL_CACHE", "0")
    artifact, source = kernels.find_or_build(TinyPlan())
    assert source == "compiled"
    assert artifact.library.is_file()
    assert kernels.find(TinyPlan()) is None


def test_a_full_disk_does_not_stop_the_process(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(caches, "_make_durable", full)
    artifact, source = kernels.find_or_build(TinyPlan())
    assert source == "compiled"
    assert artifact.library.is_file()
    assert cache_directory not in artifact.directory.parents
    assert kernels.find(TinyPlan()) is None


def test_an_entry_is_used_where_no_compiler_is(
    cache_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = kernels.find_or_build(TinyPlan())
    monkeypatch.setattr(keys, "toolchain", lambda _arch: None)
    found, source = kernels.find_or_build(TinyPlan())
    assert source == "cache"
    assert found.manifest == made.manifest

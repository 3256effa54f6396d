"""The inspector finds what a kernel holds: a tiny kernel whose facts are known, and small texts."""

from __future__ import annotations

import ast
import dataclasses
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.compile.helpers import TinyPlan

from hopwell.compile import entry, sass, warp_view
from hopwell.compile import inspect as inspection
from hopwell.compile import kernel as kernels
from hopwell.compile.artifact import Artifact
from hopwell.compile.entry import Kernel
from hopwell.compile.inspect import Actual, MBarriers, NamedBarrier, RegisterTarget, TensorCopies
from hopwell.compile.warp_view import UNKNOWN, Value, WarpView, reachable
from hopwell.errors import PtxNameError, PtxSyntaxError
from hopwell.hopper.plan import forward_plan
from hopwell.ptx.nodes import Address, Register, Symbol


@pytest.fixture(scope="module")
def tiny() -> Artifact:
    return kernels.find_or_build(TinyPlan())[0]


@pytest.fixture
def actual(tiny: Artifact) -> Actual:
    return inspection.inspect(tiny.ptx(), tiny.cubin(), tiny.manifest.shared_launched)


def test_the_tiny_kernel(actual: Actual) -> None:
    producer, consumer = tuple(range(4)), tuple(range(4, 8))
    assert actual.threads == 256
    assert actual.element_type == "bf16"
    assert actual.mbarriers == (MBarriers(24576, 1, 1, (16384,)),)
    assert actual.named_barriers == (
        NamedBarrier(0, 256, producer + consumer, ()),
        NamedBarrier(3, 128, consumer, ()),
    )
    assert actual.tensor_copies == (TensorCopies(0, 24576, 2), TensorCopies(16384, None, 1))
    assert actual.register_targets == (RegisterTarget(40, producer), RegisterTarget(208, consumer))
    assert actual.wgmma_order == ("m64n64k16/shared*4 | wait 0",)
    assert (actual.hgmma, actual.wgmma_unfenced, actual.usetmaxreg) == (4, 0, 2)
    assert (actual.local_accesses, actual.stack_bytes) == (0, 0)
    assert actual.shared_launched == actual.barriers_end == 24584
    assert actual.payload_bytes == 3 * 8192 + 8
    assert actual.ctas_per_sm == 1


def test_resident_ctas_follow_the_scarcest_resource() -> None:
    count = inspection._ctas_per_sm
    assert count(128, 64, 0) == 8  # registers: 65536 / (128 * 64)
    assert count(1024, 16, 0) == 2  # threads
    assert count(32, 16, 0) == 32  # CTAs
    assert count(128, 32, 113 * 1024) == 2  # shared memory: 228 KiB in two, 1 KiB reserved each
    assert count(128, 32, 113 * 1024 + 1) == 1
    assert count(128, 32, None) is None


def test_machine_instructions_are_counted_as_the_disassembler_counts_them(tiny: Artifact) -> None:
    tool = _disassembler()
    plan = forward_plan("bfloat16", (96, 96), True)
    for artifact in (tiny, kernels.find_or_build(plan)[0]):
        cubin = artifact.directory / "kernel.cubin"
        text = subprocess.run([tool, "-c", str(cubin)], check=True, capture_output=True, text=True)
        found = Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\w+)", text.stdout))
        counted = sass.resources(artifact.cubin()).operations
        assert counted == {name: found[name] for name in counted}
        assert counted["HGMMA"] > 0


def _disassembler() -> str:
    packaged = [str(p) for entry in sys.path for p in Path(entry).glob("nvidia/*/bin/nvdisasm")]
    tool = shutil.which("nvdisasm") or next(iter(packaged), None)
    if tool is None:
        pytest.skip("no nvdisasm to compare with: it comes with hopwell[test]")
    return tool


def test_local_memory_operations_have_these_codes() -> None:
    """No shipped kernel has any, so the codes are checked on the words themselves: as assembled
    by CUDA 13.4 for sm_90a from a kernel with an array that is indexed at run time."""
    load, store = 0x0000000001387983, 0x0000003D00007387
    code = b"".join(word.to_bytes(8, "little") + bytes(8) for word in (load, store, load))
    assert sass._operations(code)["LDL"] == 2
    assert sass._operations(code)["STL"] == 1


def test_reading_imports_no_plan_and_no_kernel() -> None:
    for module in (inspection, entry, warp_view, sass):
        tree = ast.parse(Path(module.__file__ or "").read_text())
        names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not any("hopper" in name or "cutlass" in name for name in names), module


_HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


@pytest.mark.parametrize("text", ["", ".entry a()\n{\nret;\n}\n.entry b()\n{\nret;\n}\n"])
def test_ptx_of_no_or_two_kernels_is_refused(text: str, tiny: Artifact) -> None:
    with pytest.raises(ValueError, match="expected one entry"):
        inspection.inspect(_HEAD + text, tiny.cubin())


def test_text_that_is_no_ptx_is_refused(tiny: Artifact) -> None:
    with pytest.raises(PtxSyntaxError):
        inspection.inspect("", tiny.cubin())


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"MZ" * 100])
def test_an_image_that_is_no_cubin_is_refused(image: bytes, tiny: Artifact) -> None:
    with pytest.raises(ValueError):
        inspection.inspect(tiny.ptx(), image)


def test_a_cubin_cut_or_changed_anywhere_is_read_or_refused(tiny: Artifact) -> None:
    image, random = tiny.cubin(), Random(0)
    whole = sass.resources(image)
    for _ in range(300):
        with suppress(ValueError):
            assert sass.resources(image[: random.randrange(len(image))]) == whole
        changed = bytearray(image)
        for _ in range(5):
            # The headers, where most numbers are, or anywhere.
            changed[random.choice([random.randrange(64), random.randrange(len(image))])] ^= 0xFF
        with suppress(ValueError):
            sass.resources(bytes(changed))
    for foreign in (Path(sys.executable).read_bytes(), image[:6] + bytes(500)):
        with pytest.raises(ValueError):
            sass.resources(foreign)


def test_ptx_cut_anywhere_is_refused(tiny: Artifact) -> None:
    text = tiny.ptx().rstrip()
    end = text.rindex("}")
    for cut in Random(0).sample(range(end), 60):
        with pytest.raises(ValueError):
            inspection.inspect(text[:cut], tiny.cubin())


@pytest.mark.parametrize(
    "body",
    [
        "bar.sync;",
        "mbarrier.init.shared.b64 [%r1];",
        "mbarrier.arrive.expect_tx.shared.b64 _, %r1;",
        "setmaxnreg.inc.sync.aligned.u32;",
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 %r1;",
        "wgmma.wait_group.sync.aligned;",
        "cp.async.bulk.tensor.2d.global.shared::cta [%rd1];",
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1];",
        "sub.s32 %r1, %r2;",
        "neg.s32;",
        "mov.b32 %r1;",
    ],
)
def test_an_instruction_without_its_operands_is_refused(body: str, tiny: Artifact) -> None:
    registers = ".reg .b32 %r<4>;\n.reg .b64 %rd<4>;"
    text = f"{_HEAD}.visible .entry k()\n.reqntid 384\n{{\n{registers}\n{body}\n}}\n"
    with pytest.raises(ValueError, match="lacks operands"):
        inspection.inspect(text, tiny.cubin())


# -- what one warp computes ----------------------------------------------------------------


def _kernel(body: str, threads: int = 384) -> Kernel:
    return Kernel.parse(
        f"{_HEAD}.extern .shared .align 1024 .b8 dynamic[];\n"
        ".shared .align 4 .b8 static_smem[64];\n"
        f".visible .entry k(\n.param .b32 k_param_0\n)\n.reqntid {threads}, 1, 1\n{{\n"
        ".reg .pred %p<4>, p;\n.reg .b32 %r<100>;\n.reg .f32 %f<4>;\n.reg .b64 %rd<4>;\n"
        f"{body}\n}}\n"
    )


def _value(view: WarpView, name: str) -> Value:
    """A register's value at the end of the body, or the address of a variable."""
    operand = Register(name) if name.startswith("%") else Symbol(name)
    return view.value(operand, view.kernel.instructions[-1].scope)


def test_barrier_numbers_are_known_per_warp() -> None:
    body = """
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;
    shr.s32 %r4, %r3, 2;
    setp.ne.b32 %p1, %r4, 0;
    @%p1 bra $L__BB0_2;
    bar.sync 9, 128;
    ret;
$L__BB0_2:
    setp.eq.b32 %p2, %r4, 2;
    add.s32 %r5, %r4, 1;
    selp.b32 %r6, 1, %r5, %p2;
    bar.sync %r4, 256;
    bar.arrive %r6, 256;
    ret;
    """
    kernel = _kernel(body)
    views = [WarpView(kernel, warp) for warp in range(12)]
    scene = inspection._Scene(kernel, views, [reachable(view) for view in views])
    first, second = tuple(range(4, 8)), tuple(range(8, 12))
    assert inspection._named_barriers(scene) == (
        NamedBarrier(1, 256, first, second),
        NamedBarrier(2, 256, second, first),
        NamedBarrier(9, 128, tuple(range(4)), ()),
    )


def test_what_depends_on_data_is_unknown() -> None:
    body = """
    ld.param.b32 %r1, [k_param_0];
    mov.b32 %r2, 5;
    add.s32 %r3, %r2, 3;
    add.s32 %r4, %r1, 100;
    and.b32 %r5, %r4, 1;
    mov.b32 %r6, 1;
    mov.b32 %r6, 2;
    add.s32 %r7, %r7, 1;
    add.s32 %r8, %r5, 64;
    ret;
    """
    view = WarpView(_kernel(body), 0)
    assert _value(view, "%r3") == Value(8)
    assert _value(view, "%r4") == Value(100, exact=False)
    for register in ("%r1", "%r5", "%r6", "%r7", "%r99"):
        assert not _value(view, register).exact, register
    scope = view.kernel.instructions[-1].scope
    assert view.address(Address(Register("%r8"), 8), scope) == Value(72, exact=False)


def test_only_the_first_result_is_what_an_instruction_computes() -> None:
    body = """
    mov.b64 %rd1, 7;
    mov.b64 {%r1, %r2}, %rd1;
    setp.lt.s32 %p1|%p2, 1, 2;
    ret;
    """
    view = WarpView(_kernel(body), 0)
    assert _value(view, "%p1") == Value(1)
    for register in ("%r1", "%r2", "%p2"):
        assert not _value(view, register).exact, register


def test_a_register_that_accumulates_is_not_what_it_began_with() -> None:
    mma = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    body = f"mov.b32 %r1, 0;\n{mma} {{%r1, %r2, %r3, %r4}}, %rd1, %rd2, p, 1, 1, 0, 0;\nret;"
    assert not _value(WarpView(_kernel(body), 0), "%r1").exact


def test_blocks_repeat_names() -> None:
    """Inline assembly brings its own registers and labels, each time the same names."""
    block = """
    {{
    .reg .pred q;
    setp.eq.s32 q, %r1, {number};
    @q bra DONE;
    bar.sync {number}, 384;
    DONE:
    }}
    """
    body = "mov.u32 %r1, %tid.x;" + block.format(number=0) + block.format(number=32) + "ret;"
    kernel = _kernel(body)
    reached = [reachable(WarpView(kernel, warp)) for warp in range(3)]
    first, second = (p.position for p in kernel.instructions if p.node.name == "bar")
    assert [first in positions for positions in reached] == [False, True, True]
    assert [second in positions for positions in reached] == [True, False, True]


@pytest.mark.parametrize("body", ["mov.b32 %nowhere, 1;", "@%p9 ret;", "bra nowhere;"])
def test_a_name_that_nothing_declares_is_refused(body: str) -> None:
    with pytest.raises(PtxNameError):
        reachable(WarpView(_kernel(f"{body}\nret;"), 0))


@pytest.mark.parametrize(
    ("instruction", "value"),
    [
        ("shl.b32 %r1, 1, 5", Value(32)),
        ("shl.b32 %r1, 1, 99999999999", Value(0)),
        ("shl.b32 %r1, 1, -3", Value(0)),
        ("shr.u32 %r1, -1, 40", Value(0)),
        ("shr.s32 %r1, -8, 40", Value(-1)),
        ("add.s32 %r1, 1", UNKNOWN),
        ("mad.lo.s32 %r1, 1, 2", UNKNOWN),
        ("min.s32 %r1, 3", UNKNOWN),
        ("not.b32 %r1", UNKNOWN),
        ("selp.b32 %r1, 1, 2", UNKNOWN),
        ("mov.b32 %r07, 5", UNKNOWN),
        ("mov.b32 %r01, 5", Value(5)),
    ],
)
def test_arithmetic_is_that_of_ptx(instruction: str, value: Value) -> None:
    assert _value(WarpView(_kernel(f"{instruction};"), 0), "%r1") == value


def test_a_cta_has_threads() -> None:
    with pytest.raises(ValueError, match="without threads"):
        _kernel("ret;", threads=0)


def test_an_unknown_count_is_none_and_not_a_guess() -> None:
    body = """
    ld.param.b32 %r1, [k_param_0];
    add.s32 %r2, %r1, 128;
    mbarrier.init.shared.b64 [dynamic], %r1;
    mbarrier.init.shared.b64 [dynamic+8], 3;
    mbarrier.arrive.expect_tx.shared.b64 _, [dynamic+8], %r2;
    bar.sync 1, %r2;
    bar.sync %r1, 64;
    ret;
    """
    kernel = _kernel(body, threads=32)
    view = WarpView(kernel, 0)
    scene = inspection._Scene(kernel, [view], [reachable(view)])
    assert inspection._mbarriers(scene) == (
        MBarriers(0, 1, None, ()),
        MBarriers(8, 1, 3, (None,)),
    )
    assert inspection._named_barriers(scene) == (
        NamedBarrier(1, None, (0,), ()),
        NamedBarrier(None, 64, (0,), ()),
    )


def test_only_dynamic_shared_memory_starts_at_zero(actual: Actual) -> None:
    view = WarpView(_kernel("ret;"), 0)
    assert _value(view, "dynamic") == Value(0)
    assert not _value(view, "static_smem").exact
    assert not _value(view, "other_shmem").exact
    unknown = dataclasses.replace(actual, mbarriers=(MBarriers(24576, 1, 1, (None,)),))
    assert unknown.payload_bytes is None


def test_both_sides_of_an_unknown_branch_are_reachable() -> None:
    body = """
    ld.param.b32 %r1, [k_param_0];
    setp.ne.b32 %p1, %r1, 0;
    @%p1 bra $L__BB0_2;
    bar.sync 1, 32;
    ret;
$L__BB0_2:
    bar.sync 2, 32;
    ret;
    """
    kernel = _kernel(body)
    assert reachable(WarpView(kernel, 0)) == set(range(len(kernel.instructions)))


def test_an_unfenced_group_and_a_skipped_wait_are_seen() -> None:
    kind = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"
    mma = kind + " {%r1, %r2}, %rd1, %rd2, p, 1, 1, 0, 0;"
    commit, fence = "wgmma.commit_group.sync.aligned;", "wgmma.fence.sync.aligned;"
    rs = mma.replace("%rd1,", "{%r3, %r4},")

    def order(*lines: str) -> inspection._WgmmaOrder:
        return inspection._WgmmaOrder.of(_kernel("\n".join(lines)))

    def wait(pending: int) -> str:
        return f"wgmma.wait_group.sync.aligned {pending};"

    good = order(fence, mma, mma, commit, fence, rs, commit, wait(1), wait(0))
    assert good.phases == ("m64n64k16/shared*2 | m64n64k16/registers*1 | wait 1 | wait 0",)
    assert (good.unfenced, good.element_type) == (0, "f16")
    assert order(fence, mma, commit, mma, commit, wait(0)).unfenced == 1
    scaled = order(fence, mma, commit, "mul.f32 %f1, %f1, %f2;", fence, rs, commit, wait(0))
    assert scaled.multiplies == 1
    after = order(fence, mma, commit, wait(0), "mul.f32 %f1, %f1, %f2;", fence, rs, commit, wait(0))
    assert after.multiplies == 0

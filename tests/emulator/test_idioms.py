"""Idioms of CUDA kernels that are right, each beside one that only looks like it."""

from typing import Any

import numpy as np
import pytest

from hopwell.emulator import emulate, launch_of
from hopwell.errors import CaptureError, InputError

_HEAD = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 data, .param .u64 flag, .param .u64 out)
{
    .reg .pred %p<9>;
    .reg .b32 %r<20>;
    .reg .b64 %d<20>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [flag];
    ld.param.u64 %d3, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %d4, %r1, 4;
    add.u64 %d5, %d1, %d4;
    add.u64 %d6, %d3, %d4;
    setp.eq.u32 %p1, %r1, 0;
    setp.eq.u32 %p2, %r2, 0;
"""


def run(
    body: str, *, grid: int = 1, block: int = 64, seeds: int = 6, limit: int = 200_000
) -> tuple[Any, list[Any]]:
    """The report, and the arrays data, flag and out."""
    arrays = [np.zeros(block, np.int32), np.zeros(1, np.int32), np.zeros(block, np.int32)]
    launch = launch_of(_HEAD + body + "\n}\n", "k", grid, block, arrays)
    return emulate(launch, seeds=seeds, limit=limit), arrays


def handed_over(first: str, second: str) -> str:
    """CTA 0 writes data and sets a flag with its thread 0; CTA 1 waits for it and reads.

    ``first`` stands between the stores and the flag, ``second`` between the flag and the loads.
    """
    return f"""
    @!%p2 bra READ;
    st.global.u32 [%d5], 7;
    {first}
    @%p1 st.volatile.global.u32 [%d2], 1;
    ret;
READ:
    @!%p1 bra SEEN;
SPIN:
    ld.volatile.global.u32 %r4, [%d2];
    setp.eq.u32 %p3, %r4, 0;
    @%p3 bra SPIN;
SEEN:
    {second}
    ld.global.u32 %r5, [%d5];
    st.global.u32 [%d6], %r5;
    ret;"""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("membar.gl; bar.sync 0;", "membar.gl; bar.sync 0;"),
        ("membar.gl; bar.sync 0;", "bar.sync 0; membar.gl;"),
        ("fence.sc.sys; bar.sync 0;", "fence.sc.gpu; bar.sync 0;"),
        ("bar.sync 0; membar.gl;", "membar.gl; bar.sync 0;"),
    ],
)
def test_fences_of_every_thread_around_a_flag_of_one(first: Any, second: Any) -> None:
    report, (_, _, out) = run(handed_over(first, second), grid=2)
    assert report.clean, report.rules
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("membar.gl;", "membar.gl; bar.sync 0;"),  # no barrier: only thread 0's fence counts
        ("membar.gl; bar.sync 0;", "bar.sync 0;"),  # the reader has no fence
        ("bar.sync 0;", "membar.gl; bar.sync 0;"),  # the writer has none
        ("membar.cta; bar.sync 0;", "membar.cta; bar.sync 0;"),  # too narrow
        ("fence.acq_rel.gpu; bar.sync 0;", "bar.sync 0; fence.acq_rel.gpu;"),  # not in SC order
    ],
)
def test_fences_that_do_not_reach(first: Any, second: Any) -> None:
    report, _ = run(handed_over(first, second), grid=2)
    assert "global-race" in report.rules


def test_fences_without_communication_order_nothing() -> None:
    body = """
    @%p2 st.global.u32 [%d5], 7;
    membar.gl;
    @!%p2 ld.global.u32 %r5, [%d5];
    ret;"""
    assert "global-race" in run(body, grid=2)[0].rules


def test_lanes_that_left_are_not_waited_for() -> None:
    """if (t >= 40) return; __syncthreads(): threads that exited count as arrived."""
    body = """
    setp.ge.u32 %p3, %r1, 40;
    @%p3 bra END;
    mov.u32 %r6, tile;
    shl.b32 %r7, %r1, 2;
    add.u32 %r8, %r6, %r7;
    st.shared.u32 [%r8], %r1;
    bar.sync 0;
    sub.u32 %r9, 39, %r1;
    shl.b32 %r9, %r9, 2;
    add.u32 %r9, %r6, %r9;
    ld.shared.u32 %r10, [%r9];
    st.global.u32 [%d6], %r10;
END:
    ret;"""
    report, (_, _, out) = run(body)
    assert report.clean, report.rules
    assert out[:40].tolist() == list(range(39, -1, -1))


def test_lanes_that_live_and_stay_away_are_named() -> None:
    body = """
    and.b32 %r3, %r1, 1;
    setp.eq.u32 %p3, %r3, 1;
    @%p3 bra ODD;
SPIN:
    ld.volatile.global.u32 %r4, [%d2];
    setp.eq.u32 %p4, %r4, 0;
    @%p4 bra SPIN;
    ret;
ODD:
    bar.sync 0;
    ret;"""
    report, _ = run(body, seeds=2)
    assert "named-barrier-divergence" in report.rules
    assert report.runs[0].deadlock


def test_each_lane_takes_a_spin_lock() -> None:
    """while (atomicCAS(lock, 0, 1)); critical section; atomicExch(lock, 0), by all lanes."""
    body = """
SPIN:
    atom.global.cas.b32 %r4, [%d2], 0, 1;
    setp.ne.s32 %p3, %r4, 0;
    @%p3 bra SPIN;
    membar.gl;
    ld.global.u32 %r5, [%d3];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d3], %r5;
    membar.gl;
    atom.global.exch.b32 %r6, [%d2], 0;
    ret;"""
    report, (_, _, out) = run(body, block=8, seeds=2)
    assert report.clean, report.rules
    assert out[0] == 8


def test_what_raises_leaves_the_memory_alone() -> None:
    body = """
    st.global.u32 [%d5], 7;
    call.uni f;
    ret;"""
    arrays = [np.zeros(32, np.int32), np.zeros(1, np.int32), np.zeros(32, np.int32)]
    text = (_HEAD + body + "\n}\n").replace(".visible .entry", ".func f()\n{ ret; }\n.entry")
    with pytest.raises(NotImplementedError):
        emulate(launch_of(text, "k", 1, 32, arrays))
    assert not arrays[0].any()


_SCALARS = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .f32 x, .param .u32 n)
{
    .reg .b32 %r<3>;
    .reg .f32 %f<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    ld.param.f32 %f1, [x];
    ld.param.u32 %r1, [n];
    st.global.f32 [%d1], %f1;
    st.global.u32 [%d1+4], %r1;
    ret;
}
"""


@pytest.mark.parametrize("x", [0.5, np.float64(0.5), np.float16(0.5), np.float32(0.5)])
@pytest.mark.parametrize("n", [3, 3.0, np.int64(3), np.uint8(3)])
def test_numbers_are_stored_in_the_type_of_the_parameter(x: Any, n: Any) -> None:
    out = np.zeros(2, np.float32)
    emulate(launch_of(_SCALARS, "k", 1, 1, [out, x, n]))
    assert out[0] == 0.5
    assert out.view(np.uint32)[1] == 3


@pytest.mark.parametrize("n", [3.5, float("nan"), np.zeros(1), np.int64(1 << 40)])
def test_what_is_no_such_number_is_refused(n: Any) -> None:
    with pytest.raises(CaptureError, match="n"):
        launch_of(_SCALARS, "k", 1, 1, [np.zeros(2, np.float32), 0.5, n])


@pytest.mark.parametrize(
    "array",
    [np.array([1, None]), np.zeros(2, ">f4"), np.frombuffer(bytes(8), np.float32)],
    ids=["objects", "byte order", "read-only"],
)
def test_memory_that_no_kernel_may_have_is_refused(array: Any) -> None:
    with pytest.raises(CaptureError, match="copy"):
        launch_of(_SCALARS, "k", 1, 1, [array, 0.5, 3])


@pytest.mark.parametrize("options", [{"seeds": 0}, {"seeds": []}, {"limit": 0}, {"resident": 0}])
def test_what_lets_nothing_run_is_refused(options: Any) -> None:
    with pytest.raises(InputError):
        emulate(launch_of(_SCALARS, "k", 1, 1, [np.zeros(2, np.float32), 0.5, 3]), **options)


_WINDOW = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 part, .param .u64 whole, .param .u32 at)
{
    .reg .b32 %r<5>;
    .reg .b64 %d<9>;
    ld.param.u64 %d1, [part];
    ld.param.u64 %d2, [whole];
    ld.param.u32 %r1, [at];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d3, %r2, 4;
    add.u64 %d4, %d2, %d3;
    st.global.u32 [%d4], %r2;
    add.u32 %r3, %r2, %r1;
    mul.wide.s32 %d5, %r3, 4;
    add.u64 %d6, %d1, %d5;
    ld.global.u32 %r4, [%d6];
    st.global.u32 [%d4], %r4;
    ret;
}
"""


@pytest.mark.parametrize("parts", [slice(8, 12), slice(0, 8), slice(24, 40)])
def test_arrays_may_lie_in_one_another(parts: Any) -> None:
    memory = np.zeros(40, np.int32)
    whole, part = memory[:32], memory[parts]
    report = emulate(launch_of(_WINDOW, "k", 1, 32, [part, whole, -parts.start & 0xFFFFFFFF]))
    assert report.clean, report.rules
    assert (whole == np.arange(32)).all()


def test_a_race_through_two_arrays_of_the_same_memory_is_seen() -> None:
    memory = np.zeros(72, np.int32)
    report = emulate(launch_of(_WINDOW, "k", 1, 64, [memory[8:], memory[:64], 0]))
    assert {"global-race", "warp-race"} == set(report.rules)

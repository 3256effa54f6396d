"""The machine itself: divergence, reconvergence, scheduling, special registers, memory spaces."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.kernel import run, text

from hopwell import ptx
from hopwell.emulator.program import ProgramError, build
from hopwell.emulator.registry import UnsupportedInstruction
from hopwell.errors import CaptureError, PtxNameError

STORE = "st.global.u32 [%mine], %r1;\nret;\n"


def test_lanes_that_part_meet_again() -> None:
    """After an if and else of different lengths a shuffle sees all lanes."""
    out, report = run(
        """
        and.b32 %r2, %x, 1;
        setp.eq.u32 %p1, %r2, 0;
        mov.u32 %r1, 100;
        @%p1 bra even;
        add.u32 %r1, %r1, %x;
        add.u32 %r1, %r1, 1000;
        bra meet;
        even: mov.u32 %r1, %x;
        meet:
        shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1;
        """
        + STORE
    )
    lanes = np.arange(32)
    before = np.where(lanes % 2, 1100 + lanes, lanes)
    np.testing.assert_array_equal(out, before[lanes ^ 1])
    assert report.clean


def test_each_lane_leaves_a_loop_in_its_own_turn() -> None:
    """Lane i turns i times; the sum of what they count is seen by all after the loop."""
    out, report = run(
        """
        mov.u32 %r1, 0;
        again:
        setp.ge.u32 %p1, %r1, %x;
        @%p1 bra done;
        add.u32 %r1, %r1, 1;
        bra again;
        done:
        redux.sync.add.u32 %r2, %r1, -1;
        add.u32 %r1, %r1, %r2;
        """
        + STORE
    )
    np.testing.assert_array_equal(out, np.arange(32) + 496)
    assert report.clean


def test_divergence_inside_divergence() -> None:
    out, report = run(
        """
        mov.u32 %r1, 0;
        setp.lt.u32 %p1, %x, 16;
        @%p1 bra low;
        setp.lt.u32 %p2, %x, 24;
        @%p2 bra third;
        mov.u32 %r1, 4;
        bra high;
        third: mov.u32 %r1, 3;
        high: shfl.sync.idx.b32 %r3, %r1, 31, 31, 0xffff0000;
        mad.lo.u32 %r1, %r3, 10, %r1;
        bra end;
        low:
        setp.lt.u32 %p2, %x, 8;
        @%p2 bra first;
        mov.u32 %r1, 2;
        bra end;
        first: mov.u32 %r1, 1;
        end:
        """
        + STORE
    )
    expected = np.repeat([1, 2, 43, 44], 8)
    np.testing.assert_array_equal(out, expected)
    assert report.clean


def test_a_diverged_spin_lets_the_others_go_on() -> None:
    """Lane 0 waits for lane 1, which is on the other side of the branch (ITS, PTX ISA 3.1)."""
    out, report = run(
        """
        mov.u32 %r1, 0;
        setp.ne.u32 %p1, %x, 0;
        @%p1 bra other;
        spin: ld.relaxed.gpu.global.u32 %r1, [%more];
        setp.eq.u32 %p2, %r1, 0;
        @%p2 bra spin;
        bra end;
        other: setp.ne.u32 %p3, %x, 1;
        @%p3 bra end;
        st.relaxed.gpu.global.u32 [%more], 7;
        mov.u32 %r1, 1;
        end:
        """
        + STORE,
        seeds=6,
    )
    np.testing.assert_array_equal(out[:3], [7, 1, 0])
    assert report.clean


def test_exit_of_some_lanes() -> None:
    """Lanes that exit are waited for nowhere."""
    out, report = run(
        """
        setp.ge.u32 %p1, %x, 20;
        @%p1 exit;
        bar.warp.sync -1;
        bar.sync 0;
        redux.sync.add.u32 %r1, 1, -1;
        """
        + STORE,
        block=64,
    )
    np.testing.assert_array_equal(out, [20] * 20 + [0] * 44)
    assert report.clean


def test_bar_warp_sync_at_different_places() -> None:
    out, report = run(
        """
        setp.ge.u32 %p1, %x, 16;
        @%p1 bra upper;
        st.shared.u32 [cell], %x;
        bar.warp.sync -1;
        mov.u32 %r1, 5;
        bra end;
        upper:
        bar.warp.sync -1;
        mov.u32 %r1, 6;
        end:
        """
        + STORE,
        module=".shared .align 4 .b32 cell;",
        seeds=5,
    )
    np.testing.assert_array_equal(out, [5] * 16 + [6] * 16)
    assert report.rules == ["warp-race"]  # sixteen lanes store different values to one word


def test_clusters_and_waves() -> None:
    """More clusters than fit at once; each CTA reads its peer's word."""
    out, report = run(
        """
        mov.u32 %r2, cell;
        mov.u32 %r3, %cluster_ctarank;
        xor.b32 %r4, %r3, 1;
        st.shared.u32 [%r2], %y;
        barrier.cluster.arrive;
        barrier.cluster.wait;
        mapa.shared::cluster.u32 %r5, %r2, %r4;
        ld.shared::cluster.u32 %r1, [%r5];
        barrier.cluster.arrive;
        barrier.cluster.wait;
        """
        + STORE,
        module=".shared .align 4 .b32 cell;",
        grid=8,
        block=1,
        cluster=2,
        resident=4,
        directives=".reqntid 1, 1, 1",
    )
    np.testing.assert_array_equal(out, np.arange(8) ^ 1)
    assert report.clean


def test_a_lock_between_ctas() -> None:
    """A spin lock around an unprotected counter: right, and no race, under every schedule."""
    out, report = run(
        """
        take: atom.acquire.gpu.global.cas.b32 %r2, [%more], 0, 1;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 bra take;
        ld.global.u32 %r3, [%more+4];
        add.u32 %r3, %r3, 1;
        st.global.u32 [%more+4], %r3;
        atom.release.gpu.global.exch.b32 %r4, [%more], 0;
        mov.u32 %r1, %r3;
        """
        + STORE,
        grid=5,
        block=1,
        seeds=6,
    )
    assert sorted(out.tolist()) == [1, 2, 3, 4, 5]
    assert report.clean


def test_the_same_lock_without_acquire_is_a_race() -> None:
    _, report = run(
        """
        take: atom.relaxed.gpu.global.cas.b32 %r2, [%more], 0, 1;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 bra take;
        ld.global.u32 %r3, [%more+4];
        add.u32 %r1, %r3, 1;
        st.global.u32 [%more+4], %r1;
        atom.release.gpu.global.exch.b32 %r4, [%more], 0;
        """
        + STORE,
        grid=3,
        block=1,
    )
    assert set(report.rules) == {"global-race"}


@pytest.mark.parametrize("block", [(32, 1, 1), (5, 3, 4), (8, 8, 1)])
def test_special_registers(block: tuple[int, int, int]) -> None:
    threads = int(np.prod(block))
    out, _ = run(
        """
        mov.u32 %r2, %tid.y;
        mov.u32 %r3, %tid.z;
        mov.u32 %r4, %ntid.x;
        mov.u32 %r5, %ntid.y;
        mad.lo.u32 %r6, %r3, %r5, %r2;
        mad.lo.u32 %r6, %r6, %r4, %x;
        mad.wide.u32 %d1, %r6, 4, %out;
        mov.u32 %r7, %laneid;
        mov.u32 %r8, %warpid;
        mad.lo.u32 %r1, %r8, 32, %r7;
        st.global.u32 [%d1], %r1;
        ret;
        """,
        block=block,
        words=threads,
    )
    np.testing.assert_array_equal(out, np.arange(threads))


def test_constant_global_local_and_generic_memory() -> None:
    out, report = run(
        """
        .local .align 4 .b8 scratch[16];
        and.b32 %r2, %x, 3;
        mov.u64 %d1, table;
        mad.wide.u32 %d1, %r2, 4, %d1;
        ld.const.u32 %r1, [%d1];
        st.local.u32 [scratch+4], %r1;
        ld.local.u32 %r3, [scratch+4];
        mov.u64 %d2, pointer;
        ld.global.u64 %d3, [%d2];
        ld.u32 %r4, [%d3];
        add.u32 %r1, %r3, %r4;
        """
        + STORE,
        module=".const .align 4 .b32 table[4] = {10, 20, 30, 40};\n"
        ".global .align 4 .b32 value = 5;\n"
        ".global .align 8 .b64 pointer = generic(value);\n",
    )
    np.testing.assert_array_equal(out, np.tile([15, 25, 35, 45], 8))
    assert report.clean


def test_one_seed_is_one_schedule() -> None:
    """The same seed gives the same number of instructions, in spins too; others may differ."""
    body = (
        """
        spin: ld.relaxed.gpu.global.u32 %r2, [%more];
        setp.ge.u32 %p1, %r2, %y;
        @!%p1 bra spin;
        atom.relaxed.gpu.global.add.u32 %r1, [%more], 1;
        """
        + STORE
    )
    runs = [run(body, grid=6, block=1, seeds=[seed])[1].runs[0] for seed in (5, 5, 6)]
    assert runs[0].instructions == runs[1].instructions
    assert runs[0].results == runs[1].results == runs[2].results


def test_endless_work_is_cut_off() -> None:
    _, report = run("spin: add.u32 %r2, %r2, 1;\nbra spin;\n", limit=5_000, seeds=1)
    assert "unbounded-loop" in report.rules
    assert not report.clean


def test_a_poll_that_nobody_answers_is_a_deadlock() -> None:
    _, report = run(
        """
        spin: ld.relaxed.gpu.global.u32 %r2, [%more];
        setp.eq.u32 %p1, %r2, 0;
        @%p1 bra spin;
        ret;
        """,
        limit=50_000,
        seeds=1,
    )
    assert report.runs[0].deadlock
    assert not report.clean


def test_an_instruction_nobody_registered_says_where_it_stands() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"k\.ptx:\d+.*tex\.1d"):
        build(ptx.parse(text("tex.1d.v4.f32.s32 {%r1,%r2,%r3,%r4}, [%d1, {%r5}];"), "k.ptx"))


def test_shared_memory_ends_with_its_last_byte() -> None:
    _, report = run(".shared .b32 s[5]; ld.volatile.shared.u32 %r1, [s+20]; ret;", seeds=1)
    assert "out-of-bounds-shared" in report.rules


def test_a_call_is_refused_where_it_is_reached() -> None:
    """As nvcc writes one, with its arguments stored before it; a cold one harms nobody."""
    module = ".func (.param .b32 r) f(.param .b32 a) { ret; }"
    body = """{
        .param .b32 param0, retval0;
        st.param.b32 [param0], %r1;
        call.uni (retval0), f, (param0);
        ld.param.b32 %r2, [retval0];
    }"""
    with pytest.raises(UnsupportedInstruction, match=r"<ptx>:\d+.*call\.uni"):
        run("mov.u32 %r1, 1;" + body + "ret;", module=module)
    cold = "mov.u32 %r1, 1; setp.eq.u32 %p1, %x, 99; @!%p1 bra warm;" + body + "warm:" + STORE
    out, report = run(cold, module=module)
    np.testing.assert_array_equal(out, [1] * 32)
    assert report.clean


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (dict(block=1025), "1024 threads"),
        (dict(grid=(1, 70000)), "below"),
        (dict(grid=17, cluster=17), "16 CTAs"),
        (dict(shared_bytes=300_000), "232448"),
        (dict(directives=".maxntid 64", block=128), "maxntid"),
        (dict(directives=".reqntid 64, 1, 1"), "reqntid"),
        (dict(directives=".reqnctapercluster 2, 1, 1", grid=2), "reqnctapercluster"),
    ],
)
def test_launches_that_hardware_refuses(options: dict[str, object], what: str) -> None:
    with pytest.raises(CaptureError, match=what):
        run("ret;", **options)  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_grid() -> None:
    """CTAs that are gone are forgotten: 300 of 100 KB each, four at a time."""
    tracemalloc.start()
    run("st.shared.u32 [cell], %y; ret;", module=".shared .align 4 .b8 cell[100000];",
        grid=300, block=1, resident=4, seeds=1)  # fmt: skip
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6


@pytest.mark.parametrize(
    ("body", "what"), [("mov.u32 %nowhere, 1;", "nowhere"), ("bra nowhere;", "nowhere")]
)
def test_unknown_names(body: str, what: str) -> None:
    with pytest.raises(PtxNameError, match=what):
        build(ptx.parse(text(body), "k.ptx"))


def test_a_label_declared_twice_is_refused() -> None:
    with pytest.raises(PtxNameError, match="second one of L"):
        build(ptx.parse(text("L: bra L;\nL: ret;"), "k.ptx"))


def test_a_register_of_several_elements_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"v, a \.v4"):
        build(ptx.parse(text(".reg .v4 .b32 v; mov.b32 v.x, 1;"), "k.ptx"))


def test_a_block_has_its_own_variables_and_spellings_of_a_register_are_one() -> None:
    out, report = run(
        """
        .local .b32 v;
        mov.u32 %r2, 1;
        st.local.u32 [v], %r2;
        {
            .local .b32 v, p_more;
            mov.u32 %r02, 20;
            st.local.u32 [v], %r2;
            st.local.u32 [p_more], %r2;
            ld.local.u32 %r3, [p_more];
        }
        ld.local.u32 %r1, [v];
        add.u32 %r1, %r1, %r003;
        """
        + STORE
    )
    assert report.clean
    assert (out == 21).all()


def test_an_entry_has_to_be_named_where_there_are_two() -> None:
    module = ptx.parse(
        text("ret;") + text("ret;").partition(".address_size 64")[2].replace(" k(", " l(")
    )
    with pytest.raises(ProgramError, match="k, l"):
        build(module)
    assert build(module, "l").name == "l"


@settings(max_examples=25, deadline=None)
@given(
    shape=st.recursive(
        st.integers(0, 9),
        lambda inner: st.tuples(st.integers(0, 4), inner, inner),
        max_leaves=8,
    ),
    seed=st.integers(0, 1000),
)
def test_any_nest_of_branches_reconverges(shape: object, seed: int) -> None:
    """Random trees of branches on bits of the lane: every lane gets its own path's sum, and all
    32 take part in the vote after it."""
    lines: list[str] = []
    count = 0

    def emit(node: object) -> None:
        nonlocal count
        if isinstance(node, int):
            lines.append(f"add.u32 %r1, %r1, {node};")
            return
        assert isinstance(node, tuple)
        bit, yes, no = node
        count += 1
        here = count
        lines.append(f"and.b32 %r9, %x, {1 << bit}; setp.ne.u32 %p1, %r9, 0;")
        lines.append(f"@%p1 bra Y{here};")
        emit(no)
        lines.append(f"bra E{here};\nY{here}:")
        emit(yes)
        lines.append(f"E{here}: add.u32 %r1, %r1, 0;")

    def value(node: object, lane: int) -> int:
        if isinstance(node, int):
            return node
        assert isinstance(node, tuple)
        return value(node[1] if lane >> node[0] & 1 else node[2], lane)

    emit(shape)
    body = "mov.u32 %r1, 0;\n" + "\n".join(lines)
    body += "\nactivemask.b32 %r2; popc.b32 %r2, %r2; mad.lo.u32 %r1, %r2, 100, %r1;\n" + STORE
    out, report = run(body, seeds=[seed])
    np.testing.assert_array_equal(out, [3200 + value(shape, lane) for lane in range(32)])
    assert report.clean


def test_a_branch_to_the_next_instruction_parts_nobody() -> None:
    out, report = run("setp.lt.u32 %p1, %x, 7;\n@%p1 bra next;\nnext: mov.u32 %r1, %x;\n" + STORE)
    np.testing.assert_array_equal(out, np.arange(32))
    assert report.clean


def test_a_table_of_branches() -> None:
    """brx.idx parts the lanes by their index; the vote after it sees all of them again."""
    body = """
        and.b32 %r2, %x, 3;
        $list: .branchtargets zero, one, two, three;
        brx.idx %r2, $list;
        zero: mov.u32 %r1, 10; bra meet;
        one: mov.u32 %r1, 20; bra meet;
        three: mov.u32 %r1, 40;
        two: add.u32 %r1, %r1, 1;
        meet: activemask.b32 %r4; popc.b32 %r4, %r4; mad.lo.u32 %r1, %r4, 100, %r1;
        """
    out, report = run("mov.u32 %r1, 30;\n" + body + STORE, seeds=5)
    np.testing.assert_array_equal(out, np.tile([3210, 3220, 3231, 3241], 8))
    assert report.clean
    _, report = run("mov.u32 %r1, 30;\n" + body.replace("%x, 3", "%x, 7") + STORE, seeds=2)
    assert report.rules == ["trap"]

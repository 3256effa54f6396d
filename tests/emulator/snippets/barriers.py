"""mbarriers, named barriers, clusters: what they count, answer and let through."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.memory import NUMBER, OPERATIONS
from tests.emulator.snippets.snippet import Snippet, poisoned, program

BARRIER = ".shared .align 8 .b64 bar;\n"
CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"


def waiting(label: str, barrier: str, parity: int | str) -> str:
    """A loop that waits until the phase of a parity is complete."""
    return (
        f"$wait_{label}: mbarrier.try_wait.parity.shared::cta.b64 %p60, [{barrier}], {parity};\n"
        f"@!%p60 bra $wait_{label};\n"
    )


#: What mbarriers go through: (expected arrivals, operations). State tokens go to %d20.
SEQUENCES = {
    "arrivals": (
        2,
        [
            "mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.arrive.shared::cta.b64 %d20, [bar], 2;",
            "mbarrier.arrive.release.cta.shared::cta.b64 %d20, [bar], 1;",
            "mbarrier.arrive.shared.b64 %d20, [bar];",
        ],
    ),
    "counts": (
        5,
        [
            "mbarrier.arrive.noComplete.shared.b64 %d20, [bar], 3;",
            "mbarrier.arrive.noComplete.release.cta.shared.b64 %d20, [bar], 1;",
            "mbarrier.arrive.shared.b64 %d20, [bar], 1;",
            "mbarrier.arrive.shared.b64 %d20, [bar], 5;",
            "mbarrier.arrive.shared.b64 %d20, [bar], 4;",
        ],
    ),
    "bytes": (
        1,
        [
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 48;"
            " mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 32;",
            "mbarrier.arrive.expect_tx.shared.b64 %d20, [bar], 64;",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 64;",
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;"
            " mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 1048575;"
            " mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %d20, [bar], 0;",
        ],
    ),
    "bytes before arrivals": (
        2,
        [
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 32;"
            " mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 32;",
            "mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.arrive.expect_tx.shared.b64 %d20, [bar], 32;"
            " mbarrier.arrive.expect_tx.shared.b64 %d20, [bar], 16;",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 48;",
        ],
    ),
    "drops": (
        4,
        [
            "mbarrier.arrive_drop.shared.b64 %d20, [bar];",
            "mbarrier.arrive.shared.b64 %d20, [bar], 3;",
            "mbarrier.arrive_drop.expect_tx.shared.b64 %d20, [bar], 8;",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 8;",
            "mbarrier.arrive.shared.b64 %d20, [bar], 2;",
            "mbarrier.arrive_drop.noComplete.shared.b64 %d20, [bar], 1;",
            "mbarrier.arrive.shared.b64 %d20, [bar];",
            "mbarrier.arrive.shared.b64 %d20, [bar];",
        ],
    ),
}


def sequences() -> Iterator[Snippet]:
    """One thread; after every operation, what each kind of wait and pending_count answer."""
    probe = """mbarrier.test_wait.parity.shared.b64 %p1, [bar], 0;
    mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [bar], 1;
    mbarrier.test_wait.shared.b64 %p3, [bar], %d20;
    mbarrier.try_wait.parity.shared.b64 %p4, [bar], 0, 10;
    mbarrier.try_wait.parity.shared.b64 %p5, [bar], 1, 10;
    mbarrier.try_wait.shared.b64 %p6, [bar], %d20, 10;
    mbarrier.pending_count.b64 %r21, %d20;
    mov.b32 %r20, 0;
    """
    probe += "\n".join(f"@%p{i + 1} or.b32 %r20, %r20, {1 << i};" for i in range(6))
    for name, (expected, operations) in SEQUENCES.items():
        body = "setp.ne.u32 %p10, %x, 0;\n@%p10 ret;\n"
        body += f"mbarrier.init.shared.b64 [bar], {expected};\n"
        for row, operation in enumerate(operations):
            body += f"{operation}\n{probe}\nst.global.b32 [%p_out+{8 * row}], %r20;\n"
            body += f"st.global.b32 [%p_out+{8 * row + 4}], %r21;\n"
        body += "mbarrier.inval.shared.b64 [bar];"
        yield program(
            f"mbarrier/{name}",
            body,
            outputs={"out": poisoned(np.uint32, len(operations), 2)},
            preamble=BARRIER,
            lines=tuple(operations),
        )


def handover() -> Iterator[Snippet]:
    """Four producer and four consumer warps: 6 payloads through two mbarriers and one stage."""
    yield program(
        "mbarrier/handover",
        """mov.u32 %r3, full; mov.u32 %r4, empty; mov.u32 %r5, cells; setp.ne.u32 %p1, %x, 0;
        @!%p1 mbarrier.init.shared.b64 [%r3], 128;
        @!%p1 mbarrier.init.shared.b64 [%r4], 128;
        bar.sync 0;
        and.b32 %r6, %x, 127; mad.lo.u32 %r7, %r6, 4, %r5; mov.u32 %r8, 0;
        setp.ge.u32 %p2, %x, 128;
        @%p2 bra $consume;
        $produce: and.b32 %r9, %r8, 1; xor.b32 %r9, %r9, 1;
        """
        + waiting("empty", "%r4", "%r9")
        + """mad.lo.u32 %r10, %r8, 1000, %x; st.shared.b32 [%r7], %r10;
        mbarrier.arrive.shared.b64 _, [%r3];
        add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 6;
        @%p3 bra $produce;
        ret;
        $consume: mov.u32 %r20, 0; xor.b32 %r11, %r6, 77; mad.lo.u32 %r12, %r11, 4, %r5;
        $again: and.b32 %r9, %r8, 1;
        """
        + waiting("full", "%r3", "%r9")
        + """ld.shared.b32 %r10, [%r12]; mad.lo.u32 %r20, %r20, 3, %r10;
        mbarrier.arrive.shared.b64 %d20, [%r4];
        add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 6;
        @%p3 bra $again;
        mad.wide.u32 %d9, %r6, 4, %p_out; st.global.b32 [%d9], %r20;
        """,
        outputs={"out": poisoned(np.uint32, 128)},
        preamble=".shared .align 8 .b64 full;\n.shared .align 8 .b64 empty;\n"
        ".shared .align 4 .b32 cells[128];\n",
        block=(256, 1, 1),
    )


def named() -> Iterator[Snippet]:
    yield program(
        "barrier/reductions",
        """mul.wide.u32 %d1, %x, 4; add.u64 %d0, %p_data, %d1; ld.global.b32 %r3, [%d0];
        add.u64 %d9, %p_out, %d1; and.b32 %r4, %r3, 3; setp.eq.u32 %p1, %r4, 0;
        setp.ge.u32 %p2, %x, 0; setp.eq.u32 %p3, %x, 70;
        bar.red.popc.u32 %r20, 1, %p1; bar.red.and.pred %p4, 2, %p2; bar.red.or.pred %p5, 3, %p3;
        bar.red.and.pred %p6, 1, !%p3; barrier.cta.red.popc.aligned.u32 %r21, 4, 128, !%p1;
        selp.b32 %r22, 1, 0, %p4; selp.b32 %r23, 2, 0, %p5; selp.b32 %r24, 4, 0, %p6;
        or.b32 %r22, %r22, %r23; or.b32 %r22, %r22, %r24;
        st.global.b32 [%d9], %r20; st.global.b32 [%d9+512], %r21; st.global.b32 [%d9+1024], %r22;
        """,
        inputs={"data": partial(inputs.random_bits, 41, 128, 32)},
        outputs={"out": poisoned(np.uint32, 3, 128)},
        block=(128, 1, 1),
    )
    yield program(
        "barrier/arrive and sync",
        """mov.u32 %r3, cells; and.b32 %r4, %x, 63; mad.lo.u32 %r5, %r4, 4, %r3; mov.u32 %r6, 0;
        setp.ge.u32 %p1, %x, 64; mov.u32 %r20, 0;
        @%p1 bra $consumer;
        $producer: bar.sync 2, 128;
        mad.lo.u32 %r7, %r6, 500, %x; st.shared.b32 [%r5], %r7; bar.arrive 1, 128;
        add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 5;
        @%p2 bra $producer;
        ret;
        $consumer: barrier.cta.arrive.aligned 2, 128;
        $more: barrier.cta.sync.aligned 1, 128;
        xor.b32 %r8, %r4, 33; mad.lo.u32 %r9, %r8, 4, %r3; ld.shared.b32 %r10, [%r9];
        mad.lo.u32 %r20, %r20, 5, %r10; add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 5;
        @%p2 barrier.cta.arrive.aligned 2, 128;
        @%p2 bra $more;
        mad.wide.u32 %d9, %r4, 4, %p_out; st.global.b32 [%d9], %r20;
        """,
        outputs={"out": poisoned(np.uint32, 64)},
        preamble=".shared .align 4 .b32 cells[64];\n",
        block=(128, 1, 1),
    )
    yield program(
        "barrier/divergent warps",
        # The unaligned form lets lanes of one warp come by different ways.
        """mov.u32 %r3, cells; mad.lo.u32 %r5, %x, 4, %r3; and.b32 %r6, %x, 1;
        setp.eq.u32 %p1, %r6, 0; mad.lo.u32 %r7, %x, 9, 4;
        @%p1 bra $even;
        st.shared.b32 [%r5], %r7; barrier.cta.sync 5; bra $on;
        $even: add.u32 %r7, %r7, 1; st.shared.b32 [%r5], %r7; barrier.cta.sync 5;
        $on: bar.warp.sync -1;
        sub.u32 %r8, 95, %x; mad.lo.u32 %r9, %r8, 4, %r3; ld.shared.b32 %r20, [%r9];
        mad.wide.u32 %d9, %x, 4, %p_out; st.global.b32 [%d9], %r20;
        """,
        outputs={"out": poisoned(np.uint32, 96)},
        preamble=".shared .align 4 .b32 cells[128];\n",
        block=(96, 1, 1),
    )


def clusters() -> Iterator[Snippet]:
    launch: dict[str, Any] = dict(block=(64, 1, 1), grid=(4, 1, 1), cluster=(2, 1, 1))
    ranks = "mov.u32 %r50, %cluster_ctarank; xor.b32 %r51, %r50, 1;\n"
    cells = ".shared .align 16 .b32 cells[64];\n"
    yield program(
        "cluster/remote access",
        NUMBER
        + ranks
        + """mov.u32 %r3, cells; mad.lo.u32 %r4, %x, 4, %r3; mad.lo.u32 %r5, %r0, 7, 1;
        st.shared.b32 [%r4], %r5;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        mapa.shared::cluster.u32 %r6, %r4, %r51; ld.shared::cluster.b32 %r10, [%r6];
        cvt.u64.u32 %d3, %r4; cvta.shared.u64 %d4, %d3; mapa.u64 %d5, %d4, %r51; ld.b32 %r11, [%d5];
        getctarank.shared::cluster.u32 %r12, %r6; getctarank.u64 %r13, %d5;
        mapa.shared::cluster.u32 %r7, cells, %r50; getctarank.shared::cluster.u32 %r14, %r7;
        isspacep.shared::cluster %p1, %d5; isspacep.shared::cta %p2, %d5;
        isspacep.shared::cta %p3, %d4;
        selp.b32 %r15, 1, 0, %p1; selp.b32 %r16, 2, 0, %p2; selp.b32 %r17, 4, 0, %p3;
        or.b32 %r15, %r15, %r16; or.b32 %r15, %r15, %r17;
        cvta.shared::cluster.u64 %d6, %d3; ld.shared::cluster.v2.b32 {%r18, %r19}, [cells];
        """
        + CLUSTER_SYNC
        + """xor.b32 %r8, %x, 21; mad.lo.u32 %r9, %r8, 4, %r3;
        mapa.shared::cluster.u32 %r9, %r9, %r51;
        st.shared::cluster.b32 [%r9], %r0;
        """
        + CLUSTER_SYNC
        + "ld.shared.b32 %r21, [%r4]; mad.wide.u32 %d9, %r0, 4, %p_out;\n"
        + "\n".join(
            f"st.global.b32 [%d9+{1024 * i}], %r{r};"
            for i, r in enumerate((10, 11, 12, 13, 14, 15, 18, 19, 21))
        ),
        outputs={"out": poisoned(np.uint32, 9, 256)},
        preamble=cells,
        **launch,
    )
    yield program(
        "cluster/remote atomics",
        NUMBER
        + ranks
        + """mov.u32 %r3, cells; mad.lo.u32 %r4, %x, 4, %r3; st.shared.b32 [%r4], %x;
        """
        + CLUSTER_SYNC
        + """and.b32 %r5, %x, 15; mad.lo.u32 %r6, %r5, 4, %r3;
        mapa.shared::cluster.u32 %r7, %r6, %r51;
        red.shared::cluster.add.u32 [%r7], %r0; atom.shared::cluster.add.u32 %r8, [%r7+64], 1;
        atom.acq_rel.cluster.shared::cluster.max.u32 %r8, [%r7+128], %r0;
        cvt.u64.u32 %d3, %r6; cvta.shared.u64 %d4, %d3; mapa.u64 %d5, %d4, %r51;
        atom.xor.b32 %r8, [%d5+192], %r0;
        """
        + CLUSTER_SYNC
        + "ld.shared.b32 %r20, [%r4]; mad.wide.u32 %d9, %r0, 4, %p_out; st.global.b32 [%d9], %r20;",
        outputs={"out": poisoned(np.uint32, 256)},
        preamble=cells,
        **launch,
    )
    setup = """mov.u32 %r3, cells; mov.u32 %r4, bar; setp.eq.u32 %p1, %x, 0;
    @%p1 mbarrier.init.shared.b64 [%r4], 64;
    @%p1 fence.mbarrier_init.release.cluster;
    """
    yield program(
        "cluster/remote arrive",
        NUMBER
        + ranks
        + setup
        + CLUSTER_SYNC
        + """mad.lo.u32 %r5, %x, 4, %r3; mapa.shared::cluster.u32 %r6, %r5, %r51;
        mapa.shared::cluster.u32 %r7, %r4, %r51; mad.lo.u32 %r8, %r0, 3, 2;
        st.shared::cluster.b32 [%r6], %r8;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
        $wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r4], 0;
        @!%p2 bra $wait;
        xor.b32 %r9, %x, 40; mad.lo.u32 %r10, %r9, 4, %r3; ld.shared.b32 %r20, [%r10];
        mad.wide.u32 %d9, %r0, 4, %p_out; st.global.b32 [%d9], %r20;
        """
        + CLUSTER_SYNC,
        outputs={"out": poisoned(np.uint32, 256)},
        preamble=cells + BARRIER,
        **launch,
    )
    yield program(
        "cluster/st.async",
        NUMBER
        + ranks
        + setup.replace("], 64;", "], 1;")
        + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 1792;
        """
        + CLUSTER_SYNC
        + """mad.lo.u32 %r5, %x, 16, %r3;
        mapa.shared::cluster.u32 %r6, %r5, %r51; mapa.shared::cluster.u32 %r7, %r4, %r51;
        mad.lo.u32 %r8, %x, 8, %r3; mapa.shared::cluster.u32 %r9, %r8, %r51;
        mad.lo.u32 %r10, %x, 4, %r3; mapa.shared::cluster.u32 %r11, %r10, %r51;
        add.u32 %r12, %r0, 1; add.u32 %r13, %r0, 2; add.u32 %r14, %r0, 3;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32
        [%r6], {%r0, %r12, %r13, %r14}, [%r7];
        cvt.u64.u32 %d3, %r0;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r9+1024], %d3, [%r7];
        st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%r11+1536], %r12, [%r7];
        $wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r4], 0;
        @!%p2 bra $wait;
        mov.u32 %r15, %ctaid.x; mad.lo.u32 %r16, %r15, 448, %x; mad.wide.u32 %d9, %r16, 4, %p_out;
        """
        + "\n".join(
            f"ld.shared.b32 %r20, [%r10+{256 * i}]; st.global.b32 [%d9+{256 * i}], %r20;"
            for i in range(7)
        )
        + "\n"
        + CLUSTER_SYNC,
        outputs={"out": poisoned(np.uint32, 4, 448)},
        preamble=".shared .align 16 .b32 cells[448];\n" + BARRIER,
        **launch,
    )
    yield program(
        "cluster/red.async",
        NUMBER
        + ranks
        + """mov.u32 %r3, cells; mov.u32 %r4, bar; setp.eq.u32 %p1, %x, 0;
        @%p1 mbarrier.init.shared.b64 [%r4], 1;
        @%p1 fence.mbarrier_init.release.cluster;
        @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 2048;
        mad.lo.u32 %r9, %x, 4, %r3; st.shared.b32 [%r9], 50; st.shared.b32 [%r9+256], 50;
        """
        + CLUSTER_SYNC
        + """and.b32 %r5, %x, 15; mad.lo.u32 %r5, %r5, 4, %r3; mad.lo.u32 %r8, %r0, 5, 17;
        mapa.shared::cluster.u32 %r6, %r5, %r51; mapa.shared::cluster.u32 %r7, %r4, %r51;
        mov.u32 %r14, 100;
        """
        + "".join(
            f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}"
            f" [%r6+{64 * i}], {'%r14' if operation in ('inc.u32', 'dec.u32') else '%r8'}, [%r7];\n"
            for i, operation in enumerate(OPERATIONS)
        )
        + """$wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r4], 0;
        @!%p2 bra $wait;
        mov.u32 %r15, %ctaid.x; mad.lo.u32 %r16, %r15, 128, %x; mad.wide.u32 %d9, %r16, 4, %p_out;
        ld.shared.b32 %r20, [%r9]; st.global.b32 [%d9], %r20;
        ld.shared.b32 %r20, [%r9+256]; st.global.b32 [%d9+256], %r20;
        """
        + CLUSTER_SYNC,
        outputs={"out": poisoned(np.uint32, 4, 128)},
        preamble=".shared .align 16 .b32 cells[128];\n" + BARRIER,
        **launch,
    )


def snippets() -> Iterator[Snippet]:
    yield from sequences()
    yield from handover()
    yield from named()
    yield from clusters()

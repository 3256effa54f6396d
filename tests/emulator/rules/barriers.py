"""Kernels that break rules about barriers and control flow, each beside a clean control."""

from __future__ import annotations

from tests.emulator.rules.memory import CELLS, OWN_CELL
from tests.emulator.rules.pair import (
    CLUSTER_SYNC,
    Pair,
    barriers,
    declared,
    wait,
)

ARRIVE = "mbarrier.arrive.shared::cta.b64 _, "

MBARRIERS = [
    Pair(
        "stale-phase",
        "a whole phase missed",
        barriers(full=1)
        + f"""@%p0 {ARRIVE}[full];
        @%p0 {ARRIVE}[full];
        bar.sync 0;
        """
        + wait("full", "[-0-]{+1+}", "full", "seen")
        + "st.global.u32 [%mine], 1;",
        lambda given: [1] * 64,
        missing="never found a phase of it complete",
        block=64,
        shared=declared("full"),
    ),
    Pair(
        "parity-operand",
        "a phase number that was not taken modulo two",
        barriers(full=32)
        + f"""mov.u32 %r1, 0;
        $turn:
        {ARRIVE}[full];
        {{+and.b32 %r2, %r1, 1;+}}[-mov.u32 %r2, %r1;-]
        """
        + wait("full", "%r2", "full", "seen")
        + """add.u32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, 4;
        @%p1 bra $turn;
        st.global.u32 [%mine], %r1;
        """,
        lambda given: [4] * 32,
        shared=declared("full"),
    ),
    Pair(
        "arrival-count",
        "",
        barriers(full=2)
        + "@%p0 mbarrier.arrive.shared::cta.b64 _, [full], [-3-]{+2+}; // seen\n"
        + wait("full", 0, "full")
        + "st.global.u32 [%mine], 1;",
        lambda given: [1] * 32,
        shared=declared("full"),
    ),
    Pair(
        "uninitialised-barrier",
        "",
        f"""@%p0 mbarrier.init.shared::cta.b64 [full], 1; // side
        @%p0 fence.mbarrier_init.release.cluster;
        {{+bar.sync 0;+}}
        setp.eq.u32 %p1, %x, 32;
        @%p1 {ARRIVE}[full]; // side
        st.global.u32 [%mine], 1;
        """,
        lambda given: [1] * 64,
        missing="mbarrier.init",
        block=64,
        shared=declared("full"),
    ),
    Pair(
        "dangling-arrival",
        "the producer's tail is left out",
        barriers(empty=32, full=32)
        + """setp.eq.u32 %p1, %rank, 1;
        mov.u32 %r3, full;
        mapa.shared::cluster.u32 %r4, %r3, 1;
        """
        + CLUSTER_SYNC
        + "@%p1 bra $consumer;\n"
        + wait("empty", 0, "first")
        + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];\n{+"
        + wait("empty", 1, "tail")
        + """+}
        ret;
        $consumer:
        mov.u32 %r1, empty;
        mapa.shared::cluster.u32 %r2, %r1, 0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
        """
        + wait("full", 0, "full")
        + """mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2]; // seen
        st.global.u32 [%mine], 1;
        """,
        lambda given: [0] * 32 + [1] * 32,
        missing="may exit before this arrival on empty",
        grid=2,
        cluster=2,
        shared=declared("empty", "full"),
    ),
    Pair(
        "deadlock",
        "",
        barriers(left=32, right=32)
        + f"""setp.ge.u32 %p1, %x, 32;
        @%p1 bra $other;
        {{+{ARRIVE}[right];+}}
        """
        + wait("left", 0, "left", "seen")
        + f"""[-{ARRIVE}[right];-]
        st.global.u32 [%mine], 1;
        ret;
        $other:
        """
        + wait("right", 0, "right", "seen")
        + f"{ARRIVE}[left];\nst.global.u32 [%mine], 2;",
        lambda given: [1] * 32 + [2] * 32,
        missing="to be signalled by CTA (0,0,0) warp",
        block=64,
        shared=declared("left", "right"),
    ),
    Pair(
        "peer-cta-gone",
        "memory",
        OWN_CELL
        + """st.shared.u32 [%r2], 5;
        setp.eq.u32 %p1, %rank, 0;
        """
        + CLUSTER_SYNC
        + """@%p1 bra $end;
        mapa.shared::cluster.u32 %r4, %r2, 0;
        ld.shared::cluster.u32 %r3, [%r4]; // seen
        st.global.u32 [%mine], %r3;
        $end:
        {+"""
        + CLUSTER_SYNC
        + "+}",
        lambda given: [0] * 32 + [5] * 32,
        shared=CELLS,
        grid=2,
        cluster=2,
    ),
]

NAMED = [
    Pair(
        "named-barrier-count",
        "",
        """setp.ge.u32 %p1, %x, 32;
        @%p1 bra $other;
        bar.sync 1, 64; // side
        st.global.u32 [%mine], 1;
        ret;
        $other:
        bar.sync 1, [-96-]{+64+}; // side
        st.global.u32 [%mine], 1;
        """,
        lambda given: [1] * 64,
        block=64,
        missing="counts",
    ),
    Pair(
        "named-barrier-divergence",
        "",
        """setp.ge.u32 %p1, %x, 32;
        @%p1 bra $other;
        bar.arrive 1, 96; // side
        [-bar.arrive 1, 96; // side-]
        bar.sync 0;
        ret;
        $other:
        bar.sync 0;
        bar.sync 1, 96; // side
        st.global.u32 [%mine], 1;
        """,
        lambda given: [0] * 32 + [1] * 64,
        block=96,
    ),
]

DIVERGED = [
    Pair(
        "named-barrier-divergence",
        "lanes of a warp on two paths",
        """setp.lt.u32 %p1, %lane, 16;
        @%p1 bra $other;
        mov.u32 %r1, 1;
        [-bar.sync 0; // seen-]
        bra $end;
        $other:
        mov.u32 %r1, 2;
        [-bar.sync 0; // seen-]
        $end:
        {+bar.sync 0;+}
        st.global.u32 [%mine], %r1;
        """,
        lambda given: ([2] * 16 + [1] * 16) * 2,
        block=64,
        missing="other lanes are elsewhere",
    ),
]

CONTROL = [
    Pair(
        "unbounded-loop",
        "",
        """mov.u32 %r1, 0;
        $turn:
        add.u32 %r1, %r1, 2; // seen
        st.global.u32 [%mine], %r1; // seen
        setp.ne.u32 %p1, %r1, [-201-]{+200+}; // seen
        @%p1 bra $turn; // seen
        """,
        lambda given: [200] * 32,
        missing="instructions",
        options={"limit": 4000},
    ),
    Pair(
        "trap",
        "a failed assertion",
        """setp.lt.u32 %p1, %x, [-31-]{+32+};
        @!%p1 trap; // seen
        st.global.u32 [%mine], 1;
        """,
        lambda given: [1] * 32,
    ),
]

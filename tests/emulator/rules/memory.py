"""Kernels that break rules about memory, each beside a clean control."""

from __future__ import annotations

import numpy as np
from tests.emulator.rules.pair import (
    CLUSTER_SYNC,
    Pair,
    barriers,
    declared,
    expect,
    load,
    wait,
)

CELLS = ".shared .align 128 .b32 cells[64];\n"
OWN_CELL = "mov.u32 %r1, cells;\nmad.lo.u32 %r2, %x, 4, %r1;\n"
"""%r2: the shared address of this thread's word."""

RACES = [
    Pair(
        "shared-memory-race",
        "",
        OWN_CELL
        + """st.shared.u32 [%r2], 0;
        bar.sync 0;
        setp.ge.u32 %p1, %x, 32;
        @%p1 bra $reader;
        st.shared.u32 [%r2], 7; // side
        {+bar.sync 1, 64;+}
        ret;
        $reader:
        {+bar.sync 1, 64;+}
        ld.shared.u32 %r3, [%r2+-128]; // side
        st.global.u32 [%mine], %r3;
        """,
        lambda given: [0] * 32 + [7] * 32,
        missing="no release after the",
        shared=CELLS,
        block=64,
    ),
    Pair(
        "warp-race",
        "elected lane releases before the others have read",
        barriers(empty=1)
        + OWN_CELL
        + """st.shared.u32 [%r2], %x;
        bar.sync 0;
        setp.ge.u32 %p1, %x, 32;
        @%p1 bra $writer;
        ld.shared.u32 %r3, [%r2]; // first
        {+bar.warp.sync -1;+}
        @%p0 mbarrier.arrive.shared::cta.b64 _, [empty];
        st.global.u32 [%mine], %r3;
        ret;
        $writer:
        """
        + wait("empty", 0, "empty")
        + """st.shared.u32 [%r2+-128], 99; // second
        """,
        lambda given: range(32),
        missing="no bar.warp.sync that orders lane",
        shared=CELLS + declared("empty"),
        block=64,
    ),
    Pair(
        "distributed-shared-race",
        "",
        OWN_CELL
        + """st.shared.u32 [%r2], 5;
        setp.eq.u32 %p1, %rank, 1;
        """
        + CLUSTER_SYNC
        + """@%p1 bra $second;
        mapa.shared::cluster.u32 %r4, %r2, 1;
        ld.shared::cluster.u32 %r3, [%r4]; // side
        st.global.u32 [%mine], %r3;
        {+"""
        + CLUSTER_SYNC
        + """+}
        bra $end;
        $second:
        {+"""
        + CLUSTER_SYNC
        + """+}
        st.shared.u32 [%r2], 6; // side
        $end:
        """
        + CLUSTER_SYNC,
        lambda given: [5] * 32,
        missing="no release after the",
        shared=CELLS,
        grid=2,
        cluster=2,
    ),
    Pair(
        "distributed-shared-race",
        "an arrive with CTA scope on a remote barrier",
        barriers(full=32)
        + OWN_CELL
        + """setp.eq.u32 %p1, %rank, 1;
        """
        + CLUSTER_SYNC
        + """@%p1 bra $second;
        mapa.shared::cluster.u32 %r4, %r2, 1;
        mov.u32 %r5, full;
        mapa.shared::cluster.u32 %r6, %r5, 1;
        st.shared::cluster.u32 [%r4], %x; // first
        mbarrier.arrive.release.[-cta-]{+cluster+}.shared::cluster.b64 _, [%r6];
        bra $end;
        $second:
        """
        + wait("full", 0, "full").replace("parity.", "parity.acquire.cluster.")
        + """ld.shared.u32 %r3, [%r2]; // second
        st.global.u32 [%mine], %r3;
        $end:
        """
        + CLUSTER_SYNC,
        lambda given: [0] * 32 + list(range(32)),
        missing="no release after the write",
        shared=CELLS + declared("full"),
        grid=2,
        cluster=2,
    ),
    Pair(
        "global-race",
        "",
        """mad.wide.u32 %d1, %x, 4, %work;
        setp.eq.u32 %p1, %rank, 1;
        @%p1 bra $second;
        st.global.u32 [%d1], 41; // first
        st.[-relaxed-]{+release+}.gpu.global.u32 [%d1+1024], 1;
        ret;
        $second:
        ld.acquire.gpu.global.u32 %r1, [%d1+1024];
        setp.eq.u32 %p2, %r1, 0;
        @%p2 bra $second;
        ld.global.u32 %r2, [%d1]; // second
        st.global.u32 [%mine], %r2;
        """,
        lambda given: [0] * 32 + [41] * 32,
        missing="no release after the write",
        grid=2,
    ),
    Pair(
        "storage-aliased",
        "",
        barriers(full=1)
        + OWN_CELL
        + expect("full", 128)
        + load("cells", "%in", 128, "full")
        + wait("full", 0, "full")
        + """xor.b32 %r3, %r2, 4;
        ld.shared.u32 %r4, [%r3]; // first
        {+bar.warp.sync -1;+}
        st.shared.u32 [%r2], %r4; // second
        ld.shared.u32 %r5, [%r2];
        st.global.u32 [%mine], %r5;
        """,
        lambda given: given[np.arange(32) ^ 1],
        missing="no bar.warp.sync between lane",
        shared=declared("full") + ".extern .shared .align 128 .b8 cells[];\n",
        shared_bytes=128,
        options={"names": {"sQ": (0, 128), "sO": (0, 128)}},
    ),
]

PLACES = [
    Pair(
        "uninitialised-read",
        "shared memory",
        OWN_CELL
        + """{+st.shared.u32 [%r2], 3;+}
        ld.shared.u32 %r3, [%r2]; // seen
        st.global.u32 [%mine], %r3;
        """,
        lambda given: [3] * 32,
        missing="no write to these bytes comes before",
        shared=CELLS,
    ),
    Pair(
        "uninitialised-read",
        "register",
        """setp.lt.u32 %p1, %x, 8;
        {+mov.u32 %r1, 0;+}
        @%p1 mov.u32 %r1, 4;
        st.global.u32 [%mine], %r1; // seen
        """,
        lambda given: [4] * 8 + [0] * 24,
        missing="no instruction wrote the register",
    ),
    Pair(
        "out-of-bounds-shared",
        "",
        OWN_CELL
        + """st.shared.u32 [%r2[-+132-]], %x; // seen
        {+ld.shared.u32 %r3, [%r2];
        st.global.u32 [%mine], %r3;+}
        """,
        lambda given: range(32),
        shared=CELLS,
    ),
    Pair(
        "out-of-bounds-global",
        "",
        """mad.wide.u32 %d1, %x, 4, %in;
        ld.global.u32 %r1, [%d1[-+1924-]{++1920+}]; // seen
        st.global.u32 [%mine], %r1;
        """,
        lambda given: given[480:512],
    ),
    Pair(
        "out-of-bounds-local",
        "",
        """.local .align 4 .b32 own[8];
        and.b32 %r1, %x, 7;
        mov.u64 %d1, own;
        mad.wide.u32 %d1, %r1, 4, %d1;
        st.local.u32 [%d1[-+4-]{++0+}], %x; // seen
        ld.local.u32 %r2, [%d1];
        st.global.u32 [%mine], {+%r2+}[-%x-];
        """,
        lambda given: range(32),
    ),
    Pair(
        "misaligned-access",
        "",
        """mov.u32 %r1, cells;
        mad.lo.u32 %r2, %x, 8, %r1;
        st.shared.v2.u32 [%r2], {%x, %x};
        ld.shared.[-v2-]{+v2+}.u32 {%r3, %r4}, [%r2[-+4-]]; // seen
        st.global.u32 [%mine], %r3;
        """,
        lambda given: range(32),
        shared=".shared .align 8 .b32 cells[72];\n",
    ),
]

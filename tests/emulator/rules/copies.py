"""Kernels that break rules about asynchronous copies, each beside a clean control."""

from __future__ import annotations

from tests.emulator.rules.pair import Pair, barriers, declared, expect, load, wait

TILE = ".shared .align 128 .b32 tile[64];\n"
OWN_WORD = "mov.u32 %r1, tile;\nmad.lo.u32 %r2, %x, 4, %r1;\n"
STORE = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%out], [tile], 128;"
COMMIT = "@%p0 cp.async.bulk.commit_group;\n"
FENCE = "fence.proxy.async.shared::cta;\n"
READ = "ld.shared.u32 %r3, [%r2];"

TILES = TILE + declared("full")

STORES = [
    Pair(
        "missing-proxy-fence",
        "",
        OWN_WORD
        + """st.shared.u32 [%r2], 8; // first
        {+fence.proxy.async.shared::cta;+}
        bar.sync 0;
        """
        + STORE
        + " // second\n"
        + COMMIT
        + "@%p0 cp.async.bulk.wait_group 0;",
        lambda given: [8] * 32,
        missing="no fence.proxy.async lies between them",
        shared=TILE,
    ),
    Pair(
        "read-completion-only",
        "",
        OWN_WORD
        + "st.shared.u32 [%r2], 8;\n"
        + FENCE
        + "bar.sync 0;\n"
        + STORE
        + " // first\n"
        + COMMIT
        + """@%p0 cp.async.bulk.wait_group[-.read-] 0;
        @%p0 ld.global.u32 %r4, [%out+4]; // second
        @%p0 st.global.u32 [%out+256], %r4;
        @%p0 cp.async.bulk.wait_group 0;
        """,
        lambda given: [8] * 32 + [0] * 32 + [8],
        missing="wait without .read",
        shared=TILE,
    ),
    Pair(
        "dangling-copy",
        "",
        OWN_WORD
        + "st.shared.u32 [%r2], 8;\n"
        + FENCE
        + "bar.sync 0;\n"
        + STORE
        + " // seen\n"
        + COMMIT
        + "{+@%p0 cp.async.bulk.wait_group.read 0;+}",
        lambda given: [8] * 32,
        missing="before it exits",
        shared=TILE,
    ),
]

LOADS = [
    Pair(
        "bytes-in-flight",
        "the wait comes after the use",
        barriers(full=1)
        + OWN_WORD
        + expect("full", 128)
        + load("tile", "%in", 128, "full")
        + " // first\nbar.sync 0;\n{+"
        + wait("full", 0, "before")
        + "+}\n"
        + READ
        + " // second\n[-"
        + wait("full", 0, "after")
        + "-]\nst.global.u32 [%mine], %r3;",
        lambda given: given[:32],
        missing="does not know that its bytes have landed",
        shared=TILES,
    ),
    Pair(
        "expected-bytes-too-few",
        "two copies, the bytes of one",
        barriers(full=1)
        + OWN_WORD
        + expect("full", "[-128-]{+256+}")
        + " // side\n"
        + load("tile", "%in", 128, "full")
        + " // side\n"
        + load("tile+128", "%in+128", 128, "full")
        + " // side\n"
        + wait("full", 0, "full")
        + READ
        + " // side\nst.global.u32 [%mine], %r3;",
        lambda given: given[:64],
        block=64,
        shared=TILES,
    ),
    Pair(
        "expected-bytes-too-many",
        "the bytes of two, one copy",
        barriers(full=1)
        + OWN_WORD
        + expect("full", "[-512-]{+256+}")
        + " // first\n"
        + load("tile", "%in", 256, "full")
        + "\n"
        + wait("full", 0, "full", "second")
        + READ
        + "\nst.global.u32 [%mine], %r3;",
        lambda given: given[:64],
        block=64,
        shared=TILES,
        missing="every arrival has come and no copy is in flight",
    ),
    Pair(
        "barrier-never-armed",
        "copies before the arrive",
        barriers(full=1)
        + OWN_WORD
        + load("tile", "%in", 128, "full")
        + " // side\n@%p0 mbarrier.arrive{+.expect_tx+}.shared::cta.b64 _, [full]{+, 128+};\n"
        + wait("full", 0, "full", "side")
        + READ
        + " // side\nst.global.u32 [%mine], %r3;",
        lambda given: given[:32],
        shared=TILES,
    ),
    Pair(
        "barrier-never-armed",
        "arrives before the copy",
        barriers(full=1)
        + OWN_WORD
        + "@%p0 mbarrier.arrive{+.expect_tx+}.shared::cta.b64 _, [full]{+, 128+};\n"
        + load("tile", "%in", 128, "full")
        + " // side\n"
        + wait("full", 0, "full")
        + READ
        + " // side\nst.global.u32 [%mine], %r3;",
        lambda given: given[:32],
        shared=TILES,
    ),
    Pair(
        "stale-phase",
        "the parity is not flipped",
        barriers(full=1)
        + OWN_WORD
        + expect("full", 128)
        + load("tile", "%in", 128, "full")
        + wait("full", 0, "one")
        + READ
        + "bar.sync 0;\n"
        + expect("full", 128)
        + load("tile", "%in+128", 128, "full")
        + " // side\n"
        + wait("full", "[-0-]{+1+}", "two", "side")
        + "ld.shared.u32 %r4, [%r2]; // side\nadd.u32 %r5, %r3, %r4;\n"
        + "st.global.u32 [%mine], %r5;\n"
        + wait("full", 1, "end"),
        lambda given: given[:32] + given[32:64],
        missing=("does not know that its bytes have landed", "phase 1 went by without it"),
        shared=TILES,
    ),
    Pair(
        "stage-released-early",
        "",
        barriers(full=1, empty=32)
        + OWN_WORD
        + """setp.ge.u32 %p1, %x, 32;
        @%p1 bra $consumer;
        """
        + expect("full", 128)
        + load("tile", "%in", 128, "full")
        + wait("empty", 0, "empty")
        + expect("full", 128)
        + load("tile", "%in+128", 128, "full")
        + """ // side
        ret;
        $consumer:
        """
        + wait("full", 0, "one")
        + """[-mbarrier.arrive.shared::cta.b64 _, [empty];-]
        ld.shared.u32 %r3, [%r2+-128]; // side
        {+mbarrier.arrive.shared::cta.b64 _, [empty];+}
        """
        + wait("full", 1, "two")
        + """ld.shared.u32 %r4, [%r2+-128];
        mad.lo.u32 %r5, %r3, 1000, %r4;
        st.global.u32 [%mine], %r5;
        """,
        lambda given: [0] * 32 + list(given[:32] * 1000 + given[32:64]),
        block=64,
        shared=TILE + declared("full", "empty"),
    ),
]

"""Pipelines that are right, from no tile to several, and copies that other tools misjudge."""

from __future__ import annotations

from tests.emulator.rules.pair import barriers, declared, expect, load, wait

STAGES, BYTES = 2, 128

SHARED = ".shared .align 128 .b32 tiles[64];\n" + declared("full", "full1", "empty", "empty1")


def pipeline(tiles: int) -> str:
    """A producer warp and a consumer warp with two stages: sums ``tiles`` tiles of 32 words.

    Both count a stage and a parity. The producer waits with the parity of the phase before the
    first, so that it finds every stage empty, and ends with a tail: each stage that it filled is
    released before it exits.
    """
    return (
        barriers(full=1, full1=1, empty=1, empty1=1)
        + f"""mov.u32 %r10, {tiles};
        mov.u32 %r11, 0;
        mov.u32 %r12, 0;
        mov.u32 %r13, 0;
        mov.u32 %r20, tiles;
        mov.u32 %r21, full;
        mov.u32 %r22, empty;
        setp.ge.u32 %p1, %x, 32;
        @%p1 bra $consumer;
        setp.ne.u32 %p2, %lane, 0;
        @%p2 ret;
        $fill:
        setp.ge.u32 %p3, %r11, %r10;
        @%p3 bra $tail;
        mad.lo.u32 %r23, %r12, 8, %r22;
        xor.b32 %r14, %r13, 1;
        """
        + wait("%r23", "%r14", "empty")
        + """mad.lo.u32 %r24, %r12, 8, %r21;
        mad.lo.u32 %r25, %r12, 128, %r20;
        mad.wide.u32 %d1, %r11, 128, %in;
        """
        + expect("%r24", BYTES)
        + "\n"
        + load("%r25", "%d1", BYTES, "%r24")
        + _advance()
        + """bra $fill;
        $tail:
        min.u32 %r15, %r10, 2;
        mov.u32 %r11, 0;
        $last:
        setp.ge.u32 %p3, %r11, %r15;
        @%p3 ret;
        mad.lo.u32 %r23, %r12, 8, %r22;
        xor.b32 %r14, %r13, 1;
        """
        + wait("%r23", "%r14", "tail")
        + _advance()
        + """bra $last;
        $consumer:
        mov.u32 %r16, 0;
        $use:
        setp.ge.u32 %p3, %r11, %r10;
        @%p3 bra $end;
        mad.lo.u32 %r24, %r12, 8, %r21;
        """
        + wait("%r24", "%r13", "full")
        + """mad.lo.u32 %r25, %r12, 128, %r20;
        mad.lo.u32 %r26, %lane, 4, %r25;
        ld.shared.u32 %r27, [%r26];
        add.u32 %r16, %r16, %r27;
        bar.warp.sync -1;
        mad.lo.u32 %r23, %r12, 8, %r22;
        setp.eq.u32 %p2, %lane, 0;
        @%p2 mbarrier.arrive.shared::cta.b64 _, [%r23];
        """
        + _advance()
        + """bra $use;
        $end:
        mad.wide.u32 %d2, %lane, 4, %out;
        st.global.u32 [%d2], %r16;
        """
    )


def _advance() -> str:
    """The next tile (%r11), its stage (%r12) and the parity (%r13), which flips at a wrap."""
    return f"""
        add.u32 %r11, %r11, 1;
        add.u32 %r12, %r12, 1;
        setp.eq.u32 %p4, %r12, {STAGES};
        @%p4 mov.u32 %r12, 0;
        @%p4 xor.b32 %r13, %r13, 1;
        """

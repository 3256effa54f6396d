"""Kernels that break rules about warpgroups, each beside a clean control.

The products are of matrices of ones: A (64, 16) and B (16, 8) in bf16, so every sum is 16.
Without swizzle, operands are core matrices of 8 rows of 16 bytes, 128 bytes apart along K.
"""

from __future__ import annotations

from tests.emulator.rules.pair import Pair

ONES = 0x3F803F80
A_BYTES = 2048
DESCRIPTOR = 128 >> 4 << 16 | 256 >> 4 << 32
OPERANDS = ".shared .align 1024 .b8 a[2048];\n.shared .align 1024 .b8 b[256];\n"

FILL = f"""mov.b32 %r40, {ONES};
mov.u32 %r1, a;
mad.lo.u32 %r2, %x, 16, %r1;
st.shared.v4.b32 [%r2], {{%r40, %r40, %r40, %r40}};
mov.u32 %r3, b;
setp.lt.u32 %p1, %x, 16;
mad.lo.u32 %r4, %x, 16, %r3;
@%p1 st.shared.v4.b32 [%r4], {{%r40, %r40, %r40, %r40}};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r5, %r1, 4;
cvt.u64.u32 %d1, %r5;
or.b64 %d1, %d1, {DESCRIPTOR};
shr.u32 %r6, %r3, 4;
cvt.u64.u32 %d2, %r6;
or.b64 %d2, %d2, {DESCRIPTOR};
setp.ne.u32 %p2, %x, %x;
mov.b32 %f1, 0f00000000;
mov.b32 %f2, 0f00000000;
mov.b32 %f3, 0f00000000;
mov.b32 %f4, 0f00000000;
"""
"""Ones in A and B, their descriptors in %d1 and %d2, a false %p2, zeros in %f1 to %f4."""

D = "{%f1, %f2, %f3, %f4}"
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
PRODUCT = f"{MMA}{D}, %d1, %d2, %p2, 1, 1, 0, 0;"
FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;"
RESULT = "cvt.rni.u32.f32 %r7, %f1;\nst.global.u32 [%mine], %r7;\n"
SIXTEEN = [16] * 128


def _pair(rule: str, name: str, template: str, **more: object) -> Pair:
    body = ".reg .f32 %f<8>;\n" + FILL + template
    return Pair(rule, name, body, lambda given: SIXTEEN, shared=OPERANDS, block=128, **more)  # type: ignore[arg-type]


PRODUCTS = [
    _pair(
        "wgmma-accumulator-in-flight",
        "",
        FENCE
        + PRODUCT
        + " // first\n"
        + COMMIT
        + f"{{+{WAIT}+}}\ncvt.rni.u32.f32 %r7, %f1; // second\n[-{WAIT}-]\n"
        + "st.global.u32 [%mine], %r7;",
        missing="no wgmma.wait_group",
    ),
    _pair(
        "wgmma-operand-in-flight",
        "",
        "mov.b32 %r50, %r40; mov.b32 %r51, %r40; mov.b32 %r52, %r40; mov.b32 %r53, %r40;\n"
        + FENCE
        + f"{MMA}{D}, {{%r50, %r51, %r52, %r53}}, %d2, %p2, 1, 1, 0; // first\n"
        + COMMIT
        + f"{{+{WAIT}+}}\nmov.b32 %r50, 0; // second\n[-{WAIT}-]\n"
        + RESULT
        + "st.global.u32 [%mine+1024], %r50;\n",
        missing="no wgmma.wait_group",
    ),
    _pair(
        "wgmma-operand-overwritten",
        "",
        FENCE
        + PRODUCT
        + " // first\n"
        + COMMIT
        + f"{{+{WAIT}+}}\nst.shared.b32 [%r2], 0; // second\n[-{WAIT}-]\n"
        + RESULT,
        missing="wgmma",
    ),
    _pair(
        "missing-wgmma-fence",
        "",
        FENCE
        + "setp.eq.u32 %p2, %x, %x;\nmov.b32 %f1, 0f3F800000; // first\n"
        + f"{{+{FENCE}+}}"
        + PRODUCT
        + " // second\n"
        + COMMIT
        + WAIT
        + "\nsub.f32 %f1, %f1, 0f3F800000;\n"
        + RESULT,
        missing="no wgmma.fence",
    ),
    _pair(
        "missing-wgmma-fence",
        "after a read",
        FENCE
        + PRODUCT
        + COMMIT
        + WAIT
        + "\ncvt.rni.u32.f32 %r7, %f1; // first\n"
        + f"{{+{FENCE}+}}"
        + PRODUCT
        + " // second\n"
        + COMMIT
        + WAIT
        + "\nst.global.u32 [%mine], %r7;\n",
        missing="no wgmma.fence between the read",
    ),
    _pair(
        "missing-wgmma-fence",
        "before the first",
        f"{{+{FENCE}+}}" + PRODUCT + " // seen\n" + COMMIT + WAIT + "\n" + RESULT,
        missing="no wgmma.fence be",
    ),
    _pair(
        "wgmma-divergence",
        "a warp of the warpgroup goes round it",
        "setp.eq.u32 %p3, %warp, 3;\n[-@%p3 bra $round;-]\n"
        + FENCE
        + PRODUCT
        + " // seen\n"
        + COMMIT
        + WAIT
        + "\n$round:\n"
        + RESULT,
        missing="exited without it",
    ),
]

REGISTERS = [
    Pair(
        "register-pool-exhausted",
        "",
        """setp.ge.u32 %p1, %x, 128;
        @%p1 bra $consumer;
        setmaxnreg.dec.sync.aligned.u32 40;
        st.global.u32 [%mine], 1;
        ret;
        $consumer:
        setmaxnreg.inc.sync.aligned.u32 [-240-]{+232+}; // seen
        st.global.u32 [%mine], 2;
        """,
        lambda given: [1] * 128 + [2] * 256,
        directives=".maxntid 384, 1, 1 .maxnreg 168",
        block=384,
        missing="registers, of which the CTA's pool has",
    ),
    Pair(
        "setmaxnreg-target",
        "",
        """setmaxnreg.dec.sync.aligned.u32 48;
        bar.sync 0;
        setmaxnreg.inc.sync.aligned.u32 [-40-]{+56+}; // seen
        bar.sync 0;
        setmaxnreg.inc.sync.aligned.u32 80;
        st.global.u32 [%mine], 1;
        """,
        lambda given: [1] * 128,
        directives=".maxntid 128, 1, 1 .maxnreg 64",
        block=128,
    ),
    Pair(
        "setmaxnreg-divergence",
        "a warp exits during it",
        """[-setp.eq.u32 %p1, %warp, 2;
        @%p1 ret;-]
        setmaxnreg.dec.sync.aligned.u32 40; // seen
        st.global.u32 [%mine], 1;
        """,
        lambda given: [1] * 128,
        directives=".maxntid 128, 1, 1 .maxnreg 64",
        block=128,
        missing="exited without it",
    ),
    Pair(
        "setmaxnreg-divergence",
        "warps on different paths",
        """setp.eq.u32 %p1, %warp, [-2-]{+4+};
        @%p1 bra $other;
        setmaxnreg.dec.sync.aligned.u32 40; // side
        bra $end;
        $other:
        setmaxnreg.dec.sync.aligned.u32 40; // side
        $end:
        st.global.u32 [%mine], 1;
        """,
        lambda given: [1] * 128,
        directives=".maxntid 128, 1, 1 .maxnreg 64",
        block=128,
        missing="in this place",
    ),
]

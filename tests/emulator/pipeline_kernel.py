"""A small producer and consumer in PTX: bulk copies through a ring of two stages, doubled.

Warp 0 copies tiles of 64 floats into shared memory, warp 1 doubles and stores them. Every CTA
does the same for its own tiles. Faults leave out one thing each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator import Launch, launch_of

TILE, STAGES, TILES = 64, 2, 4
BYTES = 4 * TILE
FULL, EMPTY, DATA = 0, 16, 128
NAMES = {"full": (FULL, 16), "empty": (EMPTY, 16), "ring": (DATA, STAGES * BYTES)}

_HEAD = """
.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 smem[];

.visible .entry double_tiles(.param .u64 x, .param .u64 y)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    shr.u32 %r2, %r0, 5;
    and.b32 %r3, %r0, 31;
    mov.u32 %r4, smem;
    mul.lo.u32 %r5, %r1, CTA_BYTES;
    cvt.u64.u32 %rd2, %r5;
    add.u64 %rd0, %rd0, %rd2;
    add.u64 %rd1, %rd1, %rd2;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%r4], 1;
    mbarrier.init.shared::cta.b64 [%r4+8], 1;
    mbarrier.init.shared::cta.b64 [%r4+16], 1;
    mbarrier.init.shared::cta.b64 [%r4+24], 1;
    fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
READY:
    barrier.cta.sync 0;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra CONSUMER;
    setp.ne.u32 %p2, %r3, 0;
    @%p2 bra DONE;
"""


def _wait(label: str, barrier: int, parity: int) -> str:
    return f"""
{label}:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4+{barrier}], {parity};
    @!%p3 bra {label};
"""


def _produce(tile: int) -> str:
    stage, parity = tile % STAGES, tile // STAGES & 1
    return f"""{_wait(f"P{tile}", EMPTY + 8 * stage, parity ^ 1)}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4+{FULL + 8 * stage}], {BYTES};
    add.u32 %r6, %r4, {DATA + stage * BYTES};
    add.u32 %r7, %r4, {FULL + 8 * stage};
    add.u64 %rd3, %rd0, {tile * BYTES};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd3], {BYTES}, [%r7];
"""


def _consume(tile: int, fault: str) -> str:
    stage, parity = tile % STAGES, tile // STAGES & 1
    text = _wait(f"C{tile}", FULL + 8 * stage, parity)
    for half in range(2):
        text += f"""
    shl.b32 %r8, %r3, 2;
    add.u32 %r9, %r4, %r8;
    ld.shared.f32 %f0, [%r9+{DATA + stage * BYTES + half * 128}];
    add.f32 %f1, %f0, %f0;
    cvt.u64.u32 %rd4, %r8;
    add.u64 %rd5, %rd1, %rd4;
    st.global.f32 [%rd5+{tile * BYTES + half * 128}], %f1;
"""
    if fault == "release":
        return text
    sync = "" if fault == "warp sync" else "bar.warp.sync 0xffffffff;"
    return f"""{text}
    {sync}
    setp.eq.u32 %p2, %r3, 0;
    @%p2 mbarrier.arrive.shared::cta.b64 _, [%r4+{EMPTY + 8 * stage}];
"""


def source(fault: str = "") -> str:
    """The PTX. ``fault`` names what is left out.

    "release": stages are not freed. "warp sync": they are, before all lanes have read.
    """
    text = _HEAD.replace("CTA_BYTES", str(TILES * BYTES))
    text += "".join(_produce(tile) for tile in range(TILES))
    # The producer does not leave before every stage is free again.
    text += "".join(_wait(f"T{tile}", EMPTY + 8 * (tile % STAGES), 1) for tile in range(STAGES))
    text += "    bra DONE;\nCONSUMER:\n"
    text += "".join(_consume(tile, fault) for tile in range(TILES))
    return f"{text}DONE:\n    ret;\n}}\n"


def arrays(ctas: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
    """Input and output, float32 (ctas, TILES, TILE)."""
    x = np.arange(ctas * TILES * TILE, dtype=np.float32).reshape(ctas, TILES, TILE)
    return x, np.full_like(x, np.nan)


def launch(fault: str = "", ctas: int = 1) -> Launch:
    """A launch whose buffers are "x" and "y"."""
    return launch_of(
        source(fault), "double_tiles", ctas, 64, arrays(ctas), shared_bytes=DATA + STAGES * BYTES
    )

"""A tensor map that the kernel itself points to another tensor, then copies through."""

from __future__ import annotations

import numpy as np
import pytest

from hopwell.emulator import Report, emulate, launch_of
from hopwell.emulator.tensor_map import TensorMap, encode

KERNEL = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p_map, .param .u64 p_other, .param .u64 p_out)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 full;
    ld.param.u64 %d1, [p_map];
    ld.param.u64 %d2, [p_other];
    ld.param.u64 %d3, [p_out];
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra made;
    tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d2;
    tensormap.replace.tile.global_dim.global.b1024.b32 [%d1], 0, 20;
    fence.proxy.tensormap::generic.release.gpu;
    mbarrier.init.shared::cta.b64 [full], 1;
made:
    {between}
    setp.ne.u32 %p2, %r1, {copier};
    @%p2 bra copied;
    fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
    mov.u32 %r2, 0;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [tile], [%d1, {{%r2}}], [full];
copied:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [full], 0;
    @!%p3 bra copied;
    shl.b32 %r3, %r1, 2;
    mov.u32 %r4, tile;
    add.u32 %r4, %r4, %r3;
    ld.shared.u32 %r5, [%r4];
    cvt.u64.u32 %d4, %r3;
    add.u64 %d4, %d3, %d4;
    st.global.u32 [%d4], %r5;
    ret;
}}
"""


def run(between: str, copier: int) -> tuple[list[int], Report]:
    raw = np.zeros(256, np.uint8)
    start = -raw.ctypes.data % 128
    held = raw[start : start + 128]
    first, other = (np.arange(base, base + 64, dtype=np.uint32) for base in (1, 100))
    held[:] = np.frombuffer(
        encode(TensorMap("u32", first.ctypes.data, (32,), (), (64,), (1,))), np.uint8
    )
    out = np.zeros(64, np.uint32)
    text = KERNEL.format(between=between, copier=copier)
    report = emulate(launch_of(text, "k", 1, 64, (held, other, out)), seeds=3)
    return out.tolist(), report


@pytest.mark.parametrize("copier", [0, 32])
def test_the_copy_goes_through_the_new_map(copier: int) -> None:
    """Its own lane or another warp, after a barrier; beyond the new extent arrive zeros."""
    result, report = run("bar.sync 0;", copier)
    assert result == [*range(100, 120), *[0] * 44]
    assert report.clean, report.groups


def test_a_map_read_while_it_is_replaced_is_a_race() -> None:
    _, report = run("", 32)
    assert "global-race" in report.rules

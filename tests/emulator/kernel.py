"""Small PTX kernels for tests: a frame around a body, run on one output array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator import Report, emulate, launch_of

_FRAME = """.version 8.8
.target sm_90a
.address_size 64
{module}
.visible .entry k(.param .u64 p_out, .param .u64 p_more) {directives}
{{
    .reg .pred %p<16>;
    .reg .b16 %h<8>;
    .reg .b32 %r<64>, %x, %y;
    .reg .f32 %f<16>;
    .reg .b64 %d<16>, %out, %more, %mine;
    ld.param.u64 %out, [p_out];
    ld.param.u64 %more, [p_more];
    mov.u32 %x, %tid.x;
    mov.u32 %y, %ctaid.x;
    mov.u32 %r63, %ntid.x;
    mad.lo.u32 %r62, %y, %r63, %x;
    mad.wide.u32 %mine, %r62, 4, %out;
{body}
}}
"""


def text(body: str, module: str = "", directives: str = "") -> str:
    """A module with one entry. In its body ``%x`` is the thread, ``%y`` the CTA, ``%mine`` the
    address of the thread's own word of the output, ``%more`` that of a second array."""
    return _FRAME.format(body=body, module=module, directives=directives)


def run(
    body: str,
    *,
    module: str = "",
    directives: str = "",
    grid: Sequence[int] | int = 1,
    block: Sequence[int] | int = 32,
    cluster: Sequence[int] | int = 1,
    words: int | None = None,
    more: NDArray[np.uint32] | None = None,
    shared_bytes: int = 0,
    seeds: int | Sequence[int] = 3,
    hazards: bool = True,
    limit: int = 100_000,
    resident: int = 132,
) -> tuple[NDArray[np.uint32], Report]:
    """Run a body; the words that its threads wrote, and what was found."""
    threads = int(np.prod(np.atleast_1d(grid))) * int(np.prod(np.atleast_1d(block)))
    out = np.zeros(threads if words is None else words, np.uint32)
    more = np.zeros(64, np.uint32) if more is None else more
    launch = launch_of(
        text(body, module, directives), "k", grid, block, (out, more),
        cluster=cluster, shared_bytes=shared_bytes,
    )  # fmt: skip
    report = emulate(launch, seeds=seeds, hazards=hazards, limit=limit, resident=resident)
    return out, report

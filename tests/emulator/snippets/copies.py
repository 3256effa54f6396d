"""Asynchronous copies without tensor maps: cp.async, bulk copies and bulk reductions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.barriers import BARRIER, CLUSTER_SYNC, waiting
from tests.emulator.snippets.elementwise import Array
from tests.emulator.snippets.memory import NUMBER
from tests.emulator.snippets.snippet import Snippet, poisoned, program

ROOM = ".extern .shared .align 128 .b8 room[];\n"
#: Thread 0 makes the barrier ready for one arrival, also for engines.
INIT = """mov.u32 %r3, room; setp.eq.u32 %p1, %x, 0;
@%p1 mbarrier.init.shared.b64 [bar], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""


#: Whether a phase is complete after one more arrival: the copies' bytes were those expected.
ONE_COPY = """nanosleep.u32 20000; bar.warp.sync -1;
@%p1 mbarrier.arrive.shared.b64 _, [bar];
bar.warp.sync -1; nanosleep.u32 20000;
mbarrier.test_wait.parity.shared::cta.b64 %p2, [bar], 1; selp.b32 %r5, 1, 0, %p2;
mad.wide.u32 %d5, %x, 4, %p_out; st.global.b32 [%d5+1024], %r5;
"""


def _data(seed: int, size: int) -> Any:
    return partial(inputs.random_bits, seed, size, 8)


def copy_out(size: int, threads: int, start: str = "%r3", at: int = 0) -> str:
    """Every thread copies 16-byte pieces of ``size`` bytes of shared memory to out."""
    text = f"mad.lo.u32 %r60, %x, 16, {start}; mad.wide.u32 %d60, %x, 16, %p_out;\n"
    for first in range(0, size, 16 * threads):
        guard = ""
        if size - first < 16 * threads:
            guard = "@%p61 "
            text += f"setp.lt.u32 %p61, %x, {(size - first) // 16};\n"
        text += f"{guard}ld.shared.v4.b32 {{%r61, %r62, %r63, %r64}}, [%r60+{first}];\n"
        text += f"{guard}st.global.v4.b32 [%d60+{at + first}], {{%r61, %r62, %r63, %r64}};\n"
    return text


def clear(size: int, threads: int, start: str = "%r3") -> str:
    """Every thread writes a pattern to 16-byte pieces of shared memory."""
    text = f"mad.lo.u32 %r60, %x, 16, {start}; mad.lo.u32 %r61, %x, 257, 0x5a5a0000;\n"
    for first in range(0, size, 16 * threads):
        text += f"st.shared.v4.b32 [%r60+{first}], {{%r61, %r61, 7, %r61}};\n"
    return text


def through_threads() -> Iterator[Snippet]:
    copies = {
        "ca 4": ("ca", 4, "4"),
        "ca 8": ("ca", 8, "8"),
        "ca 16": ("ca", 16, "16"),
        "cg 16": ("cg", 16, "16"),
        "ca 8 of fewer bytes": ("ca", 8, "8, %r7"),
        "cg 16 of fewer bytes": ("cg", 16, "16, %r7"),
        "cg 16 of none": ("cg", 16, "16, %p2"),
        "cg 16 prefetching": ("cg", 16, "16"),
    }
    for name, (cache, size, tail) in copies.items():
        hint = ".L2::128B" if "prefetching" in name else ""
        body = f"""mov.u32 %r3, room; mad.wide.u32 %d0, %x, {size}, %p_data;
        mad.lo.u32 %r5, %x, 11, 3; and.b32 %r5, %r5, 63; mad.lo.u32 %r6, %r5, {size}, %r3;
        rem.u32 %r7, %x, {size + 1}; and.b32 %r8, %x, 1; setp.eq.u32 %p2, %r8, 1;
        cp.async.{cache}.shared.global{hint} [%r6], [%d0], {tail};
        cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
        """
        yield program(
            f"cp.async/{name}",
            body + copy_out(64 * size, 64),
            inputs={"data": _data(71, 64 * size)},
            outputs={"out": poisoned(np.uint8, 64 * size)},
            preamble=ROOM,
            block=(64, 1, 1),
            shared_bytes=64 * size,
        )
    groups = """mov.u32 %r3, room; mad.wide.u32 %d0, %x, 16, %p_data; mad.lo.u32 %r4, %x, 16, %r3;
    mov.u32 %r10, 0;
    """
    for i in range(4):
        groups += f"cp.async.cg.shared.global [%r4+{1024 * i}], [%d0+{1024 * i}], 16;\n"
        groups += "cp.async.commit_group;\n"
    for i, left in enumerate((3, 2, 1, 0)):
        groups += f"cp.async.wait_group {left};\nld.shared.b32 %r5, [%r4+{1024 * i + 4}];\n"
        groups += "mad.lo.u32 %r10, %r10, 31, %r5;\n"
    groups += "cp.async.ca.shared.global [%r4], [%d0+2048], 8; cp.async.wait_all;\n"
    groups += "ld.shared.b32 %r5, [%r4+4]; xor.b32 %r10, %r10, %r5;\n"
    groups += "mad.wide.u32 %d9, %x, 4, %p_out; st.global.b32 [%d9], %r10;"
    yield program(
        "cp.async/groups",
        groups,
        inputs={"data": _data(72, 4096)},
        outputs={"out": poisoned(np.uint32, 64)},
        preamble=ROOM,
        block=(64, 1, 1),
        shared_bytes=4096,
    )
    for tail, count in ((".noinc", 64), ("", 64)):
        arrive = "mbarrier.arrive.shared.b64 _, [bar];" if tail == "" else ""
        yield program(
            f"cp.async/mbarrier.arrive{tail}",
            f"""mov.u32 %r3, room; setp.eq.u32 %p1, %x, 0;
            @%p1 mbarrier.init.shared.b64 [bar], {count};
            bar.sync 0;
            mad.wide.u32 %d0, %x, 16, %p_data; mad.lo.u32 %r4, %x, 16, %r3;
            cp.async.cg.shared.global [%r4], [%d0], 16;
            cp.async.mbarrier.arrive{tail}.shared.b64 [bar];
            {arrive}
            """
            + waiting("copied", "bar", 0)
            + "xor.b32 %r5, %x, 63; mad.lo.u32 %r6, %r5, 16, %r3; ld.shared.b32 %r20, [%r6+8];\n"
            + "mad.wide.u32 %d9, %x, 4, %p_out; st.global.b32 [%d9], %r20;",
            inputs={"data": _data(73, 1024)},
            outputs={"out": poisoned(np.uint32, 64)},
            preamble=ROOM + BARRIER,
            block=(64, 1, 1),
            shared_bytes=1024,
        )


def bulk() -> Iterator[Snippet]:
    for where in ("shared::cluster", "shared::cta"):
        load = f"cp.async.bulk.{where}.global.mbarrier::complete_tx::bytes"
        yield program(
            f"bulk/load to {where}",
            INIT
            + f"""@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 2064;
            @%p1 {load} [%r3], [%p_data], 1024, [bar];
            add.u32 %r4, %r3, 1024; add.u64 %d0, %p_data, 2048; add.u32 %r5, %r3, 2048;
            @%p1 {load} [%r4], [%d0], 16, [bar];
            @%p1 {load} [%r5], [%d0], 1024, [bar];
            """
            + waiting("full", "bar", 0)
            + "ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r4];\n"
            + copy_out(1024, 64)
            + copy_out(1024, 64, "%r5", 1024)
            + "@%p1 st.global.v4.b32 [%p_out+2048], {%r10, %r11, %r12, %r13};",
            inputs={"data": _data(74, 4096)},
            outputs={"out": poisoned(np.uint8, 2064)},
            preamble=ROOM + BARRIER,
            block=(64, 1, 1),
            shared_bytes=4096,
        )
    yield program(
        "bulk/load by every lane",
        INIT
        # Every lane issues its own copy, so that 32 times the bytes arrive.
        + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 32768;
        bar.warp.sync -1;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r3], [%p_data], 1024, [bar];
        """
        + waiting("full", "bar", 0)
        + ONE_COPY
        + copy_out(1024, 32),
        inputs={"data": _data(70, 1024)},
        outputs={"out": poisoned(np.uint8, 1024 + 128)},
        preamble=ROOM + BARRIER,
        shared_bytes=1024,
        hazards=("shared-memory-race",),  # 32 copies to the same bytes
    )
    yield program(
        "bulk/ring",
        # A raw bulk copy in a loop, two stages, completed by mbarriers and released by arrivals.
        """mov.u32 %r3, room; setp.eq.u32 %p1, %x, 0;
        @%p1 mbarrier.init.shared.b64 [full], 1;
        @%p1 mbarrier.init.shared.b64 [full+8], 1;
        @%p1 mbarrier.init.shared.b64 [empty], 32;
        @%p1 mbarrier.init.shared.b64 [empty+8], 32;
        @%p1 fence.mbarrier_init.release.cluster;
        bar.sync 0;
        mov.u32 %r4, 0; setp.ge.u32 %p2, %x, 32;
        @%p2 bra $consumer;
        setp.ne.u32 %p3, %x, 0;
        @%p3 bra $end;
        mov.b64 %d0, %p_data;
        $producer: and.b32 %r5, %r4, 1; shr.u32 %r6, %r4, 1; and.b32 %r6, %r6, 1;
        xor.b32 %r6, %r6, 1; mov.u32 %r7, empty; mad.lo.u32 %r7, %r5, 8, %r7;
        mov.u32 %r8, full; mad.lo.u32 %r8, %r5, 8, %r8; mad.lo.u32 %r9, %r5, 512, %r3;
        """
        + waiting("empty", "%r7", "%r6")
        + """mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 512;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%d0], 512, [%r8];
        add.u64 %d0, %d0, 512; add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 7;
        @%p4 bra $producer;
        bra $end;
        $consumer: sub.u32 %r10, %x, 32; mov.u32 %r20, 0; xor.b32 %r11, %r10, 9;
        $more: and.b32 %r5, %r4, 1; shr.u32 %r6, %r4, 1; and.b32 %r6, %r6, 1;
        mov.u32 %r7, empty; mad.lo.u32 %r7, %r5, 8, %r7;
        mov.u32 %r8, full; mad.lo.u32 %r8, %r5, 8, %r8; mad.lo.u32 %r9, %r5, 512, %r3;
        """
        + waiting("full", "%r8", "%r6")
        + """mad.lo.u32 %r12, %r11, 16, %r9; ld.shared.v4.b32 {%r13, %r14, %r15, %r16}, [%r12];
        xor.b32 %r13, %r13, %r14; add.u32 %r15, %r15, %r16; mad.lo.u32 %r20, %r20, 7, %r13;
        add.u32 %r20, %r20, %r15; mbarrier.arrive.shared.b64 _, [%r7];
        add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 7;
        @%p4 bra $more;
        mad.wide.u32 %d9, %r10, 4, %p_out; st.global.b32 [%d9], %r20;
        $end: bar.warp.sync -1;""",
        inputs={"data": _data(75, 3584)},
        outputs={"out": poisoned(np.uint32, 32)},
        preamble=ROOM + ".shared .align 8 .b64 full[2];\n.shared .align 8 .b64 empty[2];\n",
        block=(64, 1, 1),
        shared_bytes=1024,
    )
    yield program(
        "bulk/store",
        "mov.u32 %r3, room; setp.eq.u32 %p1, %x, 0;\n"
        + clear(2048, 64)
        + """fence.proxy.async; bar.sync 0;
        @!%p1 bra $end;
        add.u32 %r4, %r3, 512; add.u64 %d0, %p_out, 1024;
        cp.async.bulk.global.shared::cta.bulk_group [%p_out], [%r4], 512;
        cp.async.bulk.commit_group;
        cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r3], 48;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        st.shared.b32 [%r3], 1;
        cp.async.bulk.wait_group 0;
        ld.global.b32 %r5, [%d0+4]; st.global.b32 [%p_out+2000], %r5;
        $end: bar.warp.sync -1;""",
        outputs={"out": poisoned(np.uint8, 2048)},
        preamble=ROOM,
        block=(64, 1, 1),
        shared_bytes=2048,
    )
    yield program(
        "bulk/shared to peer",
        NUMBER
        + "mov.u32 %r50, %cluster_ctarank; xor.b32 %r51, %r50, 1;\n"
        + INIT.replace("bar.sync 0;\n", "")
        + clear(1024, 64)
        + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1024;
        mad.lo.u32 %r6, %x, 16, %r3; st.shared.b32 [%r6+8], %r0; fence.proxy.async;
        """
        + CLUSTER_SYNC
        + """add.u32 %r4, %r3, 1024; mapa.shared::cluster.u32 %r5, %r4, %r51;
        mov.u32 %r8, bar; mapa.shared::cluster.u32 %r7, %r8, %r51;
        @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r5], [%r3], 1024, [%r7];
        $wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 0;
        @!%p2 bra $wait;
        mov.u32 %r9, %ctaid.x; mad.wide.u32 %p_out, %r9, 1024, %p_out;
        """
        + copy_out(1024, 64, "%r4")
        + CLUSTER_SYNC,
        outputs={"out": poisoned(np.uint8, 4096)},
        preamble=ROOM + BARRIER,
        block=(64, 1, 1),
        grid=(4, 1, 1),
        cluster=(2, 1, 1),
        shared_bytes=2048,
    )
    yield program(
        "bulk/multicast",
        "mov.u32 %r50, %cluster_ctarank;\n"
        + INIT.replace("bar.sync 0;\n", "")
        + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1024;
        """
        + CLUSTER_SYNC
        + """mad.lo.u32 %r4, %r50, 512, %r3; mov.b16 %h1, 3;
        mov.u32 %r5, %ctaid.x; mad.wide.u32 %d0, %r5, 512, %p_data;
        @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r4], [%d0], 512, [bar], %h1;
        """
        + waiting("full", "bar", 0)
        + "mad.wide.u32 %p_out, %r5, 1024, %p_out;\n"
        + copy_out(1024, 64)
        + CLUSTER_SYNC,
        inputs={"data": _data(76, 2048)},
        outputs={"out": poisoned(np.uint8, 4096)},
        preamble=ROOM + BARRIER,
        block=(64, 1, 1),
        grid=(4, 1, 1),
        cluster=(2, 1, 1),
        shared_bytes=1024,
    )
    yield program(
        "bulk/prefetch",
        """setp.eq.u32 %p1, %x, 0;
        @%p1 cp.async.bulk.prefetch.L2.global [%p_data], 512;
        ld.global.b32 %r5, [%p_data+4]; mad.wide.u32 %d9, %x, 4, %p_out; st.global.b32 [%d9], %r5;
        """,
        inputs={"data": _data(77, 512)},
        outputs={"out": poisoned(np.uint32, 32)},
    )


#: Bulk reductions to global memory: type and operation as in the opcode.
REDUCTIONS = [
    "add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32", "min.u32", "min.s32", "max.u64",
    "max.s64", "and.b32", "or.b64", "xor.b32", "add.f32", "add.f64", "add.noftz.f16",
    "add.noftz.bf16", "min.f16", "max.bf16",
]  # fmt: skip


def _reducible(type_: str, seed: int, count: int) -> Array:
    if type_ in inputs.FLOATS:
        return inputs.moderate_floats(seed, count, type_, 4)
    return inputs.column(type_, seed, count)


def reductions() -> Iterator[Snippet]:
    for operation in REDUCTIONS:
        type_ = operation.rpartition(".")[2]
        size = inputs.bits_of(type_) // 8
        count = 1024 // size
        yield program(
            f"bulk/reduce {operation}",
            INIT
            + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1024;
            @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r3], [%p_data], 1024, [bar];
            """
            + waiting("full", "bar", 0)
            + f"""@%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}
            [%p_out], [%r3], 1024;
            @%p1 cp.async.bulk.commit_group;
            @%p1 cp.async.bulk.wait_group 0;
            """,
            inputs={"data": partial(_reducible, type_, 78, count)},
            outputs={"out": partial(_reducible, type_, 79, count)},
            preamble=ROOM + BARRIER,
            shared_bytes=1024,
        )
    for operation in ("add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32", "min.u32", "max.s32",
                      "and.b32", "or.b32", "xor.b32"):  # fmt: skip
        type_ = operation.rpartition(".")[2]
        opcode = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        count = 512 // (inputs.bits_of(type_) // 8)
        # Both halves of the cluster send; each receives into what it had loaded before.
        yield program(
            f"bulk/reduce to peer {operation}",
            "mov.u32 %r50, %cluster_ctarank; xor.b32 %r51, %r50, 1;\n"
            + INIT
            + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 1024;
            @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
            [%r3], [%p_data], 1024, [bar];
            """
            + waiting("loaded", "bar", 0)
            + """@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], 512;
            """
            + CLUSTER_SYNC
            + f"""add.u32 %r4, %r3, 512; mapa.shared::cluster.u32 %r5, %r4, %r51;
            mov.u32 %r8, bar; mapa.shared::cluster.u32 %r7, %r8, %r51;
            @%p1 {opcode}.{operation}
            [%r5], [%r3], 512, [%r7];
            $wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [bar], 1;
            @!%p2 bra $wait;
            mov.u32 %r9, %ctaid.x; mad.wide.u32 %p_out, %r9, 512, %p_out;
            """
            + copy_out(512, 32, "%r4")
            + CLUSTER_SYNC,
            inputs={"data": partial(_reducible, type_, 80, 2 * count)},
            outputs={"out": poisoned(np.uint8, 1024)},
            preamble=ROOM + BARRIER,
            grid=(2, 1, 1),
            cluster=(2, 1, 1),
            shared_bytes=1024,
        )


def snippets() -> Iterator[Snippet]:
    yield from through_threads()
    yield from bulk()
    yield from reductions()

"""Loads and stores of every width and space, generic addresses, atomics, special registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import Array
from tests.emulator.snippets.snippet import Snippet, poisoned, program

#: The thread's number in the whole one-dimensional grid, in %r0.
NUMBER = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %x;\n"


#: Reductions of 32-bit words whose outcome does not depend on their order (inc, dec: by one bound).
OPERATIONS = (
    "add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32", "dec.u32"
)  # fmt: skip


def _bytes(seed: int, count: int) -> Any:
    return partial(inputs.random_bits, seed, count, 8)


def _words(seed: int, count: int) -> Any:
    return partial(inputs.random_bits, seed, count, 32)


def _rows(rows: list[str], width: int = 4, threads: int = 32) -> str:
    """Rows that each leave a result in %r20 (%d20), stored at out[row][thread]."""
    register, type_ = ("%d20", "b64") if width == 8 else ("%r20", "b32")
    text = f"mad.wide.u32 %d9, %x, {width}, %p_out;\n"
    for number, row in enumerate(rows):
        text += f"{row}\nst.global.{type_} [%d9+{number * threads * width}], {register};\n"
    return text


def subwords() -> Iterator[Snippet]:
    types = ("u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32")
    address = "mul.wide.u32 %d1, %x, 8; add.u64 %d0, %p_data, %d1;\n"
    rows = [f"ld.global.{t} %r20, [%d0+{at}];" for t in types for at in (0, 4)]
    yield program(
        "memory/ld narrow",
        address + _rows(rows),
        inputs={"data": _bytes(1, 256)},
        outputs={"out": poisoned(np.uint32, len(rows), 32)},
        lines=tuple(rows),
    )
    rows = [f"ld.global.{t} %d20, [%d0];" for t in (*types, "u64", "s64", "b64", "f64")]
    yield program(
        "memory/ld narrow into 64",
        address + _rows(rows, 8),
        inputs={"data": _bytes(2, 256)},
        outputs={"out": poisoned(np.uint64, len(rows), 32)},
        lines=tuple(rows),
    )
    yield program(
        "memory/st narrow",
        """mul.wide.u32 %d1, %x, 16; add.u64 %d0, %p_out, %d1; add.u64 %d2, %p_data, %d1;
        ld.global.v2.b64 {%d3, %d4}, [%d2]; mov.b64 {%r3, %r4}, %d3;
        st.global.u8 [%d0], %r3; st.global.s8 [%d0+2], %d4; st.global.b16 [%d0+4], %r4;
        st.global.u16 [%d0+6], %d4; st.global.s32 [%d0+8], %d3; st.global.b8 [%d0+13], %r4;
        st.global.b8 [%d0+14], 0x7e; st.global.f32 [%d0+8], 0f3F800000;""",
        inputs={"data": _bytes(3, 512)},
        outputs={"out": poisoned(np.uint8, 512)},
    )


def vectors() -> Iterator[Snippet]:
    """Vector loads, stored back lane-reversed and element-reversed."""
    for space in ("global", "shared"):
        for type_, count in (
            *((t, n) for t in ("b8", "u16", "b32", "f32") for n in (2, 4)),
            ("b64", 2),
            ("f64", 2),
        ):
            width = int(type_[1:]) // 8
            size = width * count
            register = {1: "%h", 2: "%h", 4: "%r", 8: "%d"}[width]
            names = [f"{register}{30 + i}" for i in range(count)]
            forward, backward = ", ".join(names), ", ".join(reversed(names))
            load, store = f"ld.{{}}.v{count}.{type_}", f"st.{{}}.v{count}.{type_}"
            body = f"""mul.wide.u32 %d1, %x, {size}; add.u64 %d0, %p_data, %d1;
            sub.u32 %r3, 31, %x; mul.wide.u32 %d3, %r3, {size}; add.u64 %d2, %p_out, %d3;
            {load.format("global")} {{{forward}}}, [%d0];
            """
            if space == "shared":
                body += f"""mov.u32 %r4, area; mad.lo.u32 %r5, %x, {size}, %r4;
                {store.format("shared")} [%r5], {{{backward}}}; bar.sync 0;
                xor.b32 %r6, %x, 5; mad.lo.u32 %r5, %r6, {size}, %r4;
                {load.format("shared")} {{{forward}}}, [%r5];
                """
            body += f"{store.format('global')} [%d2], {{{backward}}};"
            yield program(
                f"memory/{space} v{count}.{type_}",
                body,
                inputs={"data": _bytes(4, 32 * size)},
                outputs={"out": poisoned(np.uint8, 32 * size)},
                preamble=f".shared .align 16 .b8 area[{32 * size}];\n",
            )


def qualifiers() -> Iterator[Snippet]:
    """What changes caching or order and not the value."""
    loads = [
        "ld.global.nc.b32", "ld.global.ca.b32", "ld.global.cg.b32", "ld.global.cs.b32",
        "ld.global.lu.b32", "ld.global.cv.b32", "ld.volatile.global.b32", "ld.weak.global.b32",
        "ld.relaxed.gpu.global.b32", "ld.acquire.cta.global.b32", "ld.acquire.sys.global.b32",
        "ld.global.L1::no_allocate.b32", "ld.global.L2::128B.b32", "ld.global.nc.L2::256B.b32",
        "ld.global.nc.L1::evict_last.b32", "ldu.global.b32", "ld.relaxed.cluster.global.b32",
    ]  # fmt: skip
    rows = [f"{load} %r20, [%d0];" for load in loads]
    policy = "createpolicy.fractional.L2::evict_first.b64 %d5, 1.0;"
    rows.append(f"{policy} ld.global.L2::cache_hint.b32 %r20, [%d0], %d5;")
    rows.append("prefetch.global.L2 [%d0]; prefetchu.L1 [%d0]; ld.b32 %r20, [%d0];")
    yield program(
        "memory/ld qualifiers",
        "mul.wide.u32 %d1, %x, 4; add.u64 %d0, %p_data, %d1;\n" + _rows(rows),
        inputs={"data": _words(5, 32)},
        outputs={"out": poisoned(np.uint32, len(rows), 32)},
        lines=tuple(rows),
    )
    stores = [
        "st.global.wb.b32", "st.global.cg.b32", "st.global.cs.b32", "st.global.wt.b32",
        "st.volatile.global.b32", "st.relaxed.gpu.global.b32", "st.release.gpu.global.b32",
        "st.release.cta.global.b32", "st.weak.global.b32", "st.global.L1::no_allocate.b32",
    ]  # fmt: skip
    body = "mul.wide.u32 %d1, %x, 4; add.u64 %d0, %p_data, %d1; ld.global.b32 %r3, [%d0];\n"
    body += "add.u64 %d2, %p_out, %d1;\n"
    body += "\n".join(f"{store} [%d2+{128 * i}], %r3;" for i, store in enumerate(stores))
    body += "\nfence.acq_rel.gpu; fence.sc.cta; membar.gl; membar.cta; fence.acq_rel.cluster;"
    yield program(
        "memory/st qualifiers",
        body,
        inputs={"data": _words(6, 32)},
        outputs={"out": poisoned(np.uint32, len(stores), 32)},
        lines=tuple(stores),
    )


def spaces() -> Iterator[Snippet]:
    yield program(
        "memory/local",
        """.local .align 16 .b8 place[32];
        mul.wide.u32 %d1, %x, 4; add.u64 %d0, %p_data, %d1; ld.global.b32 %r3, [%d0];
        mov.u32 %r4, place; mov.u32 %r5, 0;
        $fill: mad.lo.u32 %r6, %r5, 4, %r4; add.u32 %r7, %r3, %r5; st.local.b32 [%r6], %r7;
        add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 8;
        @%p1 bra $fill;
        and.b32 %r8, %r3, 31; add.u32 %r9, %r4, %r8; st.local.u8 [%r9], %r3;
        shr.u32 %r8, %r3, 8; and.b32 %r8, %r8, 28; add.u32 %r9, %r4, %r8;
        ld.local.b32 %r10, [%r9]; ld.local.v2.b32 {%r11, %r12}, [place+8];
        ld.local.s8 %r13, [place+3];
        mov.u64 %d5, place; cvta.local.u64 %d5, %d5; ld.b32 %r14, [%d5+16];
        st.b16 [%d5+18], %r3; ld.local.b32 %r15, [place+16];
        """
        + _rows([f"mov.b32 %r20, %r{i};" for i in range(10, 16)]),
        inputs={"data": _words(7, 32)},
        outputs={"out": poisoned(np.uint32, 6, 32)},
    )
    constants = (
        ".const .align 4 .b32 table[8] = {1, 20, 300, 4000, 0xdeadbeef, 7, 8, 9};\n"
        ".const .align 4 .f32 halves[3] = {0.5, -1.5, 0f7FC00000};\n"
        ".const .align 2 .b8 letters[5] = {65, 66, 67, 255, 1};\n"
        ".global .align 8 .b64 big[2] = {0x0123456789abcdef, -2};\n"
        ".global .align 4 .b32 empty[4];\n"
    )
    rows = [
        "and.b32 %r3, %x, 7; mov.u32 %r4, table; mad.lo.u32 %r5, %r3, 4, %r4;"
        " ld.const.b32 %r20, [%r5];",
        "ld.const.f32 %r20, [halves+4];",
        "ld.const.f32 %r20, [halves+8];",
        "ld.const.s8 %r20, [letters+3];",
        "ld.const.v4.b32 {%r30, %r31, %r32, %r20}, [table+16];",
        "ld.global.b64 %d5, [big+8]; mov.b64 {%r30, %r20}, %d5;",
        "ld.global.b32 %r20, [big+4];",
        "ld.global.b32 %r20, [empty+8];",
        "mov.u64 %d5, table; cvta.const.u64 %d5, %d5; ld.b32 %r20, [%d5+8];",
    ]
    yield program(
        "memory/const and global variables",
        _rows(rows),
        outputs={"out": poisoned(np.uint32, len(rows), 32)},
        preamble=constants.replace(".align 4 .b32 table", ".align 16 .b32 table"),
        lines=tuple(rows),
    )
    rows = [
        "mov.b32 %r20, %p_word;",
        "cvt.u32.u16 %r20, %h1;",
        "ld.param.s8 %r20, [raw+5];",
        "ld.param.v2.b32 {%r30, %r20}, [raw+8];",
        "ld.param.b64 %d5, [raw+16]; mov.b64 {%r20, %r30}, %d5;",
        "mov.b64 %d5, raw; cvta.param.u64 %d5, %d5; ld.param.u16 %r20, [raw+2];",
        "mov.b64 %d5, raw; cvta.param.u64 %d5, %d5; ld.b32 %r20, [%d5+20];",
        "mov.b32 %r20, %p_real;",
    ]
    yield program(
        "memory/parameters",
        "ld.param.u16 %h1, [raw+2];\n" + _rows(rows),
        outputs={"out": poisoned(np.uint32, len(rows), 32)},
        scalars={
            "word": np.uint32(0x89ABCDEF),
            "raw": np.void(bytes(range(100, 124))),
            "real": np.float32(-2.75),
        },
        lines=tuple(rows),
    )
    spaces_ = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
    addresses = {
        "global": "mov.b64 %d6, %p_out;",
        "shared": "mov.u64 %d6, cell; cvta.shared.u64 %d6, %d6;",
        "local": "mov.u64 %d6, place; cvta.local.u64 %d6, %d6;",
        "const": "mov.u64 %d6, fixed; cvta.const.u64 %d6, %d6;",
    }
    rows = [
        f"{address} isspacep.{space} %p1, %d6; selp.b32 %r20, 1, 0, %p1;"
        for address in addresses.values()
        for space in spaces_
    ]
    yield program(
        "memory/isspacep",
        ".local .align 4 .b8 place[8];\n" + _rows(rows),
        outputs={"out": poisoned(np.uint32, len(rows), 32)},
        preamble=".shared .align 4 .b8 cell[8];\n.const .align 4 .b32 fixed[2] = {1, 2};\n",
        lines=tuple(rows),
    )
    yield program(
        "memory/generic",
        """mul.wide.u32 %d1, %x, 4; add.u64 %d0, %p_data, %d1; ld.b32 %r3, [%d0];
        mov.u64 %d2, cells; cvta.shared.u64 %d3, %d2; add.u64 %d4, %d3, %d1; st.b32 [%d4], %r3;
        bar.sync 0;
        xor.b32 %r4, %x, 31; mad.wide.u32 %d5, %r4, 4, %d3; ld.b32 %r5, [%d5];
        cvta.to.shared.u64 %d6, %d5; ld.shared.b32 %r6, [%d6]; sub.u64 %d7, %d6, %d2;
        cvt.u32.u64 %r7, %d7; cvta.to.global.u64 %d8, %d0; ld.global.b32 %r8, [%d8];
        cvta.shared::cta.u64 %d10, %d2; sub.u64 %d10, %d10, %d3; cvt.u32.u64 %r9, %d10;
        """
        + _rows([f"mov.b32 %r20, %r{i};" for i in range(5, 10)]),
        inputs={"data": _words(8, 32)},
        outputs={"out": poisoned(np.uint32, 5, 32)},
        preamble=".shared .align 16 .b32 cells[32];\n",
    )
    yield program(
        "memory/dynamic shared",
        """mov.u32 %r3, room; mad.lo.u32 %r4, %x, 4, %r3; mad.lo.u32 %r5, %x, 7, 3;
        st.shared.b32 [%r4], %r5; st.shared.b32 [%r4+2048], %x; bar.sync 0;
        xor.b32 %r6, %x, 64; mad.lo.u32 %r4, %r6, 4, %r3;
        ld.shared::cta.b32 %r10, [%r4]; ld.shared.b32 %r11, [%r4+2048];
        mov.u32 %r12, %dynamic_smem_size; ld.volatile.shared.b32 %r13, [%r4];
        """
        + _rows([f"mov.b32 %r20, %r{i};" for i in range(10, 14)], threads=128),
        outputs={"out": poisoned(np.uint32, 4, 128)},
        preamble=".extern .shared .align 128 .b8 room[];\n",
        block=(128, 1, 1),
        shared_bytes=4096,
    )


def atomics() -> Iterator[Snippet]:
    """Old values where every lane has an address of its own; sums where all meet at few."""
    integer = {
        "u32": ("add", "min", "max", "inc", "dec"),
        "s32": ("add", "min", "max"),
        "b32": ("and", "or", "xor", "exch"),
        "u64": ("add", "min", "max"),
        "s64": ("min", "max"),
        "b64": ("and", "or", "xor", "exch"),
        "f32": ("add",),
        "f64": ("add",),
        "f16": ("add.noftz",),
        "bf16": ("add.noftz",),
        "f16x2": ("add.noftz",),
        "bf16x2": ("add.noftz",),
    }
    for space in ("global", "shared"):
        for type_, operations in integer.items():
            yield _distinct(space, type_, [f"atom.{space}.{o}.{type_}" for o in operations])
        yield _together(space)
    semantics = ("relaxed.gpu", "acquire.cta", "release.gpu", "acq_rel.sys", "acq_rel.cluster")
    yield _distinct("global", "u32", [f"atom.{s}.global.add.u32" for s in semantics], " semantics")
    yield _distinct("global", "u32", ["atom.add.u32"], " generic")
    yield _compare_and_swap()
    yield from _vector_atomics()


def _operands_for(type_: str, count: int) -> Array:
    """Memory contents and operands: special integers, or floats near one."""
    name, _, packed = type_.partition("x")
    if name not in inputs.FLOATS:
        return inputs.column(type_, 20, count)
    if packed:
        low, high = (inputs.moderate_floats(s, count, name, 4).astype(np.uint32) for s in (21, 22))
        return low | high << np.uint32(16)
    return inputs.moderate_floats(23, count, name, 4)


def _distinct(space: str, type_: str, opcodes: list[str], label: str = "") -> Snippet:
    bits = inputs.bits_of(type_)
    size, register = bits // 8, {16: "%h", 32: "%r", 64: "%d"}[bits]
    dtype, count = inputs.UNSIGNED[bits], 32
    body = f"""mul.wide.u32 %d1, %x, {size}; add.u64 %d0, %p_data, %d1; add.u64 %d2, %p_out, %d1;
    ld.global.b{bits} {register}30, [%d0]; ld.global.b{bits} {register}31, [%d0+{32 * size}];
    mov.u32 %r4, cells; mad.lo.u32 %r5, %x, {size}, %r4;
    """
    for row, opcode in enumerate(opcodes):
        at = row * 2 * count * size
        place = "%r5" if space == "shared" else f"%d2+{at + count * size}"
        body += f"""st.{space}.b{bits} [{place}], {register}30;
        {opcode} {register}32, [{place}], {register}31;
        st.global.b{bits} [%d2+{at}], {register}32;
        """
        if space == "shared":
            body += f"""ld.shared.b{bits} {register}33, [%r5];
            st.global.b{bits} [%d2+{at + count * size}], {register}33;
            """
    return program(
        f"atomic/{space} {type_}{label}",
        body,
        inputs={"data": partial(_operands_for, type_, 2 * count)},
        outputs={"out": poisoned(dtype, len(opcodes), 2 * count)},
        preamble=f".shared .align 16 .b8 cells[{count * size}];\n",
        lines=tuple(opcodes),
    )


def _together(space: str) -> Snippet:
    """256 threads on few cells; only what does not depend on their order is kept."""
    body = """mul.wide.u32 %d1, %x, 4; add.u64 %d0, %p_data, %d1; ld.global.b32 %r3, [%d0];
    and.b32 %r4, %x, 3; mov.u32 %r5, cells; mad.lo.u32 %r6, %r4, 64, %r5;
    mad.wide.u32 %d2, %r4, 64, %p_out; setp.lt.u32 %p1, %x, 64; mad.lo.u32 %r7, %x, 4, %r5;
    @%p1 st.shared.b32 [%r7], 77;
    bar.sync 0;
    """
    base = "%r6" if space == "shared" else "%d2"
    for cell, operation in enumerate(OPERATIONS):
        operand = "100" if operation.startswith(("inc", "dec")) else "%r3"
        body += f"red.{space}.{operation} [{base}+{4 * cell}], {operand};\n"
        body += f"atom.{space}.{operation} %r20, [{base}+{32 + 4 * cell}], {operand};\n"
    body += "bar.sync 0;\n"
    if space == "shared":
        body += "mad.wide.u32 %d3, %x, 4, %p_out;\n@%p1 ld.shared.b32 %r8, [%r7];\n"
        body += "@%p1 st.global.b32 [%d3], %r8;\n"
    return program(
        f"atomic/{space} together",
        body,
        inputs={"data": _words(24, 256)},
        outputs={"out": lambda: np.full((4, 16), 77, np.uint32)},
        preamble=".shared .align 16 .b8 cells[256];\n",
        block=(256, 1, 1),
    )


def _compare_and_swap() -> Snippet:
    def cells() -> Array:
        return np.resize(np.array([3, 5], np.uint64), (4, 32)).copy()

    body = """mul.wide.u32 %d1, %x, 8; add.u64 %d0, %p_cells, %d1; cvt.u64.u32 %d3, %x;
    add.u64 %d4, %d3, 1000; cvt.u32.u64 %r4, %d4; cvt.u16.u32 %h4, %r4; mov.b16 %h3, 5;
    atom.global.cas.b32 %r10, [%d0], 5, %r4; atom.global.cas.b64 %d10, [%d0+256], 3, %d4;
    atom.global.cas.b16 %h10, [%d0+512], %h3, %h4; cvt.u64.u32 %d11, %r10; cvt.u64.u16 %d12, %h10;
    mul.wide.u32 %d5, %x, 8; add.u64 %d6, %p_out, %d5; st.global.b64 [%d6], %d10;
    st.global.b64 [%d6+256], %d11; st.global.b64 [%d6+512], %d12;
    setp.ge.u32 %p1, %x, 16;
    @%p1 ret;
    mad.wide.u32 %d7, %x, 16, %p_cells; add.u64 %d7, %d7, 768;
    mov.b128 %q1, {3, 5}; mov.b128 %q2, {%d3, %d4}; atom.global.cas.b128 %q0, [%d7], %q1, %q2;
    mov.b128 {%d20, %d21}, %q0; add.u64 %d20, %d20, %d21; st.global.b64 [%d6+768], %d20;
    atom.global.exch.b128 %q0, [%d7], %q1; mov.b128 {%d20, %d21}, %q0;
    st.global.b64 [%d6+896], %d21;
    """
    return program(
        "atomic/compare and swap",
        body,
        outputs={"cells": cells, "out": poisoned(np.uint64, 4, 32)},
    )


def _vector_atomics() -> Iterator[Snippet]:
    forms: Mapping[str, tuple[int, int]] = {
        "v2.f32": (2, 32), "v4.f32": (4, 32), "v2.f16x2": (2, 32), "v4.bf16x2": (4, 32),
        "v4.f16": (4, 16), "v8.bf16": (8, 16),
    }  # fmt: skip
    for form, (count, bits) in forms.items():
        type_ = form.partition(".")[2]
        noftz = "" if type_ == "f32" else ".noftz"
        size = count * bits // 8
        register = "%r" if bits == 32 else "%h"
        names = [f"{register}{30 + i}" for i in range(count)]
        old = [f"{register}{40 + i}" for i in range(count)]
        load = "\n".join(
            f"ld.global.b{bits} {n}, [%d0+{32 * size + i * bits // 8}];"
            for i, n in enumerate(names)
        )
        store = "\n".join(
            f"st.global.b{bits} [%d3+{i * bits // 8}], {n};" for i, n in enumerate(old)
        )
        yield program(
            f"atomic/{form}",
            f"""mul.wide.u32 %d1, %x, {size}; add.u64 %d0, %p_data, %d1; add.u64 %d3, %p_out, %d1;
            {load}
            atom.global.add{noftz}.{form} {{{", ".join(old)}}}, [%d0], {{{", ".join(names)}}};
            {store}
            red.global.add{noftz}.{form} [%d0], {{{", ".join(names)}}};
            """,
            outputs={
                "data": partial(_operands_for, type_, 64 * count),
                "out": poisoned(inputs.UNSIGNED[bits], 32 * count),
            },
        )


def special_registers() -> Iterator[Snippet]:
    names = [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    # Not %warpid: hardware gives the slot that a warp runs in, which may change.
    names += ["%laneid", "%dynamic_smem_size"]
    names += [f"%lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge")]
    names += [
        f"%{name}.{axis}"
        for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
        for axis in "xyz"
    ]
    names += ["%cluster_ctarank", "%cluster_nctarank"]
    threads, ctas = 8 * 4 * 3, 2 * 2 * 3
    number = """mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mad.lo.u32 %r3, %r2, 4, %r1;
    mad.lo.u32 %r3, %r3, 8, %x;
    mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z;
    mad.lo.u32 %r7, %r6, 2, %r5; mad.lo.u32 %r7, %r7, 2, %r4; mad.lo.u32 %r0, %r7, 96, %r3;
    mad.wide.u32 %d9, %r0, 4, %p_out;
    """
    for label, cluster in (("", (1, 1, 1)), (" in clusters", (2, 1, 3))):
        text = number
        for row, name in enumerate(names):
            text += f"mov.u32 %r20, {name}; st.global.b32 [%d9+{row * threads * ctas * 4}], %r20;\n"
        text += "mov.pred %p1, %is_explicit_cluster; selp.b32 %r20, 1, 0, %p1;\n"
        text += f"st.global.b32 [%d9+{len(names) * threads * ctas * 4}], %r20;"
        yield program(
            f"memory/special registers{label}",
            text,
            outputs={"out": poisoned(np.uint32, len(names) + 1, threads * ctas)},
            block=(8, 4, 3),
            grid=(2, 2, 3),
            cluster=cluster,
            lines=(*names, "%is_explicit_cluster"),
        )
    yield program(
        "memory/clocks",
        """mov.u32 %r3, %clock; mov.u64 %d3, %clock64; mov.u64 %d4, %globaltimer;
        mov.u64 %d5, %clock64; mov.u64 %d6, %globaltimer; setp.ge.u64 %p1, %d5, %d3;
        setp.ge.u64 %p2, %d6, %d4;
        and.pred %p1, %p1, %p2; nanosleep.u32 20; griddepcontrol.launch_dependents;
        griddepcontrol.wait; pmevent 1;
        """
        + _rows(["selp.b32 %r20, 1, 0, %p1;"]),
        outputs={"out": poisoned(np.uint32, 1, 32)},
    )


def snippets() -> Iterator[Snippet]:
    yield from subwords()
    yield from vectors()
    yield from qualifiers()
    yield from spaces()
    yield from atomics()
    yield from special_registers()

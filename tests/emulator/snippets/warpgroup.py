"""wgmma: types, shapes, layouts of operands, A from registers, negation, groups in flight."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import Array
from tests.emulator.snippets.snippet import Snippet, poisoned, program

#: Bytes of shared memory for each operand.
A_BYTES, B_BYTES = 16384, 32768
SWIZZLE_MODE = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
#: Elements of one K step: 32 bytes of every row.
WIDTH = {"tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "b1": 1, "f16": 16, "bf16": 16}


@dataclass(frozen=True)
class Form:
    """One wgmma. lead, stride: the descriptors' byte offsets for (A, B)."""

    a: str
    b: str
    result: Literal["f16", "f32", "s32"]
    n: int
    swizzle: str = "128B"
    lead: tuple[int, int] = (16, 16)
    stride: tuple[int, int] = (1024, 1024)
    transposed: tuple[int, int] = (0, 0)
    negated: tuple[int, int] = (1, 1)
    registers: bool = False  # A comes from registers
    scale_d: bool = True
    kind: Literal["exact", "rounded", "wide", "special"] = "exact"
    modifier: str = ""
    start: tuple[int, int] = (0, 0)  # byte offsets of the operands from a multiple of 1024
    base: tuple[int, int] = (0, 0)  # base offsets of the descriptors

    @property
    def k(self) -> int:
        return 256 // WIDTH[self.a]

    @property
    def opcode(self) -> str:
        tail = ".and.popc" if self.a == "b1" else ""
        return (
            f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}"
            f".{self.result}.{self.a}.{self.b}{tail}{self.modifier}"
        )

    @property
    def name(self) -> str:
        parts = [f"m64n{self.n}k{self.k}.{self.result}.{self.a}.{self.b}{self.modifier}"]
        parts.append("A registers" if self.registers else "")
        if (self.swizzle, self.lead, self.stride) != ("128B", (16, 16), (1024, 1024)):
            offsets = zip(self.lead, self.stride, strict=True)
            parts.append(f"{self.swizzle} {' '.join(f'{x}/{y}' for x, y in offsets)}")
        parts += [f"{x}^T" for x, t in zip("AB", self.transposed, strict=True) if t]
        parts += [f"-{x}" for x, s in zip("AB", self.negated, strict=True) if s < 0]
        parts.append("" if self.scale_d else "D=0")
        parts.append("" if self.kind == "exact" else self.kind)
        parts += [f"{x}+{s}" for x, s in zip("AB", self.start, strict=True) if s]
        parts += [f"{x} base {b}" for x, b in zip("AB", self.base, strict=True) if b]
        return " ".join(part for part in parts if part)

    def call(self, accumulators: str, step: int = 0) -> str:
        """The instruction; step: how many K steps of 32 bytes the descriptors are ahead."""
        a = "{%r40, %r41, %r42, %r43}" if self.registers else f"%d{40 + step}"
        operands = [accumulators, a, f"%d{50 + step}", "%p20"]
        if self.a not in ("s8", "u8", "b1"):
            operands += map(str, self.negated)
        if self.a in ("f16", "bf16"):
            operands += map(str, self.transposed[1:] if self.registers else self.transposed)
        return f"{self.opcode} {', '.join(operands)};"


def _operand(type_: str, seed: int, size: int, kind: str) -> Array:
    width = max(WIDTH[type_], 8)
    return inputs.matrix_elements(type_, seed, 8 * size // width, kind).view(np.uint32)


def _accumulators(form: Form) -> Array:
    type_ = "b8" if form.result == "s32" else form.result
    width = {"b8": 8, "f16": 16, "f32": 32}[type_]
    size = 64 * form.n * (16 if form.result == "f16" else 32)
    return inputs.matrix_elements(type_, 63, size // width, form.kind).view(np.uint32)


#: Copies the operands to shared memory and makes them visible to the tensor core.
FILL = f"""mov.u32 %r3, room; mad.lo.u32 %r4, %x, 16, %r3; mad.wide.u32 %d0, %x, 16, %p_a;
mad.wide.u32 %d1, %x, 16, %p_b; mov.u32 %r5, 0;
$fill: ld.global.v4.b32 {{%r6, %r7, %r8, %r9}}, [%d1];
st.shared.v4.b32 [%r4+{A_BYTES}], {{%r6, %r7, %r8, %r9}};
setp.lt.u32 %p1, %r5, {A_BYTES};
@%p1 ld.global.v4.b32 {{%r6, %r7, %r8, %r9}}, [%d0];
@%p1 st.shared.v4.b32 [%r4], {{%r6, %r7, %r8, %r9}};
add.u32 %r4, %r4, 2048; add.u64 %d0, %d0, 2048; add.u64 %d1, %d1, 2048; add.u32 %r5, %r5, 2048;
setp.lt.u32 %p1, %r5, {B_BYTES};
@%p1 bra $fill;
fence.proxy.async.shared::cta; bar.sync 0;
"""


def _descriptors(form: Form, steps: int) -> str:
    """Descriptors of A in %d40..., of B in %d50..., one for each K step."""
    text = ""
    for i, (base, offset) in enumerate(((40, 0), (50, A_BYTES))):
        high = (
            SWIZZLE_MODE[form.swizzle] << 62
            | form.base[i] << 49
            | form.stride[i] >> 4 << 32
            | form.lead[i] >> 4 << 16
        )
        for step in range(steps):
            at = offset + form.start[i] + 32 * step
            text += f"add.u32 %r10, %r3, {at}; bfe.u32 %r11, %r10, 4, 14;\n"
            text += f"cvt.u64.u32 %d{base + step}, %r11;\n"
            text += f"or.b64 %d{base + step}, %d{base + step}, 0x{high:016x};\n"
    return text


def _accumulator_registers(form: Form, first: int = 100) -> list[str]:
    return [f"%r{first + i}" for i in range(form.n // (4 if form.result == "f16" else 2))]


def _move(form: Form, registers: list[str], load: bool, row: int = 0) -> str:
    """Loads accumulators from c, or stores them to out, four at a time."""
    place = "%p_c" if load else "%p_out"
    text = f"mad.wide.u32 %d9, %x, {4 * len(registers)}, {place};\n"
    start = row * 128 * 4 * len(registers)
    vector = 4 if len(registers) % 4 == 0 else 2
    for i in range(0, len(registers), vector):
        names = "{" + ", ".join(registers[i : i + vector]) + "}"
        address = f"[%d9+{start + 4 * i}]"
        if load:
            text += f"ld.global.v{vector}.b32 {names}, {address};\n"
        else:
            text += f"st.global.v{vector}.b32 {address}, {names};\n"
    return text


LOAD_A = "mad.wide.u32 %d9, %x, 16, %p_a; ld.global.v4.b32 {%r40, %r41, %r42, %r43}, [%d9];\n"
WAIT = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"


def _snippet(form: Form, name: str, work: str, steps: int, rows: int = 1) -> Snippet:
    elements = 64 * form.n * rows
    dtype = np.uint16 if form.result == "f16" else np.uint32
    return program(
        f"wgmma/{name}",
        FILL + _descriptors(form, steps) + LOAD_A + work,
        inputs={
            "a": partial(_operand, form.a, 61, A_BYTES, form.kind),
            "b": partial(_operand, form.b, 62, B_BYTES, form.kind),
            "c": partial(_accumulators, form),
        },
        outputs={"out": poisoned(dtype, elements)},
        preamble=".extern .shared .align 1024 .b8 room[];\n",
        block=(128, 1, 1),
        shared_bytes=A_BYTES + B_BYTES,
    )


def single(form: Form) -> Snippet:
    registers = _accumulator_registers(form)
    work = _move(form, registers, load=True)
    work += f"setp.{'eq' if form.scale_d else 'ne'}.u32 %p20, %x, %x;\nwgmma.fence.sync.aligned;\n"
    work += form.call("{" + ", ".join(registers) + "}") + "\n" + WAIT
    work += _move(form, registers, load=False)
    return _snippet(form, form.name, work, steps=1)


def forms() -> Iterator[Form]:
    half = Form("f16", "f16", "f32", 64)
    for n in (8, 24, 40, 64, 96, 128, 176, 256):
        yield dataclasses.replace(half, n=n)
    for a, b, result, sizes in (
        ("f16", "f16", "f16", (8, 64, 200)),
        ("bf16", "bf16", "f32", (16, 128, 248)),
        ("tf32", "tf32", "f32", (8, 72, 256)),
        ("e4m3", "e4m3", "f32", (8, 64, 256)),
        ("e4m3", "e5m2", "f32", (32,)),
        ("e5m2", "e4m3", "f16", (16,)),
        ("e5m2", "e5m2", "f32", (128,)),
        ("e4m3", "e4m3", "f16", (96,)),
        ("s8", "s8", "s32", (8, 64, 256)),
        ("s8", "u8", "s32", (32,)),
        ("u8", "s8", "s32", (16,)),
        ("u8", "u8", "s32", (96,)),
        ("b1", "b1", "s32", (8, 128)),
    ):
        for n in sizes:
            yield Form(a, b, result, n)  # type: ignore[arg-type]
    yield Form("s8", "s8", "s32", 24, modifier=".satfinite")
    # A in registers, of every type.
    for a, b, result in (
        ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"),
        ("tf32", "tf32", "f32"), ("e4m3", "e5m2", "f32"), ("s8", "u8", "s32"), ("b1", "b1", "s32"),
    ):  # fmt: skip
        yield Form(a, b, result, 32, registers=True)  # type: ignore[arg-type]
    # Layouts: no swizzle, 64 and 32 bytes, K-major, for 8, 16 and 32-bit elements.
    for a in ("f16", "tf32", "e4m3"):
        base = Form(a, a, "f32", 48)
        yield dataclasses.replace(base, swizzle="none", lead=(128, 128), stride=(256, 256))
        yield dataclasses.replace(base, swizzle="none", lead=(1024, 2048), stride=(128, 128))
        yield dataclasses.replace(base, swizzle="64B", stride=(512, 512))
        yield dataclasses.replace(base, swizzle="32B", stride=(256, 256))
        yield dataclasses.replace(base, stride=(1024, 2048))
        # Operands that begin inside a swizzled row: what a step along K does.
        yield dataclasses.replace(base, start=(32, 96))
        yield dataclasses.replace(base, swizzle="64B", stride=(512, 512), start=(32, 32))
    # MN-major operands.
    for swizzle in ("128B", "64B", "32B", "none"):
        period = {"128B": 1024, "64B": 512, "32B": 256, "none": 128}[swizzle]
        for n, transposed in ((64, (1, 1)), (128, (0, 1)), (16, (1, 0))):
            yield dataclasses.replace(
                half,
                n=n,
                swizzle=swizzle,
                transposed=transposed,
                lead=(2 * period, 2 * period),
                stride=(period, period),
            )
    yield dataclasses.replace(
        half, n=256, transposed=(1, 1), lead=(2048, 4096), stride=(1024, 1024)
    )
    yield dataclasses.replace(
        half, n=64, registers=True, transposed=(0, 1), lead=(1024, 2048), stride=(1024, 1024)
    )
    # Signs, and a result that does not read its accumulators.
    for negated in ((-1, 1), (1, -1), (-1, -1)):
        yield dataclasses.replace(half, n=16, negated=negated)
    yield Form("tf32", "tf32", "f32", 8, negated=(-1, 1))
    yield Form("e4m3", "e4m3", "f32", 8, negated=(1, -1))
    yield dataclasses.replace(half, n=32, negated=(-1, 1), registers=True)
    yield dataclasses.replace(half, n=16, scale_d=False)
    yield Form("s8", "s8", "s32", 16, scale_d=False)
    # Sums that have to be rounded, and what is no number.
    for a, b, result in (
        ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"),
        ("tf32", "tf32", "f32"), ("e4m3", "e4m3", "f32"), ("e5m2", "e4m3", "f32"),
        ("e4m3", "e4m3", "f16"),
    ):  # fmt: skip
        for kind in ("rounded", "wide", "special"):
            yield Form(a, b, result, 16, kind=kind)  # type: ignore[arg-type]
    yield Form("e4m3", "e5m2", "f32", 16, kind="wide", scale_d=False)
    yield Form("f16", "f16", "f32", 16, kind="wide", scale_d=False, negated=(-1, 1))
    yield Form("e5m2", "e5m2", "f32", 8, kind="wide", registers=True)
    # Patterns that do not begin at a multiple of their size, named by a base offset.
    for a, b in (("f16", "f16"), ("tf32", "tf32")):
        for start, late in (((256, 0), (2, 0)), ((0, 384), (0, 3)), ((640, 128), (5, 1))):
            yield Form(a, b, "f32", 24, start=start, base=late)
            yield Form(a, b, "f32", 24, start=start)
    yield Form("f16", "f16", "f32", 24, "64B", stride=(512, 512), start=(128, 0), base=(1, 0))
    yield Form("f16", "f16", "f32", 24, base=(3, 0))


def sequences() -> Iterator[Snippet]:
    """Several in flight: K steps on one accumulator, two groups of which one is waited for."""
    form = Form("bf16", "bf16", "f32", 64)
    names = _accumulator_registers(form)
    accumulators = "{" + ", ".join(names) + "}"
    steps = "\n".join(form.call(accumulators, step) for step in range(4))
    work = "setp.ne.u32 %p20, %x, %x;\nwgmma.fence.sync.aligned;\n"
    work += form.call(accumulators, 0) + "\nsetp.eq.u32 %p20, %x, %x;\n" + steps + "\n" + WAIT
    yield _snippet(form, "K steps", work + _move(form, names, load=False), steps=4)
    other = [f"%r{150 + i}" for i in range(32)]
    second = "{" + ", ".join(other) + "}"
    work = "setp.ne.u32 %p20, %x, %x;\nwgmma.fence.sync.aligned;\n"
    work += form.call(accumulators, 0) + "\nwgmma.commit_group.sync.aligned;\n"
    work += form.call(second, 1) + "\nwgmma.commit_group.sync.aligned;\n"
    work += "wgmma.wait_group.sync.aligned 1;\n" + _move(form, names, load=False)
    work += "wgmma.wait_group.sync.aligned 0;\n" + _move(form, other, load=False, row=1)
    yield _snippet(form, "two groups", work, steps=2, rows=2)
    held = dataclasses.replace(form, registers=True)
    work = "setp.ne.u32 %p20, %x, %x;\nwgmma.fence.sync.aligned;\n"
    work += held.call(accumulators, 0) + "\n" + WAIT
    work += "add.u32 %r40, %r40, 0x00010001; xor.b32 %r43, %r43, 0x80008000;\n"
    work += "setp.eq.u32 %p20, %x, %x;\nwgmma.fence.sync.aligned;\n"
    work += held.call(accumulators, 1) + "\n" + WAIT
    yield _snippet(held, "A registers rewritten", work + _move(form, names, load=False), steps=2)


def snippets() -> Iterator[Snippet]:
    for form in forms():
        yield single(form)
    yield from sequences()

"""Matrix instructions of one warp: ldmatrix, stmatrix, movmatrix and mma."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import Array
from tests.emulator.snippets.snippet import Snippet, poisoned, program

FILL = """mad.wide.u32 %d0, %x, 16, %p_data; mov.u32 %r3, area; mad.lo.u32 %r4, %x, 16, %r3;
ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d0]; st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};
bar.warp.sync -1;
"""
AREA = ".shared .align 128 .b8 area[512];\n"


def moves() -> Iterator[Snippet]:
    data = partial(inputs.random_bits, 51, 512, 8)
    for count in (1, 2, 4):
        registers = ", ".join(f"%r{20 + i}" for i in range(count))
        for trans in ("", ".trans"):
            # Rows come from a permutation of the area, so that each lane's address matters.
            yield program(
                f"matrix/ldmatrix.x{count}{trans}",
                FILL
                + f"""mad.lo.u32 %r9, %x, 13, 5; and.b32 %r9, %r9, 31; mad.lo.u32 %r9, %r9, 16, %r3;
                ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r9];
                mad.wide.u32 %d9, %x, 4, %p_out;
                """
                + "\n".join(f"st.global.b32 [%d9+{128 * i}], %r{20 + i};" for i in range(count)),
                inputs={"data": data},
                outputs={"out": poisoned(np.uint32, count, 32)},
                preamble=AREA,
            )
            sources = ", ".join(f"%r{5 + i}" for i in range(count))
            yield program(
                f"matrix/stmatrix.x{count}{trans}",
                FILL
                + f"""mad.lo.u32 %r9, %x, 11, 2; and.b32 %r9, %r9, 31; mad.lo.u32 %r9, %r9, 16, %r3;
                stmatrix.sync.aligned.m8n8.x{count}{trans}.shared::cta.b16 [%r9], {{{sources}}};
                bar.warp.sync -1;
                ld.shared.v4.b32 {{%r5, %r6, %r7, %r8}}, [%r4]; mad.wide.u32 %d9, %x, 16, %p_out;
                st.global.v4.b32 [%d9], {{%r5, %r6, %r7, %r8}};""",
                inputs={"data": data},
                outputs={"out": poisoned(np.uint32, 128)},
                preamble=AREA,
            )
    yield program(
        "matrix/movmatrix",
        """mad.wide.u32 %d0, %x, 4, %p_data; ld.global.b32 %r5, [%d0];
        movmatrix.sync.aligned.m8n8.trans.b16 %r6, %r5; mad.wide.u32 %d9, %x, 4, %p_out;
        st.global.b32 [%d9], %r6;""",
        inputs={"data": data},
        outputs={"out": poisoned(np.uint32, 32)},
    )


#: mma: shape, result type, types of A and B, what is written between types and nothing, modifiers.
FORMS = [
    ("m16n8k8", "f16", "f16", "f16", ""),
    ("m16n8k8", "f32", "f16", "f16", ""),
    ("m16n8k16", "f16", "f16", "f16", ""),
    ("m16n8k16", "f32", "f16", "f16", ""),
    ("m16n8k8", "f32", "bf16", "bf16", ""),
    ("m16n8k16", "f32", "bf16", "bf16", ""),
    ("m16n8k4", "f32", "tf32", "tf32", ""),
    ("m16n8k8", "f32", "tf32", "tf32", ""),
    ("m16n8k32", "f32", "e4m3", "e4m3", ""),
    ("m16n8k32", "f32", "e5m2", "e4m3", ""),
    ("m8n8k16", "s32", "s8", "u8", ""),
    ("m16n8k16", "s32", "s8", "s8", ".satfinite"),
    ("m16n8k32", "s32", "u8", "s8", ""),
    ("m16n8k32", "s32", "s8", "s8", ".satfinite"),
    ("m16n8k256", "s32", "b1", "b1", ".xor.popc"),
    ("m16n8k128", "s32", "b1", "b1", ".and.popc"),
    ("m8n8k4", "f64", "f64", "f64", ""),
    ("m16n8k8", "f64", "f64", "f64", ""),
    ("m16n8k16", "f64", "f64", "f64", ""),
]
WIDTH = {"tf32": 32, "e4m3": 8, "e5m2": 8, "b1": 1}


def _width(type_: str) -> int:
    return WIDTH.get(type_) or int(type_.lstrip("busf"))


def _elements(type_: str, seed: int, bits: int, kind: str) -> Array:
    """A whole operand of ``bits`` bits, as bytes."""
    width = max(_width(type_), 8)
    return inputs.matrix_elements(type_, seed, bits // width, kind).view(np.uint8)


def multiplications() -> Iterator[Snippet]:
    for shape, result, a, b, modifiers in FORMS:
        m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
        kinds: tuple[str, ...] = ("exact", "rounded", "wide", "special")
        if result not in ("f16", "f32"):
            kinds = ("rounded",) if result == "f64" else ("exact",)
        for kind in kinds:
            yield _multiplication(shape, (m, n, k), result, a, b, modifiers, kind)


def _multiplication(
    shape: str, mnk: tuple[int, int, int], result: str, a: str, b: str, modifiers: str, inputs_: str
) -> Snippet:
    m, n, k = mnk
    word = 64 if result == "f64" else 32
    register = "%d" if word == 64 else "%r"
    operand_bits = {"a": m * k * _width(a), "b": k * n * _width(b), "c": m * n * _width(result)}
    starts = {"a": 40, "b": 60, "c": 80}
    body, lists = "", {}
    for letter, bits in operand_bits.items():
        count = bits // word // 32
        names = [f"{register}{starts[letter] + i}" for i in range(count)]
        lists[letter] = "{" + ", ".join(names) + "}"
        body += f"mad.wide.u32 %d0, %x, {count * word // 8}, %p_{letter};\n"
        for i, name in enumerate(names):
            body += f"ld.global.b{word} {name}, [%d0+{i * word // 8}];\n"
    count = operand_bits["c"] // word // 32
    names = [f"{register}{100 + i}" for i in range(count)]
    kind = ""
    if modifiers.endswith("popc"):
        kind, modifiers = modifiers, ""
    body += (
        f"mma.sync.aligned.{shape}.row.col{modifiers}.{result}.{a}.{b}.{result}{kind}"
        f" {{{', '.join(names)}}}, {lists['a']}, {lists['b']}, {lists['c']};\n"
        f"mad.wide.u32 %d9, %x, {count * word // 8}, %p_out;\n"
    )
    for i, name in enumerate(names):
        body += f"st.global.b{word} [%d9+{i * word // 8}], {name};\n"
    dtype = {"f16": np.uint16, "f64": np.uint64}.get(result, np.uint32)
    return program(
        f"matrix/mma.{shape}.{result}.{a}.{b}{kind}{modifiers} {inputs_}",
        body,
        inputs={
            "a": partial(_elements, a, 52, operand_bits["a"], inputs_),
            "b": partial(_elements, b, 53, operand_bits["b"], inputs_),
            "c": partial(
                _elements, result if result != "s32" else "b8", 54, operand_bits["c"], inputs_
            ),
        },
        outputs={"out": poisoned(dtype, m * n)},
    )


def snippets() -> Iterator[Snippet]:
    yield from moves()
    yield from multiplications()

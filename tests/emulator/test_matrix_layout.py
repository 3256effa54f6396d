"""Warp matrices against loops over the formulas of PTX ISA 9.7.14.5."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from hopwell.emulator import matrix_layout as matrices
from hopwell.emulator import wgmma_layout as wgmma
from hopwell.emulator.matrix_product import BITS, multiply
from hopwell.errors import UnsupportedLayout

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_loaded_and_stored_matrices(count: int, transposed: bool) -> None:
    rows = RNG.integers(0, 256, (8 * count, 16), dtype=np.uint8)
    half = rows.view(np.uint16)
    registers = matrices.load(rows, transposed)
    assert registers.shape == (count, 32)
    for matrix, lane, part in itertools.product(range(count), range(32), range(2)):
        row, column = lane // 4, lane % 4 * 2 + part
        if transposed:
            row, column = column, row
        found = registers[matrix, lane] >> 16 * part & 0xFFFF
        assert found == half[8 * matrix + row, column]
    np.testing.assert_array_equal(matrices.store(registers, transposed), rows)


def test_movmatrix_transposes() -> None:
    register = RNG.integers(0, 1 << 32, 32).astype(np.uint32)
    moved = matrices.move(register)

    def element(values: npt.NDArray[np.uint32], row: int, column: int) -> int:
        return values[row * 4 + column // 2] >> column % 2 * 16 & 0xFFFF

    for row, column in itertools.product(range(8), range(8)):
        assert element(moved, row, column) == element(register, column, row)
    np.testing.assert_array_equal(matrices.move(moved), register)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("sync.aligned.m8n8.x4.shared.b16", (4, False)),
        ("sync.aligned.m8n8.x2.trans.shared::cta.b16", (2, True)),
        ("sync.aligned.m8n8.x1.b16", (1, False)),
    ],
)
def test_forms_of_loads_and_stores(text: str, form: tuple[int, bool]) -> None:
    assert matrices.matrix_form(text.split(".")) == matrices.MatrixForm(*form)


@pytest.mark.parametrize(
    "text",
    [
        "sync.aligned.m16n16.x1.trans.shared.b8",
        "sync.aligned.m16n8.x2.trans.shared.b8",
        "sync.aligned.m8n16.x4.shared.b8x16.b6x16_p32",
        "sync.aligned.m8n8.x8.b16",
        "sync.aligned.m8n8.b16",
    ],
)
def test_forms_that_hopper_does_not_have(text: str) -> None:
    with pytest.raises(UnsupportedLayout):
        matrices.matrix_form(text.split("."))


FORMS = [
    ("m16n8k8", "f32", "f16", "f16", 2, 1),
    ("m16n8k8", "f16", "f16", "f16", 2, 1),
    ("m16n8k8", "f32", "bf16", "bf16", 2, 1),
    ("m16n8k4", "f32", "tf32", "tf32", 2, 1),
    ("m16n8k8", "f32", "tf32", "tf32", 4, 2),
    ("m16n8k16", "f32", "f16", "f16", 4, 2),
    ("m16n8k16", "f32", "bf16", "bf16", 4, 2),
    ("m16n8k16", "s32", "s8", "u8", 2, 1),
    ("m16n8k32", "s32", "u8", "s8", 4, 2),
    ("m16n8k32", "f32", "e4m3", "e5m2", 4, 2),
    ("m16n8k16", "f16", "e5m2", "e4m3", 2, 1),
    ("m16n8k128", "s32", "b1", "b1", 2, 1),
    ("m16n8k256", "s32", "b1", "b1", 4, 2),
]


@pytest.mark.parametrize(("shape", "accumulator", "a_type", "b_type", "a_count", "b_count"), FORMS)
def test_fragments_of_mma(
    shape: str, accumulator: str, a_type: str, b_type: str, a_count: int, b_count: int
) -> None:
    text = f"sync.aligned.{shape}.row.col.{accumulator}.{a_type}.{b_type}.{accumulator}"
    if a_type == "b1":
        text += ".and.popc"
    form = matrices.mma_form(text.split("."))
    assert (form.a_registers, form.b_registers) == (a_count, b_count)
    assert form.c_registers == (2 if accumulator == "f16" else 4)
    bits = BITS[a_type]
    a_registers = RNG.integers(0, 1 << 32, (a_count, 32)).astype(np.uint32)
    b_registers = RNG.integers(0, 1 << 32, (b_count, 32)).astype(np.uint32)
    a = wgmma.fragment(a_registers, a_type)
    b = matrices.b_fragment(b_registers, b_type)
    assert (a.shape, b.shape) == ((16, form.k), (form.k, 8))
    each, mask = 32 // bits, (1 << bits) - 1
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        for i in range(a_count * each):
            register, inner = divmod(i, each)
            row = group + 8 * (register % 2)
            column = thread * each + inner + (4 * each if register >= 2 else 0)
            assert a[row, column] == a_registers[register, lane] >> bits * inner & mask
        for i in range(b_count * each):
            register, inner = divmod(i, each)
            row = thread * each + inner + 4 * each * register
            assert b[row, group] == b_registers[register, lane] >> bits * inner & mask


def test_word_maps_agree_with_the_fragments() -> None:
    registers = RNG.integers(0, 1 << 32, (2, 32)).astype(np.uint32)
    a = wgmma.fragment(registers, "tf32")
    np.testing.assert_array_equal(a[wgmma.fragment_map(2)], registers)
    b = matrices.b_fragment(registers, "tf32")
    column, word = matrices.b_map(2)
    np.testing.assert_array_equal(b[word, column], registers)


def test_a_product_through_registers() -> None:
    """Identity times B is B, found again where the accumulator's formula puts it."""
    form = matrices.mma_form(
        ["sync", "aligned", "m16n8k16", "row", "col", "f32", "f16", "f16", "f32"]
    )
    whole = np.zeros((16, 16), dtype=np.float16)
    np.fill_diagonal(whole, 1)
    row, word = wgmma.fragment_map(form.a_registers)
    a_registers = whole.view(np.uint32)[row, word]
    b = RNG.integers(-99, 99, (16, 8)).astype(np.float16)  # sums are exact
    column, word = matrices.b_map(form.b_registers)
    b_registers = np.ascontiguousarray(b.T).view(np.uint32)[column, word]
    c_registers = RNG.integers(-99, 99, (4, 32)).astype(np.float32)

    d = multiply(
        wgmma.fragment(a_registers, "f16"),
        matrices.b_fragment(b_registers, "f16"),
        wgmma.accumulators_to_matrix(c_registers, "f32"),
        "f16",
        "f16",
        "f32",
    )
    d_registers = wgmma.matrix_to_accumulators(d, "f32")
    for i, lane in itertools.product(range(4), range(32)):
        place = lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2
        expected = np.float32(float(b[place]) + float(c_registers[i, lane]))
        assert d_registers[i, lane] == expected


@pytest.mark.parametrize(
    "text",
    [
        "m8n8k8.row.col.f64.f64.f64.f64",
        "m16n8k16.row.row.f32.f16.f16.f32",
        "m16n8k16.row.col.f32.f16.f16.f16",
        "m16n8k16.row.col.f32.tf32.tf32.f32",
        "m16n8k64.row.col.s32.s4.s4.s32",
        "m16n8k256.row.col.s32.b1.b1.s32.or.popc",
        "sp.m16n8k32.row.col.f32.f16.f16.f32",
        "m16n8k16.row.col.f32.f16.f16",
    ],
)
def test_products_that_are_not_modelled(text: str) -> None:
    with pytest.raises(UnsupportedLayout):
        matrices.mma_form(["sync", "aligned", *text.split(".")])

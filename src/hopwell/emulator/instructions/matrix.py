"""Matrices of one warp: ldmatrix, stmatrix, movmatrix, mma (PTX ISA 9.7.14)."""

from typing import TYPE_CHECKING

import numpy as np

from hopwell.emulator import matrix_layout, wgmma_layout
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.instructions.memory import check_alignment, locate, state_space
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.emulator.matrix_product import fp8_values, multiply
from hopwell.emulator.memory import POISON
from hopwell.emulator.numerics.bits import canonical
from hopwell.emulator.registry import Compute, effect, instruction
from hopwell.ptx.nodes import Instruction

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


@effect("ldmatrix")
def ldmatrix(node: Instruction, bind: Binder) -> Execute:
    """9.7.14.5.15 ldmatrix: 8x8 matrices of 16-bit elements; lane i gives row i's address."""
    form = matrix_layout.matrix_form(node.modifiers)
    space, _ = state_space(node)
    setters = [bind.write(o, "b32") for o in bind.elements(node.operands[0])]
    address, op = bind.address(node.operands[1]), bind.op
    count = 8 * form.count

    def execute(warp: "Warp", lanes: Lanes) -> None:
        rows = np.full((count, matrix_layout.ROW_BYTES), POISON, np.uint8)
        givers = lanes_of((1 << count) - 1)
        for memory, part, offsets in locate(warp, space, address(warp), givers, 16):
            if memory is None or not check_alignment(warp, offsets, 16, part):
                continue
            if memory.region is not None:
                warp.checker.read(warp.agent, part, op, memory.region, offsets, 16)
            rows[part.index] = memory.data[offsets[:, None] + np.arange(16)]
        for store, values in zip(setters, matrix_layout.load(rows, form.transposed), strict=True):
            store(warp, lanes, values)

    return execute


@effect("stmatrix")
def stmatrix(node: Instruction, bind: Binder) -> Execute:
    """9.7.14.5.16 stmatrix: the inverse of ldmatrix."""
    form = matrix_layout.matrix_form(node.modifiers)
    space, _ = state_space(node)
    getters = [bind.read(o, "b32") for o in bind.elements(node.operands[1])]
    address, op = bind.address(node.operands[0]), bind.op
    givers = lanes_of((1 << 8 * form.count) - 1)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        rows = matrix_layout.store(np.stack([get(warp) for get in getters]), form.transposed)
        for memory, part, offsets in locate(warp, space, address(warp), givers, 16):
            if memory is None or not check_alignment(warp, offsets, 16, part):
                continue
            if memory.region is not None:
                warp.checker.write(warp.agent, part, op, memory.region, offsets, 16)
            memory.data[offsets[:, None] + np.arange(16)] = rows[part.index]
        warp.machine.version += 1

    return execute


@instruction("movmatrix")
def movmatrix(node: Instruction) -> Compute:
    """9.7.14.5.17 movmatrix: transpose an 8x8 matrix across the warp's registers."""
    return Compute(matrix_layout.move, ("b32",), ("b32",))


@instruction("mma")
def mma(node: Instruction) -> Compute:
    """9.7.14.5.14 mma.sync.aligned.m*n8k*: D = A B + C in the warp's registers."""
    form = matrix_layout.mma_form(node.modifiers)
    kind = {"f16": "b32", "f32": "f32", "f64": "f64", "s32": "s32"}[form.accumulator]
    a_end, b_end = form.a_registers, form.a_registers + form.b_registers
    product = _fp8_product if form.a_type in ("e4m3", "e5m2") else _product

    def function(*registers: np.ndarray) -> tuple[np.ndarray, ...]:
        held, c = np.stack(registers[:a_end]), np.stack(registers[b_end:])
        b = matrix_layout.b_fragment(np.stack(registers[a_end:b_end]), form.b_type)
        if form.m == 8:
            a = matrix_layout.b_fragment(held, form.a_type).T
            result = product(form, a, b, matrix_layout.short_accumulators_to_matrix(c))
            return tuple(matrix_layout.matrix_to_short_accumulators(result))
        a = wgmma_layout.fragment(held, form.a_type)
        result = product(form, a, b, wgmma_layout.accumulators_to_matrix(c, form.accumulator))
        return tuple(wgmma_layout.matrix_to_accumulators(result, form.accumulator))

    sources = (form.register,) * b_end + (kind,) * form.c_registers
    return Compute(function, sources, (kind,) * form.c_registers)


def _product(
    form: matrix_layout.MmaForm, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    return multiply(
        a, b, c, form.a_type, form.b_type, form.accumulator, saturate=form.saturate, xor=form.xor
    )


def _fp8_product(
    form: matrix_layout.MmaForm, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> np.ndarray:
    """On Hopper ptxas makes two products of f16 of it, of the lower and the upper half of every
    32 bits along K, and adds C in the end."""
    x = fp8_values(form.a_type)[a].astype(np.float16).view(np.uint16)
    y = fp8_values(form.b_type)[b].astype(np.float16).view(np.uint16)
    lower = np.arange(form.k) % 4 < 2
    total = multiply(x[:, lower], y[lower], None, "f16", "f16", form.accumulator)
    total = multiply(x[:, ~lower], y[~lower], total, "f16", "f16", form.accumulator)
    return canonical((total + c).reshape(-1)).reshape(c.shape)

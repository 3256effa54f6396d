"""Instructions for tests, and their computations applied to arrays."""

from typing import Any

import numpy as np

import hopwell.emulator.instructions  # noqa: F401  (registers them)
from hopwell.emulator.registry import COMPUTATIONS, Compute
from hopwell.emulator.types import TYPES
from hopwell.ptx.nodes import Immediate, Instruction, Operand, Pair, Register, Sink, Vector


def operand(text: str) -> Operand:
    """``d|p``, ``{a,b}``, ``_``, a number, or a register."""
    if "|" in text:
        first, second = text.split("|")
        return Pair(operand(first), operand(second))
    if text.startswith("{"):
        return Vector(tuple(operand(part) for part in text[1:-1].split(",")))
    if text == "_":
        return Sink()
    if text.lstrip("-")[:1].isdigit():
        return Immediate(int(text, 0))
    return Register(text)


def decode(opcode: str, operands: str = "d a b") -> Compute:
    """The computation of an instruction, its operands separated by spaces."""
    node = Instruction(opcode, tuple(operand(text) for text in operands.split()))
    return COMPUTATIONS[node.name](node)


def run(opcode: str, *sources: Any, operands: str = "d a b", carry: Any = None) -> Any:
    """The result (or tuple of results) for sources given as lists or arrays.

    Checks that each result has the dtype of its type and the length of the sources.
    """
    compute = decode(opcode, operands)
    assert len(sources) == len(compute.sources), compute
    arrays = [
        np.ascontiguousarray(source, TYPES[name].dtype)
        for source, name in zip(sources, compute.sources, strict=True)
    ]
    before = [array.copy() for array in arrays]
    if compute.carry_in:
        arrays.append(np.array(carry, bool))
    with np.errstate(all="ignore"):
        results = compute.function(*arrays)
    for array, copy in zip(arrays, before, strict=False):
        assert array.tobytes() == copy.tobytes(), "a source was changed"
    values = results if isinstance(results, tuple) else (results,)
    assert len(values) == len(compute.results) + compute.carry_out
    for value, name in zip(values, compute.results, strict=False):
        assert value.dtype == TYPES[name].dtype, (opcode, name, value.dtype)
        assert value.shape == arrays[0].shape
    return results

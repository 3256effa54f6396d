"""Moves between registers, and packing and unpacking of vectors. PTX ISA 9.7.9.2 and 9.7.9.3.

A vector operand takes one source, or gives one result, per element.
"""

from typing import Any, Final

import numpy as np

from hopwell.emulator.instructions.integer import same
from hopwell.emulator.instructions.modifiers import BITS, INTEGERS, Modifiers, typed
from hopwell.emulator.numerics.bits import Array
from hopwell.emulator.registry import Compute
from hopwell.emulator.types import TYPES
from hopwell.ptx.nodes import Vector

_PACKED: Final = ("b16", "b32", "b64", "b128")


def _identity(a: Array) -> Array:
    return a


def _element(m: Modifiers, vector: Vector) -> str:
    """The type of an element: an equal share of the bits."""
    bits = TYPES[m.type].bits // len(vector.elements)
    if bits * len(vector.elements) != TYPES[m.type].bits or f"b{bits}" not in TYPES:
        raise m.unsupported(f"{len(vector.elements)} elements")
    return f"b{bits}"


def _pack(m: Modifiers, vector: Vector) -> Compute:
    element = _element(m, vector)

    def pack(*sources: Array) -> Any:
        return np.stack(sources, axis=1).view(TYPES[m.type].dtype)[:, 0]

    return Compute(pack, (element,) * len(vector.elements), (m.type,))


def _unpack(m: Modifiers, vector: Vector) -> Compute:
    element = _element(m, vector)
    count = len(vector.elements)
    dtype = TYPES[element].dtype

    def unpack(a: Array) -> tuple[Array, ...]:
        parts = np.ascontiguousarray(a).view(dtype).reshape(-1, count)
        return tuple(np.ascontiguousarray(parts.T))

    return Compute(unpack, (m.type,), (element,) * count)


@typed("mov", ("pred", *BITS, "b128", *INTEGERS, "f32", "f64"))
def mov(m: Modifiers) -> Compute:
    """d = a. With a vector on one side: element 0 is the lowest part of the other side."""
    destination, source = m.node.operands
    if m.type in _PACKED:
        if isinstance(destination, Vector) and isinstance(source, Vector):
            raise m.unsupported("vectors on both sides")
        if isinstance(source, Vector):
            return _pack(m, source)
        if isinstance(destination, Vector):
            return _unpack(m, destination)
    return same(_identity, m.type, 1)

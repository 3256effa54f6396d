"""The parameter space of an entry function: where each parameter is, and what goes there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hopwell.emulator import tensor_map
from hopwell.emulator.tensor_map import TensorMap
from hopwell.errors import CaptureError
from hopwell.ptx import parse

#: CUDA driver API, "Tensor Map Object Management": the alignment of a CUtensorMap.
TENSOR_MAP_ALIGNMENT = 64


class Parameter(NamedTuple):
    """One parameter of an entry function: bytes from the start of the parameter space.

    ``type`` is PTX's: "u64", "f32", "b8" for a structure.
    """

    name: str
    type: str
    offset: int
    size: int
    alignment: int

    @property
    def tensor_maps(self) -> range:
        """Offsets of the tensor maps that a parameter of this size and alignment holds."""
        if self.alignment < TENSOR_MAP_ALIGNMENT or self.size % tensor_map.BYTES:
            return range(0)
        return range(self.offset, self.offset + self.size, tensor_map.BYTES)


@functools.lru_cache(maxsize=64)
def directives_of(ptx: str, kernel: str) -> dict[str, tuple[int, ...]]:
    """The performance directives of an entry function that are integers, such as ``reqntid``."""
    entry = parse(ptx).function(kernel)
    return (
        {}
        if entry is None
        else {
            name: tuple(int(value) for value in values)
            for name, values in entry.directives.items()
            if all(isinstance(value, int) for value in values)
        }
    )


@functools.lru_cache(maxsize=64)
def parameters_of(ptx: str, kernel: str) -> tuple[Parameter, ...]:
    """The parameters of an entry function, laid out as PTX has it: each at its alignment.

    Raises:
        PtxSyntaxError: the text is not PTX.
        CaptureError: the module has no such entry function.
    """
    entries = {each.name: each for each in parse(ptx).functions if each.entry}
    if kernel not in entries:
        raise CaptureError(
            "kernel of a launch",
            expected=f"an entry function of the PTX: {', '.join(map(short_name, entries))}",
            actual=short_name(kernel),
            consequence="The launch cannot be run.",
        )
    entry = entries[kernel]
    return tuple(
        Parameter(each.name, each.type, offset, each.size_bytes, each.aligned_bytes)
        for each, offset in zip(entry.parameters, entry.parameter_offsets.values(), strict=True)
    )


def parameter_bytes(layout: Sequence[Parameter]) -> int:
    """The size of a parameter space."""
    return layout[-1].offset + layout[-1].size if layout else 0


def pack_parameters(layout: Sequence[Parameter], values: Sequence[bytes]) -> bytes:
    """The parameter space that holds these values, one for each parameter.

    Raises:
        CaptureError: their number or a size differs.
    """
    sizes, expected = [len(value) for value in values], [entry.size for entry in layout]
    if sizes != expected:
        raise CaptureError(
            "values of a launch's parameters",
            expected=f"sizes {expected}",
            actual=f"sizes {sizes}",
            consequence="The launch cannot be run.",
        )
    space = bytearray(parameter_bytes(layout))
    for entry, value in zip(layout, values, strict=True):
        space[entry.offset : entry.offset + entry.size] = value
    return bytes(space)


_FLOATS = {2: "<f2", 4: "<f4", 8: "<f8"}


def argument_bytes(entry: Parameter, value: Any) -> bytes:
    """The bytes of one argument as its parameter has them.

    Raises:
        CaptureError: it cannot be one.
    """
    try:
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.ndarray):
            if entry.size != 8 or entry.type[0] == "f":
                raise TypeError("an address is no such value")
            return int(value.ctypes.data).to_bytes(entry.size, "little")
        if isinstance(value, TensorMap):
            return tensor_map.encode(value)
        floating = isinstance(value, (float, np.floating))
        same_kind = floating or entry.type[0] != "f"
        if isinstance(value, np.generic) and value.nbytes == entry.size and same_kind:
            return value.tobytes()
        if entry.type[0] == "f" or (floating and entry.type[0] == "b"):
            return np.array(value, _FLOATS[entry.size]).tobytes()
        if int(value) != value:
            raise ValueError("not a whole number")
        return int(value).to_bytes(entry.size, "little", signed=value < 0)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise CaptureError(
            f"argument for parameter {entry.name}",
            expected=f"a value of {entry.size} bytes, type {entry.type}",
            actual=f"{value!r} ({error})",
            consequence="The launch cannot be run.",
        ) from error


def short_name(kernel: str, limit: int = 60) -> str:
    """A kernel's name for messages: mangled names can be hundreds of characters long."""
    return kernel if len(kernel) <= limit else f"{kernel[: limit - 3]}..."

"""The bytes of a module's variables before a kernel runs."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.layout import CONSTANT_WINDOW, Place
from hopwell.emulator.types import TYPES
from hopwell.ptx import nodes


def initial_bytes(variable: nodes.Variable, symbols: Mapping[str, Place]) -> NDArray[np.uint8]:
    """A ``.const`` or ``.global`` variable's bytes: its initialiser, then zeros.

    Addresses of other variables in it are generic ones (``symbols`` says where they lie).
    """
    kind = TYPES[variable.type]
    data = np.zeros(variable.size_bytes, np.uint8)
    if variable.initializer is not None:
        values = b"".join(_scalars(variable.initializer, kind.name, symbols))
        data[: len(values)] = np.frombuffer(values, np.uint8)
    return data


def _scalars(value: Any, type_name: str, symbols: Mapping[str, Place]) -> Iterator[bytes]:
    kind = TYPES[type_name]
    if isinstance(value, nodes.Initializer):
        for element in value.elements:
            yield from _scalars(element, type_name, symbols)
    elif isinstance(value, nodes.Immediate):
        from hopwell.emulator.decode import immediate_bits

        yield (immediate_bits(value, kind) & (1 << kind.bits) - 1).to_bytes(kind.bytes, "little")
    elif isinstance(value, nodes.Masked):
        inner = value.value.symbol if isinstance(value.value, nodes.Generic) else value.value
        whole = _address(inner, value.value, symbols)
        shift = (value.mask & -value.mask).bit_length() - 1
        yield (whole >> shift & 0xFF).to_bytes(kind.bytes, "little")
    else:
        symbol = value.symbol if isinstance(value, nodes.Generic) else value
        yield _address(symbol, value, symbols).to_bytes(kind.bytes, "little")


def _address(symbol: nodes.Symbol, written: Any, symbols: Mapping[str, Place]) -> int:
    """The address of a variable in its own space, or its generic one where that was asked for."""
    place = symbols[symbol.name]
    window = CONSTANT_WINDOW if place.space == "const" else 0
    return place.address + symbol.offset + window * isinstance(written, nodes.Generic)

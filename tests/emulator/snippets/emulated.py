"""Runs a snippet on the emulator, from the description that the GPU runner uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.emulator.snippets.snippet import Buffer, Scalar, Snippet, TensorMap

from hopwell.emulator import tensor_map
from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture.launch import Launch, aligned_copy

Array = NDArray[Any]


def described(argument: TensorMap, address: int) -> tensor_map.TensorMap:
    """What a snippet's tensor map is to the emulator, over memory at an address."""
    return tensor_map.TensorMap(
        element=argument.type,
        address=address + argument.offset,
        extents=argument.extents,
        strides=argument.strides,
        box=argument.box,
        element_strides=argument.element_strides,
        swizzle=0 if argument.swizzle == "none" else int(argument.swizzle[:-1]),
        fill_nan=argument.fill == "nan",
    )


def launch_of(snippet: Snippet) -> tuple[Launch, dict[str, Array]]:
    """A launch of a snippet, and its memory by buffer name."""
    memory = {name: aligned_copy(np.asarray(first)) for name, first in snippet.inputs.items()}
    values: list[Any] = []
    for argument in snippet.arguments:
        if isinstance(argument, Buffer):
            values.append(memory[argument.name])
        elif isinstance(argument, Scalar):
            value = argument.value
            values.append(value.tobytes() if isinstance(value, np.void) else value)
        else:
            values.append(described(argument, memory[argument.buffer].ctypes.data))
    launch = Launch.of(
        snippet.text,
        snippet.kernel,
        snippet.grid,
        snippet.block,
        values,
        cluster=snippet.cluster,
        shared_bytes=snippet.shared_bytes,
        filename=f"{snippet.name}.ptx",
    )
    return launch, memory


def run(snippet: Snippet, **options: Any) -> tuple[Report, dict[str, Array]]:
    """Runs a snippet; the report, and what its outputs hold afterwards."""
    launch, memory = launch_of(snippet)
    report = emulate(launch, **options)
    return report, {output.name: memory[output.name] for output in snippet.outputs}

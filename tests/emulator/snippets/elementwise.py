"""A kernel around one instruction: load its operands, execute every variant of it, store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.emulator.snippets import inputs
from tests.emulator.snippets.inputs import UNSIGNED, bits_of
from tests.emulator.snippets.snippet import (
    Argument,
    Buffer,
    Comparison,
    Snippet,
    kernel,
    poisoned,
)

Array = NDArray[Any]

BITS = Comparison("bits")
COUNT = 512
#: Elements per thread: addresses are computed once for all of them.
UNROLL = 4


def elementwise(
    name: str,
    instructions: Sequence[str],
    sources: Sequence[str],
    result: str,
    *,
    comparison: Comparison = BITS,
    columns: Callable[[], Sequence[Array]] | None = None,
    count: int = COUNT,
    unroll: int = UNROLL,
) -> Snippet:
    """A snippet that applies every instruction to every row of operands.

    instructions: an opcode alone, for ``opcode d, a, b, ...;``, or whole text with ``{d}``,
    ``{a}``, ``{b}``, ``{c}`` and ``{e}`` in it. sources, result: PTX types. columns: the bits, one
    array of ``count`` for each source; by default :func:`inputs.operands` chooses them.
    """
    sources = tuple(sources)
    assert count % (32 * unroll) == 0
    threads = count // unroll
    block = next(size for size in (256, 128, 96, 64, 32) if threads % size == 0)

    def column(position: int) -> Callable[[], Array]:
        if columns is None:
            return lambda: inputs.operands(sources, count)[position]
        return lambda: np.asarray(columns()[position], UNSIGNED[bits_of(sources[position])])

    letters = "abce"[: len(sources)]
    output = Buffer(
        "out", poisoned(UNSIGNED[bits_of(result)], len(instructions), count), comparison
    )
    arguments: tuple[Argument, ...] = (
        *(Buffer(f"in_{letter}", column(i)) for i, letter in enumerate(letters)),
        output,
    )
    body = ["mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %ntid.x;", "mad.lo.u32 %r0, %r1, %r2, %x;"]
    for i, letter in enumerate(letters):
        size = bits_of(sources[i]) // 8
        body.append(f"mad.wide.u32 %d{i}, %r0, {size}, %p_in_{letter};")
    size = bits_of(result) // 8
    body.append(f"mad.wide.u32 %d9, %r0, {size}, %p_out;")
    for step in range(unroll):
        names = {}
        for i, letter in enumerate(letters):
            load, names[letter] = _load(sources[i], i, f"%d{i}", step * threads)
            body += load
        for row, instruction in enumerate(instructions):
            destination, store = _store(result, f"%d9+{(row * count + step * threads) * size}")
            body.append(_text(instruction, names, destination))
            body += store
    parameters = " ".join(f"in_{letter}:u64" for letter in letters) + " out:u64"
    return Snippet(
        name=name,
        source=kernel(parameters, "\n".join(body)),
        arguments=arguments,
        block=(block, 1, 1),
        grid=(threads // block, 1, 1),
        lines=tuple(instructions),
    )


def _text(instruction: str, names: dict[str, str], destination: str) -> str:
    if "{" not in instruction:
        return f"{instruction} {', '.join([destination, *names.values()])};"
    text = instruction
    for key, register in {**names, "d": destination}.items():
        text = text.replace("{" + key + "}", register)
    return text


def _load(type_: str, position: int, base: str, element: int) -> tuple[list[str], str]:
    """Instructions that load one operand, and the register that holds it."""
    width = bits_of(type_)
    address = f"[{base}+{element * width // 8}]"
    if type_ == "pred":
        return [
            f"ld.global.b32 %r{10 + position}, {address};",
            f"setp.ne.b32 %p{10 + position}, %r{10 + position}, 0;",
        ], f"%p{10 + position}"
    register = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}[width] + str(10 + position)
    return [f"ld.global.{'u8' if width == 8 else f'b{width}'} {register}, {address};"], register


def _store(type_: str, address: str) -> tuple[str, list[str]]:
    """The register for a result, and the instructions that store it."""
    width = bits_of(type_)
    if type_ == "pred":
        return "%p20", ["selp.b32 %r20, 1, 0, %p20;", f"st.global.b32 [{address}], %r20;"]
    register = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}[width] + "20"
    suffix = "u8" if width == 8 else f"b{width}"
    return register, [f"st.global.{suffix} [{address}], {register};"]

"""Comparing a buffer with its record, under the snippet's own comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.emulator.snippets import inputs
from tests.emulator.snippets.snippet import Buffer, Snippet

Array = NDArray[Any]

#: Mantissa bits: a unit in the last place of x is 2**(exponent(x) - these).
MANTISSA = {name: mantissa for name, (_, mantissa) in inputs.FLOATS.items()}


def _elements(type_: str, bits: Array) -> tuple[str, Array]:
    """The element type and bits, of which a packed type has two for each word."""
    name, _, packed = type_.partition("x")
    if not packed:
        return name, np.ascontiguousarray(bits)
    return name, np.ascontiguousarray(bits).view(inputs.UNSIGNED[inputs.bits_of(name)])


def canonical(output: Buffer, bits: Array) -> Array:
    """The bits with every NaN alike, where the comparison does not look at payloads."""
    comparison = output.comparison
    assert comparison is not None
    if comparison.kind != "bits" or not comparison.any_nan:
        return bits
    name, elements = _elements(comparison.type, bits)
    width = inputs.bits_of(name)
    nan = np.isnan(inputs.to_float64(name, elements))
    return np.where(nan, np.array((1 << width - 1) - 1, elements.dtype), elements)


def differences(
    snippet: Snippet, output: Buffer, recorded: Array, computed: Array
) -> NDArray[np.bool_]:
    """Which elements of ``computed`` disagree with ``recorded`` (both whole, as bits)."""
    comparison = output.comparison
    assert comparison is not None
    if comparison.kind == "bits":
        return canonical(output, computed) != canonical(output, recorded)
    name, want = _elements(comparison.type, recorded)
    _, got = _elements(comparison.type, computed)
    x, y = inputs.to_float64(name, want), inputs.to_float64(name, got)
    bound = comparison.bound(snippet.inputs) if callable(comparison.bound) else comparison.bound
    with np.errstate(all="ignore"):
        if comparison.kind == "relative":
            bound = bound * np.abs(x)
        elif comparison.kind == "ulp":
            bound = bound * np.exp2(np.frexp(x)[1] - 1 - MANTISSA[name])
        near = np.abs(x - y) <= np.maximum(bound, comparison.flush)
    nan = np.isnan(x) & np.isnan(y) & (comparison.any_nan | (want == got))
    # Infinities are equal or wrong: their difference is no error to bound.
    finite = np.isfinite(x) & np.isfinite(y)
    return ~np.where(finite, near, nan | (want == got))


def explain(
    snippet: Snippet, output: Buffer, wrong: NDArray[np.bool_], recorded: Array, computed: Array
) -> str:
    """The first few disagreements in words: instruction, operands, recorded and computed bits."""
    comparison = output.comparison
    assert comparison is not None
    _, recorded = _elements(comparison.type, recorded)
    _, computed = _elements(comparison.type, computed)
    lines = [f"{snippet.name}: {output.name}: {np.count_nonzero(wrong)} of {wrong.size} disagree"]
    for index in np.argwhere(wrong)[:8]:
        at = tuple(int(i) for i in index)
        what = f"[{', '.join(map(str, at))}]"
        if snippet.lines and len(at) == 2:
            what = f"{snippet.lines[at[0]]} at {at[1]}{_operands(snippet, at[1])}"
        digits = 2 * recorded.dtype.itemsize
        lines.append(
            f"  {what}: {recorded[at]:0{digits}x} recorded, {computed[at]:0{digits}x} here"
        )
    return "\n".join(lines)


def _operands(snippet: Snippet, element: int) -> str:
    columns = {n: v for n, v in snippet.inputs.items() if n.startswith("in_") and v.ndim == 1}
    texts = [
        f"{name[3:]} = {v[element]:0{2 * v.dtype.itemsize}x}"
        for name, v in columns.items()
        if element < v.size
    ]
    return f" ({', '.join(texts)})" if texts else ""

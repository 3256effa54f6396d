"""Where ``wgmma`` finds its operands, and which lane holds which element of the result.

Pure functions on arrays. Source: PTX ISA 9.7.15.5 (register fragments, shared-memory matrix
layouts, matrix descriptors).

Every element type fills 32 bytes of K per instruction: two 16-byte chunks, or eight 32-bit
words. So one map of chunks and one map of words serve all shapes and types.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hopwell.emulator.copy_layout import CHUNK, swizzle
from hopwell.emulator.matrix_product import BITS, check_types, elements
from hopwell.errors import UnsupportedLayout

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

ROWS = 16
"""Rows of A and of the result that belong to one warp of the warpgroup: 16 w to 16 w + 15."""

# Swizzle mode of a descriptor -> bytes.
_SWIZZLE = (0, 128, 64, 32)
# NumPy has no 16-byte integer; moving complex numbers copies their bits unchanged.
_CHUNK = np.dtype(np.complex128)
# The swizzle pattern repeats over at most this many bytes.
_PATTERN = 1024

_FLOATING = tuple(
    (t, t, acc)
    for t, accumulators in (("f16", ("f16", "f32")), ("bf16", ("f32",)), ("tf32", ("f32",)))
    for acc in accumulators
)
_EIGHT_BIT = tuple(
    (a, b, acc)
    for kinds, accumulators in ((("e4m3", "e5m2"), ("f16", "f32")), (("s8", "u8"), ("s32",)))
    for a in kinds
    for b in kinds
    for acc in accumulators
)
_TYPES = (*_FLOATING, *_EIGHT_BIT, ("b1", "b1", "s32"))


@dataclass(frozen=True, slots=True)
class Form:
    """One ``wgmma.mma_async``: D (64, n) += A (64, k) B (k, n)."""

    n: int
    k: int
    a_type: str
    b_type: str
    accumulator: str
    saturate: bool

    @property
    def registers(self) -> int:
        """32-bit accumulator registers of each thread."""
        return self.n // (4 if self.accumulator == "f16" else 2)

    @property
    def transposable(self) -> bool:
        """The operands' majorness is an operand of the instruction."""
        return BITS[self.a_type] == 16

    @property
    def scalable(self) -> bool:
        """The operands' signs are operands of the instruction."""
        return self.accumulator != "s32"


def form(modifiers: Sequence[str]) -> Form:
    """Shape and types from a ``wgmma`` opcode's parts after the first: ("mma_async", "sync", ...).

    Raises :class:`UnsupportedLayout` for sparse forms and for what PTX does not list.
    """
    parts = [part for part in modifiers if part not in ("mma_async", "sync", "aligned")]
    saturate = "satfinite" in parts
    parts = [part for part in parts if part != "satfinite"]
    match = re.fullmatch(r"m64n(\d+)k(\d+)", parts[0]) if parts else None
    types, operation = parts[1:4], parts[4:]
    if (
        match is None
        or len(types) != 3
        or operation != (["and", "popc"] if types[1] == "b1" else [])
    ):
        raise _unsupported("opcode", "wgmma.mma_async, dense, of a listed shape", modifiers)
    accumulator, a_type, b_type = types
    check_types(a_type, b_type, accumulator, _TYPES)
    n, k = int(match[1]), int(match[2])
    step = 16 if accumulator == "s32" and n > 32 else 8
    if k * BITS[a_type] != 256 or not 8 <= n <= 256 or n % step:
        raise _unsupported("shape", f"n a multiple of {step}, 256 bits of k", parts[0])
    return Form(n, k, a_type, b_type, accumulator, saturate)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A shared-memory matrix descriptor, addresses and offsets in bytes: 9.7.15.5.1.2.2."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int


def descriptor(bits: int) -> Descriptor:
    """Decode the 64 bits of a matrix descriptor."""
    return Descriptor(
        start=(bits & 0x3FFF) << 4,
        leading=(bits >> 16 & 0x3FFF) << 4,
        stride=(bits >> 32 & 0x3FFF) << 4,
        base_offset=bits >> 49 & 7,
        swizzle=_SWIZZLE[bits >> 62 & 3],
    )


def chunks(matrix: Descriptor, first: int, count: int, transposed: bool = False) -> Index:
    """Shared byte addresses of the 16-byte chunks of rows ``first`` to ``first + count - 1``.

    Rows run along M of A or N of B. K-major: (count, 2), K innermost. MN-major (``transposed``,
    16-bit elements): (16, count // 8), one row per k. Both numbers are multiples of 8.
    """
    phase = matrix.start % _PATTERN
    return (matrix.start - phase) + _chunks(
        matrix.leading,
        matrix.stride,
        matrix.base_offset,
        matrix.swizzle,
        phase,
        first,
        count,
        transposed,
    )


@lru_cache(maxsize=4096)
def _chunks(
    leading: int,
    stride: int,
    base_offset: int,
    span: int,
    phase: int,
    first: int,
    count: int,
    transposed: bool,
) -> Index:
    if transposed:
        # Chunk j holds eight neighbours along M or N at one k.
        k = np.arange(16, dtype=np.int64)[:, None]
        j = np.arange(first // 8, (first + count) // 8, dtype=np.int64)[None, :]
        if span:
            width = span // CHUNK
            offsets = j % width * CHUNK + j // width * leading + k % 8 * span + k // 8 * stride
        else:
            offsets = j * stride + k % 8 * CHUNK + k // 8 * leading
    else:
        row = np.arange(first, first + count, dtype=np.int64)[:, None]
        c = np.arange(2, dtype=np.int64)[None, :]
        across = CHUNK if span else leading
        offsets = row % 8 * (span or CHUNK) + row // 8 * stride + c * across
    addresses: Index = swizzle(phase + offsets, span, base=base_offset)
    addresses.setflags(write=False)
    return addresses


def spans(
    matrix: Descriptor, first: int, count: int, transposed: bool = False
) -> tuple[Index, int]:
    """The same bytes as :func:`chunks`, as few equal runs: (start addresses ascending, bytes)."""
    phase = matrix.start % _PATTERN
    starts, size = _spans(
        matrix.leading,
        matrix.stride,
        matrix.base_offset,
        matrix.swizzle,
        phase,
        first,
        count,
        transposed,
    )
    return (matrix.start - phase) + starts, size


@lru_cache(maxsize=4096)
def _spans(*layout: Any) -> tuple[Index, int]:
    addresses = np.unique(_chunks(*layout))
    heads = np.flatnonzero(np.diff(addresses, prepend=addresses[0] - 2 * CHUNK) != CHUNK)
    size = CHUNK * int(np.gcd.reduce(np.diff(heads, append=addresses.size)))
    return addresses[:: size // CHUNK].copy(), size


def operand(
    shared: Bytes,
    base: int,
    matrix: Descriptor,
    first: int,
    count: int,
    element: str,
    transposed: bool = False,
) -> Values:
    """Rows of A, or of B transposed, as unsigned integers (count, K) of the element's size.

    ``shared`` is the CTA's shared memory, whose byte 0 has shared address ``base`` (a multiple
    of 16). Reads beyond its end raise IndexError; check :func:`spans` first.
    """
    index = chunks(matrix, first, count, transposed) - base >> 4
    whole = shared.size // CHUNK * CHUNK
    raw = shared[:whole].view(_CHUNK)[index]
    if transposed:
        return raw.view(np.uint16).T
    return elements(raw.view(np.uint8), element)


def fragment_map(registers: int = 4) -> tuple[Index, Index]:
    """A in registers: (row, 32-bit word of the row) of each register and lane, both (R, 32)."""
    register = np.arange(registers, dtype=np.int64)[:, None]
    lane = np.arange(32, dtype=np.int64)[None, :]
    return lane // 4 + register % 2 * 8, lane % 4 + register // 2 * 4


def fragment(registers: Values, element: str) -> Values:
    """A's 16 rows of one warp from its registers, uint32 (R, 32), as unsigned integers (16, K).

    R is 4 for ``wgmma``; ``mma.sync`` has the same layout with 4 or 2.
    """
    words = registers.reshape(-1, 2, 8, 4).transpose(1, 2, 0, 3).reshape(ROWS, -1)
    return elements(words.view(np.uint8), element)


def accumulator_map(n: int, accumulator: str) -> tuple[Index, Index]:
    """(row, column) of each accumulator register and lane, for one warp's 16 rows.

    "f32" and "s32": both (n / 2, 32). "f16": both (n / 4, 32), the column of the lower half;
    the upper half holds the next column.
    """
    lane = np.arange(32, dtype=np.int64)[None, :]
    pair = np.arange(n // 4, dtype=np.int64)[:, None]
    row = lane // 4 + pair % 2 * 8
    column = pair // 2 * 8 + lane % 4 * 2
    if accumulator == "f16":
        return row, column
    return np.repeat(row, 2, axis=0), np.stack((column, column + 1), 1).reshape(-1, 32)


def accumulators_to_matrix(registers: Values, accumulator: str) -> Values:
    """One warp's accumulator: registers (R, 32) to a matrix (16, n) of float16, float32 or int32.

    Registers are float32 or int32; float16 comes as uint32, two to a register.
    """
    if accumulator == "f16":
        blocks = registers.view(np.float16).reshape(-1, 2, 8, 4, 2)
        return blocks.transpose(1, 2, 0, 3, 4).reshape(ROWS, -1)
    blocks = registers.reshape(-1, 2, 2, 8, 4)
    return blocks.transpose(1, 3, 0, 4, 2).reshape(ROWS, -1)


def matrix_to_accumulators(matrix: Values, accumulator: str) -> Values:
    """The inverse of :func:`accumulators_to_matrix`: (16, n) to registers (R, 32)."""
    blocks = matrix.reshape(2, 8, -1, 4, 2)
    if accumulator == "f16":
        packed = np.ascontiguousarray(blocks.transpose(2, 0, 1, 3, 4))
        return packed.reshape(-1, 64).view(np.uint32)
    return blocks.transpose(2, 0, 4, 1, 3).reshape(-1, 32)


def _unsupported(what: str, expected: object, actual: object) -> UnsupportedLayout:
    return UnsupportedLayout(
        f"wgmma: {what}",
        expected=expected,
        actual=actual,
        consequence="The emulator does not know where its operands lie.",
    )

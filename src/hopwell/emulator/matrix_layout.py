"""Matrices held by one warp: ``ldmatrix``, ``stmatrix``, ``movmatrix`` and ``mma.sync``.

Pure functions on arrays. Source: PTX ISA 9.7.14.5 (fragments of ``mma``, then the four
instructions).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopwell.emulator.matrix_product import BITS, check_types, elements
from hopwell.errors import UnsupportedLayout

Values = npt.NDArray[Any]
Index = npt.NDArray[np.int64]

ROW_BYTES = 16
"""Bytes of one row of an 8x8 matrix of 16-bit elements; its address is a multiple of this."""


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """One ``ldmatrix`` or ``stmatrix``: lanes 0 to 8 count - 1 give the rows' addresses."""

    count: int
    transposed: bool


def matrix_form(modifiers: Sequence[str]) -> MatrixForm:
    """Form of an ``ldmatrix`` or ``stmatrix`` from its opcode's parts after the first.

    Raises :class:`UnsupportedLayout` for the 8-bit forms, which sm_90 does not have.
    """
    known = {"sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"}
    counts = [part for part in modifiers if part in ("x1", "x2", "x4")]
    if len(counts) != 1 or "m8n8" not in modifiers or not known.issuperset(modifiers):
        raise _unsupported("ldmatrix or stmatrix", "m8n8 with x1, x2 or x4 and b16", modifiers)
    return MatrixForm(int(counts[0][1]), "trans" in modifiers)


def load(rows: Values, transposed: bool = False) -> Values:
    """``ldmatrix``: rows uint8 (8 count, 16) to registers uint32 (count, 32)."""
    matrices = rows.view(np.uint16).reshape(-1, 8, 8)
    if transposed:
        matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    return matrices.view(np.uint32).reshape(-1, 32)


def store(registers: Values, transposed: bool = False) -> Values:
    """``stmatrix``: registers uint32 (count, 32) to rows uint8 (8 count, 16)."""
    matrices = registers.view(np.uint16).reshape(-1, 8, 8)
    if transposed:
        matrices = np.ascontiguousarray(matrices.transpose(0, 2, 1))
    return matrices.view(np.uint8).reshape(-1, ROW_BYTES)


def move(register: Values) -> Values:
    """``movmatrix.sync.aligned.m8n8.trans.b16``: an 8x8 matrix uint32 (32,), transposed."""
    return load(store(register[None, :]), transposed=True)[0]


_HALF = (("f16", "f16", "f16"), ("f16", "f16", "f32"), ("bf16", "bf16", "f32"))
_INTEGER = tuple((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8"))
_FP8 = tuple(
    (a, b, acc) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for acc in ("f16", "f32")
)
_TF32 = (("tf32", "tf32", "f32"),)
_F64 = (("f64", "f64", "f64"),)
_BITS = (("b1", "b1", "s32"),)
# M and K -> types; N is 8.
_TYPES = {
    (8, 4): _F64,
    (8, 16): _INTEGER,
    (8, 128): _BITS,
    (16, 4): (*_TF32, *_F64),
    (16, 8): (*_HALF, *_TF32, *_F64),
    (16, 16): (*_HALF, *_INTEGER, *_FP8, *_F64),
    (16, 32): (*_INTEGER, *_FP8),
    (16, 128): _BITS,
    (16, 256): _BITS,
}


@dataclass(frozen=True, slots=True)
class MmaForm:
    """One ``mma.sync.aligned.m*n8k*.row.col``: D (m, 8) = A (m, k) B (k, 8) + C."""

    m: int
    k: int
    a_type: str
    b_type: str
    accumulator: str
    saturate: bool
    xor: bool
    """Single bits are combined by exclusive or, not by and."""

    @property
    def register(self) -> str:
        """Type of an operand's registers."""
        return "b64" if self.a_type == "f64" else "b32"

    @property
    def a_registers(self) -> int:
        """Registers of A in each lane."""
        return self.m * self.k * BITS[self.a_type] // 32 // int(self.register[1:])

    @property
    def b_registers(self) -> int:
        """Registers of B in each lane."""
        return self.a_registers * 8 // self.m

    @property
    def c_registers(self) -> int:
        """Registers of C, and of D, in each lane."""
        return self.m // (8 if self.accumulator == "f16" else 4)


def mma_form(modifiers: Sequence[str]) -> MmaForm:
    """Shape and types from an ``mma`` opcode's parts after the first: ("sync", "aligned", ...).

    Raises :class:`UnsupportedLayout` for other shapes, 4-bit and sparse forms, and for C and D of
    different types.
    """
    parts = [part for part in modifiers if part not in ("sync", "aligned", "row", "col")]
    saturate = "satfinite" in parts
    parts = [part for part in parts if part != "satfinite"]
    match = re.fullmatch(r"m(8|16)n8k(\d+)", parts[0]) if parts else None
    shape = (int(match[1]), int(match[2])) if match else (0, 0)
    xor = parts[5:] == ["xor", "popc"]
    operation = ["xor" if xor else "and", "popc"] if "b1" in parts else []
    if (
        shape not in _TYPES
        or len(parts) < 5
        or parts[5:] != operation
        or parts[1] != parts[4]
        or tuple(part for part in modifiers if part in ("row", "col")) != ("row", "col")
    ):
        raise _unsupported("mma", "dense m8n8k* or m16n8k*.row.col, D and C of one type", modifiers)
    accumulator, a_type, b_type = parts[1:4]
    check_types(a_type, b_type, accumulator, _TYPES[shape])
    return MmaForm(*shape, a_type, b_type, accumulator, saturate, xor)


# Of 16 rows, A, C and D of mma.sync are laid out as wgmma's for N = 8: see wgmma_layout.fragment,
# accumulators_to_matrix and matrix_to_accumulators. A of 8 rows lies as B transposed.


def short_accumulators_to_matrix(registers: Values) -> Values:
    """C of 8 rows: registers (2, 32) to a matrix (8, 8)."""
    return registers.reshape(2, 8, 4).transpose(1, 2, 0).reshape(8, 8)


def matrix_to_short_accumulators(matrix: Values) -> Values:
    """The inverse of :func:`short_accumulators_to_matrix`."""
    return matrix.reshape(8, 4, 2).transpose(2, 0, 1).reshape(2, 32)


def b_map(registers: int) -> tuple[Index, Index]:
    """B of ``mma``: (column, 32-bit word along K) of each register and lane, both (R, 32)."""
    register = np.arange(registers, dtype=np.int64)[:, None]
    lane = np.arange(32, dtype=np.int64)[None, :]
    return np.broadcast_to(lane // 4, (registers, 32)), lane % 4 + register * 4


def b_fragment(registers: Values, element: str) -> Values:
    """B of ``mma`` from registers (R, 32) as unsigned integers (K, 8)."""
    words = registers.reshape(-1, 8, 4).transpose(1, 0, 2).reshape(8, -1)
    return elements(words.view(np.uint8), element).T


def _unsupported(what: str, expected: object, actual: object) -> UnsupportedLayout:
    return UnsupportedLayout(
        what,
        expected=expected,
        actual=actual,
        consequence="The emulator does not know which lane holds which element.",
    )

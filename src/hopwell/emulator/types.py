"""PTX scalar types and the NumPy types that carry them.

PTX ISA 5.2. Formats without a NumPy type travel as their bits: bf16 as uint16, tf32 as the
uint32 of a float32 whose low mantissa bits do not count, packed pairs as uint32.
"""

from typing import Final, NamedTuple

import numpy as np


class Type(NamedTuple):
    """A scalar type: ``bits`` wide in memory and registers, carried as ``dtype``."""

    name: str
    bits: int
    dtype: np.dtype[np.generic]
    signed: bool = False
    floating: bool = False

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.bits // 8


def _types() -> dict[str, Type]:
    table = {}
    for bits in (8, 16, 32, 64):
        for prefix in "bu":
            table[f"{prefix}{bits}"] = Type(f"{prefix}{bits}", bits, np.dtype(f"u{bits // 8}"))
        table[f"s{bits}"] = Type(f"s{bits}", bits, np.dtype(f"i{bits // 8}"), signed=True)
    for bits in (16, 32, 64):
        name = f"f{bits}"
        table[name] = Type(name, bits, np.dtype(f"f{bits // 8}"), signed=True, floating=True)
    for name, bits in {
        "bf16": 16, "tf32": 32, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "f32x2": 64,
        "e4m3": 8, "e5m2": 8, "e4m3x2": 16, "e5m2x2": 16,
    }.items():  # fmt: skip
        table[name] = Type(name, bits, np.dtype(f"u{bits // 8}"), floating=name[0] not in "us")
    table["pred"] = Type("pred", 1, np.dtype(bool))
    table["b128"] = Type("b128", 128, np.dtype([("low", "u8"), ("high", "u8")]))
    return table


TYPES: Final[dict[str, Type]] = _types()
"""Every scalar type by its PTX name."""


def is_type(modifier: str) -> bool:
    """Whether an opcode's modifier names a scalar type."""
    return modifier in TYPES

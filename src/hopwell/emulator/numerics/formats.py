"""Encodings: between the bits that carry a number and float64, which represents them all."""

from collections.abc import Callable
from typing import Final

import ml_dtypes
import numpy as np

from hopwell.emulator.numerics.bits import NAN, Array, canonical
from hopwell.emulator.numerics.rounding import BF16, E4M3, E5M2, F16, F32, TF32, Format

FORMATS: Final[dict[str, Format]] = {
    "f32": F32,
    "tf32": TF32,
    "f16": F16,
    "bf16": BF16,
    "e4m3": E4M3,
    "e5m2": E5M2,
}
"""The formats narrower than float64."""

_FP8: Final = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def bf16_to_f32(bits: Array) -> Array:
    """Exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16_exactly(x: Array) -> Array:
    """The bits of numbers that bf16 represents; a canonical NaN stays one."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def f32_to_bf16(x: Array) -> Array:
    """To nearest, ties to even; NaN becomes 0x7fff."""
    rounded = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    square = x.dot(x)
    if square != square:
        rounded[x != x] = 0x7FFF
    return rounded


def f32_to_f16(x: Array) -> Array:
    """To nearest, ties to even; NaN becomes 0x7fff."""
    return canonical(x.astype(np.float16))


def _from_fp8(kind: str) -> Callable[[Array], Array]:
    dtype = _FP8[kind]
    return lambda bits: bits.view(dtype).astype(np.float64)


DECODE: Final[dict[str, Callable[[Array], Array]]] = {
    "f64": lambda x: x,
    "f32": lambda x: x.astype(np.float64),
    "f16": lambda x: x.astype(np.float64),
    "tf32": lambda x: (x & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64),
    "bf16": lambda x: bf16_to_f32(x).astype(np.float64),
    "e4m3": _from_fp8("e4m3"),
    "e5m2": _from_fp8("e5m2"),
}
"""From the array that carries a type to float64, exactly."""


def _to_fp8(kind: str) -> Callable[[Array], Array]:
    dtype = _FP8[kind]

    def encode(x: Array) -> Array:
        # No infinities arrive here: PTX converts to these types with .satfinite alone.
        bits = x.astype(np.float32).astype(dtype).view(np.uint8)
        bits[x != x] = 0x7F
        return bits

    return encode


def _canonical_f32(x: Array) -> Array:
    return canonical(x.astype(np.float32))


def _encode_tf32(x: Array) -> Array:
    bits = x.astype(np.float32).view(np.uint32)
    bits[x != x] = 0x7FFFE000
    return bits


ENCODE: Final[dict[str, Callable[[Array], Array]]] = {
    "f64": lambda x: np.where(x != x, NAN["f64"], x),
    "f32": _canonical_f32,
    "f16": lambda x: canonical(x.astype(np.float16)),
    "tf32": _encode_tf32,
    "bf16": lambda x: f32_to_bf16_exactly(_canonical_f32(x)),
    "e4m3": _to_fp8("e4m3"),
    "e5m2": _to_fp8("e5m2"),
}
"""From float64 that the type represents to the array that carries it; NaN becomes canonical."""


_FIELDS: Final[dict[str, tuple[int, int]]] = {
    "f16": (16, 10),
    "bf16": (16, 7),
    "f32": (32, 23),
    "f64": (64, 52),
}
"""Bits of a type, and of its fraction."""


def move_nan(x: Array, source: str, result: str) -> Array:
    """The bits of a NaN in another type: quiet, with the sign and the upper payload bits."""
    (bits, fraction), (result_bits, result_fraction) = _FIELDS[source], _FIELDS[result]
    raw = x.view(f"u{bits // 8}").astype(np.uint64)
    payload = raw & np.uint64((1 << fraction) - 1)
    shift = result_fraction - fraction
    payload = payload << np.uint64(shift) if shift >= 0 else payload >> np.uint64(-shift)
    sign = raw >> np.uint64(bits - 1) << np.uint64(result_bits - 1)
    ones = (1 << result_bits - 1) - (1 << result_fraction) | 1 << result_fraction - 1
    return (sign | payload | np.uint64(ones)).astype(f"u{result_bits // 8}")


def cut_nan(x: Array) -> Array:
    """float32 NaN without the bits that TF32 lacks: an infinity where no other bit is set."""
    return x.view(np.uint32) & np.uint32(0xFFFFE000)


def cut_nan_finitely(x: Array) -> Array:
    """Under .satfinite: such an infinity becomes the largest number; other NaN is canonical."""
    bits = cut_nan(x)
    infinite = (bits & 0x7FFFFFFF) == 0x7F800000
    return np.where(infinite, bits - np.uint32(0x2000), np.uint32(0x7FFFFFFF))


def with_nan(
    convert: Callable[[Array], Array], moved: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    """``convert``, but for NaN, whose bits ``moved`` gives."""

    def apply(x: Array) -> Array:
        result = convert(x)
        bits = bf16_to_f32(x) if x.dtype == np.uint16 else x
        nan = bits != bits
        if nan.any():
            words = moved(x)
            result.view(words.dtype)[nan] = words[nan]
        return result

    return apply

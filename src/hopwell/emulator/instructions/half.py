"""Arithmetic of f16, bf16 and their pairs. PTX ISA 9.7.4, and the half forms of 9.7.3.

bf16 is computed on float32 arrays that hold its values, in one rounding; pairs are computed as
arrays of twice the length.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from hopwell.emulator.instructions.floating import finished, select
from hopwell.emulator.instructions.integer import by_halves, same
from hopwell.emulator.instructions.modifiers import Modifiers, typed
from hopwell.emulator.numerics import approximate
from hopwell.emulator.numerics.arithmetic import WIDE, flush_tiny, sum_bf16
from hopwell.emulator.numerics.bits import Array, rectify
from hopwell.emulator.numerics.formats import bf16_to_f32, f32_to_bf16_exactly
from hopwell.emulator.registry import Compute

HALVES: Final = ("f16", "f16x2", "bf16", "bf16x2")

Function = Callable[..., Array]


def _is_bf16(m: Modifiers) -> bool:
    return m.type.startswith("bf16")


def on_halves(m: Modifiers, function: Function, count: int) -> Compute:
    """A function of float16 arrays (or of float32 arrays of bf16 values) as an instruction."""
    if _is_bf16(m):
        values = function

        def function(*sources: Array) -> Array:
            return f32_to_bf16_exactly(values(*[bf16_to_f32(source) for source in sources]))

    if m.type.endswith("x2"):
        function = by_halves(function, np.uint16 if _is_bf16(m) else np.float16)
    return same(function, m.type, count)


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


# float32 has twice the precision of float16 and two bits, so NumPy's sums and products, which go
# through it, are correctly rounded. So is a * b + c through float64: where that sum is inexact,
# the term that falls off is too small to decide a tie.
_F16: Final[dict[str, Function]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": lambda a, b, c: (_wide(a) * _wide(b) + _wide(c)).astype(np.float16),
}
_MINUS_ZERO: Final = np.array(-0.0)
_BF16: Final[dict[str, Function]] = {
    "add": lambda a, b: sum_bf16(_wide(a), _wide(b)),
    "sub": lambda a, b: sum_bf16(_wide(a), -_wide(b)),
    # Minus zero changes no sum.
    "mul": lambda a, b: sum_bf16(_wide(a) * _wide(b), _MINUS_ZERO),
    "fma": lambda a, b, c: sum_bf16(_wide(a) * _wide(b), _wide(c)),
}


_OUTSIDE: Final = 0x7FF7
"""Magnitude of the NaN with which a tensor copy fills what lies outside (OOB NaN)."""


def _clear_outside(function: Function) -> Function:
    """.oob: zero where a factor is the NaN of a fill, whatever the other operands are."""

    def apply(a: Array, b: Array, c: Array) -> Array:
        result = function(a, b, c)
        outside = np.zeros(result.shape, bool)
        for factor in (a, b):
            wide = factor.dtype == np.float32  # bf16 held in float32
            bits = factor.view(np.uint32) >> 16 if wide else factor.view(np.uint16)
            outside |= (bits & 0x7FFF) == _OUTSIDE
        result[outside] = 0
        return result

    return apply


def _register_arithmetic(name: str, count: int, default: str | None) -> None:
    @typed(name, HALVES)
    def arithmetic(m: Modifiers) -> Compute:
        """d = a op b in one rounding to nearest. .ftz and .sat for f16; .relu and .oob for fma."""
        m.choice("rn", default=default)
        bf16 = _is_bf16(m)
        function = (_BF16 if bf16 else _F16)[name]
        if name == "fma" and m.flag("relu"):
            plain = function
            function = lambda *sources: rectify(plain(*sources))  # noqa: E731
        oob = name == "fma" and m.flag("oob")
        ftz = not bf16 and m.flag("ftz")
        sat = not bf16 and m.flag("sat")
        carrier = "f32" if bf16 else "f16"
        if ftz and name in WIDE:
            function = flush_tiny(function, WIDE[name], "rn")
        function = finished(function, carrier, ftz, sat)
        return on_halves(m, _clear_outside(function) if oob else function, count)


_register_arithmetic("add", 2, "rn")
_register_arithmetic("sub", 2, "rn")
_register_arithmetic("mul", 2, "rn")
_register_arithmetic("fma", 3, None)


def _register_select(name: str) -> None:
    @typed(name, HALVES)
    def extreme(m: Modifiers) -> Compute:
        """d = min or max, as for float32."""
        return on_halves(m, select(m, name, not _is_bf16(m) and m.flag("ftz")), 2)


_register_select("min")
_register_select("max")


def _register_sign(name: str, function: Function) -> None:
    @typed(name, HALVES)
    def sign(m: Modifiers) -> Compute:
        """d = -a or |a|."""
        bf16 = _is_bf16(m)
        ftz = not bf16 and m.flag("ftz")
        return on_halves(m, finished(function, "f32" if bf16 else "f16", ftz), 1)


_register_sign("neg", np.negative)
_register_sign("abs", np.abs)


def _register_approximation(name: str) -> None:
    @typed(name, HALVES)
    def approximation(m: Modifiers) -> Compute:
        """d = 2**a or tanh(a), approximately: see BOUNDS. ex2 of bf16 is always .ftz."""
        m.choice("approx")
        bf16 = _is_bf16(m)
        ftz = name == "ex2" and bf16
        if ftz:
            m.choice("ftz")
        exact = approximate.FUNCTIONS[name]

        def function(a: Array) -> Array:
            value = exact(_wide(a))
            return sum_bf16(value, _MINUS_ZERO) if bf16 else value.astype(np.float16)

        return on_halves(m, finished(function, "f32" if bf16 else "f16", ftz), 1)


_register_approximation("ex2")
_register_approximation("tanh")

"""The approximate functions, and the error that PTX states for the hardware's.

Hopwell computes each to nearly full precision, so its results lie within the bound of any
conforming machine, and within twice the bound of the hardware's results.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from hopwell.emulator.numerics.bits import Array


class Bound(NamedTuple):
    """How far the hardware's result may lie from the exact one: any that is not None suffices.

    Attributes:
        relative: of the exact result's magnitude.
        absolute: for arguments where ``range`` holds.
        ulp: units in the last place of the result's type.
        range: in words, where the bound holds.
    """

    relative: float | None = None
    absolute: float | None = None
    ulp: float | None = None
    range: str = "all arguments"


BOUNDS: Final[dict[str, Bound]] = {
    "rcp.approx.f32": Bound(ulp=1),
    "rcp.approx.ftz.f64": Bound(relative=2.0**-19, range="not stated by PTX"),
    "rsqrt.approx.f32": Bound(relative=2.0**-22.9),
    "rsqrt.approx.f64": Bound(relative=2.0**-51, range="not stated by PTX"),
    "rsqrt.approx.ftz.f64": Bound(relative=2.0**-19, range="not stated by PTX"),
    "sqrt.approx.f32": Bound(relative=2.0**-23),
    "div.approx.f32": Bound(ulp=2, range="2**-126 <= |b| <= 2**126"),
    "div.full.f32": Bound(ulp=2),
    # 2**-14.7 from -100 pi to 100 pi, and no promise beyond.
    "sin.approx.f32": Bound(absolute=2.0**-20.5, range="-2 pi to 2 pi"),
    "cos.approx.f32": Bound(absolute=2.0**-20.5, range="-2 pi to 2 pi"),
    "lg2.approx.f32": Bound(relative=2.0**-22, absolute=2.0**-22, range="absolute in (0.5, 2)"),
    "ex2.approx.f32": Bound(ulp=2),
    "tanh.approx.f32": Bound(relative=2.0**-11),
    "ex2.approx.f16": Bound(relative=2.0**-9.9),
    "ex2.approx.bf16": Bound(relative=2.0**-7),
    "tanh.approx.f16": Bound(absolute=2.0**-10.987),
    "tanh.approx.bf16": Bound(absolute=2.0**-8),
}
"""By the opcode without ``.ftz`` (but for the two f64 forms that PTX spells with it)."""


def _reciprocal(x: Array) -> Array:
    return 1.0 / x


def _reciprocal_root(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


FUNCTIONS: Final[dict[str, Callable[[Array], Array]]] = {
    "rcp": _reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": _reciprocal_root,
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}
"""Functions of float64 arrays."""


def in_float32(name: str) -> Callable[[Array], Array]:
    """``name`` on float32, through float64. NaN is not yet canonical."""
    function = FUNCTIONS[name]
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


def gross(name: str) -> Callable[[Array], Array]:
    """``name`` on float64 as ``.approx.ftz.f64`` has it: the low 32 bits of argument and result
    are zero, subnormal numbers are zeros of the same sign, and NaN is 0x7fffffff00000000."""
    function = FUNCTIONS[name]
    upper = np.uint64(0xFFFFFFFF_00000000)
    tiny = np.finfo(np.float64).tiny
    nan = np.array(0x7FFFFFFF_00000000, np.uint64).view(np.float64)

    def apply(x: Array) -> Array:
        argument = (x.view(np.uint64) & upper).view(np.float64)
        value = function(argument * (np.abs(argument) >= tiny))
        cut = (value.view(np.uint64) & upper).view(np.float64)
        return np.where(cut != cut, nan, cut * (np.abs(cut) >= tiny))

    return apply

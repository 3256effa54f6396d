"""Comparison and selection. PTX ISA 9.7.6 and 9.7.7."""

from collections.abc import Callable
from typing import Final

import numpy as np

from hopwell.emulator.instructions.modifiers import BITS, INTEGERS, Modifiers, typed
from hopwell.emulator.numerics.bits import Array, flush
from hopwell.emulator.numerics.formats import bf16_to_f32
from hopwell.emulator.registry import Compute
from hopwell.emulator.types import TYPES
from hopwell.ptx.nodes import Pair

Comparison = Callable[[Array, Array], Array]


def _ordered(a: Array, b: Array) -> Array:
    return (a == a) & (b == b)


def _or_unordered(comparison: Comparison) -> Comparison:
    return lambda a, b: comparison(a, b) | ~_ordered(a, b)


_PLAIN: Final[dict[str, Comparison]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED: Final[dict[str, Comparison]] = {
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_FLOAT: Final[dict[str, Comparison]] = {
    **_PLAIN,
    # A NaN is unequal to everything, but .ne holds between numbers alone.
    "ne": lambda a, b: (a != b) & _ordered(a, b),
    **{f"{name}u": _or_unordered(function) for name, function in _PLAIN.items()},
    "neu": np.not_equal,
    "num": _ordered,
    "nan": lambda a, b: ~_ordered(a, b),
}
_COMBINE: Final = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}

FLOATS: Final = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
COMPARED: Final = (*BITS, *INTEGERS, *FLOATS)


def _comparison(m: Modifiers, type_name: str) -> Comparison:
    """The comparison that the modifiers name, on the arrays that carry ``type_name``."""
    if type_name in FLOATS:
        function = _FLOAT[m.choice(*_FLOAT)]
        if type_name.startswith("bf16"):
            values = function
            function = lambda a, b: values(bf16_to_f32(a), bf16_to_f32(b))  # noqa: E731
        elif type_name != "f64" and m.flag("ftz"):
            exact = function
            function = lambda a, b: exact(flush(a), flush(b))  # noqa: E731
        return function
    if type_name in BITS:
        return _PLAIN[m.choice("eq", "ne")]
    unsigned = _UNSIGNED if type_name.startswith("u") else {}
    table = {**_PLAIN, **unsigned}
    return table[m.choice(*table)]


def _split(function: Comparison, type_name: str) -> Comparison:
    """``function`` on each half of a pair: bool (n, 2), the low half first."""
    dtype = np.uint16 if type_name == "bf16x2" else np.float16
    return lambda a, b: function(a.view(dtype), b.view(dtype)).reshape(-1, 2)


@typed("setp", COMPARED)
def setp(m: Modifiers) -> Compute:
    """p = (a op b), q = its opposite; with .and, .or, .xor: p = (a op b) bool c,
    q = !(a op b) bool c. For pairs p is the comparison of the low halves and q of the high ones.
    """
    function = _comparison(m, m.type)
    combine = m.choice(*_COMBINE, default="")
    sources = (m.type, m.type) + (("pred",) if combine else ())
    if m.type.endswith("x2"):
        return Compute(_two(_split(function, m.type), combine), sources, ("pred", "pred"))
    if isinstance(m.node.operands[0], Pair):
        if m.type in ("f16", "bf16"):
            raise m.unsupported("one destination")
        return Compute(_opposites(function, combine), sources, ("pred", "pred"))
    if not combine:
        return Compute(function, sources, ("pred",))
    join = _COMBINE[combine]
    return Compute(lambda a, b, c: join(function(a, b), c), sources, ("pred",))


def _opposites(function: Comparison, combine: str) -> Callable[..., tuple[Array, Array]]:
    if not combine:

        def both(a: Array, b: Array) -> tuple[Array, Array]:
            holds = function(a, b)
            return holds, ~holds

        return both
    join = _COMBINE[combine]

    def combined(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        holds = function(a, b)
        return join(holds, c), join(~holds, c)

    return combined


def _two(function: Comparison, combine: str) -> Callable[..., tuple[Array, Array]]:
    if not combine:

        def both(a: Array, b: Array) -> tuple[Array, Array]:
            holds = function(a, b)
            return holds[:, 0], holds[:, 1]

        return both
    join = _COMBINE[combine]

    def combined(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        holds = function(a, b)
        return join(holds[:, 0], c), join(holds[:, 1], c)

    return combined


_ONE: Final = {"f16": 0x3C00, "bf16": 0x3F80}


def _truth(type_name: str) -> Callable[[Array], Array]:
    """True and false as a result of ``set``: all ones or 1.0, and 0."""
    if type_name == "f32":
        return lambda holds: holds.astype(np.float32)
    if type_name in _ONE:
        return lambda holds: (holds * np.uint16(_ONE[type_name])).view(TYPES[type_name].dtype)
    dtype = TYPES[type_name].dtype
    return lambda holds: (-holds.astype(np.int64)).astype(dtype)


def _pair_truth(type_name: str) -> Callable[[Array], Array]:
    one = np.uint16(_ONE[type_name[:-2]])
    return lambda holds: (holds * one).view(np.uint32)[:, 0]


@typed("set", ("u16", "s16", "u32", "s32", "f16", "bf16", "f16x2", "bf16x2", "f32"))
def set_(m: Modifiers) -> Compute:
    """d = (a op b), or (a op b) bool c: 1.0 for floating types of d, all ones for integer ones.

    The first type is d's, the second that of a and b.
    """
    source = m.choice(*COMPARED)
    function = _comparison(m, source)
    if m.type.endswith("x2"):
        if source != m.type:
            raise m.unsupported("types of different length")
        function, spread = _split(function, source), _pair_truth(m.type)
    elif source.endswith("x2"):
        raise m.unsupported("types of different length")
    else:
        spread = _truth(m.type)
    combine = m.choice(*_COMBINE, default="")
    if not combine:
        return Compute(lambda a, b: spread(function(a, b)), (source, source), (m.type,))
    join = _COMBINE[combine]

    def apply(a: Array, b: Array, c: Array) -> Array:
        holds = function(a, b)
        return spread(join(holds, c[:, None] if holds.ndim == 2 else c))

    return Compute(apply, (source, source, "pred"), (m.type,))


@typed("selp", (*BITS, *INTEGERS, "f32", "f64"))
def selp(m: Modifiers) -> Compute:
    """d = a where c is true, else b."""
    return Compute(lambda a, b, c: np.where(c, a, b), (m.type, m.type, "pred"), (m.type,))


@typed("slct", (*BITS, *INTEGERS, "f32", "f64"))
def slct(m: Modifiers) -> Compute:
    """d = a where c >= 0, else b: -0 counts as 0, and a NaN chooses b."""
    # The dispatch has taken one of the two types; for s32.s32 and f32.f32 the other is left.
    sign = m.choice("s32", "f32")
    ftz = sign == "f32" and m.flag("ftz")

    def choose(a: Array, b: Array, c: Array) -> Array:
        return np.where((flush(c) if ftz else c) >= 0, a, b)

    return Compute(choose, (m.type, m.type, sign), (m.type,))

"""float32 and float64 arithmetic. PTX ISA 9.7.3."""

from collections.abc import Callable
from typing import Final

import numpy as np

from hopwell.emulator.instructions.integer import by_halves, same
from hopwell.emulator.instructions.modifiers import Modifiers, typed
from hopwell.emulator.numerics import approximate
from hopwell.emulator.numerics.arithmetic import WIDE, flush_tiny, operation
from hopwell.emulator.numerics.bits import Array, canonical, flush, saturate
from hopwell.emulator.numerics.selection import CLASSES, SELECT, by_magnitude
from hopwell.emulator.registry import Compute

FLOATS: Final = ("f32", "f64")
ROUNDINGS: Final = ("rn", "rz", "rm", "rp")

Function = Callable[..., Array]


def finished(function: Function, type_name: str, ftz: bool, sat: bool = False) -> Function:
    """``function`` with subnormal sources and results flushed, the result saturated, and NaN
    made canonical. float64 keeps the payload of a NaN."""
    if sat:
        clamped = function
        function = lambda *sources: saturate(clamped(*sources))  # noqa: E731
    elif type_name != "f64":
        open_nan = function
        function = lambda *sources: canonical(open_nan(*sources))  # noqa: E731
    if not ftz:
        return function
    exact = function
    return lambda *sources: flush(exact(*[flush(source) for source in sources]))


def _ftz(m: Modifiers) -> bool:
    return m.type != "f64" and m.flag("ftz")


def _sat(m: Modifiers) -> bool:
    return m.type == "f32" and m.flag("sat")


def _arithmetic(m: Modifiers, name: str, count: int, mode: str) -> Compute:
    inner = "f64" if m.type == "f64" else "f32"
    function, ftz = operation(name, inner, mode), _ftz(m)
    if ftz and name in WIDE:
        function = flush_tiny(function, WIDE[name], mode)
    function = finished(function, inner, ftz, _sat(m))
    if m.type == "f32x2":
        function = by_halves(function, np.float32)
    return same(function, m.type, count)


def _register_arithmetic(name: str, count: int, default: str | None) -> None:
    @typed(name, (*FLOATS, "f32x2"))
    def arithmetic(m: Modifiers) -> Compute:
        """d = a op b in one rounding: rn (default of add, sub, mul), rz, rm or rp.

        .ftz flushes subnormal numbers of float32, .sat clamps float32 to [0, 1] with NaN to 0.
        """
        return _arithmetic(m, name, count, m.choice(*ROUNDINGS, default=default))


_register_arithmetic("add", 2, "rn")
_register_arithmetic("sub", 2, "rn")
_register_arithmetic("mul", 2, "rn")
_register_arithmetic("fma", 3, None)


@typed("mad", FLOATS)
def mad(m: Modifiers) -> Compute:
    """d = a * b + c in one rounding: the same as fma since sm_20."""
    return _arithmetic(m, "fma", 3, m.choice(*ROUNDINGS))


@typed("div", FLOATS)
def div(m: Modifiers) -> Compute:
    """d = a / b. .rn, .rz, .rm, .rp: correctly rounded. .approx and .full (f32): to 2 ulp here and
    there; .approx gives 0, or NaN for an infinite a, where 2**126 < |b|.
    """
    kinds = (*ROUNDINGS, *(("approx", "full") if m.type == "f32" else ()))
    mode = m.choice(*kinds)
    if mode not in ("approx", "full"):
        return _arithmetic(m, "div", 2, mode)
    function = np.divide if mode == "full" else _divide_approximately
    return same(finished(function, m.type, _ftz(m)), m.type, 2)


def _divide_approximately(a: Array, b: Array) -> Array:
    quotient = a / b
    size = np.abs(b)
    huge = (size > np.float32(2.0**126)) & np.isfinite(b)
    # As a times a reciprocal that was flushed: an infinite a makes NaN of it.
    return np.where(huge, a * np.copysign(np.float32(0), b), quotient)


def _register_root(name: str) -> None:
    @typed(name, FLOATS)
    def root(m: Modifiers) -> Compute:
        """d = 1 / a or the square root: correctly rounded, or .approx (see BOUNDS)."""
        gross = m.type == "f64" and name == "rcp"
        kinds = (*ROUNDINGS, *(("approx",) if m.type == "f32" or gross else ()))
        mode = m.choice(*kinds)
        if mode != "approx":
            return _arithmetic(m, name, 1, mode)
        if gross:
            return _gross(m, name)
        return same(finished(approximate.in_float32(name), m.type, _ftz(m)), m.type, 1)


def _gross(m: Modifiers, name: str) -> Compute:
    """.approx.ftz.f64: from and to the upper 32 bits."""
    m.choice("ftz")
    return same(approximate.gross(name), m.type, 1)


_register_root("rcp")
_register_root("sqrt")


@typed("rsqrt", FLOATS)
def rsqrt(m: Modifiers) -> Compute:
    """d = 1 / sqrt(a), approximately."""
    m.choice("approx")
    if m.type == "f32":
        return same(finished(approximate.in_float32("rsqrt"), m.type, _ftz(m)), m.type, 1)
    if "ftz" in m.node.modifiers:
        return _gross(m, "rsqrt")
    return same(approximate.FUNCTIONS["rsqrt"], m.type, 1)


def _register_approximation(name: str) -> None:
    @typed(name, ("f32",))
    def approximation(m: Modifiers) -> Compute:
        """d = f(a), approximately: see BOUNDS for the error of the hardware."""
        m.choice("approx")
        ftz = name != "tanh" and m.flag("ftz")
        function = finished(approximate.in_float32(name), m.type, False)
        return same(_FLUSHED[name](function) if ftz else function, m.type, 1)


def _flush_source(function: Function) -> Function:
    return lambda a: function(flush(a))


def _flush_result(function: Function) -> Function:
    return lambda a: flush(function(a))


_FLUSHED: Final[dict[str, Callable[[Function], Function]]] = {
    "sin": _flush_result,
    "cos": lambda function: function,
    "lg2": _flush_source,
    "ex2": _flush_result,
}
"""Where flushing has an effect: 2**a is 1 for any a that is small, a logarithm never is small."""

for _name in ("sin", "cos", "lg2", "ex2", "tanh"):
    _register_approximation(_name)


def select(m: Modifiers, name: str, ftz: bool) -> Function:
    """min or max with .NaN, .xorsign.abs; sources flushed under .ftz."""
    function: Function = SELECT[name, m.flag("NaN")]
    if m.flag("xorsign"):
        m.choice("abs")
        function = by_magnitude(function)
    if not ftz:
        return function
    plain = function
    return lambda *sources: plain(*[flush(source) for source in sources])


def _register_select(name: str) -> None:
    @typed(name, FLOATS)
    def extreme(m: Modifiers) -> Compute:
        """d = min or max of a, b (and c): a NaN loses, wins with .NaN; -0 is less than +0.

        .xorsign.abs compares magnitudes and gives the product of the signs; three sources have
        .abs alone.
        """
        if m.type == "f64":
            return same(SELECT[name, False], m.type, 2)
        if len(m.node.operands) < 4:
            return same(select(m, name, _ftz(m)), m.type, 2)
        if "xorsign" in m.node.modifiers:
            raise m.unsupported(".xorsign takes two sources")
        function = select(m, name, _ftz(m))
        size = np.abs if m.flag("abs") else np.positive
        return same(lambda a, b, c: function(function(size(a), size(b)), size(c)), m.type, 3)


_register_select("min")
_register_select("max")


@typed("abs", FLOATS)
def absolute(m: Modifiers) -> Compute:
    """d = |a|."""
    return same(finished(np.abs, m.type, _ftz(m)), m.type, 1)


@typed("neg", FLOATS)
def neg(m: Modifiers) -> Compute:
    """d = -a."""
    return same(finished(np.negative, m.type, _ftz(m)), m.type, 1)


@typed("copysign", FLOATS)
def copysign(m: Modifiers) -> Compute:
    """d = b with the sign of a."""
    return same(lambda a, b: np.copysign(b, a), m.type, 2)


@typed("testp", FLOATS)
def testp(m: Modifiers) -> Compute:
    """p = whether a is of the class that is asked for. Zero is a normal number."""
    question = CLASSES[m.choice(*CLASSES)]
    return Compute(question, (m.type,), ("pred",))

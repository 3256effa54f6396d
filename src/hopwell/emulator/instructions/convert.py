"""Conversions: cvt and cvt.pack. PTX ISA 9.7.9.21 and 9.7.9.22."""

from collections.abc import Callable
from typing import Final

import numpy as np

from hopwell.emulator.instructions.modifiers import INTEGERS, Modifiers, typed
from hopwell.emulator.numerics import conversion
from hopwell.emulator.numerics.arithmetic import flush_tiny
from hopwell.emulator.numerics.bits import Array, flush, rectify, saturate
from hopwell.emulator.numerics.formats import (
    DECODE,
    ENCODE,
    FORMATS,
    bf16_to_f32,
    cut_nan,
    cut_nan_finitely,
    f32_to_bf16,
    f32_to_f16,
    move_nan,
    with_nan,
)
from hopwell.emulator.numerics.rounding import TO_INTEGER
from hopwell.emulator.registry import Compute
from hopwell.emulator.types import TYPES

ALL_INTEGERS: Final = ("u8", "s8", *INTEGERS)
FLOATS: Final = ("f16", "bf16", "f32", "f64")
PAIRS: Final = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}

_OCTETS: Final = ("e4m3x2", "e5m2x2")
_WHOLE: Final = ("rni", "rzi", "rmi", "rpi")
_PRECISION: Final = {**{name: form.precision for name, form in FORMATS.items()}, "f64": 53}

Function = Callable[..., Array]


def _chain(*steps: Function | None) -> Function:
    """The steps that are not None, one after the other."""
    real = [step for step in steps if step is not None]
    if len(real) == 1:
        return real[0]

    def apply(x: Array) -> Array:
        for step in real:
            x = step(x)
        return x

    return apply


@typed("cvt", ALL_INTEGERS)
def to_integer(m: Modifiers) -> Compute:
    """d = a as an integer: cut or extended, .sat clamps.

    From floating point: rounded by .rni, .rzi, .rmi or .rpi and always clamped; NaN gives 0, or
    the top bit alone if a is f64 or d has 64 bits.
    """
    if "pack" in m.node.modifiers:
        return _pack(m)
    source = m.choice(*ALL_INTEGERS, *FLOATS)
    dtype = TYPES[m.type].dtype
    if source in ALL_INTEGERS:
        function = conversion.between_integers(TYPES[source].dtype, dtype, _clamps(m, source))
        return Compute(function, (source,), (m.type,))
    m.flag("sat")
    mode = m.choice(*_WHOLE)[:2]
    flushed = flush if source == "f32" and m.flag("ftz") else None
    function = _chain(flushed, DECODE[source], conversion.to_integer(source, dtype, mode))
    return Compute(function, (source,), (m.type,))


def _clamps(m: Modifiers, source: str) -> bool:
    """.sat between integers; PTX has it only where a value can lie outside the result's range."""
    (low, high), (result_low, result_high) = (
        conversion.limits(TYPES[name].dtype) for name in (source, m.type)
    )
    return (low < result_low or high > result_high) and m.flag("sat")


@typed("cvt", (*FLOATS, "tf32"))
def to_float(m: Modifiers) -> Compute:
    """d = a as a floating-point number, in one rounding.

    .rn, .rz, .rm, .rp (.rna for tf32) where d is narrower or a is an integer; .rni, .rzi, .rmi,
    .rpi round to a whole number of the same type. .ftz flushes float32 on either side; .sat
    clamps to [0, 1]; .relu raises negative numbers to 0; .satfinite clamps to finite numbers.
    """
    source = m.choice(*ALL_INTEGERS, *FLOATS)
    if source in ALL_INTEGERS:
        if m.type == "f32":
            m.flag("ftz")  # no integer is near enough to zero
        mode = m.choice("rn", "rz", "rm", "rp")
        rounded = conversion.from_integer(TYPES[source].dtype, m.type, mode)
        return Compute(_chain(rounded, _saturation(m)), (source,), (m.type,))
    return Compute(_between_floats(m, source), (source,), (m.type,))


def _saturation(m: Modifiers) -> Function | None:
    """.sat on the array that carries the result."""
    return saturate if m.type in ("f16", "f32", "f64") and m.flag("sat") else None


_FAST: Final[dict[tuple[str, str], Function]] = {
    ("bf16", "f32"): f32_to_bf16,
    ("f16", "f32"): f32_to_f16,
}


def _between_floats(m: Modifiers, source: str) -> Function:
    ftz = "f32" in (source, m.type) and m.flag("ftz")
    before = flush if ftz and source == "f32" else None
    after = flush if ftz and m.type == "f32" else None
    rounding = _rounding(m, source)
    bound = m.type in ("f16", "bf16", "tf32") and source == "f32"
    relu = bound and rounding in ("rn", "rz") and m.flag("relu")
    finite = bound and m.flag("satfinite")
    keep = _kept_nan(m.type, source, rounding, finite)
    sat = _saturation(m)
    if rounding == "rn" and (m.type, source) in _FAST and not (relu or finite):
        return _chain(before, _FAST[m.type, source], sat)
    if not rounding and source == "bf16" and m.type == "f32":
        return _chain(bf16_to_f32, sat)  # a shift: NaN keeps all of its bits
    if rounding in _WHOLE:
        step: Function | None = TO_INTEGER[rounding[:2]]
    else:
        step = conversion.round_to(m.type, rounding) if rounding else None
    convert = _chain(
        before,
        DECODE[source],
        step,
        conversion.clamp_finite(m.type) if finite else None,
        rectify if relu else None,
        ENCODE[m.type],
        after,
    )
    if after is not None and source == "f64":
        convert = flush_tiny(convert, lambda x: x, rounding)
    return _chain(convert if keep is None else keep(convert), sat)


def _kept_nan(
    to: str, source: str, rounding: str, finite: bool
) -> Callable[[Function], Function] | None:
    """What keeps more of a NaN than that it is one: conversions of f64, and .rna to tf32.

    As an H200 answers: to and from f64, sign and upper payload stay and the NaN becomes quiet;
    .rna.tf32 only clears the low bits, so that of a small payload infinity remains.
    """
    if to == "tf32" and rounding == "rna":
        moved = cut_nan_finitely if finite else cut_nan
        return lambda convert: with_nan(convert, moved)
    if "f64" not in (to, source):
        return None
    return lambda convert: with_nan(convert, lambda x: move_nan(x, source, to))


def _rounding(m: Modifiers, source: str) -> str:
    """The rounding modifier; needed where precision or range is lost, refused elsewhere."""
    if m.type == "tf32":
        return m.choice("rna", "rn", "rz")
    if source == m.type:
        return m.choice(*_WHOLE, default="")
    if (source, m.type) == ("bf16", "f16"):
        # More precise, but of smaller range; ptxas takes it with and without.
        return m.choice("rn", "rz", "rm", "rp", default="rn")
    if _PRECISION[source] < _PRECISION[m.type]:
        return ""
    return m.choice("rn", "rz", "rm", "rp")


@typed("cvt", PAIRS)
def to_pair(m: Modifiers) -> Compute:
    """d = two numbers, each in one rounding.

    From f32 the first source is the upper half; from a pair each half gives a half. 8-bit types
    are reached with .satfinite: what is too large, or infinite, becomes the largest finite one.
    """
    element = PAIRS[m.type]
    octets = element in ("e4m3", "e5m2")
    source = m.choice("f32", *(["f16x2"] if octets else []), *(_OCTETS if element == "f16" else ()))
    finite = octets or source == "f32"
    mode = m.choice("rn") if octets or source != "f32" else m.choice("rn", "rz")
    relu = m.flag("relu")
    satfinite = finite and m.flag("satfinite")
    if octets and not satfinite:
        raise m.unsupported("needs .satfinite")
    if source == "f32" and mode == "rn" and not (relu or satfinite):
        convert = _FAST[element, "f32"]
    else:
        convert = _chain(
            DECODE["f32" if source == "f32" else PAIRS[source]],
            conversion.round_to(element, mode),
            conversion.clamp_finite(element) if satfinite else None,
            rectify if relu else None,
            ENCODE[element],
        )
    carrier = TYPES[m.type].dtype
    if source != "f32":
        # What carries an element of the source has half the bits of what carries the pair.
        part = TYPES[PAIRS[source]].dtype
        return Compute(lambda a: convert(a.view(part)).view(carrier), (source,), (m.type,))

    def both(a: Array, b: Array) -> Array:
        pairs = np.empty((len(a), 2), np.float32)
        pairs[:, 0] = b
        pairs[:, 1] = a
        return convert(pairs.reshape(-1)).view(carrier)

    return Compute(both, ("f32", "f32"), (m.type,))


@typed("cvt", ("u2", "s2", "u4", "s4"))
def _pack(m: Modifiers) -> Compute:
    """cvt.pack: d = a and b clamped, a above b; below 16 bits the low bits of c above both."""
    for modifier in ("pack", "sat", "s32"):
        m.choice(modifier)
    bits = int(m.type[1:])
    if bits > 16:
        raise m.unsupported("packs into 16 bits or fewer")
    low = -(1 << bits - 1) if m.type[0] == "s" else 0
    high = low + (1 << bits) - 1
    size, mask = np.uint32(bits), np.uint32((1 << bits) - 1)

    def pack(a: Array, b: Array) -> Array:
        upper, lower = (np.clip(x, low, high).astype(np.uint32) & mask for x in (a, b))
        return upper << size | lower

    if bits == 16:
        return Compute(pack, ("s32", "s32"), ("b32",))
    m.choice("b32")
    rest = np.uint32(2 * bits)
    return Compute(lambda a, b, c: c << rest | pack(a, b), ("s32", "s32", "b32"), ("b32",))

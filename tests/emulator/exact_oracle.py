"""Rounding and arithmetic in rational numbers: slow, and independent of hopwell.emulator."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st


class Layout(NamedTuple):
    """An IEEE interchange format; ``top`` is the encoding of its largest finite number."""

    width: int
    mantissa: int
    nan: int

    @property
    def bias(self) -> int:
        return (1 << (self.width - self.mantissa - 2)) - 1

    @property
    def infinity(self) -> int:
        return (2 * self.bias + 1) << self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)


LAYOUTS = {
    "f16": Layout(16, 10, 0x7FFF),
    "bf16": Layout(16, 7, 0x7FFF),
    "f32": Layout(32, 23, 0x7FFFFFFF),
    "f64": Layout(64, 52, 0x7FF8000000000000),
    # As the upper 19 bits of the float32 that carries it.
    "tf32": Layout(19, 10, 0x3FFFF),
}
DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}


class Number(NamedTuple):
    """``kind`` is "nan", "infinite" or "finite"; zeros have a sign too."""

    kind: str
    negative: bool
    value: Fraction

    @property
    def signed(self) -> Fraction:
        return -self.value if self.negative else self.value


def decode(bits: int, name: str) -> Number:
    form = LAYOUTS[name]
    negative, bits = bool(bits & form.sign), bits & (form.sign - 1)
    if bits > form.infinity:
        return Number("nan", negative, Fraction(0))
    if bits == form.infinity:
        return Number("infinite", negative, Fraction(0))
    exponent, fraction = bits >> form.mantissa, bits & ((1 << form.mantissa) - 1)
    if exponent:
        fraction |= 1 << form.mantissa
    scale = max(exponent, 1) - form.bias - form.mantissa
    return Number("finite", negative, Fraction(fraction) * Fraction(2) ** scale)


def round_to(value: Fraction, name: str, mode: str) -> int:
    """The encoding of ``value``, not zero, in the mode rn, rz, rm, rp or rna.

    With ".ftz" after the mode it is rounded with exponents unbounded, and zero where it is less
    than the least normal number then.
    """
    mode, _, ftz = mode.partition(".")
    form = LAYOUTS[name]
    negative, size = value < 0, abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    if not ftz:
        exponent = max(exponent, 1 - form.bias)
    scaled = size / Fraction(2) ** (exponent - form.mantissa)
    whole = math.floor(scaled)
    rest = scaled - whole
    outwards = mode == ("rm" if negative else "rp")
    if mode in ("rn", "rna"):
        tie = mode == "rna" or whole & 1
        whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and bool(tie))
    elif outwards:
        whole += rest > 0
    # Adding the whole number to the exponent field carries into it where it has to.
    bits = ((exponent + form.bias - 1) << form.mantissa) + whole
    if bits < 1 << form.mantissa and ftz:
        bits = 0
    if bits >= form.infinity:
        bits = form.infinity - (mode == "rz" or (mode in ("rm", "rp") and not outwards))
    return bits | (form.sign if negative else 0)


def _zero(negative: bool, name: str) -> int:
    return LAYOUTS[name].sign if negative else 0


def _infinity(negative: bool, name: str) -> int:
    return LAYOUTS[name].infinity | _zero(negative, name)


def _finish(value: Fraction, negative_zero: bool, name: str, mode: str) -> int:
    return round_to(value, name, mode) if value else _zero(negative_zero, name)


def fma(a: Number, b: Number, c: Number, name: str, mode: str) -> int:
    nan = LAYOUTS[name].nan
    kinds = [x.kind for x in (a, b, c)]
    product_negative = a.negative != b.negative
    if "nan" in kinds:
        return nan
    if "infinite" in kinds[:2]:
        zero = any(x.kind == "finite" and x.value == 0 for x in (a, b))
        if zero or (c.kind == "infinite" and c.negative != product_negative):
            return nan
        return _infinity(product_negative, name)
    if c.kind == "infinite":
        return _infinity(c.negative, name)
    same_sign = product_negative == c.negative
    exact_zero = product_negative if same_sign else mode.startswith("rm")
    return _finish(a.signed * b.signed + c.signed, exact_zero, name, mode)


def add(a: Number, b: Number, name: str, mode: str) -> int:
    return fma(a, Number("finite", False, Fraction(1)), b, name, mode)


def sub(a: Number, b: Number, name: str, mode: str) -> int:
    return add(a, b._replace(negative=not b.negative), name, mode)


def mul(a: Number, b: Number, name: str, mode: str) -> int:
    zero = Number("finite", a.negative != b.negative, Fraction(0))
    return fma(a, b, zero, name, mode)


def div(a: Number, b: Number, name: str, mode: str) -> int:
    negative = a.negative != b.negative
    if "nan" in (a.kind, b.kind) or (a.kind == b.kind == "infinite"):
        return LAYOUTS[name].nan
    if b.kind == "infinite":
        return _zero(negative, name)
    if a.kind == "infinite":
        return _infinity(negative, name)
    if b.value == 0:
        return LAYOUTS[name].nan if a.value == 0 else _infinity(negative, name)
    return _finish(a.signed / b.signed, negative, name, mode)


def rcp(a: Number, name: str, mode: str) -> int:
    return div(Number("finite", False, Fraction(1)), a, name, mode)


def sqrt(a: Number, name: str, mode: str) -> int:
    if a.kind == "finite" and a.value == 0:
        return _zero(a.negative, name)
    if a.kind == "nan" or a.negative:
        return LAYOUTS[name].nan
    if a.kind == "infinite":
        return _infinity(False, name)
    scaled = a.value * Fraction(4) ** 1200
    root = math.isqrt(math.floor(scaled))
    # Half a unit stands for whatever is below: any rounding sees that it is neither 0 nor 1.
    value = Fraction(2 * root + (root * root != scaled), 2) / Fraction(2) ** 1200
    return round_to(value, name, mode)


OPERATIONS: dict[str, Callable[..., int]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "fma": fma,
    "div": div,
    "rcp": rcp,
    "sqrt": sqrt,
}
COUNTS = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "rcp": 1, "sqrt": 1}


def flush(bits: int, name: str) -> int:
    """Subnormal numbers as zeros of the same sign."""
    form = LAYOUTS[name]
    return bits & form.sign if bits & (form.sign - 1) < 1 << form.mantissa else bits


def expected(
    operation: str, sources: Sequence[int], name: str, mode: str, ftz: bool = False
) -> int:
    """The bits of ``operation`` on encodings in the format ``name``."""
    if ftz:
        sources = [flush(bits, name) for bits in sources]
        mode += ".ftz"
    result = OPERATIONS[operation](*[decode(bits, name) for bits in sources], name, mode)
    return flush(result, name) if ftz else result


def is_nan(bits: int, name: str) -> bool:
    return decode(bits, name).kind == "nan"


# -- arrays and bit patterns -----------------------------------------------------------------


def to_array(bits: Sequence[int], name: str) -> Any:
    unsigned = np.dtype(f"u{LAYOUTS[name].width // 8}")
    return np.array(bits, unsigned).view(DTYPES[name])


def to_bits(array: Any) -> list[int]:
    bits: list[int] = array.view(np.dtype(f"u{array.dtype.itemsize}")).tolist()
    return bits


def specials(name: str) -> list[int]:
    form = LAYOUTS[name]
    one = form.bias << form.mantissa
    normal = 1 << form.mantissa
    positive = [0, 1, 2, normal - 1, normal, normal + 1, one - 1, one, one + 1, one + normal]
    positive += [one + normal // 2, form.infinity - 1, form.infinity, form.infinity + 1, form.nan]
    return positive + [bits | form.sign for bits in positive]


def patterns(name: str) -> st.SearchStrategy[int]:
    """Encodings, with many that end in few bits or lie near each other in magnitude."""
    form = LAYOUTS[name]
    ends = sorted({0, 1, 2, 3, 1 << (form.mantissa - 1), (1 << form.mantissa) - 1})
    ends += [1 << shift for shift in range(1, form.mantissa, 3)]
    centre = st.integers(max(form.bias - 30, 0), min(form.bias + 30, 2 * form.bias))
    structured = st.builds(
        lambda sign, exponent, end: sign * form.sign | exponent << form.mantissa | end,
        st.integers(0, 1),
        st.one_of(centre, st.integers(0, 2 * form.bias)),
        st.one_of(st.sampled_from(ends), st.integers(0, (1 << form.mantissa) - 1)),
    )
    return st.one_of(st.sampled_from(specials(name)), structured)


def random_patterns(name: str, count: int, seed: int) -> list[int]:
    """Encodings of which most are of moderate magnitude, and many end in few bits."""
    form = LAYOUTS[name]
    rng = np.random.default_rng(seed)
    sign = rng.integers(0, 2, count).tolist()
    near = rng.integers(max(form.bias - 14, 0), form.bias + 14, count).tolist()
    anywhere = rng.integers(0, 2 * form.bias + 1, count).tolist()
    which = rng.random(count).tolist()
    full = rng.integers(0, 1 << form.mantissa, count).tolist()
    cut = rng.integers(0, form.mantissa + 1, count).tolist()
    result = []
    for i in range(count):
        exponent = near[i] if which[i] < 0.7 else anywhere[i]
        fraction = full[i] >> cut[i] << cut[i] if which[i] * 10 % 1 < 0.5 else full[i]
        result.append(sign[i] * form.sign | exponent << form.mantissa | fraction)
    return result

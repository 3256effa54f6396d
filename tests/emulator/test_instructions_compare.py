"""Comparisons and selections against Python's own, NaN included."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.emulator import exact_oracle as oracle
from tests.emulator.decoding import decode, run
from tests.emulator.test_instructions_integer import INTEGERS, some

from hopwell.emulator.registry import UnsupportedInstruction
from hopwell.emulator.types import TYPES

PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
SPECIALS = [0.0, -0.0, 1.0, -1.0, 2.0, math.inf, -math.inf, math.nan]


def holds(name: str, a: float, b: float) -> bool:
    """A floating-point comparison as PTX defines it."""
    nan = math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return nan == (name == "nan")
    if name.endswith("u"):
        return nan or PLAIN[name[:-1]](a, b)
    return not nan and PLAIN[name](a, b)


FLOATING = [*PLAIN, *(f"{name}u" for name in PLAIN), "num", "nan"]


@pytest.mark.parametrize("t", [*INTEGERS, "b16", "b32", "b64"])
def test_integers(t: str) -> None:
    a, b = some(t, 0), some(t, 1)
    b[::3] = a[::3]
    names = {name: name for name in (PLAIN if t[0] != "b" else ("eq", "ne"))}
    if t[0] == "u":
        names.update(UNSIGNED)
    for name, plain in names.items():
        expected = [PLAIN[plain](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert run(f"setp.{name}.{t}", a, b, operands="p a b").tolist() == expected, name
        found = run(f"set.{name}.u32.{t}", a, b).tolist()
        assert found == [0xFFFFFFFF * x for x in expected]
        found = run(f"set.{name}.s32.{t}", a, b).tolist()
        assert found == [-int(x) for x in expected]
        assert run(f"set.{name}.f32.{t}", a, b).tolist() == expected


def encoded(values: list[float], t: str) -> Any:
    if t == "bf16":
        return np.array([x >> 16 for x in oracle.to_bits(np.array(values, np.float32))], np.uint16)
    return np.array(values, TYPES[t].dtype)


@pytest.mark.parametrize("name", FLOATING)
@pytest.mark.parametrize("t", ["f16", "bf16", "f32", "f64"])
def test_floats(t: str, name: str) -> None:
    pairs = [(a, b) for a in SPECIALS for b in SPECIALS]
    a, b = (encoded([pair[i] for pair in pairs], t) for i in range(2))
    expected = [holds(name, *pair) for pair in pairs]
    assert run(f"setp.{name}.{t}", a, b, operands="p a b").tolist() == expected
    assert run(f"set.{name}.u32.{t}", a, b).tolist() == [0xFFFFFFFF * x for x in expected]
    if t in ("f16", "bf16"):
        return
    p, q = run(f"setp.{name}.{t}", a, b, operands="p|q a b")
    assert p.tolist() == expected
    assert q.tolist() == [not x for x in expected]


def test_two_destinations_and_a_third_predicate() -> None:
    a, b = [1, 1, 2, 2], [1, 1, 1, 1]
    c = [False, True, False, True]
    found = {
        name: run(f"setp.eq.{name}.s32", a, b, c, operands="p|q a b c")
        for name in ("and", "or", "xor")
    }
    # p = (a == b) op c, q = !(a == b) op c
    assert [x.tolist() for x in found["and"]] == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert [x.tolist() for x in found["or"]] == [[1, 1, 0, 1], [0, 1, 1, 1]]
    assert [x.tolist() for x in found["xor"]] == [[1, 0, 0, 1], [0, 1, 1, 0]]
    for name, (p, _) in found.items():
        single = run(f"setp.eq.{name}.s32", a, b, c, operands="p a b c")
        assert single.tolist() == p.tolist()
        whole = run(f"set.eq.{name}.u32.s32", a, b, c, operands="d a b c")
        assert whole.tolist() == [0xFFFFFFFF * x for x in p.tolist()]


def test_flushing_compares_zeros() -> None:
    tiny = np.array([1e-40, -1e-40], np.float32)
    zero = np.zeros(2, np.float32)
    assert run("setp.eq.f32", tiny, zero, operands="p a b").tolist() == [False, False]
    assert run("setp.eq.ftz.f32", tiny, zero, operands="p a b").tolist() == [True, True]
    assert run("set.gt.ftz.u32.f32", tiny, zero).tolist() == [0, 0]


@pytest.mark.parametrize("t", ["f16", "bf16"])
def test_pairs(t: str) -> None:
    a, b = encoded([1, 2, 3, math.nan], t), encoded([1, 3, 2, 1], t)
    sources = a.view(np.uint32), b.view(np.uint32)
    p, q = run(f"setp.lt.{t}x2", *sources, operands="p|q a b")
    assert p.tolist() == [False, False]
    assert q.tolist() == [True, False]
    p, q = run(f"setp.lt.or.{t}x2", *sources, [True, False], operands="p|q a b c")
    assert p.tolist() == [True, False]
    assert q.tolist() == [True, False]
    one = encoded([1], t).view(np.uint16).tolist()[0]
    assert run(f"set.lt.{t}x2.{t}x2", *sources).tolist() == [one << 16, 0]
    joined = run(f"set.lt.or.{t}x2.{t}x2", *sources, [False, True], operands="d a b c")
    assert joined.tolist() == [one << 16, one << 16 | one]
    assert run(f"set.lt.{t}.{t}", a, b).view(np.uint16).tolist() == [0, one, 0, 0]


@pytest.mark.parametrize("t", [*INTEGERS, "b16", "b32", "b64"])
def test_selections(t: str) -> None:
    a, b = some(t, 0), some(t, 1)
    c = np.arange(len(a)) % 3 == 0
    expected = [x if z else y for x, y, z in zip(a, b, c, strict=True)]
    assert run(f"selp.{t}", a, b, c, operands="d a b p").tolist() == expected
    sign = np.where(c, 0, -1)
    assert run(f"slct.{t}.s32", a, b, sign, operands="d a b c").tolist() == expected


def test_selections_by_floats_and_of_floats() -> None:
    a, b = np.array([1, 2, 3, 4], np.float32), np.array([5, 6, 7, np.nan], np.float32)
    c = [-0.0, math.nan, -1e-40, 1.0]
    assert run("slct.f32.f32", a, b, c, operands="d a b c").tolist() == [1, 6, 7, 4]
    assert run("slct.ftz.f32.f32", a, b, c, operands="d a b c").tolist() == [1, 6, 3, 4]
    assert run("slct.f32.s32", a, b, [0, -1, 5, 1], operands="d a b c").tolist() == [1, 6, 3, 4]
    assert run("slct.f64.f32", a, b, c, operands="d a b c").tolist() == [1, 6, 7, 4]
    odd = oracle.to_array([0xFFC12345, 0x7F800001], "f32")
    kept = run("selp.f32", odd, odd[::-1].copy(), [True, False], operands="d a b p")
    assert oracle.to_bits(kept) == [0xFFC12345, 0xFFC12345]
    assert run("selp.f64", [1.0], [2.0], [False], operands="d a b p").tolist() == [2.0]


@pytest.mark.parametrize(
    "opcode",
    ["setp.lt.b32", "setp.lo.s32", "setp.s32", "setp.eq.nand.s32", "setp.ltu.s32",
     "setp.eq.ftz.f64",
     "set.eq.u32", "selp.f16", "slct.b32", "slct.b32.u32", "set.eq.f16x2.f32", "set.eq.f16.f16x2"],
)  # fmt: skip
def test_unknown_forms(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode, "d a b c")


def test_halves_have_one_destination() -> None:
    with pytest.raises(UnsupportedInstruction, match="one destination"):
        decode("setp.eq.f16", "p|q a b")

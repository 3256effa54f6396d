"""Moves, packing and unpacking."""

from typing import Any

import numpy as np
import pytest
from tests.emulator.decoding import decode, run

from hopwell.emulator.registry import UnsupportedInstruction


@pytest.mark.parametrize("t", ["b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64"])
def test_integers(t: str) -> None:
    assert run(f"mov.{t}", [0, 1, 77], operands="d a").tolist() == [0, 1, 77]


@pytest.mark.parametrize(("t", "bits"), [("f32", np.uint32), ("f64", np.uint64)])
def test_nothing_happens_to_nan(t: str, bits: Any) -> None:
    value = np.array([np.iinfo(bits).max - 5], bits)
    moved = run(f"mov.{t}", value.view(f"f{value.itemsize}"), operands="d a")
    assert moved.view(bits).tolist() == value.tolist()


def test_predicates() -> None:
    assert run("mov.pred", [True, False], operands="p q").tolist() == [True, False]


@pytest.mark.parametrize(
    ("t", "count", "parts", "whole"),
    [
        ("b16", 2, [0x12, 0x34], 0x3412),
        ("b32", 2, [0x1234, 0x5678], 0x56781234),
        ("b32", 4, [1, 2, 3, 4], 0x04030201),
        ("b64", 2, [0x89ABCDEF, 0x01234567], 0x0123456789ABCDEF),
        ("b64", 4, [1, 2, 3, 4], 0x0004000300020001),
    ],
)
def test_vectors(t: str, count: int, parts: list[int], whole: int) -> None:
    names = "{" + ",".join("abcd"[:count]) + "}"
    assert run(f"mov.{t}", *[[x] for x in parts], operands=f"d {names}").tolist() == [whole]
    unpacked = run(f"mov.{t}", [whole], operands=f"{names} d")
    assert [x.tolist() for x in unpacked] == [[x] for x in parts]


def test_128_bits() -> None:
    whole = run("mov.b128", [7, 8], [9, 10], operands="d {a,b}")
    assert whole["low"].tolist() == [7, 8]
    assert whole["high"].tolist() == [9, 10]
    low, high = run("mov.b128", whole, operands="{a,_} d")
    assert low.tolist() == [7, 8]
    assert high.tolist() == [9, 10]
    assert run("mov.b128", whole, operands="d a").tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        ("mov.b32", "d {a,b,c}"),
        ("mov.b32", "{a,b} {c,d}"),
        ("mov.foo.b32", "d a"),
        ("mov.s8", "d a"),
    ],
)
def test_unknown_forms(opcode: str, operands: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode, operands)

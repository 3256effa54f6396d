"""Logic, shifts and byte permutation against Python's integers."""

import numpy as np
import pytest
from tests.emulator.decoding import decode, run
from tests.emulator.test_instructions_integer import check, width, wrap

from hopwell.emulator.registry import UnsupportedInstruction

BITS = ("b16", "b32", "b64")


@pytest.mark.parametrize("t", BITS)
def test_bitwise(t: str) -> None:
    check(f"and.{t}", (t, t), lambda a, b: a & b)
    check(f"or.{t}", (t, t), lambda a, b: a | b)
    check(f"xor.{t}", (t, t), lambda a, b: a ^ b)
    check(f"not.{t}", (t,), lambda a: ~a)
    check(f"cnot.{t}", (t,), lambda a: int(a == 0))


def test_predicates() -> None:
    a, b = [False, False, True, True], [False, True, False, True]
    assert run("and.pred", a, b).tolist() == [False, False, False, True]
    assert run("or.pred", a, b).tolist() == [False, True, True, True]
    assert run("xor.pred", a, b).tolist() == [False, True, True, False]
    assert run("not.pred", a).tolist() == [True, True, False, False]


@pytest.mark.parametrize("table", range(256))
def test_lop3_tables(table: int) -> None:
    # Bits 7 to 0 of these three words run through all eight combinations.
    found = run("lop3.b32", [0xF0], [0xCC], [0xAA], [0], operands=f"d a b c {table}")
    assert found.tolist()[0] & 0xFF == table
    assert found.tolist()[0] >> 8 in (0, 0xFFFFFF)


@pytest.mark.parametrize("name", ["and", "or"])
def test_lop3_with_predicate(name: str) -> None:
    a, b, c = np.array([[1, 2, 0, 0], [1, 1, 0, 3], [0, 0, 0, 0]])
    q = [True, False, True, False]
    d, p = run(f"lop3.{name}.b32", a, b, c, [0] * 4, q, operands="d|p a b c 0xfc q")
    assert d.tolist() == [1, 3, 0, 3]
    expected = {"and": [1, 0, 0, 0], "or": [1, 1, 1, 1]}
    assert p.tolist() == [bool(x) for x in expected[name]]


def counts() -> np.ndarray:
    rng = np.random.default_rng(7)
    values = rng.integers(0, 80, 96)
    values[:6] = [0, 31, 32, 33, 0xFFFFFFFF, 0x80000000]
    return values


@pytest.mark.parametrize("t", [*BITS, "u16", "u32", "u64", "s16", "s32", "s64"])
def test_shifts(t: str) -> None:
    values = {1: counts()}
    check(f"shr.{t}", (t, "u32"), lambda a, b: a >> b if b < 64 else -(a < 0), values=values)
    if t in BITS:
        shifted = {1: counts()}
        check(f"shl.{t}", (t, "u32"), lambda a, b: a << b if b < width(t) else 0, values=shifted)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(mode: str) -> None:
    def amount(c: int) -> int:
        return min(c, 32) if mode == "clamp" else c % 32

    sources, values = ("b32", "b32", "u32"), {2: counts()}
    check(
        f"shf.l.{mode}.b32",
        sources,
        lambda a, b, c: (b << 32 | a) << amount(c) >> 32,
        values=values,
    )
    check(f"shf.r.{mode}.b32", sources, lambda a, b, c: (b << 32 | a) >> amount(c), values=values)


def permuted(a: int, b: int, selectors: list[int]) -> int:
    octets = list((b << 32 | a).to_bytes(8, "little"))
    chosen = [(0xFF if octets[s & 7] >> 7 else 0) if s & 8 else octets[s & 7] for s in selectors]
    return int.from_bytes(bytes(chosen), "little")


def test_prmt_by_nibbles() -> None:
    sources = ("b32",) * 3
    check(
        "prmt.b32",
        sources,
        lambda a, b, c: permuted(a, b, [c >> 4 * i & 15 for i in range(4)]),
        "d a b c",
    )
    for selector in (0x7654, 0x5410, 0x7632, 0x3021, 0x0123, 0xBA98):
        nibbles = [selector >> 4 * i & 15 for i in range(4)]
        constant = {2: np.full(96, selector)}
        check(
            "prmt.b32",
            sources,
            lambda a, b, c, s=nibbles: permuted(a, b, s),
            f"d a b {selector}",
            values=constant,
        )


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        # Bytes 3, 2, 1, 0 of the result for c = 0, 1, 2, 3, as PTX ISA tabulates them.
        ("f4e", ["3210", "4321", "5432", "6543"]),
        ("b4e", ["5670", "6701", "7012", "0123"]),
        ("rc8", ["0000", "1111", "2222", "3333"]),
        ("ecl", ["3210", "3211", "3222", "3333"]),
        ("ecr", ["0000", "1110", "2210", "3210"]),
        ("rc16", ["1010", "3232", "1010", "3232"]),
    ],
)
def test_prmt_modes(mode: str, rows: list[str]) -> None:
    check(
        f"prmt.b32.{mode}",
        ("b32",) * 3,
        lambda a, b, c: permuted(a, b, [int(x) for x in reversed(rows[c & 3])]),
        "d a b c",
    )


def test_the_sign_fills_narrow_shifts() -> None:
    assert run("shr.s16", [-4, -4], [1, 40]).tolist() == [-2, -1]
    assert wrap(0x8000, "s16") == -32768


@pytest.mark.parametrize(
    "opcode", ["and.u32", "shl.u32", "shf.l.b32", "not.s32", "prmt.b32.foo", "shr.f32"]
)
def test_unknown_forms(opcode: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=opcode):
        decode(opcode, "d a b c")


def test_lop3_needs_a_constant_table() -> None:
    with pytest.raises(UnsupportedInstruction, match="constant"):
        decode("lop3.b32", "d a b c e")

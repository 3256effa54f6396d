"""Shuffles, votes, matches, reductions and elections: whole warps, and parts of one apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.elementwise import Array
from tests.emulator.snippets.snippet import Buffer, Comparison, Snippet, kernel, poisoned

Maker = Callable[[], Array]

WARPS = 32
THREADS = 32 * WARPS


def warps(name: str, rows: Sequence[str], columns: Sequence[Maker], width: int = 32) -> Snippet:
    """A kernel of WARPS warps in which each row of text leaves a result in ``%r20``.

    Operands stand in ``%r10``, ``%r11``, ... (64-bit ones in ``%d10``, ...), one for each column.
    """
    letters = "abc"[: len(columns)]
    body = ["mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, %ntid.x;", "mad.lo.u32 %r0, %r1, %r2, %x;"]
    for i, letter in enumerate(letters):
        register = "%d" if width == 64 else "%r"
        body.append(f"mad.wide.u32 %d{i}, %r0, {width // 8}, %p_in_{letter};")
        body.append(f"ld.global.b{width} {register}{10 + i}, [%d{i}];")
    body.append("mad.wide.u32 %d9, %r0, 4, %p_out;")
    for row, text in enumerate(rows):
        body.append(text)
        body.append(f"st.global.b32 [%d9+{row * THREADS * 4}], %r20;")
    output = Buffer("out", poisoned(np.uint32, len(rows), THREADS), Comparison())
    return Snippet(
        name=f"warp/{name}",
        source=kernel(" ".join(f"in_{x}:u64" for x in letters) + " out:u64", "\n".join(body)),
        arguments=(*(Buffer(f"in_{x}", c) for x, c in zip(letters, columns, strict=True)), output),
        block=(128, 1, 1),
        grid=(THREADS // 128, 1, 1),
        lines=tuple(rows),
    )


def _random(seed: int, width: int = 32) -> Maker:
    return partial(inputs.random_bits, seed, THREADS, width)


def _below(seed: int, bound: int, dtype: Any = np.uint32) -> Maker:
    return lambda: inputs.below(seed, THREADS, bound).astype(dtype)


def _few(seed: int, width: int = 32) -> Array:
    """Values of which some warps hold one alone, some two, some many."""
    kinds = 1 + inputs.below(seed, WARPS, 6).repeat(32)
    chosen = inputs.below(seed + 1, THREADS, 1 << 20) % kinds
    spread = inputs.random_bits(seed + 2, 8, width)
    return np.asarray(spread[chosen])


def _segments(up: bool) -> Array:
    """Operand c of shfl by warp: every width, then any clamp and mask."""
    clamp = 0 if up else 31
    usual = [(mask << 8) | clamp for mask in (0x00, 0x10, 0x18, 0x1C, 0x1E, 0x1F)]
    rest = inputs.random_bits(33, WARPS - len(usual), 16) & 0x1F1F
    return np.concatenate([np.array(usual), rest]).astype(np.uint32).repeat(32)


#: Two halves of a warp, chosen by a bit of %r11, go different ways; each has its mask in %r30.
APART = (
    "and.b32 %r31, %r11, 1; setp.ne.b32 %p1, %r31, 0; vote.sync.ballot.b32 %r30, %p1, -1;\n"
    "@!%p1 not.b32 %r30, %r30;\n"
    "@%p1 bra $odd;\n{work}\nbra.uni $done;\n$odd:\n{work}\n$done:\nbar.warp.sync -1;"
)


def _apart(work: str, row: int) -> str:
    text = APART.replace("{work}", work)
    return text.replace("$odd", f"$odd_{row}").replace("$done", f"$done_{row}")


def shuffles() -> Iterator[Snippet]:
    for mode in ("up", "down", "bfly", "idx"):
        rows = [
            f"shfl.sync.{mode}.b32 %r20|%p1, %r10, %r11, %r12, -1;",
            f"shfl.sync.{mode}.b32 %r21|%p1, %r10, %r11, %r12, -1; selp.b32 %r20, 1, 0, %p1;",
            f"shfl.sync.{mode}.b32 %r20, %r10, 3, {0 if mode == 'up' else 31}, 0xffffffff;",
        ]
        columns: list[Maker] = [_random(1), _below(2, 40), partial(_segments, mode == "up")]
        yield warps(f"shfl.{mode}", rows, columns)
    # Lanes of one parity exchange among themselves: bit 0 of the other lane's number stays.
    half = (
        "and.b32 %r31, %lane, 1; setp.ne.b32 %p1, %r31, 0;\n"
        "@%p1 bra $odd;\nshfl.sync.bfly.b32 %r20, %r10, 6, 31, 0x55555555;\nbra.uni $done;\n"
        "$odd:\nshfl.sync.bfly.b32 %r20, %r10, 10, 31, 0xaaaaaaaa;\n$done:\nbar.warp.sync -1;"
    )
    yield warps("shfl in halves", [half], [_random(3)])


def votes() -> Iterator[Snippet]:
    test = "setp.ne.b32 %p1, %r10, 0; "
    rows = [test + "vote.sync.ballot.b32 %r20, %p1, -1;"]
    rows += [
        f"{test}vote.sync.{mode}.pred %p2, {source}, -1; selp.b32 %r20, 1, 0, %p2;"
        for mode in ("all", "any", "uni")
        for source in ("%p1", "!%p1")
    ]
    rows.append("activemask.b32 %r20;")
    rows.append("elect.sync %r20|%p2, -1;")
    rows.append("elect.sync %r21|%p2, 0xffffffff; selp.b32 %r20, 1, 0, %p2;")

    def sparse() -> Array:
        kinds = inputs.below(5, WARPS, 4).repeat(32)
        bits = inputs.below(6, THREADS, 16)
        return np.choose(kinds, [0, 1, bits == 0, bits > 7]).astype(np.uint32)

    yield warps("vote", rows, [sparse])
    work = [
        "setp.gt.s32 %p2, %r10, 0; vote.sync.ballot.b32 %r20, %p2, %r30;",
        "setp.gt.s32 %p2, %r10, 0; vote.sync.any.pred %p2, %p2, %r30; selp.b32 %r20, 1, 0, %p2;",
        "elect.sync %r20|%p2, %r30; @%p2 add.u32 %r20, %r20, 100;",
        "activemask.b32 %r20;",
        "match.any.sync.b32 %r20, %r12, %r30;",
        "match.all.sync.b32 %r20|%p2, %r12, %r30; @%p2 xor.b32 %r20, %r20, 7;",
        "redux.sync.add.s32 %r20, %r10, %r30;",
        "redux.sync.xor.b32 %r20, %r10, %r30;",
        "redux.sync.max.u32 %r20, %r10, %r30;",
    ]
    rows = [_apart(text, row) for row, text in enumerate(work)]
    yield warps("in halves", rows, [_random(7), _random(8), lambda: _few(9)])


def matches() -> Iterator[Snippet]:
    for width in (32, 64):
        register = "%d10" if width == 64 else "%r10"
        rows = [
            f"match.any.sync.b{width} %r20, {register}, -1;",
            f"match.all.sync.b{width} %r20|%p1, {register}, -1;",
            f"match.all.sync.b{width} %r21|%p1, {register}, -1; selp.b32 %r20, 1, 0, %p1;",
        ]
        yield warps(f"match.b{width}", rows, [partial(_few, 11, width)], width)


def reductions() -> Iterator[Snippet]:
    rows = [
        f"redux.sync.{op}.{t} %r20, %r10, -1;"
        for op in ("add", "min", "max")
        for t in ("u32", "s32")
    ]
    rows += [f"redux.sync.{op}.b32 %r20, %r10, -1;" for op in ("and", "or", "xor")]
    yield warps("redux", rows, [_random(12)])


def divergence() -> Iterator[Snippet]:
    """Control flow: nested branches, loops of different length, brx, early exit, calls of none."""
    loop = (
        "and.b32 %r30, %r10, 15; mov.b32 %r20, 0;\n$loop:\nsetp.eq.u32 %p1, %r30, 0;\n"
        "@%p1 bra $out;\n"
        "mad.lo.u32 %r20, %r20, 3, %r30; sub.u32 %r30, %r30, 1;\nbra $loop;\n$out:\n"
        "bar.warp.sync -1;"
    )
    nested = (
        "setp.gt.s32 %p1, %r10, 0; setp.gt.s32 %p2, %r11, 0;\n"
        "@%p1 bra $a;\n@%p2 bra $b;\nmov.b32 %r20, 1;\nbra $join;\n$b:\nmov.b32 %r20, 2;\n"
        "bra $join;\n$a:\n@!%p2 bra $c;\nmov.b32 %r20, 3;\n$c:\n@!%p2 mov.b32 %r20, 4;\n$join:\n"
        "bar.warp.sync -1;\nvote.sync.ballot.b32 %r21, %p1, -1; xor.b32 %r20, %r20, %r21;"
    )
    table = (
        "and.b32 %r30, %r10, 3;\n$targets: .branchtargets $t0, $t1, $t2, $t3;\n"
        "brx.idx %r30, $targets;\n"
        + "".join(f"$t{i}:\nmov.b32 %r20, {i * i + 7};\nbra $join2;\n" for i in range(4))
        + "$join2:\nbar.warp.sync -1;"
    )
    yield warps("loop", [loop], [_random(13)])
    yield warps("branches", [nested], [_random(14), _random(15)])
    yield warps("branch table", [table], [_random(16)])
    exits = "mov.b32 %r20, 5;\nand.b32 %r30, %r10, 1; setp.eq.u32 %p1, %r30, 1;\n@%p1 exit;\n"
    exits += "activemask.b32 %r31; popc.b32 %r31, %r31; add.u32 %r20, %r20, 1;"
    yield warps("early exit", [exits], [_random(17)])


def snippets() -> Iterator[Snippet]:
    yield from shuffles()
    yield from votes()
    yield from matches()
    yield from reductions()
    yield from divergence()

"""Syntax tree to text and back: the same tree, and text that the assembler takes."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopwell.ptx import Module, nodes, parse, to_text
from hopwell.ptx.nodes import (
    Address,
    Block,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    LabelReference,
    Not,
    Pair,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
    Vector,
)

TEXTS = Path(__file__).parent / "ptx"
MODULES = ("everything", "linking", "blackwell")
PTXAS = shutil.which("ptxas")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_equals_what_its_text_says(name: str) -> None:
    module = parse((TEXTS / f"{name}.ptx").read_text())
    assert parse(to_text(module)) == module


@pytest.mark.skipif(PTXAS is None, reason="no ptxas: the text is checked by reading it back alone")
@pytest.mark.parametrize("name", MODULES)
def test_the_assembler_takes_what_is_written(name: str, tmp_path: Path) -> None:
    module = parse((TEXTS / f"{name}.ptx").read_text())
    written = tmp_path / "written.ptx"
    written.write_text(to_text(module))
    for text in (TEXTS / f"{name}.ptx", written):
        subprocess.run(
            [str(PTXAS), f"-arch={module.target}", "-c", str(text), "-o", str(tmp_path / "cubin")],
            check=True,
            capture_output=True,
        )


def test_one_node_is_written_as_ptx() -> None:
    add = Instruction(
        "add.s32", (Register("%r1"), Register("%r2"), Immediate(-4)), Guard("%p1", True)
    )
    assert to_text(add) == "@!%p1 add.s32 %r1, %r2, -4;"
    assert to_text(Address(Register("%rd1"), -8)) == "[%rd1+-8]"
    assert to_text(Immediate(1.0, 0x3F800000, width=32)) == "0f3F800000"
    with pytest.raises(KeyError):
        to_text("add.s32")


def test_an_instruction_can_be_taken_out() -> None:
    module = parse((TEXTS / "everything.ptx").read_text())

    def without(block: Block) -> Block:
        kept = [without(s) if isinstance(s, Block) else s for s in block.statements]
        gone = [s for s in kept if not (isinstance(s, Instruction) and s.opcode[:6] == "wgmma.")]
        return dataclasses.replace(block, statements=tuple(gone))

    (entry,) = module.entries
    assert entry.body is not None
    fewer = dataclasses.replace(entry, body=without(entry.body))
    statements = tuple(fewer if s is entry else s for s in module.statements)
    read = parse(to_text(dataclasses.replace(module, statements=statements)))
    before, after = ([i.opcode for i in m.entries[0].instructions()] for m in (module, read))
    assert after == [opcode for opcode in before if not opcode.startswith("wgmma.")]
    assert len(before) - len(after) == 3


# -- any tree ------------------------------------------------------------------------------

registers = st.from_regex(r"%[a-z]{1,2}[0-9]{1,3}", fullmatch=True).map(Register)
integers = st.integers(-(2**63), 2**64 - 1).map(Immediate)
singles = st.integers(0, 2**32 - 1).map(lambda bits: _encoded(f"0f{bits:08X}"))
doubles = st.integers(0, 2**64 - 1).map(lambda bits: _encoded(f"0d{bits:016X}"))
names = st.from_regex(r"(?:[a-z]|\$L__|_[a-z])[a-zA-Z0-9_$]{0,8}", fullmatch=True)
symbols = st.builds(Symbol, names, offset=st.integers(-(2**63), 2**63 - 1))
specials = st.sampled_from(["%tid.x", "%laneid", "%clock64", "%cluster_ctarank"]).map(Special)
results = registers | st.just(Sink())
vectors = st.lists(results | integers | singles, min_size=1, max_size=5).map(
    lambda elements: Vector(tuple(elements))
)
addresses = st.one_of(
    st.builds(
        Address,
        registers | names.map(Symbol),
        st.integers(-(2**31), 2**31 - 1),
        st.none() | vectors,
    ),
    integers.map(Address),
    st.builds(
        Address, names.map(Symbol), st.just(0), vectors, sampler=registers | names.map(Symbol)
    ),
)
operands = st.one_of(
    registers,
    integers,
    singles,
    doubles,
    symbols,
    specials,
    st.just(Sink()),
    vectors,
    addresses,
    st.builds(Not, registers),
    st.builds(Pair, results, results),
)
opcodes = st.sampled_from(["add.s32", "ld.shared::cta.b32", "wgmma.fence.sync.aligned", "ret"])
instructions = st.builds(
    Instruction,
    opcodes,
    st.lists(operands, max_size=5).map(tuple),
    st.none() | st.builds(Guard, registers.map(lambda r: r.name), st.booleans()),
)
branches = st.builds(
    lambda name, uniform: Instruction("bra.uni" if uniform else "bra", (LabelReference(name),)),
    names,
    st.booleans(),
)
leaves: st.SearchStrategy[Statement] = st.one_of(instructions, branches, st.builds(Label, names))
blocks = st.recursive(
    st.lists(leaves, max_size=6).map(lambda s: Block(tuple(s))),
    lambda inner: st.lists(leaves | inner, max_size=4).map(lambda s: Block(tuple(s))),
    max_leaves=6,
)


def _encoded(literal: str) -> Immediate:
    found = parse(f".version 9.0 .target sm_90a .global .f64 x = {literal};").variables[0]
    assert isinstance(found.initializer, Immediate)
    return found.initializer


@given(blocks, st.dictionaries(st.sampled_from(["maxntid", "reqntid"]), st.just((32, 1, 1))))
def test_any_tree_equals_what_its_text_says(
    body: Block, directives: dict[str, tuple[int | str, ...]]
) -> None:
    parameter = nodes.Parameter("b8", "map", 64, (128,), pointer=None)
    entry = Function("k", True, (parameter,), (), directives, body, ("visible",))
    module = Module((9, 0), "sm_90a", 64, {}, (entry,))
    assert parse(to_text(module)) == module


initial = st.recursive(
    integers | singles | doubles | symbols | st.builds(nodes.Generic, symbols),
    lambda inner: st.lists(inner, max_size=4).map(lambda e: nodes.Initializer(tuple(e))),
    max_leaves=8,
)


@given(
    st.builds(
        nodes.Variable,
        st.sampled_from(["global", "const", "shared"]),
        st.sampled_from(["u8", "b32", "f64"]),
        st.sampled_from([None, 1, 16, 1024]),
        names,
        st.none() | st.lists(st.none() | st.integers(0, 99), min_size=1, max_size=3).map(tuple),
        st.none() | initial,
        st.sampled_from([None, "v2", "v4"]),
        st.sampled_from([(), ("extern",), ("weak",), ("visible",)]),
    )
)
def test_any_variable_equals_what_its_text_says(variable: nodes.Variable) -> None:
    module = Module((9, 0), "sm_90a", 64, {}, (variable,))
    assert parse(to_text(module)) == module

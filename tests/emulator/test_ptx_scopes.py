"""Names: the innermost declaration around them, as ptxas reads them."""

from __future__ import annotations

import pytest

from hopwell import ptx
from hopwell.errors import PtxNameError
from hopwell.ptx.nodes import Function, LabelReference, Register
from hopwell.ptx.scopes import FlatFunction, flatten


def _entry(body: str, directives: str = "") -> Function:
    text = (
        f".version 8.8\n.target sm_90a\n.address_size 64\n.entry k(){directives}\n{{\n{body}\n}}\n"
    )
    (entry,) = ptx.parse(text, "k.ptx").entries
    return entry


def _flat(body: str) -> FlatFunction:
    return flatten(_entry(body))


def test_a_name_is_that_of_the_innermost_block() -> None:
    flat = _flat(
        """
        .reg .b32 %r<4>, x;
        .local .b32 v;
        mov.b32 x, %r1;
        { .reg .b64 x; .local .b64 v; mov.b64 x, 1; { mov.b64 x, 2; } }
        { mov.b32 x, %r1; }
        """
    )
    found = [p.scope.find("x") for p in flat.instructions]
    assert [f and (f.block, f.type) for f in found] == [
        (1, "b32"),
        (2, "b64"),
        (2, "b64"),
        (1, "b32"),
    ]
    ranged = {p.scope.find("%r1") for p in flat.instructions}
    assert [f and (f.block, f.type) for f in ranged] == [(1, "b32")]
    variables = [p.scope.variable("v") for p in flat.instructions]
    assert [v and (v[0], v[1].type) for v in variables] == [
        (1, "b32"),
        (2, "b64"),
        (2, "b64"),
        (1, "b32"),
    ]
    assert [p.position for p in flat.instructions] == [0, 1, 2, 3]
    assert [scope.block for scope in flat.scopes] == [0, 1, 2, 3, 4]


def test_labels_of_blocks_are_apart() -> None:
    flat = _flat("L: ret; { bra L; L: ret; } { bra L; } bra L;")
    branches = [p for p in flat.instructions if p.node.name == "bra"]
    assert [p.scope.label(LabelReference("L")) for p in branches] == [2, 0, 0]
    with pytest.raises(PtxNameError, match="M"):
        branches[0].scope.label(LabelReference("M"))


def test_a_label_inside_a_block_is_not_seen_from_outside() -> None:
    last = _flat("{ M: ret; } bra M;").instructions[-1]
    with pytest.raises(PtxNameError, match=r"k\.ptx:6:17: label"):
        last.scope.label(LabelReference("M", last.node.operands[0].location))


def test_counted_registers_are_found_as_ptxas_finds_them() -> None:
    """ptxas 13.0 takes all digits at the end for the number: it compiles %r07 to the register of
    %r7, refuses %r012 of 12, and does not find any name for what %q2<4> declares."""
    (placed,) = _flat(".reg .b32 %r<12>, %q2<4>, z<1>, %s, %t05; ret;").instructions
    find = placed.scope.find
    assert find("%r7") == find("%r07") == find("%r007")
    assert find("%r0") == find("%r00")
    assert find("%r7") != find("%r8")
    for name in ("%r11", "z0", "%s", "%t05"):
        assert find(name) is not None, name
    unknown = (
        "%r12",
        "%r012",
        "%r",
        "%q2",
        "%q20",
        "%q23",
        "%q3",
        "z1",
        "z",
        "%s0",
        "%t5",
        "%t",
        "",
    )
    assert [name for name in unknown if find(name) is not None] == []
    with pytest.raises(PtxNameError, match="%r12"):
        placed.scope.register(Register("%r12"))


def test_registers_of_a_device_function_are_in_its_scope() -> None:
    text = """.version 8.8
        .target sm_90a
        .func (.reg .b32 out) f(.reg .b64 in) { mov.b32 out, 1; ret; }
    """
    (function,) = ptx.parse(text).functions
    placed = flatten(function).instructions[0]
    assert placed.scope.register(Register("out"))[:3] == (0, "out", "b32")
    assert placed.scope.register(Register("in"))[:3] == (0, "in", "b64")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("L: ret;\nL: ret;", "label"),
        ("ret;\n{ L: ret;\nL: ret; }", "label"),
        (".local .b32 v;\n.local .b64 v;\nret;", "variable"),
    ],
)
def test_a_name_declared_twice_in_a_block_is_refused(body: str, message: str) -> None:
    with pytest.raises(PtxNameError, match=rf"k\.ptx:\d+:\d+: {message}: .*second"):
        _flat(body)


def test_a_vector_register_has_one_name_for_all_elements() -> None:
    (placed,) = _flat(".reg .v4 .b32 v; mov.b32 v.x, 1;").instructions
    (result, _) = placed.node.operands
    assert isinstance(result, Register)
    assert placed.scope.register(result)[1:] == ("v", "b32", "v4")


def test_a_function_without_a_body_is_empty() -> None:
    (function,) = ptx.parse(".version 8.8\n.target sm_90a\n.extern .func f();\n").functions
    assert flatten(function).instructions == ()

"""PTX text to syntax tree: every construct, where it stands, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopwell.errors import HopwellError
from hopwell.ptx import Module, PtxSyntaxError, nodes, parse
from hopwell.ptx.nodes import (
    Address,
    Arguments,
    Block,
    Guard,
    Immediate,
    Instruction,
    LabelReference,
    Not,
    Pair,
    Register,
    Sink,
    SourceLine,
    Special,
    Symbol,
    Vector,
)

TEXTS = Path(__file__).parent / "ptx"
EVERYTHING = (TEXTS / "everything.ptx").read_text()
HEADER = ".version 9.0\n.target sm_90a\n.address_size 64\n"


@pytest.fixture(scope="module")
def everything() -> Module:
    return parse(EVERYTHING, "everything.ptx")


def kernel(module: Module) -> list[Instruction]:
    (entry,) = module.entries
    return list(entry.instructions())


def only(instructions: list[Instruction], opcode: str) -> Instruction:
    (found,) = [i for i in instructions if i.opcode.startswith(opcode)]
    return found


def body_of(text: str) -> Block:
    """The body of an entry that holds the text."""
    body = parse(f"{HEADER}.entry k()\n{{\n{text}\n}}").entries[0].body
    assert body is not None
    return body


# -- modules -------------------------------------------------------------------------------


def test_a_module_has_its_header_files_and_statements(everything: Module) -> None:
    assert everything.version == (9, 0)
    assert everything.target == "sm_90a"
    assert everything.address_size == 64
    assert everything.files == {1: "first.py", 2: "a second.py"}
    names = [function.name for function in everything.functions]
    assert names == ["outside", "never_returns", "without_parameters", "by_register", "kernel"]
    assert [function.name for function in everything.entries] == ["kernel"]
    debug = parse(".version 8.7 .target sm_90, debug .address_size 64")
    assert (debug.version, debug.target_options, debug.statements) == ((8, 7), ("debug",), ())


def test_variables_have_sizes_and_values(everything: Module) -> None:
    variables = {variable.name: variable for variable in everything.variables}
    sizes = {name: variable.size_bytes for name, variable in variables.items()}
    assert sizes["table"] == 16
    assert sizes["words"] == 6 * 4  # from its initialiser
    assert sizes["quad"] == 16
    assert sizes["dynamic"] == 0
    assert (sizes["first"], sizes["second"]) == (4, 8)
    assert variables["dynamic"].linkage == ("extern",)
    assert variables["dynamic"].aligned_bytes == 1024
    assert variables["quad"].aligned_bytes == 16
    assert variables["second"].aligned_bytes == 4
    assert variables["shared_with_host"].attributes == (".managed",)
    assert variables["table"].shape == (2, 2)
    pointer = variables["pointer"].initializer
    assert pointer == nodes.Generic(Symbol("words", offset=12))
    masked = variables["bytes"].initializer
    assert isinstance(masked, nodes.Initializer)
    assert masked.elements[1] == nodes.Masked(0xFF00, Symbol("words"))


def test_an_entry_has_directives_and_parameters_with_offsets(everything: Module) -> None:
    entry = everything.function("kernel")
    assert entry is not None
    assert entry.directives == {
        "reqntid": (256, 1, 1),
        "minnctapersm": (1,),
        "maxnreg": (128,),
        "explicitcluster": (),
        "reqnctapercluster": (2, 1, 1),
        "pragma": ('"nounroll"',),
    }
    pointer, tensor_map, scale = entry.parameters
    assert pointer.pointer == ("global", 16)
    assert pointer.aligned_bytes == 8
    assert (tensor_map.alignment, tensor_map.size_bytes) == (64, 128)
    assert scale.type == "f32"
    assert entry.parameter_offsets == {
        "kernel_pointer": 0,
        "kernel_map": 64,
        "kernel_scale": 192,
    }


def test_device_functions(everything: Module) -> None:
    outside = everything.function("outside")
    assert outside is not None
    assert outside.body is None
    assert [p.name for p in outside.returns] == ["result"]
    assert [p.size_bytes for p in outside.parameters] == [8, 16]
    never = everything.function("never_returns")
    assert never is not None
    assert never.directives == {"noreturn": ()}
    by_register = everything.function("by_register")
    assert by_register is not None
    assert [p.space for p in by_register.parameters] == ["reg", "reg"]
    # Names without a per cent sign, of parameters and of declarations, are registers here.
    add = [i for i in by_register.instructions() if i.name == "add"]
    assert add == [
        Instruction(
            "add.u32",
            (Register("doubled"), Register("x"), Register("x")),
            Guard("p", False),
        )
    ]


# -- operands ------------------------------------------------------------------------------


def test_every_kind_of_operand(everything: Module) -> None:
    code = kernel(everything)
    r1, r2 = Register("%r1"), Register("%r2")
    moves = {i.operands[0]: i.operands[1] for i in code if i.name == "mov"}
    assert moves[r1] == Special("%tid.x")
    assert moves[r2] == Immediate(32)
    assert moves[Register("%rd5")] == Symbol("words", offset=8)
    assert moves[Register("%r4")] == Immediate(-(2**31))
    assert moves[Register("%rd6")] == Immediate(2**64 - 1)
    assert moves[Register("%f2")] == Immediate(-1.5, 0xBFF8000000000000, width=64)
    assert moves[Register("lanes", component="x")] == Immediate(0.0, 0, width=32)
    assert moves[Vector((Register("%r6"), Sink()))] == Register("%rd4")
    p1, p2, p3, p4 = (Register(f"%p{i}") for i in (1, 2, 3, 4))
    assert only(code, "setp.lt").operands == (Pair(p1, p2), r1, r2, Not(p3))
    assert only(code, "setp.eq").operands == (Pair(p3, Sink()), r1, Immediate(3))
    assert only(code, "elect").operands == (Pair(Sink(), p4), Immediate(-1))
    assert only(code, "add.s32").operands[2] == Immediate(16)


def test_addresses(everything: Module) -> None:
    code = kernel(everything)
    r1, r2, r3 = (Register(f"%r{i}") for i in (1, 2, 3))
    assert only(code, "st.shared.v4").operands[0] == Address(r3, -16)
    assert only(code, "st.shared.u32").operands[0] == Address(Symbol("dynamic"), 16)
    assert only(code, "ld.local").operands[1] == Address(Immediate(8))
    load = only(code, "cp.async.bulk.tensor.2d")
    assert load.operands[:3] == (
        Address(r3),
        Address(Register("%rd3"), 0, Vector((r1, r2))),
        Address(Symbol("barrier")),
    )
    texture = only(code, "tex.2d").operands[1]
    assert texture == Address(Symbol("old_texture"), 0, Vector((Register("%f1"), Register("%f2"))))
    sampled = body_of("tex.1d.v4.f32.s32 {%a, %b, %c, %d}, [map, sampler, {%e}];").statements[0]
    assert isinstance(sampled, Instruction)
    assert sampled.operands[1] == Address(
        Symbol("map"), 0, Vector((Register("%e"),)), sampler=Symbol("sampler")
    )


def test_opcodes_split_into_a_name_and_modifiers(everything: Module) -> None:
    load = only(kernel(everything), "ld.global")
    assert load.name == "ld"
    assert load.modifiers == ("global", "nc", "L1::no_allocate", "L2::128B", "v2", "u32")


def test_warpgroup_mma_has_all_its_operands(everything: Module) -> None:
    first, second = (i for i in kernel(everything) if i.opcode.startswith("wgmma.mma_async"))
    accumulator, a, b, *rest = first.operands
    assert isinstance(accumulator, Vector)
    assert len(accumulator.elements) == 4
    assert (a, b) == (Register("%rd6"), Register("%rd7"))
    assert rest == [Register("%p1"), *map(Immediate, (1, -1, 0, 1))]
    assert isinstance(second.operands[1], Vector)


def test_calls_and_indirect_branches(everything: Module) -> None:
    calls = [i for i in kernel(everything) if i.name == "call"]
    assert calls[0].operands == (
        Arguments((Symbol("retval0"),)),
        Symbol("outside"),
        Arguments((Symbol("param0"), Symbol("param1"))),
    )
    assert calls[1].operands[1:] == (
        Register("%rd5"),
        Arguments((Symbol("param0"),)),
        LabelReference("proto"),
    )
    assert calls[2].operands == (Symbol("without_parameters"),)
    assert calls[3].operands[0] == Arguments((Register("%r12"),))
    assert only(kernel(everything), "brx").operands[1] == LabelReference("ts")
    (entry,) = everything.entries
    assert entry.body is not None
    (targets,) = [s for s in entry.body.statements if isinstance(s, nodes.BranchTargets)]
    assert targets.targets == ("$L__case0", "$L__case1")


def test_aliases_and_calls_through_pointers() -> None:
    module = parse((TEXTS / "linking.ptx").read_text(), "linking.ptx")
    directives = [(s.name, s.text) for s in module.statements if isinstance(s, nodes.Directive)]
    assert directives == [("pragma", '"nounroll"'), ("alias", "other, real2")]
    assert module.variables[0].attributes == (".unified(19, 95)",)
    (entry,) = module.entries
    assert entry.directives == {"maxntid": (64, 2), "maxclusterrank": (8,)}
    assert entry.body is not None
    (targets,) = [s for s in entry.body.statements if isinstance(s, nodes.BranchTargets)]
    assert (targets.kind, targets.targets) == ("calltargets", ("real2", "other"))
    (block,) = [s for s in entry.body.statements if isinstance(s, Block)]
    (prototype, _call) = block.statements
    assert isinstance(prototype, nodes.CallPrototype)
    assert [p.size_bytes for p in prototype.parameters] == [4]
    assert prototype.directives == {"noreturn": ()}


# -- scopes and places ---------------------------------------------------------------------


def test_blocks_keep_their_own_labels_and_registers(everything: Module) -> None:
    (entry,) = everything.entries
    assert entry.body is not None
    blocks = [s for s in entry.body.statements if isinstance(s, Block)]
    labels = [[s.name for s in b.statements if isinstance(s, nodes.Label)] for b in blocks[:2]]
    assert labels == [["WAIT", "DONE"], ["WAIT", "DONE"]]
    guards = [i.guard for b in blocks[:2] for i in b.instructions() if i.guard is not None]
    assert guards == [Guard("P1", False), Guard("P1", True)]
    declared = [s for s in blocks[0].statements if isinstance(s, nodes.RegisterDeclaration)]
    assert declared[0].names == (("narrow", None), ("q", 3))


def test_a_name_is_a_register_only_where_its_block_is_open() -> None:
    text = """
    { .reg .b32 x, y<12>; mov.b32 x, y011; mov.b32 x, y12; }
    mov.b64 %rd1, x;
    .reg .b32 x;
    mov.b32 %r1, x;
    """
    kinds = [type(i.operands[1]) for i in body_of(text).instructions()]
    assert kinds == [Register, Symbol, Symbol, Register]


def test_every_node_knows_its_line_and_column(everything: Module) -> None:
    lines = EVERYTHING.splitlines()
    for instruction in kernel(everything):
        at = instruction.location
        assert at.file == "everything.ptx"
        there = lines[at.line - 1][at.column - 1 :]
        assert there.startswith("@" if instruction.guard else instruction.opcode)
        for node in _operands(instruction.operands):
            place = node.location
            text = lines[place.line - 1][place.column - 1 :]
            if isinstance(node, Register | Special | Symbol | LabelReference):
                assert text.startswith(node.name)
            elif isinstance(node, Vector | Address | Arguments | Not | Sink):
                opening = {Vector: "{", Address: "[", Arguments: "(", Not: "!", Sink: "_"}
                assert text.startswith(opening[type(node)])


def _operands(operands: tuple[nodes.Operand, ...]) -> Iterator[nodes.Operand]:
    for operand in operands:
        yield operand
        if isinstance(operand, Vector | Arguments):
            yield from _operands(operand.elements)
        elif isinstance(operand, Pair):
            yield from (operand.first, operand.second)
        elif isinstance(operand, Address):
            yield operand.base


def test_source_lines_follow_loc_through_inlined_calls(everything: Module) -> None:
    code = kernel(everything)
    first = SourceLine("first.py", 10, 5)
    assert only(code, "cvta.param").source == first
    inlined = only(code, "setp.lt").source
    call = SourceLine("first.py", 11, 9)
    middle = SourceLine("a second.py", 3, 1, "outer", call)
    assert inlined == SourceLine("a second.py", 7, 1, "inner", middle)
    assert str(inlined) == "a second.py:7"
    assert only(code, "ret").source == SourceLine("first.py", 12, 1)
    by_register = everything.function("by_register")
    assert by_register is not None
    assert {i.source for i in by_register.instructions()} == {None}


def test_inline_assembly_belongs_to_the_line_that_holds_it() -> None:
    text = """
    .loc 1 34 12
    // begin inline asm
    {
    .loc 1 36 12
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;
    .loc 1 37 12
    @!%p1 bra LAB_WAIT;
    }
    // end inline asm
    mov.b32 %r1, 0;
    .loc 1 48 0
    mov.b32 %r2, 0;
    """
    code = kernel(parse(f'{HEADER}.entry k()\n{{{text}}}\n.file 1 "a.py"'))
    lines = [(i.name, i.source.line if i.source else None) for i in code]
    assert lines == [("mbarrier", 34), ("bra", 34), ("mov", 34), ("mov", 48)]


def test_debugging_sections_are_kept(everything: Module) -> None:
    (section,) = [s for s in everything.statements if isinstance(s, nodes.Section)]
    assert section.name == ".debug_str"
    text = """
    .section .debug_info { .b32 .debug_abbrev .b8 8 .b64 $L__begin
    .b32 $L__end-$L__begin
    .b32 .debug_str+12, -4 }
    """
    (info,) = parse(HEADER + text).statements
    assert isinstance(info, nodes.Section)
    data = [item.values for item in info.items if isinstance(item, nodes.Data)]
    assert data == [
        (".debug_abbrev",),
        (8,),
        ("$L__begin",),
        ("$L__end-$L__begin",),
        (".debug_str+12", -4),
    ]


def test_tcgen05_is_read() -> None:
    module = parse((TEXTS / "blackwell.ptx").read_text(), "blackwell.ptx")
    (entry,) = module.entries
    assert entry.directives["blocksareclusters"] == ()
    mma = [i for i in entry.instructions() if i.opcode.startswith("tcgen05.mma")]
    assert mma[1].operands[0] == Address(Register("%r1"), 64)
    assert mma[1].operands[1] == Address(Register("%r1"))
    assert isinstance(mma[1].operands[4], Vector)
    assert mma[2].modifiers == ("mma", "cta_group::2", "kind::mxf8f6f4", "block_scale")


# -- refusals ------------------------------------------------------------------------------

REFUSED = [
    ("add.s32 %r1, %r2\n  mov.b32 %r1, 0;", 6, 3, "the operands of add.s32"),
    ("add.s32 %r1,, %r2;", 5, 13, "an operand is missing"),
    ("ld.b32 %r1, [%r2;", 5, 17, "an address"),
    ("ld.b32 %r1, [%tid.x];", 5, 14, "an address"),
    ("ld.b32 %r1, [%r2, tensor];", 5, 25, "an address"),
    ("mov.b64 {%r1, %r2;", 5, 18, "the elements of a vector"),
    ("mov.b64 {[%r1]}, %rd1;", 5, 10, "the elements of a vector"),
    ("setp.eq.s32 %p1|3, %r1, 1;", 5, 17, "a pair of results"),
    ("setp.eq.s32 %p1|x, %r1, 1;", 5, 17, "a pair of results"),
    ("@x bra L;", 5, 2, "a guard"),
    ("@%p1 L: ret;", 5, 6, "a statement"),
    ("@%p1 { ret; }", 5, 6, "a guarded statement"),
    ("bra %r1;", 5, 5, "the operands of bra"),
    ("mov.b32 %r1, %tid.x.y;", 5, 14, "an operand"),
    ("mov.b32 %r1, x.y;", 5, 14, "an operand"),
    ("ret;;", 5, 5, "a statement"),
    ("{ ret;", 5, 0, "a block does not end"),
    (".reg .b33 %r<4>;", 5, 6, "a register"),
    (".reg .b32 %r<4.5>;", 5, 14, "a constant expression"),
    (".reg .b32 %r<4>; .reg .b64 %r<2>;", 5, 28, "declared twice"),
    (".reg .b32 %r.x;", 5, 11, "the name of a register"),
    (".shared .align 3 .b8 x[4];", 5, 16, "an alignment"),
    (".shared .b8x x;", 5, 9, "a variable in .shared"),
    (".shared x;", 5, 9, "a variable in .shared"),
    (".loc 7 1 1", 5, 6, "a .loc"),
    (".unknown 3;", 5, 1, "a directive of a body"),
    ("ADD.s32 %r1, %r2, 1;", 5, 1, "a statement"),
    ("a.b: ret;", 5, 1, "a label"),
    ("call f, (%r1;", 5, 13, "the arguments of a call"),
    ("3;", 5, 1, "a statement"),
    ("} }", 5, 3, "a statement of a module"),
]


@pytest.mark.parametrize(("text", "line", "column", "what"), REFUSED)
def test_malformed_bodies_show_their_line(text: str, line: int, column: int, what: str) -> None:
    source = f"{HEADER}.entry k()\n{{{text}\n}}"
    column += line == 5  # the text follows a brace
    with pytest.raises(PtxSyntaxError) as caught:
        parse(source, "bad.ptx")
    error = caught.value
    assert what in error.what
    assert (error.file, error.line, error.column) == ("bad.ptx", line, column)
    message, shown, caret = str(error).split("\n")
    assert message.startswith(f"bad.ptx:{line}:{column}: ")
    assert shown == "    " + source.split("\n")[line - 1]
    assert caret == " " * (4 + column - 1) + "^"


MODULES = [
    ("", "the start of a module"),
    (".version 9", "a version such as"),
    (".version 9.0 .address_size 64", "the start of a module"),
    (HEADER + "mov.b32 %r1, 0;", "a statement of a module"),
    (HEADER + ".entry k .reqntid 3 .mystery 4 { }", "a directive of a function"),
    (HEADER + ".entry k", "the function k"),
    (HEADER + ".entry k(.local .b32 x) { }", "a parameter"),
    (HEADER + ".section .debug_str { .f32 1 }", "a section"),
    (HEADER + ".section .debug_str { .b8 a+\n }", "a value of a section"),
    (HEADER + ".global .attribute(managed) .u32 x;", "an attribute"),
    (HEADER + ".global .u32 x[2 = 3;", "the extent of an array"),
    (HEADER + ".global .u32 x = {1 2};", "an initialiser"),
    (HEADER + ".global .u32 x[4] = {" + "{" * 5000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "what"), MODULES)
def test_malformed_modules_are_refused(text: str, what: str) -> None:
    with pytest.raises(PtxSyntaxError, match=what):
        parse(text)


def test_an_error_is_a_hopwell_error_and_survives_a_process_pool() -> None:
    with pytest.raises(HopwellError) as caught:
        parse(f"{HEADER}.entry k()\n{{\n\tadd.s32\t%r1 %r2;\n}}", "k.ptx")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, PtxSyntaxError)
    assert isinstance(copy, ValueError)
    assert str(copy) == str(caught.value)
    # The caret follows the tabs of its line.
    assert str(copy).endswith("\n    \tadd.s32\t%r1 %r2;\n    \t       \t    ^")
    assert "expected ';', got '%r2'. The module was not read." in str(copy)


def test_a_module_cut_inside_a_function_is_refused() -> None:
    start = EVERYTHING.index(".visible .entry") + len(".visible .entry")
    for cut in range(start, EVERYTHING.index("}\n.file 2"), 7):
        with pytest.raises(PtxSyntaxError):
            parse(EVERYTHING[:cut])


@given(st.data())
def test_damaged_text_is_read_or_refused_with_a_place(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(EVERYTHING)))
    length = data.draw(st.integers(0, 12))
    put = data.draw(st.text(alphabet='{}[]()<>,;:@!|%._+-"/*abr019 \n', max_size=6))
    text = EVERYTHING[:at] + put + EVERYTHING[at + length :]
    try:
        parse(text)
    except PtxSyntaxError as error:
        assert error.text == text.split("\n")[error.line - 1].rstrip()  # noqa: PT017

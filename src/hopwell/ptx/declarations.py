"""Variables, parameters, registers and sections (PTX ISA, chapters 5 and 11)."""

from __future__ import annotations

from dataclasses import dataclass

from hopwell.ptx.lexer import DIRECTIVE, NUMBER, STRING, WORD, Tokens
from hopwell.ptx.nodes import (
    TYPE_BYTES,
    Data,
    Directive,
    Generic,
    Initializer,
    InitialValue,
    Label,
    Masked,
    Parameter,
    RegisterDeclaration,
    Section,
    SourceLine,
    Symbol,
    Variable,
)
from hopwell.ptx.operands import OperandReader
from hopwell.ptx.scopes import RegisterType

#: Directives that start a variable.
SPACES = frozenset((".global", ".shared", ".const", ".local", ".param", ".tex"))
LINKAGES = frozenset((".extern", ".visible", ".weak", ".common"))
_VECTORS = frozenset((".v2", ".v4", ".v8"))
_REGISTER_TYPES = frozenset((*TYPE_BYTES, "pred"))


@dataclass
class _Qualifiers:
    """What stands between a state space and a name, in any order."""

    type: str = ""
    alignment: int | None = None
    vector: str | None = None
    pointer: tuple[str | None, int | None] | None = None


class DeclarationReader(OperandReader):
    """Reads declarations; keeps the files and strings that ``.loc`` refers to."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self.files: dict[int, str] = {}
        #: Strings of .debug_str by label: names of inlined functions.
        self.strings: dict[str, bytes] = {}
        #: The last .loc of each place in this function: a place that calls may be inlined itself.
        self.places: dict[tuple[str, int, int], SourceLine] = {}

    # -- variables -------------------------------------------------------------------------

    def _qualifiers(self, what: str) -> _Qualifiers:
        found = _Qualifiers()
        while self.kinds[self.index] == DIRECTIVE:
            text = self.texts[self.index]
            self.index += 1
            if text == ".align":
                self._align(found)
            elif text == ".ptr":
                space = self.texts[self.index]
                if space in SPACES:
                    self.index += 1
                found.pointer = (space[1:] if space in SPACES else None, None)
            elif text in _VECTORS:
                found.vector = text[1:]
            elif text[1:] in TYPE_BYTES and not found.type:
                found.type = text[1:]
            else:
                self.error(what, "a type, .align, .ptr or .v4", self.index - 1)
        if not found.type:
            self.error(what, "a type")
        return found

    def _align(self, found: _Qualifiers) -> None:
        """After ``.ptr`` the alignment is that of what the pointer points to."""
        alignment = self.integer()
        if alignment <= 0 or alignment & (alignment - 1):
            self.error("an alignment", "a power of two", self.index - 1)
        if found.pointer is None:
            found.alignment = alignment
        else:
            found.pointer = (found.pointer[0], alignment)

    def variables(self, linkage: tuple[str, ...]) -> list[Variable]:
        """``.shared .align 16 .b8 a[4], b[4];`` through its semicolon."""
        location = self.location()
        space = self.texts[self.index][1:]
        self.index += 1
        attributes = self.attributes()
        qualifiers = self._qualifiers(f"a variable in .{space}")
        found: list[Variable] = []
        while True:
            name = self.identifier(f"the name of a variable in .{space}")
            shape = self._shape()
            initializer = self._initial_value() if self.accept("=") else None
            found.append(
                Variable(
                    space,
                    qualifiers.type,
                    qualifiers.alignment,
                    name,
                    shape,
                    initializer,
                    qualifiers.vector,
                    linkage,
                    location,
                    attributes,
                )
            )
            if not self.accept(","):
                break
        self.expect(";", f"a variable in .{space}")
        return found

    def attributes(self) -> tuple[str, ...]:
        """``.attribute(.managed)``: the texts inside, if there are any."""
        if not self.accept(".attribute"):
            return ()
        self.expect("(", "an attribute")
        found: list[str] = []
        while not found or self.accept(","):
            text = self.take(DIRECTIVE, "an attribute", "its name with a dot")
            if self.accept("("):
                values = [str(self.integer())]
                while self.accept(","):
                    values.append(str(self.integer()))
                self.expect(")", "an attribute")
                text += f"({', '.join(values)})"
            found.append(text)
        self.expect(")", "an attribute")
        return tuple(found)

    def _shape(self) -> tuple[int | None, ...] | None:
        extents: list[int | None] = []
        while self.accept("["):
            if self.accept("]"):
                extents.append(None)
                continue
            extents.append(self.integer())
            self.expect("]", "the extent of an array")
        return tuple(extents) or None

    def _initial_value(self) -> InitialValue:
        location = self.location()
        if self.accept("{"):
            elements: list[InitialValue] = []
            while not self.accept("}"):
                elements.append(self._initial_value())
                if self.texts[self.index] != "}":
                    self.expect(",", "an initialiser")
            return Initializer(tuple(elements), location)
        if self.kinds[self.index] == WORD and self.texts[self.index] != "WARP_SZ":
            return self._variable_address()
        constant = self.constant()
        if isinstance(constant.value, int) and self.accept("("):
            value = self._variable_address()
            self.expect(")", "a masked initialiser")
            return Masked(constant.value, value, location)
        return constant

    def _variable_address(self) -> Symbol | Generic:
        location = self.location()
        name = self.identifier("an initialiser")
        if name == "generic" and self.accept("("):
            inner = self.location()
            name = self.identifier("generic()")
            self.expect(")", "generic()")
            return Generic(Symbol(name, inner, self._offset()), location)
        return Symbol(name, location, self._offset())

    def _offset(self) -> int:
        return self.integer() if self.texts[self.index] == "+" else 0

    # -- registers and parameters ----------------------------------------------------------

    def registers(self) -> RegisterDeclaration:
        """``.reg .b32 %r<10>, x;``: declares them in the innermost scope."""
        location = self.location()
        self.index += 1
        vector = self.texts[self.index][1:] if self.texts[self.index] in _VECTORS else None
        self.index += vector is not None
        type = self.take(DIRECTIVE, "a register", "its type")[1:]
        if type not in _REGISTER_TYPES:
            self.error("a register", "a type of registers", self.index - 1)
        names: list[tuple[str, int | None]] = []
        while not names or self.accept(","):
            at = self.index
            name = self.identifier("the name of a register")
            count = None
            if self.accept("<"):
                count = self.literal()  # an expression would take the > that follows
                self.expect(">", "a number of registers")
            names.append((name, count))
            if not self.scope.declare(name, count, RegisterType(type, vector)):
                self.error("a register is declared twice", "one declaration in a block", at)
        self.expect(";", "a declaration of registers")
        return RegisterDeclaration(type, tuple(names), location, vector)

    def parameters(self) -> tuple[Parameter, ...]:
        """A list of parameters in parentheses, where there is one."""
        found: list[Parameter] = []
        if not self.accept("("):
            return ()
        if self.accept(")"):
            return ()
        while not found or self.accept(","):
            found.append(self._parameter())
        self.expect(")", "a list of parameters")
        return tuple(found)

    def _parameter(self) -> Parameter:
        location = self.location()
        space = self.take(DIRECTIVE, "a parameter", ".param or .reg")
        if space not in (".param", ".reg"):
            self.error("a parameter", ".param or .reg", self.index - 1)
        if space == ".reg" and self.accept(".pred"):
            qualifiers = _Qualifiers("pred")
        else:
            qualifiers = self._qualifiers("a parameter")
        name = self.identifier("the name of a parameter")
        shape = self._shape()
        if space == ".reg":
            self.scope.declare(name, None, RegisterType(qualifiers.type, qualifiers.vector))
        return Parameter(
            qualifiers.type,
            name,
            qualifiers.alignment,
            shape,
            space[1:],
            qualifiers.pointer,
            qualifiers.vector,
            location,
        )

    # -- debugging information -------------------------------------------------------------

    def gather_debug(self) -> None:
        """Reads every ``.file`` and ``.section .debug_str``: they may follow what uses them."""
        texts, kinds = self.texts, self.kinds
        for index, kind in enumerate(kinds):
            if kind == DIRECTIVE and texts[index] == ".file":
                self.index = index
                self.file()
            elif texts[index] == ".section" and texts[index + 1] == ".debug_str":
                self.index = index
                self._keep_strings(self.section())
        self.index = 0

    def _keep_strings(self, section: Section) -> None:
        labels: dict[str, int] = {}
        content = bytearray()
        for item in section.items:
            if isinstance(item, Label):
                labels[item.name] = len(content)
            elif item.type == "b8":
                content += bytes(v & 255 for v in item.values if isinstance(v, int))
        for name, start in labels.items():
            self.strings[name] = bytes(content[start:])

    def file(self) -> Directive:
        """``.file 1 "path.py"``, with a time stamp and a size or without."""
        start = self.index
        self.index += 1
        number = self.integer()
        name = self.take(STRING, ".file", "a path in quotes")
        while self.accept(","):
            self.integer()
        self.files[number] = name[1:-1]
        return Directive("file", self._text(start + 1, self.index), self.location(start))

    def loc(self) -> tuple[Directive, SourceLine]:
        """``.loc 1 20 3, function_name $L__info_string0, inlined_at 1 40 9``."""
        start = self.index
        self.index += 1
        place = self._place()
        function: str | None = None
        inlined_at: SourceLine | None = None
        if self.accept(","):
            if not self.accept("function_name"):
                self.error("a .loc", "function_name")
            function = self._function_name()
            self.expect(",", "a .loc")
            if not self.accept("inlined_at"):
                self.error("a .loc", "inlined_at")
            caller = self._place()
            inlined_at = self.places.get(caller) or SourceLine(*caller)
        directive = Directive("loc", self._text(start + 1, self.index), self.location(start))
        self.places[place] = SourceLine(*place, function, inlined_at)
        return directive, self.places[place]

    def _place(self) -> tuple[str, int, int]:
        start = self.index
        numbers = []
        for _ in range(3):
            text = self.take(NUMBER, "a .loc", "a file, a line and a column")
            if not text.isdigit():
                self.error("a .loc", "a decimal integer", self.index - 1)
            numbers.append(int(text))
        if numbers[0] not in self.files:
            known = ", ".join(map(str, sorted(self.files))) or "none"
            self.error("a .loc", f"a file that a .file names ({known})", start)
        return self.files[numbers[0]], numbers[1], numbers[2]

    def _function_name(self) -> str:
        start = self.index
        label = self.identifier("the name of an inlined function")
        content = self.strings.get(label)
        if content is None:
            self.error("the name of an inlined function", "a label in .debug_str", start)
        return content[self._offset() :].split(b"\0")[0].decode(errors="replace")

    def _text(self, start: int, stop: int) -> str:
        """Tokens with a space between two, as text."""
        return " ".join(self.texts[start:stop]).replace(" ,", ",")

    def section(self) -> Section:
        """``.section .debug_info { .b8 1, 2; ... }``, where items need no semicolon."""
        location = self.location()
        self.index += 1
        name = self.take(DIRECTIVE, "a section", "its name with a dot")
        self.expect("{", "a section")
        items: list[Label | Data] = []
        while not self.accept("}"):
            at = self.location()
            if self.kinds[self.index] == WORD and self.texts[self.index + 1] == ":":
                items.append(Label(self.texts[self.index], at))
                self.index += 2
                continue
            type = self.texts[self.index][1:]
            if self.kinds[self.index] != DIRECTIVE or type not in ("b8", "b16", "b32", "b64"):
                self.error("a section", "a label, or .b8, .b16, .b32 or .b64")
            self.index += 1
            values = [self._datum()]
            while self.accept(","):
                values.append(self._datum())
            items.append(Data(type, tuple(values), at))
        return Section(name, tuple(items), location)

    def _datum(self) -> int | str:
        start = self.index
        if self.kinds[start] not in (WORD, DIRECTIVE):
            return self.integer()
        # A label, a section, or the distance between two labels.
        self.index += 1
        while self.texts[self.index] in ("+", "-"):
            self.index += 1
            if self.kinds[self.index] not in (WORD, NUMBER):
                self.error("a value of a section", "a label or an integer")
            self.index += 1
        return "".join(self.texts[start : self.index])

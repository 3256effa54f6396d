"""Tokens to syntax tree, by recursive descent."""

from __future__ import annotations

from hopwell.ptx.declarations import LINKAGES, SPACES, DeclarationReader
from hopwell.ptx.lexer import DIRECTIVE, END, NUMBER, STRING, WORD, Tokens
from hopwell.ptx.nodes import (
    Block,
    BranchTargets,
    CallPrototype,
    Directive,
    Function,
    Guard,
    Instruction,
    Label,
    Location,
    Module,
    ModuleStatement,
    Register,
    SourceLine,
    Statement,
)
from hopwell.ptx.scopes import Scope

#: Directives of a function that take integers or nothing (PTX ISA 11.4).
_FUNCTION_DIRECTIVES = frozenset(
    (
        "maxnreg",
        "maxntid",
        "reqntid",
        "minnctapersm",
        "maxnctapersm",
        "noreturn",
        "explicitcluster",
        "reqnctapercluster",
        "maxclusterrank",
        "blocksareclusters",
        "abi_preserve",
        "abi_preserve_control",
    )
)


def parse(text: str, filename: str = "<ptx>") -> Module:
    """Reads one PTX module.

    Raises PtxSyntaxError, which shows the line, for anything that is malformed or not known.
    """
    tokens = Tokens(text, filename)
    reader = _Parser(tokens)
    try:
        return reader.module()
    except RecursionError:
        tokens.error("nested too deeply", reader.index, expected="fewer levels")


class _Parser(DeclarationReader):
    """Statements of a module and of function bodies."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self._source: SourceLine | None = None

    # -- modules ---------------------------------------------------------------------------

    def module(self) -> Module:
        self.gather_debug()
        location = self.location()
        version = self._version()
        target, options = self._target()
        size = 32
        if self.accept(".address_size"):
            size = self.integer()
        statements: list[ModuleStatement] = []
        while self.kinds[self.index] != END:
            statements += self._module_statement()
        return Module(version, target, size, self.files, tuple(statements), location, options)

    def _version(self) -> tuple[int, int]:
        self.expect(".version", "the start of a module")
        text = self.take(NUMBER, ".version", "a version such as 9.0")
        major, dot, minor = text.partition(".")
        if not dot or not major.isdigit() or not minor.isdigit():
            self.error(".version", "a version such as 9.0", self.index - 1)
        return int(major), int(minor)

    def _target(self) -> tuple[str, tuple[str, ...]]:
        self.expect(".target", "the start of a module")
        names = [self.identifier(".target")]
        while self.accept(","):
            names.append(self.identifier(".target"))
        return names[0], tuple(names[1:])

    def _module_statement(self) -> list[ModuleStatement]:
        start = self.index
        text = self.texts[start]
        if text == ".file":
            return [self.file()]
        if text == ".section":
            return [self.section()]
        if text == ".pragma":
            return [self._pragma()]
        if text == ".alias":
            self.index += 1
            self.identifier(".alias")
            self.expect(",", ".alias")
            self.identifier(".alias")
            self.expect(";", ".alias")
            return [Directive("alias", self._text(start + 1, self.index - 1), self.location(start))]
        linkage = self._linkage()
        text = self.texts[self.index]
        if text in (".entry", ".func"):
            return [self._function(linkage)]
        if text in SPACES:
            return [*self.variables(linkage)]
        self.error("a statement of a module", "a function, a variable or a directive")

    def _linkage(self) -> tuple[str, ...]:
        found: list[str] = []
        while self.texts[self.index] in LINKAGES:
            found.append(self.texts[self.index][1:])
            self.index += 1
        return tuple(found)

    def _pragma(self) -> Directive:
        start = self.index
        self.index += 1
        self.take(STRING, ".pragma", "text in quotes")
        while self.accept(","):
            self.take(STRING, ".pragma", "text in quotes")
        self.expect(";", ".pragma")
        return Directive("pragma", self._text(start + 1, self.index - 1), self.location(start))

    # -- functions -------------------------------------------------------------------------

    def _function(self, linkage: tuple[str, ...]) -> Function:
        location = self.location()
        entry = self.texts[self.index] == ".entry"
        self.index += 1
        attributes = self.attributes()
        outer, self.scope = self.scope, Scope(self.scope)
        returns = () if entry else self.parameters()
        name = self.identifier("the name of a function")
        parameters = self.parameters()
        directives = self._function_directives()
        self._source = None
        self.places.clear()
        body = None
        if not self.accept(";"):
            if self.texts[self.index] != "{":
                self.error(f"the function {name}", "'{', ';' or a directive of functions")
            body = self._block()
        self.scope = outer
        return Function(
            name, entry, parameters, returns, directives, body, linkage, location, attributes
        )

    def _function_directives(self) -> dict[str, tuple[int | str, ...]]:
        found: dict[str, tuple[int | str, ...]] = {}
        while self.kinds[self.index] == DIRECTIVE:
            name = self.texts[self.index][1:]
            if name == "pragma":
                pragma = self._pragma()
                found[name] = (*found.get(name, ()), *pragma.text.split(", "))
                continue
            if name not in _FUNCTION_DIRECTIVES:
                self.error("a directive of a function", "one that PTX knows")
            self.index += 1
            values: list[int | str] = []
            if self.kinds[self.index] == NUMBER:
                values.append(self.integer())
                while self.accept(","):
                    values.append(self.integer())
            found[name] = tuple(values)
        return found

    # -- statements ------------------------------------------------------------------------

    def _block(self) -> Block:
        location = self.location()
        opening = self.index
        self.index += 1
        outer, self.scope = self.scope, Scope(self.scope)
        statements: list[Statement] = []
        kinds, texts = self.kinds, self.texts
        while True:
            kind = kinds[self.index]
            text = texts[self.index]
            if kind == WORD:
                if texts[self.index + 1] == ":":
                    statements.append(self._label())
                else:
                    statements.append(self._instruction(None, self.location()))
            elif text == "@":
                statements.append(self._guarded())
            elif kind == DIRECTIVE:
                statements += self._directive()
            elif text == "{":
                statements.append(self._block())
            elif text == "}":
                break
            elif kind == END:
                self.error("a block does not end", "'}'", opening)
            else:
                self.error("a statement", "an instruction, a label, a directive or a block")
        self.index += 1
        self.scope = outer
        return Block(tuple(statements), location)

    def _guarded(self) -> Instruction:
        location = self.location()
        self.index += 1
        negated = self.accept("!")
        at = self.index
        if self.kinds[at] != WORD:
            self.error("a guard", "a predicate register")
        register = self.named(self.location())
        if not isinstance(register, Register) or register.component is not None:
            self.error("a guard", "a predicate register", at)
        if self.kinds[self.index] != WORD:
            self.error("a guarded statement", "an instruction")
        return self._instruction(Guard(register.name, negated, location), location)

    def _instruction(self, guard: Guard | None, location: Location) -> Instruction:
        opcode = self.texts[self.index]
        if not ("a" <= opcode[0] <= "z"):
            self.error("a statement", "an instruction in lower case, a label or a directive")
        self.index += 1
        return Instruction(opcode, self.operands(opcode), guard, location, self._source)

    def _label(self) -> Statement:
        location = self.location()
        name = self.identifier("a label")
        self.index += 1
        following = self.texts[self.index]
        if following in (".branchtargets", ".calltargets"):
            self.index += 1
            targets = [self.identifier(following)]
            while self.accept(","):
                targets.append(self.identifier(following))
            self.expect(";", following)
            return BranchTargets(name, tuple(targets), following[1:], location)
        if following == ".callprototype":
            self.index += 1
            return self._prototype(name, location)
        return Label(name, location)

    def _prototype(self, name: str, location: Location) -> CallPrototype:
        outer, self.scope = self.scope, Scope(self.scope)
        returns = self.parameters()
        self.identifier("a prototype, whose name is _")
        parameters = self.parameters()
        self.scope = outer
        directives = self._function_directives()
        self.expect(";", "a prototype")
        return CallPrototype(name, parameters, returns, directives, location)

    def _directive(self) -> list[Statement]:
        text = self.texts[self.index]
        if text == ".loc":
            inline = self.tokens.inline(self.index)
            directive, source = self.loc()
            if inline:
                # LLVM counts the lines of inline assembly on from the program's line that holds
                # it, as if they stood there. All of it belongs to that line, the one before.
                return []
            self._source = source
            return [directive]
        if text == ".reg":
            return [self.registers()]
        if text == ".pragma":
            return [self._pragma()]
        if text == ".file":
            return [self.file()]
        linkage = self._linkage()
        if self.texts[self.index] in SPACES:
            return [*self.variables(linkage)]
        self.error("a directive of a body", "one that PTX knows")

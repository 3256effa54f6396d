"""Syntax tree to PTX text, which parses back to an equal tree."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hopwell.ptx import nodes

_Values = Mapping[str, tuple[int | str, ...]]


def to_text(node: object) -> str:
    """PTX of a module, or of any node: ``mul.lo.s32 %r1, %r2, 3;`` of an instruction.

    Raises KeyError for what is no node.
    """
    return _TEXT[type(node)](node)


def _join(values: Iterable[object]) -> str:
    return ", ".join(map(to_text, values))


# -- operands ------------------------------------------------------------------------------


def _integer(value: int) -> str:
    # Past the signed range a literal says that it is unsigned.
    return f"{value}U" if value >> 63 > 0 else str(value)


def _immediate(node: nodes.Immediate) -> str:
    if isinstance(node.value, int):
        return _integer(node.value)
    if node.bits is None:
        return f"0d{struct.pack('>d', node.value).hex().upper()}"
    return f"0f{node.bits:08X}" if node.width == 32 else f"0d{node.bits:016X}"


def _register(node: nodes.Register) -> str:
    return node.name if node.component is None else f"{node.name}.{node.component}"


def _symbol(node: nodes.Symbol) -> str:
    return f"{node.name}+{node.offset}" if node.offset else node.name


def _generic(node: nodes.Generic) -> str:
    symbol = node.symbol
    return f"generic({symbol.name})" + (f"+{symbol.offset}" if symbol.offset else "")


def _address(node: nodes.Address) -> str:
    base = to_text(node.base)
    parts = [f"{base}+{node.offset}" if node.offset else base]
    parts += [to_text(part) for part in (node.sampler, node.coordinates) if part is not None]
    return f"[{', '.join(parts)}]"


# -- statements ----------------------------------------------------------------------------


def _instruction(node: nodes.Instruction) -> str:
    guard = ""
    if node.guard is not None:
        guard = f"@{'!' if node.guard.negated else ''}{node.guard.register} "
    operands = f" {_join(node.operands)}" if node.operands else ""
    return f"{guard}{node.opcode}{operands};"


def _registers(node: nodes.RegisterDeclaration) -> str:
    names = ", ".join(name if count is None else f"{name}<{count}>" for name, count in node.names)
    vector = f".{node.vector} " if node.vector else ""
    return f".reg {vector}.{node.type} {names};"


def _shape(shape: tuple[int | None, ...] | None) -> str:
    return "".join("[]" if extent is None else f"[{extent}]" for extent in shape or ())


def _variable(node: nodes.Variable) -> str:
    words = [f".{word}" for word in (*node.linkage, node.space)]
    words += _attributes(node.attributes)
    if node.alignment is not None:
        words.append(f".align {node.alignment}")
    words += [f".{word}" for word in (node.vector, node.type) if word is not None]
    initial = "" if node.initializer is None else f" = {to_text(node.initializer)}"
    return f"{' '.join(words)} {node.name}{_shape(node.shape)}{initial};"


def _attributes(attributes: tuple[str, ...]) -> list[str]:
    return [f".attribute({', '.join(attributes)})"] if attributes else []


def _parameter(node: nodes.Parameter) -> str:
    words = [f".{node.space}"]
    if node.alignment is not None:
        words.append(f".align {node.alignment}")
    words += [f".{word}" for word in (node.vector, node.type) if word is not None]
    if node.pointer is not None:
        space, alignment = node.pointer
        words.append(".ptr" if space is None else f".ptr .{space}")
        if alignment is not None:
            words.append(f".align {alignment}")
    return f"{' '.join(words)} {node.name}{_shape(node.shape)}"


def _function_directives(directives: _Values) -> Iterator[str]:
    for name, values in directives.items():
        text = ", ".join(map(str, values))
        yield f".{name} {text};" if name == "pragma" else f".{name} {text}".rstrip()


def _branch_targets(node: nodes.BranchTargets) -> str:
    return f"{node.name}: .{node.kind} {', '.join(node.targets)};"


def _prototype(node: nodes.CallPrototype) -> str:
    returns = f"({_join(node.returns)}) " if node.returns else ""
    words = [f"{returns}_ ({_join(node.parameters)})", *_function_directives(node.directives)]
    return f"{node.name}: .callprototype {' '.join(words)};"


def _directive(node: nodes.Directive) -> str:
    # Those of debugging information end with their line.
    return f".{node.name} {node.text}{'' if node.name in ('loc', 'file') else ';'}"


def _block(node: nodes.Block) -> str:
    return "\n".join(_block_lines(node, ""))


def _block_lines(node: nodes.Block, indent: str) -> Iterator[str]:
    yield f"{indent}{{"
    for statement in node.statements:
        if isinstance(statement, nodes.Block):
            yield from _block_lines(statement, indent + "\t")
        elif isinstance(statement, nodes.Label):
            yield f"{indent}{statement.name}:"
        else:
            yield f"{indent}\t{to_text(statement)}"
    yield f"{indent}}}"


# -- modules -------------------------------------------------------------------------------


def _function(node: nodes.Function) -> str:
    words = [f".{word}" for word in (*node.linkage, "entry" if node.entry else "func")]
    words += _attributes(node.attributes)
    if node.returns:
        words.append(f"({_join(node.returns)})")
    parameters = ",\n\t".join(map(to_text, node.parameters))
    head = f"{' '.join(words)} {node.name}({parameters})"
    lines = [head, *_function_directives(node.directives)]
    return "\n".join([*lines, to_text(node.body)]) if node.body else "\n".join(lines) + ";"


def _data(node: nodes.Data) -> str:
    return f".{node.type} {', '.join(map(str, node.values))}"


def _section(node: nodes.Section) -> str:
    return "\n".join([f".section {node.name}", "{", *map(to_text, node.items), "}"])


def _module(node: nodes.Module) -> str:
    major, minor = node.version
    lines = [
        f".version {major}.{minor}",
        f".target {', '.join((node.target, *node.target_options))}",
        f".address_size {node.address_size}",
        *map(to_text, node.statements),
    ]
    return "\n".join(lines) + "\n"


_TEXT: dict[type, Callable[[Any], str]] = {
    nodes.Register: _register,
    nodes.Special: lambda node: node.name,
    nodes.Immediate: _immediate,
    nodes.Symbol: _symbol,
    nodes.Sink: lambda node: "_",
    nodes.LabelReference: lambda node: node.name,
    nodes.Not: lambda node: f"!{to_text(node.register)}",
    nodes.Vector: lambda node: f"{{{_join(node.elements)}}}",
    nodes.Pair: lambda node: f"{to_text(node.first)}|{to_text(node.second)}",
    nodes.Address: _address,
    nodes.Arguments: lambda node: f"({_join(node.elements)})",
    nodes.Instruction: _instruction,
    nodes.Label: lambda node: f"{node.name}:",
    nodes.Block: _block,
    nodes.RegisterDeclaration: _registers,
    nodes.Generic: _generic,
    nodes.Masked: lambda node: f"{node.mask}({to_text(node.value)})",
    nodes.Initializer: lambda node: f"{{{_join(node.elements)}}}",
    nodes.Variable: _variable,
    nodes.BranchTargets: _branch_targets,
    nodes.CallPrototype: _prototype,
    nodes.Directive: _directive,
    nodes.Parameter: _parameter,
    nodes.Function: _function,
    nodes.Data: _data,
    nodes.Section: _section,
    nodes.Module: _module,
}

"""Reading an opcode's modifiers; decoders chosen by type where families share a name."""

from collections.abc import Callable, Iterable
from typing import Final

from hopwell.emulator.registry import Compute, UnsupportedInstruction, instruction
from hopwell.emulator.types import is_type
from hopwell.ptx.nodes import Instruction

INTEGERS: Final = ("u16", "u32", "u64", "s16", "s32", "s64")
BITS: Final = ("b16", "b32", "b64")


class Modifiers:
    """The modifiers of one instruction: a decoder takes those it knows, none may be left.

    Attributes:
        node: the instruction.
        type: the type that chose the decoder (the first in the opcode).
    """

    def __init__(self, node: Instruction, type_name: str) -> None:
        self.node = node
        self.type = type_name
        self._left = list(node.modifiers)
        self._left.remove(type_name)

    def flag(self, name: str) -> bool:
        """Whether ``.name`` is there."""
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def choice(self, *names: str, default: str | None = None) -> str:
        """The one of ``names`` that is there; without a default one has to be."""
        for name in names:
            if self.flag(name):
                return name
        if default is None:
            raise self.unsupported("needs one of " + ", ".join("." + name for name in names))
        return default

    def unsupported(self, detail: str) -> UnsupportedInstruction:
        """The error that names this instruction."""
        return UnsupportedInstruction(self.node, detail)

    def finish(self) -> None:
        """Raise UnsupportedInstruction for a modifier that nobody took."""
        if self._left:
            raise self.unsupported(f"modifier .{self._left[0]}")


TypedDecoder = Callable[[Modifiers], Compute]

_TYPED: dict[str, dict[str, TypedDecoder]] = {}


def _decode(node: Instruction) -> Compute:
    for modifier in node.modifiers:
        decoder = _TYPED[node.name].get(modifier)
        if decoder is not None:
            modifiers = Modifiers(node, modifier)
            compute = decoder(modifiers)
            modifiers.finish()
            return compute
    types = ", ".join("." + modifier for modifier in node.modifiers if is_type(modifier))
    raise UnsupportedInstruction(node, f"type {types or 'missing'}")


def typed(name: str, types: Iterable[str]) -> Callable[[TypedDecoder], TypedDecoder]:
    """Register a decoder for opcodes that begin with ``name`` and whose first type is in ``types``.

    The decoder is given the :class:`Modifiers`; any that it leaves makes the instruction
    unsupported. Families may register one name for different types.
    """

    def register(decoder: TypedDecoder) -> TypedDecoder:
        table = _TYPED.setdefault(name, {})
        for type_name in types:
            if type_name in table:
                raise KeyError(f"{name}.{type_name} is registered already")
            table[type_name] = decoder
        instruction(name)(_decode)
        return decoder

    return register


def typed_instructions() -> dict[str, tuple[str, ...]]:
    """Every name registered through :func:`typed`, with its types."""
    return {name: tuple(table) for name, table in _TYPED.items()}

"""Where instructions are registered, by first name.

Two kinds. A *computation* is a pure function from source values to result values
(:class:`Compute`); an *effect* reaches beyond registers and binds itself to the program
(:func:`effect`). Users register their own in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopwell.errors import HopwellError
from hopwell.ptx.nodes import Instruction

if TYPE_CHECKING:
    from hopwell.emulator.decode import Binder


class UnsupportedInstruction(HopwellError, NotImplementedError):
    """An instruction, or a combination of its modifiers, that the emulator does not know."""

    def __init__(self, node: Instruction, detail: str = "") -> None:
        where = f"{node.location.file}:{node.location.line}"
        super().__init__(
            f"{where}: instruction",
            expected="one that is registered (hopwell.emulator.registry)",
            actual=f"`{node.opcode}`" + (f" ({detail})" if detail else ""),
            consequence="Nothing ran. docs/emulator.md, 'add an instruction', shows how to add it.",
        )


@dataclass(frozen=True)
class Compute:
    """A computation: ``function(*sources)`` gives the result, or a tuple of several.

    Args:
        function: takes arrays of shape (32,), one per source, in the dtype of its type, and
            returns one per result. Lanes that are not active hold anything: it must not raise.
        sources: PTX type names of the source operands (after the destinations).
        results: PTX type names of the destination operands.
        carry_in: the condition code (bool) is passed as the last argument.
        carry_out: the last value returned is the new condition code (bool).
    """

    function: Callable[..., Any]
    sources: tuple[str, ...]
    results: tuple[str, ...]
    carry_in: bool = False
    carry_out: bool = False


Decoder = Callable[[Instruction], Compute]
"""From an instruction's syntax to its computation; called once per instruction of a program."""

Effect = Callable[[Instruction, "Binder"], Callable[..., object]]
"""From an instruction's syntax to a function of (warp, lanes) that performs it."""

COMPUTATIONS: dict[str, Decoder] = {}
EFFECTS: dict[str, Effect] = {}


def instruction(*names: str) -> Callable[[Decoder], Decoder]:
    """Register the decoder of a computation under the first names of its opcodes."""

    def register(decoder: Decoder) -> Decoder:
        for name in names:
            COMPUTATIONS[name] = decoder
        return decoder

    return register


def effect(*names: str) -> Callable[[Effect], Effect]:
    """Register an effect: memory, control flow, barriers, asynchronous work.

    A name is an opcode's beginning up to any dot: ``mbarrier.try_wait`` precedes ``mbarrier``.
    """

    def register(function: Effect) -> Effect:
        for name in names:
            EFFECTS[name] = function
        return function

    return register


def find_effect(opcode: str) -> Effect | None:
    """The effect registered under the longest beginning of ``opcode``."""
    parts = opcode.split(".")
    for end in range(len(parts), 0, -1):
        found = EFFECTS.get(".".join(parts[:end]))
        if found is not None:
            return found
    return None

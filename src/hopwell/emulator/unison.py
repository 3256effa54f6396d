"""Instructions that all warps of a warpgroup have to execute alike.

PTX ISA 9.7.15 for wgmma ("warpgroup: four contiguous warps", all of which execute the same
instruction) and 9.7.19.5 for setmaxnreg: behaviour is undefined where one takes another path.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopwell.emulator.lanes import FULL

if TYPE_CHECKING:
    from hopwell.emulator.decode import DecodedOp
    from hopwell.emulator.warp import Warp

WARPS = 4
"""Warps of a warpgroup."""


@dataclass(eq=False)
class Unison:
    """What the warps of one warpgroup executed of one kind of instruction, in order.

    Attributes:
        rule: what a warp breaks that executes another instruction than its mates, or fewer.
        warps: those of the group.
        ops: the sequence, as the warp that is furthest executed it.
        done: how much of it each warp has executed.
    """

    rule: str
    warps: list["Warp"]
    ops: list["DecodedOp"] = field(default_factory=list)
    done: dict["Warp", int] = field(default_factory=dict)
    broken: bool = False

    def step(self, warp: "Warp", op: "DecodedOp") -> None:
        """A warp executes the next instruction of its sequence."""
        position = self.done.get(warp, 0)
        self.done[warp] = position + 1
        if position == len(self.ops):
            self.ops.append(op)
        elif self.ops[position] is not op and not self.broken:
            self.broken = True
            warp.checker.report(
                self.rule, warp.agent, FULL, op, first=self.ops[position],
                missing=f"its warpgroup executed {_line(self.ops[position])} in this place",
            )  # fmt: skip

    def finish(self) -> bool:
        """Report warps that exited before they executed what their mates did; whether any did."""
        for warp in self.warps:
            position = self.done.get(warp, 0)
            if position < len(self.ops) and not warp.live and not self.broken:
                self.broken = True
                warp.checker.report(
                    self.rule, warp.agent, FULL, self.ops[position],
                    missing=f"{warp.name} exited without it; other warps of its warpgroup "
                    "executed it",
                )  # fmt: skip
        return self.broken


def _line(op: "DecodedOp") -> str:
    return f"{op.opcode} at line {op.node.location.line}"

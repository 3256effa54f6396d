"""The control-flow graph of a program: blocks, post-dominators, definite assignment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopwell.emulator.decode import DecodedOp, Slot

EXIT = -1
"""The position of a program's end."""

_ENDS = ("ret", "exit", "trap")


@dataclass(frozen=True)
class ControlFlow:
    """Basic blocks of a program.

    Attributes:
        starts: the first position of each block, ascending.
        block_at: the block of each position.
        successors: of each block; an empty tuple leaves the program.
        post_dominator: the immediate post-dominator of each block, EXIT for none.
    """

    starts: tuple[int, ...]
    block_at: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]
    post_dominator: tuple[int, ...]

    @staticmethod
    def of(ops: Sequence["DecodedOp"]) -> "ControlFlow":
        """The graph of decoded instructions whose branches know their targets."""
        leaders = {0}
        for op in ops:
            leaders.update(op.targets)
            if op.targets or op.node.name in _ENDS:
                leaders.add(op.pc + 1)
        starts = tuple(sorted(pc for pc in leaders if pc < len(ops)))
        block_at: list[int] = []
        for block, start in enumerate(starts):
            end = starts[block + 1] if block + 1 < len(starts) else len(ops)
            block_at += [block] * (end - start)
        successors = []
        for block, _ in enumerate(starts):
            end = starts[block + 1] if block + 1 < len(starts) else len(ops)
            last = ops[end - 1]
            following: list[int] = []
            leaves = last.node.name in (*_ENDS, "bra", "brx") and last.node.guard is None
            if not leaves and end < len(ops):
                following.append(block_at[end])
            following += [block_at[target] for target in last.targets if target < len(ops)]
            successors.append(tuple(dict.fromkeys(following)))
        return ControlFlow(starts, tuple(block_at), tuple(successors), _post(successors))

    def reconvergence(self, pc: int) -> int:
        """The position where lanes that part at ``pc`` meet again, EXIT for never."""
        block = self.post_dominator[self.block_at[pc]]
        return EXIT if block == EXIT else self.starts[block]


def _post(successors: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Immediate post-dominators (Cooper, Harvey and Kennedy's iteration on the reversed graph)."""
    count = len(successors)
    exit_node = count
    predecessors: list[list[int]] = [[] for _ in range(count + 1)]
    onward = [list(s) or [exit_node] for s in successors]
    reaches = _reaching_exit(onward, exit_node)
    # A loop that never ends gets an edge out, or nothing in it would have a post-dominator.
    for block in range(count):
        if block not in reaches:
            onward[block].append(exit_node)
    for block, following in enumerate(onward):
        for after in following:
            predecessors[after].append(block)
    order = _postorder(exit_node, predecessors)
    number = {node: i for i, node in enumerate(order)}
    parent = {exit_node: exit_node}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            candidates = [n for n in onward[node] if n in parent]
            meet = candidates[0]
            for other in candidates[1:]:
                while meet != other:
                    while number[meet] < number[other]:
                        meet = parent[meet]
                    while number[other] < number[meet]:
                        other = parent[other]
            if parent.get(node) != meet:
                parent[node] = meet
                changed = True
    return tuple(EXIT if parent[b] == exit_node else parent[b] for b in range(count))


def _reaching_exit(onward: Sequence[Sequence[int]], exit_node: int) -> set[int]:
    back: dict[int, list[int]] = {}
    for block, following in enumerate(onward):
        for after in following:
            back.setdefault(after, []).append(block)
    seen, work = {exit_node}, [exit_node]
    while work:
        for before in back.get(work.pop(), ()):
            if before not in seen:
                seen.add(before)
                work.append(before)
    return seen


def _postorder(root: int, edges: Sequence[Sequence[int]]) -> list[int]:
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(edges[root]))]
    while stack:
        node, rest = stack[-1]
        for after in rest:
            if after not in seen:
                seen.add(after)
                stack.append((after, iter(edges[after])))
                break
        else:
            order.append(node)
            stack.pop()
    return order


def possibly_undefined(ops: Sequence["DecodedOp"], control: ControlFlow) -> "frozenset[Slot]":
    """Registers that are read on some path before every lane has surely written them.

    Forward must-analysis over sets of registers, kept as the bits of integers. What it does not
    name needs no check while the program runs.
    """
    bit: dict[Slot, int] = {}
    for op in ops:
        for slot in op.reads | op.writes:
            bit.setdefault(slot, 1 << len(bit))

    def mask(slots: "frozenset[Slot]") -> int:
        total = 0
        for slot in slots:
            total |= bit[slot]
        return total

    reads = [mask(op.reads) for op in ops]
    writes = [0 if op.node.guard is not None else mask(op.writes) for op in ops]
    everything = (1 << len(bit)) - 1
    entering = [everything] * len(control.starts)
    if entering:
        entering[0] = 0
    suspects = 0
    work = [0] if entering else []
    ends = [*control.starts[1:], len(ops)]
    visited: set[int] = set()
    while work:
        block = work.pop()
        visited.add(block)
        known = entering[block]
        for pc in range(control.starts[block], ends[block]):
            known |= writes[pc]
        for after in control.successors[block]:
            if entering[after] & ~known or after not in visited:
                entering[after] &= known
                work.append(after)
    for block in visited:
        known = entering[block]
        for pc in range(control.starts[block], ends[block]):
            suspects |= reads[pc] & ~known
            known |= writes[pc]
    return frozenset(slot for slot, one in bit.items() if suspects & one)

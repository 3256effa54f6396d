"""Mutations of PTX: each protection deleted or altered in turn, by operator.

:func:`mutants` walks a kernel's syntax tree and yields, one at a time, every module in which one
fence, wait, arrive, expect, commit, warp synchronisation, phase, count or byte count is gone or
changed. Each is valid PTX: what a deleted instruction would have computed is put in its place (a
wait answers true). :mod:`hopwell.emulator.mutation_matrix` runs them and says what killed each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hopwell.emulator.mutation_matrix import Matrix, Outcome, Row, judge, run
from hopwell.ptx.nodes import (
    Address,
    Block,
    Function,
    Immediate,
    Instruction,
    Location,
    Module,
    Operand,
    Pair,
    Register,
    RegisterDeclaration,
    Sink,
    SourceLine,
    Statement,
)
from hopwell.ptx.printer import to_text

__all__ = ["OPERATORS", "Matrix", "Mutant", "Outcome", "Row", "judge", "mutants", "run"]

Path = tuple[int, ...]
#: What stands where the instruction stood, with a description of the change.
Change = tuple[str, tuple[Statement, ...]]
Operator = Callable[[Instruction], Iterator[Change]]

#: The register that a mutation declares, in a block of its own around the instruction.
_WORD = "hopwell_mutant_word"


@dataclass(frozen=True)
class Mutant:
    """One change to one instruction.

    Attributes:
        operator: its name, a key of :data:`OPERATORS`.
        number: the instruction's place among the kernel's instructions, from 0.
        change: which of the operator's changes of this instruction, from 0.
        description: the change in words.
        instruction: as it was.
        kernel: the entry that holds it.
    """

    operator: str
    number: int
    change: int
    description: str
    instruction: Instruction
    kernel: str
    _base: Module = dataclasses.field(repr=False, compare=False)
    _path: Path = dataclasses.field(repr=False, compare=False)
    _replacement: tuple[Statement, ...] = dataclasses.field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """The same for the same change of the same PTX: "wait removed@118.0"."""
        return f"{self.operator}@{self.number}.{self.change}"

    @property
    def location(self) -> Location:
        """Where the instruction stands in the PTX."""
        return self.instruction.location

    @property
    def source(self) -> SourceLine | None:
        """The line of the program that it was compiled from."""
        return self.instruction.source

    @property
    def module(self) -> Module:
        """The whole module with the change."""
        statements = tuple(
            dataclasses.replace(
                s, body=_replaced(s.body, self._path, self._replacement), location=s.location
            )
            if isinstance(s, Function) and s.name == self.kernel and s.body is not None
            else s
            for s in self._base.statements
        )
        return dataclasses.replace(self._base, statements=statements)

    @property
    def text(self) -> str:
        """The module's PTX."""
        return to_text(self.module)


def mutants(module: Module, kernel: str | None = None) -> Iterator[Mutant]:
    """Every mutant of an entry (the only one, unless named), in program order by operator.

    Raises:
        KeyError: the module has no such entry.
    """
    entries = {entry.name: entry for entry in module.entries}
    if kernel is None:
        (kernel,) = entries
    body = entries[kernel].body
    assert body is not None
    found = list(_instructions(body))
    for operator, changes in OPERATORS.items():
        for number, (path, instruction) in enumerate(found):
            for change, (description, replacement) in enumerate(changes(instruction)):
                yield Mutant(
                    operator, number, change, description, instruction, kernel, module, path,
                    replacement,
                )  # fmt: skip


def _instructions(block: Block, path: Path = ()) -> Iterator[tuple[Path, Instruction]]:
    for index, statement in enumerate(block.statements):
        if isinstance(statement, Instruction):
            yield (*path, index), statement
        elif isinstance(statement, Block):
            yield from _instructions(statement, (*path, index))


def _replaced(block: Block, path: Path, replacement: tuple[Statement, ...]) -> Block:
    index = path[0]
    if len(path) > 1:
        inner = block.statements[index]
        assert isinstance(inner, Block)
        replacement = (_replaced(inner, path[1:], replacement),)
    statements = (*block.statements[:index], *replacement, *block.statements[index + 1 :])
    return dataclasses.replace(block, statements=statements)


# -- building blocks ---------------------------------------------------------------------------


def _is(instruction: Instruction, *prefixes: str) -> bool:
    """Whether the opcode begins with one of these, whole modifiers at a time."""
    return any(f"{instruction.opcode}.".startswith(f"{prefix}.") for prefix in prefixes)


def _with(instruction: Instruction, *operands: Operand, opcode: str = "") -> Instruction:
    return dataclasses.replace(
        instruction, operands=operands or instruction.operands, opcode=opcode or instruction.opcode
    )


def _results(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands that a barrier instruction writes: what stands before its address."""
    first = next(
        (i for i, o in enumerate(instruction.operands) if isinstance(o, Address)),
        len(instruction.operands),
    )
    written: list[Operand] = []
    for operand in instruction.operands[:first]:
        written += [operand.first, operand.second] if isinstance(operand, Pair) else [operand]
    return tuple(o for o in written if not isinstance(o, Sink))


def _made(instruction: Instruction, opcode: str, *operands: Operand) -> Instruction:
    return Instruction(
        opcode, operands, instruction.guard, instruction.location, instruction.source
    )


def _true(instruction: Instruction, predicate: Operand) -> Instruction:
    """An instruction that sets a predicate, under the same guard."""
    return _made(instruction, "setp.eq.u32", predicate, Immediate(0), Immediate(0))


def _position(instruction: Instruction, start: int) -> int:
    """Where the first operand after the barrier's address stands, counted from ``start``."""
    return next(i for i, o in enumerate(instruction.operands) if isinstance(o, Address)) + start


def _altered(
    instruction: Instruction, position: int, opcode: str, other: int
) -> tuple[Statement, ...]:
    """The instruction with ``opcode(operand, other)`` in place of one operand."""
    operand = instruction.operands[position]
    value = Register(_WORD)
    changed = (
        *instruction.operands[:position],
        value,
        *instruction.operands[position + 1 :],
    )
    compute = Instruction(opcode, (value, operand, Immediate(other)), None, instruction.location)
    declaration = RegisterDeclaration("b32", ((_WORD, None),))
    return (Block((declaration, compute, _with(instruction, *changed)), instruction.location),)


def _constant(instruction: Instruction, position: int, value: int) -> tuple[Statement, ...]:
    operands = instruction.operands
    changed = (*operands[:position], Immediate(value), *operands[position + 1 :])
    return (_with(instruction, *changed),)


def _shifted(
    instruction: Instruction, position: int, amount: int, least: int
) -> tuple[Statement, ...] | None:
    """The operand moved by ``amount``; None where a constant would fall below ``least``."""
    operand = instruction.operands[position]
    if isinstance(operand, Immediate):
        value = int(operand.value) + amount
        return _constant(instruction, position, value) if value >= least else None
    return _altered(instruction, position, "add.s32", amount)


# -- operators ---------------------------------------------------------------------------------

WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
ARRIVES = ("mbarrier.arrive", "mbarrier.arrive_drop")
NAMED = ("bar", "barrier")


def _is_named(instruction: Instruction, *actions: str) -> bool:
    """A named barrier of the CTA, doing one of these."""
    return (
        instruction.name in NAMED
        and not _is(instruction, "bar.warp", "barrier.cluster")
        and any(action in instruction.modifiers for action in actions)
    )


def _is_expect(instruction: Instruction) -> bool:
    return instruction.name == "mbarrier" and "expect_tx" in instruction.modifiers


def fence_removed(i: Instruction) -> Iterator[Change]:
    """fence, membar, wgmma.fence, fence.proxy and fence.mbarrier_init: gone."""
    if i.name in ("fence", "membar") or _is(i, "wgmma.fence"):
        yield f"{i.opcode} removed", ()


def wait_removed(i: Instruction) -> Iterator[Change]:
    """A wait on an mbarrier answers true; a wait for groups, grids or a cluster is gone."""
    if _is(i, *WAITS):
        yield f"{i.opcode} always answers true", (_true(i, i.operands[0]),)
    elif _is(
        i, "wgmma.wait_group", "cp.async.wait_group", "cp.async.wait_all", "griddepcontrol.wait",
        "cp.async.bulk.wait_group", "barrier.cluster.wait",
    ):  # fmt: skip
        yield f"{i.opcode} removed", ()


def arrive_removed(i: Instruction) -> Iterator[Change]:
    """An arrival on an mbarrier, a named barrier or a cluster's barrier is gone, bytes and all."""
    if _is(i, *ARRIVES, "cp.async.mbarrier.arrive"):
        zeros = tuple(_made(i, "mov.b64", state, Immediate(0)) for state in _results(i))
        yield f"{i.opcode} removed", zeros
    elif _is_named(i, "arrive") or _is(i, "barrier.cluster.arrive"):
        yield f"{i.opcode} removed", ()


def expect_removed(i: Instruction) -> Iterator[Change]:
    """Bytes are not expected: an arrival that expects some arrives alone."""
    if _is(i, "mbarrier.expect_tx"):
        yield f"{i.opcode} removed", ()
    elif _is_expect(i):
        plain = _with(i, *i.operands[:-1], opcode=i.opcode.replace(".expect_tx", ""))
        yield f"{i.opcode} arrives without expecting bytes", (plain,)


def commit_removed(i: Instruction) -> Iterator[Change]:
    """wgmma, bulk and cp.async groups are not closed."""
    if _is(i, "wgmma.commit_group", "cp.async.bulk.commit_group", "cp.async.commit_group"):
        yield f"{i.opcode} removed", ()


def barrier_removed(i: Instruction) -> Iterator[Change]:
    """bar.sync and its like are gone: nobody waits, nobody is counted."""
    if _is_named(i, "sync"):
        yield f"{i.opcode} removed", ()


def warp_sync_removed(i: Instruction) -> Iterator[Change]:
    """bar.warp.sync is gone."""
    if _is(i, "bar.warp"):
        yield f"{i.opcode} removed", ()


def election_removed(i: Instruction) -> Iterator[Change]:
    """elect.sync elects every lane."""
    if _is(i, "elect.sync") and isinstance(i.operands[0], Pair):
        leader, predicate = i.operands[0].first, i.operands[0].second
        made = [] if isinstance(leader, Sink) else [_made(i, "mov.b32", leader, Immediate(0))]
        yield "every lane is elected", (*made, _true(i, predicate))


def init_removed(i: Instruction) -> Iterator[Change]:
    """An mbarrier is not initialised."""
    if _is(i, "mbarrier.init"):
        yield f"{i.opcode} removed", ()


def parity_changed(i: Instruction) -> Iterator[Change]:
    """A wait looks at the other parity, or always at one."""
    if not (_is(i, *WAITS) and "parity" in i.modifiers):
        return
    position = _position(i, 1)
    operand = i.operands[position]
    if isinstance(operand, Immediate):
        yield "parity inverted", _constant(i, position, 1 - int(operand.value))
        return
    yield "parity inverted", _altered(i, position, "xor.b32", 1)
    for value in (0, 1):
        yield f"parity always {value}", _constant(i, position, value)


def bytes_changed(i: Instruction) -> Iterator[Change]:
    """Expected bytes, or those of a bulk copy: 16 more, 16 fewer, twice, half."""
    if _is_expect(i):
        position = len(i.operands) - 1
    elif _is(i, "cp.async.bulk") and not _is(
        i, "cp.async.bulk.tensor", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group",
        "cp.async.bulk.prefetch",
    ):  # fmt: skip
        addresses = [k for k, o in enumerate(i.operands) if isinstance(o, Address)]
        position = addresses[1] + 1
    else:
        return
    operand = i.operands[position]
    for text, opcode, other in (
        ("16 bytes more", "add.s32", 16),
        ("16 bytes fewer", "add.s32", -16),
        ("twice the bytes", "shl.b32", 1),
        ("half the bytes", "shr.u32", 1),
    ):
        if isinstance(operand, Immediate):
            size = int(operand.value)
            value = {"add.s32": size + other, "shl.b32": 2 * size, "shr.u32": size // 2}[opcode]
            if value >= 0 and value != size:
                yield text, _constant(i, position, value)
        else:
            yield text, _altered(i, position, opcode, other)


def count_changed(i: Instruction) -> Iterator[Change]:
    """How many arrivals an mbarrier expects, or one arrival counts for: one more, one fewer."""
    if _is(i, "mbarrier.init"):
        position = len(i.operands) - 1
    elif _is(i, *ARRIVES) and not _is_expect(i) and len(i.operands) > _position(i, 1):
        position = _position(i, 1)
    else:
        return
    for amount in (1, -1):
        changed = _shifted(i, position, amount, least=1)
        if changed is not None:
            yield f"{amount:+d} arrivals", changed


def group_count_changed(i: Instruction) -> Iterator[Change]:
    """One more group may stay in flight after a wait."""
    if _is(i, "wgmma.wait_group", "cp.async.wait_group", "cp.async.bulk.wait_group"):
        (operand,) = i.operands
        assert isinstance(operand, Immediate)
        count = int(operand.value)
        if count < 7:
            yield f"waits until {count + 1} groups are left", _constant(i, 0, count + 1)


def completion_changed(i: Instruction) -> Iterator[Change]:
    """A wait for bulk groups: for their reads alone, or for all of them."""
    if _is(i, "cp.async.bulk.wait_group.read"):
        yield "waits for the writes too", (_with(i, opcode="cp.async.bulk.wait_group"),)
    elif _is(i, "cp.async.bulk.wait_group"):
        yield "waits for the reads alone", (_with(i, opcode="cp.async.bulk.wait_group.read"),)


def named_barrier_changed(i: Instruction) -> Iterator[Change]:
    """Another named barrier; a warp more or fewer."""
    if not _is_named(i, "sync", "arrive", "red"):
        return
    position = 1 if "red" in i.modifiers else 0
    operand = i.operands[position]
    if isinstance(operand, Immediate):
        number = (int(operand.value) + 1) % 16
        yield f"named barrier {number}", _constant(i, position, number)
    else:
        yield "the next named barrier", _altered(i, position, "add.s32", 1)
    if len(i.operands) > position + 1 and "red" not in i.modifiers:
        for amount in (32, -32):
            changed = _shifted(i, position + 1, amount, least=32)
            if changed is not None:
                yield f"{amount:+d} threads", changed


def other_mbarrier(i: Instruction) -> Iterator[Change]:
    """The mbarrier 8 bytes further: of a wait, an arrival, or an engine's completion."""
    if _is(i, *WAITS, *ARRIVES, "mbarrier.expect_tx"):
        position = _position(i, 0)
    elif i.name == "cp" and any("mbarrier::complete_tx" in m for m in i.modifiers):
        position = [k for k, o in enumerate(i.operands) if isinstance(o, Address)][-1]
    else:
        return
    address = i.operands[position]
    assert isinstance(address, Address)
    moved = dataclasses.replace(address, offset=address.offset + 8)
    operands = (*i.operands[:position], moved, *i.operands[position + 1 :])
    yield "the mbarrier 8 bytes further", (_with(i, *operands),)


def scope_narrowed(i: Instruction) -> Iterator[Change]:
    """Cluster, GPU or system scope becomes CTA scope."""
    if i.name not in ("mbarrier", "fence", "atom", "red", "ld", "st") or "proxy" in i.modifiers:
        return
    if _is(i, "fence.mbarrier_init") or "shared::cluster" in i.modifiers:
        return  # no form of CTA scope
    parts = i.opcode.split(".")
    for wide in ("cluster", "gpu", "sys"):
        if wide in parts[1:]:
            narrow = ".".join("cta" if part == wide else part for part in parts)
            yield f"{wide} scope narrowed to cta", (_with(i, opcode=narrow),)


def order_weakened(i: Instruction) -> Iterator[Change]:
    """Acquire and release become relaxed."""
    if i.name in ("atom", "red", "ld", "st"):
        for order in ("acq_rel", "acquire", "release"):
            if order in i.modifiers:
                yield (
                    f"{order} becomes relaxed",
                    (_with(i, opcode=i.opcode.replace(f".{order}", ".relaxed")),),
                )
    elif _is(i, "barrier.cluster.arrive") and "relaxed" not in i.modifiers:
        opcode = i.opcode.replace(".release", "")
        opcode = opcode.replace("cluster.arrive", "cluster.arrive.relaxed")
        yield "arrives relaxed", (_with(i, opcode=opcode),)


OPERATORS: dict[str, Operator] = {
    operator.__name__.replace("_", " "): operator
    for operator in (
        fence_removed,
        wait_removed,
        arrive_removed,
        expect_removed,
        commit_removed,
        barrier_removed,
        warp_sync_removed,
        election_removed,
        init_removed,
        parity_changed,
        bytes_changed,
        count_changed,
        group_count_changed,
        completion_changed,
        named_barrier_changed,
        other_mbarrier,
        scope_narrowed,
        order_weakened,
    )
}

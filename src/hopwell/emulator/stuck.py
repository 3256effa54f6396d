"""Nobody can go on: what each blocked warp waits for, and who was to signal it.

This turns the machine's state into the waiters of :mod:`hopwell.emulator.deadlock`, and the
most telling cause into a hazard.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hopwell.emulator.conditions import (
    ClusterRound,
    LanesMeet,
    MbarrierPhase,
    NamedBarrierRound,
    RegistersFree,
    WarpgroupIssued,
    WarpRound,
)
from hopwell.emulator.deadlock import (
    ClusterWait,
    LanesWait,
    MbarrierWait,
    MemoryWait,
    NamedBarrierWait,
    Place,
    RegisterWait,
    Signaller,
    Waiter,
    WaitForGraph,
    Wanted,
    explain,
)
from hopwell.emulator.hazards.rules import RULES
from hopwell.ptx.nodes import Address, Register, Symbol

if TYPE_CHECKING:
    from hopwell.emulator.decode import DecodedOp
    from hopwell.emulator.machine import Machine
    from hopwell.emulator.mbarrier import Mbarrier
    from hopwell.emulator.named_barrier import NamedBarrier
    from hopwell.emulator.warp import Fragment, Warp

_SIGNALS = ("mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.complete_tx", "cp.async")
"""Beginnings of the opcodes that can complete a phase of an mbarrier."""


def explain_deadlock(machine: "Machine") -> WaitForGraph:
    """The wait-for graph of a machine in which nothing can happen; its cause becomes a hazard."""
    fragments = machine.blocked + machine.runnable
    waiters = [_waiter(machine, fragment) for fragment in fragments]
    graph = explain(waiters)
    if _diverged(machine):
        return graph
    first = graph.findings[0]
    # A lane's waiter is listed where its fragment was: the finding's is one of these objects.
    fragment = fragments[next(i for i, w in enumerate(waiters) if w is first.waiter)]
    machine.checker.report(
        graph.cause if graph.cause in RULES else "deadlock",
        fragment.warp.agent,
        fragment.lanes,
        _op(machine, fragment),
        first=_armed_by(fragment, graph.cause),
        missing=first.words.replace("\n", "; "),
        waiters=len(waiters),
    )
    return graph


def _diverged(machine: "Machine") -> bool:
    """Whether a warpgroup parted at an instruction that all of it has to execute."""
    found = False
    for cluster in machine.clusters:
        for cta in cluster.ctas:
            for unison in cta.unisons.values():
                found |= unison.finish()
    return found


def _armed_by(fragment: "Fragment", cause: str) -> "DecodedOp | None":
    """The instruction that expected the bytes that do not come."""
    waiting = fragment.waiting or fragment.polled
    if isinstance(waiting, MbarrierPhase) and cause.startswith("expected-bytes"):
        return waiting.barrier.armed_by
    return None


def _op(machine: "Machine", fragment: "Fragment") -> "DecodedOp":
    return machine.program.ops[fragment.pc]


def _place(op: "DecodedOp") -> Place:
    return Place(op.opcode, op.node.location, op.node.source)


def _agent(fragment: "Fragment") -> str:
    """The warp, and which of its lanes where they have parted."""
    warp, lanes = fragment.warp, fragment.lanes
    if lanes.bits == warp.live:
        return warp.name
    if lanes.count == 1:
        return f"{warp.name} lane {lanes.first}"
    return f"{warp.name} lanes {lanes.bits:#x}"


def _waiter(machine: "Machine", fragment: "Fragment") -> Waiter:
    wanted, signallers = _wanted(machine, fragment)
    return Waiter(
        _agent(fragment), _place(_op(machine, fragment)), wanted, signallers,
        fragment.warp.cta.index,
    )  # fmt: skip


def _wanted(machine: "Machine", fragment: "Fragment") -> tuple[Wanted, tuple[Signaller, ...]]:
    warp, waiting = fragment.warp, fragment.waiting or fragment.polled
    if isinstance(waiting, MbarrierPhase):
        return _mbarrier(machine, warp, waiting), _mbarrier_signallers(machine, waiting.barrier)
    if isinstance(waiting, NamedBarrierRound):
        return _named(waiting.barrier), _named_signallers(machine, warp, waiting.barrier)
    if isinstance(waiting, ClusterRound):
        cluster = warp.cta.cluster
        missing = tuple(other.name for other in cluster.missing)
        arrived = sum(bits.bit_count() for bits in cluster.arrived.values())
        alive = sum(w.live.bit_count() for cta in cluster.ctas for w in cta.warps)
        return ClusterWait(alive, arrived, missing), tuple(
            Signaller(other.name) for other in cluster.missing
        )
    if isinstance(waiting, RegistersFree):
        return RegisterWait(waiting.needed, warp.cta.free_registers), ()
    if isinstance(waiting, WarpgroupIssued):
        names = ", ".join(other.name for other in waiting.missing)
        return MemoryWait((f"wgmma group {waiting.number}, which {names} did not issue",)), tuple(
            Signaller(other.name) for other in waiting.missing
        )
    if isinstance(waiting, LanesMeet | WarpRound):
        others = tuple(
            Signaller(_agent(other), _place(_op(machine, other)))
            for other in warp.fragments
            if other is not fragment
        )
        return LanesWait(_mask(waiting), fragment.lanes.bits), others
    return MemoryWait((f"{_polled(machine, fragment)}",)), ()


def _mask(waiting: LanesMeet | WarpRound) -> int:
    return waiting.bits if isinstance(waiting, LanesMeet) else waiting.mask


def _polled(machine: "Machine", fragment: "Fragment") -> str:
    """What a spinning fragment reads: the loads of the loop that it turns back in."""
    ops = machine.program.ops
    back = next(
        (op for op in ops[fragment.pc :] if any(t <= fragment.pc <= op.pc for t in op.targets)),
        None,
    )
    first, last = (fragment.pc, fragment.pc) if back is None else (min(back.targets), back.pc)
    loads = [op for op in ops[first : last + 1] if op.node.name in ("ld", "atom", "mbarrier")]
    return ", ".join(f"{op.opcode} at line {op.node.location.line}" for op in loads) or "nothing"


def _mbarrier(machine: "Machine", warp: "Warp", waiting: MbarrierPhase) -> MbarrierWait:
    barrier = waiting.barrier
    owner = warp.cta.cluster.ctas[barrier.memory.rank]
    return MbarrierWait(
        barrier.name,
        waiting.awaited,
        barrier.phase,
        barrier.pending,
        barrier.bytes,
        barrier.expected,
        sum(copy.barrier is barrier for copy in machine.in_flight),
        waiting.parity,
        barrier.observed.get(warp),
        not owner.alive,
        barrier.ever_armed,
    )


def _mbarrier_signallers(machine: "Machine", barrier: "Mbarrier") -> tuple[Signaller, ...]:
    """Who arrived there before, and whose program leads to an instruction that would."""
    found = {
        warp: Signaller(warp.name, _place(op), times, "blocked" if warp.live else "exited")
        for warp, (times, op) in barrier.arrivers.items()
    }
    for fragment in machine.blocked + machine.runnable:
        warp = fragment.warp
        if warp in found and found[warp].state == "exited":
            continue
        for op in _ahead(machine, fragment):
            if op.opcode.startswith(_SIGNALS) and _names(warp, op, barrier):
                times = found[warp].arrivals if warp in found else 0
                found[warp] = Signaller(_agent(fragment), _place(op), times, "blocked")
                break
    return tuple(found.values())


def _ahead(machine: "Machine", fragment: "Fragment") -> Iterator["DecodedOp"]:
    """Instructions that can still be reached, the nearest first."""
    ops = machine.program.ops
    seen, queue = set(), [fragment.pc]
    for pc in queue:
        if pc in seen or pc >= len(ops):
            continue
        seen.add(pc)
        op = ops[pc]
        yield op
        ends = op.node.name in ("ret", "exit", "trap", "bra") and op.node.guard is None
        if not ends:
            queue.append(pc + 1)
        queue += op.targets


def _names(warp: "Warp", op: "DecodedOp", barrier: "Mbarrier") -> bool:
    """Whether an operand of ``op`` is the address of ``barrier``, as registers are now."""
    target = barrier.memory.base + barrier.offset
    for operand in op.node.operands:
        if not isinstance(operand, Address):
            continue
        base = operand.base
        if isinstance(base, Symbol):
            place = warp.cta.program.symbols.get(base.name)
            if place is not None and place.address + warp.cta.rank_bits + operand.offset == target:
                return True
        elif isinstance(base, Register) and _holds(warp, op, base.name, target - operand.offset):
            return True
    return False


def _holds(warp: "Warp", op: "DecodedOp", name: str, value: int) -> bool:
    names = warp.cta.program.register_names
    slots = [slot for slot in op.reads if names.get(slot) == name]
    return any(bool((warp.banks[slot.bank][slot.index] == value).any()) for slot in slots)


def _named(barrier: "NamedBarrier") -> NamedBarrierWait:
    return NamedBarrierWait(
        barrier.index,
        barrier.arrived + barrier.missing,
        barrier.arrived,
        tuple(barrier.counts),
        barrier.faults[0] if barrier.faults else "",
        "a warp arrived there twice in a round",
    )


def _named_signallers(
    machine: "Machine", warp: "Warp", barrier: "NamedBarrier"
) -> tuple[Signaller, ...]:
    """Warps of the CTA that took part before, or could come there, and have not arrived."""
    here = {other for other, _, _ in barrier.warps}
    found = {
        other: Signaller(other.name, _place(op), 0, "blocked" if other.live else "exited")
        for other, op in barrier.participants.items()
        if other not in here
    }
    for fragment in machine.blocked + machine.runnable:
        other = fragment.warp
        if other.cta is not warp.cta or other in here or other in found:
            continue
        for op in _ahead(machine, fragment):
            if op.node.name in ("bar", "barrier") and _is_at(other, op, barrier.index):
                found[other] = Signaller(_agent(fragment), _place(op))
                break
    return tuple(found.values())


def _is_at(warp: "Warp", op: "DecodedOp", index: int) -> bool:
    """Whether ``op`` names that barrier, by number or, as registers are now, by a register."""
    operand = op.node.operands[0] if op.node.operands else None
    if isinstance(operand, Register):
        return _holds(warp, op, operand.name, index)
    return getattr(operand, "value", None) == index

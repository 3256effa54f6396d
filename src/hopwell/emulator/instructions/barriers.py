"""Barriers: named (PTX ISA 9.7.13.1), cluster (9.7.13.3), mbarrier (9.7.13.15), setmaxnreg."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.conditions import (
    Blocked,
    ClusterRound,
    MbarrierPhase,
    NamedBarrierRound,
    RegistersFree,
)
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.hazards.clocks import Clock
from hopwell.emulator.instructions.memory import locate, state_space
from hopwell.emulator.lanes import Lanes, lanes_of, mask_of
from hopwell.emulator.mbarrier import Mbarrier, report_dangling
from hopwell.emulator.memory import Memory
from hopwell.emulator.named_barrier import Part
from hopwell.emulator.registry import effect
from hopwell.ptx.nodes import Immediate, Instruction, Not, Operand

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


# -- named barriers ----------------------------------------------------------------------


@effect("bar.sync", "bar.arrive", "bar.red", "bar.cta", "barrier.sync", "barrier.arrive",
        "barrier.red", "barrier.cta")  # fmt: skip
def barrier(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.1 bar, barrier: ``sync``/``arrive``/``red`` on one of 16 barriers of the CTA.

    Participants are counted in threads, whole warps at a time; without a count, all of the CTA.
    """
    action = next(m for m in node.modifiers if m in ("sync", "arrive", "red"))
    operands = list(node.operands)
    reduction = None
    store = None
    if action == "red":
        store = bind.write(operands.pop(0), "pred" if node.modifiers[-1] == "pred" else "u32")
        reduction = _reduction(node, bind, operands.pop())
    number = bind.uniform(operands[0], "b32")
    count = bind.uniform(operands[1], "b32") if len(operands) > 1 else None
    op = bind.op
    aligned = node.name == "bar" or "aligned" in node.modifiers

    def execute(warp: "Warp", lanes: Lanes) -> None:
        fragment = warp.fragment
        index = number(warp, lanes)
        named = warp.cta.named_barrier(index)
        if fragment.token is None:
            threads = warp.cta.live_threads if count is None else count(warp, lanes)
            named.everyone = count is None
            fragment.token = named.round
            _arrive(warp, lanes, op, named, threads, action, aligned)
            if reduction is not None:
                reduction(warp, lanes, named)
            if named.complete_if_due():
                warp.machine.version += 1
        if action == "arrive":
            fragment.token = None
            warp.machine.signalled(warp)
            return
        if named.round == fragment.token:
            raise Blocked(NamedBarrierRound(named, fragment.token))
        if warp.machine.recorder is not None:
            warp.machine.recorder.named_passed(warp, named, fragment.token)
        fragment.token = None
        if named.completed is not None:
            warp.checker.acquire(warp.agent, lanes, named.completed)
        warp.checker.warp_sync(warp.agent, lanes)
        if store is not None:
            store(warp, lanes, _reduced(node, named.results))

    return execute


def _arrive(
    warp: "Warp", lanes: Lanes, op: Any, named: Any, threads: int, action: str, aligned: bool
) -> None:
    checker = warp.checker
    who = f"named barrier {named.index}"
    # Arriving first and waiting later in one round is sound (so does who gives itself the first
    # turn); to arrive again before anybody has waited for the first time is one call too many.
    earlier = next((o for w, waits, o in named.warps if w is warp and not waits), None)
    if earlier is not None and action == "arrive":
        named.faults.append("named-barrier-divergence")
        checker.report(
            "named-barrier-divergence", warp.agent, lanes, op, first=earlier, barrier=who,
            missing=f"{warp.name} arrives again in round {named.round} of {who}, before the round "
            "of its first arrival is complete",
        )  # fmt: skip
    if named.threads and named.threads != threads:
        checker.report(
            "named-barrier-count", warp.agent, lanes, op, first=named.warps[0][2],
            missing=f"{warp.name} counts {threads} threads at {who}, "
            f"{named.warps[0][0].name} counts {named.threads}",
            barrier=who, expected=named.threads, actual=threads,
        )  # fmt: skip
        named.faults.append("named-barrier-count")
    if threads % 32 or threads <= 0 or not 0 <= named.index < 16:
        checker.report(
            "named-barrier-count", warp.agent, lanes, op, barrier=who,
            expected="a positive multiple of 32, and a barrier below 16", actual=threads,
        )  # fmt: skip
        threads = max(32, threads + -threads % 32)
    clock = checker.release(warp.agent, lanes, op, who)
    if named.arriving is None:
        named.arriving = clock.copy()
    else:
        named.arriving.join(clock)
    named.threads = named.threads or threads
    earlier_part = named.parts.pop(warp, None)
    here = lanes.bits
    if earlier_part is not None:
        here |= earlier_part.bits
        named.report_part(warp, earlier_part)
    if warp.live & ~here:
        # A warp counts when its last lane has come, or has exited.
        named.parts[warp] = Part(here, lanes, op, action, aligned, threads)
        return
    named.count_warp(warp, Part(here, lanes, op, action, aligned, threads))


def _reduction(node: Instruction, bind: Binder, operand: Operand) -> Any:
    negated = isinstance(operand, Not)
    read = bind.read(operand.register if isinstance(operand, Not) else operand, "pred")

    def execute(warp: "Warp", lanes: Lanes, named: Any) -> None:
        values = ~read(warp) if negated else read(warp)
        active = mask_of(values) & lanes.bits
        for key, value in (
            ("count", active.bit_count()),
            ("all", int(active == lanes.bits)),
            ("any", int(active != 0)),
        ):
            before = named.reduction.get(key)
            if before is None:
                named.reduction[key] = value
            elif key == "count":
                named.reduction[key] = before + value
            else:
                named.reduction[key] = before & value if key == "all" else before | value

    return execute


def _reduced(node: Instruction, results: dict[str, int]) -> Any:
    if "popc" in node.modifiers:
        return np.uint32(results["count"])
    return bool(results["all" if "and" in node.modifiers else "any"])


# -- cluster barrier ---------------------------------------------------------------------


@effect("barrier.cluster")
def barrier_cluster(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.3 barrier.cluster.{arrive,wait}: all live threads of the cluster.

    With ``.relaxed``, an arrive publishes what the thread's last releasing fence covered.
    """
    op = bind.op
    arrive = node.modifiers[1] == "arrive"
    relaxed = "relaxed" in node.modifiers

    def execute(warp: "Warp", lanes: Lanes) -> None:
        cluster, fragment = warp.cta.cluster, warp.fragment
        if arrive:
            warp.machine.version += 1
            cluster.arrived[warp] = cluster.arrived.get(warp, 0) | lanes.bits
            # Relaxed, it publishes what a fence before it covers (fence.mbarrier_init is made for
            # this).
            if relaxed:
                clock = warp.checker.release_relaxed(warp.agent, lanes)
            else:
                clock = warp.checker.release(warp.agent, lanes, op, "the cluster barrier")
            cluster.arriving = clock.copy() if cluster.arriving is None else cluster.arriving
            cluster.arriving.join(clock)
            warp.cluster_round = cluster.round
            if warp.machine.recorder is not None:
                warp.machine.recorder.cluster_arrived(warp, cluster)
            cluster.complete_if_due()
            return
        if fragment.token is None:
            fragment.token = warp.cluster_round
        if cluster.round == fragment.token:
            raise Blocked(ClusterRound(fragment, fragment.token))
        if warp.machine.recorder is not None:
            warp.machine.recorder.cluster_passed(warp, cluster, fragment.token)
        fragment.token = None
        if cluster.completed is not None:
            warp.checker.acquire(warp.agent, lanes, cluster.completed)

    return execute


# -- mbarrier ----------------------------------------------------------------------------


def find_mbarrier(
    warp: "Warp", lanes: Lanes, memory: Memory | None, offset: int, *, asynchronous: bool = False
) -> Mbarrier | None:
    """The mbarrier object at an offset of a CTA's shared memory, or None with a report."""
    if memory is None:
        return None
    found = memory.barriers.get(offset)
    if found is None:
        warp.checker.report(
            "uninitialised-barrier", warp.agent, lanes, warp.op,
            missing="no mbarrier.init of it comes before",
            barrier=warp.cta.barrier_name(memory, offset),
        )  # fmt: skip
        return None
    if not asynchronous and memory.region is not None:
        warp.checker.mbarrier_use(
            warp.agent, lanes, warp.op, memory.region, np.array([offset], np.int64)
        )
    return found


def _each_barrier(
    warp: "Warp", space: str, addresses: NDArray[np.int64], lanes: Lanes
) -> list[tuple[Mbarrier, Lanes]]:
    """The barriers that lanes name, each with its lanes."""
    found: list[tuple[Mbarrier, Lanes]] = []
    for memory, part, offsets in locate(warp, space, addresses, lanes, 8):
        for offset in np.unique(offsets).tolist() if part.count > 1 else offsets.tolist():
            who = lanes_of(sum(1 << int(lane) for lane in part.index[offsets == offset]))
            mbarrier = find_mbarrier(warp, who, memory, offset)
            if mbarrier is not None:
                found.append((mbarrier, who))
    return found


@effect("mbarrier.init")
def mbarrier_init(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.9 mbarrier.init: phase 0, with a count of pending arrivals."""
    space, _ = state_space(node)
    address, count = bind.address(node.operands[0]), bind.read(node.operands[1], "b32")
    op = bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        machine = warp.machine
        for memory, part, offsets in locate(warp, space, address(warp), lanes, 8):
            if memory is None:
                continue
            for lane, offset in zip(part.index.tolist(), offsets.tolist(), strict=True):
                expected = int(count(warp)[lane])
                name = warp.cta.barrier_name(memory, offset)
                column = warp.checker.column("mbarrier", (id(memory), offset), name)
                memory.barriers[offset] = Mbarrier(memory, offset, name, column, expected, expected)
                if machine.recorder is not None:
                    machine.recorder.initialised(warp, memory.barriers[offset])
            if memory.region is not None:
                warp.checker.mbarrier_init(warp.agent, part, op, memory.region, offsets)
            machine.version += 1

    return execute


@effect("mbarrier.inval")
def mbarrier_inval(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.10 mbarrier.inval: the bytes may serve other purposes from here on."""
    space, _ = state_space(node)
    address = bind.address(node.operands[0])

    def execute(warp: "Warp", lanes: Lanes) -> None:
        for mbarrier, _ in _each_barrier(warp, space, address(warp), lanes):
            del mbarrier.memory.barriers[mbarrier.offset]

    return execute


@effect("mbarrier.arrive", "mbarrier.arrive_drop")
def mbarrier_arrive(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.13 mbarrier.arrive{.expect_tx}, 9.7.13.15.14 arrive_drop: one lane, one arrival.

    ``expect_tx`` adds to the transaction bytes of the phase before it arrives; ``arrive_drop``
    also lowers the count of all later phases.
    """
    operands = list(node.operands)
    drop = node.name == "mbarrier" and node.modifiers[0] == "arrive_drop"
    armed = "expect_tx" in node.modifiers
    space, _ = state_space(node)
    from hopwell.ptx.nodes import Address

    store = None if isinstance(operands[0], Address) else bind.write(operands.pop(0), "b64")
    address = bind.address(operands.pop(0))
    count = bind.read(operands.pop(0), "b32") if operands else None
    relaxed = "relaxed" in node.modifiers
    # "mbarrier.arrive: .scope indicates the set of threads that directly observe the memory
    # synchronizing effect": with .cta, none of another CTA, which alone can wait there. Without
    # a scope the ISA leaves room; CUTLASS writes remote arrives without one and means .cluster.
    narrow = "cta" in node.modifiers
    op = bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        checker, machine = warp.checker, warp.machine
        amounts = None if count is None else count(warp)
        tokens = np.zeros(32, np.uint64)
        for mbarrier, who in _each_barrier(warp, space, address(warp), lanes):
            if (
                mbarrier.memory.rank != warp.cta.rank
                and not warp.cta.cluster.ctas[mbarrier.memory.rank].alive
            ):
                report_dangling(mbarrier, warp, who, op)
                continue
            mbarrier.arrive(warp, who, op, checker.stamp(warp.agent))
            clock: Clock | None
            if relaxed:
                clock = checker.release_relaxed(warp.agent, who)
            else:
                clock = checker.release(warp.agent, who, op, mbarrier.name)
            if narrow and mbarrier.memory.rank != warp.cta.rank:
                clock = None
            for lane in who.index.tolist():
                tokens[lane] = mbarrier.token()
                if armed and amounts is not None:
                    mbarrier.arm(int(amounts[lane]), op)
                arrivals = 1 if armed or amounts is None else int(amounts[lane])
                if drop:
                    mbarrier.expected -= arrivals
                if arrivals > mbarrier.pending:
                    checker.report(
                        "arrival-count", warp.agent, who, op, barrier=mbarrier.name,
                        pending=mbarrier.pending, arrivals=arrivals, phase=mbarrier.phase,
                    )  # fmt: skip
                    arrivals = mbarrier.pending
                mbarrier.pending -= arrivals
                if clock is not None and mbarrier.arriving is None:
                    mbarrier.arriving = clock.copy()
                elif clock is not None:
                    mbarrier.arriving.join(clock)
                if machine.recorder is not None:
                    machine.recorder.arrive(warp, mbarrier, armed)
                machine.advance(mbarrier)
        if store is not None:
            store(warp, lanes, tokens)

    return execute


@effect("mbarrier.expect_tx", "mbarrier.complete_tx")
def mbarrier_transaction(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.11 expect_tx and 9.7.13.15.12 complete_tx: change the transaction bytes only."""
    space, _ = state_space(node)
    address, amount = bind.address(node.operands[0]), bind.read(node.operands[1], "b32")
    expects = node.modifiers[0] == "expect_tx"
    op = bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        values = amount(warp)
        for mbarrier, who in _each_barrier(warp, space, address(warp), lanes):
            for lane in who.index.tolist():
                if expects:
                    mbarrier.arm(int(values[lane]), op)
                    if warp.machine.recorder is not None:
                        warp.machine.recorder.expect(warp, mbarrier)
                else:
                    mbarrier.bytes -= int(values[lane])
                warp.machine.advance(mbarrier)

    return execute


@effect("mbarrier.test_wait", "mbarrier.try_wait")
def mbarrier_wait(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.16 mbarrier.test_wait, try_wait: has the phase of this state or parity completed?

    ``try_wait`` may suspend the thread, for a time that the system chooses: here it waits, and
    gives up when nothing else can happen, or when the policy says so. A parity names the current
    phase or the one before it, no other.
    """
    blocking = node.modifiers[0] == "try_wait"
    by_parity = "parity" in node.modifiers
    space, _ = state_space(node)
    store, address = bind.write(node.operands[0], "pred"), bind.address(node.operands[1])
    operand = node.operands[2]
    state = bind.read(operand, "b32" if by_parity else "b64")
    relaxed = "relaxed" in node.modifiers
    op = bind.op
    constant = isinstance(operand, Immediate)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        checker, fragment = warp.checker, warp.fragment
        result = np.zeros(32, bool)
        states = state(warp)
        for mbarrier, who in _each_barrier(warp, space, address(warp), lanes):
            value = int(states[who.first])
            if by_parity:
                if value not in (0, 1):
                    checker.report(
                        "parity-operand", warp.agent, who, op, barrier=mbarrier.name,
                        parity=value, constant=constant,
                    )  # fmt: skip
                awaited = mbarrier.phase_of_parity(value)
            else:
                awaited = mbarrier.token_phase(value)
            done = mbarrier.phase > awaited
            if not done:
                phase = MbarrierPhase(mbarrier, awaited, value if by_parity else None)
                if blocking and not fragment.timed_out and not warp.machine.policy.gives_up():
                    raise Blocked(phase)
                fragment.polled = phase
            if done:
                fragment.polled = None
                mbarrier.observe(warp, awaited)
                result[who.index] = True
                if mbarrier.completed is not None and not relaxed:
                    checker.acquire(warp.agent, who, mbarrier.completed)
                checker.waited(warp.agent, who, mbarrier.column, awaited + 1)
                if warp.machine.recorder is not None:
                    warp.machine.recorder.wait(warp, mbarrier, awaited)
        fragment.timed_out = False
        store(warp, lanes, result)

    return execute


@effect("mbarrier.pending_count")
def mbarrier_pending_count(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.15.17 mbarrier.pending_count: the pending arrivals that a state records."""
    store, state = bind.write(node.operands[0], "b32"), bind.read(node.operands[1], "b64")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        counts = [Mbarrier.token_pending(int(token)) for token in state(warp)]
        store(warp, lanes, np.array(counts, np.uint32))

    return execute


# -- register pool -----------------------------------------------------------------------


@effect("setmaxnreg")
def setmaxnreg(node: Instruction, bind: Binder) -> Execute:
    """9.7.19.5 setmaxnreg.{inc,dec}: move registers between the warp and the CTA's pool.

    ``inc`` waits until the pool holds enough. All warps of the warpgroup must execute the same.
    """
    increase = node.modifiers[0] == "inc"
    target = bind.uniform(node.operands[0], "b32")
    op = bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        wanted = target(warp, lanes)
        delta = wanted - warp.registers
        if wanted % 8 or not 24 <= wanted <= 256 or ((delta > 0) != increase and delta):
            warp.checker.report(
                "setmaxnreg-target", warp.agent, lanes, op, registers=wanted,
                held=warp.registers,
            )  # fmt: skip
        if lanes.bits != warp.live:
            warp.checker.report("setmaxnreg-divergence", warp.agent, lanes, op)
        needed = 32 * delta
        if warp.fragment.token is None:
            warp.fragment.token = "counted"
            warp.cta.unison("setmaxnreg-divergence", warp).step(warp, op)
        if needed > warp.cta.free_registers:
            raise Blocked(RegistersFree(warp, needed))
        warp.fragment.token = None
        warp.cta.free_registers -= needed
        warp.registers = wanted
        warp.machine.version += 1

    return execute

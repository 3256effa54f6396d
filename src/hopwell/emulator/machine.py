"""The machine: a grid of CTAs whose warps and copy engines run under one seeded policy."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hopwell.emulator.asynchronous import Copy
from hopwell.emulator.conditions import Blocked, Retired, Yield
from hopwell.emulator.hazards.clocks import Clock
from hopwell.emulator.lanes import lanes_of
from hopwell.emulator.layout import (
    CONSTANT_WINDOW,
    GLOBAL_WINDOW,
    PARAMETER_WINDOW,
    RANK_SHIFT,
    SHARED_BASE,
)
from hopwell.emulator.mbarrier import Mbarrier, check_at_exit
from hopwell.emulator.memory import AddressSpace, Memory, shared_memory
from hopwell.emulator.named_barrier import NamedBarrier
from hopwell.emulator.names import Names
from hopwell.emulator.policy import Policy
from hopwell.emulator.program import Program
from hopwell.emulator.stuck import explain_deadlock
from hopwell.emulator.unison import WARPS, Unison
from hopwell.emulator.warp import NOWHERE, Fragment, Warp

if TYPE_CHECKING:
    from hopwell.emulator.capture.launch import Launch

Index = tuple[int, int, int]

REGISTER_FILE = 65_536
"""32-bit registers of an SM (CUDA programming guide, compute capability 9.0)."""

_SPINS = 24
"""Turns of a loop without any effect on the machine after which others are let run first."""


@dataclass(eq=False)
class Cluster:
    """CTAs that can reach each other's shared memory."""

    index: Index
    ctas: list["Cta"] = field(default_factory=list)
    round: int = 0
    arrived: dict["Warp", int] = field(default_factory=dict)
    arriving: Any = None
    completed: Any = None

    @property
    def missing(self) -> list["Warp"]:
        """Warps with threads that have neither exited nor arrived."""
        return [
            warp
            for cta in self.ctas
            for warp in cta.warps
            if warp.live & ~self.arrived.get(warp, 0)
        ]

    def complete_if_due(self) -> bool:
        """Complete the round of ``barrier.cluster`` when all threads that live have arrived."""
        if not self.arrived or self.missing:
            return False
        self.completed, self.arriving = self.arriving, None
        self.arrived.clear()
        self.round += 1
        return True


class Cta:
    """One thread block: its shared memory, barriers and warps."""

    def __init__(self, machine: "Machine", index: Index, rank: int, cluster: Cluster) -> None:
        self.machine = machine
        self.index = index
        self.rank = rank
        self.rank_bits = rank << RANK_SHIFT
        self.cluster = cluster
        self.program = machine.program
        self.residence = 0
        size = self.program.static_shared + machine.launch.shared_bytes
        self.shared = shared_memory(f"shared {index}", SHARED_BASE + self.rank_bits, size, rank)
        self.shared.region = machine.checker.new_region(
            "shared", "shared", size, cta=index, initialised=False,
            names=machine.names.named(self.program.static_shared),
        )  # fmt: skip
        self.named: dict[int, NamedBarrier] = {}
        self.unisons: dict[tuple[str, int], Unison] = {}
        self.warps: list[Warp] = []
        threads = int(np.prod(machine.launch.block))
        for warp in range(-(-threads // 32)):
            name = f"CTA ({','.join(map(str, index))}) warp {warp}"
            exists = lanes_of((1 << min(32, threads - 32 * warp)) - 1)
            agent = machine.checker.new_warp(name, index, warp, exists, cluster.index)
            self.warps.append(Warp(self, warp, agent))
        warps = len(self.warps)
        self.free_registers = REGISTER_FILE - warps * 32 * machine.launch_registers
        self.alive = True

    def named_barrier(self, index: int) -> NamedBarrier:
        """The named barrier of that number."""
        found = self.named.get(index)
        if found is None:
            found = self.named[index] = NamedBarrier(index)
        return found

    def unison(self, rule: str, warp: Warp) -> Unison:
        """What the warpgroup of ``warp`` executes alike, by the rule that says so."""
        group = warp.index // WARPS
        found = self.unisons.get((rule, group))
        if found is None:
            found = self.unisons[rule, group] = Unison(rule, self.warpgroup(warp))
        return found

    def warpgroup(self, warp: Warp) -> list[Warp]:
        """The four warps, from a multiple of four on, that ``warp`` is one of."""
        first = warp.index // WARPS * WARPS
        return self.warps[first : first + WARPS]

    def barrier_name(self, memory: Memory, offset: int) -> str:
        """What reports call the mbarrier at an offset."""
        static = self.program.static_shared
        if offset >= static:
            return self.machine.names.barrier(memory.rank, offset - static)
        name = self.program.variable_at("shared", SHARED_BASE + offset)
        return f"{name} of cluster rank {memory.rank}" if memory.rank else name

    @property
    def live_threads(self) -> int:
        """Threads in warps that have not exited: what a barrier without a count waits for."""
        return 32 * sum(1 for warp in self.warps if warp.live)

    def lanes_exited(self, warp: Warp) -> None:
        """Called when lanes of a warp exit: nobody waits for them any more."""
        for barrier in self.named.values():
            barrier.lanes_exited(warp)

    def warp_exited(self, warp: Warp) -> None:
        """Called when a warp's last lane exits."""
        self.machine.exited(warp)
        for barrier in self.named.values():
            if barrier.everyone and barrier.arrived:
                barrier.threads = self.live_threads
                barrier.complete_if_due()
        self.cluster.complete_if_due()
        if not any(w.live for w in self.warps):
            self.alive = False
            self.machine.cta_done(self)


class Machine:
    """Runs one launch of one program under one policy.

    Attributes:
        checker: receives every access and every ordering; names the hazards.
        version: counts changes that a waiting warp could see.
        executed: warp instructions so far.
    """

    def __init__(
        self,
        program: Program,
        launch: "Launch",
        policy: Policy,
        checker: Any,
        *,
        limit: int = 20_000_000,
        resident: int = 132,
        names: Names | None = None,
        recorder: Any = None,
        until_hazard: bool = False,
    ) -> None:
        self.program = program
        self.launch = launch
        self.policy = policy
        self.checker = checker
        self.limit = limit
        self.resident = resident
        self.recorder = recorder
        self.until_hazard = until_hazard
        self.names = names or Names()
        self.version = 0
        self.executed = 0
        self.copies_done = 0
        self.runnable: list[Fragment] = []
        self.blocked: list[Fragment] = []
        self.in_flight: list[Copy] = []
        self.clusters: list[Cluster] = []
        self.tensor_maps: dict[bytes, Any] = {}
        self.deadlock: Any = None
        self.stuck: list[Fragment] = []
        self.launch_registers = registers_at_launch(program, launch)
        self.globals = AddressSpace()
        for name, base, data in launch.ranges:
            self._map(name, "global", base, data)
        self._map_module_variables()
        parameters = np.frombuffer(launch.parameters, np.uint8).copy()
        self.parameters = Memory("parameters", "param", PARAMETER_WINDOW, parameters)
        self._waiting_clusters = self._cluster_indices()
        self._resident = 0
        self._checked = -1

    # -- setting up ----------------------------------------------------------------------

    def _map(self, name: str, space: str, base: int, data: Any) -> Memory:
        memory = Memory(name, space, base, data)
        memory.region = self.checker.new_region(name, space, len(data), cta=None, initialised=True)
        self.globals.add(memory)
        return memory

    def _map_module_variables(self) -> None:
        from hopwell.emulator.initial import initial_bytes

        for variable in self.program.module.variables:
            place = self.program.symbols.get(variable.name)
            if place is not None and place.space in ("const", "global") and place.size:
                data = initial_bytes(variable, self.program.symbols)
                base = place.address + (CONSTANT_WINDOW if place.space == "const" else 0)
                self._map(variable.name, place.space, base, data)

    def _cluster_indices(self) -> Iterator[Index]:
        counts = [g // c for g, c in zip(self.launch.grid, self.launch.cluster, strict=True)]
        for z, y, x in itertools.product(*(range(n) for n in reversed(counts))):
            yield x, y, z

    def _start_clusters(self) -> bool:
        """Make as many CTAs resident as fit; whether any was started."""
        shape = self.launch.cluster
        size = int(np.prod(shape))
        started = False
        while self._resident + size <= max(self.resident, size):
            where = next(self._waiting_clusters, None)
            if where is None:
                break
            cluster = Cluster(where)
            for rank, (z, y, x) in enumerate(
                itertools.product(*(range(n) for n in reversed(shape)))
            ):
                index = tuple(w * n + i for w, n, i in zip(where, shape, (x, y, z), strict=True))
                cta = Cta(self, index, rank, cluster)  # type: ignore[arg-type]
                cta.residence = self._resident % self.resident
                cluster.ctas.append(cta)
                self._resident += 1
            self.clusters.append(cluster)
            for cta in cluster.ctas:
                self.runnable += [warp.fragment for warp in cta.warps]
            started = True
        return started

    # -- running -------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole grid; hazards and a deadlock, if any, are the checker's to tell."""
        with np.errstate(all="ignore"):
            self._start_clusters()
            while self._turn():
                if self.until_hazard and self.checker.groups:
                    return
            self._finish()

    def _turn(self) -> bool:
        """One decision of the policy; False when nothing more can happen."""
        if self._checked != self.version:
            self._wake()
        if self.in_flight and self.policy.lands_now():
            self._land(self.policy.choose(self.in_flight))
            return True
        ready = [fragment for fragment in self.runnable if not fragment.parked]
        if not ready:
            return self._quiet()
        chosen = self.policy.next(ready, lambda fragment: fragment.warp.index)
        self._run(chosen, self.policy.quantum(chosen.warp.index))
        return True

    def _wake(self) -> None:
        self._checked = self.version
        still = []
        for fragment in self.blocked:
            assert fragment.waiting is not None
            if fragment.waiting.ready():
                fragment.waiting = None
                self.runnable.append(fragment)
            else:
                still.append(fragment)
        self.blocked = still
        for fragment in self.runnable:
            fragment.parked = False

    def _quiet(self) -> bool:
        """Nobody can run: let a copy land, a wait give up, a poll look again, a CTA start."""
        if self.in_flight:
            self._land(self.policy.choose(self.in_flight))
            return True
        for fragment in self.blocked:
            waiting = fragment.waiting
            if waiting is None or not waiting.may_time_out:
                continue
            # A wait that found the same state when it last gave up would do so for ever.
            state = self._state(fragment)
            if state != fragment.gave_up:
                fragment.gave_up, fragment.timed_out, fragment.waiting = state, True, None
                self.blocked.remove(fragment)
                self.runnable.append(fragment)
                return True
        for fragment in self.runnable:
            if not fragment.parked or fragment in self.stuck:
                continue
            state = self._state(fragment)
            if state == fragment.snapshot:
                self.stuck.append(fragment)
                continue
            fragment.snapshot, fragment.parked, fragment.spins = state, False, 0
            return True
        if self._part_waiting() or self._start_clusters():
            self.stuck.clear()
            return True
        if self.runnable or self.blocked:
            self.deadlock = self._explain()
        return False

    def _part_waiting(self) -> bool:
        """Let lanes go on that wait for lanes of their warp which nothing else can free.

        Threads make progress one by one from sm_70 on (CUDA C++ Programming Guide, "Independent
        Thread Scheduling"): a lane that took a lock does not wait for those that still want it.
        """
        for fragment in (*self.runnable, *self.blocked):
            if fragment.warp.part(fragment):
                self.version += 1
                return True
        return False

    def _explain(self) -> Any:
        for cluster in self.clusters:
            for cta in cluster.ctas:
                for barrier in cta.named.values():
                    for warp, part in barrier.parts.items():
                        barrier.report_part(warp, part)
        return explain_deadlock(self)

    def _state(self, fragment: Fragment) -> tuple[Any, ...]:
        banks = fragment.warp.banks.values()
        return (fragment.pc, self.version, hash(tuple(bank.tobytes() for bank in banks)))

    def _run(self, fragment: Fragment, quantum: int) -> None:
        warp = fragment.warp
        if not warp.views:
            warp.allocate()
        warp.fragment = fragment
        steps, ops = self.program.steps, self.program.ops
        recorder = self.recorder
        pc = fragment.pc
        count = 0
        try:
            for count in range(quantum):  # noqa: B007  read after the loop
                pc = fragment.pc
                if pc == fragment.stop:
                    warp.reconverge(fragment)
                    continue
                warp.op = ops[pc]
                fragment.pc = pc + 1
                if recorder is not None:
                    recorder.instruction(warp, pc)
                steps[pc](fragment)
        except Blocked as blocked:
            fragment.pc, fragment.waiting = pc, blocked.condition
            if recorder is not None:
                recorder.blocked(warp, blocked.condition)
            self.runnable.remove(fragment)
            self.blocked.append(fragment)
            self._checked = -1
        except Retired:
            self.runnable.remove(fragment)
        except Yield:
            pass
        warp.executed += count + 1
        self.executed += count + 1
        if warp.executed > self.limit:
            self.checker.report(
                "unbounded-loop", warp.agent, fragment.lanes, warp.op,
                missing=f"{warp.name} still runs after {warp.executed} instructions",
                instructions=warp.executed,
            )  # fmt: skip
            self._kill(warp)

    def _kill(self, warp: Warp) -> None:
        for fragment in warp.fragments:
            self.forget(fragment)
        warp.fragments.clear()
        warp.live = 0
        warp.cta.warp_exited(warp)

    def forget(self, fragment: Fragment) -> None:
        """Take a fragment off both lists."""
        for queue in (self.runnable, self.blocked):
            if fragment in queue:
                queue.remove(fragment)

    def turn_back(self, fragment: Fragment) -> None:
        """A loop's backward branch: a fragment that only polls lets the others run."""
        if fragment.spin_version != self.version:
            fragment.spin_version, fragment.spins = self.version, 0
            return
        fragment.spins += 1
        if fragment.spins >= _SPINS:
            fragment.parked = True
            raise Yield

    def signalled(self, warp: Warp) -> None:
        """A warp has let others go on; the policy may stop it there."""
        if self.policy.stops_after_signal(warp.index):
            raise Yield

    # -- asynchronous work ---------------------------------------------------------------

    def issue(self, copy: Copy) -> None:
        """Start a copy that completes on its own."""
        copy.started = self.executed
        self.version += 1
        if copy.barrier is not None:
            copy.issued_phase = copy.barrier.phase
            copy.barrier.in_flight += 1
            copy.barrier.claim(copy)
        self.in_flight.append(copy)
        if self.recorder is not None:
            self.recorder.issue(copy)
        if self.policy.lands_at_issue():
            self._land(copy)

    def _land(self, copy: Copy) -> None:
        self.in_flight.remove(copy)
        self.complete(copy)

    def land(self, copy: Copy) -> None:
        """Let a copy that somebody waits for complete now."""
        if not copy.landed:
            self._land(copy)

    def complete(self, copy: Copy) -> None:
        """Write the copy's destination and tell its barrier."""
        self.version += 1
        self.copies_done += 1
        gone = copy.destination is not None and not copy.destination.alive
        if gone and copy.destination is not copy.warp.cta:
            self.checker.report(
                "peer-cta-gone",
                copy.warp.agent,
                copy.lanes,
                copy.op,
                destination=str(copy.destination and copy.destination.index),
            )
        copy.land()
        self.checker.landed(copy.handle)
        if self.recorder is not None:
            self.recorder.copy(copy)
        barrier = copy.barrier
        if barrier is None:
            return
        barrier.in_flight -= 1
        if barrier.phase > copy.issued_phase and not gone:
            self.checker.report(
                barrier.shortage,
                copy.warp.agent,
                copy.lanes,
                copy.op,
                first=barrier.armed_by,
                missing=f"phase {copy.issued_phase} of {barrier.name}, in which the copy was "
                "issued, completed before its bytes",
                barrier=barrier.name,
                phase=copy.issued_phase,
                bytes=copy.bytes,
            )
        self.checker.completes(copy.handle, barrier.column, barrier.phase + 1)
        barrier.bytes -= copy.bytes
        self.advance(barrier)

    def advance(self, barrier: Mbarrier) -> None:
        """Complete the barrier's phase if it is due."""
        self.version += 1
        if barrier.complete_if_due(Clock.single):
            barrier.history.append((barrier.phase, self.executed))
            if self.recorder is not None:
                self.recorder.phase(barrier)

    # -- ending --------------------------------------------------------------------------

    def exited(self, warp: Warp) -> None:
        """A warp's last lane has exited."""
        self.version += 1
        if self.recorder is not None:
            self.recorder.exited(warp)
        warp.release()

    def cta_done(self, cta: Cta) -> None:
        """A CTA's last warp has exited: what it leaves behind is checked, the next one starts."""
        for unison in cta.unisons.values():
            unison.finish()
        for barrier in cta.shared.barriers.values():
            check_at_exit(barrier, cta, self.checker)
        self._resident -= 1
        if not any(other.alive for other in cta.cluster.ctas):
            # What still reads or writes its memory holds it; grids may have millions of CTAs.
            self.clusters.remove(cta.cluster)
            for gone in cta.cluster.ctas:
                self.checker.forget(gone.index)
        self._start_clusters()

    def _finish(self) -> None:
        for copy in list(self.in_flight):
            self._land(copy)
        if self.recorder is not None:
            self.recorder.finish()


def registers_at_launch(program: Program, launch: "Launch") -> int:
    """Registers per thread when the kernel starts.

    The cubin knows; without it, what ``.maxnreg`` says or the most that the block's threads can
    share (CUDA's limit of 255, in steps of 8).
    """
    if launch.registers is not None:
        return int(launch.registers)
    written = program.directive("maxnreg")
    if written is not None:
        return written[0]
    threads = int(np.prod(launch.block))
    blocks = (program.directive("minnctapersm") or (1,))[0]
    return max(24, min(255, REGISTER_FILE // (threads * max(blocks, 1)) // 8 * 8))


__all__ = [
    "CONSTANT_WINDOW",
    "GLOBAL_WINDOW",
    "NOWHERE",
    "Cluster",
    "Cta",
    "Machine",
    "registers_at_launch",
]

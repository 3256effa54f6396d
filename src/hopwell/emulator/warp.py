"""A warp: its registers, and its lanes in fragments that run apart until they meet again."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.conditions import Blocked, Condition, LanesMeet, Retired
from hopwell.emulator.decode import BANKS, VIEWS, DecodedOp, bank_of
from hopwell.emulator.hazards.clocks import Clock
from hopwell.emulator.lanes import EMPTY, FULL_MASK, Lanes, lanes_of
from hopwell.emulator.special import special_value
from hopwell.emulator.types import TYPES

if TYPE_CHECKING:
    from hopwell.emulator.instructions.wgmma import WgmmaState
    from hopwell.emulator.machine import Cta

NOWHERE = -2
"""A reconvergence position that no fragment reaches."""


@dataclass(eq=False)
class Join:
    """Where diverged lanes meet: they go on together once all that still live have arrived."""

    pc: int
    expected: int
    outer: "Join | None"
    arrived: int = 0


@dataclass(eq=False)
class Fragment:
    """Lanes of a warp that run together.

    Attributes:
        pc: the next instruction.
        join: where they meet the lanes they parted from; None for the whole warp.
        waiting: what blocks them.
        token: what a blocked instruction remembers for when it is performed again.
        timed_out: whether a wait that may give up has done so.
        gave_up: its state when it last did.
        polled: what its last unsuccessful test was about.
        spins, spin_version: turns of a loop since the machine's version last changed.
        parked: whether it only polls, so that the others run first.
        snapshot: its state when it was last let look again.
    """

    warp: "Warp"
    lanes: Lanes
    pc: int = 0
    join: Join | None = None
    waiting: Condition | None = None
    token: Any = None
    timed_out: bool = False
    gave_up: tuple[Any, ...] = ()
    polled: Condition | None = None
    spins: int = 0
    spin_version: int = -1
    parked: bool = False
    snapshot: tuple[Any, ...] = ()

    @property
    def stop(self) -> int:
        """The position where the fragment hands its lanes over."""
        return self.join.pc if self.join is not None else NOWHERE


@dataclass(eq=False)
class BulkGroups:
    """Bulk copies of one lane that complete in groups (``cp.async.bulk.commit_group``)."""

    open: list[Any] = field(default_factory=list)
    groups: deque[tuple[int, list[Any]]] = field(default_factory=deque)
    unread: deque[tuple[int, list[Any]]] = field(default_factory=deque)
    committed: int = 0


class Warp:
    """32 lanes with their registers.

    Attributes:
        views: for each entry of ``decode.VIEWS``, the rows of its bank in that type.
        agent: the checker's number for this warp.
        live: mask of lanes that have not exited.
        registers: registers per thread that the warp holds, as ``setmaxnreg`` counts them.
    """

    def __init__(self, cta: "Cta", index: int, agent: int) -> None:
        self.cta = cta
        self.index = index
        self.agent = agent
        machine = cta.machine
        self.machine = machine
        self.checker = machine.checker
        threads = int(np.prod(machine.launch.block))
        count = min(32, threads - 32 * index)
        self.live = (1 << count) - 1
        linear = np.arange(32, dtype=np.uint32) + 32 * index
        width, height, _ = machine.launch.block
        self.thread_index = (
            linear % width,
            linear // width % height,
            linear // (width * height),
        )
        self.views: list[list[NDArray[Any]]] = []
        self.banks: dict[str, NDArray[Any]] = {}
        self.carry = np.zeros(32, bool)
        program = cta.program
        self.undefined = {s: FULL_MASK * (s in program.suspects) for s in program.tainted}
        self.fragments = [Fragment(self, lanes_of(self.live))]
        self.fragment = self.fragments[0]
        self.op: DecodedOp = cta.program.ops[0]
        self.executed = 0
        self.local: NDArray[np.uint8] | None = None
        self.wgmma: WgmmaState | None = None
        self.bulk: dict[int, BulkGroups] = {}
        self.copies: dict[int, BulkGroups] = {}
        self.registers = machine.launch_registers
        self.cluster_round = 0
        self.syncs: dict[int, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"CTA {self.cta.index} warp {self.index}"

    @property
    def name(self) -> str:
        """As reports call it."""
        return f"CTA ({','.join(map(str, self.cta.index))}) warp {self.index}"

    # -- registers -----------------------------------------------------------------------

    def allocate(self) -> None:
        """Make the register banks; done when the warp first runs, as many may never overlap."""
        slots = self.cta.program.slots
        for bank in BANKS:
            dtype = TYPES[bank].dtype
            self.banks[bank] = np.zeros((slots.count[bank], 32), dtype)
            if bank != "pred" and bank != "b128":
                # Unwritten registers hold no useful number, so that a read of one shows.
                self.banks[bank].view(np.uint8)[...] = 0xCB
        self.views = [
            list(self.banks[bank_of(view)].view(TYPES[view].dtype))
            if view != "b128"
            else list(self.banks[view])
            for view in VIEWS
        ]
        for (bank, raw), slot in slots.constants.items():
            if bank == "b128":
                self.banks[bank][slot.index] = (raw & (1 << 64) - 1, raw >> 64)
            else:
                self.banks[bank][slot.index] = raw
        for name, slot in slots.specials.items():
            self.banks[slot.bank][slot.index] = special_value(name, self)
        if self.cta.program.local_bytes:
            self.local = np.full((32, self.cta.program.local_bytes), 0xCB, np.uint8)

    def release(self) -> None:
        """Give the registers back: the warp has exited."""
        self.views, self.banks, self.local = [], {}, None

    def learn(self, lane: int, kind: str, time: int) -> None:
        """One lane knows that its asynchronous groups of a kind are complete up to ``time``."""
        column = self.checker.column(kind, (self.agent, lane))
        self.checker.acquire(self.agent, lanes_of(1 << lane), Clock.single(column, time))

    def learn_all(self, kind: str, key: object, time: int) -> None:
        """All lanes know that a column has reached ``time``."""
        column = self.checker.column(kind, key)
        self.checker.acquire(self.agent, lanes_of(self.live), Clock.single(column, time))

    def dynamic(self, name: str) -> int:
        """The value of a special register that changes, such as %clock64."""
        cycles = self.machine.executed + self.executed
        if name in ("%clock_hi", "%globaltimer_hi"):
            return cycles >> 32
        if name in ("%clock", "%globaltimer_lo"):
            return cycles & 0xFFFF_FFFF
        return cycles

    # -- divergence ----------------------------------------------------------------------

    def diverge(
        self, fragment: Fragment, taken: Sequence[tuple[Lanes, int]], op: DecodedOp
    ) -> None:
        """Part lanes that jump, each set to its position, from the rest, which fall through."""
        rest = lanes_of(fragment.lanes.bits & ~sum(lanes.bits for lanes, _ in taken))
        join = Join(op.reconverge, fragment.lanes.bits, fragment.join)
        sides = [*taken, *([(rest, op.pc + 1)] if rest.count else [])]
        waiting = [side for side in sides if side[1] != join.pc]
        if not waiting:
            fragment.pc = join.pc
            return
        join.arrived = sum(lanes.bits for lanes, pc in sides if pc == join.pc)
        if self.machine.policy.flip():
            waiting.reverse()
        fragment.join = join
        fragment.lanes, fragment.pc = waiting[0]
        for lanes, pc in waiting[1:]:
            other = Fragment(self, lanes, pc, join)
            self.fragments.append(other)
            self.machine.runnable.append(other)

    def reconverge(self, fragment: Fragment) -> None:
        """Lanes of ``fragment`` have reached their join; raises Retired unless all have."""
        join = fragment.join
        assert join is not None
        join.arrived |= fragment.lanes.bits
        if join.arrived != join.expected:
            self.drop(fragment)
            raise Retired
        fragment.lanes, fragment.join = lanes_of(join.arrived), join.outer

    def part(self, fragment: Fragment) -> bool:
        """Let the lanes that wait for ``fragment`` at a join go on without it; whether any did."""
        join = fragment.join
        while join is not None and not join.arrived:
            join = join.outer
        if join is None:
            return False
        passed, pc, bits = [], join.pc, 0
        while join is not None and join.pc == pc:  # of a loop, one for each turn that parted lanes
            passed.append(join)
            bits |= join.arrived
            join = join.outer
        for left in passed:
            left.expected &= ~bits
            left.arrived = 0
        ahead = Fragment(self, lanes_of(bits), pc, join)
        self.fragments.append(ahead)
        self.machine.runnable.append(ahead)
        return True

    def drop(self, fragment: Fragment) -> None:
        """Forget a fragment whose lanes went elsewhere."""
        fragment.lanes = EMPTY
        self.fragments.remove(fragment)

    def leave(self, fragment: Fragment, lanes: Lanes) -> None:
        """``lanes`` of ``fragment`` exit; raises Retired when none of it goes on."""
        self.live &= ~lanes.bits
        self.checker.exit(self.agent, lanes)
        rest = fragment.lanes.bits & ~lanes.bits
        join = fragment.join
        above = join
        while above is not None:
            above.expected &= ~lanes.bits
            above = above.outer
        if rest:
            fragment.lanes = lanes_of(rest)
        else:
            self.drop(fragment)
            while join is not None and not join.expected:
                join = join.outer
            if join is not None and join.arrived == join.expected:
                other = Fragment(self, lanes_of(join.arrived), join.pc, join.outer)
                self.fragments.append(other)
                self.machine.runnable.append(other)
        for mask, (round_, arrived) in self.syncs.items():
            if arrived and not mask & self.live & ~arrived:
                self.checker.warp_sync(self.agent, lanes_of(arrived & self.live))
                self.syncs[mask] = round_ + 1, 0
        self.cta.lanes_exited(self)
        if not self.live:
            self.cta.warp_exited(self)
        if not rest:
            raise Retired

    # -- lanes that have to meet ---------------------------------------------------------

    def gather(self, lanes: Lanes, mask: int) -> Lanes | None:
        """Lanes of a ``.sync`` instruction, merged with those that wait at the same place.

        Returns the lanes to perform it for, or raises Blocked until all of ``mask`` have come.
        Lanes that exited are not waited for.
        """
        needed = mask & self.live
        if needed & ~lanes.bits == 0:
            return lanes
        fragment = self.fragment
        for other in list(self.fragments):
            same = other is not fragment and other.pc == self.op.pc and other.join is fragment.join
            if same and isinstance(other.waiting, LanesMeet):
                fragment.lanes = lanes_of(fragment.lanes.bits | other.lanes.bits)
                lanes = lanes_of(lanes.bits | other.lanes.bits)
                self.machine.forget(other)
                self.drop(other)
        if needed & ~lanes.bits == 0:
            return lanes
        raise Blocked(LanesMeet(self, mask, self.op.pc))

    def meets(self, bits: int, pc: int) -> bool:
        """Whether all of ``bits`` that live wait for one another at ``pc``."""
        waiting = 0
        for fragment in self.fragments:
            if isinstance(fragment.waiting, LanesMeet) and fragment.waiting.pc == pc:
                waiting |= fragment.lanes.bits
        return bits & self.live & ~waiting == 0

    def arrive(self, lanes: Lanes, mask: int) -> int | None:
        """Lanes arrive at ``bar.warp.sync``, wherever it stands; the round they wait for.

        None when they completed the round.
        """
        round_, arrived = self.syncs.get(mask, (0, 0))
        arrived |= lanes.bits
        if mask & self.live & ~arrived:
            self.syncs[mask] = round_, arrived
            return round_
        self.checker.warp_sync(self.agent, lanes_of(arrived))
        self.syncs[mask] = round_ + 1, 0
        self.machine.version += 1
        return None

"""Vector clocks: what one agent knows to have happened before its next access.

A clock maps columns to times. A warp is a column (its id, a multiple of 64): knowing ``(w, t)``
means that every access of every lane of warp w stamped t or less happened before. ``w + 1 + lane``
is the column of one lane alone. Negative columns count completions: phases of an mbarrier, bulk
groups, wgmma groups.

Every clock carries two views. ``general`` is base causality order (PTX ISA 8.9.5). ``fenced``
holds what is also ordered by a proxy fence on the way: a fence adds to it all that ``general``
knows at that moment. Only the warp columns and the columns of copies in the generic proxy
(cp.async) matter there: the completion of a bulk copy or of a wgmma carries its own fence
(PTX ISA 9.7.9.25.2).

A third, ``sc``, holds what the ``fence.sc`` covered that communication leads here from, with or
without acquiring it: the next such fence comes after them in Fence-SC order and learns it
(PTX ISA 8.9.4). Fences of gpu and system scope count.
"""

from __future__ import annotations

#: Columns of warps are multiples of this, so that a warp's 32 lanes have columns of their own.
WARP_STRIDE = 64

Times = dict[int, int]


def merge(into: Times, other: Times) -> None:
    """Raise every time of ``into`` to that of ``other``."""
    if not into:
        into.update(other)
        return
    get = into.get
    for column, time in other.items():
        if get(column, -1) < time:
            into[column] = time


class Clock:
    """What a release publishes and an acquire learns.

    A clock that the checker returned is shared: join it into one of your own, never the reverse.
    """

    __slots__ = ("fenced", "general", "sc")

    def __init__(
        self, general: Times | None = None, fenced: Times | None = None, sc: Times | None = None
    ) -> None:
        self.general: Times = {} if general is None else general
        self.fenced: Times = {} if fenced is None else fenced
        self.sc: Times = {} if sc is None else sc

    @classmethod
    def single(cls, column: int, time: int) -> Clock:
        """A clock that knows one completion only."""
        return cls({column: time})

    def join(self, other: Clock) -> None:
        """Learn what ``other`` knows."""
        merge(self.general, other.general)
        merge(self.fenced, other.fenced)
        merge(self.sc, other.sc)

    def advance(self, column: int, time: int) -> None:
        """Learn that ``column`` has reached ``time``."""
        if self.general.get(column, -1) < time:
            self.general[column] = time

    def copy(self) -> Clock:
        return Clock(dict(self.general), dict(self.fenced), dict(self.sc))

    def __repr__(self) -> str:
        return f"Clock({self.general}, fenced={self.fenced})"


class WarpClock:
    """The clock of a warp's 32 lanes: what all of them know, and what single lanes know besides.

    ``time`` stamps the next access; it moves on when something of the past is published, so a
    stamp tells on which side of a release, of a fence or of a warp barrier an access lies. Lanes
    know their own past always, each other's only up to their last common barrier, which is what
    ``general[column]`` holds: bar.warp.sync orders memory, shuffles and votes do not.
    """

    __slots__ = (
        "alive", "column", "fenced", "general", "own_fenced", "sc", "single", "time", "used",
    )  # fmt: skip

    def __init__(self, column: int, alive: int) -> None:
        self.column = column
        self.alive = alive
        self.time = 1
        self.used = False  # something is stamped ``time``
        self.general: Times = {column: 0}
        self.fenced: Times = {column: 0}
        self.sc: Times = {}
        self.own_fenced = 0  # every lane has fenced its own accesses up to here
        self.single: dict[int, Clock] = {}  # what a lane alone knows

    def stamp(self) -> int:
        """The time of an access, of a wait or of an issue that happens now."""
        self.used = True
        return self.time

    def _tick(self) -> int:
        """Close the present, and return the time through which everything is past."""
        if self.used:
            self.time += 1
            self.used = False
        return self.time - 1

    def _all(self, bits: int) -> bool:
        return bits & self.alive == self.alive

    def frozen(self) -> WarpClock:
        """A copy that stays as this is now."""
        self._tick()
        copy = WarpClock(self.column, self.alive)
        copy.time = self.time
        copy.general, copy.fenced = dict(self.general), dict(self.fenced)
        copy.sc = dict(self.sc)
        copy.own_fenced = self.own_fenced
        copy.single = {lane: clock.copy() for lane, clock in self.single.items()}
        return copy

    def snapshot(self, bits: int) -> Clock:
        """What is known to the lanes in ``bits`` together, their own past included."""
        past = self._tick()
        clock = Clock(dict(self.general), dict(self.fenced), dict(self.sc))
        column = self.column
        if self._all(bits):
            clock.general[column] = past
            clock.fenced[column] = max(clock.fenced[column], self.own_fenced)
            for single in self.single.values():
                clock.join(single)
            return clock
        for lane in lanes_in(bits):
            clock.general[column + 1 + lane] = past
            key = column + 1 + lane
            if clock.fenced.get(key, -1) < self.own_fenced:
                clock.fenced[key] = self.own_fenced
            if lane in self.single:
                clock.join(self.single[lane])
        return clock

    def acquire(self, bits: int, clock: Clock) -> None:
        """The lanes in ``bits`` learn ``clock``."""
        if self._all(bits):
            merge(self.general, clock.general)
            merge(self.fenced, clock.fenced)
            merge(self.sc, clock.sc)
            return
        for lane in lanes_in(bits):
            self._of(lane).join(clock)

    def before_sc(self, lane: int) -> Times:
        """What the fences cover that the next ``fence.sc`` of a lane comes after; a copy."""
        times = dict(self.sc)
        if lane in self.single:
            merge(times, self.single[lane].sc)
        return times

    def fence_sc(self, bits: int) -> None:
        """fence.sc by the lanes in ``bits``: each learns what the fences before it covered."""
        for lane in lanes_in(bits & self.alive):
            known, single = self.snapshot(1 << lane), self._of(lane)
            merge(single.general, known.sc)
            merge(known.general, known.sc)
            merge(single.sc, known.general)

    def _of(self, lane: int) -> Clock:
        single = self.single.get(lane)
        if single is None:
            single = self.single[lane] = Clock()
        return single

    def synchronise(self, bits: int) -> None:
        """A barrier among the lanes in ``bits``: each learns what the others know and did."""
        past = self._tick()
        column = self.column
        if self._all(bits):
            for single in self.single.values():
                merge(self.general, single.general)
                merge(self.fenced, single.fenced)
                merge(self.sc, single.sc)
            self.single.clear()
            self.general[column] = past
            self.fenced[column] = max(self.fenced[column], self.own_fenced)
            return
        together = Clock()
        for lane in lanes_in(bits):
            if lane in self.single:
                together.join(self.single[lane])
            together.advance(column + 1 + lane, past)
            key = column + 1 + lane
            together.fenced[key] = max(together.fenced.get(key, -1), self.own_fenced)
        for lane in lanes_in(bits):
            self.single[lane] = together.copy()

    def proxy_fence(self, bits: int) -> None:
        """fence.proxy.async by the lanes in ``bits``: what each knows is fenced from now on."""
        past = self._tick()
        if self._all(bits):
            merge(self.fenced, self.general)
            self.own_fenced = past
            for single in self.single.values():
                merge(single.fenced, single.general)
            return
        for lane in lanes_in(bits):
            single = self._of(lane)
            merge(single.fenced, self.general)
            merge(single.fenced, single.general)
            single.fenced[self.column + 1 + lane] = past


def lanes_in(bits: int) -> list[int]:
    """The set bits of ``bits``, ascending."""
    return [lane for lane in range(bits.bit_length()) if bits >> lane & 1]

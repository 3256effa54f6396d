"""Release and acquire patterns through memory locations (PTX ISA 8.8 and 8.9.4).

A release pattern is a strong write with release semantics, or a fence followed by a relaxed
strong write; an acquire pattern mirrors it. Both sides must reach each other by scope. Atomics
continue what an earlier release published at the same location; a plain strong store ends it.

``fence.sc`` does what ``fence.acq_rel`` does, and at gpu scope and above it is also ordered after
every such fence from which communication leads to it, through whatever strong accesses and
barriers: the opposite order would close a cycle (8.9.4). The rest of Fence-SC order is decided at
run time, and a program that relied on it would be right only in the schedules that it met.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy import int64
from numpy.typing import NDArray

from hopwell.emulator.hazards.clocks import Clock, Times, WarpClock, merge
from hopwell.emulator.hazards.events import SCOPES, Warp, narrower, scope_reaches
from hopwell.emulator.hazards.shadow import Region
from hopwell.emulator.lanes import Lanes

_RELEASING = frozenset({"release", "acq_rel", "sc"})
_ACQUIRING = frozenset({"acquire", "acq_rel", "sc"})


@dataclass(frozen=True, slots=True)
class _Published:
    """What one warp published at one location, for whom its scope reaches."""

    warp: Warp
    scope: str
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fence that may begin a release pattern: the warp's clock as it was then."""

    bits: int
    scope: str
    clock: WarpClock


class Locations:
    """What releases published at each location, and each warp's fences."""

    def __init__(self) -> None:
        self._at: dict[tuple[Region, int], tuple[_Published, ...]] = {}
        self._fences: dict[int, list[_Fence]] = {}
        self._init_fences: dict[int, Clock] = {}
        self._seen: dict[int, dict[tuple[int, Region, int], tuple[_Published, ...]]] = {}
        #: What the fence.sc's before the strong writes of a location covered.
        self._sc: dict[tuple[Region, int], Times] = {}
        self._any_sc = False

    def fence(self, warp: Warp, lanes: Lanes, semantics: str, scope: str) -> None:
        """A fence of these lanes."""
        if semantics == "sc" and SCOPES[scope] >= SCOPES["gpu"]:
            self._any_sc = True
            warp.clock.fence_sc(lanes.bits)
        if semantics in _ACQUIRING:
            seen = self._seen.get(warp.id, {})
            for key in [key for key in seen if key[0] & lanes.bits == key[0]]:
                for published in seen.pop(key):
                    self._learn(warp, key[0], published, scope)
        if semantics in _RELEASING:
            fences = self._fences.setdefault(warp.id, [])
            # A later fence of the same lanes covers more, if its scope is no smaller.
            fences[:] = [
                old for old in fences if old.bits & ~lanes.bits or SCOPES[old.scope] > SCOPES[scope]
            ]
            fences.append(_Fence(lanes.bits, scope, warp.clock.frozen()))

    def initialisations(self, warp: Warp, clock: Clock) -> None:
        """fence.mbarrier_init: relaxed arrives publish ``clock`` from now on."""
        self._init_fences[warp.id] = clock

    def covered(self, warp: Warp, bits: int, scope: str) -> tuple[Clock, str] | None:
        """What a relaxed write or arrive of these lanes publishes: the past of their last
        fences, and how far it reaches. None where no fence came before."""
        clock, reach = Clock(), scope
        found = warp.id in self._init_fences
        if found:
            clock.join(self._init_fences[warp.id])
        for fence in reversed(self._fences.get(warp.id, [])):
            common = bits & fence.bits
            if common:
                clock.join(fence.clock.snapshot(common))
                reach = narrower(reach, fence.scope)
                bits &= ~common
                found = True
        return (clock, reach) if found else None

    def write(
        self,
        warp: Warp,
        lanes: Lanes,
        region: Region,
        offsets: NDArray[int64],
        semantics: str,
        scope: str,
        replace: bool,
    ) -> None:
        """A strong store (``replace``) or the write of an atomic."""
        if self._any_sc:
            for lane, offset in zip(lanes.index.tolist(), offsets.tolist(), strict=True):
                times = warp.clock.before_sc(lane)
                if not replace:
                    merge(times, self._sc.get((region, offset), {}))
                self._sc[region, offset] = times
        for lane, offset in zip(lanes.index.tolist(), offsets.tolist(), strict=True):
            place = (region, offset)
            if semantics in _RELEASING:
                published = _Published(warp, scope, warp.clock.snapshot(1 << lane))
            else:
                past = self.covered(warp, 1 << lane, scope)
                if past is None:
                    if replace:
                        self._at.pop(place, None)
                    continue
                published = _Published(warp, past[1], past[0])
            earlier = () if replace else self._at.get(place, ())
            self._at[place] = _continued(earlier, published)

    def read(
        self,
        warp: Warp,
        lanes: Lanes,
        region: Region,
        offsets: NDArray[int64],
        semantics: str,
        scope: str,
    ) -> None:
        """A strong load or the read of an atomic."""
        if self._any_sc:
            for lane, offset in zip(lanes.index.tolist(), offsets.tolist(), strict=True):
                times = self._sc.get((region, offset))
                if times:
                    warp.clock.acquire(1 << lane, Clock(sc=times))
        for lane, offset in zip(lanes.index.tolist(), offsets.tolist(), strict=True):
            found = self._at.get((region, offset))
            if found is None:
                continue
            if semantics in _ACQUIRING:
                for published in found:
                    self._learn(warp, 1 << lane, published, scope)
            else:
                reachable = tuple(p for p in found if scope_reaches(scope, warp, p.warp))
                self._seen.setdefault(warp.id, {})[1 << lane, region, offset] = reachable

    def _learn(self, warp: Warp, bits: int, published: _Published, scope: str) -> None:
        if scope_reaches(scope, warp, published.warp) and scope_reaches(
            published.scope, published.warp, warp
        ):
            warp.clock.acquire(bits, published.clock)


def _continued(earlier: tuple[_Published, ...], new: _Published) -> tuple[_Published, ...]:
    """``earlier`` with what one more atomic published; clocks seen before stay as they were."""
    kept = []
    for old in earlier:
        if old.warp is new.warp and old.scope == new.scope:
            clock = old.clock.copy()
            clock.join(new.clock)
            new = _Published(new.warp, new.scope, clock)
        else:
            kept.append(old)
    return (*kept, new)

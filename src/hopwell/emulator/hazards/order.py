"""Whether one access happens before another, to the lane and to the byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.hazards.classify import Conflict
from hopwell.emulator.hazards.clocks import Times
from hopwell.emulator.hazards.events import IN_ORDER_ENGINES, Event
from hopwell.emulator.hazards.shadow import Index, Numbers

Flags = NDArray[np.bool_]


def ordered(first: Event, second: Event) -> bool:
    """The fast answer, True only when all lanes of ``first`` are known to all of ``second``."""
    if first.handle is not None and first.handle is second.handle:
        return True
    return first.all_known(_view(first, second))


def _view(first: Event, second: Event) -> Times:
    """The view that decides: data that the generic proxy wrote and an engine of the async proxy
    reads or overwrites must be known through a proxy fence."""
    if second.handle is None:
        return second.warp.clock.general
    clock = second.handle.clock
    crosses = first.writes and second.asynchronous_proxy and not first.asynchronous_proxy
    return clock.fenced if crosses else clock.general


def _unknown(first: Event, second: Event, fenced: bool) -> Flags:
    """(lanes of ``second`` or 1, lanes of ``first`` or 1): pairs with no order between them."""
    if second.handle is not None:
        times = _view(first, second) if fenced else second.handle.clock.general
        return ~first.known_lanes(times)[None, :]
    clock = second.warp.clock
    unknown = ~np.tile(first.known_lanes(clock.general), (second.lanes.count, 1))
    for position, lane in enumerate(second.lanes.index.tolist()):
        if lane in clock.single:
            unknown[position] &= ~first.known_lanes(clock.single[lane].general)
    if first.handle is None and first.warp is second.warp:
        unknown &= first.lanes.index[None, :] != second.lanes.index[:, None]
    return unknown


def _overlap(first: Event, starts: NDArray[np.int64], grain: int) -> Flags:
    """(cells, lanes of ``first`` or 1): which lanes touched which cells."""
    if first.offsets is None:
        return np.ones((len(starts), 1), bool)
    below = starts[:, None] < first.offsets[None, :] + first.size
    return below & (starts[:, None] + grain > first.offsets[None, :])


def _cells(index: Index, where: NDArray[np.intp]) -> NDArray[np.intp]:
    return where + index.start if isinstance(index, slice) else index[where]


def first_unordered(
    first: Event, second: Event, index: Index, numbers: Numbers, number: int
) -> Conflict | None:
    """The conflict on those cells of ``second`` (``index``) whose entry is ``number``.

    The slow answer, exact to the lane: which lanes of ``first`` touched each cell, and which
    lanes of ``second`` do not know them. None where all pairs are ordered.
    """
    unknown = _unknown(first, second, True)
    if not unknown.any():
        return None
    where = np.flatnonzero(numbers == number)
    grain = second.region.grain
    starts = _cells(index, where) * grain
    lane_of = np.zeros(len(where), np.intp)
    by_lane = second.handle is None and second.offsets is not None
    if by_lane:
        lane_of = where // (second.size // grain)
    bad = _overlap(first, starts, grain) & unknown[lane_of]
    cells, others = np.nonzero(bad)
    if not len(cells):
        return None
    lanes = second.lanes.index[lane_of[cells[0]]] if by_lane else -1
    other = first.lanes.index[others[0]] if first.offsets is not None else -1
    fence_only = False
    if second.handle is not None and _view(first, second) is second.handle.clock.fenced:
        fence_only = not (bad & _unknown(first, second, False)[lane_of]).any()
        if not fence_only:
            later = bad & _unknown(first, second, False)[lane_of]
            cells, others = np.nonzero(later)
            other = first.lanes.index[others[0]] if first.offsets is not None else -1
    touched = starts[cells]
    return Conflict(
        first,
        second,
        int(touched.min()),
        int(touched.max()) + grain,
        len(np.unique(touched)) * grain,
        int(other),
        int(lanes),
        fence_only,
    )


def _covers(second: Event, first: Event) -> bool:
    """Whether all that races with ``first`` would race with ``second``, order apart."""
    if first.writes and not second.writes:
        return False
    if second.scope is None:
        return True
    # Strong accesses meet without order only those that reach each other by scope.
    return first.scope == second.scope and first.warp.cta == second.warp.cta


def supersedes(second: Event, first: Event, index: Index, numbers: Numbers, number: int) -> bool:
    """Whether an access may take the place of an earlier one on all cells whose set is
    ``number``: whatever does not conflict with ``second`` there does not with ``first`` either."""
    if not _covers(second, first):
        return False
    if ordered(first, second):
        return True
    if first.warp is not second.warp:
        return False
    if first.handle is not None or second.handle is not None:
        # wgmma groups of a warp, and bulk groups of a thread, complete in order.
        return (
            first.handle is not None
            and second.handle is not None
            and first.handle.engine == second.handle.engine
            and first.lanes is second.lanes
            and second.handle.engine in IN_ORDER_ENGINES
        )
    assert first.offsets is not None
    assert second.offsets is not None
    if (
        first.size == second.size
        and first.lanes is second.lanes
        and np.array_equal(first.offsets, second.offsets)
    ):
        return True
    where = np.flatnonzero(numbers == number)
    grain = second.region.grain
    starts = np.unique(_cells(index, where) * grain)
    before = _by_lane(first, starts, grain)
    before[:, first.lanes.index[first.known_lanes(second.warp.clock.general)]] = False
    return not (before & ~_by_lane(second, starts, grain)).any()


def _by_lane(event: Event, starts: NDArray[np.int64], grain: int) -> Flags:
    """(cells, 32): which lanes touched which cells."""
    flags = np.zeros((len(starts), 32), bool)
    flags[:, event.lanes.index] = _overlap(event, starts, grain)
    return flags

"""One timing protocol for every benchmark: interleaved rounds, medians, honest spread.

- Contenders take turns within a round, in rotating order, so that a drifting clock or power limit
  meets all of them alike.
- Each call works on the next of several input sets, which together exceed the L2 cache.
- Before a timed lap the device spins for as long as the host needs to enqueue it: events then
  bracket kernels, not the host (spec 0x0D: warm kernel time is not end-to-end time).
- A sample is one lap's time over its number of calls; the statistic is the median of the laps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from math import ceil
from typing import Any, Protocol

Call = Callable[[], object]

#: A lap lasts at least this long, so that the resolution of events (about 0.5 us) vanishes.
LAP_SECONDS = 1e-3
MAX_CALLS_PER_LAP = 16
MIN_ROUNDS = 5
MAX_ROUNDS = 60


@dataclass(frozen=True)
class Statistic:
    """Order statistics of samples, in seconds."""

    median: float
    p10: float
    p90: float
    minimum: float
    maximum: float
    samples: int

    @property
    def spread(self) -> float:
        """(p90 - p10) / median: differences below it are noise."""
        return (self.p90 - self.p10) / self.median if self.median else 0.0

    @classmethod
    def of(cls, samples: Sequence[float]) -> Statistic:
        ordered = sorted(samples)
        return cls(
            median=quantile(ordered, 0.5),
            p10=quantile(ordered, 0.1),
            p90=quantile(ordered, 0.9),
            minimum=ordered[0],
            maximum=ordered[-1],
            samples=len(ordered),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Statistic:
        return cls(**data)


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the neighbours of ``fraction`` in sorted samples."""
    if not ordered:
        raise ValueError("a quantile of nothing")
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True)
class Work:
    """What one contender does: one call per input set, all inside ``scope``."""

    calls: Sequence[Call]
    scope: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)


class Clock(Protocol):
    """Times laps on one device."""

    def hold(self, seconds: float) -> None:
        """Keep the device busy for about this long, without waiting for it."""

    def lap(self, body: Call) -> Callable[[], float]:
        """Run ``body`` between two marks; the result gives its seconds once synchronised."""

    def synchronize(self) -> None: ...


class HostClock:
    """For work that is done when the call returns."""

    def hold(self, seconds: float) -> None:
        return None

    def lap(self, body: Call) -> Callable[[], float]:
        start = time.perf_counter()
        body()
        elapsed = time.perf_counter() - start
        return lambda: elapsed

    def synchronize(self) -> None:
        return None


class CudaClock:
    """CUDA events on the current stream; the hold is a spinning kernel."""

    #: Above any H200 clock, so that a hold is never shorter than asked.
    CYCLES_PER_SECOND = 2.0e9

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda

    def hold(self, seconds: float) -> None:
        self._cuda._sleep(int(seconds * self.CYCLES_PER_SECOND))

    def lap(self, body: Call) -> Callable[[], float]:
        start = self._cuda.Event(enable_timing=True)
        end = self._cuda.Event(enable_timing=True)
        start.record()
        body()
        end.record()
        return lambda: start.elapsed_time(end) * 1e-3

    def synchronize(self) -> None:
        self._cuda.synchronize()


def interleave(
    works: Mapping[str, Work],
    clock: Clock,
    *,
    budget_seconds: float,
    after_round: Call | None = None,
) -> dict[str, list[float]]:
    """Seconds per call of every contender, one sample per round.

    ``after_round`` is called while the round's work is still running on the device (to sample
    clocks and power under load).
    """
    pace = _warm_up(works, clock)
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_seconds / pace.round_seconds)))
    samples: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for index in range(rounds):
        turn = index % len(names)
        laps = {}
        for name in names[turn:] + names[:turn]:
            work = works[name]
            first = index * pace.calls
            with work.scope():
                clock.hold(pace.hold_seconds)
                laps[name] = clock.lap(partial(_run, work, first, pace.calls))
        if after_round is not None:
            after_round()
        clock.synchronize()
        for name, read in laps.items():
            samples[name].append(read() / pace.calls)
    return samples


@dataclass(frozen=True)
class _Pace:
    """How much goes into a round; one pace for all contenders, so that all rest equally."""

    calls: int
    hold_seconds: float
    round_seconds: float


def _warm_up(works: Mapping[str, Work], clock: Clock) -> _Pace:
    device: list[float] = []
    host: list[float] = []
    for work in works.values():
        with work.scope():
            _run(work, 0, max(2, len(work.calls)))
            clock.synchronize()
            start = time.perf_counter()
            read = clock.lap(partial(_run, work, 0, 2))
            host.append((time.perf_counter() - start) / 2)
            clock.synchronize()
            device.append(read() / 2)
    calls = max(1, min(MAX_CALLS_PER_LAP, ceil(LAP_SECONDS / max(min(device), 1e-9))))
    hold = 1.5 * calls * max(host)
    total = sum(seconds * calls + hold for seconds in device)
    return _Pace(calls, hold, max(total, 1e-6))


def _run(work: Work, first: int, count: int) -> None:
    calls = work.calls
    for index in range(first, first + count):
        calls[index % len(calls)]()


def input_sets(bytes_per_set: int, l2_bytes: int) -> int:
    """Input sets to rotate through: together at least three L2 caches, and never one alone."""
    return max(2, ceil(3 * l2_bytes / max(bytes_per_set, 1)))


def host_seconds(call: Call, synchronize: Call, *, repeats: int = 300) -> Statistic:
    """Host time to enqueue one call, in seconds; the device queue is drained every 50 calls."""
    for _ in range(20):
        call()
    synchronize()
    samples = []
    for index in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
        if index % 50 == 49:
            synchronize()
    return Statistic.of(samples)


def latency_seconds(call: Call, synchronize: Call, *, repeats: int = 10) -> Statistic:
    """Seconds from an idle device to a finished call: framework, launch, kernel and all."""
    samples = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        samples.append(time.perf_counter() - start)
    return Statistic.of(samples)

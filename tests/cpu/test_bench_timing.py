"""The timing protocol, with a host clock and contenders whose cost is known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from hopwell.bench.timing import (
    MIN_ROUNDS,
    HostClock,
    Statistic,
    Work,
    host_seconds,
    input_sets,
    interleave,
    latency_seconds,
    quantile,
)


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_samples_are_seconds_per_call() -> None:
    works = {
        "slow": Work([partial(spin, 2e-3)] * 2),
        "fast": Work([partial(spin, 5e-4)] * 3),
    }
    samples = interleave(works, HostClock(), budget_seconds=0.2)
    assert set(samples) == set(works)
    assert len(samples["slow"]) == len(samples["fast"]) >= MIN_ROUNDS
    assert min(samples["slow"]) >= 2e-3
    assert Statistic.of(samples["fast"]).median < Statistic.of(samples["slow"]).median


def test_contenders_take_turns_in_their_scope_over_all_inputs() -> None:
    log: list[str] = []
    inside: list[str] = []

    @contextmanager
    def scope(name: str) -> Iterator[None]:
        inside.append(name)
        yield
        assert inside.pop() == name

    def call(name: str, index: int) -> None:
        assert inside == [name]
        log.append(f"{name}{index}")

    works = {
        name: Work([partial(call, name, i) for i in range(3)], partial(scope, name))
        for name in "ab"
    }
    interleave(works, HostClock(), budget_seconds=0.0, after_round=lambda: log.append("|"))
    rounds = "".join(log).split("|")[1:-1]
    assert len(rounds) == MIN_ROUNDS - 1
    leaders = [text[0] for text in rounds]
    assert set(leaders) == {"a", "b"}
    assert {f"{name}{i}" for name in "ab" for i in range(3)} <= set(log)


def test_order_statistics() -> None:
    statistic = Statistic.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (statistic.median, statistic.minimum, statistic.maximum) == (3.0, 1.0, 5.0)
    assert statistic.p10 == pytest.approx(1.4)
    assert statistic.spread == pytest.approx((4.6 - 1.4) / 3.0)
    assert Statistic.from_json(statistic.to_json()) == statistic
    with pytest.raises(ValueError, match="nothing"):
        quantile([], 0.5)


def test_input_sets_exceed_the_cache() -> None:
    assert input_sets(10, 100) * 10 >= 300
    assert input_sets(10**9, 100) == 2


def test_host_and_latency_clocks() -> None:
    waits: list[int] = []
    enqueue = host_seconds(partial(spin, 1e-4), lambda: waits.append(1), repeats=100)
    assert enqueue.samples == 100
    assert enqueue.minimum >= 1e-4
    assert len(waits) == 3
    whole = latency_seconds(partial(spin, 1e-4), partial(spin, 1e-4), repeats=3)
    assert whole.minimum >= 2e-4

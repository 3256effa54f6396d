"""Schedules: repeatable, and of two kinds."""

from __future__ import annotations

from collections import Counter

import pytest

from hopwell.emulator.policy import Policy

AGENTS = list(range(12))
TURNS = 400


def turns(seed: int) -> list[int]:
    policy = Policy.of(seed)
    return [policy.next(AGENTS, lambda agent: agent) for _ in range(TURNS)]


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_repeats(seed: int) -> None:
    assert turns(seed) == turns(seed)
    assert turns(seed) != turns(seed + 8)


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 6])
def test_an_even_draw_lets_all_go_on(seed: int) -> None:
    counts = Counter(turns(seed))
    assert set(counts) == set(AGENTS)
    assert max(counts.values()) < TURNS / 4
    policy = Policy.of(seed)
    assert not any(policy.stops_after_signal(0) for _ in AGENTS)
    assert any(policy.gives_up() for _ in range(TURNS)) == (seed == 1)


@pytest.mark.parametrize("seed", [3, 5, 7])
def test_under_ranks_some_fall_far_behind(seed: int) -> None:
    counts = Counter(turns(seed))
    assert max(counts.values()) > TURNS / 8
    assert set(counts) < set(AGENTS)


@pytest.mark.parametrize("seed", [3, 5, 7])
def test_who_signals_may_fall_behind_all_others(seed: int) -> None:
    policy = Policy.of(seed)
    for _ in range(TURNS):
        chosen = policy.next(AGENTS, lambda agent: agent)
        if policy.stops_after_signal(chosen):
            others = [agent for agent in AGENTS if agent != chosen]
            assert policy.next([chosen, *others], lambda agent: agent) in others
            break
    else:
        pytest.fail("nobody stopped after a signal")
    assert any(policy.gives_up() for _ in range(TURNS))

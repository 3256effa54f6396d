"""When things happen that hardware leaves open: which warp runs, and when copies land."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, TypeVar

Item = TypeVar("Item")
Agent = TypeVar("Agent")
Landing = Literal["early", "late", "random"]

_QUANTA = (1, 7, 50, 400, 5000)
_RANKED_FROM = 3
_CHANGES = 0.01
"""How often the one that goes on falls behind all others."""
_GIVES_UP = 0.3
_GIVES_UP_LATE = 0.9
"""How often a wait that may give up does so at once: what lands as late as is legal lands after."""
_SIGNALS = 0.15
"""How often one does that has just signalled: where it matters most if it is slow."""


@dataclass
class Policy:
    """Decisions drawn from one seed, so that a run can be repeated.

    Under an odd seed from 3 on, whoever ranks highest goes on until it has to wait, and ranks
    change now and then, above all after a signal: some fall far behind, which an even draw at each
    turn all but rules out. A warpgroup (the first under seed 3, the second under 7, and so on) or a
    warp (the first under 5, the second under 9) goes on only when no other can. Waits that may give
    up then sometimes do; where copies land late they mostly do.

    Attributes:
        seed: what everything is drawn from.
        landing: asynchronous work completes as early as is legal, as late, or at random.
    """

    seed: int
    landing: Landing = "random"
    _random: random.Random = field(init=False, repr=False)
    _ranks: dict[int, float] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @staticmethod
    def of(seed: int, landing: Landing | None = None) -> "Policy":
        """Seed 0 lands early, 1, 5, 9 ... late, the others at random, unless ``landing`` says."""
        if landing is None:
            landing = "early" if seed == 0 else "late" if seed % 4 == 1 else "random"
        return Policy(seed, landing)

    def quantum(self, warp: int) -> int:
        """How many instructions the chosen one may run."""
        if self._lags(warp):
            return 1
        return self._random.choice(_QUANTA)

    def choose(self, items: Sequence[Item]) -> Item:
        """One of several that could go on."""
        return items[int(self._random.random() * len(items))]

    def next(self, agents: Sequence[Agent], who: Callable[[Agent], int]) -> Agent:
        """Which of several goes on; ``who`` names the warp, by its index in the CTA."""
        if not self._ranked:
            return self.choose(agents)
        ranks, draw = self._ranks, self._random.random
        for agent in agents:
            if who(agent) not in ranks:
                ranks[who(agent)] = -inf if self._lags(who(agent)) else draw()
        chosen = max(agents, key=lambda agent: ranks[who(agent)])
        self._fall_behind(who(chosen), _CHANGES)
        return chosen

    def stops_after_signal(self, who: int) -> bool:
        """Whether one that has just let others go on stops there."""
        return self._ranked and self._fall_behind(who, _SIGNALS)

    def gives_up(self) -> bool:
        """Whether a wait that may give up, and has to wait, does so at once."""
        if self.landing == "late":
            return self._random.random() < _GIVES_UP_LATE
        return self._ranked and self._random.random() < _GIVES_UP

    def _lags(self, warp: int) -> bool:
        """Whether a warp goes on only when no other can: it alone, or its warpgroup."""
        number, alone = divmod(self.seed - _RANKED_FROM, 4)
        return self._ranked and number == (warp if alone else warp // 4)

    @property
    def _ranked(self) -> bool:
        return self.seed >= _RANKED_FROM and self.seed % 2 == 1

    def _fall_behind(self, who: int, probability: float) -> bool:
        if self._random.random() >= probability:
            return False
        if not self._lags(who):
            lowest = min((rank for rank in self._ranks.values() if rank > -inf), default=1.0)
            self._ranks[who] = lowest - self._random.random()
        return True

    def flip(self) -> bool:
        """Yes or no."""
        return self._random.random() < 0.5

    def lands_at_issue(self) -> bool:
        """Whether asynchronous work that was just issued is done at once."""
        return self.landing == "early" or (self.landing == "random" and self._random.random() < 0.3)

    def lands_now(self) -> bool:
        """Whether, between two fragments' turns, something in flight lands."""
        return self.landing == "random" and self._random.random() < 0.4

"""When things happen that hardware leaves open: which warp runs, and when copies land."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

Item = TypeVar("Item")
Landing = Literal["early", "late", "random"]

_QUANTA = (1, 7, 50, 400, 5000)


@dataclass
class Policy:
    """Decisions drawn from one seed, so that a run can be repeated.

    Attributes:
        seed: what everything is drawn from.
        landing: asynchronous work completes as early as is legal, as late, or at random.
    """

    seed: int
    landing: Landing = "random"
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @staticmethod
    def of(seed: int, landing: Landing | None = None) -> "Policy":
        """Seed 0 lands early and seed 1 late, the others at random, unless ``landing`` says."""
        return Policy(seed, landing or {0: "early", 1: "late"}.get(seed, "random"))  # type: ignore[arg-type]

    def quantum(self) -> int:
        """How many instructions the chosen fragment may run."""
        return self._random.choice(_QUANTA)

    def choose(self, items: Sequence[Item]) -> Item:
        """One of several that could go on."""
        return items[int(self._random.random() * len(items))]

    def flip(self) -> bool:
        """Yes or no."""
        return self._random.random() < 0.5

    def lands_at_issue(self) -> bool:
        """Whether asynchronous work that was just issued is done at once."""
        return self.landing == "early" or (self.landing == "random" and self._random.random() < 0.3)

    def lands_now(self) -> bool:
        """Whether, between two fragments' turns, something in flight lands."""
        return self.landing == "random" and self._random.random() < 0.4

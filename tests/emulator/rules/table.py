"""Every pair of kernels."""

from __future__ import annotations

from tests.emulator.rules import memory
from tests.emulator.rules.pair import Pair

PAIRS: list[Pair] = [*memory.RACES, *memory.PLACES]

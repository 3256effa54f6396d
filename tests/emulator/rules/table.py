"""Every pair of kernels."""

from __future__ import annotations

from tests.emulator.rules import barriers, copies, memory, warpgroup
from tests.emulator.rules.pair import Pair

PAIRS: list[Pair] = [
    *memory.RACES,
    *memory.PLACES,
    *copies.STORES,
    *copies.LOADS,
    *barriers.MBARRIERS,
    *barriers.NAMED,
    *barriers.DIVERGED,
    *barriers.CONTROL,
    *warpgroup.PRODUCTS,
    *warpgroup.REGISTERS,
]

"""Plans that do not ship but must work: every option of the forward away from its shipped value.

Run as a program it compiles them into the cache, for a GPU machine without the compiler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hopwell.compile import find_or_build
from hopwell.hopper.plan import HopperForwardPlan, forward_plan

_BASE = forward_plan("bfloat16", (128, 128), False)
_CAUSAL = forward_plan("bfloat16", (128, 128), True)
_SMALL = forward_plan("bfloat16", (64, 64), True)


def _with(plan: HopperForwardPlan, **changes: Any) -> HopperForwardPlan:
    """``plan`` changed; enums by their values."""
    return replace(plan, **changes)


VARIANTS: dict[str, HopperForwardPlan] = {
    "serial": _with(_BASE, overlap=False, rescale="before"),
    "serial_causal": _with(_CAUSAL, overlap=False, rescale="before"),
    "serial_free": _with(_CAUSAL, overlap=False, rescale="before", ping_pong=False),
    "serial_one_stage": _with(_CAUSAL, overlap=False, rescale="before", stages=1),
    "rescale_before": _with(_CAUSAL, rescale="before"),
    "no_ping_pong": _with(_CAUSAL, ping_pong=False),
    "p_shared": _with(_CAUSAL, p_source="shared", q_stages=1, output_storage="alias_q"),
    "p_shared_serial": _with(
        _BASE,
        overlap=False,
        rescale="before",
        p_source="shared",
        q_stages=1,
        output_storage="alias_q",
    ),
    "alias_q_two_stages": _with(_CAUSAL, output_storage="alias_q"),
    "own_output_one_q_stage": _with(_CAUSAL, q_stages=1),
    "three_stages": _with(_SMALL, stages=3),
    "lexical_causal": _with(_SMALL, tile_order="lexical"),
    "longest_first_full": _with(_BASE, tile_order="longest_first"),
    "two_warpgroups": _with(_SMALL, tile_m=128, producer_registers=24, consumer_registers=240),
    "one_warpgroup": _with(
        _SMALL, tile_m=64, ping_pong=False, producer_registers=56, consumer_registers=256
    ),
    "narrow_keys": _with(_SMALL, tile_n=16),
    "odd_keys": _with(_BASE, tile_n=176, q_stages=1, output_storage="alias_q"),
}


if __name__ == "__main__":
    for name, plan in VARIANTS.items():
        print(name, find_or_build(plan)[1])

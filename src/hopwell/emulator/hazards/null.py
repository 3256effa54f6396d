"""A checker that checks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopwell.emulator.hazards.clocks import Clock
from hopwell.emulator.hazards.report import HazardGroup

_EMPTY = Clock()


class NullChecker:
    """Stands where hazards are switched off: takes every call of :class:`Checker`.

    Regions and operations are None, ids and columns 0, clocks empty.
    """

    enabled = False
    seed: int | None = None

    @property
    def groups(self) -> list[HazardGroup]:
        """Nothing was found."""
        return []

    def new_warp(self, *args: object, **named: object) -> int:
        return 0

    def column(self, *args: object, **named: object) -> int:
        return 0

    def release(self, *args: object, **named: object) -> Clock:
        return _EMPTY

    def release_relaxed(self, *args: object, **named: object) -> Clock:
        return _EMPTY

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing


def _nothing(*args: object, **named: object) -> None:
    return None

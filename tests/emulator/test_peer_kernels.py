"""Kernels that no one here wrote give the right result in the emulator; hazards are explained.

They run where their packages are installed (``hopwell[peers]``). The record says what ten seeds
gave, for the code that it names.
"""

from __future__ import annotations

import pytest
from tests.emulator import peer_kernels

EACH = pytest.mark.parametrize("name", peer_kernels.CASES)


def needs_packages(name: str) -> None:
    missing = peer_kernels.CASES[name].missing()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (hopwell[peers])")


@EACH
@pytest.mark.timeout(300)
def test_early_and_late(name: str) -> None:
    """Forward and backward against float64, copies landing as early and as late as is legal."""
    needs_packages(name)
    peer_kernels.checked(name, (0, 1))


@EACH
@pytest.mark.emulator_long
@pytest.mark.timeout(3600)
def test_ten_seeds(name: str) -> None:
    needs_packages(name)
    peer_kernels.entry(name)


@EACH
@pytest.mark.timeout(300)
def test_ten_seeds_are_recorded(name: str) -> None:
    needs_packages(name)
    reason = peer_kernels.RECORD.stale(name, peer_kernels.run(name, seeds=()).artifact)
    if reason is not None:
        pytest.skip(f"ten seeds: {reason}")
    entry = peer_kernels.RECORD.entries()[name]
    assert entry["seeds"] >= 10
    assert set(entry["found"]) == peer_kernels.CASES[name].finds
    assert all(error < peer_kernels.TOLERANCE for error in entry["errors"].values())

"""Fixtures of the compile tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.compile.helpers import TINY_KERNEL

from hopwell.compile import key as keys


@pytest.fixture(autouse=True, scope="session")
def _tiny_is_a_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(keys.KERNEL_MODULES, "TinyPlan", TINY_KERNEL)
        yield


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test, below a directory that is the user's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(directory))
    return directory

"""Fixtures of the compile tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test, below a directory that is the user's own."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(directory))
    return directory

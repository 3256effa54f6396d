"""Settings: environment, override, table."""

from __future__ import annotations

import threading
from dataclasses import fields
from pathlib import Path

import pytest

from hopwell.errors import InputError, InputTypeError
from hopwell.settings import Settings, override, settings, settings_table


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPWELL_CACHE", "0")
    monkeypatch.setenv("HOPWELL_CACHE_DIR", str(tmp_path))
    assert settings() == Settings(cache_dir=tmp_path, cache=False)
    monkeypatch.setenv("HOPWELL_CACHE", "")
    assert settings().cache


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOPWELL_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings().cache_dir == tmp_path / "hopwell"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert settings().cache_dir == Path.home() / ".cache" / "hopwell"


def test_no_home_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.delenv("HOPWELL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert settings().cache_dir is None


def test_override_ends_with_its_block_and_stays_in_its_thread(tmp_path: Path) -> None:
    before = settings()
    elsewhere: list[Settings] = []
    with override(cache=False) as outer:
        assert settings() is outer
        with override(cache_dir=str(tmp_path)):
            assert settings() == Settings(cache_dir=tmp_path, cache=False)
        thread = threading.Thread(target=lambda: elsewhere.append(settings()))
        thread.start()
        thread.join()
        assert not settings().cache
    assert settings() == before
    assert elsewhere == [before]


def test_wrong_settings() -> None:
    for variable, text in (
        ("HOPWELL_CACHE", "maybe"),
        ("HOPWELL_CACHE_DIR", "here"),
        ("HOPWELL_CACHE_DIR", "~nobody-of-this-name/cache"),
        ("HOPWELL_CACHE_DIR", "/null\0"),
    ):
        with pytest.raises(InputError, match=variable):
            Settings.from_environment({variable: text})
    with pytest.raises(InputTypeError, match="cache_folder"), override(cache_folder="x"):
        pass
    with pytest.raises(InputTypeError, match="cache"), override(cache=1):
        pass
    for wrong in (3, b"/bytes"):
        with pytest.raises(InputTypeError, match="cache_dir"), override(cache_dir=wrong):
            pass
    with override(cache_dir=None) as homeless:
        assert homeless.cache_dir is None


def test_table_holds_every_setting() -> None:
    rows = settings_table().splitlines()
    assert len(rows) == 2 + len(fields(Settings))
    for entry, row in zip(fields(Settings), rows[2:], strict=True):
        assert row.startswith(f"| `{entry.name}` | `HOPWELL_{entry.name.upper()}` |")

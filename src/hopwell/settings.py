"""Every setting in one place: environment variables, overridden by a context manager.

``settings()`` is what holds now; ``override(...)`` changes it for a block, in this thread or task
only; ``settings_table()`` renders the table of the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hopwell.errors import InputError, InputTypeError

_FLAGS = {"0": False, "false": False, "off": False, "1": True, "true": True, "on": True}


def _flag(variable: str, text: str) -> bool:
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise InputError(
            f"environment variable {variable}",
            expected=f"one of {', '.join(_FLAGS)}",
            actual=repr(text),
            consequence="The setting cannot be read.",
        )
    return value


def _path(variable: str, text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # ~name of nobody, or no home directory
        path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise InputError(
            f"environment variable {variable}",
            expected="an absolute path",
            actual=repr(text),
            consequence="The setting cannot be read: a cache stays where it is, whatever the "
            "working directory.",
        )
    return path


def _user_cache() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: relative values are invalid and ignored.
    if base and Path(base).is_absolute():
        return Path(base) / "hopwell"
    try:
        return Path.home() / ".cache" / "hopwell"
    except RuntimeError:  # no home directory
        return None


def _setting(
    meaning: str, parse: Callable[[str, str], Any], default: Callable[[], Any], shown: str
) -> Any:
    meta = {"meaning": meaning, "parse": parse, "shown": shown}
    return field(default_factory=default, metadata=meta)


@dataclass(frozen=True)
class Settings:
    """What can be set. Field ``name`` is read from the environment variable ``HOPWELL_NAME``."""

    cache_dir: Path | None = _setting(
        "Where compiled kernels are kept: a directory of the user's own, mode 0700; None, where "
        "there is no home directory, is no cache.",
        _path,
        _user_cache,
        "`$XDG_CACHE_HOME/hopwell`, else `~/.cache/hopwell`",
    )
    cache: bool = _setting(
        "Keep compiled kernels on disk; off, each process compiles for itself.",
        _flag,
        lambda: True,
        "1",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read ``HOPWELL_*`` (default: ``os.environ``); empty values count as unset.

        Raises:
            InputError: a variable holds something that its setting cannot take.
        """
        source = os.environ if environment is None else environment
        values = {}
        for entry in fields(cls):
            variable = _variable(entry.name)
            text = source.get(variable, "")
            if text:
                values[entry.name] = entry.metadata["parse"](variable, text)
        return cls(**values)


def _variable(name: str) -> str:
    return f"HOPWELL_{name.upper()}"


_overridden: ContextVar[Settings | None] = ContextVar("hopwell_settings", default=None)


def settings() -> Settings:
    """The settings that hold here: an enclosing :func:`override`, else the environment."""
    return _overridden.get() or Settings.from_environment()


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Change settings for a ``with`` block, in this thread or task only.

    Values are of the field's type (``cache_dir`` also takes a string).

    Raises:
        InputTypeError: an unknown name or a value of a wrong type.
    """
    known = {entry.name for entry in fields(Settings)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise InputTypeError(
            "setting",
            expected=f"one of {sorted(known)}",
            actual=unknown,
            consequence="Nothing was changed.",
        )
    if changes.get("cache_dir") is not None:
        if not isinstance(changes["cache_dir"], (str, Path)):
            raise _wrong_type("cache_dir", "a path", changes["cache_dir"])
        changes["cache_dir"] = _path("HOPWELL_CACHE_DIR", str(changes["cache_dir"]))
    if not isinstance(changes.get("cache", True), bool):
        raise _wrong_type("cache", "a bool", changes["cache"])
    value = replace(settings(), **changes)
    token = _overridden.set(value)
    try:
        yield value
    finally:
        _overridden.reset(token)


def _wrong_type(name: str, expected: str, value: object) -> InputTypeError:
    return InputTypeError(
        f"setting {name}",
        expected=expected,
        actual=type(value).__name__,
        consequence="Nothing was changed.",
    )


def settings_table() -> str:
    """Markdown: every setting, its environment variable, its default and its meaning."""
    rows = ["| setting | environment variable | default | meaning |", "| --- | --- | --- | --- |"]
    for entry in fields(Settings):
        meta = entry.metadata
        rows.append(
            f"| `{entry.name}` | `{_variable(entry.name)}` | {meta['shown']} | {meta['meaning']} |"
        )
    return "\n".join(rows)

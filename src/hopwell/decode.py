"""JSON from a file into a dataclass or named tuple: of the annotated types, or refused."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
#: An annotation that is still to be evaluated; a named tuple wraps its own.
_TEXT = (str, typing.ForwardRef)


def decode(hint: type[T], text: str) -> T:
    """A record from the JSON of its fields; fields that it does not know are left out.

    Raises ValueError on everything else, whatever the text is.
    """
    try:
        value: T = _value(hint, json.loads(text))
    except (TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return value


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        (inner,) = (a for a in arguments if a is not type(None))
        return None if value is None else _value(inner, value)
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in _of(list, value))
    if origin is dict:
        return {key: _value(arguments[1], item) for key, item in _of(dict, value).items()}
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_fields")):
        names = getattr(hint, "_fields", None) or [entry.name for entry in fields(hint)]
        hints = _hints(hint, names)
        known = _of(dict, value).keys() & set(names)
        return hint(**{name: _value(hints[name], value[name]) for name in known})
    if hint is float and type(value) is int:
        return float(value)
    return _of(hint, value)


def _hints(record: Any, names: Sequence[str]) -> dict[str, Any]:
    """Types of a record's fields: as they stand where none is text, which is the quick way."""
    own: dict[str, Any] = record.__annotations__
    if all(name in own and not isinstance(own[name], _TEXT) for name in names):
        return own
    return typing.get_type_hints(record)


def _of(kind: Any, value: Any) -> Any:
    # Exactly: a bool is an int to Python, and not to JSON.
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value

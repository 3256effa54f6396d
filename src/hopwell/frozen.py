"""Immutable records that a new process defines quickly: :func:`record`.

``dataclass(frozen=True)`` writes and compiles seven methods for every class, a millisecond of a
process's first call for each class of any size. Here they are written once, for all classes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["record"]

T = TypeVar("T")


def _init(self: Any, *values: object, **named: object) -> None:
    fields = self.__dataclass_fields__
    given = dict(zip(fields, values, strict=False))
    unknown = len(values) > len(fields) or named.keys() - fields.keys()
    if unknown or given.keys() & named.keys():
        raise TypeError(f"{type(self).__name__}() takes each of {list(fields)} once")
    given |= named
    missing = []
    for name, field in fields.items():
        value = given.get(name, field.default)
        if value is dataclasses.MISSING:
            missing.append(name)
        self.__dict__[name] = value
    if missing:
        raise TypeError(f"{type(self).__name__}() misses {missing}")
    self.__post_init__()


def _refuse(self: object, name: str, *value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"field {name!r} of {type(self).__name__} is frozen")


def _equal(self: object, other: object) -> bool:
    return vars(other) == vars(self) if type(other) is type(self) else NotImplemented


def _hash(self: object) -> int:
    return hash(tuple(vars(self).values()))


def _show(self: object) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
    return f"{type(self).__qualname__}({values})"


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool) -> Any:
        """As ``dataclass(frozen=True)``, for a class of plain fields with a ``__post_init__``."""
        assert frozen  # said for the type checker

        def decorate(cls: type[T]) -> type[T]:
            cls.__init__, cls.__repr__, cls.__eq__, cls.__hash__ = _init, _show, _equal, _hash
            cls.__setattr__ = cls.__delattr__ = _refuse
            return dataclasses.dataclass(init=False, repr=False, eq=False)(cls)

        return decorate

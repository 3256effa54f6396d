"""Hopwell: exact attention for NVIDIA Hopper, and the instruments that prove it.

Names are loaded on first use: importing hopwell imports neither torch nor the kernel compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopwell.api import attention as attention
    from hopwell.api import explain as explain
    from hopwell.dispatch import record_dispatch as record_dispatch
    from hopwell.settings import override as override

_HOME = {
    "attention": "hopwell.api",
    "explain": "hopwell.api",
    "override": "hopwell.settings",
    "record_dispatch": "hopwell.dispatch",
}

__all__ = ["__version__", "attention", "explain", "override", "record_dispatch"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("hopwell")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'hopwell' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

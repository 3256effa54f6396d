"""A machine that runs compiled PTX on a CPU and names every hazard.

:func:`emulate` runs a :class:`Launch`: one that :func:`launch_of` makes of PTX and NumPy arrays,
one that was saved, or one that :mod:`hopwell.emulator.capture` received from a program.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopwell.emulator.api import Report, Run, emulate
    from hopwell.emulator.arguments import launch_of
    from hopwell.emulator.capture.launch import Buffer, Launch
    from hopwell.emulator.names import Names
    from hopwell.emulator.tensor_map import TensorMap

__all__ = ["Buffer", "Launch", "Names", "Report", "Run", "TensorMap", "emulate", "launch_of"]

_HOMES = {
    "Buffer": "capture.launch",
    "Launch": "capture.launch",
    "Names": "names",
    "Report": "api",
    "Run": "api",
    "TensorMap": "tensor_map",
    "emulate": "api",
    "launch_of": "arguments",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

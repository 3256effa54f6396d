"""Running a Python program and receiving every kernel that it launches."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hopwell.emulator.capture import cute, triton
from hopwell.emulator.capture.launch import Launch
from hopwell.errors import CaptureError

OnLaunch = Callable[[Launch], object]

#: The module of each kernel language, and what captures its launches.
_LANGUAGES = {"cutlass": cute.capture, "triton": triton.capture}


@contextmanager
def capture(on_launch: OnLaunch | None = None) -> Iterator[list[Launch]]:
    """Receive the launches of CuTe DSL and of Triton kernels, of those that are installed.

    See :func:`hopwell.emulator.capture.cute.capture`.

    Raises:
        CaptureError: neither is installed, or a launch cannot be captured.
    """
    found = [begin for name, begin in _LANGUAGES.items() if importlib.util.find_spec(name)]
    if not found:
        raise CaptureError(
            "capturing launches",
            expected=f"one of {', '.join(_LANGUAGES)}",
            actual="none that is installed",
            consequence="Nothing was run. A kernel's PTX can be run without them.",
        )
    launches: list[Launch] = []

    def receive(launch: Launch) -> None:
        launches.append(launch)
        if on_launch is not None:
            on_launch(launch)

    with ExitStack() as stack:
        for begin in found:
            stack.enter_context(begin(receive))
        yield launches


def run_script(
    path: str | Path, argv: Sequence[str] = (), on_launch: OnLaunch | None = None
) -> list[Launch]:
    """Run a Python program as ``python path argv...`` would, and receive its launches.

    Raises:
        CaptureError: see :func:`capture`. What the program raises passes through.
    """
    arguments, search = sys.argv, sys.path
    sys.argv = [str(path), *argv]
    sys.path = [str(Path(path).resolve().parent), *search]
    try:
        with capture(on_launch) as launches:
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path = arguments, search
    return launches

"""Every error that Hopwell raises: what was expected, what was found, what would follow.

A caller catches :class:`HopwellError`, or the built-in that each class also derives from.
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

import copyreg
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class HopwellError(Exception):
    """Base class. The message states expected, actual and consequence."""

    def __init__(self, what: str, *, expected: object, actual: object, consequence: str) -> None:
        self.what = what
        self.expected = expected
        self.actual = actual
        self.consequence = consequence
        super().__init__(f"{what}: expected {expected}, got {actual}. {consequence}")

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own reduce replays the formatted message as the only argument, which
        # these constructors refuse: errors must survive a process pool, with their notes.
        return copyreg.__newobj__, (type(self),), {**vars(self), "args": self.args}  # type: ignore[attr-defined]


class InputError(HopwellError, ValueError):
    """An argument has a wrong value, shape, device or stride."""


class InputTypeError(HopwellError, TypeError):
    """An argument has a wrong Python type or dtype."""


class PlanError(HopwellError, ValueError):
    """A plan contradicts itself or the hardware."""


class CompileError(HopwellError, RuntimeError):
    """A plan did not compile, or its artifact is not what the plan demands."""


class CompilerMissing(HopwellError, ImportError):
    """A plan has to be compiled and ``hopwell[compile]`` is not installed."""


class CompileDuringCapture(HopwellError, RuntimeError):
    """A kernel would have been compiled or loaded while a CUDA graph was being captured."""


class UnsafeCache(HopwellError, PermissionError):
    """The cache directory could be written by someone else."""


class UnusableCache(HopwellError, OSError):
    """The cache directory cannot be made or read: compiled kernels are kept nowhere."""


class LaunchError(HopwellError, RuntimeError):
    """The CUDA runtime refused a launch."""


class CaptureError(HopwellError, RuntimeError):
    """A kernel's launch could not be captured, or is not what its arguments say."""


class MeasurementError(HopwellError, RuntimeError):
    """What was about to be measured is wrong, unnamed, or not what the record holds already."""


class GradientUnsupported(HopwellError, NotImplementedError):
    """A gradient was asked for through a backend that has no backward."""


class PtxSyntaxError(HopwellError, ValueError):
    """PTX that is malformed, or a construct that is not known.

    ``file``, ``line`` and ``column`` (from 1) say where, and ``text`` is that line of the PTX.
    """

    def __init__(
        self,
        what: str,
        *,
        expected: object,
        actual: object,
        file: str,
        line: int,
        column: int,
        text: str,
    ) -> None:
        super().__init__(
            f"{file}:{line}:{column}: {what}",
            expected=expected,
            actual=actual,
            consequence="The module was not read.",
        )
        self.file = file
        self.line = line
        self.column = column
        self.text = text
        # Tabs stay tabs, so that the caret stands under its character.
        indent = "".join("\t" if character == "\t" else " " for character in text[: column - 1])
        self.args = (f"{self}\n    {text}\n    {indent}^",)


class PtxNameError(HopwellError, ValueError):
    """A name in PTX that no block around it declares, or that one block declares twice."""


class TensorMapError(HopwellError, ValueError):
    """A tensor map breaks a rule of its format, or describes memory outside its buffer."""


class UnsupportedLayout(HopwellError, NotImplementedError):
    """A matrix or tensor layout that the emulator does not model."""


class Refusal(NamedTuple):
    """One named predicate of the support table that a problem does not satisfy."""

    predicate: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.predicate}: expected {self.expected}, got {self.actual}"


class UnsupportedProblem(HopwellError, NotImplementedError):
    """No backend takes the problem; ``refusals`` names every predicate that refused it."""

    def __init__(self, refusals: Mapping[str, Sequence[Refusal]]) -> None:
        self.refusals = {backend: tuple(rows) for backend, rows in refusals.items()}
        listing = "; ".join(
            f"[{backend}] {row}" for backend, rows in self.refusals.items() for row in rows
        )
        super().__init__(
            "no backend takes this problem",
            expected="at least one backend without a refusal",
            actual=listing,
            consequence='Nothing was computed. Pass fallback="torch" to let PyTorch compute it.',
        )

"""Which backend takes a problem, and if none, which named predicates refused it.

The support table is data: :data:`SUPPORT` is used here, by the command line, by the tests and by
the generated documentation.
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from hopwell.errors import (
    GradientUnsupported,
    HopwellError,
    InputError,
    InputTypeError,
    Refusal,
    UnsupportedProblem,
)
from hopwell.hopper import support as hopper
from hopwell.hopper.plan import HopperForwardPlan
from hopwell.predicate import Predicate
from hopwell.problem import DTYPES, Problem

#: What ``fallback`` may be: raise, or let PyTorch compute on the tensors' own device.
FALLBACKS = ("error", "torch")

_CPU = (
    Predicate("device", "cpu", lambda p: p.device == "cpu", lambda p: p.device),
    Predicate("dtype", " or ".join(DTYPES), lambda p: p.dtype in DTYPES, lambda p: p.dtype),
)

#: Every backend with the predicates that a problem must satisfy, in order of preference.
SUPPORT: Mapping[str, tuple[Predicate, ...]] = {"hopper": hopper.PREDICATES, "cpu": _CPU}

#: What ``backend`` may be.
BACKENDS = ("auto", *SUPPORT)

Refusals = Mapping[str, tuple[Refusal, ...]]


class Choice(NamedTuple):
    """Who computes: a backend of :data:`SUPPORT`, or ``"torch"`` for an allowed fallback.

    ``plan`` is the kernel's plan (None when PyTorch computes); ``fallback`` holds what every
    asked backend refused, None when one of them runs.
    """

    backend: str
    plan: HopperForwardPlan | None = None
    fallback: tuple[Refusal, ...] | None = None


def refusals(problem: Problem, backend: str = "auto") -> Refusals:
    """What each asked backend refuses; an empty tuple means that it takes the problem."""
    asked = SUPPORT if backend == "auto" else {backend: SUPPORT[backend]}
    return {
        name: tuple(r for row in rows if (r := row.refusal(problem)) is not None)
        for name, rows in asked.items()
    }


def check_backend(backend: object, fallback: object) -> None:
    """Raise a typed error unless both are among the known names."""
    for name, value, known in (
        ("backend", backend, BACKENDS),
        ("fallback", fallback, FALLBACKS),
    ):
        if not isinstance(value, str):
            raise InputTypeError(
                name,
                expected=f"one of {', '.join(known)}",
                actual=type(value).__name__,
                consequence="Nothing was computed.",
            )
        if value not in known:
            raise InputError(
                name,
                expected=f"one of {', '.join(known)}",
                actual=repr(value),
                consequence="Nothing was computed.",
            )


def choose(problem: Problem, backend: str = "auto", fallback: str = "error") -> Choice:
    """The first asked backend that takes the problem.

    Raises:
        GradientUnsupported: only the missing backward keeps a kernel from running.
        UnsupportedProblem: none takes it and ``fallback`` is ``"error"``.
    """
    check_backend(backend, fallback)
    refused = refusals(problem, backend)
    for name, rows in refused.items():
        if not rows:
            return Choice(name, hopper.plan_of(problem) if name == "hopper" else None)
    if fallback == "torch":
        return Choice("torch", fallback=tuple(r for rows in refused.values() for r in rows))
    if any([row.predicate for row in rows] == ["gradient"] for rows in refused.values()):
        raise gradient_unsupported()
    raise UnsupportedProblem(refused)


def gradient_unsupported() -> GradientUnsupported:
    """The error of a call that only its gradient keeps from running."""
    return GradientUnsupported(
        "gradient through a GPU kernel",
        expected="inputs that do not require grad, or torch.no_grad()",
        actual="an input that requires grad",
        consequence='Nothing was computed. Pass fallback="torch" for PyTorch\'s gradients.',
    )


class Explanation(NamedTuple):
    """What would run, and what every other asked backend refuses. ``str()`` is for people.

    ``choice`` is None when nothing would; ``error`` is what the call would raise then.
    """

    problem: Problem
    choice: Choice | None
    refusals: Refusals
    error: HopwellError | None = None

    def __str__(self) -> str:
        lines = []
        for name, rows in self.refusals.items():
            if rows:
                lines.append(f"{name}: refuses")
                lines += [f"  {row}" for row in rows]
            elif self.choice is not None and self.choice.backend == name:
                plan = self.choice.plan
                lines.append(f"{name}: runs {plan.name if plan else 'PyTorch'}")
            else:
                lines.append(f"{name}: could run")
        if self.error is not None:
            lines.append(f"nothing runs: this call raises {type(self.error).__name__}")
        elif self.choice is not None and self.choice.backend == "torch":
            lines.append("torch: runs as the allowed fallback")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: problem, backend, plan and the refusals by backend."""
        plan = self.choice.plan if self.choice else None
        return {
            "problem": self.problem.to_json(),
            "backend": self.choice.backend if self.choice else None,
            "plan": plan.to_json() if plan else None,
            "plan_name": plan.name if plan else None,
            "refusals": {
                name: [row._asdict() for row in rows] for name, rows in self.refusals.items()
            },
        }


def explain(problem: Problem, backend: str = "auto", fallback: str = "error") -> Explanation:
    """The plan, or every predicate that refused each asked backend. Runs nothing."""
    check_backend(backend, fallback)
    choice = failure = None
    try:
        choice = choose(problem, backend, fallback)
    except (UnsupportedProblem, GradientUnsupported) as error:
        failure = error
    return Explanation(problem, choice, refusals(problem, backend), failure)


# -- what really ran -------------------------------------------------------------------------


#: ``DispatchRecord.cache`` of a kernel by its source (:attr:`hopwell.compile.Kernel.source`).
CACHE_WORD = {"cache": "hit", "wheel": "wheel", "compiled": "compiled"}


class DispatchRecord(NamedTuple):
    """One executed call. Through the custom op, which always gives both, ``return_lse`` is true.

    ``compile_key``, ``artifact_hash`` and ``kernel_symbol`` are None when no kernel was launched
    (PyTorch computed, or the problem was empty). ``cache`` says where the kernel came from:
    ``"memory"``, ``"hit"`` (disk), ``"wheel"`` or ``"compiled"`` in ``compile_seconds``.
    """

    problem: Problem
    backend: str
    plan: HopperForwardPlan | None = None
    compile_key: str | None = None
    artifact_hash: str | None = None
    kernel_symbol: str | None = None
    cache: str | None = None
    compile_seconds: float | None = None
    fallback: tuple[Refusal, ...] | None = None

    @property
    def plan_name(self) -> str | None:
        return self.plan.name if self.plan else None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, the plan by name and in full."""
        return {
            **self._asdict(),
            "problem": self.problem.to_json(),
            "fallback": self.fallback and [row._asdict() for row in self.fallback],
            "plan": self.plan.to_json() if self.plan else None,
            "plan_name": self.plan_name,
        }


#: Lists that the enclosing ``record_dispatch`` blocks collect into; None costs nothing.
_collectors: ContextVar[tuple[list[DispatchRecord], ...] | None] = ContextVar(
    "hopwell_dispatch_records", default=None
)

#: Whether a record is wanted here: the hot path calls this, and builds a record only then.
recording: Callable[[], object] = _collectors.get


@contextmanager
def record_dispatch() -> Iterator[list[DispatchRecord]]:
    """Collect a record of every call made in this block, in this thread or task.

    Blocks nest: each sees the calls inside it. A thread started inside the block has a context of
    its own and records only when it runs in a copy of this one (``contextvars.copy_context``).
    """
    calls: list[DispatchRecord] = []
    token = _collectors.set((*(_collectors.get() or ()), calls))
    try:
        yield calls
    finally:
        _collectors.reset(token)


def record(entry: DispatchRecord) -> None:
    """Hand a record to every enclosing :func:`record_dispatch` block."""
    for calls in _collectors.get() or ():
        calls.append(entry)

"""``hopwell explain``: which backend takes a problem, and what every other one refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hopwell import dispatch
from hopwell.commands.display import Report, table
from hopwell.hopper.plan import SHORT_DTYPES
from hopwell.problem import Problem

if TYPE_CHECKING:
    from rich.console import Console

#: Short names of element types, as plans and tables use them.
LONG_DTYPES = {short: long for long, short in SHORT_DTYPES.items()}


def report(problem: Problem, backend: str, fallback: str = "error") -> Report:
    """``ok`` when an asked backend takes the problem, or the allowed fallback does.

    ``raises`` is the error that the call would raise, as ``{"type", "message"}``, else None.
    """
    explanation = dispatch.explain(problem, backend, fallback)
    error = explanation.error
    raises = error and {"type": type(error).__name__, "message": str(error)}
    return {"ok": error is None, **explanation.to_json(), "raises": raises}


def verdict(report: Report, backend: str) -> str:
    if report["refusals"][backend]:
        return "refuses"
    return "runs" if report["backend"] == backend else "could run"


def render(report: Report, console: Console) -> None:
    for backend, refusals in report["refusals"].items():
        console.print(Text.assemble((backend, "bold"), f": {verdict(report, backend)}"))
        if refusals:
            rows = [(row["predicate"], row["expected"], row["actual"]) for row in refusals]
            console.print(table("", ("predicate", "expected", "actual"), rows))
    if report["plan_name"]:
        console.print(f"plan: {report['plan_name']}", soft_wrap=True)
    if report["backend"] == "torch":
        console.print("torch: runs as the allowed fallback")
    if report["raises"]:
        console.print(f"Nothing takes this problem: the call raises {report['raises']['type']}.")

"""``hopwell explain``: which backend takes a problem, and what every other one refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hopwell import dispatch
from hopwell.commands.display import Report, table
from hopwell.problem import Problem

if TYPE_CHECKING:
    from rich.console import Console


def report(problem: Problem, backend: str) -> Report:
    """``ok`` when an asked backend takes the problem."""
    explanation = dispatch.explain(problem, backend)
    return {"ok": explanation.choice is not None, **explanation.to_json()}


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
    if not report["ok"]:
        console.print("Nothing takes this problem: the call raises UnsupportedProblem.")

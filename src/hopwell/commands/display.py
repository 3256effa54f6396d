"""How the command line shows things: one look for every table, and one way out for every report.

A command builds a *report*, a JSON-ready dictionary whose ``ok`` says whether what it checks holds.
The same report is printed with ``--json`` or rendered for a person, so the two cannot disagree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from hopwell.errors import HopwellError
from hopwell.hopper.plan import SHORT_DTYPES

#: There is no release to install from: the extras come from a clone.
INSTALL_COMPILER = "pip install '.[compile]'"

Report = dict[str, Any]
Render = Callable[[Report, Console], None]

#: In fewer, tables break words and lose columns; a narrow terminal wraps lines by itself.
LEAST_COLUMNS = 80


def console(stderr: bool = False) -> Console:
    """Shows strings as they are, paths and messages among them: colours come in as
    :class:`rich.text.Text` or as a style, never as markup in the text.
    """
    made = Console(stderr=stderr, markup=False, highlight=False)
    made.width = max(made.width, LEAST_COLUMNS)
    return made


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Group:
    """A title over a plain table, numbers to the right."""
    filled = [list(row) for row in rows]
    result = Table(box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        numeric = bool(filled) and all(_is_number(row[index]) for row in filled)
        result.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in filled:
        result.add_row(*(_cell(value) for value in row))
    return Group(Text(title, style="bold"), result) if title else Group(result)


def kernel_label(plan: Mapping[str, Any]) -> tuple[str, str, str]:
    """What tells shipped kernels apart, short enough for a table: dtype, head dimensions, mask."""
    mask = "causal" if plan["causal"] else "full"
    return SHORT_DTYPES[plan["dtype"]], f"{plan['head_dim']}, {plan['head_dim_v']}", mask


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: object) -> str | Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, bool):
        return Text("yes", style="green") if value else Text("no", style="red")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def emit(report: Report, render: Render, as_json: bool) -> None:
    """Print the report and leave with 0 if it is ok, 1 if not."""
    if as_json:
        print(json.dumps(report, indent=2, default=str))
    else:
        render(report, console())
    sys.exit(0 if report["ok"] else 1)


def error_report(error: HopwellError) -> Report:
    return {
        "type": type(error).__name__,
        "what": error.what,
        "expected": str(error.expected),
        "actual": str(error.actual),
        "consequence": error.consequence,
    }


def show_error(error: HopwellError) -> None:
    """On standard error, for a person."""
    out = console(stderr=True)
    out.print(Text.assemble((type(error).__name__, "red"), f": {error.what}"), soft_wrap=True)
    for line in (f"expected: {error.expected}", f"actual: {error.actual}", error.consequence):
        out.print(f"  {line}", soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Says on standard error what is being done, so that the report alone is on standard output.

    A terminal gets one line with a spinner and the time; a file or pipe gets a line for each step.
    """
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda step: out.print(f"- {step}")
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("")
        yield lambda step: bar.update(task, description=escape(step))

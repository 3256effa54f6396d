"""The command line: ``hopwell`` and ``python -m hopwell``.

Each command asks a module for a report and shows it; see :mod:`hopwell.display`. Exit status: 0
when what the command checks holds, 1 when it does not or an error stopped it, 2 for wrong usage.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from hopwell import display
from hopwell.errors import HopwellError

app = typer.Typer(
    name="hopwell",
    help="Exact attention for NVIDIA Hopper and Blackwell, and what proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The kernels kept on disk.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure, and judge what was measured.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine can run, and why not."""
    from hopwell import doctor

    display.emit(doctor.report(), doctor.render, as_json)


def main() -> None:
    """Entry point: a Hopwell error is an answer, not a traceback."""
    try:
        app()
    except HopwellError as error:
        if "--json" in sys.argv:
            print(json.dumps({"ok": False, "error": display.error_report(error)}, indent=2))
        else:
            display.show_error(error, Console(stderr=True))
        sys.exit(1)

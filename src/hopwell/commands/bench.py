"""``hopwell bench``: measure the forward against its peers, and judge the newest record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopwell.bench import forward as measurement
from hopwell.bench import record as records
from hopwell.bench.summary import summarise
from hopwell.commands.display import Report, table

if TYPE_CHECKING:
    from rich.console import Console

    from hopwell.bench.grid import Cell
    from hopwell.bench.record import Record, Row


def forward(
    options: measurement.Options,
    output: Path,
    plot: Path | None,
    resume: bool,
    progress: measurement.Progress,
) -> Report:
    """Measure, write the record to ``output`` and its plot to ``plot``.

    Raises :class:`InputError` without a Hopper GPU, and :class:`MeasurementError` when a result
    of ours is wrong.
    """
    record = measurement.run(options, path=output, resume=resume, progress=progress)
    if plot is not None:
        from hopwell.bench.plot import draw

        draw(record, plot)
    return {"ok": True, **record_report(record), "record": str(output), "plot": plot and str(plot)}


def record_report(record: Record) -> Report:
    """The timed cells of a record: every contender's median, spread and throughput."""
    cells = dict.fromkeys(row.problem for row in record.rows if row.tflops is not None)
    return {
        "created": record.created,
        "gpu": record.environment.gpu.name if record.environment.gpu else None,
        "flop_convention": record.measurement.flop_convention if record.measurement else None,
        "geometric_mean_of_best_peer": measurement.geometric_mean(record),
        "cells": [_cell(record, cell) for cell in cells],
        "absent": dict(record.absent),
    }


def _cell(record: Record, cell: Cell) -> dict[str, Any]:
    rows = [row for row in record.rows if row.problem == cell and row.tflops is not None]
    return {
        "cell": cell.name,
        "of_best_peer": measurement.ratio_to_best_peer(record, cell),
        "contenders": {row.contender: _contender(row) for row in rows},
    }


def _contender(row: Row) -> dict[str, Any]:
    warm = row.clocks.warm_kernel
    return {
        "tflops": row.tflops,
        "cache": row.dispatch.cache,
        "median_seconds": warm.median if warm else None,
        "spread": warm.spread if warm else None,
    }


def render_forward(report: Report, console: Console) -> None:
    names = list(dict.fromkeys(name for cell in report["cells"] for name in cell["contenders"]))
    rows = [
        (
            cell["cell"],
            *(_throughput(cell["contenders"].get(name)) for name in names),
            cell["of_best_peer"],
        )
        for cell in report["cells"]
    ]
    title = f"TFLOP/s on {report['gpu']}, {report['flop_convention']} FLOPs: median and spread"
    console.print(table(title, ("problem", *names, "of best peer"), rows))
    mean = report["geometric_mean_of_best_peer"]
    if mean is not None:
        console.print(f"Geometric mean of the ratio to the best peer: {mean:.3f}")
    sources = {row["cache"] for cell in report["cells"] for row in cell["contenders"].values()}
    words = ", ".join(sorted(filter(None, sources)))
    console.print(f"Our kernels came from: {words or 'nowhere'} (hit: this machine's cache).")
    for name, reason in report["absent"].items():
        console.print(f"{name} did not run: {reason}", soft_wrap=True)
    console.print(f"record: {report['record']}", soft_wrap=True)


def _throughput(contender: dict[str, Any] | None) -> str | None:
    if contender is None:
        return None
    spread = contender["spread"]
    return f"{contender['tflops']:.0f}" + ("" if spread is None else f" ({spread:.1%})")


def summary(directory: Path) -> Report:
    """The newest forward record against every target; ``ok`` when all of them are reached."""
    known = records.read_all(directory)
    newest = records.newest((record for _, record in known), records.BENCH_FORWARD)
    verdicts = summarise(record for _, record in known)
    return {
        "ok": all(verdict.holds for verdict in verdicts),
        "records": str(directory),
        "record": next((path.name for path, record in known if record is newest), None),
        "targets": [verdict.to_json() for verdict in verdicts],
    }


def render_summary(report: Report, console: Console) -> None:
    rows = [
        (row["target"], row["wanted"], row["reached"], row["holds"], row["where"])
        for row in report["targets"]
    ]
    if report["record"] is None:
        console.print(f"No record of the forward in {report['records']}.", soft_wrap=True)
    title = f"Targets against {report['record'] or 'no record'}"
    console.print(table(title, ("target", "wanted", "reached", "holds", "where"), rows))


def emulator(
    launch: Path | None, output: Path | None, commit: str | None, progress: Callable[[str], None]
) -> Report:
    """Measure the emulator; ``ok`` when what was measured reaches the targets and is clean.

    Raises :class:`MeasurementError` when hazards on and off do not give the same results.
    """
    from hopwell.bench import emulator as emulation

    record = emulation.record(launch, commit, progress)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    targets = record["targets"]
    ok = all(
        row["clean"]
        and row["seconds"] <= targets["seconds"]
        and row["peak_bytes"] <= targets["peak_bytes"]
        for row in record["rows"]
    )
    return {"ok": ok and bool(record["rows"]), **record, "record": output and str(output)}


def render_emulator(report: Report, console: Console) -> None:
    rows = [
        (
            row["workload"],
            row["hazards"],
            round(row["seconds"], 2),
            row["instructions"],
            round(row["instructions_per_second"]),
            round(row["peak_bytes"] / 2**20),
            row["clean"],
        )
        for row in report["rows"]
    ]
    problem, targets = report["problem"], report["targets"]
    title = f"Emulator: one head, S = {problem['seqlen']}, d = {problem['head_dim']}, one seed"
    columns = ("workload", "hazards", "seconds", "instructions", "per second", "peak MiB", "clean")
    console.print(table(title, columns, rows))
    console.print(
        f"Targets: {targets['seconds']:g} seconds and {targets['peak_bytes'] >> 20:,} MiB; "
        f"measured on {report['environment']['cpus']} CPUs."
    )
    for name, reason in report["absent"].items():
        console.print(f"{name} did not run: {reason}", soft_wrap=True)
    if report["record"] is not None:
        console.print(f"record: {report['record']}", soft_wrap=True)

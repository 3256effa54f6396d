"""``hopwell cache``: what is kept on disk, and filling it ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hopwell.commands.display import Report, kernel_label, table
from hopwell.compile import manage
from hopwell.errors import InputError
from hopwell.hopper.plan import shipped_forward_plans

if TYPE_CHECKING:
    from rich.console import Console


def _contents(found: manage.CacheInfo) -> Report:
    return {
        "directory": None if found.directory is None else str(found.directory),
        "bytes": found.bytes,
        "entries": [
            {
                "directory": str(entry.directory),
                "bytes": entry.bytes,
                "plan": entry.artifact.manifest.plan_name if entry.artifact else None,
                "key": entry.artifact.manifest.key if entry.artifact else None,
                "hash": entry.artifact.manifest.artifact_hash if entry.artifact else None,
            }
            for entry in found.entries
        ],
    }


def info() -> Report:
    """Every entry, each verified in full; ``ok`` when none is corrupt.

    Raises :class:`UnsafeCache` when somebody else could write there.
    """
    report = _contents(manage.info())
    return {"ok": all(entry["plan"] is not None for entry in report["entries"]), **report}


def render_info(report: Report, console: Console) -> None:
    directory = report["directory"] or "off"
    console.print(
        f"{directory}: {len(report['entries'])} kernels, {report['bytes']:,} bytes",
        highlight=False,
        soft_wrap=True,
    )
    for entry in report["entries"]:
        name = entry["plan"] or f"[red]corrupt[/red] {entry['directory']}"
        console.print(f"  {(entry['hash'] or '-')[:12]}  {name}", highlight=False, soft_wrap=True)


def clear() -> Report:
    """Remove every entry."""
    return {"ok": True, **_contents(manage.clear())}


def render_clear(report: Report, console: Console) -> None:
    console.print(
        f"Removed {len(report['entries'])} kernels, {report['bytes']:,} bytes.", highlight=False
    )


def warm(match: str, jobs: int | None, progress: Callable[[str], None]) -> Report:
    """Make sure that every shipped plan whose name contains ``match`` is compiled.

    ``jobs`` plans at a time, one per CPU if None. ``progress`` is told what is there already.
    Raises what compiling raises.
    """
    plans = [plan for plan in shipped_forward_plans() if match in plan.name]
    if not plans:
        raise InputError(
            "match",
            expected="a part of a plan name that `hopwell plans --list` shows",
            actual=match,
            consequence="Nothing was compiled.",
        )
    finished: list[str] = []

    def one_more(warmed: manage.Warmed) -> None:
        finished.append(warmed.plan.name)
        progress(f"{len(finished)} of {len(plans)} kernels")

    progress(f"0 of {len(plans)} kernels")
    done = manage.warm(plans, jobs, one_more)
    return {
        "ok": True,
        "kernels": [
            {
                "plan_name": row.plan.name,
                "plan": row.plan.to_json(),
                "source": row.source,
                "hash": row.artifact.manifest.artifact_hash,
                "seconds": row.seconds,
            }
            for row in done
        ],
    }


def render_warm(report: Report, console: Console) -> None:
    rows = [
        (*kernel_label(row["plan"]), row["source"], row["seconds"], row["hash"][:12])
        for row in report["kernels"]
    ]
    columns = ("dtype", "d, d_v", "mask", "from", "seconds", "artifact")
    console.print(table("Kernels", columns, rows))

"""``hopwell cache``: what is kept on disk, and filling it ahead of time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from hopwell.commands.display import Report, table
from hopwell.compile.cache import Cache, directory
from hopwell.compile.kernel import find_or_build
from hopwell.errors import HopwellError, InputError
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

if TYPE_CHECKING:
    from rich.console import Console


def _cache() -> Cache:
    root = directory()
    if root is None:
        raise InputError(
            "kernel cache",
            expected="a cache that is on, in a home directory or HOPWELL_CACHE_DIR",
            actual="no directory",
            consequence="There is nothing on disk to look at.",
        )
    return Cache(root)


def info() -> Report:
    """Every entry, each verified in full; ``ok`` when none is corrupt.

    Raises :class:`UnsafeCache` when somebody else could write there.
    """
    cache = _cache()
    entries = cache.listing()
    return {
        "ok": all(entry.artifact is not None for entry in entries),
        "directory": str(cache.root),
        "bytes": sum(entry.bytes for entry in entries),
        "entries": [
            {
                "directory": str(entry.directory),
                "bytes": entry.bytes,
                "plan": entry.artifact.manifest.plan_name if entry.artifact else None,
                "key": entry.artifact.manifest.key if entry.artifact else None,
                "hash": entry.artifact.manifest.artifact_hash if entry.artifact else None,
            }
            for entry in entries
        ],
    }


def render_info(report: Report, console: Console) -> None:
    console.print(
        f"{report['directory']}: {report['bytes']:,} bytes", highlight=False, soft_wrap=True
    )
    rows = [
        (
            entry["plan"] or f"corrupt: {entry['directory']}",
            (entry["hash"] or "-")[:12],
            entry["bytes"],
        )
        for entry in report["entries"]
    ]
    console.print(table("Kernels", ("plan", "artifact", "bytes"), rows))


def clear() -> Report:
    """Remove every entry."""
    cache = _cache()
    entries, size = cache.clear()
    return {"ok": True, "directory": str(cache.root), "entries": entries, "bytes": size}


def render_clear(report: Report, console: Console) -> None:
    console.print(
        f"Removed {report['entries']} kernels, {report['bytes']:,} bytes, "
        f"from {report['directory']}.",
        highlight=False,
        soft_wrap=True,
    )


def warm(match: str, jobs: int, progress: Callable[[str], None]) -> Report:
    """Make sure that every shipped plan whose name contains ``match`` is compiled.

    ``progress`` is told each plan's name when it is there. ``ok`` when all of them are.
    """
    plans = [plan for plan in shipped_forward_plans() if match in plan.name]
    if not plans:
        raise InputError(
            "match",
            expected="a part of a plan name that `hopwell plans --list` shows",
            actual=match,
            consequence="Nothing was compiled.",
        )
    done = []
    for row in _warmed(plans, jobs):
        progress(row["plan"])
        done.append(row)
    done.sort(key=lambda row: row["plan"])
    return {"ok": all(row["error"] is None for row in done), "plans": done}


def _warmed(plans: list[HopperForwardPlan], jobs: int) -> Iterator[dict[str, Any]]:
    # A forked compiler would inherit locks and threads of this process.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(plans)), mp_context=spawn) as pool:
        for future in as_completed([pool.submit(warm_one, plan) for plan in plans]):
            yield future.result()


def warm_one(plan: HopperForwardPlan) -> dict[str, Any]:
    """Find or compile one plan. An error is part of the answer: the others go on."""
    try:
        artifact, source = find_or_build(plan)
    except HopwellError as error:
        return {"plan": plan.name, "source": None, "hash": None, "error": str(error)}
    return {
        "plan": plan.name,
        "source": source,
        "hash": artifact.manifest.artifact_hash,
        "error": None,
    }


def render_warm(report: Report, console: Console) -> None:
    rows = [
        (row["plan"], row["source"] or row["error"], (row["hash"] or "-")[:12])
        for row in report["plans"]
    ]
    console.print(table("Kernels", ("plan", "from", "artifact"), rows))

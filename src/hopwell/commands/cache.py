"""``hopwell cache``: what is kept on disk, and filling it ahead of time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hopwell.commands.display import Report, kernel_label, table
from hopwell.compile import find_or_build
from hopwell.compile.cache import Cache, Entry, directory
from hopwell.errors import HopwellError, InputError
from hopwell.hopper.plan import HopperForwardPlan, shipped_forward_plans

if TYPE_CHECKING:
    from rich.console import Console


def _cache() -> Cache | None:
    """The cache, or None when it is off. Raises :class:`UnsafeCache`, :class:`UnusableCache`."""
    root = directory()
    return None if root is None else Cache(root, create=False)


def _contents(cache: Cache | None, entries: list[Entry]) -> Report:
    return {
        "directory": None if cache is None else str(cache.root),
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


def info() -> Report:
    """Every entry, each verified in full; ``ok`` when none is corrupt.

    Changes nothing: a directory that is missing stays so.

    Raises :class:`UnsafeCache` when somebody else could write there.
    """
    cache = _cache()
    entries = [] if cache is None else cache.listing()
    whole = all(entry.artifact is not None for entry in entries)
    return {"ok": whole, **_contents(cache, entries)}


def render_info(report: Report, console: Console) -> None:
    directory = report["directory"] or "off"
    console.print(
        f"{directory}: {len(report['entries'])} kernels, {report['bytes']:,} bytes",
        soft_wrap=True,
    )
    for entry in report["entries"]:
        name = (entry["plan"],) if entry["plan"] else (("corrupt", "red"), f" {entry['directory']}")
        line = Text.assemble(f"  {(entry['hash'] or '-')[:12]}  ", *name)
        console.print(line, soft_wrap=True)


def clear() -> Report:
    """Remove every entry; the report says what was there."""
    cache = _cache()
    entries = [] if cache is None else cache.listing()
    if cache is not None:
        cache.clear()
    return {"ok": True, **_contents(cache, entries)}


def render_clear(report: Report, console: Console) -> None:
    console.print(f"Removed {len(report['entries'])} kernels, {report['bytes']:,} bytes.")


def warm(match: str, jobs: int | None, progress: Callable[[str], None]) -> Report:
    """Make sure that every shipped plan whose name contains ``match`` is compiled.

    ``jobs`` plans at a time, one per CPU if None. ``progress`` is told how many are there. ``ok``
    when all of them compile; one that does not keeps no other from compiling.
    """
    plans = [plan for plan in shipped_forward_plans() if match in plan.name]
    if not plans:
        raise InputError(
            "match",
            expected="a part of a plan name that `hopwell plans --list` shows",
            actual=match,
            consequence="Nothing was compiled.",
        )
    progress(f"0 of {len(plans)} kernels")
    done = []
    for row in _warmed(plans, jobs):
        done.append(row)
        progress(f"{len(done)} of {len(plans)} kernels")
    order = [plan.name for plan in plans]
    done.sort(key=lambda row: order.index(row["plan_name"]))
    return {"ok": all(row["error"] is None for row in done), "kernels": done}


def _warmed(plans: list[HopperForwardPlan], jobs: int | None) -> Iterator[dict[str, Any]]:
    # Fresh interpreters: the compiler's threads do not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        for future in as_completed([pool.submit(_warm, plan) for plan in plans]):
            yield future.result()


def _warm(plan: HopperForwardPlan) -> dict[str, Any]:
    start = time.perf_counter()
    source = digest = failure = None
    try:
        artifact, source = find_or_build(plan)
        digest = artifact.manifest.artifact_hash
    except HopwellError as error:
        failure = str(error)
    return {
        "plan_name": plan.name,
        "plan": plan.to_json(),
        "source": source,
        "hash": digest,
        "error": failure,
        "seconds": round(time.perf_counter() - start, 3),
    }


def render_warm(report: Report, console: Console) -> None:
    rows = [
        (*kernel_label(row["plan"]), row["source"], row["seconds"], (row["hash"] or "-")[:12])
        for row in report["kernels"]
    ]
    columns = ("dtype", "d, d_v", "mask", "from", "seconds", "artifact")
    console.print(table("Kernels", columns, rows))
    for row in report["kernels"]:
        if row["error"]:
            line = Text.assemble((row["plan_name"], "red"), f": {row['error']}")
            console.print(line, soft_wrap=True)

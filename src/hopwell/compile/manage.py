"""Looking after compiled kernels: what the cache holds, clearing it, filling it beforehand."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from hopwell.compile import cache as caches
from hopwell.compile.artifact import Artifact
from hopwell.compile.kernel import Source, find_or_build
from hopwell.compile.key import Plan


@dataclass(frozen=True)
class CacheInfo:
    """The cache as it is. ``directory`` is None when it is off; ``bytes`` counts every entry."""

    directory: Path | None
    entries: tuple[caches.Entry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


@dataclass(frozen=True)
class Warmed:
    """One plan after warming: its artifact, where it came from, and the seconds that took."""

    plan: Plan
    artifact: Artifact
    source: Source
    seconds: float


def info() -> CacheInfo:
    """Reads and verifies the whole cache. Raises :class:`UnsafeCache`. Creates nothing."""
    directory = caches.directory()
    if directory is None or not directory.is_dir():
        return CacheInfo(directory, ())
    return CacheInfo(directory, tuple(caches.Cache(directory).listing()))


def clear() -> CacheInfo:
    """Removes every entry. Returns what was there. Raises :class:`UnsafeCache`."""
    before = info()
    if before.directory is not None and before.directory.is_dir():
        caches.Cache(before.directory).clear()
    return before


def warm(
    plans: Iterable[Plan],
    jobs: int | None = None,
    progress: Callable[[Warmed], None] | None = None,
) -> list[Warmed]:
    """Compiles whatever is not shipped or cached yet, ``jobs`` plans at a time (default: one per
    CPU). ``progress`` is called after each, in the order in which they finish.

    Needs no GPU. Raises :class:`CompilerMissing`, :class:`CompileError`, :class:`UnsafeCache`.
    """
    todo = list(plans)
    workers = min(jobs or os.cpu_count() or 1, len(todo))
    done: dict[Plan, Warmed] = {}

    def finished(warmed: Warmed) -> None:
        done[warmed.plan] = warmed
        if progress is not None:
            progress(warmed)

    if workers <= 1:
        for plan in todo:
            finished(_warm(plan))
        return [done[plan] for plan in todo]
    # Fresh interpreters: the compiler's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = [pool.submit(_warm, plan) for plan in todo]
        try:
            for future in as_completed(running):
                finished(future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [done[plan] for plan in todo]


def _warm(plan: Plan) -> Warmed:
    start = time.perf_counter()
    artifact, source = find_or_build(plan)
    return Warmed(plan, artifact, source, round(time.perf_counter() - start, 3))

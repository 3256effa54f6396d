"""A recording as a timeline for https://ui.perfetto.dev.

The file is in the Trace Event Format (JSON), which Perfetto, chrome://tracing and other viewers
read: a process for each CTA, a thread for each warp and for each engine of it, one microsecond
for each unit of the recorder's clock.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hopwell.emulator.recorder import Flow, Index, Mark, Recorder, Span

SCHEMA = "hopwell.trace/1"

CLOCK = (
    "One microsecond is one warp instruction, as if all warps ran side by side and every "
    "instruction and engine took the same time. It is the emulator's order, not the hardware's "
    "clock: compare what overlaps and who waits for whom, not how long it takes."
)

_PROCESSES = 1
_THREADS = 100_000
"""Threads are numbered apart from processes, so that none counts as a process's main thread."""

Event = dict[str, Any]
_Row = tuple[Index, str]


def write(recorder: Recorder, path: str | Path, *, kernel: str, seed: int) -> None:
    """Write the timeline of one run to a JSON file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document(recorder, kernel=kernel, seed=seed), file)


def document(recorder: Recorder, *, kernel: str, seed: int) -> dict[str, Any]:
    """The timeline as plain values, in the Trace Event Format."""
    rows, threads = _threads(recorder.spans)
    events = list(_metadata(threads))
    events += [_slice(span, threads[row]) for span, row in rows]
    for number, flow in enumerate(recorder.flows, 1):
        events += _arrow(number, flow, threads)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "schema": SCHEMA,
            "kernel": kernel,
            "seed": seed,
            "clock": CLOCK,
            "instructions": recorder.order,
        },
    }


def _threads(
    spans: Iterable[Span],
) -> tuple[list[tuple[Span, _Row]], dict[_Row, tuple[int, int]]]:
    """The row of each span, and the process and thread number of each row.

    An engine has as many rows as it needs for what is in flight at the same time. Code lies
    inside the running span of its warp, which viewers draw below it.
    """
    placed: list[tuple[Span, _Row]] = []
    ends: defaultdict[_Row, list[int]] = defaultdict(list)
    for span in sorted(spans, key=_outer_first):
        if span.kind == "code":
            placed.append((span, (span.cta, span.row)))
            continue
        taken = ends[span.cta, span.row]
        slot = next((i for i, end in enumerate(taken) if end <= span.start), len(taken))
        taken[slot : slot + 1] = [_stop(span)]
        placed.append((span, (span.cta, _row_name(span.row, slot))))
    ctas = sorted({row[0] for _, row in placed}, key=lambda cta: cta[::-1])
    processes = {cta: _PROCESSES + number for number, cta in enumerate(ctas)}
    rows = sorted({row for _, row in placed}, key=lambda row: (processes[row[0]], _rank(row[1])))
    return placed, {row: (processes[row[0]], _THREADS + number) for number, row in enumerate(rows)}


def _outer_first(span: Span) -> tuple[Any, ...]:
    """Viewers nest slices in the order of the file: of two that begin together, the outer first."""
    return span.cta, span.start, -span.stop, span.kind == "code"


def _stop(span: Span) -> int:
    """What has no length is drawn with the least."""
    return max(span.stop, span.start + 1)


def _row_name(row: str, slot: int) -> str:
    return row if not slot else f"{row} ({slot + 1})"


def _rank(row: str) -> tuple[int, int, str]:
    """Engines that copy in, then warps with their warpgroup's tensor core above, then the rest."""
    words = row.split()
    if words[0] == "warpgroup":
        return 1, int(words[1]) * 4, "" + row
    if words[0] == "warp":
        return 1, int(words[1]), "~" + row
    return (0 if words[0] in ("tma-load", "bulk-copy", "cp.async") else 2), 0, row


def _metadata(threads: dict[_Row, tuple[int, int]]) -> Iterator[Event]:
    seen = set()
    for (cta, row), (process, thread) in threads.items():
        if process not in seen:
            seen.add(process)
            name = f"CTA ({','.join(map(str, cta))})"
            yield _named("process_name", process, 0, name=name)
            yield _named("process_sort_index", process, 0, sort_index=process)
        yield _named("thread_name", process, thread, name=row)
        yield _named("thread_sort_index", process, thread, sort_index=thread)


def _named(what: str, process: int, thread: int, **values: object) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": values}


def _slice(span: Span, number: tuple[int, int]) -> Event:
    process, thread = number
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.kind,
        "pid": process,
        "tid": thread,
        "ts": span.start,
        "dur": _stop(span) - span.start,
        "args": span.facts,
    }


def _arrow(number: int, flow: Flow, threads: dict[_Row, tuple[int, int]]) -> list[Event]:
    ends: list[Event] = []
    for phase, mark in (("s", flow.start), ("f", flow.stop)):
        place = threads.get(_warp_row(mark))
        if place is None:
            return []
        event = {"ph": phase, "id": number, "name": flow.name, "cat": "signal", "ts": mark.time}
        ends.append({**event, "pid": place[0], "tid": place[1]})
    # Of slices that touch, the signal belongs to the one before it, the wait to the one behind.
    ends[0]["ts"] = max(ends[0]["ts"] - 1, 0)
    ends[1]["bp"] = "e"
    return ends


def _warp_row(mark: Mark) -> _Row:
    return mark.cta, mark.row

"""A report of :func:`hopwell.emulator.emulate` as plain values (JSON), and as a verdict in words.

The fields of :data:`SCHEMA`; one that changes its meaning, or goes, raises the number.

====================  ==================================================================
``schema``            ``hopwell.emulation/1``
``kernel``            the entry function
``grid``, ``block``,  three extents each
``cluster``
``shared_bytes``      dynamic shared memory of a CTA
``clean``             no hazard and no deadlock under any seed
``verdict``           the same in words
``hazards_checked``   whether hazards were looked for
``same_results``      every seed left the same bits in every buffer
``hazards``           ``hopwell.hazards/1``: causes, with both accesses of an example
``runs``              per seed: ``seed``, ``landing``, ``instructions`` (of warps), ``copies``,
                      ``seconds``, ``deadlock`` (null or ``hopwell.deadlock/1``), ``results``
                      (SHA-256 of each buffer)
``pipelines``         null without a recording. Per stage: ``cta``, the ``full`` and ``empty``
                      mbarriers (``name``, ``offset``, ``phases``, ``arrivals``, ``arrivers``,
                      ``waits``, ``waiters``), the counts ``acquire``, ``commit``, ``wait`` and
                      ``release``, and ``payloads`` (``what``, ``bytes``, ``phase``, ``at``,
                      ``by``)
``barriers``          null without a recording; mbarriers in no pipeline, with their ``cta``
``ledgers``           null without a recording. Per warpgroup and sequence: ``cta``,
                      ``warpgroup``, ``warps``, ``calls`` (``action``, ``barrier``, ``round``,
                      ``time``, ``at``)
====================  ==================================================================

A recording is of the first run that found something, or of the first.
"""

import linecache
from collections.abc import Callable
from typing import Any

from hopwell.emulator.api import Report, Run
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.deadlock import to_dict as deadlock_dict
from hopwell.emulator.hazards import report as hazards

SCHEMA = "hopwell.emulation/1"


def verdict(report: Report, checked: bool = True) -> str:
    """One line: clean, or what was found. ``checked``: hazards were looked for."""
    stuck = [run for run in report.runs if run.deadlock]
    found = []
    if stuck:
        seeds = ", ".join(str(run.seed) for run in stuck)
        one = "seed" if len(stuck) == 1 else "seeds"
        cause = stuck[0].deadlock.cause
        found.append(f"deadlock under {one} {seeds}" + (cause != "deadlock") * f": {cause}")
    told = {"deadlock", *(run.deadlock.cause for run in stuck)} if stuck else set()
    others = [group for group in report.groups if group.rule not in told]
    if others:
        found.append(hazards.verdict(others))
    if found:
        return "; ".join(found)
    count = len(report.runs)
    under = "one seed" if count == 1 else f"{count} seeds"
    if not checked:
        return f"no deadlock under {under}; hazards were not looked for"
    return f"clean: no hazard and no deadlock under {under}"


def telling_run(report: Report) -> Run:
    """The first run that found something, or the first."""
    return next((run for run in report.runs if run.deadlock or run.groups), report.runs[0])


def to_dict(report: Report, launch: Launch, *, checked: bool = True) -> dict[str, Any]:
    """A report of a launch as plain values, by :data:`SCHEMA`."""
    recording = telling_run(report).recording
    return {
        "schema": SCHEMA,
        "kernel": report.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "shared_bytes": launch.shared_bytes,
        "clean": report.clean,
        "verdict": verdict(report, checked),
        "hazards_checked": checked,
        "same_results": report.same_results,
        "hazards": hazards.to_dict(report.groups),
        "runs": [_run_dict(run) for run in report.runs],
        "pipelines": recording and [p.to_dict() for p in recording.pipelines.pipelines],
        "barriers": recording
        and [{"cta": list(s.cta), **s.to_dict()} for s in recording.pipelines.others],
        "ledgers": recording and [ledger.to_dict() for ledger in recording.ledgers],
    }


def _run_dict(run: Run) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "landing": run.landing,
        "instructions": run.instructions,
        "copies": run.copies,
        "seconds": run.seconds,
        "deadlock": deadlock_dict(run.deadlock) if run.deadlock else None,
        "results": run.results,
    }


def code_of(launch: Launch) -> Callable[[str, int], str]:
    """Gives the text of a line of the launch's PTX, or of a source file that can be read."""
    ptx = launch.ptx.splitlines()

    def code(file: str, line: int) -> str:
        if file == launch.filename:
            return ptx[line - 1].strip() if 0 < line <= len(ptx) else ""
        return linecache.getline(file, line).strip()

    return code

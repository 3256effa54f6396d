"""Which mutants are killed, and by what: each run in a process of its own, with a time limit."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopwell.errors import InputError

if TYPE_CHECKING:
    from hopwell.emulator.capture.launch import Launch
    from hopwell.emulator.mutate import Mutant

SCHEMA = "hopwell.mutations/1"

#: What kills a mutant, in the order in which a row names it.
KILLERS = ("hazard", "deadlock", "wrong result", "error", "timeout")
SURVIVED = "survived"


@dataclass(frozen=True)
class Outcome:
    """What running one mutant showed.

    Attributes:
        rules: names of the hazard rules that it broke, most frequent first.
        deadlock: nothing could go on.
        right: the result is that of the original, as far as the judge can say.
        error: what stopped the run, if something did.
        timeout: it did not end within its limit.
        seconds: wall time.
        seed: the schedule that killed it.
        problem: what it worked on then, where a judge tries several problems.
    """

    rules: tuple[str, ...] = ()
    deadlock: bool = False
    right: bool = True
    error: str = ""
    timeout: bool = False
    seconds: float = 0.0
    seed: int | None = None
    problem: str = ""

    @property
    def killed_by(self) -> str:
        """One of :data:`KILLERS`, or "survived"."""
        # A deadlock is also among the rules.
        hazard = any(rule != "deadlock" for rule in self.rules)
        shown = (hazard, self.deadlock, not self.right, bool(self.error), self.timeout)
        return next((name for name, is_ in zip(KILLERS, shown, strict=True) if is_), SURVIVED)


#: Runs PTX text and says what it showed.
Judge = Callable[[str], Outcome]


@dataclass(frozen=True)
class Row:
    """One mutant and its outcome; ``reason`` explains a survivor."""

    key: str
    operator: str
    description: str
    instruction: str
    line: int
    source: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class Matrix:
    """All mutants of one artifact.

    Attributes:
        artifact: the hash of the PTX that was mutated.
        kernel: its entry.
        rows: one for each mutant.
    """

    artifact: str
    kernel: str
    rows: tuple[Row, ...]

    @property
    def survivors(self) -> tuple[Row, ...]:
        """The mutants that nothing killed."""
        return tuple(row for row in self.rows if row.outcome.killed_by == SURVIVED)

    @property
    def unexplained(self) -> tuple[Row, ...]:
        """Survivors without a reason."""
        return tuple(row for row in self.survivors if not row.reason)

    def explained(self, reasons: dict[str, str]) -> Matrix:
        """The same with reasons by key."""
        rows = (dataclasses.replace(r, reason=reasons.get(r.key, r.reason)) for r in self.rows)
        return dataclasses.replace(self, rows=tuple(rows))

    def updated(self, newer: Matrix) -> Matrix:
        """The same with the rows of a newer matrix of the same artifact in place of its own.

        Raises:
            InputError: the artifacts differ.
        """
        if newer.artifact != self.artifact:
            raise InputError(
                "outcomes of mutants",
                expected=f"those of {self.artifact}",
                actual=newer.artifact,
                consequence="They are of other code.",
            )
        rows = {row.key: row for row in newer.rows}
        return dataclasses.replace(self, rows=tuple(rows.get(r.key, r) for r in self.rows))

    def table(self) -> str:
        """Mutants by operator and killer, then every survivor with its reason."""
        heads = ["operator", "mutants", *KILLERS, SURVIVED]
        operators = list(dict.fromkeys(row.operator for row in self.rows))
        lines = [heads]
        for name in [*operators, "all"]:
            ends = [r.outcome.killed_by for r in self.rows if name in (r.operator, "all")]
            counts = [ends.count(end) for end in (*KILLERS, SURVIVED)]
            lines.append([name, str(len(ends)), *(str(count or "") for count in counts)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
        for row in self.survivors:
            text += f"\nsurvived: {row.key}: {row.description}: `{row.instruction}`"
            text += f" ({row.source or f'line {row.line}'}): {row.reason or 'not explained'}"
        return text

    def to_json(self) -> dict[str, Any]:
        """The matrix as plain values; ``schema`` names their meaning."""
        return {
            "schema": SCHEMA,
            "artifact": self.artifact,
            "kernel": self.kernel,
            "mutants": len(self.rows),
            "killed": len(self.rows) - len(self.survivors),
            "rows": [
                {**dataclasses.asdict(row), "killed_by": row.outcome.killed_by} for row in self.rows
            ],
        }

    def write(self, path: Path) -> None:
        """Writes the record."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Matrix:
        """Reads a record that :meth:`write` wrote."""
        data = json.loads(path.read_text())
        rows = []
        for entry in data["rows"]:
            del entry["killed_by"]
            outcome = entry.pop("outcome")
            outcome["rules"] = tuple(outcome["rules"])
            rows.append(Row(outcome=Outcome(**outcome), **entry))
        return cls(data["artifact"], data["kernel"], tuple(rows))


def judge(
    launch: Launch,
    right: Callable[[Launch], bool] | None = None,
    *,
    seeds: int | Iterable[int] = 2,
    **options: Any,
) -> Judge:
    """A judge that emulates a launch with other PTX, until one of the seeds kills it.

    Args:
        launch: the original; it is not touched.
        right: whether the memory of a finished launch is right. By default, whether every buffer
            holds the bits that the original leaves.
        seeds, options: passed to :func:`hopwell.emulator.emulate`.

    Raises:
        InputError: the original has hazards, or does not end.
    """
    from hopwell.emulator.api import emulate

    seeds = seeds if isinstance(seeds, int) else tuple(seeds)
    reference = launch.copy()
    report = emulate(reference, seeds=1, **options)
    if not report.clean:
        raise InputError(
            f"launch of {launch.kernel} to be mutated",
            expected="a run without hazards",
            actual=report.rules or "a deadlock",
            consequence="Every mutant would be called killed by what the original does too.",
        )
    if right is None:
        expected = [buffer.array.tobytes() for buffer in reference.buffers]

        def right(finished: Launch) -> bool:
            found = [buffer.array.tobytes() for buffer in finished.buffers]
            return found == expected

    def judged(text: str) -> Outcome:
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            mutated = dataclasses.replace(launch.copy(), ptx=text)
            report = emulate(mutated, seeds=(seed,), until_hazard=True, **options)
            stuck = any(run.deadlock for run in report.runs)
            is_right = bool(stuck or report.rules) or right(mutated)
            outcome = Outcome(tuple(report.rules), stuck, right=is_right, seed=seed)
            if outcome.killed_by != SURVIVED:
                return outcome
        return Outcome()

    return judged


def run(
    found: Iterable[Mutant],
    judged: Judge,
    artifact: str,
    *,
    processes: int = 2,
    seconds: float = 120.0,
    finished: Callable[[Row], None] = lambda row: None,
) -> Matrix:
    """Runs mutants and says what killed each.

    Args:
        found: from :func:`hopwell.emulator.mutate.mutants`, all of one kernel.
        judged: see :func:`judge`. It runs in a forked process.
        artifact: the hash that the record is kept under.
        processes: mutants that run at the same time.
        seconds: limit for one mutant.
        finished: told of each row, in the order in which they end.
    """
    waiting = list(enumerate(found))
    kernel = waiting[0][1].kernel if waiting else ""
    rows: dict[int, Row] = {}
    running: dict[Connection, _Running] = {}
    waiting.reverse()
    while waiting or running:
        while waiting and len(running) < processes:
            number, mutant = waiting.pop()
            started = _start(number, mutant, judged, seconds)
            running[started.answer] = started
        first_end = min(one.deadline for one in running.values())
        ready = wait(list(running), timeout=max(0.0, first_end - time.monotonic()))
        now = time.monotonic()
        for answer in [a for a, one in running.items() if a in ready or one.deadline <= now]:
            one = running.pop(answer)
            row = _row(one.mutant, one.end(answer in ready))
            rows[one.number] = row
            finished(row)
    return Matrix(artifact, kernel, tuple(rows[number] for number in sorted(rows)))


@dataclass
class _Running:
    number: int
    mutant: Mutant
    process: BaseProcess
    answer: Connection
    started: float
    deadline: float

    def end(self, ready: bool) -> Outcome:
        seconds = round(time.monotonic() - self.started, 3)
        outcome = Outcome(timeout=True)
        if ready:
            try:
                outcome = self.answer.recv()
            except EOFError:
                self.process.join()
                outcome = Outcome(error=f"the process ended with {self.process.exitcode}")
        self.process.kill()
        self.process.join()
        self.answer.close()
        return dataclasses.replace(outcome, seconds=seconds)


def _start(number: int, mutant: Mutant, judged: Judge, seconds: float) -> _Running:
    # A fork inherits the judge and everything that it has read.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(mutant, judged, theirs), daemon=True)
    process.start()
    theirs.close()
    now = time.monotonic()
    return _Running(number, mutant, process, ours, now, now + seconds)


def _work(mutant: Mutant, judged: Judge, answer: Connection) -> None:
    try:
        outcome = judged(mutant.text)
    except Exception as error:  # whatever stops a mutant is its outcome
        outcome = Outcome(error=f"{type(error).__name__}: {error}"[:500])
    answer.send(outcome)
    answer.close()


def _row(mutant: Mutant, outcome: Outcome) -> Row:
    from hopwell.ptx.printer import to_text

    return Row(
        key=mutant.key,
        operator=mutant.operator,
        description=mutant.description,
        instruction=to_text(mutant.instruction),
        line=mutant.location.line,
        source=str(mutant.source) if mutant.source else "",
        outcome=outcome,
    )

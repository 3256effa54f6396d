"""``hopwell emulate``: run compiled kernels on the CPU and name every hazard.

Three kinds of targets: a Python program whose kernels are emulated as it launches them, a PTX
file with a grid and arguments, and a saved launch (``.launch``).
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from hopwell.commands.display import Report, table
from hopwell.emulator import arguments, emulation, trace
from hopwell.emulator.api import Report as Emulation
from hopwell.emulator.api import emulate
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.capture.parameters import parameters_of, short_name
from hopwell.emulator.hazards.report import group_lines
from hopwell.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from hopwell.emulator.pipelines import Ledger, Pipeline
    from hopwell.emulator.policy import Landing
    from hopwell.emulator.recorder import Recorder

SCHEMA = "hopwell.emulate/1"

_SHOWN_CTAS = 1
"""CTAs of which pipelines and ledgers are printed; the JSON has all."""

_SHOWN_PHASES = 4
"""Phases of each stage whose payloads are printed."""


@dataclass(frozen=True)
class Options:
    """How every launch is run.

    Attributes:
        seeds: which schedules.
        landing: of asynchronous work: "early", "late", "random", or None for each seed's own.
        hazards: look for hazards.
        names: ranges of dynamic shared memory by name: (first byte, bytes).
        limit: instructions of one warp that count as an unbounded loop.
        resident: CTAs that run at the same time.
        pipelines: also count what happens at barriers.
        trace: the timeline to write.
    """

    seeds: tuple[int, ...] = (0,)
    landing: Landing | None = None
    hazards: bool = True
    names: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    limit: int = 20_000_000
    resident: int = 132
    pipelines: bool = False
    trace: Path | None = None


@dataclass(frozen=True)
class Kernel:
    """How a kernel of a PTX file is started.

    Attributes:
        name: the entry function, None for the only one.
        grid, block, cluster: extents; ``block`` may be left to ``.reqntid``.
        shared_bytes: dynamic shared memory.
        args: the arguments, in the grammar of :mod:`hopwell.emulator.arguments`.
        out: where arrays are saved afterwards.
    """

    name: str | None = None
    grid: str | None = None
    block: str | None = None
    cluster: str = "1"
    shared_bytes: int = 0
    args: str = ""
    out: Path | None = None


@dataclass
class Outcome:
    """What came out of every launch.

    Attributes:
        target: what was run.
        options: how.
        launches: each launch and its report, in order.
        failure: what stopped a program before its end, "" if nothing did.
        outputs: files of arrays that were written.
        traces: files of timelines that were written.
    """

    target: str
    options: Options
    launches: list[tuple[Launch, Emulation]] = field(default_factory=list)
    failure: str = ""
    outputs: list[Path] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every launch is clean, and nothing stopped the program."""
        return not self.failure and all(report.clean for _, report in self.launches)

    def run(self, launch: Launch, tell: Callable[[str], None]) -> None:
        """Emulate one launch, keep its report, and write its timeline."""
        options = self.options
        tell(f"{short_name(launch.kernel)}, grid {_extents(launch.grid)}")
        report = emulate(
            launch,
            seeds=options.seeds,
            hazards=options.hazards,
            landing=options.landing,
            limit=options.limit,
            resident=options.resident,
            names=options.names,
            record=options.pipelines or options.trace is not None,
        )
        self.launches.append((launch, report))
        if options.trace is not None:
            run = emulation.telling_run(report)
            path = _numbered(options.trace, len(self.launches))
            try:
                trace.write(run.recording, path, kernel=launch.kernel, seed=run.seed)
                self.traces.append(path)
            except OSError as error:  # what was found is shown all the same
                self.failure = f"the timeline was not written: {error}"

    def save(self, launch: Launch, directory: Path | None) -> None:
        """Write the launch's arrays, each under a name of its own."""
        if directory is None:
            return
        names = Counter[str]()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for buffer in launch.buffers:
                name = Path(buffer.name).name
                names[name] += 1
                path = _numbered(directory / f"{name}.npy", names[name])
                np.save(path, buffer.array)
                self.outputs.append(path)
        except OSError as error:  # what was found is shown all the same
            self.failure = f"the arrays were not written: {error}"

    def to_dict(self) -> Report:
        """As plain values. ``launches`` are of :data:`hopwell.emulator.emulation.SCHEMA`."""
        return {
            "ok": self.ok,
            "schema": SCHEMA,
            "target": self.target,
            "failure": self.failure or None,
            "launches": [
                emulation.to_dict(report, launch, checked=self.options.hazards)
                for launch, report in self.launches
            ],
            "outputs": [str(path) for path in self.outputs],
            "traces": [str(path) for path in self.traces],
        }


def _numbered(path: Path, number: int) -> Path:
    """The path for the first, ``name-2.json`` for the second, and so on."""
    return path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")


# -- running -------------------------------------------------------------------------------


def run(
    target: Path,
    argv: Sequence[str],
    kernel: Kernel,
    options: Options,
    tell: Callable[[str], None],
) -> Outcome:
    """Run whatever ``target`` is, by its suffix.

    Raises:
        InputError: it is of no kind that can be run, or something else about the call is wrong.
    """
    if target.suffix == ".py":
        return run_program(target, argv, options, tell)
    if target.suffix not in (".ptx", ".launch") or argv:
        raise InputError(
            "target",
            expected="a .py file with its arguments, or a .ptx or .launch file alone",
            actual=" ".join([str(target), *argv]),
            consequence="Nothing was run.",
        )
    if target.suffix == ".ptx":
        return run_ptx(target, kernel, options, tell)
    return run_launch(target, options, kernel.out, tell)


def run_program(
    target: Path, argv: Sequence[str], options: Options, tell: Callable[[str], None]
) -> Outcome:
    """Run a Python program; each kernel is emulated when it is launched.

    The program's own output goes to standard error, so that the report alone is on standard
    output. What stops the program is shown there too, and does not hide what was found before.
    """
    from hopwell.emulator.capture.script import run_script

    outcome = Outcome(str(target), options)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            run_script(target, argv, lambda launch: outcome.run(launch, tell))
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                outcome.failure = f"the program left with status {leaving.code}"
        except Exception as error:
            traceback.print_exc()
            outcome.failure = f"{type(error).__name__}: {error}"
    if not outcome.launches and not outcome.failure:
        outcome.failure = "the program launched no kernel"
    return outcome


def run_launch(
    target: Path, options: Options, out: Path | None, tell: Callable[[str], None]
) -> Outcome:
    """Run a saved launch."""
    outcome = Outcome(str(target), options)
    launch = Launch.load(target)
    outcome.run(launch, tell)
    outcome.save(launch, out)
    return outcome


def run_ptx(target: Path, kernel: Kernel, options: Options, tell: Callable[[str], None]) -> Outcome:
    """Run a kernel of a PTX file.

    Raises:
        InputError: extents or arguments are missing or wrong.
    """
    try:
        text = target.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "target", expected="PTX, which is text", actual=f"{target} ({error})",
            consequence="Nothing was run.",
        ) from error  # fmt: skip
    entry, block = _entry(text, target, kernel)
    given = arguments.parse_arguments(kernel.args)
    names = [
        argument.name or parameter.name
        for argument, parameter in zip(given, parameters_of(text, entry), strict=False)
    ]
    launch = arguments.launch_of(
        text,
        entry,
        arguments.triple(kernel.grid or "1", "--grid"),
        block,
        [argument.value for argument in given],
        cluster=arguments.triple(kernel.cluster, "--cluster"),
        shared_bytes=kernel.shared_bytes,
        names=names if len(names) == len(given) else None,
        filename=str(target),
    )
    outcome = Outcome(str(target), options)
    outcome.run(launch, tell)
    outcome.save(launch, kernel.out)
    return outcome


def _entry(text: str, target: Path, kernel: Kernel) -> tuple[str, Any]:
    """The entry function's name and the block's extents."""
    from hopwell import ptx

    entries = {function.name: function for function in ptx.parse(text, str(target)).entries}
    name = kernel.name or (next(iter(entries)) if len(entries) == 1 else None)
    if name not in entries:
        raise InputError(
            "--kernel",
            expected=f"one of {', '.join(entries) or 'none: the file has no entry function'}",
            actual=name,
            consequence="Nothing was run.",
        )
    if kernel.block is not None:
        return name, arguments.triple(kernel.block, "--block")
    required = entries[name].directives.get("reqntid")
    if required is None:
        raise InputError(
            "--block",
            expected="the threads of a CTA: the kernel has no .reqntid",
            actual=None,
            consequence="Nothing was run.",
        )
    return name, arguments.triple([int(n) for n in required], "--block")


# -- options that are read from text -------------------------------------------------------


def parse_seeds(text: str) -> tuple[int, ...]:
    """``10`` is the seeds 0 to 9, ``3,7`` those two, ``5,`` and ``5-5`` the seed 5 alone.

    Raises:
        InputError: it is none of these.
    """
    try:
        if "," in text:
            seeds = tuple(int(part) for part in text.split(",") if part.strip())
        elif "-" in text:
            first, last = map(int, text.split("-"))
            seeds = tuple(range(first, last + 1))
        else:
            seeds = tuple(range(int(text)))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0:
        raise InputError(
            "--seeds",
            expected="how many, or a list such as 0,1,7, or a range such as 5-9",
            actual=repr(text),
            consequence="Nothing was run.",
        )
    return seeds


def read_names(path: Path) -> dict[str, tuple[int, int]]:
    """Names of ranges of dynamic shared memory from a JSON or TOML file: name = [first, bytes].

    Raises:
        InputError: it cannot be read, or is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = _toml(text) if path.suffix == ".toml" else json.loads(text)
        return {str(name): _range(place) for name, place in values.items()}
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        raise InputError(
            f"names {path}",
            expected="JSON, or TOML on Python 3.11 and later, with name: [first byte, bytes]",
            actual=str(error),
            consequence="Nothing was run.",
        ) from error


def _toml(text: str) -> Any:
    return import_module("tomllib").loads(text)


def _range(place: Sequence[int]) -> tuple[int, int]:
    first, size = map(int, place)
    return first, size


# -- showing -------------------------------------------------------------------------------


def render(outcome: Outcome, console: Console) -> None:
    """The verdict of each launch first, then what was found, with source lines."""
    for number, (launch, report) in enumerate(outcome.launches, 1):
        if number > 1:
            console.print()
        words = emulation.verdict(report, outcome.options.hazards)
        style = "bold green" if report.clean else "bold red"
        console.print(Text(words, style=style), soft_wrap=True)
        _render_launch(launch, report, outcome.options, console)
    for path in outcome.outputs:
        console.print(f"written: {path}", soft_wrap=True)
    for path in outcome.traces:
        console.print(f"timeline: {path} (open it at https://ui.perfetto.dev)", soft_wrap=True)
    if outcome.failure:
        console.print(Text(outcome.failure, style="bold red"), soft_wrap=True)


def _render_launch(launch: Launch, report: Emulation, options: Options, console: Console) -> None:
    extents = f"grid {_extents(launch.grid)}, block {_extents(launch.block)}"
    if launch.cluster != (1, 1, 1):
        extents += f", cluster {_extents(launch.cluster)}"
    shared = f"{launch.shared_bytes:,} bytes of dynamic shared memory"
    console.print(f"{short_name(launch.kernel)}: {extents}, {shared}", soft_wrap=True)
    rate = f"{report.instructions_per_second:,.0f} warp instructions per second"
    total = sum(run.instructions for run in report.runs)
    console.print(f"{len(report.runs)} runs, {total:,} warp instructions, {rate}")
    if not report.same_results:
        console.print("The results are not the same bits under every seed.")
    _render_deadlocks(report, console)
    code = emulation.code_of(launch)
    for number, group in enumerate(report.groups, 1):
        console.print()
        for line in group_lines(group, number, code):
            console.print(line, soft_wrap=True)
    recording = emulation.telling_run(report).recording
    if options.pipelines and recording is not None:
        _render_pipelines(recording, console)
        _render_ledgers(recording.ledgers, console)


def _render_deadlocks(report: Emulation, console: Console) -> None:
    """Each distinct deadlock once: most seeds end in the same one."""
    seen = set()
    for run in report.runs:
        words = tuple(run.deadlock.lines()) if run.deadlock else ()
        if words and words not in seen:
            seen.add(words)
            console.print()
            console.print(f"seed {run.seed}: {words[0]}", soft_wrap=True)
            for line in words[1:]:
                console.print(line, soft_wrap=True)


def _render_pipelines(recording: Recorder, console: Console) -> None:
    found = recording.pipelines.pipelines
    ctas = list(dict.fromkeys(pipeline.full.cta for pipeline in found))
    shown = set(ctas[:_SHOWN_CTAS])
    mine = [pipeline for pipeline in found if pipeline.full.cta in shown]
    if mine:
        columns = ("full", "empty", "acquire", "commit", "wait", "release")
        rows = [
            (
                _short(pipeline.full.name),
                None if pipeline.empty is None else _short(pipeline.empty.name),
                *pipeline.counts.values(),
            )
            for pipeline in mine
        ]
        console.print()
        console.print(table(f"Pipelines of CTA {_extents(ctas[0])}", columns, rows))
        for pipeline in mine:
            _render_payloads(pipeline, console)
    others = [stage for stage in recording.pipelines.others if not shown or stage.cta in shown]
    if others:
        counts = [(_short(s.name), s.arrivals, s.waits, s.phases) for s in others]
        console.print()
        console.print(table("Other mbarriers", ("name", "arrivals", "waits", "phases"), counts))
    if len(ctas) > _SHOWN_CTAS:
        console.print(f"CTAs that are not shown: {len(ctas) - _SHOWN_CTAS}. The JSON has them.")


def _render_payloads(pipeline: Pipeline, console: Console) -> None:
    """What each phase of a stage brought."""
    phases: dict[int, list[str]] = {}
    for payload in pipeline.full.payloads:
        phases.setdefault(payload.phase, []).append(payload.what)
    for phase, what in list(phases.items())[:_SHOWN_PHASES]:
        line = f"  {_short(pipeline.full.name)} phase {phase}: {', '.join(what)}"
        console.print(line, soft_wrap=True)
    if len(phases) > _SHOWN_PHASES:
        console.print(f"  and of {len(phases) - _SHOWN_PHASES} further phases")


def _short(name: str) -> str:
    """A barrier without a name is known by its place."""
    return name.removeprefix("mbarrier at ")


def _render_ledgers(ledgers: Sequence[Ledger], console: Console) -> None:
    ctas = list(dict.fromkeys(ledger.cta for ledger in ledgers))[:_SHOWN_CTAS]
    rows = []
    for ledger in ledgers:
        if ledger.cta in ctas:
            calls = [f"{call.action} {call.barrier}" for call in ledger.calls]
            lines = Counter(call.at for call in ledger.calls)
            warps = f"{ledger.warps[0]}..{ledger.warps[-1]}"
            rows.append((ledger.warpgroup, warps, ", ".join(_folded(calls)), ", ".join(lines)))
    if rows:
        console.print()
        title = f"Calls of named barriers, CTA {_extents(ctas[0])}"
        console.print(table(title, ("warpgroup", "warps", "calls in order", "at"), rows))


def _folded(calls: Sequence[str]) -> list[str]:
    """Repetitions of up to four calls written once: ``(sync 2, arrive 3) x 7``."""
    folded: list[str] = []
    place = 0
    while place < len(calls):
        best, times = 1, 1
        for length in range(1, 5):
            unit = calls[place : place + length]
            count = 1
            while calls[place + count * length : place + (count + 1) * length] == unit:
                count += 1
            if count > 1 and count * length > best * times:
                best, times = length, count
        unit = calls[place : place + best]
        one = ", ".join(unit)
        folded.append(one if times == 1 else f"({one}) x {times}")
        place += best * times
    return folded


def _extents(extents: Sequence[int]) -> str:
    return f"({', '.join(map(str, extents))})"

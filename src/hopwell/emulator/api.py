"""Run a launch under several seeds and report what was found."""

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hopwell import ptx
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.hazards import Checker, HazardGroup, NullChecker, merge_groups
from hopwell.emulator.machine import Machine
from hopwell.emulator.names import Names
from hopwell.emulator.policy import Landing, Policy
from hopwell.emulator.program import Program, build
from hopwell.errors import InputError


@dataclass
class Run:
    """One run under one seed.

    Attributes:
        seed, landing: the schedule.
        instructions: warp instructions executed.
        copies: asynchronous copies that landed.
        seconds: wall time.
        deadlock: the wait-for graph, where nothing could go on.
        results: SHA-256 of each buffer after the run.
        groups: the hazards of this run.
        barriers: per mbarrier, what happened at it.
    """

    seed: int
    landing: str
    instructions: int
    copies: int
    seconds: float
    deadlock: Any
    results: dict[str, str]
    groups: list[HazardGroup]
    barriers: list[Any] = field(default_factory=list)
    recording: Any = None


@dataclass
class Report:
    """What all runs of a launch found.

    Attributes:
        kernel: the entry function.
        runs: one per seed.
        groups: hazards grouped by cause over all runs, the most frequent first.
    """

    kernel: str
    runs: list[Run]
    groups: list[HazardGroup]

    @property
    def clean(self) -> bool:
        """No hazard and no deadlock under any seed."""
        return not self.groups and not any(run.deadlock for run in self.runs)

    @property
    def rules(self) -> list[str]:
        """The names of the rules that were broken, most frequent first."""
        return list(dict.fromkeys(group.rule for group in self.groups))

    @property
    def same_results(self) -> bool:
        """Whether every seed left the same bits in every buffer."""
        return all(run.results == self.runs[0].results for run in self.runs)

    @property
    def instructions_per_second(self) -> float:
        """Warp instructions per second of wall time over all runs."""
        return sum(run.instructions for run in self.runs) / sum(run.seconds for run in self.runs)


def emulate(
    launch: Launch,
    *,
    seeds: int | Iterable[int] = 1,
    hazards: bool = True,
    landing: Landing | None = None,
    limit: int = 20_000_000,
    resident: int = 132,
    names: Names | Mapping[str, tuple[int, int]] | None = None,
    record: bool = False,
    until_hazard: bool = False,
) -> Report:
    """Run a launch on the CPU; its buffers hold the last seed's result afterwards.

    Args:
        launch: what to run (:class:`Launch`, :func:`launch_of`, or captured from a program).
        seeds: how many schedules to try, or which. See
            :class:`~hopwell.emulator.policy.Policy` for what each is about.
        hazards: look for hazards; without, only results, deadlocks and instruction errors.
        landing: "early", "late" or "random" for all seeds.
        limit: instructions of one warp after which its loop counts as unbounded.
        resident: CTAs that run at the same time (132: as on an H200 with one CTA per SM).
        names: names of ranges of dynamic shared memory, (first byte, bytes).
        record: keep a timeline for :mod:`hopwell.emulator.trace`.
        until_hazard: end a run soon after its first hazard; what it left in memory means nothing.

    What raises leaves the buffers as they were before the call.

    Raises:
        InputError: no seeds, or a limit that lets nothing run.
        ProgramError, UnsupportedInstruction, PtxNameError, PtxSyntaxError: the PTX cannot be run.
    """
    program = _program(launch.ptx, launch.filename, launch.kernel)
    chosen = list(seeds) if isinstance(seeds, Iterable) else list(range(seeds))
    _positive("seeds", len(chosen))
    _positive("limit", limit)
    _positive("resident", resident)
    named = names if isinstance(names, Names) else Names(dict(names or {}))
    original = [buffer.array.copy() for buffer in launch.buffers]
    runs = []
    try:
        for seed in chosen:
            _restore(launch, original)
            policy = Policy.of(seed, landing)
            runs.append(
                _run(program, launch, policy, hazards, limit, resident, named, record, until_hazard)
            )
    except BaseException:
        _restore(launch, original)
        raise
    return Report(launch.kernel, runs, merge_groups(run.groups for run in runs))


def _restore(launch: Launch, original: list[Any]) -> None:
    for buffer, before in zip(launch.buffers, original, strict=True):
        buffer.array[...] = before


def _positive(what: str, value: int) -> None:
    if value < 1:
        raise InputError(what, expected="at least one", actual=value, consequence="Nothing ran.")


def _run(
    program: Program,
    launch: Launch,
    policy: Policy,
    hazards: bool,
    limit: int,
    resident: int,
    names: Names,
    record: bool,
    until_hazard: bool,
) -> Run:

    checker = Checker(policy.seed) if hazards else NullChecker()
    recorder = _recorder() if record else None
    machine = Machine(
        program, launch, policy, checker, limit=limit, resident=resident, names=names,
        recorder=recorder, until_hazard=until_hazard,
    )  # fmt: skip
    start = time.perf_counter()
    machine.run()
    seconds = time.perf_counter() - start
    results = {
        buffer.name: hashlib.sha256(buffer.array.tobytes()).hexdigest() for buffer in launch.buffers
    }
    return Run(
        policy.seed, policy.landing, machine.executed, machine.copies_done, seconds,
        machine.deadlock, results, list(checker.groups), recording=recorder,
    )  # fmt: skip


@lru_cache(maxsize=32)
def _program(text: str, filename: str, kernel: str) -> Program:
    return build(ptx.parse(text, filename), kernel)


def _recorder() -> Any:
    from hopwell.emulator.recorder import Recorder

    return Recorder()

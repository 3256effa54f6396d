"""The benchmark record: a measured number beside everything that produced it (spec 0x0D).

One JSON schema for timed benchmarks (kind ``bench.forward``) and for the GPU test run
(``tests.gpu``). The sections are those of spec 0x0D's "Reproduction And Rollback Manifest":
identity, environment and measurement belong to the record; problem, dispatch, clocks and
correctness to each row. Times are seconds, sizes bytes. ``read(write(r)) == r``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hopwell.bench.accuracy import Errors
from hopwell.bench.grid import Cell
from hopwell.bench.timing import Statistic
from hopwell.decode import decode
from hopwell.errors import InputError

#: Raised whenever a field changes its meaning or goes; added optional fields keep it.
SCHEMA = 1

BENCH_FORWARD = "bench.forward"
TESTS_GPU = "tests.gpu"
KINDS = (BENCH_FORWARD, TESTS_GPU)

#: Contender name of this library's own rows.
OURS = "hopwell"


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel that the record's run executed.

    ``rungs`` are the claims this record supports for it: "executed" (ran and was compared with
    float64), "timed". ``tests`` names the GPU tests that executed it.
    """

    plan_name: str
    compile_key: str
    artifact_hash: str
    kernel_symbol: str
    source: str  # "wheel", "cache" or "compiled"
    rungs: tuple[str, ...]
    tests: tuple[str, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """What was run: versions, commit, sources and artifacts."""

    hopwell: str
    commit: str | None
    modified: bool | None  # uncommitted changes; None where git could not be asked
    source_sha256: str  # over the package's own files
    dependencies: dict[str, str]
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True)
class GpuState:
    """One reading of clocks (MHz), power (W) and temperature (degrees C)."""

    sm_mhz: float | None
    memory_mhz: float | None
    power_watts: float | None
    temperature_c: float | None


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: str
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    max_sm_mhz: float | None
    power_limit_watts: float | None
    performance_state: str | None
    persistence_mode: str | None
    before: GpuState
    after: GpuState


@dataclass(frozen=True)
class Environment:
    """Where it was run."""

    gpu: Gpu | None
    driver: str | None
    cuda: str | None
    cudnn: str | None
    torch: str
    python: str
    platform: str


@dataclass(frozen=True)
class Measurement:
    """How it was measured; each boundary says what a time includes."""

    flop_convention: str
    flop_formula: str
    inputs: str
    warm_up: str
    repetitions: str
    synchronization: str
    statistic: str
    boundaries: dict[str, str]


@dataclass(frozen=True)
class Dispatch:
    """What was asked for and what ran.

    ``ran`` is the backend of this library or the operator of a peer; ``kernels`` are the device
    kernels that the profiler saw, empty where it was not asked.
    """

    requested: str
    ran: str
    plan: dict[str, Any] | None = None
    plan_name: str | None = None
    compile_key: str | None = None
    artifact_hash: str | None = None
    kernel_symbol: str | None = None
    scheduler: str | None = None
    cache: str | None = None
    fallback: tuple[str, ...] | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clocks:
    """The four clocks of spec 0x0D, in seconds; None where one was not read."""

    developer_compile: float | None = None  # specialisation of the source to an artifact
    cold_first_call: float | None = None  # validation, look-up or compilation, load, launch
    warm_kernel: Statistic | None = None  # the selected kernel alone, by device events
    end_to_end: Statistic | None = None  # from an idle device to a finished call


@dataclass(frozen=True)
class Correctness:
    """Errors against ``reference`` over ``pairs`` (batch, head) pairs of the problem."""

    reference: str
    pairs: int
    errors: Errors
    repeatable: bool  # two runs were bitwise equal
    tolerance: str


@dataclass(frozen=True)
class Row:
    """One contender on one problem."""

    contender: str
    version: str
    problem: Cell
    inputs: str
    dispatch: Dispatch
    clocks: Clocks
    tflops: float | None
    correctness: Correctness | None
    load: GpuState | None = None  # read while the cell's work ran


@dataclass(frozen=True)
class Host:
    """Host-side clocks of one contender on a tiny problem, in seconds."""

    contender: str
    enqueue: Statistic


@dataclass(frozen=True)
class Record:
    """One run. ``absent`` maps peers that did not run to their reason; ``notes`` are free text."""

    kind: str
    created: str  # UTC, ISO 8601
    identity: Identity
    environment: Environment
    measurement: Measurement | None = None
    rows: tuple[Row, ...] = ()
    host: tuple[Host, ...] = ()
    #: New processes, see :mod:`hopwell.bench.new_process`.
    new_process: dict[str, Statistic] = field(default_factory=dict)
    wheel_bytes: int | None = None
    absent: dict[str, str] = field(default_factory=dict)
    #: Test runs: "passed", "failed", "skipped" counts.
    outcomes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    def of(self, contender: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.contender == contender)


def write(record: Record, path: Path) -> None:
    """Write JSON atomically: an interrupted run leaves the previous record whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(asdict(record), indent=1, sort_keys=True) + "\n")
    draft.replace(path)


def read(path: Path) -> Record:
    """Read a record.

    Raises:
        InputError: the file is not a record of this schema.
    """
    try:
        record = decode(Record, path.read_text("utf-8"))
        actual = f"kind {record.kind!r} of schema {record.schema}"
        known = record.schema == SCHEMA and record.kind in KINDS
    except (ValueError, OSError) as error:
        known, actual = False, str(error)
    if not known:
        raise InputError(
            f"record {path.name}",
            expected=f"a benchmark record of schema {SCHEMA}",
            actual=actual,
            consequence="The file was not used.",
        )
    return record


def read_all(directory: Path) -> tuple[tuple[Path, Record], ...]:
    """All records of a directory, oldest first; files of other schemas raise.

    Raises:
        InputError: there is no such directory, or a file is not a record of this schema.
    """
    if not directory.is_dir():
        raise InputError(
            "records",
            expected="a directory of records, as a clone of Hopwell has in benchmarks/records",
            actual=f"no directory {directory}",
            consequence="No record was read. Run in a clone, or give --records.",
        )
    found = [(path, read(path)) for path in sorted(directory.glob("*.json"))]
    return tuple(sorted(found, key=lambda entry: entry[1].created))


def newest(records: Iterable[Record], kind: str) -> Record | None:
    """The latest record of a kind, or None."""
    mine = sorted((r for r in records if r.kind == kind), key=lambda record: record.created)
    return mine[-1] if mine else None

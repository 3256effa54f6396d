"""``hopwell bench summary``: the newest record beside the targets that the project set itself.

Targets are data: what is wanted, and how a record answers. A target that a record cannot answer
in full is "not measured", which is not a pass: a comparison with the best peer needs every cell of
the grid and every peer on it, an error also the recorded inputs. ``where`` lists what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from hopwell import data
from hopwell.bench import accuracy
from hopwell.bench.forward import GAUSSIAN, geometric_mean, ratio_to_best_peer, recorded_label
from hopwell.bench.grid import standard_grid
from hopwell.bench.peers import PEERS
from hopwell.bench.record import BENCH_FORWARD, OURS, Record, Row, newest
from hopwell.hopper.expect import NO_SPILLS_UP_TO


@dataclass(frozen=True)
class Reading:
    """What a record says: the deciding value and where it was found.

    Without a value, ``where`` says what the record lacks.
    """

    value: float | None
    where: str


@dataclass(frozen=True)
class Target:
    """``reached`` must be at most ``limit``, or at least, when ``at_least``."""

    name: str
    limit: float
    unit: str
    read: Callable[[Record], Reading | None]
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True)
class Verdict:
    """One line of the summary. ``holds`` is None when the record does not answer."""

    target: str
    wanted: str
    reached: str
    holds: bool | None
    where: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


#: Units of values that compare two of a kind.
RATIOS = ("geomean", "x")


def _text(value: float, unit: str) -> str:
    """Ratios with two decimals, all else with three digits."""
    return f"{value:.2f} {unit}" if unit in RATIOS else f"{value:.4g} {unit}".rstrip()


def _missing_cells(record: Record, contenders: Sequence[str]) -> list[str]:
    """Cells of the grid without a timed and compared row, by contender."""
    gaps = []
    for name in contenders:
        rows = [row for row in record.of(name) if row.inputs == GAUSSIAN]
        done = {row.problem for row in rows if row.tflops and row.correctness}
        lacking = [cell.name for cell in standard_grid() if cell not in done]
        if lacking:
            shown = ", ".join(lacking[:4]) + (", ..." if len(lacking) > 4 else "")
            gaps.append(f"{name} on {len(lacking)} of {len(standard_grid())} cells ({shown})")
    return gaps


def _missing_recorded(record: Record, peers: bool) -> list[str]:
    """Recorded inputs that we, or with ``peers`` every peer, did not compute with either mask."""
    gaps = []
    for layer in data.provenance()["layers"]:
        label = recorded_label(layer)
        rows = [row for row in record.rows if row.inputs == label and row.correctness]
        for mask, causal in (("full", False), ("causal", True)):
            names = {row.contender for row in rows if row.problem.causal == causal}
            if OURS not in names or (peers and names == {OURS}):
                gaps.append(f"{label}, {mask}")
    return gaps


def _incomplete(gaps: list[str]) -> Reading | None:
    return Reading(None, "missing: " + "; ".join(gaps)) if gaps else None


def _largest(found: Iterable[tuple[float, str]]) -> Reading | None:
    """The worst of what should be small. NaN compares as nothing, and is worse than everything."""
    worst = max(found, key=lambda entry: (isnan(entry[0]), entry[0]), default=None)
    return worst and Reading(*worst)


def _geomean(record: Record) -> Reading | None:
    if gaps := _incomplete(_missing_cells(record, (OURS, *PEERS))):
        return gaps
    ratios = ratios_to_best_peer(record)
    worst = min(ratios, key=lambda name: ratios[name])
    slower = sum(ratio < 1 for ratio in ratios.values())
    where = f"{len(ratios)} cells, {slower} below 1; worst {worst} at {ratios[worst]:.2f}"
    return Reading(geometric_mean(record), where)


def ratios_to_best_peer(record: Record) -> dict[str, float]:
    """Our speed over the fastest peer's by name of the grid's cell, where both were timed."""
    found = {cell.name: ratio_to_best_peer(record, cell) for cell in standard_grid()}
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def _error_against_peers(name: str) -> Callable[[Record], Reading | None]:
    """The largest ratio, over problems, of our error to the smallest of the peers' errors."""

    def read(record: Record) -> Reading | None:
        gaps = _missing_cells(record, (OURS, *PEERS)) + _missing_recorded(record, peers=True)
        if gaps:
            return _incomplete(gaps)
        found = []
        for row in record.of(OURS):
            peers = [_error(other, name) for other in _same_problem(record, row)]
            sane = (peer for peer in peers if peer is not None and not isnan(peer))
            mine, best = _error(row, name), min(sane, default=None)
            if mine is None or best is None:
                continue
            ratio = mine / best if best else (1.0 if mine == 0 else float("inf"))
            where = f"{row.problem.name}, {row.inputs}: {mine:.2e}/{best:.2e}"
            found.append((ratio, where))
        return _largest(found)

    return read


def _same_problem(record: Record, row: Row) -> list[Row]:
    return [
        other
        for other in record.rows
        if other.contender != OURS and (other.problem, other.inputs) == (row.problem, row.inputs)
    ]


def _error(row: Row, name: str) -> float | None:
    value: float | None = getattr(row.correctness.errors, name) if row.correctness else None
    return value


def _our_gaps(record: Record) -> Reading | None:
    return _incomplete(_missing_cells(record, (OURS,)) + _missing_recorded(record, peers=False))


def _lse(record: Record) -> Reading | None:
    if gaps := _our_gaps(record):
        return gaps
    return _largest(
        (value, f"{row.problem.name}, {row.inputs}")
        for row in record.of(OURS)
        if (value := _error(row, "lse")) is not None
    )


def _repeatable(record: Record) -> Reading | None:
    if gaps := _our_gaps(record):
        return gaps
    rows = [row for row in record.of(OURS) if row.correctness]
    differing = [row for row in rows if row.correctness and not row.correctness.repeatable]
    return Reading(len(differing), f"{len(rows)} problems, each run twice")


def _host(record: Record) -> Reading | None:
    times = {host.contender: host.enqueue for host in record.host}
    if OURS not in times:
        return None
    peers = ", ".join(f"{n} {t.median * 1e6:.0f}" for n, t in times.items() if n != OURS)
    return Reading(times[OURS].median * 1e6, f"median of {times[OURS].samples}; peers: {peers}")


def _first_call(record: Record) -> Reading | None:
    names = ("import_and_first_call", "import_hopwell", "first_call")
    both, imported, call = (record.new_process.get(name) for name in names)
    if both is None or imported is None or call is None:
        return None
    where = (
        f"import {imported.median * 1e3:.1f} ms, first call {call.median * 1e3:.1f} ms; "
        f"{both.samples} processes, spread {both.spread:.0%}"
    )
    return Reading(both.median * 1e3, where)


def _compile(record: Record) -> Reading | None:
    found = record.new_process.get("compile")
    return None if found is None else Reading(found.median, f"median of {found.samples} processes")


def _spills(record: Record) -> Reading | None:
    """Spilled bytes of the kernels that ran, where a plan demands that there are none."""
    found = []
    for artifact in record.identity.artifacts:
        plan, resources = (artifact.manifest.get(name) for name in ("plan", "resources"))
        if not (isinstance(plan, dict) and isinstance(resources, dict)):
            continue
        spilled, dims = resources.get("spill_bytes"), (plan.get("head_dim"), plan.get("head_dim_v"))
        demanded = all(isinstance(dim, int) and dim <= NO_SPILLS_UP_TO for dim in dims)
        if isinstance(spilled, int) and demanded:
            found.append((float(spilled), artifact.plan_name))
    return _largest(found)


TARGETS = (
    Target("forward speed, of the best peer", 0.90, "geomean", _geomean, at_least=True),
    Target("Frobenius error, of the best peer", 1.10, "x", _error_against_peers("frobenius")),
    Target("largest row error, of the best peer", 1.25, "x", _error_against_peers("row_max")),
    Target("99.9% row error, of the best peer", 1.25, "x", _error_against_peers("row_p999")),
    Target("log-sum-exp error / max(1, |lse|/64)", accuracy.LSE_TOLERANCE, "", _lse),
    Target("problems whose two runs differ", 0, "", _repeatable),
    Target("host time to enqueue", 15.0, "us", _host),
    Target("first call in a new process", 20.0, "ms", _first_call),
    Target("compilation beyond the compiler's import", 3.0, "s", _compile),
    Target(f"spilled bytes, head_dim <= {NO_SPILLS_UP_TO}", 0, "", _spills),
)


def summarise(
    records: Iterable[Record], targets: Iterable[Target] = TARGETS
) -> tuple[Verdict, ...]:
    """The newest forward record against every target."""
    record = newest(records, BENCH_FORWARD)
    return tuple(_verdict(target, record) for target in targets)


def _verdict(target: Target, record: Record | None) -> Verdict:
    sign = ">=" if target.at_least else "<="
    wanted = f"{sign} {_text(target.limit, target.unit)}"
    reading = target.read(record) if record is not None else None
    if reading is None or reading.value is None:
        return Verdict(target.name, wanted, "not measured", None, reading.where if reading else "")
    return Verdict(
        target=target.name,
        wanted=wanted,
        reached=_text(reading.value, target.unit),
        holds=target.met_by(reading.value),
        where=reading.where,
    )

"""``hopwell bench summary``: the newest record beside the targets that the project set itself.

Targets are data: what is wanted, and how a record answers. A target that a record cannot answer
is "not measured", which is not a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from hopwell.bench import accuracy
from hopwell.bench.forward import geometric_mean, ratio_to_best_peer
from hopwell.bench.record import BENCH_FORWARD, OURS, Record, Row, newest


@dataclass(frozen=True)
class Reading:
    """What a record says: the deciding value and where it was found."""

    value: float
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


def _largest(readings: Iterable[Reading]) -> Reading | None:
    """The worst of what should be small. NaN compares as nothing, and is worse than everything."""
    return max(readings, key=lambda r: (isnan(r.value), r.value), default=None)


def _geomean(record: Record) -> Reading | None:
    value = geometric_mean(record)
    if value is None:
        return None
    cells = dict.fromkeys(row.problem for row in record.rows if row.tflops)
    ratios = {c.name: r for c in cells if (r := ratio_to_best_peer(record, c)) is not None}
    worst = min(ratios, key=lambda name: ratios[name])
    return Reading(value, f"{len(ratios)} cells; worst {worst} at {ratios[worst]:.2f}")


def _error_against_peers(name: str) -> Callable[[Record], Reading | None]:
    """The largest ratio, over problems, of our error to the smallest of the peers' errors."""

    def read(record: Record) -> Reading | None:
        found = []
        for row in record.of(OURS):
            peers = [_error(other, name) for other in _same_problem(record, row)]
            sane = (peer for peer in peers if peer is not None and not isnan(peer))
            mine, best = _error(row, name), min(sane, default=None)
            if mine is None or best is None:
                continue
            ratio = mine / best if best else (1.0 if mine == 0 else float("inf"))
            where = f"{row.problem.name}, {row.inputs}: {mine:.2e}/{best:.2e}"
            found.append(Reading(ratio, where))
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


def _lse(record: Record) -> Reading | None:
    return _largest(
        Reading(value, f"{row.problem.name}, {row.inputs}")
        for row in record.of(OURS)
        if (value := _error(row, "lse")) is not None
    )


def _repeatable(record: Record) -> Reading | None:
    rows = [row for row in record.of(OURS) if row.correctness]
    differing = [row for row in rows if row.correctness and not row.correctness.repeatable]
    if not rows:
        return None
    return Reading(len(differing), f"{len(rows)} problems, each run twice")


def _host(record: Record) -> Reading | None:
    times = {host.contender: host.enqueue for host in record.host}
    if OURS not in times:
        return None
    peers = ", ".join(f"{n} {t.median * 1e6:.0f}" for n, t in times.items() if n != OURS)
    return Reading(times[OURS].median * 1e6, f"median of {times[OURS].samples}; peers: {peers}")


def _first_call(record: Record) -> Reading | None:
    call = record.new_process.get("first_call")
    imported = record.new_process.get("import_hopwell")
    if call is None or imported is None:
        return None
    parts = f"import {imported.median * 1e3:.1f} ms, first call {call.median * 1e3:.1f} ms"
    return Reading((imported.median + call.median) * 1e3, parts)


def _compile(record: Record) -> Reading | None:
    found = record.new_process.get("compile")
    return None if found is None else Reading(found.median, f"median of {found.samples} processes")


def _spills(record: Record) -> Reading | None:
    """Spilled bytes of the timed kernels with head_dim up to 128."""
    found = []
    for artifact in record.identity.artifacts:
        plan, resources = (artifact.manifest.get(name) for name in ("plan", "resources"))
        if not (isinstance(plan, dict) and isinstance(resources, dict)):
            continue
        spilled, head_dim = _spilled_bytes(resources), plan.get("head_dim")
        if spilled is not None and isinstance(head_dim, int) and head_dim <= 128:
            found.append(Reading(spilled, artifact.plan_name))
    return _largest(found)


def _spilled_bytes(resources: dict[str, Any]) -> float | None:
    counts = [v for key, v in resources.items() if "spill" in key and isinstance(v, (int, float))]
    return float(sum(counts)) if counts else None


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
    Target("spilled bytes, head_dim <= 128", 0, "", _spills),
)


def summarise(
    records: Iterable[Record], targets: Iterable[Target] = TARGETS
) -> tuple[Verdict, ...]:
    """The newest forward record against every target."""
    record = newest(records, BENCH_FORWARD)
    return tuple(_verdict(target, record) for target in targets)


def _verdict(target: Target, record: Record | None) -> Verdict:
    sign = ">=" if target.at_least else "<="
    wanted = f"{sign} {target.limit:g} {target.unit}".rstrip()
    reading = target.read(record) if record is not None else None
    if reading is None:
        return Verdict(target.name, wanted, "not measured", None, "")
    return Verdict(
        target=target.name,
        wanted=wanted,
        reached=f"{reading.value:.3g} {target.unit}".rstrip(),
        holds=target.met_by(reading.value),
        where=reading.where,
    )

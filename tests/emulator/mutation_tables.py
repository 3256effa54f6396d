"""The records of the mutants as Markdown, for docs/emulator-mutations.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tests.emulator.mutation_subjects import SUBJECTS, Subject
from tests.emulator.mutation_survivors import REASONS, SURVIVORS

from hopwell.emulator.mutate import OPERATORS
from hopwell.emulator.mutation_matrix import KILLERS, Matrix, Row

#: Makes a Markdown table of a header and rows.
Table = Callable[[Sequence[str], Sequence[Sequence[object]]], str]


def document(table: Table) -> str:
    """Kill rates by operator and by what killed, and every survivor with its reason."""
    records = {subject: record for subject in SUBJECTS.values() if (record := subject.recorded())}
    parts = [
        "Killed, of all mutants:\n\n" + _by_operator(records, table),
        "What killed them; under a hazard, the rule that was broken first:\n\n"
        + _by_killer(records, table),
        *(_survivors(subject, record) for subject, record in records.items()),
    ]
    return "\n".join(parts)


def _by_operator(records: dict[Subject, Matrix], table: Table) -> str:
    heads = ["operator", *(subject.title for subject in records)]
    rows = [
        [name, *(_rate([r for r in m.rows if r.operator == name]) for m in records.values())]
        for name in OPERATORS
    ]
    rows = [row for row in rows if any(row[1:])]
    return table(heads, [*rows, ["all", *(_rate(m.rows) for m in records.values())]])


def _rate(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return f"{len(rows) - len(Matrix('', '', tuple(rows)).survivors)} of {len(rows)}"


def _by_killer(records: dict[Subject, Matrix], table: Table) -> str:
    counts = {
        subject: Counter(_killer(row) for row in record.rows)
        for subject, record in records.items()
    }  # fmt: skip
    total: Counter[str] = sum(counts.values(), Counter())
    names = sorted(total, key=lambda name: (name in (*KILLERS, "survived"), -total[name], name))
    heads = ["killed by", *(subject.title for subject in records)]
    return table(heads, [[name, *(c[name] or "" for c in counts.values())] for name in names])


def _killer(row: Row) -> str:
    killer = row.outcome.killed_by
    return f"`{row.outcome.rules[0]}`" if killer == "hazard" else killer


def _survivors(subject: Subject, record: Matrix) -> str:
    rows = {row.key: row for row in record.survivors}
    text = f"### Survivors: {subject.title}\n\n`{record.artifact}`\n"
    for name, keys in SURVIVORS.get(subject.name, {}).items():
        reason = REASONS[name]
        text += f"\n**{name}** ({reason.kind}). {reason.text}\n\n"
        for row in (rows[key] for key in keys if key in rows):
            text += f"- line {row.line}, {row.operator}: {row.description}\n"
    return text

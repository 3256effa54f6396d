"""Mutants of our forward and of flash-attn-4's: all killed, or explained one by one."""

from __future__ import annotations

import pytest
from tests.emulator.mutation_subjects import SUBJECTS, Subject
from tests.emulator.mutation_survivors import REASONS, SURVIVORS, reasons_of

from hopwell.emulator.mutate import OPERATORS, Mutant
from hopwell.emulator.mutation_matrix import Matrix, Row

EVERY = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=lambda subject: subject.name)


def record_of(subject: Subject) -> Matrix:
    """The record, where it speaks for today's code; otherwise the test is skipped."""
    reason = subject.missing or subject.stale()
    if reason is not None:
        pytest.skip(f"mutants of {subject.title}: {reason}")
    record = subject.recorded()
    assert record is not None
    return record


def verdicts(rows: tuple[Row, ...]) -> dict[str, tuple[str, set[str]]]:
    """What killed each mutant, and the rules that it broke."""
    return {row.key: (row.outcome.killed_by, set(row.outcome.rules)) for row in rows}


def assert_agrees(
    subject: Subject, chosen: list[Mutant], record: Matrix, problems: int | None = None
) -> None:
    found = verdicts(subject.run(chosen, problems=problems).rows)
    recorded = verdicts(record.rows)
    assert found == {mutant.key: recorded[mutant.key] for mutant in chosen}


@EVERY
def test_every_survivor_is_explained(subject: Subject) -> None:
    record = subject.recorded()
    if record is None:
        pytest.skip(f"mutants of {subject.title}: {subject.record.name} is missing")
    reasons = reasons_of(subject.name)
    assert set(reasons) == {row.key for row in record.survivors}
    assert set(reasons.values()) <= set(REASONS)
    assert record.explained(reasons).unexplained == ()


def test_no_explanation_is_idle() -> None:
    assert set(SURVIVORS) <= set(SUBJECTS)
    used = {reason for subject in SURVIVORS for reason in SURVIVORS[subject]}
    assert used == set(REASONS)
    for reasons in SURVIVORS.values():
        keys = [key for keys in reasons.values() for key in keys]
        assert len(keys) == len(set(keys)), "explained twice"


@EVERY
def test_the_record_holds_every_mutant(subject: Subject) -> None:
    record = record_of(subject)
    assert [row.key for row in record.rows] == [mutant.key for mutant in subject.mutants()]


@EVERY
@pytest.mark.timeout(300)
def test_a_sample_agrees_with_the_record(subject: Subject) -> None:
    """For each operator one mutant that the first problem kills, and one survivor."""
    record = record_of(subject)
    mutants = {mutant.key: mutant for mutant in subject.mutants()}
    first = next(iter(subject.problems))
    killed = [row for row in record.rows if row.outcome.problem == first]
    by_operator = [[row for row in killed if row.operator == name] for name in OPERATORS]
    sample = [mutants[rows[len(rows) // 2].key] for rows in by_operator if rows]
    assert len(sample) >= 10
    assert_agrees(subject, sample, record, problems=1)
    # A survivor takes every problem and seed.
    survivor = record.survivors[len(record.survivors) // 2]
    assert_agrees(subject, [mutants[survivor.key]], record)


@EVERY
@pytest.mark.emulator_long
@pytest.mark.timeout(3600)
def test_every_mutant_agrees_with_the_record(subject: Subject) -> None:
    record = record_of(subject)
    assert_agrees(subject, subject.mutants(), record)

"""The failure lab: every fault of the spec's bug tables is named, and without it all is clean."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.emulator.failure_lab import lab, record, table
from tests.emulator.failure_lab.edits import Edit, applied
from tests.emulator.failure_lab.table import ELSEWHERE, FAULTS, Elsewhere, Fault

from hopwell.compile.build import build
from hopwell.emulator.hazards.rules import RULES
from hopwell.errors import CompileError, PlanError
from hopwell.hopper.plan import HopperForwardPlan


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.row)
def test_fault_is_named(fault: Fault) -> None:
    report = lab.run(fault.plan, fault.edits).report
    assert fault.expected in report.rules
    assert set(report.rules) - {fault.expected} <= fault.follows
    assert re.search(fault.says, lab.words(report))


@pytest.mark.parametrize(
    "plan",
    dict.fromkeys(row.plan for row in (*FAULTS, *ELSEWHERE)),
    ids=lambda plan: plan.name,
)
def test_control_is_clean(plan: HopperForwardPlan) -> None:
    """The same problem and seeds, the kernel as it is."""
    result = lab.run(plan)
    assert result.report.rules == []
    assert result.report.clean
    assert result.right


@pytest.mark.parametrize("row", [row for row in ELSEWHERE if row.edits], ids=lambda row: row.row)
def test_fault_that_breaks_nothing_here(row: Elsewhere, tmp_path: Path) -> None:
    """The machine finds nothing wrong, and nothing is; what the compiled kernel shows, a build
    refuses."""
    result = lab.run(row.plan, row.edits)
    assert result.report.clean
    assert result.right
    if row.differs:
        with applied(row.edits), pytest.raises(CompileError, match=row.differs):
            build(row.plan, tmp_path)


def test_plans_beyond_the_budget_are_refused() -> None:
    """0x0E, "Add a third stage blindly" and a register target that no pool holds."""
    with pytest.raises(PlanError, match="shared memory"):
        dataclasses.replace(table.PLAN, head_dim=128, head_dim_v=128, tile_n=128, stages=3)
    with pytest.raises(PlanError, match="register targets"):
        dataclasses.replace(table.PLAN, producer_registers=56)


def test_rows_and_rules_are_known() -> None:
    rows = [row.row for row in (*FAULTS, *ELSEWHERE)]
    assert len(rows) == len(set(rows))
    for fault in FAULTS:
        assert {fault.expected, *fault.follows} <= set(RULES)


def test_the_documented_names_are_those_of_today() -> None:
    """The record that docs are generated from speaks of the table's faults."""
    recorded = {entry["row"]: entry["rule"] for entry in record.read()}
    assert recorded == {fault.row: fault.expected for fault in FAULTS}, record.RENEW


def test_an_edit_without_its_place_fails() -> None:
    with pytest.raises(ValueError, match="0 times"), applied([Edit("ring.Ring.parity", "gone")]):
        pass


def test_an_edit_lasts_as_long_as_its_block() -> None:
    from hopwell.hopper import consumer, fragments

    before = fragments.issue
    with applied([Edit("fragments.issue", "    warpgroup.fence()\n")]):
        assert vars(consumer)["issue"] is fragments.issue
        assert fragments.issue is not before
    assert vars(consumer)["issue"] is fragments.issue is before

"""What each fault of the lab was called, and the two lines that the report showed: for the docs.

python -m tests.emulator.failure_lab.record
"""

from __future__ import annotations

import json
import linecache
import re
from pathlib import Path
from typing import Any

from tests.emulator.failure_lab import lab
from tests.emulator.failure_lab.edits import applied
from tests.emulator.failure_lab.table import FAULTS, Fault

from hopwell.emulator.hazards import HazardGroup
from hopwell.emulator.hazards.report import Access

RECORD = Path(__file__).parents[1] / "records" / "failure_lab.json"
RENEW = "python -m tests.emulator.failure_lab.record"


def read() -> list[dict[str, Any]]:
    """One entry per fault, in the table's order."""
    entries: list[dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else []
    return entries


def entry(fault: Fault) -> dict[str, Any]:
    """Run a fault; what the docs say of it. ``first`` is None where a report has one side."""
    with applied(fault.edits):  # the edited source must still be there when its lines are read
        report = lab.run(fault.plan, fault.edits).report
        group = next(group for group in report.groups if group.rule == fault.expected)
        return {
            "row": fault.row,
            "section": fault.section,
            "made": fault.made,
            "also": fault.also,
            "rule": group.rule,
            "first": _line(group.example.first),
            "second": _line(group.example.second),
            "missing": _missing(group),
        }


def _missing(group: HazardGroup) -> str:
    """The missing edge, with files by name: where they lie is no part of the record."""
    return re.sub(r"/\S*/(?=[\w.]+:\d)", "", group.example.missing)


def _line(access: Access | None) -> str | None:
    """The file and the text of a line, which outlive its number; the opcode without one."""
    if access is None:
        return None
    if access.source is None:
        return access.instruction
    text = linecache.getline(access.source.file, access.source.line).strip()
    return f"{Path(access.source.file).name}: {text or access.instruction}"


def main() -> None:
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps([entry(fault) for fault in FAULTS], indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What is expected of a compiled kernel, beside what the inspector found. Imports no plan.

What is expected comes from the module that a plan names (``expectation_module``), which reads the
plan alone; :mod:`hopwell.compile.inspect` reads the artifact alone. They meet only here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopwell.compile.inspect import (
    Actual,
    MBarriers,
    NamedBarrier,
    RegisterTarget,
    TensorCopies,
)
from hopwell.compile.key import Plan


@dataclass(frozen=True)
class Row:
    """One line of the comparison."""

    name: str
    expected: object
    actual: object
    ok: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "expected": str(self.expected),
            "actual": str(self.actual),
            "ok": self.ok,
        }


def expected(plan: Plan) -> dict[str, object]:
    """Named values that the plan demands; none where it names no expectation."""
    if plan.expectation_module is None:
        return {}
    values: dict[str, object] = importlib.import_module(plan.expectation_module).expected(plan)
    return values


_VALUES: dict[str, Callable[[Actual], object]] = {
    "threads": lambda a: a.threads,
    "registers at launch": lambda a: a.registers,
    "register targets in all": lambda a: len(a.register_targets),
    "USETMAXREG instructions": lambda a: a.usetmaxreg,
    "element type": lambda a: a.element_type,
    "shared memory raw": lambda a: a.payload_bytes,
    "shared memory aligned": lambda a: a.barriers_end,
    "shared memory launched": lambda a: a.shared_launched,
    "CTAs per SM": lambda a: a.ctas_per_sm,
    "mbarriers in all": lambda a: sum(run.count for run in a.mbarriers),
    "named barriers in all": lambda a: len(a.named_barriers),
    "wgmma order": lambda a: a.wgmma_order,
    "wgmma groups without a fence": lambda a: a.wgmma_unfenced,
    "HGMMA instructions": lambda a: a.hgmma,
    "O multiplies between the products": lambda a: a.multiplies_between_products,
    "mirrored tile order": lambda a: a.cta_order_mirrored,
    "local memory accesses": lambda a: a.local_accesses,
    "stack bytes": lambda a: a.stack_bytes,
}


def compare(expected: Mapping[str, object], actual: Actual) -> list[Row]:
    """One row per expected value. A barrier or copy that is not where it should be is None."""
    rows = []
    for name, value in expected.items():
        found: object
        if isinstance(value, MBarriers):
            found = next((run for run in actual.mbarriers if run.offset == value.offset), None)
        elif isinstance(value, NamedBarrier):
            found = next((b for b in actual.named_barriers if b.id == value.id), None)
        elif isinstance(value, RegisterTarget):
            found = next((t for t in actual.register_targets if t.warps == value.warps), None)
        elif isinstance(value, TensorCopies):
            found = next((c for c in actual.tensor_copies if c.barrier == value.barrier), None)
        else:
            found = _VALUES[name](actual)
        rows.append(Row(name, value, found, found == value))
    return rows

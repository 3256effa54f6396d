"""Happens-before over shared, distributed and global memory; hazards as data."""

from hopwell.emulator.hazards.checker import Checker
from hopwell.emulator.hazards.clocks import Clock
from hopwell.emulator.hazards.events import AsyncOp
from hopwell.emulator.hazards.null import NullChecker
from hopwell.emulator.hazards.report import (
    SCHEMA,
    Access,
    Hazard,
    HazardGroup,
    lines,
    merge_groups,
    to_dict,
    to_json,
    verdict,
)
from hopwell.emulator.hazards.rules import RULES, Rule
from hopwell.emulator.hazards.shadow import Named, Region

__all__ = [
    "RULES",
    "SCHEMA",
    "Access",
    "AsyncOp",
    "Checker",
    "Clock",
    "Hazard",
    "HazardGroup",
    "Named",
    "NullChecker",
    "Region",
    "Rule",
    "lines",
    "merge_groups",
    "to_dict",
    "to_json",
    "verdict",
]

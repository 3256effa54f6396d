"""The hazards of one run, grouped as they are found."""

from __future__ import annotations

from collections.abc import Mapping

from hopwell.emulator.hazards.classify import Conflict, Judge
from hopwell.emulator.hazards.events import Event, Op
from hopwell.emulator.hazards.report import Access, Hazard, HazardGroup
from hopwell.emulator.hazards.rules import RULES
from hopwell.emulator.hazards.words import Words, access
from hopwell.emulator.lanes import Lanes


class Columns:
    """The columns of completions: a number for each kind and key, counted downwards from -1."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, object], int] = {}
        self.names: dict[int, str] = {}
        self.keys: dict[int, tuple[str, object]] = {}
        self.mbarriers: set[int] = set()

    def number(self, kind: str, key: object, name: str = "") -> int:
        """The column of ``key``; ``name`` replaces what it was called before."""
        number = self._numbers.get((kind, key))
        if number is None:
            number = self._numbers[kind, key] = -len(self._numbers) - 1
            self.keys[number] = (kind, key)
            self.names[number] = f"{kind} {key}"
            if kind == "mbarrier":
                self.mbarriers.add(number)
        if name:
            self.names[number] = name
        return number


class Findings:
    """Turns conflicts into hazards and counts those of one cause."""

    def __init__(self, seed: int | None, columns: Columns) -> None:
        self._seed = seed
        self._mbarriers = columns.mbarriers
        self._judge = Judge(columns.mbarriers)
        self._words = Words(columns.names, columns.mbarriers)
        self._groups: dict[tuple[object, ...], HazardGroup] = {}

    @property
    def groups(self) -> list[HazardGroup]:
        """One group per cause, in the order of the first finding."""
        return list(self._groups.values())

    def access(self, event: Event, start: int, stop: int, lane: int) -> Access:
        """One side of a hazard."""
        return access(event, start, stop, lane, self._mbarriers)

    def conflict(self, conflict: Conflict, rule: str = "", missing: str = "") -> None:
        """Two accesses without an order; ``rule`` and ``missing`` where they are known."""
        first, second = conflict.first, conflict.second
        rule = rule or self._judge.rule(conflict)
        key = (rule, first.op.pc, first.kind, second.op.pc, second.kind)
        if self._counted(key):
            return
        missing = missing or self._words.missing(rule, conflict)
        facts: dict[str, object] = {"bytes": conflict.count}
        if first.handle is not None and first.writes:
            facts["landed"] = first.handle.landed
        bounds = (conflict.start, conflict.stop)
        self._groups[key] = self._group(
            Hazard(
                rule,
                self.access(first, *bounds, conflict.first_lane),
                self.access(second, *bounds, conflict.second_lane),
                missing,
                self._seed,
                facts,
            )
        )

    def single(
        self,
        rule: str,
        pc: int,
        second: Access,
        missing: str,
        facts: Mapping[str, object],
        first: Access | None = None,
    ) -> None:
        """A hazard that is no conflict of two accesses to memory."""
        key = (rule, pc, None if first is None else (first.location, first.instruction))
        if not self._counted(key):
            self._groups[key] = self._group(
                Hazard(rule, first, second, missing, self._seed, dict(facts))
            )

    def _group(self, hazard: Hazard) -> HazardGroup:
        return HazardGroup(hazard, seeds=[] if self._seed is None else [self._seed])

    def _counted(self, key: tuple[object, ...]) -> bool:
        group = self._groups.get(key)
        if group is not None:
            group.count += 1
        return group is not None


def plain_access(agent: str, lanes: Lanes, op: Op, kind: str = "instruction") -> Access:
    """What an instruction did that touched no memory, or none that matters."""
    if lanes.count == 1:
        agent += f" lane {lanes.first}"
    return Access(agent, kind, op.node.opcode, op.node.location, op.node.source)


def check_rule(rule: str) -> None:
    """Refuse a name that the table of rules does not have."""
    if rule not in RULES:
        raise KeyError(f"no rule is called {rule!r}; hopwell.emulator.hazards.rules lists them")

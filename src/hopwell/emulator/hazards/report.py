"""Hazards as data: both accesses, the missing edge, groups by cause, JSON and lines of text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopwell.emulator.hazards.rules import RULES

if TYPE_CHECKING:
    from hopwell.ptx.nodes import Location, SourceLine

#: The version of :func:`to_json`. A field that changes its meaning, or goes, raises the number.
SCHEMA = "hopwell.hazards/1"

#: The text of a line of a file, "" where it cannot be read.
Code = Callable[[str, int], str]

#: Of the further pairs of one cause so many are shown in text.
_SHOWN = 2

#: Facts are plain values, so that they survive JSON.
Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """One side of a hazard: who did what, where in the program, to which bytes.

    Attributes:
        agent: "CTA (0,0,0) warp 4 lane 3", "tma-load issued by CTA (0,0,0) warp 0 lane 0"; ""
            where only the instruction is known.
        kind: "read", "write", "atomic", "wait", "arrive", or the name of another action.
        instruction: the PTX opcode.
        location: its place in the PTX, None for what no text holds.
        source: the line of the program that it was compiled from, where known.
        space: "shared", "global", "register" or "".
        region: the allocation; ``buffer``: the annotated range in it, "" where there is none.
        start, stop: byte offsets in the region, the second exclusive; None without memory.
        phase: of the mbarrier that completes this access, None where none does.
        proxy: "generic" or "async".
    """

    agent: str
    kind: str
    instruction: str
    location: Location | None = None
    source: SourceLine | None = None
    space: str = ""
    region: str = ""
    buffer: str = ""
    start: int | None = None
    stop: int | None = None
    phase: int | None = None
    proxy: str = "generic"

    @property
    def where(self) -> str:
        """The bytes in words: "sK[1] bytes 0..64 of shared CTA (0,0,0)"."""
        if self.start is None or self.stop is None:
            return self.space
        of = f"{self.buffer}, " if self.buffer else ""
        return f"{of}{self.region} bytes {self.start}..{self.stop - 1}"

    @property
    def line(self) -> str:
        """The source line where there is one, the PTX line otherwise."""
        if self.source is not None:
            return f"{self.source.file}:{self.source.line}"
        if self.location is not None:
            return f"{self.location.file}:{self.location.line}"
        return "(no line)"


@dataclass(frozen=True, slots=True)
class Hazard:
    """One finding.

    Attributes:
        rule: a key of :data:`hopwell.emulator.hazards.rules.RULES`.
        first: the earlier access, None where there is only one side.
        second: the access at which the hazard was seen.
        missing: the edge that should have ordered them, in words.
        seed: of the schedule that showed it, None where none was set.
        facts: what else was known, plain values.
    """

    rule: str
    first: Access | None
    second: Access
    missing: str
    seed: int | None = None
    facts: Facts = field(default_factory=dict)

    @property
    def ptx_section(self) -> str:
        """The section of the PTX ISA that the rule follows."""
        return RULES[self.rule].section

    @property
    def pair(self) -> tuple[object, ...]:
        """The rule and the two instructions."""
        return (self.rule, _place(self.first), _place(self.second))

    @property
    def causes(self) -> list[tuple[object, ...]]:
        """Keys of which hazards with one cause share at least one: the rule with either
        instruction, and the rule with both source lines."""
        keys: list[tuple[object, ...]] = [(self.rule, "second", _place(self.second))]
        if self.first is not None:
            keys.append((self.rule, "first", _place(self.first)))
            if self.first.source is not None and self.second.source is not None:
                keys.append((self.rule, "lines", self.first.source, self.second.source))
        elif self.second.source is not None:
            keys.append((self.rule, "line", self.second.source))
        return keys


def _place(access: Access | None) -> tuple[object, ...] | None:
    return None if access is None else (access.location, access.instruction, access.kind)


@dataclass(slots=True)
class HazardGroup:
    """Hazards with one cause: the first example, how many there were, and under which seeds.

    ``also`` holds one example for each other pair of instructions that the same cause made
    collide: an unrolled loop, the other half of a tile, every use of one accumulator.
    """

    example: Hazard
    count: int = 1
    seeds: list[int] = field(default_factory=list)
    also: list[Hazard] = field(default_factory=list)

    @property
    def rule(self) -> str:
        return self.example.rule

    def add(self, other: HazardGroup) -> None:
        """Take in further hazards of this cause."""
        self.count += other.count
        self.seeds = sorted({*self.seeds, *other.seeds})
        known = {self.example.pair, *(hazard.pair for hazard in self.also)}
        for hazard in (other.example, *other.also):
            if hazard.pair not in known:
                known.add(hazard.pair)
                self.also.append(hazard)


def merge_groups(runs: Iterable[Iterable[HazardGroup]]) -> list[HazardGroup]:
    """The groups of several runs by cause, as they were found: what comes first is most often
    why the rest came too.

    Groups of one rule have one cause when they share an instruction, or both source lines: one
    missing wait before an unrolled loop is one cause, not sixty-four.
    """
    merged: list[HazardGroup] = []
    by_key: dict[tuple[object, ...], HazardGroup] = {}
    for group in (group for groups in runs for group in groups):
        keys = [key for hazard in (group.example, *group.also) for key in hazard.causes]
        found = {id(by_key[key]): by_key[key] for key in keys if key in by_key}
        targets = [known for known in merged if id(known) in found]
        if not targets:
            targets = [HazardGroup(group.example, 0)]
            merged.append(targets[0])
        target, *rest = targets
        for joined in rest:  # this group shows that two causes were one
            target.add(joined)
            merged.remove(joined)
            by_key.update({key: target for key, known in by_key.items() if known is joined})
        target.add(group)
        by_key.update(dict.fromkeys(keys, target))
    return merged


def _source_dict(source: SourceLine | None) -> dict[str, Any] | None:
    if source is None:
        return None
    return {
        "file": source.file,
        "line": source.line,
        "column": source.column,
        "function": source.function,
        "inlined_at": _source_dict(source.inlined_at),
    }


def _access_dict(access: Access | None) -> dict[str, Any] | None:
    if access is None:
        return None
    place = access.location
    return {
        "agent": access.agent,
        "kind": access.kind,
        "proxy": access.proxy,
        "instruction": access.instruction,
        "ptx": None
        if place is None
        else {"file": place.file, "line": place.line, "column": place.column},
        "source": _source_dict(access.source),
        "space": access.space,
        "region": access.region,
        "buffer": access.buffer,
        "start": access.start,
        "stop": access.stop,
        "phase": access.phase,
    }


def group_dict(group: HazardGroup) -> dict[str, Any]:
    """One group as plain values."""
    hazard = group.example
    rule = RULES[hazard.rule]
    return {
        "rule": hazard.rule,
        "title": rule.title,
        "ptx_section": rule.section,
        "count": group.count,
        "seeds": group.seeds,
        "seed": hazard.seed,
        "missing": hazard.missing,
        "first": _access_dict(hazard.first),
        "second": _access_dict(hazard.second),
        "facts": dict(hazard.facts),
        "also": [
            {"first": _access_dict(other.first), "second": _access_dict(other.second)}
            for other in group.also
        ],
    }


def to_dict(groups: Iterable[HazardGroup]) -> dict[str, Any]:
    """All groups as plain values, with the schema's version."""
    listed = list(groups)
    return {
        "schema": SCHEMA,
        "verdict": verdict(listed),
        "hazards": sum(group.count for group in listed),
        "groups": [group_dict(group) for group in listed],
    }


def to_json(groups: Iterable[HazardGroup], indent: int | None = 2) -> str:
    """:func:`to_dict` as JSON."""
    return json.dumps(to_dict(groups), indent=indent)


def verdict(groups: Iterable[HazardGroup]) -> str:
    """One line: how many hazards of how many causes, and the rules they break."""
    listed = list(groups)
    if not listed:
        return "clean: no hazard"
    total = sum(group.count for group in listed)
    rules = ", ".join(dict.fromkeys(group.rule for group in listed))
    return f"{_count(total, 'hazard')} with {_count(len(listed), 'cause')}: {rules}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def lines(groups: Iterable[HazardGroup]) -> list[str]:
    """The report as lines of text: the verdict, then each cause with both source lines."""
    listed = list(groups)
    text = [verdict(listed)]
    for number, group in enumerate(listed, 1):
        text.append("")
        text += group_lines(group, number)
    return text


def group_lines(group: HazardGroup, number: int, code: Code | None = None) -> list[str]:
    """One cause as lines of text; ``code(file, line)`` gives the text of a line, "" if unknown."""
    hazard = group.example
    rule = RULES[hazard.rule]
    times = "" if group.count == 1 else f", {group.count} times"
    seed = "" if hazard.seed is None else f", first under seed {hazard.seed}"
    text = [f"{number}. {hazard.rule}: {rule.title}{times}{seed}"]
    if hazard.first is not None:
        text += _side_lines("earlier", hazard.first, code)
        text += _side_lines("then", hazard.second, code)
    else:
        text += _side_lines("at", hazard.second, code)
    text += _also_lines(group)
    if hazard.missing:
        text.append(f"   missing  {hazard.missing}")
    if hazard.facts:
        facts = ", ".join(f"{key} {value}" for key, value in hazard.facts.items())
        text.append(f"   facts    {facts}")
    text.append(f"   fix      {rule.fix}")
    text.append(f"   rule     {rule.section}")
    return text


def _also_lines(group: HazardGroup) -> list[str]:
    """The other pairs of instructions, a few by line and the rest by number."""
    pairs = []
    for other in group.also:
        sides = [side for side in (other.first, other.second) if side is not None]
        pairs.append(" and ".join(f"{side.line} (PTX {_ptx_line(side)})" for side in sides))
    text = [f"   also     {pair}" for pair in pairs[:_SHOWN]]
    if len(pairs) > _SHOWN:
        text.append(f"            and {_count(len(pairs) - _SHOWN, 'more pair')} of instructions")
    return text


def _ptx_line(access: Access) -> str:
    return "?" if access.location is None else str(access.location.line)


def _side_lines(label: str, access: Access, code: Code | None) -> list[str]:
    phase = "" if access.phase is None else f", phase {access.phase}"
    text = [f"   {label:<8} {access.line}  {access.instruction}"]
    where = access.source or access.location
    shown = code(where.file, where.line) if code is not None and where is not None else ""
    if shown:
        text.append(f"            | {shown}")
    if access.source is not None:
        text += [f"            inlined at {s}" for s in _inlined(access.source)]
        if access.location is not None:
            text.append(f"            PTX line {access.location.line}")
    if access.agent:
        bytes_ = f": {access.where}{phase}" if access.where else ""
        text.append(f"            {access.kind} by {access.agent}{bytes_}")
    return text


def _inlined(source: SourceLine) -> list[str]:
    chain = []
    caller = source.inlined_at
    while caller is not None:
        chain.append(f"{caller.file}:{caller.line}")
        caller = caller.inlined_at
    return chain

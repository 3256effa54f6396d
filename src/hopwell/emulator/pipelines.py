"""Counts of what happened at each mbarrier and named barrier, with the identity of the data."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hopwell.emulator.decode import DecodedOp
    from hopwell.emulator.mbarrier import Mbarrier

Index = tuple[int, int, int]


def place(op: "DecodedOp") -> str:
    """Where an instruction comes from: "forward.py:120", or its line of the PTX."""
    node = op.node
    if node.source is not None:
        return f"{PurePath(node.source.file).name}:{node.source.line}"
    return f"PTX line {node.location.line}"


class Payload(NamedTuple):
    """A copy that completed bytes of an mbarrier.

    Attributes:
        what: the tensor and coordinates, or the range, that was copied.
        bytes: its size.
        phase: the phase of the barrier that it counted in.
        at: where it was issued; ``by``: the warp that did.
    """

    what: str
    bytes: int
    phase: int
    at: str
    by: str


@dataclass(eq=False, slots=True)
class Stage:
    """What happened at one mbarrier.

    Attributes:
        cta: whose shared memory it is in.
        name: what reports call it.
        offset: of the barrier in that memory.
        arrivals: by threads; ``arrivers`` by warp.
        commits: how often transaction bytes were expected.
        waits: successful waits, one per warp instruction; ``waiters`` by warp.
        phases: completed.
        payloads: what the copies that it counted brought.
        before: barriers that the warp which commits had waited on just before.
    """

    cta: Index
    name: str
    offset: int
    arrivals: int = 0
    arrivers: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    waits: int = 0
    waiters: Counter[str] = field(default_factory=Counter)
    phases: int = 0
    payloads: list[Payload] = field(default_factory=list)
    before: "Counter[Stage]" = field(default_factory=Counter)

    @property
    def full(self) -> bool:
        """Whether it says that data has come: copies complete it, or bytes are expected."""
        return bool(self.commits or self.payloads)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name,
            "offset": self.offset,
            "phases": self.phases,
            "arrivals": self.arrivals,
            "arrivers": dict(self.arrivers),
            "waits": self.waits,
            "waiters": dict(self.waiters),
        }


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One stage of a pipeline: the mbarrier that data completes, and the one that frees it.

    Attributes:
        full: counts the bytes of copies; its commits are the producer's, its waits the consumers'.
        empty: what the producer waits on before it commits, None where it waits on nothing.
    """

    full: Stage
    empty: Stage | None

    @property
    def counts(self) -> dict[str, int]:
        """Of acquire, commit, wait and release."""
        return {
            "acquire": 0 if self.empty is None else self.empty.waits,
            "commit": self.full.commits,
            "wait": self.full.waits,
            "release": 0 if self.empty is None else self.empty.arrivals,
        }

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "cta": list(self.full.cta),
            "full": self.full.to_dict(),
            "empty": None if self.empty is None else self.empty.to_dict(),
            **self.counts,
            "payloads": [payload._asdict() for payload in self.full.payloads],
        }


class Pipelines:
    """All mbarriers of a run, by the object.

    Which barriers form a stage of a pipeline is observed: a producer waits for the stage to be
    free, and then expects the bytes of what it copies there.
    """

    def __init__(self) -> None:
        self._all: list[Stage] = []
        self._stages: dict[Mbarrier, Stage] = {}

    def __iter__(self) -> Iterator[Stage]:
        """By CTA, in the order of their addresses."""
        return iter(sorted(self._all, key=lambda s: (s.cta[::-1], s.offset)))

    def add(self, cta: Index, barrier: "Mbarrier") -> None:
        """Make a barrier known."""
        stage = self._stages[barrier] = Stage(cta, barrier.name, barrier.offset)
        self._all.append(stage)

    def close(self) -> None:
        """The run is over: let go of the barriers, and with them of the machine's memory."""
        self._stages.clear()

    def stage(self, barrier: "Mbarrier") -> Stage:
        """The counts of a barrier."""
        return self._stages[barrier]

    def pair(self, full: Stage, waited: "Mbarrier") -> None:
        """``full`` was committed by a warp that had waited on ``waited`` just before."""
        full.before[self._stages[waited]] += 1

    @property
    def pipelines(self) -> list[Pipeline]:
        """Every stage that data came through, in the order of their barriers."""
        found = []
        for stage in self:
            if stage.full:
                frees = [(n, other) for other, n in stage.before.items() if not other.full]
                best = max(frees, key=lambda entry: entry[0], default=(0, None))
                found.append(Pipeline(stage, best[1]))
        return found

    @property
    def others(self) -> list[Stage]:
        """Barriers that are in no pipeline."""
        used = {id(p.full) for p in self.pipelines} | {id(p.empty) for p in self.pipelines}
        return [stage for stage in self if id(stage) not in used]


class Call(NamedTuple):
    """A warp's arrival at a named barrier.

    Attributes:
        action: "sync", "arrive" or "red".
        barrier: its number; ``round``: how often it had completed before.
        time: of the recorder's clock.
        at: the line of the program.
    """

    action: str
    barrier: int
    round: int
    time: int
    at: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Calls of named barriers that warps of one warpgroup made alike, in order.

    Attributes:
        cta, warpgroup: whose.
        warps: numbers of the warps; all that made any of a warpgroup, unless they differ.
        calls: with the times of the first of them.
    """

    cta: Index
    warpgroup: int
    warps: tuple[int, ...]
    calls: tuple[Call, ...]

    @staticmethod
    def of(calls: Mapping[tuple[Index, int], Iterable[Call]]) -> "list[Ledger]":
        """The ledgers of all warpgroups, from the calls of each warp by CTA and warp."""
        alike: dict[tuple[Index, int, object], list[tuple[int, tuple[Call, ...]]]] = {}
        for (cta, warp), made in sorted(calls.items()):
            sequence = tuple((call.action, call.barrier, call.round) for call in made)
            alike.setdefault((cta, warp // 4, sequence), []).append((warp, tuple(made)))
        return [
            Ledger(cta, warpgroup, tuple(warp for warp, _ in group), group[0][1])
            for (cta, warpgroup, _), group in alike.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "cta": list(self.cta),
            "warpgroup": self.warpgroup,
            "warps": list(self.warps),
            "calls": [call._asdict() for call in self.calls],
        }

"""Kernels whose PTX is mutated, the problems that their mutants run, and the records of it.

Run as a program it runs every mutant and renews the records (about half an hour on two cores):

    python -m tests.emulator.mutation_subjects [--survivors] [SUBJECT ...]

With ``--survivors`` it runs only those that survived: enough where problems or seeds came to the
end of their lists, or the emulator became stricter.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hopwell import ptx
from hopwell.compile.artifact import ptx_hash
from hopwell.emulator.capture.launch import Launch
from hopwell.emulator.mutate import Matrix, Mutant, Outcome, Row, mutants
from hopwell.emulator.mutation_matrix import SURVIVED, Judge, judge, run

ROOT = Path(__file__).parents[2]
RENEW = "python -m tests.emulator.mutation_subjects"
#: Seed 0 lands copies early, 1 and 25 late, the others at random; under 3 the producer goes on only
#: when no other can, under 7 and 11 a group of consumers, under 25 a warp of theirs. The first seed
#: that kills ends the run. A kernel's first problem gets all of them, its others most.
SEEDS = (0, 1, 2, 3, 7, 11, 25)
OTHERS = (1, 3, 7, 11, 25)
#: Instructions of one warp, a good ten times what any problem needs.
LIMIT = 500_000
FLASH_ATTENTION = "flash-attn-4"
#: Where a package is installed: what stands before its name in a path.
_INSTALLED = re.compile(r"[^\s(]*/(?=(flash_attn|quack|cutlass)/)")


@dataclass(frozen=True)
class Subject:
    """A kernel that is mutated.

    Attributes:
        title: the kernel, for readers.
        launches: its launch for each problem, by name; all of the same PTX.
        package: a distribution that it comes from and that may not be installed.
    """

    name: str
    title: str
    launches: Callable[[], Mapping[str, Launch]]
    package: str = ""

    @property
    def record(self) -> Path:
        """Where the outcomes of its mutants are kept."""
        return Path(__file__).with_name("records") / f"mutations-{self.name}.json"

    @property
    def missing(self) -> str | None:
        """Why it cannot be had here, or None."""
        if not self.package:
            return None
        try:
            importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return f"not installed: {self.package}"
        return None

    @functools.cached_property
    def problems(self) -> Mapping[str, Launch]:
        """:attr:`launches`, made once."""
        return self.launches()

    @property
    def ptx(self) -> str:
        """The PTX that all problems run."""
        (text,) = {launch.ptx for launch in self.problems.values()}
        return text

    @property
    def artifact(self) -> str:
        """What the record is keyed by: the hash of the PTX, and the package's version."""
        digest = ptx_hash(self.ptx)
        if not self.package:
            return digest
        return f"{self.package}=={importlib.metadata.version(self.package)} {digest}"

    def mutants(self) -> list[Mutant]:
        """All of them, in the record's order."""
        return list(mutants(ptx.parse(self.ptx, self.name)))

    def judge(self, problems: int | None = None) -> Judge:
        """Runs every problem, or so many of them, under its seeds until one kills."""
        judges = {
            name: judge(launch, seeds=OTHERS if number else SEEDS, limit=LIMIT)
            for number, (name, launch) in enumerate([*self.problems.items()][:problems])
        }

        def judged(text: str) -> Outcome:
            for name, one in judges.items():
                outcome = one(text)
                if outcome.killed_by != SURVIVED:
                    return replace(outcome, problem=name)
            return Outcome()

        return judged

    def run(
        self,
        chosen: Iterable[Mutant],
        finished: Callable[[Row], None] = lambda row: None,
        problems: int | None = None,
    ) -> Matrix:
        """Outcomes of some of its mutants; source lines are given from the package on."""
        judged = self.judge(problems)
        matrix = run(
            chosen, judged, self.artifact, processes=2, seconds=300, finished=finished
        )  # fmt: skip
        rows = [replace(row, source=_INSTALLED.sub("", row.source)) for row in matrix.rows]
        return replace(matrix, rows=tuple(rows))

    def recorded(self) -> Matrix | None:
        """The record, if there is one."""
        return Matrix.read(self.record) if self.record.exists() else None

    def stale(self) -> str | None:
        """Why the record does not speak for today's code, or None where it does."""
        record = self.recorded()
        if record is None:
            return f"never run: {RENEW} {self.name}"
        if record.artifact != self.artifact:
            return f"the code has changed since the record: {RENEW} {self.name}"
        return None


def _own(causal: bool, variant: str = "") -> Mapping[str, Launch]:
    from tests.emulator.hopwell_forward import artifact_launch
    from tests.emulator.own_forward import Shape

    from hopwell.bench.inputs import draw
    from hopwell.compile import find_or_build
    from hopwell.hopper.plan import forward_plan
    from plan_variants import VARIANTS

    plan = VARIANTS[variant] if variant else forward_plan("bfloat16", (128, 128), causal)
    m, n = plan.tile_m, plan.tile_n
    # One CTA runs all tiles, so that barriers go round and warps meet work of several tiles.
    shapes = {
        "four tiles, two key blocks": Shape(1, m, n + 50, 4, 1, 1),
        "two tiles, four key blocks": Shape(1, m + 17, 3 * n + 5, 1, 1, 1),
        "one key block": Shape(1, 2 * m + 70, n - 7, 1, 1, 1),
        # Counts that are off by one add up from lap to lap until they reach a whole warpgroup.
        "sixteen tiles": Shape(1, m + 30, n + 20, 8, 1, 1),
        "five tiles, two key blocks": Shape(1, m, n + 50, 5, 1, 1),
        "thirty rows, one key block": Shape(1, 30, n - 28, 1, 1, 1),
        "thirty rows, four key blocks": Shape(1, 30, 3 * n + 50, 1, 1, 1),
        "nine tiles, no keys": Shape(1, 2 * m + 40, 0, 3, 1, 1),
    }
    launches = {}
    for name, shape in shapes.items():
        cell = shape.cell(plan)
        q, k, v = draw(cell, seed=shape.rows, device="cpu")
        launches[name] = artifact_launch(find_or_build(plan)[0], q, k, v, cell.scale, shape.ctas)
    return launches


def _flash_attention(causal: bool) -> Mapping[str, Launch]:
    import torch

    from hopwell.emulator.capture.cute import capture

    shapes = {
        "two tiles, ragged, three key blocks": (200, 300, 1),
        "one tile, sixteen key blocks": (128, 2000, 1),
        "one key block": (100, 60, 1),
        "two key blocks": (128, 200, 1),
        "six tiles, one key block": (300, 128, 2),
    }
    torch.manual_seed(0)
    launches = {}
    # One block: what it compiles for the first problem it keeps for the others. It looks for a GPU
    # when it is imported.
    with capture() as found:
        from flash_attn.cute import flash_attn_func

        for name, (rows, keys, heads) in shapes.items():
            q, k, v = (torch.randn(1, s, heads, 128).bfloat16() for s in (rows, keys, keys))
            flash_attn_func(q, k, v, causal=causal)
            launches[name] = found[-1]
    return launches


_VERSION = "the SM90 forward of flash-attn-4"
SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("own-causal", "our forward, causal", lambda: _own(True)),
        Subject("own-full", "our forward, full", lambda: _own(False)),
        Subject("own-p-shared", "our forward, P through shared memory",
                lambda: _own(True, "p_shared")),
        Subject("fa4-causal", f"{_VERSION}, causal", lambda: _flash_attention(True),
                FLASH_ATTENTION),
        Subject("fa4-full", f"{_VERSION}, full", lambda: _flash_attention(False),
                FLASH_ATTENTION),
    )
}  # fmt: skip


def tell(row: Row) -> None:
    """One line for a mutant that has ended."""
    outcome = row.outcome
    print(
        f"{row.key}: {row.description}: line {row.line}: {outcome.killed_by} "
        f"{' '.join(outcome.rules)} ({outcome.problem}, seed {outcome.seed}, {outcome.seconds} s)",
        flush=True,
    )


def main(names: list[str], survivors: bool) -> int:
    """Run all mutants of some subjects, or of all that are there, and write their records."""
    for name in names or SUBJECTS:
        subject = SUBJECTS[name]
        if subject.missing:
            print(f"{name}: {subject.missing}")
            continue
        started = time.monotonic()
        record = subject.recorded() if survivors else None
        again = {row.key for row in record.survivors} if record else None
        chosen = [m for m in subject.mutants() if again is None or m.key in again]
        matrix = subject.run(chosen, finished=tell)
        if record:
            matrix = record.updated(matrix)
        subject.record.parent.mkdir(exist_ok=True)
        matrix.write(subject.record)
        print(matrix.table())
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    only = "--survivors"
    sys.exit(main([name for name in sys.argv[1:] if name != only], only in sys.argv))

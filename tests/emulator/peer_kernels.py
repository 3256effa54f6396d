"""Kernels that no one here wrote, in the emulator: problems, and what was found in the kernels.

Needs ``pip install hopwell[peers]``. Run as a program it runs every case under ten seeds and
renews the record (about ten minutes on two cores):

    python -m tests.emulator.peer_kernels
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from tests.emulator.evidence import Record
from tests.emulator.peers import flash_attention_4, flash_linear_attention

from hopwell.compile.artifact import ptx_hash
from hopwell.compile.key import sha256
from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture import Launch
from hopwell.emulator.capture.parameters import short_name
from hopwell.emulator.capture.script import capture
from hopwell.emulator.hazards import HazardGroup

RECORD = Record("peer_kernels", "python -m tests.emulator.peer_kernels")
SEEDS = 10
#: bfloat16 holds 8 bits: results may be off by four of the last, of the largest value.
TOLERANCE = 2**-6


@dataclass(frozen=True)
class Finding:
    """A hazard that a kernel really has; docs/emulator-kernels.md says why it is one.

    Attributes:
        kernel: part of the entry function's name.
        rule: what is reported.
        region: where both accesses are; ``kinds``: what they do; ``file``: that holds their lines.
    """

    kernel: str
    rule: str
    region: str
    kinds: frozenset[str]
    file: str

    def explains(self, kernel: str, group: HazardGroup) -> bool:
        first, second = group.example.first, group.example.second
        return (
            self.kernel in kernel
            and group.rule == self.rule
            and first is not None
            and {first.region, second.region} == {self.region}
            and {first.kind, second.kind} == self.kinds
            and all(each.line.rpartition(":")[0].endswith(self.file) for each in (first, second))
        )


FINDINGS = {
    "log-sum-exp stored by two CTAs": Finding(
        "FlashAttentionBackwardPreprocess",
        "global-race",
        "mLSElog2",
        frozenset({"write"}),
        "flash_bwd_preprocess.py",
    ),
    "partial sums stored by two warps": Finding(
        "parallel_attn_bwd_kernel_preprocess",
        "shared-memory-race",
        "shared",
        frozenset({"write"}),
        "triton/language/standard.py",
    ),
    "read by idle warps after the store": Finding(
        "in_place_kernel",
        "global-race",
        "x_ptr",
        frozenset({"read", "write"}),
        "triton_kernels.py",
    ),
}
TWICE, COPIES, IDLE = FINDINGS


@dataclass(frozen=True)
class Case:
    """A problem for kernels of a package.

    Attributes:
        packages: that it needs, as PyPI names them.
        run: computes it on CPU tensors, inside a capture, and gives the error of each result.
        launches: how many kernels it launches.
        finds: of :data:`FINDINGS`, what is found.
        unordered: sums of three terms or more are formed in the order in which they arrive, so
            that seeds may differ in the last bits.
    """

    packages: tuple[str, ...]
    run: Callable[[], dict[str, float]]
    launches: int
    finds: frozenset[str] = frozenset()
    unordered: bool = False

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.packages if version(name) is None]


def version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _flash(run: Callable[..., dict[str, float]], launches: int, *finds: str) -> Case:
    packages = ("flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl", "triton", "einops")
    return Case(packages, run, launches, frozenset(finds))


def _linear(run: Callable[..., dict[str, float]], launches: int, *finds: str) -> Case:
    return Case(("fla-core", "triton", "einops"), run, launches, frozenset(finds))


def _triton(name: str, *arguments: Any, finds: tuple[str, ...] = ()) -> Case:
    def run() -> dict[str, float]:
        from tests.emulator.peers import triton_kernels

        found: dict[str, float] = getattr(triton_kernels, name)(*arguments)
        return found

    return Case(("triton",), run, 1, frozenset(finds))


def cases() -> dict[str, Case]:
    """Every case by name. Forward and backward, unless a name says forward or product.

    flash-attn-4's backward is preparation, gradients and one conversion, with grouped heads three.
    """
    dense, ragged = flash_attention_4.dense, flash_attention_4.ragged
    attention, several = flash_linear_attention.attention, flash_linear_attention.ragged_attention
    lengths, keys = [100, 1, 155], [100, 64, 200]
    found = {
        "fa4 d64": replace(_flash(partial(dense, 200, 264, 2, 2, 64), 4, TWICE), unordered=True),
        "fa4 d64 deterministic": _flash(
            partial(dense, 200, 264, 2, 2, 64, deterministic=True), 4, TWICE
        ),
        "fa4 d64 float16": _flash(partial(dense, 128, 100, 1, 1, 64, dtype=torch.float16), 4),
        "fa4 d64 causal grouped": _flash(partial(dense, 200, 200, 4, 2, 64, causal=True), 6, TWICE),
        "fa4 d64 causal deterministic": _flash(
            partial(dense, 256, 256, 1, 1, 64, causal=True, deterministic=True), 4, TWICE
        ),
        "fa4 d128": _flash(partial(dense, 128, 192, 2, 2, 128), 4, TWICE),
        "fa4 d128 causal": _flash(partial(dense, 256, 256, 1, 1, 128, causal=True), 4, TWICE),
        "fa4 d128 grouped": _flash(partial(dense, 170, 130, 4, 2, 128), 6, TWICE),
        "fa4 d128 causal deterministic": _flash(
            partial(dense, 200, 260, 2, 1, 128, causal=True, deterministic=True), 6, TWICE
        ),
        "fa4 d64 ragged": _flash(partial(ragged, [37, 128, 90], [65, 128, 1], 2, 2, 64), 4),
        "fa4 d64 ragged causal grouped": _flash(
            partial(ragged, lengths, keys, 2, 1, 64, causal=True), 6, TWICE
        ),
        "fa4 d128 ragged": _flash(partial(ragged, lengths, keys, 1, 1, 128), 4, TWICE),
        "fa4 d128 ragged causal": _flash(
            partial(ragged, lengths, keys, 2, 2, 128, causal=True), 4, TWICE
        ),
        "fa4 d128 ragged deterministic": _flash(
            partial(ragged, lengths, keys, 1, 1, 128, causal=True, deterministic=True), 4, TWICE
        ),
        "fla d64 causal grouped": _linear(partial(attention, 150, 2, 1, 64), 4, COPIES),
        "fla d128 causal": _linear(partial(attention, 140, 1, 1, 128), 4),
        "fla d64 ragged causal": _linear(partial(several, (50, 1, 99), 1, 1, 64), 4, COPIES),
        "triton d64 forward": _triton("attention", 200, 2, 64, 4),
        "triton d128 forward": _triton("attention", 200, 2, 128, 8),
        "triton product": _triton("product", 150, 96, 136, (128, 64, 64), torch.float16),
        "triton product tf32": _triton("product", 100, 64, 96, (64, 64, 32), torch.float32),
        "triton product e4m3": _triton("product", 64, 72, 192, (64, 64, 64), torch.float8_e4m3fn),
        "triton product by tensor copies": _triton("described_product", 200, 128, 200),
        "triton in place": _triton("in_place", 128),
        "triton in place, idle warps": _triton("in_place", 64, finds=(IDLE,)),
    }
    for tiling in range(8):
        found[f"fla product {tiling}"] = _linear(partial(flash_linear_attention.product, tiling), 1)
    return found


CASES = cases()


@dataclass
class Outcome:
    """What a case gave.

    Attributes:
        errors: by result, as a share of the largest value.
        launches: in order; ``reports``: of those that were run.
    """

    errors: dict[str, float] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    @property
    def artifact(self) -> str:
        """The hash of the code of all launches. Names of kernels are no part of it."""
        codes = (ptx_hash(each.ptx.replace(each.kernel, "kernel")) for each in self.launches)
        return sha256("".join(codes).encode())

    @property
    def found(self) -> Counter[str]:
        """How often each hazard was found: of :data:`FINDINGS` by name, of others by rule."""
        count: Counter[str] = Counter()
        for report in self.reports:
            for group in report.groups:
                names = (
                    name for name, each in FINDINGS.items() if each.explains(report.kernel, group)
                )
                place = f"{group.rule} in {short_name(report.kernel)}: {group.example.missing}"
                count[next(names, place)] += group.count
        return count


def run(name: str, seeds: Iterable[int]) -> Outcome:
    """Emulate every launch of a case under some seeds; under none, only capture them.

    Results are the last seed's.
    """
    outcome, seeds = Outcome(), tuple(seeds)

    def receive(launch: Launch) -> None:
        outcome.launches.append(launch)
        if seeds:
            outcome.reports.append(emulate(launch, seeds=seeds))

    with capture(receive):
        outcome.errors = CASES[name].run()
    return outcome


def checked(name: str, seeds: Sequence[int]) -> list[Outcome]:
    """Right results under every seed; no hazard but those that the case has.

    Seeds share a run where all must leave the same bits, so that one result is every result.

    Raises:
        AssertionError: it is not so.
    """
    case = CASES[name]
    outcomes = [run(name, each) for each in ([[s] for s in seeds] if case.unordered else [seeds])]
    for outcome in outcomes:
        assert len(outcome.launches) == case.launches
        wrong = {
            result: error for result, error in outcome.errors.items() if not error <= TOLERANCE
        }
        assert not wrong, wrong
        assert set(outcome.found) == case.finds, outcome.found
        for report in outcome.reports:
            assert not any(run.deadlock for run in report.runs), report.kernel
            assert report.same_results, report.kernel
    return outcomes


def entry(name: str) -> dict[str, Any]:
    """A case under ten seeds: what the record says of it.

    Raises:
        AssertionError: see :func:`checked`.
    """
    outcomes = checked(name, range(SEEDS))
    first, reports = outcomes[0], [each for outcome in outcomes for each in outcome.reports]
    return {
        "artifact": first.artifact,
        "packages": {package: version(package) for package in CASES[name].packages},
        "kernels": [short_name(report.kernel) for report in first.reports],
        "seeds": SEEDS,
        "instructions": sum(each.instructions for report in reports for each in report.runs),
        "errors": {
            result: float(f"{max(outcome.errors[result] for outcome in outcomes):.2g}")
            for result in first.errors
        },
        "found": dict(sum((outcome.found for outcome in outcomes), Counter())),
    }


def main(names: list[str]) -> int:
    """Run the named cases, by default all, and record them; 1 where one failed."""
    failed, entries = 0, dict(RECORD.entries())
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        runs = {pool.submit(entry, name): name for name in names or CASES}
        for future in as_completed(runs):
            name, error = runs[future], future.exception()
            entries.pop(name, None)
            if error is None:
                entries[name] = future.result()
            failed += error is not None
            print(name, "recorded" if error is None else f"FAILED: {error!r}", flush=True)
            RECORD.write(entries)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

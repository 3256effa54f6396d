"""Check and time many compiled forward variants against each other and against the peers.

    python scripts/tune_forward.py ARTIFACTS [--seqlens 512,4096] [--match REGEX]
        [--budget 240] [--no-peers] [--check-only] [--json OUT.json]

ARTIFACTS holds artifact directories at any depth (kernel.so and manifest.json each); several may
belong to one bucket. Variants are grouped by (dtype, head dims, causal). Each is first checked
against float64 on small, ragged and larger problems; those that pass are timed, interleaved with
each other and with the peers, cell by cell. The work runs in a child process that reports what
it is about to do: a variant that hangs or poisons the CUDA context is named, dropped, and the
rest goes on. Kernels are read and loaded as the library does, without a compiler.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hopwell.bench.flops import tflops
from hopwell.bench.grid import Cell, standard_cell
from hopwell.bench.inputs import Inputs, draw
from hopwell.compile import Artifact, Kernel, Manifest
from hopwell.compile import artifact as files
from hopwell.decode import decode

START_SECONDS = 180  # child start: torch import, CUDA context, peers
STEP_SECONDS = 45  # one announced step; a peer may compile within it
CELL_SECONDS = 120  # a whole cell: reference, peers' compilation, timing


@dataclass(frozen=True)
class Variant:
    """One artifact: its directory relative to the root is its identity."""

    name: str
    artifact: Artifact

    @property
    def plan(self) -> dict[str, Any]:
        return self.artifact.manifest.plan

    @property
    def plan_name(self) -> str:
        return self.artifact.manifest.plan_name

    @property
    def group(self) -> tuple[str, int, int, bool]:
        plan = self.plan
        return plan["dtype"], plan["head_dim"], plan["head_dim_v"], plan["causal"]

    def load(self) -> Kernel:
        return Kernel(self.artifact, "cache")


def find_variants(root: Path, match: str) -> list[Variant]:
    """Every whole artifact whose directory or plan name matches; the others are named."""
    found = []
    for file in sorted(root.rglob(files.MANIFEST)):
        name = str(file.parent.relative_to(root))
        try:
            request = decode(Manifest, file.read_text()).request
            variant = Variant(name, files.read(file.parent, request))
        except (ValueError, files.CorruptArtifact) as error:
            print(f"! {name}: {error}", file=sys.stderr)
            continue
        if re.search(match, f"{name} {variant.plan_name}"):
            found.append(variant)
    return found


# -- the child: everything that touches the device ----------------------------------------------


def emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def make_outputs(cell: Cell) -> tuple[Any, Any]:
    import torch

    shape = (cell.batch, cell.seqlen_q, cell.heads_q, cell.head_dim_v)
    o = torch.full(shape, torch.nan, device="cuda", dtype=getattr(torch, cell.dtype))
    lse = torch.full(
        (cell.batch, cell.heads_q, cell.seqlen_q), torch.nan, device="cuda", dtype=torch.float32
    )
    return o, lse


def check_problems(variant: Variant) -> list[Cell]:
    """Lengths around the tile, grouped heads, more tiles than CTAs, head dims below the bucket."""
    dtype, dim, dim_v, causal = variant.group
    m, n = variant.plan["tile_m"], variant.plan["tile_n"]

    def cell(b: int, sq: int, sk: int, hq: int, hk: int, less: int = 0) -> Cell:
        return Cell(b, sq, sk, hq, hk, dim - less, dim_v - less, causal, dtype)

    return [
        cell(1, m, n, 1, 1),
        cell(1, 1, 1, 1, 1),
        cell(1, m, 3 * n, 1, 1),
        cell(2, m + 1, n + 1, 2, 1),
        cell(1, 2 * m - 1, 2 * n - 1, 6, 2),
        cell(2, 67, 333, 3, 3),
        cell(1, 300, 100, 4, 2),
        cell(3, 129, 1000, 5, 1, less=8),
        cell(2, 1024, 1024, 8, 2),
        cell(4, 2048, 2048, 16, 16),
    ]


def check_variant(variant: Variant, sms: int) -> None:
    """Every problem twice: within the budget, every element written, bitwise repeatable."""
    import torch

    from hopwell.bench import accuracy

    kernel = variant.load()
    worst: dict[str, float] = {}
    for seed, cell in enumerate(check_problems(variant)):
        problem = (
            f"b{cell.batch} sq{cell.seqlen_q} sk{cell.seqlen_k} "
            f"h{cell.heads_q}/{cell.heads_k} d{cell.head_dim}"
        )
        emit("begin", variant=variant.name, step=f"check {problem}")
        q, k, v = draw(cell, seed)
        pairs = accuracy.spread_pairs(cell.batch, cell.heads_q, 12)
        expected = accuracy.reference(q, k, v, causal=cell.causal, scale=cell.scale, pairs=pairs)
        allowed = accuracy.budget(q, k, v, expected, causal=cell.causal, scale=cell.scale)
        outputs = []
        for _ in range(2):
            o, lse = make_outputs(cell)
            kernel(q, k, v, o, lse, cell.scale, sms)
            torch.cuda.synchronize()
            outputs.append((o, lse))
        found = accuracy.errors(*outputs[0], expected)
        broken = list(allowed.broken_by(found))
        if outputs[0][0].isnan().any() or outputs[0][1].isnan().any():
            broken.append("NaN or unwritten elements")
        if not all(torch.equal(a, b) for a, b in zip(*outputs, strict=True)):
            broken.append("two runs differ")
        if broken:
            emit("failed", variant=variant.name, error=f"{problem}: {'; '.join(broken)}")
            return
        for key, value in found.to_json().items():
            worst[key] = max(worst.get(key, 0.0), value)
    emit("passed", variant=variant.name, errors=worst)


def child_check(variants: list[Variant], sms: int) -> None:
    for variant in variants:
        emit("begin", variant=variant.name, step="load")
        try:
            check_variant(variant, sms)
        except Exception as error:
            emit("failed", variant=variant.name, error=f"{type(error).__name__}: {error}"[:600])
            sys.exit(3)  # the context may be poisoned; the parent starts a fresh one


def child_time(variants: list[Variant], cells: list[Cell], options: argparse.Namespace) -> None:
    from hopwell.bench.peers import available_peers

    peers, absent = ([], []) if options.no_peers else available_peers()
    for missing in absent:
        emit("note", text=f"no {missing.name}: {missing.reason}")
    kernels = {v.name: (v, v.load()) for v in variants}
    per_cell = options.budget / max(len(cells), 1)
    for cell in cells:
        key = (cell.dtype, cell.head_dim, cell.head_dim_v, cell.causal)
        chosen = {n: kernel for n, (v, kernel) in kernels.items() if v.group == key}
        if chosen:
            emit("begin", variant=None, step=f"time {cell.name}")
            for wrong in time_cell(cell, chosen, peers, options.sms, per_cell):
                del kernels[wrong]


def time_cell(
    cell: Cell, kernels: dict[str, Kernel], peers: list[Any], sms: int, budget: float
) -> list[str]:
    """Time everything that computes the cell correctly; the names of the variants that do not."""
    import torch

    from hopwell.bench import accuracy
    from hopwell.bench.peers import verify_operator
    from hopwell.bench.timing import CudaClock, Statistic, Work, input_sets, interleave

    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    sets = [draw(cell, seed) for seed in range(input_sets(cell.tensor_bytes, l2))]
    pairs = accuracy.spread_pairs(cell.batch, cell.heads_q, 3)
    expected = accuracy.reference(*sets[0], causal=cell.causal, scale=cell.scale, pairs=pairs)
    allowed = accuracy.budget(*sets[0], expected, causal=cell.causal, scale=cell.scale)
    works: dict[str, Work] = {}
    found: dict[str, Any] = {}

    def launch(kernel: Kernel, o: Any, lse: Any, inputs: Inputs) -> None:
        kernel(*inputs, o, lse, cell.scale, sms)

    for name, kernel in kernels.items():
        emit("begin", variant=name, step=f"run {cell.name}")
        o, lse = make_outputs(cell)
        try:
            launch(kernel, o, lse, sets[0])
            torch.cuda.synchronize()
        except Exception as error:
            emit("failed", variant=name, error=f"{cell.name}: {error}"[:600])
            sys.exit(3)
        result = accuracy.errors(o, lse, expected)
        broken = allowed.broken_by(result)
        if broken:
            emit("failed", variant=name, error=f"{cell.name}: {'; '.join(broken)}")
            continue
        found[name] = result.to_json()
        works[name] = Work([partial(launch, kernel, o, lse, inputs) for inputs in sets])
    for peer in peers:
        emit("begin", variant=None, step=f"{peer.name} {cell.name}")
        calls = [peer.bind(*s, cell.causal, cell.scale) for s in sets]
        try:
            verify_operator(peer, calls[0])
            with peer.scope():
                found[peer.name] = accuracy.errors(calls[0](), None, expected).to_json()
            works[peer.name] = peer.work(calls)
        except Exception as error:
            emit("note", text=f"{peer.name} {cell.name}: {type(error).__name__}: {error}"[:300])
    emit("begin", variant=None, step=f"interleave {cell.name}")
    samples = interleave(works, CudaClock(), budget_seconds=budget)
    emit(
        "timed",
        cell=cell.to_json(),
        seconds={name: Statistic.of(values).to_json() for name, values in samples.items()},
        errors=found,
    )
    return [name for name in kernels if name not in works]


# -- the parent: starts children, watches them, reports -----------------------------------------


class Tuner:
    """Collects what the children report and decides what is still to do."""

    def __init__(self, variants: list[Variant], options: argparse.Namespace) -> None:
        self.variants = {variant.name: variant for variant in variants}
        self.options = options
        self.passed: dict[str, dict[str, float]] = {}
        self.failed: dict[str, str] = {}
        self.timed: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def pending(self) -> list[str]:
        return [n for n in self.variants if n not in self.passed and n not in self.failed]

    def cells(self) -> list[Cell]:
        groups = sorted({self.variants[name].group for name in self.passed})
        done = [Cell.from_json(row["cell"]) for row in self.timed]
        cells = []
        for dtype, dim, dim_v, causal in groups:
            for seqlen in self.options.seqlens:
                cell = replace(standard_cell(dim, causal, seqlen, dtype), head_dim_v=dim_v)
                if cell not in done:
                    cells.append(cell)
        return cells

    def run(self) -> None:
        while pending := self.pending():
            if not self.watch("check", {"variants": pending}):
                break
        if self.options.check_only:
            return
        while cells := self.cells():
            alive = [n for n in self.passed if n not in self.failed]
            work = {"variants": alive, "cells": [cell.to_json() for cell in cells]}
            if not alive or not self.watch("time", work):
                break

    def watch(self, kind: str, work: dict[str, Any]) -> bool:
        """One child until it ends or hangs. False: nothing more to gain from another child."""
        command = [sys.executable, __file__, *sys.argv[1:], "--child", kind]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(work))
        child.stdin.close()
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        before = len(self.passed) + len(self.failed) + len(self.timed)
        current: dict[str, Any] = {"variant": None, "step": "start"}
        wait = START_SECONDS
        while True:
            try:
                line = lines.get(timeout=wait)
            except queue.Empty:
                child.kill()
                self.blame(current, f"hung for {wait} s")
                break
            if line is None:
                if child.wait() not in (0, 3):
                    self.blame(current, f"child died with {child.returncode}")
                break
            report = json.loads(line)
            wait = (
                CELL_SECONDS if kind == "time" and report.get("variant") is None else STEP_SECONDS
            )
            if report["event"] == "begin":
                current = report
            else:
                self.take(report)
        return len(self.passed) + len(self.failed) + len(self.timed) > before

    def blame(self, current: dict[str, Any], what: str) -> None:
        text = f"{current['step']}: {what}"
        if current["variant"] is None:
            self.notes.append(text)
            print(f"! {text}", flush=True)
        else:
            self.take({"event": "failed", "variant": current["variant"], "error": text})

    def take(self, report: dict[str, Any]) -> None:
        event = report["event"]
        if event == "passed":
            self.passed[report["variant"]] = report["errors"]
            print(f"ok   {report['variant']}  {report['errors']['frobenius']:.2e}", flush=True)
        elif event == "failed":
            self.failed[report["variant"]] = report["error"]
            print(f"FAIL {report['variant']}: {report['error']}", flush=True)
        elif event == "timed":
            self.timed.append(report)
            best = min(report["seconds"].items(), key=lambda row: row[1]["median"])
            cell = Cell.from_json(report["cell"])
            print(
                f"timed {cell.name}: best {best[0]} {tflops(cell, best[1]['median']):.0f}",
                flush=True,
            )
        elif event == "note":
            self.notes.append(report["text"])
            print(f"- {report['text']}", flush=True)

    # -- report --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "tune.forward",
            "variants": {
                name: variant.artifact.manifest.to_json() for name, variant in self.variants.items()
            },
            "passed": self.passed,
            "failed": self.failed,
            "timed": self.timed,
            "notes": self.notes,
        }

    def tables(self) -> Iterator[str]:
        """Per group: TFLOP/s by sequence length, and the geometric mean against the best peer."""
        groups: dict[tuple[str, int, int, bool], list[dict[str, Any]]] = {}
        for row in self.timed:
            cell = Cell.from_json(row["cell"])
            key = (cell.dtype, cell.head_dim, cell.head_dim_v, cell.causal)
            groups.setdefault(key, []).append(row)
        for (dtype, dim, dim_v, causal), rows in sorted(groups.items()):
            rows.sort(key=lambda row: row["cell"]["seqlen_q"])
            yield f"\n{dtype} d{dim}x{dim_v} {'causal' if causal else 'full'}, TFLOP/s (paper)"
            yield "  geo   " + "".join(f"{row['cell']['seqlen_q']:>7}" for row in rows)
            names = sorted({name for row in rows for name in row["seconds"]})
            table = [(self.against_peers(name, rows), name) for name in names]
            for mean, name in sorted(table, key=lambda entry: -entry[0]):
                speeds = "".join(_speed(row, name) for row in rows)
                yield f"  {mean:.3f} {speeds}  {self.label(name)}"
        for name, error in self.failed.items():
            yield f"FAIL {self.label(name)}: {error}"

    def against_peers(self, name: str, rows: list[dict[str, Any]]) -> float:
        """Geometric mean of best other peer's time over this time; 0 where it was not timed."""
        logs = []
        for row in rows:
            medians = {n: s["median"] for n, s in row["seconds"].items()}
            peers = [seconds for n, seconds in medians.items() if n not in self.variants]
            if name not in medians:
                return 0.0
            logs.append(math.log(min(peers or medians.values()) / medians[name]))
        return math.exp(sum(logs) / len(logs))

    def label(self, name: str) -> str:
        variant = self.variants.get(name)
        if variant is None:
            return name
        plan = re.sub(r"^.*?_(?:causal|full)_", "", variant.plan_name)
        same = [v for v in self.variants.values() if v.plan_name == variant.plan_name]
        return plan if len(same) == 1 else f"{name} {plan}"


def _speed(row: dict[str, Any], name: str) -> str:
    seconds = row["seconds"].get(name)
    if seconds is None:
        return f"{'-':>7}"
    return f"{tflops(Cell.from_json(row['cell']), seconds['median']):7.0f}"


def _pump(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        if line.startswith('{"event"'):
            lines.put(line)
        else:
            sys.stderr.write(line)
    lines.put(None)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("--seqlens", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--match", default="", help="regular expression on directory or plan name")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of pure timing")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--num-sms", dest="sms", type=int, default=0, help="0: all of the GPU")
    parser.add_argument("--child", choices=("check", "time"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.seqlens = [int(text) for text in options.seqlens.split(",")]
    return options


def child(options: argparse.Namespace, variants: list[Variant]) -> None:
    import torch

    work = json.load(sys.stdin)
    options.sms = options.sms or torch.cuda.get_device_properties(0).multi_processor_count
    mine = [variant for variant in variants if variant.name in work["variants"]]
    with torch.no_grad():
        if options.child == "check":
            child_check(mine, options.sms)
        else:
            child_time(mine, [Cell.from_json(cell) for cell in work["cells"]], options)


def main() -> int:
    options = parse_options()
    variants = find_variants(options.artifacts, options.match)
    if options.child:
        child(options, variants)
        return 0
    if not variants:
        print(f"no artifact under {options.artifacts} matches {options.match!r}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    tuner = Tuner(variants, options)
    tuner.run()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(tuner.to_json(), indent=1))
    print("\n".join(tuner.tables()))
    print(
        f"{len(tuner.passed)} passed, {len(tuner.failed)} failed, "
        f"{len(tuner.timed)} cells timed in {time.perf_counter() - start:.0f} s"
    )
    return 1 if tuner.failed else 0


if __name__ == "__main__":
    sys.exit(main())

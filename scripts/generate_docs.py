"""Write the generated parts of README.md and docs/, or check that they are current.

    python scripts/generate_docs.py [--check]

A generated part lies between ``<!-- generated: NAME -->`` and ``<!-- end generated -->``.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hopwell.bench import record as records
from hopwell.bench.plot import draw
from hopwell.bench.record import Record
from hopwell.bench.summary import ratios_to_best_peer, summarise
from hopwell.cli import app, bench_app, cache_app
from hopwell.dispatch import SUPPORT
from hopwell.hopper.plan import shipped_forward_plans
from hopwell.settings import settings_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # a script's own path is its directory
from scripts import emulator_docs  # noqa: E402
from scripts.emulator_docs import table  # noqa: E402

RECORDS = ROOT / "benchmarks" / "records"
PLOT = ROOT / "docs" / "img" / "forward.svg"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(.*?)(<!-- end generated -->)", re.S)


def plans() -> str:
    """One row per bucket and mask: bf16 and fp16 differ in nothing that is shown."""
    return table(
        (
            "d, d_v",
            "mask",
            "tile",
            "stages",
            "MMA warpgroups",
            "turns",
            "rescale",
            "order",
            "shared bytes",
            "CTAs per SM",
        ),
        [
            (
                f"{plan.head_dim}, {plan.head_dim_v}",
                "causal" if plan.causal else "full",
                f"{plan.tile_m} × {plan.tile_n}",
                plan.stages,
                plan.mma_warpgroups,
                "yes" if plan.ping_pong else "no",
                plan.rescale.value,
                plan.tile_order.value.replace("_", " "),
                f"{plan.shared_bytes:,}",
                plan.ctas_per_sm,
            )
            for plan in shipped_forward_plans()
            if plan.dtype == "bfloat16"
        ],
    )


def support() -> str:
    return table(
        ("backend", "predicate", "takes"),
        [
            (f"`{backend}`", f"`{row.name}`", row.expected)
            for backend, rows in SUPPORT.items()
            for row in rows
        ],
    )


def commands() -> str:
    """Every command with the first line of its help."""
    groups = [("", app), ("cache ", cache_app), ("bench ", bench_app)]
    rows = [
        (
            f"`hopwell {group}{command.name or command.callback.__name__}`",
            inspect.getdoc(command.callback),
        )
        for group, typer in groups
        for command in typer.registered_commands
        if command.callback is not None
    ]
    return table(("command", "answers"), [(name, text or "") for name, text in rows])


def demo() -> str:
    """The demo's output on a machine without a GPU, in a terminal of 100 columns."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "hopwell", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"hopwell demo failed:\n{done.stdout}\n{done.stderr}")
    lines = (line.rstrip() for line in done.stdout.strip().splitlines())
    return "```\n" + "\n".join(lines) + "\n```\n"


def newest_record() -> Record | None:
    found = (record for _, record in records.read_all(RECORDS))
    return records.newest(found, records.BENCH_FORWARD)


def performance() -> str:
    """The newest forward record: the plot, then every target of the project beside it."""
    record = newest_record()
    if record is None or record.environment.gpu is None:
        return "Not measured yet: there is no record in `benchmarks/records`.\n"
    rows = [
        (v.target, v.wanted, v.reached, {True: "yes", False: "**no**", None: "-"}[v.holds], v.where)
        for v in summarise([record])
    ]
    return (
        f"![Forward throughput over sequence length]({PLOT.relative_to(ROOT)})\n\n"
        f"Measured on one {record.environment.gpu.name} on {record.created[:10]}, with commit "
        f"`{record.identity.commit}` and PyTorch {record.environment.torch}, all contenders "
        f"interleaved in one run. {slower(record)} "
        "The project's targets against that record:\n\n"
        + table(("target", "wanted", "reached", "holds", "where"), rows)
        + "\nThe compiled artifacts that ran:\n\n"
        + table(("plan", "artifact"), artifacts(record))
    )


def slower(record: Record) -> str:
    """Where a peer is faster than we are, in one sentence."""
    ratios = ratios_to_best_peer(record)
    below = [name for name, ratio in ratios.items() if ratio < 1]
    if not below:
        return f"On none of {len(ratios)} cells is a peer faster."
    worst = min(below, key=lambda name: ratios[name])
    return (
        f"On {len(below)} of {len(ratios)} cells the best peer is faster than Hopwell; the worst "
        f"is `{worst}` (head dimension, c if causal, sequence length), where Hopwell reaches "
        f"{ratios[worst]:.2f} of its speed."
    )


def artifacts(record: Record) -> list[tuple[str, str]]:
    """Every kernel of the record that was timed, with the start of its artifact hash."""
    return [
        (f"`{artifact.plan_name}`", f"`{artifact.artifact_hash[:16]}`")
        for artifact in record.identity.artifacts
        if "timed" in artifact.rungs
    ]


def redrawn() -> bytes | None:
    """The plot of the newest record, or None without one. The same record gives the same bytes."""
    record = newest_record()
    if record is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        drawn = Path(scratch) / PLOT.name
        draw(record, drawn)
        return drawn.read_bytes()


PARTS: dict[str, Callable[[], str]] = {
    **emulator_docs.PARTS,
    "commands": commands,
    "demo": demo,
    "performance": performance,
    "plans": plans,
    "settings": lambda: settings_table() + "\n",
    "support": support,
}
#: What differs from run to run and from processor to processor: rounding errors and durations.
VARIES = re.compile(
    r"\d\.\d+e[+-]\d+|\d+\.\d+ s\b|\((cache|compiled|wheel),|[\d,]+ warp instructions per second"
)


def stable(text: str) -> str:
    return VARIES.sub("#", text)


def regenerated(text: str) -> str:
    """The document with every part made anew, except a part that differs in what varies alone."""

    def renew(match: re.Match[str]) -> str:
        old, new = match[3], PARTS[match["name"]]()
        return match[1] + (old if stable(old) == stable(new) else new) + match[4]

    return PART.sub(renew, text)


def generated_files() -> dict[Path, bytes]:
    files = {path: regenerated(path.read_text("utf-8")).encode() for path in DOCUMENTS}
    plot = redrawn()
    return files if plot is None else {**files, PLOT: plot}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if stale")
    check = parser.parse_args().check
    stale = []
    for path, new in generated_files().items():
        if path.exists() and path.read_bytes() == new:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(new)
    if stale:
        print(f"{'stale' if check else 'wrote'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())

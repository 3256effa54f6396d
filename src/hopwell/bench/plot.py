"""The README's plot: TFLOP/s over sequence length, one panel per head dimension and mask.

matplotlib is imported when a plot is drawn (``hopwell[bench]``). The background is transparent
and every colour keeps its contrast on white and on black.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopwell.bench.record import OURS, Record, Row
from hopwell.errors import InputError

#: Legible on light and dark pages alike.
_INK = "#7d8590"
_COLOURS = {
    OURS: "#e8590c",
    "flash-attn-4": "#1c7ed6",
    "cudnn": "#2f9e44",
    "flash-attention-2": "#9c6ade",
}
_MARKERS = {OURS: "o", "flash-attn-4": "s", "cudnn": "^", "flash-attention-2": "D"}


def draw(record: Record, path: Path) -> None:
    """Write the plot of a forward record; the suffix (.svg, .png) chooses the format.

    Raises:
        InputError: the record has no timed row.
    """
    timed = [row for row in record.rows if row.tflops is not None]
    if not timed:
        raise InputError(
            "plot",
            expected="a record with timed rows",
            actual=f"{len(record.rows)} rows, none timed",
            consequence="Nothing was drawn.",
        )
    import matplotlib
    from matplotlib.figure import Figure

    # Text as text, and no time stamp: the same record gives the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hopwell"}):
        figure = Figure(figsize=(10.5, 6.0), layout="constrained")
        figure.patch.set_alpha(0.0)
        _panels(figure, timed)
        _caption(figure, record)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, transparent=True, metadata=metadata)


def _panels(figure: Any, rows: list[Row]) -> None:
    head_dims = sorted({row.problem.head_dim for row in rows})
    masks = sorted({row.problem.causal for row in rows})
    axes = figure.subplots(len(masks), len(head_dims), sharex=True, sharey=True, squeeze=False)
    for line, causal in enumerate(masks):
        for column, head_dim in enumerate(head_dims):
            axis = axes[line][column]
            chosen = [
                row
                for row in rows
                if row.problem.head_dim == head_dim and row.problem.causal == causal
            ]
            _lines(axis, chosen)
            # Shared by all panels, so from all the rows; half a line's width stays below the top.
            axis.set_ylim(0, 1.08 * max(row.tflops or 0.0 for row in rows))
            axis.set_title(f"d = {head_dim}, {'causal' if causal else 'full'}", color=_INK)
    for axis in axes[-1]:
        axis.set_xlabel("sequence length", color=_INK)
    for line in range(len(masks)):
        axes[line][0].set_ylabel("TFLOP/s", color=_INK)
    # From all panels: a contender may be missing in some.
    lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(
        list(lines.values()),
        list(lines),
        loc="outside upper center",
        ncols=len(lines),
        frameon=False,
        labelcolor=_INK,
    )


def _lines(axis: Any, rows: list[Row]) -> None:
    lengths = sorted({row.problem.seqlen_q for row in rows})
    names = sorted({row.contender for row in rows}, key=lambda name: (name != OURS, name))
    for name in names:
        mine = sorted(
            (row for row in rows if row.contender == name), key=lambda row: row.problem.seqlen_q
        )
        axis.plot(
            [row.problem.seqlen_q for row in mine],
            [row.tflops for row in mine],
            label=name,
            color=_COLOURS.get(name, _INK),
            marker=_MARKERS.get(name, "x"),
            markersize=5.5,
            linewidth=2.4 if name == OURS else 1.4,
            zorder=3 if name == OURS else 2,
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [_short(length) for length in lengths])
    axis.minorticks_off()
    axis.patch.set_alpha(0.0)
    axis.grid(color=_INK, alpha=0.25, linewidth=0.6)
    axis.tick_params(colors=_INK)
    for spine in axis.spines.values():
        spine.set_color(_INK)


def _short(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def _caption(figure: Any, record: Record) -> None:
    gpu = record.environment.gpu
    versions = {row.contender: row.version for row in record.rows if row.contender != OURS}
    parts = [
        gpu.name if gpu else "no GPU",
        "bf16 forward, 16,384 tokens, heads x d = 2048",
        "FLOPs: " + (record.measurement.flop_formula if record.measurement else "not given"),
    ]
    peers = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    figure.supxlabel("   |   ".join(parts) + "\n" + peers, fontsize=7.5, color=_INK)

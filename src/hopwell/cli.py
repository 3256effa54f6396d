"""The command line: ``hopwell`` and ``python -m hopwell``.

Each command asks a module for a report and shows it; see :mod:`hopwell.commands.display`. Exit
status: 0 when what the command checks holds, 1 when it does not or an error stopped it, 2 for
wrong usage.
"""

from __future__ import annotations

import io
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from hopwell.commands import display
from hopwell.errors import HopwellError

app = typer.Typer(
    name="hopwell",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The compiled kernels kept on disk.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure, and judge what was measured.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")

RECORDS = Path("benchmarks/records")

Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

Records = Annotated[Path, typer.Option(help="Directory of records.", file_okay=False)]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"hopwell {version('hopwell')}")
        raise typer.Exit


@app.callback()
def common(
    shown: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Exact attention for NVIDIA Hopper, and what proves it."""


@app.command()
def demo(as_json: Json = False) -> None:
    """Attention on real input, and the Hopper kernel that would run it."""
    from hopwell.commands import demo

    with display.progress() as tell:
        report = demo.report(tell)
    display.emit(report, demo.render, as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine can run, and why not."""
    from hopwell.commands import doctor

    display.emit(doctor.report(), doctor.render, as_json)


@app.command()
def plans(
    name: Annotated[
        str | None, typer.Argument(help="Show this plan in full: a part of its name.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List every shipped plan.")] = False,
    as_json: Json = False,
) -> None:
    """The plans that ship, with the resources of their compiled kernels."""
    from hopwell.commands import plans

    if listing == (name is not None):
        raise typer.BadParameter("give either --list or the name of a plan")
    if name is None:
        display.emit(plans.listing(), plans.render_listing, as_json)
    else:
        display.emit(plans.detail(name), plans.render_detail, as_json)


@app.command()
def explain(
    seqlen_q: Annotated[int, typer.Option(help="Queries of each sequence.")] = 4096,
    seqlen_k: Annotated[int | None, typer.Option(help="Keys; as many as queries.")] = None,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    heads_q: Annotated[int, typer.Option(help="Query heads.")] = 16,
    heads_k: Annotated[int | None, typer.Option(help="Key heads; as many as queries.")] = None,
    head_dim: Annotated[int, typer.Option(help="Of queries and keys.")] = 128,
    head_dim_v: Annotated[int | None, typer.Option(help="Of values; as of keys.")] = None,
    dtype: Annotated[
        str, typer.Option(help="bfloat16 (bf16), float16 (fp16), float32 or float64.")
    ] = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda (or cuda:0 and so on) or cpu.")] = "cuda",
    arch: Annotated[str, typer.Option(help="Of the GPU.")] = "sm_90",
    causal: Annotated[bool, typer.Option("--causal", help="Causal mask.")] = False,
    left: Annotated[int | None, typer.Option(help="Keys visible to the left.")] = None,
    right: Annotated[int | None, typer.Option(help="Keys visible to the right.")] = None,
    scale: Annotated[float | None, typer.Option(help="Of the scores; 1/sqrt(head_dim).")] = None,
    softcap: Annotated[float | None, typer.Option(help="Cap of the scores.")] = None,
    sink: Annotated[bool, typer.Option("--sink", help="With an attention sink.")] = False,
    strides: Annotated[
        str, typer.Option(help="Of q, k and v: tma (the copy engine can address them) or other.")
    ] = "tma",
    lse: Annotated[bool, typer.Option("--lse", help="With the log-sum-exp.")] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits every time.")
    ] = False,
    grad: Annotated[bool, typer.Option("--grad", help="With a gradient.")] = False,
    backend: Annotated[str, typer.Option(help="auto, hopper or cpu.")] = "auto",
    fallback: Annotated[str, typer.Option(help="error or torch.")] = "error",
    as_json: Json = False,
) -> None:
    """Which backend takes a problem, and what every other one refuses."""
    from hopwell.commands import explain
    from hopwell.commands.explain import LONG_DTYPES
    from hopwell.masks import Mask
    from hopwell.problem import Problem, check_window

    device = re.sub(r"^cuda:\d+$", "cuda", device)
    problem = Problem(
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_q if seqlen_k is None else seqlen_k,
        heads_q=heads_q,
        heads_k=heads_q if heads_k is None else heads_k,
        head_dim=head_dim,
        head_dim_v=head_dim if head_dim_v is None else head_dim_v,
        dtype=LONG_DTYPES.get(dtype, dtype),
        device=device,
        arch=arch if device == "cuda" else None,
        scale=max(head_dim, 1) ** -0.5 if scale is None else scale,
        q_strides=strides,
        k_strides=strides,
        v_strides=strides,
        mask=Mask.of(causal, check_window((left, right))),
        softcap=softcap,
        sink=sink,
        return_lse=lse,
        deterministic=deterministic,
        needs_grad=grad,
    )
    display.emit(explain.report(problem, backend, fallback), explain.render, as_json)


@app.command()
def evidence(
    records: Records = RECORDS,
    require: Annotated[
        str, typer.Option(help="The rung that every kernel must have reached.")
    ] = "compiled",
    as_json: Json = False,
) -> None:
    """How far the claim about each shipped kernel reaches, and by which record."""
    from hopwell.commands import evidence

    display.emit(evidence.report(records, require), evidence.render, as_json)


@app.command()
def emulate(
    target: Annotated[
        Path,
        typer.Argument(
            help="A Python program, PTX file or saved launch.", exists=True, dir_okay=False
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Of the program; put -- before those that begin with a dash."),
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="PTX: the entry; the only one.")] = None,
    grid: Annotated[str, typer.Option(help="PTX: CTAs along x, y and z, such as 4,2.")] = "1",
    block: Annotated[
        str | None, typer.Option(help="PTX: threads of a CTA; what .reqntid says.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="PTX: CTAs of a cluster.")] = "1",
    shared: Annotated[int, typer.Option(help="PTX: bytes of dynamic shared memory.", min=0)] = 0,
    args: Annotated[
        str,
        typer.Option(
            help="PTX: the arguments in order: 5, f32:0.5, @file.npy, zeros:f32:1024, "
            "random:bf16:128x64:SEED (also ones, range)."
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Save the arrays here afterwards.", file_okay=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="Schedules: how many, or such as 0,1,7 or 5-9.")] = "2",
    landing: Annotated[
        str | None,
        typer.Option(
            help="When asynchronous work completes: early, late or random. Otherwise early under "
            "seed 0, late under 1, 5, 9 and so on, random under the rest."
        ),
    ] = None,
    hazards: Annotated[bool, typer.Option(help="Look for hazards.")] = True,
    names: Annotated[
        Path | None,
        typer.Option(
            help="JSON or TOML: ranges of dynamic shared memory: name, first byte and bytes."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(help="Instructions of one warp that count as an endless loop.", min=1)
    ] = 20_000_000,
    resident: Annotated[int, typer.Option(help="CTAs that run at the same time.", min=1)] = 132,
    pipelines: Annotated[
        bool, typer.Option("--pipelines", help="Count what happens at every barrier.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a timeline for ui.perfetto.dev.", dir_okay=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Run compiled kernels on the CPU and name every hazard."""
    from hopwell.commands import emulate
    from hopwell.errors import InputError

    if landing not in (None, "early", "late", "random"):
        raise typer.BadParameter("--landing is early, late or random")
    try:
        options = emulate.Options(
            seeds=emulate.parse_seeds(seeds),
            landing=landing,  # type: ignore[arg-type]
            hazards=hazards,
            names={} if names is None else emulate.read_names(names),
            limit=limit,
            resident=resident,
            pipelines=pipelines,
            trace=trace,
        )
        started = emulate.Kernel(kernel, grid, block, cluster, shared, args, out)
        with display.progress() as tell:
            outcome = emulate.run(target, arguments or [], started, options, tell)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    display.emit(outcome.to_dict(), lambda _, console: emulate.render(outcome, console), as_json)


@cache_app.command()
def info(as_json: Json = False) -> None:
    """Every kernel on disk, verified."""
    from hopwell.commands import cache

    display.emit(cache.info(), cache.render_info, as_json)


@cache_app.command()
def clear(as_json: Json = False) -> None:
    """Remove every kernel from disk."""
    from hopwell.commands import cache

    display.emit(cache.clear(), cache.render_clear, as_json)


@cache_app.command()
def warm(
    match: Annotated[str, typer.Option(help="Only plans whose name contains this.")] = "",
    jobs: Annotated[
        int | None, typer.Option(help="Plans compiled at once; one per CPU.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile every shipped plan that is not there yet. Needs no GPU."""
    from hopwell.commands import cache

    with display.progress() as tell:
        report = cache.warm(match, jobs, tell)
    display.emit(report, cache.render_warm, as_json)


@bench_app.command()
def forward(
    cells: Annotated[
        list[str] | None,
        typer.Option("--cell", help="Such as d128cs4096 (c: causal). Default: the whole grid."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for all timing laps together.")] = 110.0,
    peers: Annotated[bool, typer.Option(help="Also measure the peers.")] = True,
    wheel: Annotated[Path | None, typer.Option(help="Wheel whose size to record.")] = None,
    commit: Annotated[str | None, typer.Option(help="Where git cannot be asked.")] = None,
    output: Annotated[Path | None, typer.Option(help="The record to write.")] = None,
    plot: Annotated[Path | None, typer.Option(help="The plot to draw, .svg or .png.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the record's cells.")] = False,
    as_json: Json = False,
) -> None:
    """The forward against its peers, interleaved in one run on a Hopper GPU."""
    from hopwell.bench import environment
    from hopwell.bench.forward import Options
    from hopwell.bench.grid import parse_cells, standard_grid
    from hopwell.commands import bench

    options = Options(
        cells=parse_cells(cells) if cells else standard_grid(),
        seconds=seconds,
        peers=peers,
        wheel=wheel,
        commit=commit,
    )
    if output is None:
        output = RECORDS / environment.record_name("forward", commit)
    with display.progress() as tell:
        report = bench.forward(
            options,
            output,
            plot,
            resume,
            lambda done, total, text: tell(f"{done} of {total}: {text}"),
        )
    display.emit(report, bench.render_forward, as_json)


@bench_app.command()
def emulator(
    launch: Annotated[
        Path | None,
        typer.Option(
            help="A saved launch of flash-attn-4's forward, where the package is not installed.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The record to write.")] = None,
    commit: Annotated[str | None, typer.Option(help="Where git cannot be asked.")] = None,
    as_json: Json = False,
) -> None:
    """The emulator on two forwards, hazards on and off: seconds, instructions, peak memory."""
    from hopwell.commands import bench

    with display.progress() as tell:
        report = bench.emulator(launch, output, commit, tell)
    display.emit(report, bench.render_emulator, as_json)


@bench_app.command()
def summary(records: Records = RECORDS, as_json: Json = False) -> None:
    """The newest record against the project's targets: reached, and where it falls short."""
    from hopwell.commands import bench

    display.emit(bench.summary(records), bench.render_summary, as_json)


def main() -> None:
    """Entry point: a Hopwell error is an answer, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            # A path may hold what the terminal's encoding does not.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except HopwellError as error:
        if "--json" in sys.argv:
            print(json.dumps({"ok": False, "error": display.error_report(error)}, indent=2))
        else:
            display.show_error(error)
        sys.exit(1)

"""``hopwell demo``: the main job, from real input to the kernel that would run it.

Without a GPU: attention of recorded activations on the CPU, its error against float64; then the
Hopper kernel for the same problem is compiled, and what its plan expects is put beside what its
PTX and cubin hold. With a Hopper GPU the kernel also runs, is compared and is timed. Without the
kernel compiler the report ends after the CPU's results, says what is missing, and is not ok.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hopwell.commands.display import INSTALL_COMPILER, Report, error_report, table
from hopwell.errors import CompilerMissing

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

#: The dtype that both the CPU and the Hopper kernel compute in here.
DTYPE = "bfloat16"
GPU_SECONDS = 0.5

Progress = Callable[[str], None]


def report(progress: Progress) -> Report:
    """Run everything that this machine can; ``ok`` when every comparison holds.

    ``progress`` is told what is about to happen.
    """
    from hopwell.data import provenance

    source = provenance()
    layers = source["layers"]
    attention = []
    for layer in layers:
        progress(f"attention of layer {layer} on the CPU, and in float64")
        attention.append(_attention(layer, "cpu"))
    found = {
        name: source[name]
        for name in ("model", "package", "page", "tokens", "heads", "head_dim", "layers")
    }
    try:
        kernel = _kernel(layers[0], progress)
    except CompilerMissing as error:
        missing = error_report(error)
        return {"ok": False, "input": found, "attention": attention, "error": missing}
    if kernel["not_executed"] is None:
        for layer in layers:
            progress(f"attention of layer {layer} on the GPU")
            attention.append(_attention(layer, "hopper"))
        progress("timing the kernel")
        kernel["microseconds"] = _time(layers[0])
    holds = all(not row["broken"] for row in attention)
    return {
        "ok": holds and kernel["support"]["ok"] and all(row["ok"] for row in kernel["rows"]),
        "input": found,
        "attention": attention,
        "kernel": kernel,
    }


def _inputs(layer: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    from hopwell.data import recorded

    q, k, v = (x.to(device, getattr(torch, DTYPE)) for x in recorded(layer))
    return q, k, v


def _attention(layer: int, backend: str) -> dict[str, Any]:
    """One call, what really ran, and its errors against the definition."""
    import hopwell
    from hopwell.bench.accuracy import Reference, budget, compare
    from hopwell.reference import attention as reference

    q, k, v = _inputs(layer, "cuda" if backend == "hopper" else "cpu")
    with hopwell.record_dispatch() as calls:
        o, lse = hopwell.attention(q, k, v, return_lse=True, backend=backend)
    o_exact, lse_exact = reference(q, k, v)
    heads = q.shape[2]
    exact = Reference(
        tuple((0, head) for head in range(heads)), o_exact[0].transpose(0, 1), lse_exact[0]
    )
    errors = compare(o[0].transpose(0, 1).double(), lse[0].double(), exact)
    limits = budget(q, k, v, exact, causal=False, scale=calls[0].problem.scale)
    return {
        "layer": layer,
        "backend": calls[0].backend,
        "kernel": calls[0].kernel_symbol,
        "dtype": DTYPE,
        "errors": errors.to_json(),
        "budget": asdict(limits),
        "broken": list(limits.broken_by(errors)),
    }


def _kernel(layer: int, progress: Progress) -> dict[str, Any]:
    """The Hopper kernel for the recorded problem: verdict, plan, and expected beside actual."""
    from hopwell import dispatch
    from hopwell.commands import explain
    from hopwell.compile import find, find_or_build
    from hopwell.compile.compare import compare, expected
    from hopwell.compile.inspect import inspect
    from hopwell.compile.key import toolchain
    from hopwell.hopper.device import why_not_hopper
    from hopwell.problem import Problem

    problem = replace(Problem.from_tensors(*_inputs(layer, "cpu")), device="cuda", arch="sm_90")
    support = explain.report(problem, "hopper")
    plan = dispatch.choose(problem, "hopper").plan
    assert plan is not None, "the hopper backend chooses a plan"
    if find(plan) is None and toolchain(plan.arch) is not None:
        progress("compiling the Hopper kernel for the same problem (no GPU needed)")
    start = time.perf_counter()
    artifact, source = find_or_build(plan)
    seconds = time.perf_counter() - start
    progress("reading its PTX and cubin")
    launched = artifact.manifest.shared_launched
    rows = compare(expected(plan), inspect(artifact.ptx(), artifact.cubin(), launched))
    return {
        "support": support,
        "plan": plan.to_json(),
        "plan_name": plan.name,
        "artifact_hash": artifact.manifest.artifact_hash,
        "source": source,
        "seconds": seconds,
        "rows": [
            {
                "name": row.name,
                "expected": _text(row.expected),
                "actual": _text(row.actual),
                "ok": row.ok,
            }
            for row in rows
        ],
        "not_executed": why_not_hopper(),
    }


def _text(value: object) -> str:
    """Sequences a line for each element."""
    return "\n".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _time(layer: int) -> dict[str, float]:
    """Kernel time of one call, in microseconds: median and quartiles over rounds."""
    import hopwell
    from hopwell.bench.timing import CudaClock, Statistic, Work, interleave

    q, k, v = _inputs(layer, "cuda")
    work = Work([lambda: hopwell.attention(q, k, v, backend="hopper")])
    samples = interleave({"hopwell": work}, CudaClock(), budget_seconds=GPU_SECONDS)["hopwell"]
    return Statistic.of([seconds * 1e6 for seconds in samples]).to_json()


# -- for a person ------------------------------------------------------------------------------


def render(report: Report, console: Console) -> None:
    source = report["input"]
    console.print("Real input", style="bold")
    console.print(
        f"q, k and v of layers {' and '.join(map(str, source['layers']))} of {source['model']}\n"
        f"over a page of English text: {source['tokens']} tokens, {source['heads']} heads, "
        f"d = {source['head_dim']}, rounded to {DTYPE}.",
        soft_wrap=True,
    )
    console.print()
    console.print(_errors_table(report["attention"]))
    if "error" in report:
        _render_missing(report["error"], console)
    else:
        _render_kernel(report["kernel"], source["head_dim"], console)


def _render_missing(error: Report, console: Console) -> None:
    console.print("No Hopper kernel", style="bold")
    console.print(
        f"{error['type']}: {error['what']}: expected {error['expected']}, got {error['actual']}.\n"
        f"{error['consequence']}\n"
        f"The kernel compiler comes with `{INSTALL_COMPILER}` in a clone; "
        "`hopwell doctor` lists what is missing.",
        soft_wrap=True,
    )


def _render_kernel(kernel: dict[str, Any], head_dim: int, console: Console) -> None:
    plan = kernel["plan"]
    verdict = "takes this problem" if kernel["support"]["ok"] else "refuses this problem"
    console.print("The Hopper kernel for the same problem", style="bold")
    console.print(
        f"support: the hopper backend {verdict}\n"
        f"plan: {kernel['plan_name']}\n"
        f"  head dimension {head_dim} in the bucket "
        f"({plan['head_dim']}, {plan['head_dim_v']}), "
        f"tiles of {plan['tile_m']} queries by {plan['tile_n']} keys\n"
        f"artifact: {kernel['artifact_hash'][:16]} ({kernel['source']}, {kernel['seconds']:.1f} s)",
        soft_wrap=True,
    )
    console.print()
    rows = [(row["name"], row["expected"], row["actual"], row["ok"]) for row in kernel["rows"]]
    title = "What the plan expects, and what PTX and cubin hold"
    console.print(table(title, ("", "expected", "actual", "ok"), rows))
    if kernel["not_executed"] is not None:
        console.print(
            f"Rung reached: compiled. Not executed: {kernel['not_executed']}.",
            soft_wrap=True,
        )
    else:
        console.print(
            f"Rung reached: executed. One call takes {kernel['microseconds']['median']:.1f} us.",
        )


def _errors_table(rows: list[dict[str, Any]]) -> Any:
    columns = ("layer", "backend", "relative error", "worst row", "log-sum-exp", "within budget")
    return table(
        "Attention against the definition in float64",
        columns,
        [
            (
                row["layer"],
                row["backend"],
                *(f"{row['errors'][name]:.2e}" for name in ("frobenius", "row_max", "lse")),
                not row["broken"],
            )
            for row in rows
        ],
    )

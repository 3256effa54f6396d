"""The generated parts of docs/emulator.md: examples that ran, tables of the code, and records."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import typer.models
from tests.emulator import evidence, mutation_tables, test_snippets
from tests.emulator.failure_lab.table import ELSEWHERE
from tests.emulator.snippets import record as snippet_record
from tests.emulator.snippets.library import library
from tests.emulator.snippets.snippet import Snippet

from hopwell import cli
from hopwell.emulator import emulation
from hopwell.emulator import instructions as _  # noqa: F401  registers them
from hopwell.emulator.hazards.rules import RULES
from hopwell.emulator.mutation_matrix import KILLERS, SURVIVED, Matrix
from hopwell.emulator.numerics.approximate import BOUNDS
from hopwell.emulator.registry import COMPUTATIONS, EFFECTS, find_effect

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
RECORDS = ROOT / "tests" / "emulator" / "records"
SPEED = ROOT / "benchmarks" / "emulator.json"
NOT_YET = "Not recorded yet.\n"

Edit = tuple[str, str]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    cells = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join("| " + " | ".join(line) + " |\n" for line in cells)


# -- examples ------------------------------------------------------------------------------


def run(example: str, options: str, edit: Edit | None = None) -> str:
    """What ``hopwell emulate`` says of an example, of which a part was replaced."""
    environment = {
        **os.environ,
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / example
        shutil.copy(EXAMPLES / example, path)
        if edit is not None:
            text = path.read_text("utf-8")
            assert text.count(edit[0]) == 1, f"{example}: {edit[0]}"
            path.write_text(text.replace(*edit), "utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "hopwell", "emulate", example, *shlex.split(options)],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"hopwell emulate {example} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def console(example: str, options: str = "", edit: Edit | None = None) -> Callable[[], str]:
    """A part that shows a command and its output."""

    def part() -> str:
        command = f"hopwell emulate {example} {options}".rstrip()
        lines = (line.rstrip() for line in run(example, options, edit).strip().splitlines())
        return "```console\n$ " + "\n".join([command, *lines]) + "\n```\n"

    return part


HANG = "--block 64 --args 'range:u32:128 zeros:u32:32'"
FENCE = "--block 128 --args zeros:u32:128"
LOOP = "--block 160 --args 'range:u32:768 zeros:u32:128 6'"


def one_group() -> str:
    """The JSON of a cause, as ``--json`` has it."""
    report = json.loads(run("missing_proxy_fence.ptx", f"{FENCE} --json"))
    (launch,) = report["launches"]
    (group,) = launch["hazards"]["groups"]
    return f"```json\n{json.dumps(group, indent=2)}\n```\n"


# -- tables of the code ----------------------------------------------------------------------


def rules() -> str:
    return table(
        ("rule", "what was seen", "what may happen on the GPU", "what is most often missing"),
        [
            (
                f"`{name}`<br>{rule.section.removeprefix('PTX ISA ')}",
                f"**{rule.title}**: {rule.meaning}",
                rule.breaks,
                rule.fix,
            )
            for name, rule in RULES.items()
        ],
    )


FAMILIES = {
    "cp_async": "`cp.async`, the copies of Ampere",
    "memory": "loads, stores, atomics, fences, addresses",
    "barriers": "named barriers, mbarriers, the cluster barrier, register counts",
    "bulk": "bulk and tensor copies",
    "tensormap": "tensor maps that a kernel edits",
    "remote": "stores into a peer's shared memory",
    "control": "control flow, and what a warp decides together",
    "matrix": "`mma.sync` and what loads for it",
    "wgmma": "warpgroup matrix instructions",
}


def instructions() -> str:
    """Every name in the registry; effects by the module that holds them."""
    families: defaultdict[str, list[str]] = defaultdict(list)
    for name, effect in EFFECTS.items():
        families[effect.__module__.rpartition(".")[2]].append(name)
    for name in ("mma", "movmatrix"):
        families["matrix"].append(name)
    pure = sorted(set(COMPUTATIONS) - set(families["matrix"]))
    order = [*FAMILIES, *(families.keys() - FAMILIES.keys())]
    rows = [("computations of registers", " ".join(f"`{name}`" for name in pure))]
    rows += [
        (FAMILIES.get(module, module), " ".join(f"`{name}`" for name in sorted(families[module])))
        for module in order
    ]
    return table(("family", "instructions"), rows)


#: Instructions of PTX for sm_90 that no one has registered, and forms of registered ones that are
#: refused; the record of snippets adds its own.
ABSENT = {
    "tex tld4 txq suld sust sured suq istypep": "textures and surfaces",
    "wmma.load wmma.store wmma.mma": "`wmma`, the older matrix instructions",
    "tensormap.cp_fenceproxy": "a tensor map copied with its fence",
    "multimem.ld_reduce multimem.st multimem.red": "memory of several GPUs at one address",
    "vadd vsub vabsdiff vmin vmax vshl vshr vmad vset vadd2 vadd4 vabsdiff4": "video instructions",
    "alloca stacksave stackrestore": "a stack of variable size",
    "shfl.up vote.all": "the forms without `.sync`, which sm_70 abolished",
    "tcgen05.mma clusterlaunchcontrol.try_cancel": "Blackwell",
}
REFUSED = (
    ("`call`", "device functions: compile with everything inlined"),
    ("`mma.sp`, `wgmma.mma_async.sp`", "sparse matrices"),
    ("tensor copies with `.im2col`, gather and scatter; interleaved maps", "only tiled copies"),
    ("`cp.async.bulk` with `.cp_mask`", "byte masks"),
    ("`ld` and `st` of `.b128`, atomics of 128 bits", "128-bit scalars"),
    ("`st.bulk`", "of Blackwell; the recipe below adds it"),
)  # fmt: skip


def _registered(name: str) -> bool:
    return name.partition(".")[0] in COMPUTATIONS or find_effect(name) is not None


def absent() -> str:
    """What is not there; an instruction that is registered is left out."""
    rows = []
    for names, words in ABSENT.items():
        unknown = [name for name in names.split() if not _registered(name)]
        if unknown:
            rows.append((" ".join(f"`{name}`" for name in unknown), words))
    listed = {reason: name for name, reason in test_snippets.NOT_MODELLED.items()}
    rows += REFUSED
    rows += [(reason, f"snippet `{name}`") for reason, name in sorted(listed.items())]
    return table(("what", "why, or what it is"), rows)


def bounds() -> str:
    rows = []
    for name, bound in BOUNDS.items():
        parts = (
            None if bound.ulp is None else f"{bound.ulp:g} ulp",
            None if bound.relative is None else f"relative 2^{_log2(bound.relative)}",
            None if bound.absolute is None else f"absolute 2^{_log2(bound.absolute)}",
        )
        words = " or ".join(part for part in parts if part)
        rows.append((f"`{name}`", words, bound.range))
    return table(("instruction", "error that PTX states", "for"), rows)


def _log2(value: float) -> str:
    return f"{math.log2(value):g}"


def options() -> str:
    """The options of ``hopwell emulate``."""
    hints = get_type_hints(cli.emulate, include_extras=True)
    rows = []
    for name, parameter in inspect.signature(cli.emulate).parameters.items():
        (info,) = getattr(hints[name], "__metadata__", (None,))
        if isinstance(info, typer.models.OptionInfo):
            # Typer keeps the first spelling that an annotation gives as the default.
            spelled = info.default if isinstance(info.default, str) else f"--{name}"
            if isinstance(parameter.default, bool) and spelled != info.default:
                spelled += f", --no-{name}"
            default = parameter.default
            shown = default is not None and not isinstance(default, bool) and default != ""
            rows.append((f"`{spelled}`", info.help or "", f"`{default}`" if shown else ""))
    return table(("option", "meaning", "default"), rows)


def schema() -> str:
    """The fields of the report, from the module that writes it."""
    text = emulation.__doc__ or ""
    rows: list[list[str]] = []
    for line in text.split("====================  ")[1].splitlines()[1:]:
        name, words = line[:22].strip().replace("``", "`"), line[22:].strip().replace("``", "`")
        if line[:1] == "`" and not (rows and rows[-1][0].endswith(",")):
            rows.append([name, words])
        else:
            rows[-1][0] = f"{rows[-1][0]} {name}".strip()
            rows[-1][1] = f"{rows[-1][1]} {words}".strip()
    return table(("field", "meaning"), rows)


# -- records -------------------------------------------------------------------------------


def snippets() -> str:
    """How many snippets of each family the record of an H200 answers, and how they compare."""
    kept = snippet_record.read()
    if kept is None:
        return NOT_YET
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, snippet in library().items():
        kind = _comparison(name, snippet, kept)
        counts[snippet.family][kind] += 1
        counts[snippet.family]["values"] += sum(output.make().size for output in snippet.outputs)
    kinds = (
        "bit for bit", "within a bound", "refused by both", "not modelled", "stale", "no answer",
    )  # fmt: skip
    rows = [
        (family, sum(found.values()) - found["values"], f"{found['values']:,}",
         *(found[kind] or "" for kind in kinds))
        for family, found in counts.items()
    ]  # fmt: skip
    total: Counter[str] = sum(counts.values(), Counter())
    every = sum(total.values()) - total["values"]
    rows.append(("all", every, f"{total['values']:,}", *(total[kind] or "" for kind in kinds)))
    machine = kept.machine
    return (
        table(("family", "snippets", "values", *kinds), rows)
        + f"\nAnswered by an {machine['gpu']} (driver {machine['driver']}, "
        f"{machine['assembler']}).\n"
    )


def _comparison(name: str, snippet: Snippet, kept: snippet_record.Record) -> str:
    if name in test_snippets.NOT_MODELLED:
        return "not modelled"
    answer = kept.answers.get(name)
    if answer is None or (answer.error is not None and not snippet.refused):
        return "no answer"
    if answer.fingerprint != snippet.fingerprint:
        return "stale"
    if snippet.refused:
        return "refused by both"
    kinds = {output.comparison.kind for output in snippet.outputs if output.comparison}
    return "bit for bit" if kinds == {"bits"} else "within a bound"


def own_forward() -> str:
    entries = evidence.Record("own_forward", "").entries()
    runs = [problem for plan in entries.values() for problem in plan["problems"].values()]
    count = sum(problem["seeds"] for problem in runs)
    executed = sum(problem["instructions"] for problem in runs)
    if not entries:
        return NOT_YET
    return (
        f"In the record: {len(entries)} plans and variants, {len(runs)} problems, {count} runs, "
        f"{executed:,} warp instructions, all right and clean. What is not today's code is skipped "
        "as stale.\n"
    )


def peers() -> str:
    """Cases of kernels of others: how many, and what was found in them."""
    entries = evidence.Record("peer_kernels", "").entries()
    if not entries:
        return NOT_YET
    families: defaultdict[str, list[Any]] = defaultdict(list)
    for name, entry in entries.items():
        families[name.partition(" ")[0]].append(entry)
    rows = []
    for family, cases in sorted(families.items()):
        packages = dict(pair for case in cases for pair in case["packages"].items())
        first = {"fa4": "flash-attn-4", "fla": "fla-core"}.get(family, family)
        found = sum((Counter(case["found"].keys()) for case in cases), Counter())
        rows.append(
            (
                f"{first} {packages[first]}",
                len(cases),
                sum(len(case["kernels"]) for case in cases),
                cases[0]["seeds"],
                f"{sum(case['instructions'] for case in cases):,}",
                f"{max(error for case in cases for error in case['errors'].values()):.1e}",
                "; ".join(f"{what} ({count})" for what, count in found.items()) or "nothing",
            )
        )
    heads = ("from", "problems", "launches", "seeds", "warp instructions", "largest error", "found")
    return table(heads, rows)


def failure_lab() -> str:
    """Every fault with the rule that named it, then those that the machine cannot show."""
    path = RECORDS / "failure_lab.json"
    if not path.exists():
        return NOT_YET
    rows = [
        (entry["section"], entry["row"], entry["made"], f"`{entry['rule']}`")
        for entry in json.loads(path.read_text("utf-8"))
    ]
    rows += [(row.section, row.row, row.made, f"not here: {row.caught}") for row in ELSEWHERE]
    return table(("spec", "fault", "made by", "named"), rows)


def mutations() -> str:
    """How many mutants of each kernel were killed, and by what."""
    rows = []
    for path in sorted(RECORDS.glob("mutations-*.json")):
        matrix = Matrix.read(path)
        ends = [row.outcome.killed_by for row in matrix.rows]
        *package, digest = matrix.artifact.split()
        rows.append(
            (
                path.stem.removeprefix("mutations-"),
                f"`{' '.join([*package, digest[:16]])}`",
                len(ends),
                *(ends.count(end) or "" for end in (*KILLERS, SURVIVED)),
            )
        )
    return table(("kernel", "artifact", "mutants", *KILLERS, SURVIVED), rows) if rows else NOT_YET


def sanitizer() -> str:
    """What compute-sanitizer said on a GPU, beside what the emulator says now."""
    path = EXAMPLES / "sanitizer.json"
    if not path.exists():
        return NOT_YET
    kept = json.loads(path.read_text("utf-8"))
    tools = list(dict.fromkeys(row["tool"] for row in kept["rows"]))
    rows = []
    for name, digest in kept["examples"].items():
        said = {row["tool"]: row["summary"] for row in kept["rows"] if row["example"] == name}
        if hashlib.sha256((EXAMPLES / f"{name}.ptx").read_bytes()).hexdigest() != digest:
            said = dict.fromkeys(tools, "stale: the example has changed")
        arguments = LOOP if name == "raw_bulk_loop" else FENCE
        ours = run(f"{name}.ptx", f"{arguments} --seeds 10").splitlines()[0]
        rows.append((f"`{name}.ptx`", *(said[tool] for tool in tools), ours))
    return (
        table(("example", *(f"`{tool}`" for tool in tools), "`hopwell emulate`"), rows)
        + f"\ncompute-sanitizer {kept['compute_sanitizer'].removeprefix('Version ')} on an "
        f"{kept['machine'].partition(',')[0]}, {kept['when'][:10]}. The kernels' results were "
        f"{' or '.join(sorted({row['output'] for row in kept['rows']}))} in every run.\n"
    )


def speed() -> str:
    if not SPEED.exists():
        return NOT_YET
    kept: dict[str, Any] = json.loads(SPEED.read_text("utf-8"))
    problem, targets = kept["problem"], kept["targets"]
    rows = [
        (
            row["workload"],
            "on" if row["hazards"] else "off",
            f"{row['seconds']:.2f}",
            f"{row['instructions']:,}",
            f"{row['instructions_per_second']:,.0f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
        )
        for row in kept["rows"]
    ]
    return (
        f"One head, S = {problem['seqlen']}, d = {problem['head_dim']}, {problem['dtype']}, one "
        f"seed, on {kept['environment']['cpus']} CPUs, {kept['created'][:10]}. Wanted: "
        f"{targets['seconds']:g} s and {targets['peak_bytes'] / 2**20:,.0f} MiB at most, hazards "
        "on.\n\n"
        + table(
            ("kernel", "hazards", "seconds", "warp instructions", "per second", "peak MiB"), rows
        )
    )


PARTS: dict[str, Callable[[], str]] = {
    "emulate-hang": console("hang.ptx", HANG),
    "emulate-hang-fixed": console("hang.ptx", f"{HANG} --seeds 10", ("[empty], 32", "[empty], 1")),
    "emulate-program": console("hang.py"),
    "emulate-program-fixed": console("hang.py", "--seeds 10", ("TILE * 4)", "TILE * 2)")),
    "emulate-race": console("missing_proxy_fence.ptx", FENCE),
    "emulate-race-fixed": console(
        "missing_proxy_fence.ptx", f"{FENCE} --seeds 10", ("// fence.proxy", "fence.proxy")
    ),
    "emulate-pipelines": console("raw_bulk_loop.ptx", f"{LOOP} --pipelines"),
    "emulator-group": one_group,
    "emulator-rules": rules,
    "emulator-instructions": instructions,
    "emulator-absent": absent,
    "emulator-bounds": bounds,
    "emulator-options": options,
    "emulator-schema": schema,
    "emulator-snippets": snippets,
    "emulator-forward": own_forward,
    "emulator-peers": peers,
    "emulator-lab": failure_lab,
    "emulator-mutations": mutations,
    "mutations": lambda: mutation_tables.document(table),
    "emulator-sanitizer": sanitizer,
    "emulator-speed": speed,
}

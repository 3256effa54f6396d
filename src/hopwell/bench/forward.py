"""``hopwell bench forward``: this library's forward against its peers, interleaved in one run.

Per cell: random inputs, every contender checked against float64 and run twice, then timed in
interleaved rounds. The record is written after every cell, so an interrupted run can be resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import hopwell
from hopwell.bench import accuracy, environment, new_process
from hopwell.bench.flops import Convention, tflops
from hopwell.bench.grid import Cell, standard_cell, standard_grid
from hopwell.bench.inputs import Inputs, draw
from hopwell.bench.peers import (
    Absent,
    Peer,
    available_peers,
    kernel_names,
    verify_kernels,
    verify_operator,
)
from hopwell.bench.record import (
    BENCH_FORWARD,
    OURS,
    Artifact,
    Clocks,
    Correctness,
    Dispatch,
    Environment,
    Host,
    Identity,
    Measurement,
    Record,
    Row,
    read,
    write,
)
from hopwell.bench.timing import (
    CudaClock,
    Statistic,
    host_seconds,
    input_sets,
    interleave,
    latency_seconds,
)
from hopwell.dispatch import CACHE_WORD
from hopwell.errors import InputError, MeasurementError
from hopwell.hopper.device import why_not_hopper

if TYPE_CHECKING:
    import torch

    from hopwell.dispatch import DispatchRecord
    from hopwell.hopper.plan import HopperForwardPlan

Progress = Callable[[int, int, str], None]

GAUSSIAN = "normal(0, 1), seeded per input set"
#: Scores compared with float64 per cell: as many (batch, head) pairs as stay below it.
REFERENCE_SCORES = 2**30
#: Host times are read on this problem: one tile, so that nothing but the host matters.
TINY = replace(standard_cell(128, False, 128), batch=1, heads_q=1, heads_k=1)

MEASUREMENT = Measurement(
    flop_convention=Convention.PAPER.value,
    flop_formula=Convention.PAPER.formula,
    inputs=GAUSSIAN + "; recorded rows: layers of a pre-trained encoder, for errors only",
    warm_up="every input set once, then one lap of two calls",
    repetitions="5 to 60 interleaved rounds by time budget; a lap per contender and round",
    synchronization="CUDA events around a lap, behind a spinning kernel; one wait per round",
    statistic="median of laps; spread = (p90 - p10) / median",
    boundaries={
        "developer_compile": "plan to linked artifact, as the artifact's manifest gives it",
        "cold_first_call": "first call of the cell in this process, to completion; compile "
        "classes that an earlier cell used are already loaded",
        "warm_kernel": "device time between events; allocation and host work overlap it",
        "end_to_end": "host clock from an idle device to completion, eager, output allocated",
    },
)


def recorded_label(layer: int) -> str:
    """``Row.inputs`` of the recorded activations of a layer."""
    return f"recorded, layer {layer}"


@dataclass(frozen=True)
class Options:
    """What to measure. ``seconds`` bounds the timing itself; references and checks come on top."""

    cells: tuple[Cell, ...] = standard_grid()
    seconds: float = 110.0
    peers: bool = True
    recorded: bool = True
    host: bool = True
    processes: bool = True
    wheel: Path | None = None
    commit: str | None = None


def run(
    options: Options,
    *,
    path: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda done, total, text: None,
) -> Record:
    """Measure and return the record.

    Args:
        options: What to measure.
        path: Where the record is written after every cell; nowhere if None.
        resume: Keep the cells that ``path`` already holds and measure the others.
        progress: Called with (cells done, cells in all, what comes now).

    Raises:
        InputError: no Hopper GPU is there, or ``path`` is and is not to be resumed.
        MeasurementError: a kernel of ours is wrong, or the record to resume was made by other
            code, on another GPU or with another PyTorch.
    """
    import torch

    _require_hopper()
    if path is not None and path.exists() and not resume:
        raise InputError(
            "the record to write",
            expected="a new file, or --resume",
            actual=f"{path}, which exists",
            consequence="Nothing was measured: a record is never edited.",
        )
    before = environment.gpu_state()
    here = environment.environment(before)
    peers, absent = available_peers() if options.peers else ([], [])
    previous = read(path) if path is not None and path.exists() else None
    if previous is not None:
        refuse_mixture(previous, environment.identity(commit=options.commit), here)
    session = _Session([ours(), *peers], absent, previous, options)
    todo = [cell for cell in options.cells if cell not in session.cells()]
    done = len(options.cells) - len(todo)
    with torch.no_grad():
        for index, cell in enumerate(todo):
            progress(done + index, len(options.cells), cell.name)
            session.measure(cell, options.seconds / len(todo))
            if path is not None:
                write(session.record(here), path)
        progress(len(options.cells), len(options.cells), "kernels, host and first calls")
        if options.recorded:
            session.measure_recorded()
        if options.host:
            session.measure_host()
        session.name_kernels()
    if options.processes:
        session.measure_new_process()
    record = session.record(environment.environment(before))
    if path is not None:
        write(record, path)
    return record


def _require_hopper() -> None:
    reason = why_not_hopper()
    if reason is not None:
        raise InputError(
            "the forward benchmark",
            expected="a Hopper GPU (compute capability 9.0)",
            actual=reason,
            consequence="Nothing was measured.",
        )


def refuse_mixture(previous: Record, identity: Identity, where: Environment) -> None:
    """Raise :class:`MeasurementError` unless this run may add to ``previous``.

    One record speaks of one code, on one kind of GPU, with the same libraries and kernels.
    """
    from hopwell.compile import find
    from hopwell.hopper.plan import shipped_forward_plans

    mine = {artifact.plan_name: artifact.artifact_hash for artifact in previous.identity.artifacts}
    found = {plan.name: find(plan) for plan in shipped_forward_plans() if plan.name in mine}
    now = {name: entry and entry[0].manifest.artifact_hash for name, entry in found.items()}
    held = {
        "sources": previous.identity.source_sha256,
        "packages": previous.identity.dependencies,
        "artifacts": mine,
        **_surroundings(previous.environment),
    }
    here = {
        "sources": identity.source_sha256,
        "packages": identity.dependencies,
        "artifacts": now,
        **_surroundings(where),
    }
    differing = [name for name in held if held[name] != here[name]]
    if differing:
        raise MeasurementError(
            "resuming a record",
            expected="; ".join(f"{name} {held[name]}" for name in differing),
            actual="; ".join(f"{name} {here[name]}" for name in differing),
            consequence="Nothing was measured: start a new record.",
        )


def _surroundings(where: Environment) -> dict[str, object]:
    gpu = where.gpu
    return {
        "GPU": None if gpu is None else (gpu.name, gpu.capability, gpu.sm_count, gpu.memory_bytes),
        "PyTorch": where.torch,
        "CUDA": where.cuda,
        "cuDNN": where.cudnn,
        "driver": where.driver,
    }


def ours() -> Peer:
    """This library as a contender, through its public function."""

    def bind(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
    ) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            return hopwell.attention(q, k, v, causal=causal, scale=scale, backend="hopper")

        return call

    return Peer(name=OURS, version=environment.hopwell_version(), bind=bind)


class _Session:
    """The rows of one run and what they are made from."""

    def __init__(
        self, peers: list[Peer], absent: list[Absent], previous: Record | None, options: Options
    ) -> None:
        self.peers = peers
        self.identity = environment.identity(commit=options.commit)
        self.wheel_bytes = options.wheel.stat().st_size if options.wheel else None
        self.absent = {peer.name: peer.reason for peer in absent}
        self.rows: list[Row] = list(previous.rows) if previous else []
        self.artifacts: dict[str, Artifact] = (
            {a.artifact_hash: a for a in previous.identity.artifacts} if previous else {}
        )
        self.notes: list[str] = list(previous.notes) if previous else []
        self.host: tuple[Host, ...] = previous.host if previous else ()
        self.new_process: dict[str, Statistic] = previous.new_process if previous else {}
        self.load = environment.LoadSampler()

    def cells(self) -> set[Cell]:
        return {row.problem for row in self.rows if row.inputs == GAUSSIAN}

    def record(self, where: Environment) -> Record:
        return Record(
            kind=BENCH_FORWARD,
            created=environment.now(),
            identity=replace(self.identity, artifacts=tuple(self.artifacts.values())),
            environment=where,
            measurement=MEASUREMENT,
            rows=tuple(self.rows),
            host=self.host,
            new_process=self.new_process,
            wheel_bytes=self.wheel_bytes,
            absent=self.absent,
            notes=tuple(self.notes),
        )

    # -- one cell ------------------------------------------------------------------------------

    def measure(self, cell: Cell, seconds: float) -> None:
        """Check and time all contenders on one cell."""
        import torch

        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        sets = [draw(cell, seed) for seed in range(input_sets(cell.tensor_bytes, l2))]
        rows, works = {}, {}
        for peer, row in self._checked(cell, sets[0], GAUSSIAN, tuple(self.peers)):
            calls = [peer.bind(*inputs, cell.causal, cell.scale) for inputs in sets]
            rows[peer.name] = row
            works[peer.name] = peer.work(calls)
        samples = interleave(works, CudaClock(), budget_seconds=seconds, after_round=self.load)
        load = self.load.median()
        for name, row in rows.items():
            warm = Statistic.of(samples[name])
            with works[name].scope():
                whole = latency_seconds(works[name].calls[0], torch.cuda.synchronize)
            self.rows.append(
                replace(
                    row,
                    clocks=replace(row.clocks, warm_kernel=warm, end_to_end=whole),
                    tflops=tflops(cell, warm.median),
                    load=load,
                )
            )
        if OURS in rows:
            self._mark_timed(rows[OURS])

    def _checked(
        self, cell: Cell, inputs: Inputs, label: str, peers: Sequence[Peer]
    ) -> Iterator[tuple[Peer, Row]]:
        """Every contender that computes the cell, with its untimed row."""
        limit = REFERENCE_SCORES // max(cell.seqlen_q * cell.seqlen_k, 1)
        pairs = accuracy.spread_pairs(cell.batch, cell.heads_q, max(2, limit))
        expected = accuracy.reference(*inputs, causal=cell.causal, scale=cell.scale, pairs=pairs)
        for peer in peers:
            try:
                row = self._check(peer, cell, inputs, label, expected)
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                if peer.name == OURS:
                    raise
                note = f"{peer.name} {cell.name}: {type(error).__name__}: {error}"
                self.notes.append(note[:300])
                continue
            yield peer, row

    def _check(
        self, peer: Peer, cell: Cell, inputs: Inputs, label: str, expected: accuracy.Reference
    ) -> Row:
        import torch

        call = peer.bind(*inputs, cell.causal, cell.scale)
        _poison(inputs)
        with peer.scope():
            torch.cuda.synchronize()
            start = time.perf_counter()
            if peer.name == OURS:
                first, lse, ran = _call_ours(inputs, cell)
            else:
                first, lse, ran = call(), None, None
            torch.cuda.synchronize()
            cold = time.perf_counter() - start
            again = call()
        found = accuracy.errors(first, lse, expected)
        if ran is None:
            verify_operator(peer, call)
            dispatch = Dispatch(requested=peer.name, ran=peer.operator or peer.name)
            tolerance = "relative to the best peer: hopwell bench summary"
        else:
            allowed = accuracy.budget(*inputs, expected, causal=cell.causal, scale=cell.scale)
            _refuse_wrong(cell, allowed.broken_by(found), ran)
            dispatch = self._dispatch(ran)
            tolerance = f"{allowed}, and relative to the best peer"
        return Row(
            contender=peer.name,
            version=peer.version,
            problem=cell,
            inputs=label,
            dispatch=dispatch,
            clocks=Clocks(developer_compile=self._compile_seconds(ran), cold_first_call=cold),
            tflops=None,
            correctness=Correctness(
                reference="float64 of the rounded inputs",
                pairs=len(expected.pairs),
                errors=found,
                repeatable=bool(torch.equal(first, again)),
                tolerance=tolerance,
            ),
        )

    def _dispatch(self, ran: DispatchRecord) -> Dispatch:
        plan = ran.plan
        assert plan is not None  # the hopper backend always has one
        artifact = self._keep_artifact(plan)
        return Dispatch(
            requested="hopper",
            ran=ran.backend,
            plan=plan.to_json(),
            plan_name=plan.name,
            compile_key=ran.compile_key,
            artifact_hash=ran.artifact_hash,
            kernel_symbol=ran.kernel_symbol,
            scheduler=f"persistent, {plan.tile_order.value}",
            # Where this process got the kernel, also when an earlier cell loaded it.
            cache=CACHE_WORD[artifact.source],
            fallback=None,
        )

    # -- artifacts -----------------------------------------------------------------------------

    def _keep_artifact(self, plan: HopperForwardPlan) -> Artifact:
        artifact = artifact_of(plan, ("executed",))
        return self.artifacts.setdefault(artifact.artifact_hash, artifact)

    def _mark_timed(self, row: Row) -> None:
        key = row.dispatch.artifact_hash
        if key is not None:
            self.artifacts[key] = replace(self.artifacts[key], rungs=("executed", "timed"))

    def _compile_seconds(self, ran: DispatchRecord | None) -> float | None:
        if ran is None or ran.artifact_hash is None:
            return None
        seconds = self.artifacts[ran.artifact_hash].manifest.get("compile_seconds")
        return None if seconds is None else float(seconds)

    # -- what is not a cell --------------------------------------------------------------------

    def measure_recorded(self) -> None:
        """Errors on recorded activations, both masks; too short to be timed."""
        from hopwell import data

        self.rows = [row for row in self.rows if row.inputs == GAUSSIAN]
        for layer in data.provenance()["layers"]:
            q, k, v = (x.to("cuda").bfloat16() for x in data.recorded(layer))
            for causal in (False, True):
                batch, seqlen, heads, dim = q.shape
                cell = Cell(batch, seqlen, seqlen, heads, heads, dim, dim, causal)
                checked = self._checked(cell, (q, k, v), recorded_label(layer), tuple(self.peers))
                for _, row in checked:
                    self.rows.append(row)

    def measure_host(self) -> None:
        """Time to enqueue one call, inside the peer's own scope."""
        import torch

        inputs = draw(TINY, 0)
        found = []
        for peer in self.peers:
            call = peer.bind(*inputs, TINY.causal, TINY.scale)
            try:
                if peer.name != OURS:
                    verify_operator(peer, call)
                with peer.scope():
                    found.append(Host(peer.name, host_seconds(call, torch.cuda.synchronize)))
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                self.notes.append(f"{peer.name} host time: {error}"[:300])
        self.host = tuple(found)

    def measure_new_process(self) -> None:
        """First call and compilation; a failure is noted, the cells before it are kept."""
        try:
            self.new_process = new_process.measure()
        except (RuntimeError, OSError) as error:
            self.notes.append(f"new process: {error}"[:1000])

    def name_kernels(self) -> None:
        """Profile one call per contender and compile class, after all timing, and note misfits."""
        peers = {peer.name: peer for peer in self.peers}
        seen: dict[tuple[str, int, bool], tuple[str, ...]] = {}
        for index, row in enumerate(self.rows):
            key = (row.contender, row.problem.head_dim, row.problem.causal)
            peer = peers.get(row.contender)
            if peer is None or row.dispatch.kernels:
                continue
            if key not in seen:
                cell = row.problem
                call = peer.bind(*draw(cell, 0), cell.causal, cell.scale)
                try:
                    with peer.scope():
                        seen[key] = kernel_names(call)
                    self._judge_kernels(peer, row, seen[key])
                except RuntimeError as error:  # the profiler may be refused; the operator stands
                    seen[key] = ()
                    self.notes.append(f"profiler, {peer.name} {cell.name}: {error}"[:300])
            self.rows[index] = replace(row, dispatch=replace(row.dispatch, kernels=seen[key]))

    def _judge_kernels(self, peer: Peer, row: Row, names: tuple[str, ...]) -> None:
        symbol = row.dispatch.kernel_symbol
        fits = symbol in names if symbol is not None else verify_kernels(peer, names)
        if not fits:
            wanted = symbol or " or ".join(peer.kernel_marks)
            self.notes.append(f"{peer.name} {row.problem.name}: {wanted} not among {names}"[:300])


def _refuse_wrong(cell: Cell, broken: tuple[str, ...], ran: DispatchRecord) -> None:
    """A kernel of ours is credited and timed only if it is right and known by hash and symbol."""
    if broken:
        raise MeasurementError(
            f"hopwell on {cell.name}",
            expected="errors within the budget of a same-precision result",
            actual="; ".join(broken),
            consequence="A wrong kernel is not timed.",
        )
    if not ran.artifact_hash or not ran.kernel_symbol:
        raise MeasurementError(
            f"hopwell on {cell.name}",
            expected="a kernel with an artifact hash and a symbol",
            actual=f"backend {ran.backend}, hash {ran.artifact_hash}, symbol {ran.kernel_symbol}",
            consequence="What has no name is not timed.",
        )


def _call_ours(inputs: Inputs, cell: Cell) -> tuple[torch.Tensor, torch.Tensor, DispatchRecord]:
    from hopwell.dispatch import record_dispatch

    with record_dispatch() as calls:
        o, lse = hopwell.attention(
            *inputs, causal=cell.causal, scale=cell.scale, backend="hopper", return_lse=True
        )
    (ran,) = calls
    return o, lse, ran


def artifact_of(plan: HopperForwardPlan, rungs: tuple[str, ...]) -> Artifact:
    """The record's entry for the kernel of a plan that ran in this process."""
    from hopwell.compile import load

    kernel = load(plan)  # the process's own copy: what just ran
    return Artifact(
        plan_name=plan.name,
        compile_key=kernel.key,
        artifact_hash=kernel.artifact_hash,
        kernel_symbol=kernel.symbol,
        source=kernel.source,
        rungs=rungs,
        manifest=kernel.artifact.manifest.to_json(),
    )


def _poison(inputs: Inputs) -> None:
    """Leave NaN in the block that the allocator hands out next for an output of this size."""
    import torch

    q, _, v = inputs
    torch.full((*q.shape[:3], v.shape[3]), torch.nan, dtype=q.dtype, device=q.device)


# -- reading a record back ------------------------------------------------------------------------


def ratio_to_best_peer(record: Record, cell: Cell) -> float | None:
    """Our speed over the fastest peer's on one cell; None where one of them is missing."""
    speeds = {r.contender: r.tflops for r in record.rows if r.problem == cell and r.tflops}
    mine = speeds.pop(OURS, None)
    return mine / max(speeds.values()) if mine and speeds else None


def geometric_mean(record: Record) -> float | None:
    """Of :func:`ratio_to_best_peer` over the record's timed cells."""
    cells = dict.fromkeys(row.problem for row in record.rows if row.tflops)
    logs = [math.log(ratio) for cell in cells if (ratio := ratio_to_best_peer(record, cell))]
    return math.exp(sum(logs) / len(logs)) if logs else None

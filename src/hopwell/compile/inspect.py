"""What a compiled kernel really holds, read from its PTX and cubin. Imports no plan.

Counts are of instructions in the code, not of executions. Shared-memory offsets count from the
start of the kernel's dynamic shared memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from hopwell.compile import sass
from hopwell.compile.entry import Kernel, address, operand
from hopwell.compile.warp_view import WARP, WarpView, reachable
from hopwell.ptx.nodes import Immediate, Instruction, Register, Special, Vector
from hopwell.ptx.scopes import DeclaredRegister, Placed

#: Compute capability 9.0 (CUDA C++ Programming Guide, technical specifications).
SHARED_BYTES_PER_SM = 228 * 1024
RESERVED_SHARED_BYTES_PER_CTA = 1024
SHARED_ALLOCATION_UNIT = 128
REGISTERS_PER_SM = 64 * 1024
REGISTER_ALLOCATION_UNIT = 8
THREADS_PER_SM = 2048
CTAS_PER_SM = 32
MBARRIER_BYTES = 8


@dataclass(frozen=True)
class MBarriers:
    """Adjacent mbarriers with one arrival count; ``transaction_bytes`` is what arming expects."""

    offset: int
    count: int
    arrivals: int | None
    transaction_bytes: tuple[int | None, ...]

    def __str__(self) -> str:
        text = f"{self.count} at {self.offset}, {self.arrivals} arrivals"
        return text + "".join(f" + {size} bytes" for size in self.transaction_bytes)


@dataclass(frozen=True)
class NamedBarrier:
    """One hardware barrier: participants in threads, and the warps that wait on or signal it."""

    id: int | None
    threads: int | None
    waiting: tuple[int, ...]
    arriving: tuple[int, ...]

    def __str__(self) -> str:
        text = f"id {self.id}, {self.threads} threads, warps {spans(self.waiting)} wait"
        return text + (f", warps {spans(self.arriving)} arrive" if self.arriving else "")


@dataclass(frozen=True)
class TensorCopies:
    """Tensor copies between one tile in shared memory and global memory.

    Loads complete the mbarrier at ``barrier``; stores have none. ``offset`` is the lowest address.
    """

    offset: int
    barrier: int | None
    instructions: int

    def __str__(self) -> str:
        kind = "stores from" if self.barrier is None else "loads to"
        text = f"{self.instructions} {kind} {self.offset}"
        return text if self.barrier is None else f"{text}, completing {self.barrier}"


@dataclass(frozen=True)
class RegisterTarget:
    """A register reallocation and the warps that execute it."""

    registers: int
    warps: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.registers} in warps {spans(self.warps)}"


@dataclass(frozen=True)
class Actual:
    """Everything that the inspector finds. ``None`` is "could not be known", never a guess."""

    kernel_symbol: str
    threads: int | None
    element_type: str
    mbarriers: tuple[MBarriers, ...]
    named_barriers: tuple[NamedBarrier, ...]
    tensor_copies: tuple[TensorCopies, ...]
    register_targets: tuple[RegisterTarget, ...]
    #: Phases of the warpgroup MMAs, each up to the wait for all: ``shape/A*steps`` and waits.
    wgmma_order: tuple[str, ...]
    wgmma_unfenced: int
    #: Multiplications of float32 registers between the two products of one phase.
    multiplies_between_products: int
    cta_order_mirrored: bool
    hgmma: int
    #: Register reallocations that survived into machine code (the assembler may drop them).
    usetmaxreg: int
    registers: int
    local_accesses: int
    stack_bytes: int
    shared_launched: int | None
    ctas_per_sm: int | None

    @property
    def payload_bytes(self) -> int | None:
        """Shared memory without padding between the rings; None when it cannot be known.

        The rings are what loads fill, over all stages. What threads fill (P, O) has no size in
        the code: it is what lies between the last ring and the first mbarrier.
        """
        rings, last_end = 0, 0
        for copies in self.tensor_copies:
            if copies.barrier is None:
                continue
            run = next((run for run in self.mbarriers if run.offset == copies.barrier), None)
            if run is None or len(run.transaction_bytes) != 1 or run.transaction_bytes[0] is None:
                return None
            ring = run.count * run.transaction_bytes[0]
            rings += ring
            last_end = max(last_end, copies.offset + ring)
        if not self.mbarriers:
            return None
        first = min(run.offset for run in self.mbarriers)
        barriers = MBARRIER_BYTES * sum(run.count for run in self.mbarriers)
        return rings + (first - last_end) + barriers

    @property
    def barriers_end(self) -> int:
        """End of the last mbarrier: shared memory up to here is in use."""
        return max((run.offset + run.count * MBARRIER_BYTES for run in self.mbarriers), default=0)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def spans(numbers: tuple[int, ...]) -> str:
    """``(4, 5, 6, 8)`` as ``4-6,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def inspect(ptx: str, cubin: bytes, shared_launched: int | None = None) -> Actual:
    """Inspects one kernel. ``shared_launched`` is the dynamic shared memory that its host code
    asks for, in bytes (neither PTX nor cubin holds it).

    Raises ValueError when PTX or cubin do not hold exactly one kernel, or not all of it.
    """
    kernel = Kernel.parse(ptx)
    found = sass.resources(cubin)
    warps = -(-(kernel.required_threads or WARP) // WARP)
    views = [WarpView(kernel, warp) for warp in range(warps)]
    reach = [reachable(view) for view in views]
    scene = _Scene(kernel, views, reach)
    order = _WgmmaOrder.of(kernel)
    return Actual(
        kernel_symbol=kernel.name,
        threads=kernel.required_threads,
        element_type=order.element_type,
        mbarriers=_mbarriers(scene),
        named_barriers=_named_barriers(scene),
        tensor_copies=_tensor_copies(scene),
        register_targets=_register_targets(scene),
        wgmma_order=order.phases,
        wgmma_unfenced=order.unfenced,
        multiplies_between_products=order.multiplies,
        cta_order_mirrored=_mirrors_cta(kernel),
        hgmma=found.operations["HGMMA"],
        usetmaxreg=found.operations["USETMAXREG"],
        registers=found.registers,
        local_accesses=found.local_accesses,
        stack_bytes=found.stack_bytes,
        shared_launched=shared_launched,
        ctas_per_sm=_ctas_per_sm(kernel.required_threads, found.registers, shared_launched),
    )


@dataclass(frozen=True)
class _Scene:
    """The kernel, and what each of its warps would compute and execute."""

    kernel: Kernel
    views: list[WarpView]
    reach: list[set[int]]

    def select(self, *prefixes: str) -> list[Placed]:
        """Instructions whose opcodes start so."""
        return [p for p in self.kernel.instructions if p.node.opcode.startswith(prefixes)]

    def warps(self, placed: Placed) -> tuple[int, ...]:
        """Warps that may execute an instruction."""
        return tuple(w for w, positions in enumerate(self.reach) if placed.position in positions)

    def address(self, placed: Placed, position: int) -> int:
        """Known part of one of the addresses, as the first warp that gets there computes it."""
        warps = self.warps(placed)
        view = self.views[warps[0] if warps else 0]
        return view.address(address(placed.node, position), placed.scope).constant

    def value(self, placed: Placed, position: int, warp: int = 0) -> int | None:
        """An operand's value in a warp, or None."""
        return self.views[warp].value(operand(placed.node, position), placed.scope).known


# -- barriers ------------------------------------------------------------------------------


def _mbarriers(scene: _Scene) -> tuple[MBarriers, ...]:
    arrivals = {scene.address(p, 0): scene.value(p, 1) for p in scene.select("mbarrier.init")}
    armed: dict[int, set[int | None]] = {}
    for p in scene.select("mbarrier.arrive.expect_tx", "mbarrier.expect_tx"):
        armed.setdefault(scene.address(p, 0), set()).add(scene.value(p, -1))
    runs: list[tuple[int, int, int | None]] = []
    for offset, count in sorted(arrivals.items()):
        if runs:
            start, length, expected = runs[-1]
            adjacent = offset == start + length * MBARRIER_BYTES
            if adjacent and count == expected and count is not None and offset not in armed:
                runs[-1] = (start, length + 1, expected)
                continue
        runs.append((offset, 1, count))
    return tuple(
        MBarriers(offset, length, count, tuple(sorted(armed.get(offset, ()), key=_unknown_last)))
        for offset, length, count in runs
    )


def _unknown_last(value: int | None) -> tuple[bool, int]:
    return value is None, value or 0


def _named_barriers(scene: _Scene) -> tuple[NamedBarrier, ...]:
    waiting: dict[tuple[int | None, int | None], set[int]] = {}
    arriving: dict[tuple[int | None, int | None], set[int]] = {}
    for p in scene.select("bar.", "barrier.sync", "barrier.arrive", "barrier.cta"):
        side = arriving if "arrive" in p.node.modifiers else waiting
        for warp in scene.warps(p):
            number = scene.value(p, 0, warp)
            threads = scene.kernel.required_threads
            if len(p.node.operands) > 1:
                threads = scene.value(p, 1, warp)
            side.setdefault((number, threads), set()).add(warp)
    return tuple(
        NamedBarrier(
            number,
            threads,
            tuple(sorted(waiting.get((number, threads), ()))),
            tuple(sorted(arriving.get((number, threads), ()))),
        )
        for number, threads in sorted(
            waiting.keys() | arriving.keys(), key=lambda key: tuple(map(_unknown_last, key))
        )
    )


# -- copies and registers ------------------------------------------------------------------


def _tensor_copies(scene: _Scene) -> tuple[TensorCopies, ...]:
    loads: dict[int, list[int]] = {}
    stores: list[int] = []
    for p in scene.select("cp.async.bulk.tensor."):
        # A load: [shared], [map, {coordinates}], [barrier]. A store has the map first.
        if ".mbarrier::complete_tx" in p.node.opcode:
            loads.setdefault(scene.address(p, 2), []).append(scene.address(p, 0))
        else:
            stores.append(scene.address(p, 1))
    found = [TensorCopies(min(to), barrier, len(to)) for barrier, to in sorted(loads.items())]
    if stores:
        found.append(TensorCopies(min(stores), None, len(stores)))
    return tuple(found)


def _register_targets(scene: _Scene) -> tuple[RegisterTarget, ...]:
    return tuple(
        RegisterTarget(_constant(p.node, 0), scene.warps(p)) for p in scene.select("setmaxnreg.")
    )


def _constant(node: Instruction, position: int) -> int:
    found = operand(node, position)
    if not isinstance(found, Immediate) or not isinstance(found.value, int):
        raise ValueError(f"{node.location}: {node.opcode} takes a constant integer, not {found}")
    return found.value


def _ctas_per_sm(threads: int | None, registers: int, shared: int | None) -> int | None:
    """Resident CTAs by registers, threads and shared memory, as the hardware allots them."""
    if threads is None or shared is None:
        return None
    per_thread = -(-registers // REGISTER_ALLOCATION_UNIT) * REGISTER_ALLOCATION_UNIT
    per_cta = -(-shared // SHARED_ALLOCATION_UNIT) * SHARED_ALLOCATION_UNIT
    return min(
        CTAS_PER_SM,
        THREADS_PER_SM // threads,
        REGISTERS_PER_SM // (threads * per_thread),
        SHARED_BYTES_PER_SM // (per_cta + RESERVED_SHARED_BYTES_PER_CTA),
    )


# -- warpgroup MMAs ------------------------------------------------------------------------

_SHAPE = re.compile(r"\.(m\d+n\d+k\d+)\.\w+\.(\w+)\.\w+")


@dataclass
class _WgmmaOrder:
    """The warpgroup MMAs in text order, cut into phases at every wait for all groups."""

    phases: tuple[str, ...]
    element_type: str
    unfenced: int
    multiplies: int

    @classmethod
    def of(cls, kernel: Kernel) -> _WgmmaOrder:
        phases: list[str] = []
        events: list[str] = []
        group: Counter[str] = Counter()
        types: set[str] = set()
        fenced, unfenced, multiplies, between = False, 0, 0, 0
        for _, node, _ in kernel.instructions:
            opcode = node.opcode
            if opcode.startswith("wgmma.fence"):
                fenced = True
            elif opcode.startswith("wgmma.mma_async"):
                found = _SHAPE.search(opcode)
                if found is None:
                    raise ValueError(f"unknown warpgroup MMA: {opcode}")
                if not group:
                    unfenced += not fenced
                    multiplies = max(multiplies, between if events else 0)
                source = "registers" if isinstance(operand(node, 1), Vector) else "shared"
                group[f"{found.group(1)}/{source}"] += 1
                types.add(found.group(2))
            elif opcode.startswith("wgmma.commit_group"):
                events += [f"{kind}*{steps}" for kind, steps in group.items()] or ["nothing"]
                group.clear()
                fenced, between = False, 0
            elif opcode.startswith("wgmma.wait_group"):
                left = _constant(node, 0)
                events.append(f"wait {left}")
                if left == 0:
                    phases.append(" | ".join(events))
                    events = []
            elif node.name == "mul" and "f32" in node.modifiers:
                between += 1
        distinct = tuple(dict.fromkeys(phases))
        return cls(distinct, "+".join(sorted(types)), unfenced, multiplies)


def _mirrors_cta(kernel: Kernel) -> bool:
    """Whether the CTA's number is ever subtracted: some tiles are visited in reverse order."""
    copies: set[DeclaredRegister] = set()

    def is_copy(placed: Placed, position: int) -> bool:
        found = operand(placed.node, position)
        if isinstance(found, Register):
            return placed.scope.register(found) in copies
        return found == Special("%ctaid.x")

    for p in kernel.instructions:
        name, result = p.node.name, p.node.operands[:1]
        if name == "mov" and is_copy(p, 1) and isinstance(result[0], Register):
            copies.add(p.scope.register(result[0]))
    return any(
        (p.node.name in ("not", "neg") and is_copy(p, 1))
        or (p.node.name == "sub" and is_copy(p, 2))
        for p in kernel.instructions
    )

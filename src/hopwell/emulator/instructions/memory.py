"""Loads, stores, atomics and addresses (PTX ISA 9.7.9, 9.7.13.12 and following)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator import layout
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.lanes import Lanes, lanes_of
from hopwell.emulator.memory import POISON, Memory
from hopwell.emulator.registry import effect
from hopwell.emulator.types import TYPES, Type
from hopwell.ptx.nodes import Address, Instruction, Operand, Register, Sink, Symbol

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp

SPACES: Final = ("shared", "global", "local", "param", "const")
_STRONG: Final = ("relaxed", "acquire", "release", "acq_rel", "volatile", "sc")
_SCOPES: Final = ("cta", "cluster", "gpu", "sys")

Part = tuple[Memory | None, Lanes, NDArray[np.int64]]


def state_space(node: Instruction) -> tuple[str, bool]:
    """The space that an opcode names ("generic" for none), and whether it is shared::cluster."""
    for modifier in node.modifiers:
        name, _, kind = modifier.partition("::")
        if name in SPACES:
            return name, kind == "cluster"
    return "generic", False


def _own_space(node: Instruction, bind: Binder, operand: Operand) -> str:
    """The space of a load or store; a ``.param`` variable of a body lies with the local ones."""
    space, _ = state_space(node)
    base = operand.base if isinstance(operand, Address) else None
    if space == "param" and isinstance(base, Symbol):
        return str(bind.scope.space_of(base))
    return space


def access_type(node: Instruction, bind: Binder) -> Type:
    """The scalar type that an opcode ends in."""
    kind = TYPES.get(node.modifiers[-1])
    if kind is None:
        raise bind.fail("its last modifier is no type")
    return kind


def locate(
    warp: "Warp", space: str, addresses: NDArray[np.int64], lanes: Lanes, size: int
) -> Iterator[Part]:
    """Split an access of 32 addresses by the memory that each lane's falls in.

    Lanes that reach no memory are reported as out of bounds and yielded with None.
    """
    if not lanes.count:
        return
    if space == "generic":
        yield from _locate_generic(warp, addresses, lanes, size)
    elif space == "shared":
        yield from _locate_shared(warp, addresses, lanes, size)
    elif space == "param" and not _in_window(addresses, lanes):
        yield warp.machine.parameters, lanes, addresses[lanes.index]
    else:
        if space == "const" and not _in_window(addresses, lanes):
            addresses = addresses + layout.CONSTANT_WINDOW
        for part in warp.machine.globals.split(addresses, lanes, size):
            if part[0] is None:
                _outside(warp, "global", part, addresses, size)
            yield part


def _in_window(addresses: NDArray[np.int64], lanes: Lanes) -> bool:
    return int(addresses[lanes.first]) >= layout.SHARED_WINDOW


def _locate_generic(
    warp: "Warp", addresses: NDArray[np.int64], lanes: Lanes, size: int
) -> Iterator[Part]:
    windows = addresses >> 56
    for window in np.unique(windows[lanes.index]).tolist():
        part = lanes_of(sum(1 << int(i) for i in lanes.index if windows[i] == window))
        base = window << 56
        if base == layout.SHARED_WINDOW:
            yield from _locate_shared(warp, addresses - base, part, size)
        elif base == layout.PARAMETER_WINDOW:
            yield warp.machine.parameters, part, (addresses - base)[part.index]
        else:
            yield from locate(warp, "global", addresses, part, size)


def _locate_shared(
    warp: "Warp", addresses: NDArray[np.int64], lanes: Lanes, size: int
) -> Iterator[Part]:
    cta = warp.cta
    own = cta.shared
    active = addresses if lanes.full else addresses[lanes.index]
    offsets = active - own.base
    if int(offsets.min()) >= 0 and int(offsets.max()) + size <= own.size:
        yield own, lanes, offsets
        return
    ranks = active >> layout.RANK_SHIFT
    for rank in np.unique(ranks).tolist():
        ctas = cta.cluster.ctas
        peer = ctas[rank] if 0 <= rank < len(ctas) else None
        offsets = active - (0 if peer is None else peer.shared.base)
        chosen = ranks == rank
        inside = chosen & (offsets >= 0)
        inside &= False if peer is None else offsets + size <= peer.shared.size
        if not inside[chosen].all():
            wrong = chosen & ~inside
            part = lanes_of(sum(1 << int(lane) for lane in lanes.index[wrong]))
            _outside(warp, "shared", (None, part, offsets[wrong]), addresses, size)
            yield None, part, offsets[wrong]
        if peer is None or not inside.any():
            continue
        part = lanes_of(sum(1 << int(lane) for lane in lanes.index[inside]))
        if not peer.alive and not warp.op.opcode.startswith("mbarrier.arrive"):
            warp.checker.report("peer-cta-gone", warp.agent, part, warp.op, peer=str(peer.index))
        yield peer.shared, part, offsets[inside]


def _outside(warp: "Warp", space: str, part: Part, addresses: NDArray[np.int64], size: int) -> None:
    lanes = part[1]
    first = int(addresses[lanes.first])
    warp.checker.report(
        f"out-of-bounds-{space}",
        warp.agent,
        lanes,
        warp.op,
        address=f"{first:#x}",
        bytes=size,
        limit=_limit(warp, space, first),
    )


def _limit(warp: "Warp", space: str, address: int) -> str:
    if space == "shared":
        own = warp.cta.shared
        return f"shared memory of this CTA is [{own.base:#x}, {own.base + own.size:#x})"
    nearest = min(
        warp.machine.globals,
        key=lambda m: min(abs(address - m.base), abs(address - m.base - m.size)),
        default=None,
    )
    if nearest is None:
        return "the launch has no buffers"
    return f"the nearest buffer, {nearest.name}, ends {address - nearest.base - nearest.size:+d}"


def check_alignment(warp: "Warp", offsets: NDArray[np.int64], size: int, lanes: Lanes) -> bool:
    """Report accesses that are not naturally aligned; whether all are."""
    if not int(np.bitwise_or.reduce(offsets)) & (size - 1):
        return True
    warp.checker.report("misaligned-access", warp.agent, lanes, warp.op, bytes=size)
    return False


def _vector(node: Instruction) -> int:
    return next((int(m[1:]) for m in node.modifiers if m in ("v2", "v4", "v8")), 1)


def _ordering(node: Instruction) -> tuple[bool, str, str]:
    """Whether an access is strong (8.7 and 8.4: it may synchronise), its semantics and scope.

    A volatile access counts as a relaxed one of system scope; atomics name no scope for .gpu.
    """
    semantics = next((m for m in node.modifiers if m in _STRONG), None)
    volatile = semantics in ("volatile", "mmio")
    scope = next((m for m in node.modifiers if m in _SCOPES), "sys" if volatile else "gpu")
    if semantics is None or volatile:
        return volatile, "relaxed", scope
    return True, semantics, scope


@effect("ld", "ldu")
def ld(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.8 ld: load 1, 2, 4 or 8 values from each lane's address."""
    space = _own_space(node, bind, node.operands[1])
    kind = access_type(node, bind)
    targets = bind.elements(node.operands[0])
    # A register wider than the type takes the value extended; stores of bits go by dtype.
    setters = [bind.write(t, kind.name) for t in targets]
    address = bind.address(node.operands[1])
    local = _local_load(bind, kind, setters, address)
    if space == "local":
        return local
    size, count, op = kind.bytes, len(targets), bind.op
    total = size * count
    generic = space == "generic"
    strong, semantics, scope = _ordering(node)
    unsigned, dtype = np.dtype(f"u{size}") if size <= 8 else kind.dtype, kind.dtype
    if size == 16:
        raise bind.fail("128-bit scalars are not modelled")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        if generic:
            lanes = _in_local(warp, lanes, address(warp), local)
        for memory, part, offsets in locate(warp, space, address(warp), lanes, total):
            values = np.full((count, 32), POISON, unsigned)
            if memory is not None and check_alignment(warp, offsets + memory.base, total, part):
                if memory.region is not None:
                    warp.checker.read(
                        warp.agent, part, op, memory.region, offsets, total,
                        strong, semantics, scope,
                    )  # fmt: skip
                for i in range(count):
                    values[i, part.index] = memory.gather(offsets + i * size, size)
            for i, store in enumerate(setters):
                store(warp, part, values[i].view(dtype))

    return execute


def _in_local(warp: "Warp", lanes: Lanes, addresses: NDArray[np.int64], access: Execute) -> Lanes:
    """Perform a generic access for lanes whose address is local; the lanes that remain."""
    windows = addresses[lanes.index] >> 56 << 56
    inside = windows == layout.LOCAL_WINDOW
    if not inside.any():
        return lanes
    local = lanes_of(sum(1 << int(lane) for lane in lanes.index[inside]))
    access(warp, local)
    return lanes_of(lanes.bits & ~local.bits)


def _in_bounds(
    warp: "Warp", lanes: Lanes, addresses: NDArray[np.int64], size: int
) -> tuple[Lanes, NDArray[np.int64]]:
    """Lanes whose local access lies in local memory, with their offsets; others are reported."""
    where = addresses[lanes.index]
    where = np.where(where >> 56 == layout.LOCAL_WINDOW >> 56, where & layout.WINDOW_MASK, where)
    limit = warp.cta.program.local_bytes
    inside = (where >= 0) & (where + size <= limit)
    if not inside.all():
        wrong = lanes_of(sum(1 << int(lane) for lane in lanes.index[~inside]))
        warp.checker.report(
            "out-of-bounds-local", warp.agent, wrong, warp.op, bytes=size,
            offset=int(where[~inside][0]), limit=f"local memory has {limit} bytes per thread",
        )  # fmt: skip
    return lanes_of(lanes.bits & ~sum(1 << int(i) for i in lanes.index[~inside])), where[inside]


def _local_load(bind: Binder, kind: Type, setters: list[Any], address: Any) -> Execute:
    size = kind.bytes

    def execute(warp: "Warp", lanes: Lanes) -> None:
        lanes, where = _in_bounds(warp, lanes, address(warp), size * len(setters))
        for i, store in enumerate(setters if lanes.count else ()):
            assert warp.local is not None
            columns = where[:, None] + i * size + np.arange(size)
            values = np.zeros(32, kind.dtype)
            values[lanes.index] = np.ascontiguousarray(
                warp.local[lanes.index[:, None], columns]
            ).view(kind.dtype)[:, 0]
            store(warp, lanes, values)

    return execute


@effect("st")
def st(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.11 st: store 1, 2, 4 or 8 values at each lane's address."""
    if "bulk" in node.modifiers:
        raise bind.fail("st.bulk is not modelled")
    space = _own_space(node, bind, node.operands[0])
    kind = access_type(node, bind)
    sources = bind.elements(node.operands[1])
    raw = f"b{kind.bits}"
    getters = [bind.read(s, raw) for s in sources]
    address = bind.address(node.operands[0])
    size, count, op = kind.bytes, len(sources), bind.op
    total = size * count
    strong, semantics, scope = _ordering(node)
    if size == 16:
        raise bind.fail("128-bit scalars are not modelled")

    def execute_local(warp: "Warp", lanes: Lanes) -> None:
        lanes, where = _in_bounds(warp, lanes, address(warp), total)
        for i, get in enumerate(getters if lanes.count else ()):
            assert warp.local is not None
            columns = where[:, None] + i * size + np.arange(size)
            values = np.ascontiguousarray(get(warp)[lanes.index])
            warp.local[lanes.index[:, None], columns] = values.view(np.uint8).reshape(-1, size)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        if space == "generic":
            lanes = _in_local(warp, lanes, address(warp), execute_local)
        for memory, part, offsets in locate(warp, space, address(warp), lanes, total):
            if memory is None or not check_alignment(warp, offsets + memory.base, total, part):
                continue
            values = [get(warp)[part.index] for get in getters]
            if memory.region is not None:
                warp.checker.write(
                    warp.agent, part, op, memory.region, offsets, total,
                    strong, semantics, scope, np.stack(values, axis=1),
                )  # fmt: skip
            for i, value in enumerate(values):
                memory.scatter(offsets + i * size, value, size)
            warp.machine.version += 1

    return execute_local if space == "local" else execute


OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda old, b: old + b,
    "min": lambda old, b: b if b < old else old,
    "max": lambda old, b: b if b > old else old,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
"""What atomics make of a location's old value and their operand (PTX ISA 9.7.13.13)."""


@effect("atom", "red")
def atomic(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.13 atom and 9.7.13.14 red: read, modify and write one location, lane by lane."""
    space, _ = state_space(node)
    kind = access_type(node, bind)
    name = next((m for m in node.modifiers if m in OPERATIONS or m == "cas"), None)
    if name is None or kind.bits > 64:
        raise bind.fail("no operation that is known")
    operands = list(node.operands)
    target = Sink() if node.name == "red" else operands.pop(0)
    vector = bind.elements(target)
    address = bind.address(operands[0])
    sources = [[bind.read(e, kind.name) for e in bind.elements(o)] for o in operands[1:]]
    if node.name == "red":
        vector = (Sink(),) * len(sources[0])
    setters = [bind.write(t, kind.name) for t in vector]
    combine = _combiner(name, kind)
    size, op = kind.bytes, bind.op
    total = size * len(setters)
    _, semantics, scope = _ordering(node)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        for memory, part, offsets in locate(warp, space, address(warp), lanes, total):
            if memory is None or not check_alignment(warp, offsets + memory.base, size, part):
                continue
            if memory.region is not None:
                warp.checker.atomic(
                    warp.agent, part, op, memory.region, offsets, total,
                    semantics=semantics, scope=scope,
                )  # fmt: skip
            for i, store in enumerate(setters):
                arguments = [operand[i](warp) for operand in sources]
                view = memory.view(size)
                before = np.zeros(32, kind.dtype)
                places = ((offsets + i * size) // size).tolist()
                for lane, place in zip(part.index.tolist(), places, strict=True):
                    old = view[place : place + 1].view(kind.dtype)
                    before[lane] = old[0]
                    new = combine(old[0], *(a[lane] for a in arguments))
                    if new != old[0]:
                        warp.machine.version += 1
                    old[0] = new
                store(warp, part, before)

    return execute


def _combiner(name: str, kind: Type) -> Callable[..., Any]:
    if name == "cas":
        return lambda old, compare, new: new if old == compare else old
    if kind.name in ("f16x2", "bf16x2", "bf16"):
        from hopwell.emulator.instructions.packed_atomics import combine_packed

        return combine_packed(name, kind.name)
    return OPERATIONS[name]


@effect("fence", "membar")
def fence(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.4 fence and membar: order memory, or one proxy's accesses after another's."""
    modifiers = node.modifiers
    if modifiers[0] == "proxy":
        kind = modifiers[1].partition("::")[0]
        if kind == "tensormap":
            return _tensormap_fence(node)
        if kind in ("async", "alias"):
            return lambda warp, lanes: warp.checker.proxy_fence(warp.agent, lanes)
        raise bind.fail(f"proxy {modifiers[1]}")
    if modifiers[0] == "mbarrier_init":
        # Orders initialisations of mbarriers before their use, by the async proxy too.
        return lambda warp, lanes: warp.checker.fence(warp.agent, lanes, "mbarrier_init", "cluster")
    if node.name == "membar":
        scope = {"cta": "cta", "gl": "gpu", "sys": "sys"}[modifiers[0]]
        semantics = "sc"
    else:
        semantics = next(
            (m for m in modifiers if m in ("sc", "acq_rel", "acquire", "release")), "sc"
        )
        scope = next((m for m in modifiers if m in _SCOPES), "gpu")
    return lambda warp, lanes: warp.checker.fence(warp.agent, lanes, semantics, scope)


def _tensormap_fence(node: Instruction) -> Execute:
    """fence.proxy.tensormap::generic.{release,acquire}.scope: also a fence of its direction."""
    semantics, scope = node.modifiers[2], node.modifiers[3]

    def execute(warp: "Warp", lanes: Lanes) -> None:
        warp.checker.proxy_fence(warp.agent, lanes)
        warp.checker.fence(warp.agent, lanes, semantics, scope)

    return execute


@effect("cvta")
def cvta(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.21 cvta: to a generic address from one in a state space, or back (``.to``)."""
    back = "to" in node.modifiers
    space, _ = state_space(node)
    kind = node.modifiers[-1]
    source = node.operands[1]
    base = {
        "shared": layout.SHARED_WINDOW,
        "local": layout.LOCAL_WINDOW,
        "param": layout.PARAMETER_WINDOW,
        "const": layout.CONSTANT_WINDOW,
    }.get(space, 0)
    read, store = bind.read(source, kind), bind.write(node.operands[0], kind)
    shift = np.uint64((1 << 64) - base if back and base else base)
    return lambda warp, lanes: store(warp, lanes, read(warp) + shift)


@effect("isspacep")
def isspacep(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.20 isspacep: whether a generic address lies in a state space."""
    space, cluster = state_space(node)
    read, store = bind.read(node.operands[1], "u64"), bind.write(node.operands[0], "pred")
    window = {
        "shared": layout.SHARED_WINDOW,
        "local": layout.LOCAL_WINDOW,
        "param": layout.PARAMETER_WINDOW,
        "const": layout.CONSTANT_WINDOW,
    }.get(space, 0) >> 56

    def execute(warp: "Warp", lanes: Lanes) -> None:
        address = read(warp)
        inside = (address >> np.uint64(56)) == window
        if space == "shared" and not cluster:
            inside &= (address >> np.uint64(layout.RANK_SHIFT) & np.uint64(0xFF)) == warp.cta.rank
        store(warp, lanes, inside)

    return execute


@effect("mapa")
def mapa(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.23 mapa: the address in a peer CTA that corresponds to one in this CTA."""
    kind = node.modifiers[-1]
    if isinstance(node.operands[1], Symbol | Register):
        read = bind.read(node.operands[1], kind)
    else:
        raise bind.fail("source is no address")
    rank, store = bind.read(node.operands[2], "u32"), bind.write(node.operands[0], kind)
    dtype = TYPES[kind].dtype
    clear = ~np.uint64(0xFF << layout.RANK_SHIFT)

    def execute(warp: "Warp", lanes: Lanes) -> None:
        address = read(warp).astype(np.uint64) & clear
        moved = address | rank(warp).astype(np.uint64) << np.uint64(layout.RANK_SHIFT)
        store(warp, lanes, moved.astype(dtype))

    return execute


@effect("getctarank")
def getctarank(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.24 getctarank: the rank of the CTA whose shared memory holds an address."""
    kind = node.modifiers[-1]
    read, store = bind.read(node.operands[1], kind), bind.write(node.operands[0], "u32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        ranks = read(warp).astype(np.uint64) >> np.uint64(layout.RANK_SHIFT) & np.uint64(0xFF)
        store(warp, lanes, ranks.astype(np.uint32))

    return execute


@effect("prefetch", "prefetchu", "applypriority", "discard")
def hint(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.15 prefetch and others: they change no value that a program may read."""
    return lambda warp, lanes: None


@effect("createpolicy")
def createpolicy(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.19 createpolicy: an opaque cache policy, which changes no value."""
    store = bind.write(node.operands[0], "b64")
    return lambda warp, lanes: store(warp, lanes, np.uint64(0))

"""From an instruction's syntax to a Python function that performs it for one warp.

Every register, immediate and constant special register of a program becomes a *slot*: a row of
32 lanes in a bank of its width. A decoded instruction closes over slots, so that running it is
one array operation and a store.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.lanes import Lanes, lanes_of, mask_of
from hopwell.emulator.registry import (
    COMPUTATIONS,
    Compute,
    UnsupportedInstruction,
    find_effect,
)
from hopwell.emulator.special import DYNAMIC_REGISTERS, shared_address, special_type
from hopwell.emulator.types import TYPES, Type
from hopwell.ptx import nodes

if TYPE_CHECKING:
    from hopwell.emulator.warp import Fragment, Warp

Execute = Callable[["Warp", Lanes], object]
Step = Callable[["Fragment"], object]
Getter = Callable[["Warp"], NDArray[Any]]
Setter = Callable[["Warp", Lanes, Any], None]

BANKS: Final = ("pred", "b16", "b32", "b64", "b128")
"""Register banks by the type of their rows; narrower registers live in the b16 bank."""

VIEWS: Final = tuple(
    name for name in ("pred", "b16", "s16", "f16", "b32", "s32", "f32", "b64", "s64", "f64", "b128")
)
"""The typed views of a bank's rows that a warp keeps, in the order of ``Warp.views``."""

_VIEW_OF: Final = {
    **{name: VIEWS.index(name) for name in VIEWS},
    **{f"u{bits}": VIEWS.index(f"b{bits}") for bits in (16, 32, 64)},
    **{
        name: VIEWS.index(f"b{kind.bits}")
        for name, kind in TYPES.items()
        if kind.bits in (16, 32, 64) and kind.dtype.kind == "u"
    },
}
PREDICATE_VIEW: Final = _VIEW_OF["pred"]
B32_VIEW: Final = _VIEW_OF["b32"]
_TRUE: Final = bytes([1]) * 32
_FALSE: Final = bytes(32)


class Slot(NamedTuple):
    """A row of a register bank."""

    bank: str
    index: int  # type: ignore[assignment]  # not the method of a tuple


def bank_of(type_name: str) -> str:
    """The bank of a register declared with this type.

    >>> bank_of("f32"), bank_of("b8"), bank_of("pred")
    ('b32', 'b16', 'pred')
    """
    bits = TYPES[type_name].bits
    return "pred" if type_name == "pred" else f"b{max(bits, 16)}"


@dataclass
class Slots:
    """The slots of one program: how many per bank, and what the constant ones hold."""

    count: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BANKS, 0))
    constants: dict[tuple[str, int], Slot] = field(default_factory=dict)
    specials: dict[str, Slot] = field(default_factory=dict)

    def new(self, bank: str) -> Slot:
        """A slot that nothing uses yet."""
        index = self.count[bank]
        self.count[bank] = index + 1
        return Slot(bank, index)

    def constant(self, bank: str, raw: int) -> Slot:
        """The slot whose lanes all hold ``raw``."""
        found = self.constants.get((bank, raw))
        if found is None:
            found = self.constants[bank, raw] = self.new(bank)
        return found

    def special(self, name: str) -> Slot:
        """The slot of a special register that does not change while a warp lives."""
        found = self.specials.get(name)
        if found is None:
            found = self.specials[name] = self.new(bank_of(special_type(name)))
        return found


@dataclass
class DecodedOp:
    """One instruction of a program.

    Attributes:
        pc: its position.
        node: its syntax.
        reads, writes: registers named by its operands; the guard is among the reads.
        guard: the predicate that guards it, and whether it is negated.
        selects: for selp, its two values and the predicate.
        reconverge: for a branch, the position where diverged lanes meet again; -1 is exit.
        targets: for a branch, the positions it may jump to.
    """

    pc: int
    node: nodes.Instruction
    reads: frozenset[Slot] = frozenset()
    writes: frozenset[Slot] = frozenset()
    guard: tuple[Slot, bool] | None = None
    selects: tuple[Slot, ...] = ()
    reconverge: int = -1
    targets: tuple[int, ...] = ()

    @property
    def opcode(self) -> str:
        """The full dotted opcode."""
        return self.node.opcode


def immediate_bits(operand: nodes.Immediate, kind: Type) -> int:
    """The bits of an immediate where a value of ``kind`` is expected."""
    if operand.bits is not None:
        if operand.width in (None, kind.bits):
            return operand.bits
        # Decimals are 64 bits wide wherever they stand, and 0f... may stand for a double.
        written = np.array([operand.bits], f"u{(operand.width or 32) // 8}")
        value = written.view(f"f{(operand.width or 32) // 8}").astype(f"f{kind.bits // 8}")
        return int(value.view(f"u{kind.bits // 8}")[0])
    if isinstance(operand.value, float) or (kind.floating and kind.dtype.kind == "f"):
        carrier = kind.dtype if kind.dtype.kind == "f" else np.dtype("f4")
        value = np.array([operand.value], carrier)
        return int(value.view(f"u{carrier.itemsize}")[0])
    return int(operand.value) & ((1 << kind.bits) - 1 if kind.bits > 1 else 1)


class Binder:
    """Resolves the operands of one instruction into accessors.

    Effects receive one; ``scope`` finds what a name means at this place of the program.
    """

    def __init__(self, op: DecodedOp, slots: Slots, scope: Any) -> None:
        self.op = op
        self.slots = slots
        self.scope = scope
        self.reads: set[Slot] = set()
        self.writes: set[Slot] = set()
        self.wgmma_registers: set[Slot] = set()

    def fail(self, detail: str) -> UnsupportedInstruction:
        """The error for an operand or modifier that this instruction cannot have."""
        return UnsupportedInstruction(self.op.node, detail)

    # -- slots ---------------------------------------------------------------------------

    def source_slot(self, operand: nodes.Operand, kind: Type) -> Slot:
        """The slot that holds a source operand: register, immediate or constant."""
        bank = bank_of(kind.name)
        if isinstance(operand, nodes.Register):
            slot = self.scope.register(operand)
            self.reads.add(slot)
            return slot
        if isinstance(operand, nodes.Immediate):
            raw = immediate_bits(operand, kind)
            if kind.bits < 16 and kind.name != "pred" and kind.signed and raw >> (kind.bits - 1):
                raw |= 0xFFFF & ~((1 << kind.bits) - 1)
            return self.slots.constant(bank, raw)
        if isinstance(operand, nodes.Special):
            return self.slots.special(operand.name)
        if isinstance(operand, nodes.Symbol):
            address = self.scope.address_of(operand)
            if self.scope.space_of(operand) == "shared":
                return self.slots.special(shared_address(address, kind.bits))
            return self.slots.constant(bank, address & ((1 << kind.bits) - 1))
        raise self.fail(f"operand {operand}")

    def destination_slot(self, operand: nodes.Operand) -> Slot:
        """The register that a destination operand names."""
        if not isinstance(operand, nodes.Register):
            raise self.fail(f"destination {operand}")
        slot = self.scope.register(operand)
        self.writes.add(slot)
        return slot

    # -- accessors -----------------------------------------------------------------------

    def read(self, operand: nodes.Operand, type_name: str) -> Getter:
        """A function of a warp that gives the operand's 32 values in the type's dtype."""
        kind = TYPES[type_name]
        if isinstance(operand, nodes.Not):
            plain = self.read(operand.register, type_name)
            return lambda warp: ~plain(warp)
        if isinstance(operand, nodes.Special) and operand.name in DYNAMIC_REGISTERS:
            name, dtype = operand.name, kind.dtype
            return lambda warp: np.full(32, warp.dynamic(name)).astype(dtype)
        slot = self.source_slot(operand, kind)
        index = slot.index
        exact = _VIEW_OF.get(type_name)
        if exact is not None and slot.bank == bank_of(type_name) and kind.bits != 8:
            return lambda warp: warp.views[exact][index]
        view, dtype = _VIEW_OF[slot.bank], kind.dtype
        if kind.dtype.kind == "f" and slot.bank == "b32" and kind.bits == 16:
            return lambda warp: warp.views[view][index].astype(np.uint16).view(np.float16)
        return lambda warp: warp.views[view][index].astype(dtype)

    def write(self, operand: nodes.Operand, type_name: str) -> Setter:
        """A function of (warp, lanes, values) that stores the destination's values."""
        if isinstance(operand, nodes.Sink):
            return lambda warp, lanes, values: None
        kind = TYPES[type_name]
        slot = self.destination_slot(operand)
        index = slot.index
        view = _VIEW_OF.get(type_name)
        if view is None or slot.bank != bank_of(type_name):
            # A wider register takes a narrower value extended by its sign or by zeros.
            width = TYPES[slot.bank].bits
            view = _VIEW_OF[f"s{width}" if kind.signed and not kind.floating else f"b{width}"]

        def store(warp: "Warp", lanes: Lanes, values: Any) -> None:
            if lanes.full:
                warp.views[view][index][:] = values
            else:
                np.copyto(warp.views[view][index], values, where=lanes.array, casting="unsafe")

        return store

    def uniform(self, operand: nodes.Operand, type_name: str) -> Callable[["Warp", Lanes], int]:
        """A function of (warp, lanes) that gives the value of the lowest active lane."""
        if isinstance(operand, nodes.Immediate):
            kind = TYPES[type_name]
            raw = immediate_bits(operand, kind)
            if kind.signed and raw >> (kind.bits - 1):
                raw -= 1 << kind.bits
            return lambda warp, lanes: raw
        get = self.read(operand, type_name)
        return lambda warp, lanes: int(get(warp)[lanes.first])

    def address(self, operand: nodes.Operand) -> Getter:
        """A function of a warp that gives 32 addresses, int64, of a bracketed operand."""
        if not isinstance(operand, nodes.Address):
            raise self.fail(f"operand {operand} is no address")
        base, offset = operand.base, operand.offset
        if isinstance(base, nodes.Register):
            slot = self.scope.register(base)
            self.reads.add(slot)
            index, wide = slot.index, _VIEW_OF["s64" if slot.bank == "b64" else "b32"]
            if slot.bank == "b64":
                return lambda warp: warp.views[wide][index] + offset
            # A 32-bit address wraps at 32 bits, as the address space of .shared does.
            return lambda warp: (warp.views[wide][index].astype(np.int64) + offset) & 0xFFFF_FFFF
        fixed = np.full(32, self.scope.address_of(operand), np.int64)
        fixed.setflags(write=False)
        if isinstance(base, nodes.Symbol) and self.scope.space_of(base) == "shared":
            return lambda warp: fixed + warp.cta.rank_bits if warp.cta.rank else fixed
        return lambda warp: fixed

    def elements(self, operand: nodes.Operand) -> tuple[nodes.Operand, ...]:
        """The elements of a vector operand, or the operand alone."""
        return operand.elements if isinstance(operand, nodes.Vector) else (operand,)


# -- steps -------------------------------------------------------------------------------


def decode(op: DecodedOp, slots: Slots, scope: Any) -> tuple[Step, Binder]:
    """The step of one instruction, and the binder that knows which registers it names."""
    node = op.node
    binder = Binder(op, slots, scope)
    found = find_effect(node.opcode)
    if found is not None:
        execute: Execute = found(node, binder)
        step = _unguarded(execute)
    elif node.name in COMPUTATIONS:
        computation = COMPUTATIONS[node.name](node)
        step, execute = _computation(computation, binder)
    else:
        raise UnsupportedInstruction(node)
    if node.guard is not None:
        guard = scope.register(nodes.Register(node.guard.register, node.guard.location))
        op.guard = guard, node.guard.negated
        step = _guarded(execute, guard.index, node.guard.negated)
    op.writes = frozenset(binder.writes)
    op.reads = frozenset(binder.reads | ({op.guard[0]} if op.guard else set()))
    return step, binder


def _unguarded(execute: Execute) -> Step:
    return lambda fragment: execute(fragment.warp, fragment.lanes)


def _guarded(execute: Execute, index: int, negated: bool) -> Step:
    wanted, unwanted = (_FALSE, _TRUE) if negated else (_TRUE, _FALSE)

    def step(fragment: "Fragment") -> object:
        warp = fragment.warp
        row = warp.views[PREDICATE_VIEW][index]
        raw = row.tobytes()
        if raw == wanted:
            return execute(warp, fragment.lanes)
        if raw != unwanted:
            bits = fragment.lanes.bits & mask_of(~row if negated else row)
            if bits:
                return execute(warp, lanes_of(bits))
        return None

    return step


def _flatten(operands: tuple[nodes.Operand, ...]) -> list[nodes.Operand]:
    """Operands with vectors opened and pairs (d|p) split."""
    flat: list[nodes.Operand] = []
    for operand in operands:
        if isinstance(operand, nodes.Vector):
            flat.extend(operand.elements)
        elif isinstance(operand, nodes.Pair):
            flat.extend((operand.first, operand.second))
        else:
            flat.append(operand)
    return flat


def _computation(computation: Compute, binder: Binder) -> tuple[Step, Execute]:
    operands = _flatten(binder.op.node.operands)
    count = len(computation.results)
    if len(operands) != count + len(computation.sources):
        raise binder.fail(
            f"{len(operands)} operands, {count + len(computation.sources)} are expected"
        )
    getters = [
        binder.read(operand, kind)
        for operand, kind in zip(operands[count:], computation.sources, strict=True)
    ]
    setters = [
        binder.write(operand, kind)
        for operand, kind in zip(operands[:count], computation.results, strict=True)
    ]
    function = computation.function
    carry = computation.carry_in, computation.carry_out
    if any(carry) or count != 1:
        execute = _general(function, getters, setters, *carry)
        return _unguarded(execute), execute
    (store,) = setters
    fast = _fast(computation, binder, operands)
    execute = _single(function, getters, store)
    if binder.op.node.name == "selp":
        binder.op.selects = tuple(
            binder.source_slot(operand, TYPES[kind])
            for operand, kind in zip(operands[count:], computation.sources, strict=True)
        )
    return (fast or _unguarded(execute)), execute


def _general(
    function: Callable[..., Any],
    getters: list[Getter],
    setters: list[Setter],
    carry_in: bool,
    carry_out: bool,
) -> Execute:
    def execute(warp: "Warp", lanes: Lanes) -> None:
        values = [get(warp) for get in getters]
        if carry_in:
            values.append(warp.carry)
        results = function(*values)
        if not isinstance(results, tuple):
            results = (results,)
        if carry_out:
            warp.carry = np.where(lanes.array, results[-1], warp.carry)
        # Sources may be destinations of the same instruction: all were read before.
        for store, value in zip(setters, results, strict=False):
            store(warp, lanes, value)

    return execute


def _single(function: Callable[..., Any], getters: list[Getter], store: Setter) -> Execute:
    def execute(warp: "Warp", lanes: Lanes) -> None:
        store(warp, lanes, function(*[get(warp) for get in getters]))

    return execute


def _fast(computation: Compute, binder: Binder, operands: list[nodes.Operand]) -> Step | None:
    """A step without indirection, where every operand has its type's own width."""
    places: list[tuple[int, int]] = []
    for operand, kind in zip(operands, computation.results + computation.sources, strict=True):
        if isinstance(operand, nodes.Not | nodes.Sink) or (
            isinstance(operand, nodes.Special) and operand.name in DYNAMIC_REGISTERS
        ):
            return None
        slot = (
            binder.source_slot(operand, TYPES[kind]) if places else binder.destination_slot(operand)
        )
        view = _VIEW_OF.get(kind)
        if view is None or slot.bank != bank_of(kind) or TYPES[kind].bits == 8:
            return None
        places.append((view, slot.index))
    function = computation.function
    maker = _FAST.get(len(places))
    return maker(function, *places) if maker else None


def _fast_one(function: Any, to: tuple[int, int], a: tuple[int, int]) -> Step:
    (to_view, to_index), (a_view, a_index) = to, a

    def step(fragment: "Fragment") -> None:
        views = fragment.warp.views
        value = function(views[a_view][a_index])
        if fragment.lanes.full:
            views[to_view][to_index][:] = value
        else:
            np.copyto(views[to_view][to_index], value, where=fragment.lanes.array)

    return step


def _fast_two(function: Any, to: tuple[int, int], a: tuple[int, int], b: tuple[int, int]) -> Step:
    (to_view, to_index), (a_view, a_index), (b_view, b_index) = to, a, b

    def step(fragment: "Fragment") -> None:
        views = fragment.warp.views
        value = function(views[a_view][a_index], views[b_view][b_index])
        if fragment.lanes.full:
            views[to_view][to_index][:] = value
        else:
            np.copyto(views[to_view][to_index], value, where=fragment.lanes.array)

    return step


def _fast_three(
    function: Any,
    to: tuple[int, int],
    a: tuple[int, int],
    b: tuple[int, int],
    c: tuple[int, int],
) -> Step:
    (to_view, to_index), (a_view, a_index) = to, a
    (b_view, b_index), (c_view, c_index) = b, c

    def step(fragment: "Fragment") -> None:
        views = fragment.warp.views
        value = function(views[a_view][a_index], views[b_view][b_index], views[c_view][c_index])
        if fragment.lanes.full:
            views[to_view][to_index][:] = value
        else:
            np.copyto(views[to_view][to_index], value, where=fragment.lanes.array)

    return step


_FAST: Final[dict[int, Callable[..., Step]]] = {2: _fast_one, 3: _fast_two, 4: _fast_three}

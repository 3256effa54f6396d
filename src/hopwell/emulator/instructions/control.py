"""Control flow (PTX ISA 9.7.12) and what a warp decides together (9.7.13.2 and following)."""

from typing import TYPE_CHECKING, Any

import numpy as np

from hopwell.emulator.conditions import Blocked, WarpRound, Yield
from hopwell.emulator.decode import Binder, Execute
from hopwell.emulator.lanes import Lanes, lanes_of, mask_of
from hopwell.emulator.registry import effect
from hopwell.ptx.nodes import Instruction, Pair, Sink

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp


@effect("bra")
def bra(node: Instruction, bind: Binder) -> Execute:
    """9.7.12.3 bra: jump; lanes whose guard is false go on. They meet at the post-dominator."""
    op = bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        fragment = warp.fragment
        (target,) = op.targets
        if lanes is not fragment.lanes:
            warp.diverge(fragment, [(lanes, target)], op)
            return
        fragment.pc = target
        if target <= op.pc:
            warp.machine.turn_back(fragment)

    return execute


@effect("brx.idx")
def brx(node: Instruction, bind: Binder) -> Execute:
    """9.7.12.4 brx.idx index, list: jump to the entry of a list; behaviour beyond it is undefined,
    so that lanes whose index lies there are reported and end."""
    index, op = bind.read(node.operands[0], "u32"), bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        fragment = warp.fragment
        chosen = index(warp)
        places: dict[int, int] = {}
        beyond = 0
        for lane in lanes.index.tolist():
            if chosen[lane] < len(op.targets):
                place = op.targets[int(chosen[lane])]
                places[place] = places.get(place, 0) | 1 << lane
            else:
                beyond |= 1 << lane
        if beyond:
            warp.checker.report(
                "trap", warp.agent, lanes_of(beyond), op, targets=len(op.targets),
                missing="the index lies beyond the list of branch targets",
            )  # fmt: skip
            warp.leave(fragment, lanes_of(beyond))
        if len(places) == 1 and lanes is fragment.lanes:
            (fragment.pc,) = places
            if fragment.pc <= op.pc:
                warp.machine.turn_back(fragment)
        else:
            warp.diverge(fragment, [(lanes_of(b), place) for place, b in places.items()], op)

    return execute


@effect("ret", "exit")
def leave(node: Instruction, bind: Binder) -> Execute:
    """9.7.12.6 ret and 9.7.12.7 exit: an entry function's lanes end in either."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        warp.leave(warp.fragment, lanes)

    return execute


@effect("trap", "brkpt")
def trap(node: Instruction, bind: Binder) -> Execute:
    """9.7.19.5 trap: the kernel aborts itself, so its lanes end here and the report says so."""
    op = bind.op

    def execute(warp: "Warp", lanes: Lanes) -> None:
        warp.checker.report("trap", warp.agent, lanes, op)
        warp.leave(warp.fragment, lanes)

    return execute


@effect("call")
def call(node: Instruction, bind: Binder) -> Execute:
    """9.7.12.5 call: device functions are not modelled; what calls none of them still runs."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        raise bind.fail("device functions are not modelled; compile with everything inlined")

    return execute


@effect("nanosleep")
def nanosleep(node: Instruction, bind: Binder) -> Execute:
    """9.7.19.2 nanosleep: others run first."""

    def execute(warp: "Warp", lanes: Lanes) -> None:
        raise Yield

    return execute


@effect("griddepcontrol", "pmevent", "setctarank")
def nothing(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.14 griddepcontrol: the grids before this one have always completed."""
    return lambda warp, lanes: None


@effect("bar.warp.sync")
def bar_warp_sync(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.2 bar.warp.sync: lanes of the mask meet; memory is ordered among them."""
    mask = bind.uniform(node.operands[0], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        bits, fragment = mask(warp, lanes), warp.fragment
        if fragment.token is None:
            fragment.token = warp.arrive(lanes, bits)
            if fragment.token is None:
                return
        if warp.syncs[bits][0] == fragment.token:
            raise Blocked(WarpRound(warp, bits, fragment.token))
        fragment.token = None

    return execute


@effect("activemask")
def activemask(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.7 activemask: the lanes that run together."""
    store = bind.write(node.operands[0], "b32")
    return lambda warp, lanes: store(warp, lanes, np.uint32(lanes.bits))


@effect("elect")
def elect(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.16 elect.sync d|p, mask: p is true in one lane of the mask, whose number is d.

    Which lane is elected is not specified but the same each time; here the lowest.
    """
    pair = node.operands[0]
    if not isinstance(pair, Pair):
        raise bind.fail("destination d|p expected")
    leader, chosen = bind.write(pair.first, "b32"), bind.write(pair.second, "pred")
    mask = bind.uniform(node.operands[1], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        lanes = warp.gather(lanes, mask(warp, lanes)) or lanes
        leader(warp, lanes, np.uint32(lanes.first))
        chosen(warp, lanes, np.arange(32) == lanes.first)

    return execute


@effect("vote.sync")
def vote(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.5 vote.sync.{all,any,uni}.pred p, {!}a, mask and .ballot.b32 d, {!}a, mask."""
    mode = node.modifiers[1]
    source = bind.read(node.operands[1], "pred")
    mask = bind.uniform(node.operands[2], "b32")
    if mode == "ballot":
        ballot = bind.write(node.operands[0], "b32")

        def execute_ballot(warp: "Warp", lanes: Lanes) -> None:
            lanes = warp.gather(lanes, mask(warp, lanes)) or lanes
            taking = mask(warp, lanes) & lanes.bits
            ballot(warp, lanes, np.uint32(mask_of(source(warp)) & taking))

        return execute_ballot
    if mode not in ("all", "any", "uni"):
        raise bind.fail(f"mode {mode}")
    store = bind.write(node.operands[0], "pred")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        lanes = warp.gather(lanes, mask(warp, lanes)) or lanes
        taking = mask(warp, lanes) & lanes.bits
        votes = mask_of(source(warp)) & taking
        result = {"all": votes == taking, "any": votes != 0, "uni": votes in (0, taking)}[mode]
        store(warp, lanes, result)

    return execute


@effect("match")
def match(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.6 match.{any,all}.sync.b{32,64} d[|p], a, mask: lanes that hold the same value."""
    mode, kind = node.modifiers[0], node.modifiers[-1]
    target = node.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    store, flag = bind.write(first, "b32"), bind.write(second, "pred")
    source = bind.read(node.operands[1], kind)
    mask = bind.uniform(node.operands[2], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        lanes = warp.gather(lanes, mask(warp, lanes)) or lanes
        values = source(warp)
        taking = lanes_of(mask(warp, lanes) & lanes.bits)
        equal = (values[:, None] == values[None, :]) & taking.array[None, :]
        masks = np.array([mask_of(row) for row in equal], np.uint32)
        if mode == "all":
            same = int(masks[taking.first]) == taking.bits
            masks, together = np.full(32, taking.bits if same else 0, np.uint32), same
            flag(warp, lanes, np.full(32, together))
        store(warp, lanes, masks)

    return execute


@effect("redux.sync")
def redux(node: Instruction, bind: Binder) -> Execute:
    """9.7.13.8 redux.sync.op.type d, a, mask: the reduction over the lanes of the mask."""
    operation, kind = node.modifiers[1], node.modifiers[-1]
    ufuncs: dict[str, Any] = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    if operation not in ufuncs or kind not in ("u32", "s32", "b32"):
        raise bind.fail("no such reduction on sm_90")
    store, source = bind.write(node.operands[0], kind), bind.read(node.operands[1], kind)
    mask = bind.uniform(node.operands[2], "b32")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        lanes = warp.gather(lanes, mask(warp, lanes)) or lanes
        values = source(warp)
        taking = lanes_of(mask(warp, lanes) & lanes.bits).index
        store(warp, lanes, ufuncs[operation].reduce(values[taking], dtype=values.dtype))

    return execute


@effect("shfl.sync")
def shfl(node: Instruction, bind: Binder) -> Execute:
    """9.7.9.6 shfl.sync.mode.b32 d[|p], a, b, c, mask: read another lane's register.

    ``c`` holds the clamp in bits 0-4 and the segment mask in bits 8-12; a source lane outside
    the segment leaves the lane's own value and p false.
    """
    mode = node.modifiers[1]
    target, a, b, c, m = node.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    store, flag = bind.write(first, "b32"), bind.write(second, "pred")
    value, distance, control = bind.read(a, "b32"), bind.read(b, "b32"), bind.read(c, "b32")
    mask = bind.uniform(m, "b32")
    lane = np.arange(32)
    if mode not in ("up", "down", "bfly", "idx"):
        raise bind.fail(f"mode {mode}")

    def execute(warp: "Warp", lanes: Lanes) -> None:
        lanes = warp.gather(lanes, mask(warp, lanes)) or lanes
        step = distance(warp).astype(np.int64) & 31
        bounds = control(warp).astype(np.int64)
        clamp, segment = bounds & 31, bounds >> 8 & 31
        highest = lane & segment | clamp & ~segment
        lowest = lane & segment
        if mode == "up":
            source = lane - step
            inside = source >= highest
        elif mode == "down":
            source = lane + step
            inside = source <= highest
        elif mode == "bfly":
            source = lane ^ step
            inside = source <= highest
        else:
            source = lowest | step & ~segment
            inside = source <= highest
        source = np.where(inside, source, lane)
        store(warp, lanes, value(warp)[source])
        flag(warp, lanes, inside)

    return execute

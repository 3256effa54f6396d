"""Tensor copies: 1 to 5 dimensions, swizzles, bounds, fills, strides, multicast, reductions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from tests.emulator.snippets import inputs
from tests.emulator.snippets.barriers import BARRIER, CLUSTER_SYNC, waiting
from tests.emulator.snippets.copies import INIT, ONE_COPY, ROOM, clear, copy_out
from tests.emulator.snippets.elementwise import Array
from tests.emulator.snippets.snippet import Snippet, TensorMap, poisoned, program

THREADS = 64
ROOM_BYTES = 16384
LOAD = "shared::cluster.global.tile.mbarrier::complete_tx::bytes"


@dataclass(frozen=True)
class Case:
    """One copy: its tensor (innermost dimension first), box and coordinates."""

    label: str
    type: str
    extents: tuple[int, ...]
    box: tuple[int, ...]
    at: tuple[int, ...]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    fill: Literal["zero", "nan"] = "zero"
    steps: tuple[int, ...] = ()  # element strides
    padding: int = 0  # bytes between rows, beyond what 16-byte alignment asks for
    offset: int = 0  # bytes of shared memory before the box

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def element(self) -> int:
        return inputs.bits_of(self.type.partition(".")[0]) // 8

    @property
    def strides(self) -> tuple[int, ...]:
        strides = []
        reach = self.extents[0] * self.element
        for extent in self.extents[1:]:
            reach = -(-reach // 16) * 16 + self.padding
            strides.append(reach)
            reach *= extent
        return tuple(strides)

    @property
    def tensor_bytes(self) -> int:
        if self.rank == 1:
            return self.extents[0] * self.element
        return self.strides[-1] * self.extents[-1]

    @property
    def box_bytes(self) -> int:
        steps = self.steps or (1,) * self.rank
        counts = (-(-b // s) for b, s in zip(self.box, steps, strict=True))
        return math.prod(counts) * self.element

    @property
    def shared_bytes(self) -> int:
        """Shared memory that the box takes: its rows are as long as the swizzle's span."""
        if self.swizzle == "none":
            return self.box_bytes
        return self.box_bytes // (self.box[0] * self.element) * int(self.swizzle[:-1])

    def map(self, buffer: str) -> TensorMap:
        return TensorMap(
            name="map",
            buffer=buffer,
            type=self.type,
            extents=self.extents,
            strides=self.strides,
            box=self.box,
            element_strides=self.steps or (1,) * self.rank,
            swizzle=self.swizzle,
            fill=self.fill,
        )

    def coordinates(self, shift: int = 0) -> tuple[str, str]:
        """Instructions that set the coordinates, and the vector of them."""
        at = (*self.at[:-1], self.at[-1] + shift)
        moves = " ".join(f"mov.s32 %r{70 + i}, {c};" for i, c in enumerate(at))
        return moves + "\n", "{" + ", ".join(f"%r{70 + i}" for i in range(self.rank)) + "}"


def _tensor(case: Case, seed: int = 91) -> Array:
    """Bytes of a tensor: random, of floating types moderate numbers."""
    if case.type in inputs.FLOATS:
        count = case.tensor_bytes // case.element
        return inputs.moderate_floats(seed, count, case.type, 4).view(np.uint8)
    if case.type.startswith("tf32") or case.type.endswith(".ftz"):
        # What is rounded or flushed on the way: ties, subnormals, and every class of numbers.
        words = inputs.column("f32", seed, case.tensor_bytes // 4)
        words[::3] = words[::3] & ~np.uint32(0x1FFF) | np.uint32(0x1000)
        words[1::5] &= np.uint32(0x80FFFFFF)
        return words.view(np.uint8)
    return inputs.random_bits(seed, case.tensor_bytes, 8)


#: What both directions go through.
SHAPES = [
    Case("1d", "u8", (256,), (64,), (32,)),
    Case("1d end", "f32", (100,), (32,), (84,)),
    Case("1d outside", "u32", (64,), (16,), (200,)),
    Case("2d", "f16", (64, 24), (32, 8), (16, 9)),
    Case("2d padded", "u64", (10, 12), (4, 5), (4, 4), padding=48),
    Case("2d corner", "s32", (19, 11), (8, 6), (16, 8)),
    Case("3d", "f32", (10, 10, 6), (8, 3, 4), (4, 8, 3)),
    Case("4d", "u8", (40, 5, 4, 6), (32, 2, 3, 2), (16, 4, 2, 5)),
    Case("5d", "f16", (23, 4, 3, 4, 3), (16, 2, 2, 3, 2), (8, 3, 2, 2, 2)),
    Case("f64", "f64", (9, 9), (4, 4), (6, 6)),
    Case("s64", "s64", (7, 9), (2, 4), (6, 6)),
    Case("swizzle 32B", "u8", (64, 20), (32, 16), (16, 3), "32B"),
    Case("swizzle 32B narrow", "u8", (64, 20), (16, 16), (16, 3), "32B"),
    Case("swizzle 64B", "f16", (64, 20), (32, 16), (16, 3), "64B"),
    Case("swizzle 128B", "bf16", (128, 20), (64, 16), (64, 7), "128B"),
    Case("swizzle 128B f32", "f32", (40, 30), (32, 24), (16, 9), "128B"),
    Case("swizzle 128B narrow", "bf16", (128, 20), (32, 16), (64, 7), "128B"),
    Case("swizzle 64B narrow 3d", "u8", (64, 9, 5), (48, 5, 2), (16, 3, 2), "64B"),
    Case("swizzle 128B narrow at 256", "bf16", (128, 20), (40, 8), (64, 5), "128B", offset=256),
    Case("tf32 whole", "tf32", (32, 16), (32, 16), (0, 0)),
    Case("f32 ftz", "f32.ftz", (32, 16), (32, 16), (0, 0)),
    Case("tf32 ftz", "tf32.ftz", (32, 16), (32, 16), (0, 0)),
    Case("swizzle 128B 3d", "u8", (130, 7, 5), (128, 5, 3), (16, 3, 3), "128B"),
    Case("swizzle 128B 4d", "bf16", (64, 3, 20, 2), (64, 1, 16, 1), (0, 2, 9, 1), "128B"),
    Case("swizzle 128B at 128", "bf16", (64, 20), (64, 16), (0, 2), "128B", offset=128),
    Case("swizzle 64B at 256", "bf16", (64, 20), (32, 16), (0, 2), "64B", offset=256),
    Case("swizzle 32B at 128", "u8", (64, 20), (32, 16), (16, 3), "32B", offset=128),
    Case("steps", "u32", (16, 30, 9), (4, 8, 6), (4, 3, 2), steps=(1, 2, 3)),
]  # fmt: skip
#: Copies with a negative coordinate, which only loads may have, and fills of loads.
LOADS = [
    Case("1d before", "u16", (128,), (16,), (-8,)),
    Case("2d before", "bf16", (40, 12), (16, 7), (-8, -4)),
    Case("3d before", "f32", (10, 10, 6), (8, 3, 4), (4, -2, -1)),
    Case("swizzle 128B f32 before", "f32", (40, 30), (32, 24), (16, -3), "128B"),
    Case("5d before", "f16", (24, 4, 3, 4, 3), (16, 2, 2, 3, 2), (8, -1, -1, 2, -1)),
    Case("steps before", "u32", (16, 30, 9), (4, 8, 6), (4, -3, -2), steps=(1, 2, 3)),
    Case("swizzle 128B narrow before", "f32", (40, 30), (16, 8), (-4, -3), "128B"),
    Case("nan narrow", "f16", (40, 10), (16, 8), (32, 5), "64B", "nan"),
    Case("nan f16", "f16", (20, 10), (16, 8), (8, 5), fill="nan"),
    Case("nan bf16", "bf16", (23, 10), (16, 8), (16, -3), fill="nan"),
    Case("nan f32", "f32", (19, 10), (16, 8), (8, 5), fill="nan"),
    Case("nan f64", "f64", (10, 10), (4, 8), (8, 5), fill="nan"),
    Case("nan swizzled", "bf16", (72, 10), (64, 8), (32, 5), "128B", "nan"),
    Case("tf32", "tf32", (32, 10), (16, 8), (8, 5)),
    Case("tf32 nan", "tf32", (32, 10), (16, 8), (20, 5), fill="nan"),
]  # fmt: skip


#: What ends a copy that the engine refuses.
ILLEGAL = "CUDA_ERROR_ILLEGAL_INSTRUCTION"
MISALIGNED = "CUDA_ERROR_MISALIGNED_ADDRESS"


def load(case: Case, **refusal: Any) -> Snippet:
    size = case.box_bytes
    whole = -(-(case.offset + case.shared_bytes) // 1024) * 1024
    set_coordinates, vector = case.coordinates()
    return program(
        f"tensor/load {case.label}",
        INIT.replace("bar.sync 0;\n", "")
        + clear(whole, THREADS)
        + "fence.proxy.async; bar.sync 0;\n"
        + "@%p1 prefetch.tensormap [%p_map];\n"
        + set_coordinates
        + f"""add.u32 %r4, %r3, {case.offset};
        @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], {size};
        @%p1 cp.async.bulk.tensor.{case.rank}d.{LOAD}
        [%r4], [%p_map, {vector}], [bar];
        """
        + waiting("full", "bar", 0)
        + copy_out(whole, THREADS),
        inputs={"data": partial(_tensor, case)},
        outputs={"out": poisoned(np.uint8, whole)},
        maps=(case.map("data"),),
        preamble=ROOM.replace("128", "1024") + BARRIER,
        block=(THREADS, 1, 1),
        shared_bytes=ROOM_BYTES,
        **refusal,
    )


def _fill_shared(case: Case, whole: int) -> str:
    """Copies ``data`` to shared memory and makes it visible to the copy engine."""
    text = "mov.u32 %r3, room; setp.eq.u32 %p1, %x, 0;\n"
    text += "mad.lo.u32 %r60, %x, 16, %r3; mad.wide.u32 %d60, %x, 16, %p_data;\n"
    for first in range(0, whole, 16 * THREADS):
        text += f"ld.global.v4.b32 {{%r61, %r62, %r63, %r64}}, [%d60+{first}];\n"
        text += f"st.shared.v4.b32 [%r60+{first}], {{%r61, %r62, %r63, %r64}};\n"
    set_coordinates, _ = case.coordinates()
    text += f"fence.proxy.async.shared::cta; bar.sync 0;\nadd.u32 %r4, %r3, {case.offset};\n"
    return text + set_coordinates


def _shared(case: Case, whole: int) -> Array:
    return _tensor(dataclasses.replace(case, extents=(whole // case.element,), at=(0,)), 92)


def store(case: Case, operation: str = "", **refusal: Any) -> Snippet:
    whole = -(-(case.offset + case.shared_bytes) // 1024) * 1024
    _, vector = case.coordinates()
    opcode = f"cp.async.bulk.tensor.{case.rank}d.global.shared::cta.tile.bulk_group"
    if operation:
        opcode = f"cp.reduce.async.bulk.tensor.{case.rank}d.global.shared::cta.{operation}"
        opcode += ".tile.bulk_group"
    return program(
        f"tensor/{f'reduce {operation}' if operation else 'store'} {case.label}",
        _fill_shared(case, whole)
        + f"""@%p1 {opcode} [%p_map, {vector}], [%r4];
        @%p1 cp.async.bulk.commit_group;
        @%p1 cp.async.bulk.wait_group 0;""",
        inputs={"data": partial(_shared, case, whole)},
        outputs={"out": partial(_tensor, case)},
        maps=(case.map("out"),),
        preamble=ROOM.replace("128", "1024"),
        block=(THREADS, 1, 1),
        shared_bytes=ROOM_BYTES,
        **refusal,
    )


def multicast() -> Snippet:
    """Two CTAs each bring half of a tile to both."""
    case = Case("", "bf16", (64, 32), (64, 8), (0, 4), "128B")
    half = case.box_bytes
    set_coordinates, vector = case.coordinates()
    return program(
        "tensor/load multicast",
        "mov.u32 %r50, %cluster_ctarank; mov.u32 %r51, %ctaid.x;\n"
        + INIT.replace("bar.sync 0;\n", "")
        + f"@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], {2 * half};\n"
        + CLUSTER_SYNC
        + set_coordinates
        + f"""mad.lo.u32 %r71, %r51, 8, %r71; mad.lo.u32 %r4, %r50, {half}, %r3; mov.b16 %h1, 3;
        @%p1 cp.async.bulk.tensor.2d.{LOAD}.multicast::cluster
        [%r4], [%p_map, {vector}], [bar], %h1;
        """
        + waiting("full", "bar", 0)
        + f"mad.wide.u32 %p_out, %r51, {2 * half}, %p_out;\n"
        + copy_out(2 * half, THREADS)
        + CLUSTER_SYNC,
        inputs={"data": partial(_tensor, case)},
        outputs={"out": poisoned(np.uint8, 8 * half)},
        maps=(case.map("data"),),
        preamble=ROOM.replace("128", "1024") + BARRIER,
        block=(THREADS, 1, 1),
        grid=(4, 1, 1),
        cluster=(2, 1, 1),
        shared_bytes=ROOM_BYTES,
    )


def by_every_lane() -> Snippet:
    """32 lanes issue 32 loads, even where they agree: 32 times the bytes arrive."""
    case = Case("", "bf16", (64, 32), (64, 8), (0, 4), "128B")
    set_coordinates, vector = case.coordinates()
    return program(
        "tensor/load by every lane",
        INIT
        + set_coordinates
        + f"""@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [bar], {32 * case.box_bytes};
        bar.warp.sync -1;
        cp.async.bulk.tensor.2d.{LOAD} [%r3], [%p_map, {vector}], [bar];
        """
        + waiting("full", "bar", 0)
        + ONE_COPY
        + copy_out(1024, 32),
        inputs={"data": partial(_tensor, case)},
        outputs={"out": poisoned(np.uint8, 1024 + 128)},
        maps=(case.map("data"),),
        preamble=ROOM.replace("128", "1024") + BARRIER,
        shared_bytes=ROOM_BYTES,
        hazards=("shared-memory-race",),  # 32 copies to the same bytes
    )


def snippets() -> Iterator[Snippet]:
    yield by_every_lane()
    for case in SHAPES + LOADS:
        yield load(case)
    for case in SHAPES:
        yield store(case)
    for type_, operations in {
        "u32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
        "s32": ("add", "min", "max"),
        "u64": ("add", "min", "xor"),
        "f16": ("add", "min", "max"),
        "bf16": ("add", "min"),
        "f32": ("add",),
    }.items():
        element = inputs.bits_of(type_) // 8
        case = Case(type_, type_, (80 // element, 9), (32 // element, 6), (64 // element, 5))
        for operation in operations:
            yield store(case, operation)
    yield store(Case("s32 ragged", "s32", (19, 11), (8, 6), (16, 8)), "add")
    yield store(Case("f16 ragged", "f16", (19, 11), (16, 6), (16, 2)), "max")
    yield store(Case("swizzled", "f32", (40, 30), (32, 8), (16, 26), "128B"), "add")
    yield multicast()
    misaligned = Case("from byte 20", "f16", (64, 24), (32, 8), (10, 9))
    # The copy that the barrier waits for never comes.
    broken = ("misaligned-access", "expected-bytes-too-many")
    yield load(misaligned, hazards=broken, refused=ILLEGAL)
    yield store(misaligned, hazards=broken[:1], refused=ILLEGAL)
    before = Case("before", "f16", (64, 24), (32, 8), (16, -1))
    inside = Case("to byte 64", "u8", (256,), (64,), (32,), offset=64)
    yield load(inside, hazards=broken, refused=MISALIGNED)
    yield store(before, hazards=("out-of-bounds-global",), refused=ILLEGAL)

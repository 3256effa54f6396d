"""Where the bytes of a tensor copy lie: tiles of a tensor in global and in shared memory.

Pure functions on arrays. A copy has two halves, which may happen at different times:

- load: :func:`read_global`, then :func:`write_shared` (once per destination CTA);
- store: :func:`read_shared`, then :func:`write_global` or :func:`reduce_global`.

Between them travels the tile's ``data``: its bytes, dimension 0 fastest, not swizzled.

Source: PTX ISA 5.5 (bounding box, traversal stride, out-of-boundary access, swizzling modes) and
9.7.9.25 to 9.7.9.27 (bulk and tensor copies and reductions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hopwell.emulator.tensor_map import TensorMap, itemsize
from hopwell.errors import InputError, UnsupportedLayout

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

SHARED_ALIGNMENT = 128
"""Byte alignment that a tile needs in shared memory."""

CHUNK = 16
"""Bytes that every swizzle keeps together."""

# NumPy has no 16-byte integer; moving complex numbers copies their bits unchanged.
_CHUNK = np.dtype(np.complex128)

# Swizzle and atom -> (mask of the address bits changed, distance to the bits they come from).
_XOR = {
    (0, 16): (0, 0),
    (32, 16): (0x10, 3),
    (64, 16): (0x30, 3),
    (128, 16): (0x70, 3),
    (128, 32): (0x60, 2),
    (128, 64): (0x40, 1),
}

_FILL = 0x7FF7
"""Every 16 bits of an element outside the tensor under NaN fill, as an H200 writes them."""

# What arithmetic yields as its one NaN.
_NAN_BITS = {
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "f32": 0x7FFFFFFF,
    "f64": 0x7FFFFFFFFFFFFFFF,
}


def swizzle(addresses: Values, span: int, atom: int = 16, base: int = 0) -> Values:
    """Shared byte addresses after a swizzle of ``span`` bytes that keeps ``atom`` together.

    The pattern belongs to the address, not to the tile: a tile that starts inside a pattern
    (1024, 512 or 256 bytes long) continues it. PTX ISA 5.5.7. ``base`` is the base offset of a
    matrix descriptor: the pattern begins that many 128-byte lines late (as an H200 showed).
    """
    mask, distance = _XOR[span, atom]
    return addresses ^ ((addresses - (base << 7)) >> distance & mask)


@dataclass(frozen=True, slots=True)
class Tile:
    """What one tensor copy touches. Shapes and slices are outermost first, elements innermost."""

    shape: tuple[int, ...]
    """Elements of the tile along each dimension."""
    inside: tuple[slice, ...]
    """The part of the tile that lies inside the tensor: a box; maybe empty."""
    offset: int
    """Byte offset from the tensor map's address to the first element inside."""
    steps: tuple[int, ...]
    """Bytes between neighbours of the tile in global memory along each dimension."""
    itemsize: int
    swizzle: int
    atom: int
    fill: int
    """Bits of an element that lies outside."""
    rounding: str
    """"", or the element type to which a load rounds: "tf32", "tf32.ftz"."""

    @property
    def bytes(self) -> int:
        """Bytes of the whole tile: what a load writes and counts, elements outside included."""
        return int(np.prod(self.shape)) * self.itemsize

    @property
    def pitch(self) -> int:
        """Bytes from row to row in shared memory: rows under a swizzle are as long as its span."""
        return self.swizzle or self.shape[-1] * self.itemsize

    @property
    def room(self) -> int:
        """Bytes from the first to the end of the last row in shared memory, gaps included."""
        return self.bytes // (self.shape[-1] * self.itemsize) * self.pitch

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements inside along each dimension; all zero where nothing is inside."""
        counts = tuple(part.stop - part.start for part in self.inside)
        return counts if all(counts) else (0,) * len(counts)

    @property
    def clipped(self) -> bool:
        """Part of the tile lies outside the tensor."""
        return self.counts != self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes of each contiguous run in global memory."""
        return self.counts[-1] * self.itemsize

    @property
    def rows(self) -> Offsets:
        """Byte offset from the map's address of each contiguous run inside, outermost first."""
        return self.offset + _grid(self.counts[:-1], self.steps[:-1]) if self.row_bytes else _NONE

    @property
    def extent(self) -> tuple[int, int]:
        """First and one-past-last byte touched in global memory, from the map's address."""
        if not self.row_bytes:
            return self.offset, self.offset
        last = sum((n - 1) * step for n, step in zip(self.counts, self.steps, strict=True))
        return self.offset, self.offset + last + self.itemsize


_NONE: Offsets = np.zeros(0, dtype=np.int64)


def tile(tensor_map: TensorMap, coordinates: Sequence[int], store: bool = False) -> Tile:
    """The tile whose first element has these coordinates, dimension 0 first; they may be negative.

    What a store counts as inside ends at a multiple of 16 bytes along dimension 0: an H200 writes
    whole chunks, also over the padding between rows.

    Raises :class:`InputError` where their number is not the map's rank, and
    :class:`UnsupportedLayout` for interleaved maps.
    """
    if len(coordinates) != tensor_map.rank:
        raise InputError(
            "coordinates of a tensor copy",
            expected=f"{tensor_map.rank}, the rank of the tensor map",
            actual=len(coordinates),
            consequence="The instruction does not fit its tensor map.",
        )
    return _tile(tensor_map, tuple(int(c) for c in coordinates), store)


@lru_cache(maxsize=4096)
def _tile(tensor_map: TensorMap, coordinates: tuple[int, ...], store: bool) -> Tile:
    if tensor_map.interleave:
        raise UnsupportedLayout(
            "tensor copy: interleave",
            expected="none",
            actual=tensor_map.interleave,
            consequence="The emulator does not know which bytes the copy engine would write.",
        )
    inside, offset = [], 0
    strides = (1, *tensor_map.element_strides[1:])
    memory = (tensor_map.itemsize, *tensor_map.strides)
    extents = list(tensor_map.extents)
    if store:
        whole = CHUNK // tensor_map.itemsize
        extents[0] = -(-extents[0] // whole) * whole
    for start, count, stride, extent, step in zip(
        coordinates, tensor_map.tile, strides, extents, memory, strict=True
    ):
        # Elements start + i * stride lie inside for i in [first, end).
        first = min(count, max(0, -(start // stride)))
        end = max(first, min(count, -((start - extent) // stride)))
        inside.append(slice(first, end))
        offset += (start + first * stride) * step
    return Tile(
        shape=tensor_map.tile[::-1],
        inside=tuple(inside[::-1]),
        offset=offset,
        steps=tuple(s * m for s, m in zip(strides, memory, strict=True))[::-1],
        itemsize=tensor_map.itemsize,
        swizzle=tensor_map.swizzle,
        atom=tensor_map.atom,
        fill=int.from_bytes(_FILL.to_bytes(2, "little") * 4, "little")
        & (1 << 8 * tensor_map.itemsize) - 1
        if tensor_map.fill_nan
        else 0,
        rounding=tensor_map.element if tensor_map.element in _ROUNDING else "",
    )


def _to_tf32(words: Values) -> Values:
    """float32 bits to the nearest TF32, ties to even; every NaN becomes 0x7fffe000."""
    even = words >> 13 & 1
    nearest = words + (np.uint32(0xFFF) + even) & np.uint32(0xFFFFE000)
    nan = words & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(0x7FFFE000), nearest)


# What the engine does to elements on the way, as an H200 did; it flushes nothing for ".ftz".
_ROUNDING: dict[str, Callable[[Values], Values]] = {"tf32": _to_tf32, "tf32.ftz": _to_tf32}


def read_global(tile: Tile, buffer: Bytes, offset: int) -> Bytes:
    """The tile's data (uint8, ``tile.bytes`` long); elements outside the tensor are filled.

    ``buffer`` holds bytes of global memory; the map's address is its byte ``offset``, which may
    be negative: what counts is that the tile's own bytes lie inside.
    """
    data = np.empty(tile.shape, dtype=f"u{tile.itemsize}")
    if tile.clipped:
        data[...] = tile.fill
    if tile.row_bytes:
        window = _window(tile, buffer, offset)
        data[tile.inside] = _ROUNDING[tile.rounding](window) if tile.rounding else window
    return data.reshape(-1).view(np.uint8)


def write_global(tile: Tile, data: Bytes, buffer: Bytes, offset: int) -> None:
    """Store a tile's data; elements outside the tensor are dropped."""
    if tile.row_bytes:
        _window(tile, buffer, offset)[...] = _elements(tile, data)[tile.inside]


def reduce_global(
    tile: Tile, data: Bytes, buffer: Bytes, offset: int, operation: str, element: str
) -> None:
    """Reduce a tile's data into global memory, element by element; outside ones are dropped.

    Raises :class:`UnsupportedLayout` where a stride of zero names one element several times.
    """
    if any(n > 1 and step == 0 for n, step in zip(tile.counts, tile.steps, strict=True)):
        raise UnsupportedLayout(
            "reduction through a tensor map",
            expected="strides other than zero",
            actual=tile.steps,
            consequence="An element would be reduced into several times at once.",
        )
    if tile.row_bytes:
        window = _window(tile, buffer, offset)
        new = np.ascontiguousarray(_elements(tile, data)[tile.inside])
        old = np.ascontiguousarray(window)
        kind = storage(element)
        result = reduce(operation, element, old.view(kind), new.view(kind))
        window[...] = result.view(window.dtype)


def write_shared(tile: Tile, data: Bytes, shared: Bytes, address: int) -> None:
    """Put a tile's data into shared memory at a byte offset of ``shared``.

    Byte 0 of ``shared`` has an address that is a multiple of 1024. Bytes are written in
    ``[address, address + tile.room)``; gaps at the ends of rows keep what they hold.
    """
    if tile.swizzle:
        region = shared[address : address + tile.room].view(_CHUNK)
        region[_order(tile, address)] = data.view(_CHUNK)
    else:
        shared[address : address + tile.bytes] = data


def read_shared(tile: Tile, shared: Bytes, address: int) -> Bytes:
    """A tile's data from shared memory: the inverse of :func:`write_shared`."""
    region = shared[address : address + tile.room]
    if tile.swizzle:
        return region.view(_CHUNK)[_order(tile, address)].view(np.uint8)
    return region.copy()


def shared_chunks(tile: Tile, address: int) -> Offsets:
    """Shared byte address of each 16-byte chunk of the tile's data, in order."""
    return address + CHUNK * _order(tile, address)


def shared_runs(tile: Tile, address: int) -> tuple[Offsets, int]:
    """The tile's bytes in shared memory as equal runs: (start addresses, bytes of each)."""
    if tile.room == tile.bytes:
        return np.array([address], dtype=np.int64), tile.bytes
    return shared_chunks(tile, address), CHUNK


def _order(tile: Tile, address: int) -> Offsets:
    """Index of the 16-byte chunk that each chunk of the data occupies, from the tile's start."""
    width = tile.shape[-1] * tile.itemsize
    return _chunk_order(tile.bytes, width, tile.swizzle, tile.atom, address % 1024)


@lru_cache(maxsize=256)
def _chunk_order(size: int, width: int, span: int, atom: int, phase: int) -> Offsets:
    place = CHUNK * np.arange(size // CHUNK, dtype=np.int64)
    if span:
        place = place // width * span + place % width
    order: Offsets = (swizzle(phase + place, span, atom) - phase) // CHUNK
    order.setflags(write=False)
    return order


@lru_cache(maxsize=256)
def _grid(counts: tuple[int, ...], steps: tuple[int, ...]) -> Offsets:
    offsets = np.zeros(1, dtype=np.int64)
    for count, step in zip(counts, steps, strict=True):
        offsets = (offsets[:, None] + step * np.arange(count, dtype=np.int64)).reshape(-1)
    offsets.setflags(write=False)
    return offsets


def _window(tile: Tile, buffer: Bytes, offset: int) -> Values:
    """A view of the tile's elements inside the tensor, in global memory."""
    first, end = (offset + byte for byte in tile.extent)
    if first < 0 or end > buffer.size:
        raise InputError(
            "bytes of global memory that a tensor copy touches",
            expected=f"inside [0, {buffer.size})",
            actual=f"[{first}, {end})",
            consequence="The tensor map describes memory outside its buffer.",
        )
    return np.ndarray(
        tile.counts, dtype=f"u{tile.itemsize}", buffer=buffer, offset=first, strides=tile.steps
    )


def _elements(tile: Tile, data: Bytes) -> Values:
    return data.view(f"u{tile.itemsize}").reshape(tile.shape)


def storage(element: str) -> str:
    """NumPy dtype that holds an element type: bit types and bfloat16 as unsigned integers."""
    kind = element.partition(".")[0]
    size = itemsize(element)
    if kind in ("f16", "f32", "f64"):
        return f"f{size}"
    return f"i{size}" if kind[0] == "s" else f"u{size}"


# What cp.reduce.async.bulk offers: operation -> types (PTX ISA 9.7.9.25.4.2, global memory).
REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f32.ftz"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64", "u32", "s32", "u64", "s64"),
    "or": ("b32", "b64", "u32", "s32", "u64", "s64"),
    "xor": ("b32", "b64", "u32", "s32", "u64", "s64"),
}


def reduce(operation: str, element: str, old: Values, new: Values) -> Values:
    """Element-wise result of a bulk reduction of ``new`` into ``old``.

    Arrays have the dtype :func:`storage` names. Floating sums round to nearest even; "f32.ftz"
    flushes subnormal inputs and results to zeros of the same sign: pass it for the non-tensor
    ``cp.reduce.async.bulk.add.f32``, whose implementation does so.
    Raises :class:`UnsupportedLayout` for a combination that PTX does not have.
    """
    if element not in REDUCTIONS.get(operation, ()):
        raise UnsupportedLayout(
            "bulk reduction",
            expected=f"one of {sorted(REDUCTIONS)} with a type it has",
            actual=f"{operation} of {element}",
            consequence="PTX has no such reduction.",
        )
    if element == "bf16":
        return _bfloat16(_reduce_float(operation, _widen(old), _widen(new)))
    if element == "f32.ftz":
        return _canonical(_flush(_flush(old) + _flush(new)))
    if element in ("f16", "f32", "f64"):
        return _reduce_float(operation, old, new)
    return _INTEGER[operation](old, new).astype(old.dtype, copy=False)


_INTEGER: dict[str, Callable[[Values, Values], Values]] = {
    "add": lambda old, new: old + new,
    "min": np.minimum,
    "max": np.maximum,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _reduce_float(operation: str, old: Values, new: Values) -> Values:
    if operation == "add":
        return _canonical(old + new)
    # A NaN gives way to a number, and zeros are ordered by sign: NumPy promises only the former.
    first = (np.signbit(old) if operation == "min" else ~np.signbit(old)) & (old == new)
    pick = np.fmin if operation == "min" else np.fmax
    return _canonical(np.where(first, old, pick(new, old)))


def _canonical(values: Values) -> Values:
    size = values.dtype.itemsize
    invalid = np.isnan(values)
    if invalid.any():
        values.view(f"u{size}")[invalid] = _NAN_BITS[f"f{8 * size}"]
    return values


def _widen(bits: Values) -> Values:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _bfloat16(values: Values) -> Values:
    """Bits of float32 values rounded to nearest even; every NaN becomes 0x7fff."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(_NAN_BITS["bf16"]), rounded)


def _flush(values: Values) -> Values:
    small = np.abs(values) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), values), values)

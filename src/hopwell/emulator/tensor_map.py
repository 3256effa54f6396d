"""Tensor maps: the 128-byte descriptor that tells the copy engine how a tensor lies in memory.

Source of the meaning: the CUDA driver API's ``cuTensorMapEncodeTiled`` and PTX ISA 5.5. The
object is opaque there. Its bits are read off ``ptxas``: for ``tensormap.replace`` on shared
memory it emits the loads, masks and stores that change one field, on sm_90a for all fields below,
on sm_100a also for the swizzle atom and the packed types. In 32-bit words:

=========  =====================================================================
w0, w1     address
w2         4-6 rank minus one; 7-10 element type; 11-12 interleave; 13-14 swizzle;
           15 fill with NaN; 16 TF32; 19-20 swizzle atom; 22 96-byte swizzle
w3 .. w6   strides of dimensions 1 to 4 in units of 16 bytes, low 32 bits
w7         their high four bits, dimension 1 lowest
w8 .. w12  extents minus one
w13        0-14 element strides minus one, three bits each; 24-31 box 0 minus one
w14        boxes 1 to 4 minus one, a byte each
=========  =====================================================================

The other bits (such as L2 promotion) say nothing about which bytes move, and are not read; in
w2, CuTe DSL sets bits 1 and 18, and bit 21 for tensors of 128 KiB or more.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod

from hopwell.errors import TensorMapError, UnsupportedLayout

BYTES = 128
MAX_RANK = 5

# Element types of a tensor map by their code, and with bit 16 of w2 set; bytes of each.
_TYPES = {
    (0, 0): "u8",
    (1, 0): "u16",
    (2, 0): "u32",
    (3, 0): "s32",
    (4, 0): "u64",
    (5, 0): "s64",
    (6, 0): "f16",
    (7, 0): "f32",
    (8, 0): "f32.ftz",
    (9, 0): "f64",
    (10, 0): "bf16",
    (7, 1): "tf32",
    (8, 1): "tf32.ftz",
}
_CODES = {name: code for code, name in _TYPES.items()}
_ITEMSIZE = {"8": 1, "16": 2, "32": 4, "64": 8}
_INTERLEAVE = (0, 16, 32)
_SWIZZLE = (0, 32, 64, 128)
_ATOM = (16, 32, 0, 64)

FLOATING = frozenset({"f16", "bf16", "f32", "f32.ftz", "tf32", "tf32.ftz", "f64"})


@dataclass(frozen=True, slots=True)
class TensorMap:
    """One tiled tensor map. Dimension 0 comes first and is contiguous in memory."""

    element: str
    """Element type by PTX's name: "u8" ... "bf16", "f32.ftz", "tf32", "tf32.ftz"."""
    address: int
    """Global byte address of element (0, 0, ...)."""
    extents: tuple[int, ...]
    """Elements of the tensor along each dimension."""
    strides: tuple[int, ...]
    """Bytes between neighbours along dimensions 1, 2, ... (one fewer than the rank)."""
    box: tuple[int, ...]
    """Elements that one copy spans along each dimension, skipped ones counted."""
    element_strides: tuple[int, ...]
    """Step of the copy along each dimension; that of dimension 0 is ignored."""
    interleave: int = 0
    """Bytes of an interleaved slice: 0, 16 or 32."""
    swizzle: int = 0
    """Bytes over which 16-byte chunks are permuted in shared memory: 0, 32, 64 or 128."""
    atom: int = 16
    """Bytes that a 128-byte swizzle keeps together: 16, 32 or 64."""
    fill_nan: bool = False
    """Elements outside the tensor arrive as NaN rather than zero."""

    @property
    def rank(self) -> int:
        """Number of dimensions, 1 to 5."""
        return len(self.extents)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return itemsize(self.element)

    @property
    def tile(self) -> tuple[int, ...]:
        """Elements that one copy moves along each dimension, dimension 0 first."""
        steps = (1, *self.element_strides[1:])
        return tuple(-(-size // step) for size, step in zip(self.box, steps, strict=True))

    @property
    def tile_bytes(self) -> int:
        """Bytes that one copy writes to shared memory and counts on its barrier."""
        return prod(self.tile) * self.itemsize

    @property
    def span(self) -> int:
        """Bytes from the first element's first byte to the last element's last."""
        steps = (self.itemsize, *self.strides)
        return self.itemsize + sum(
            (extent - 1) * step for extent, step in zip(self.extents, steps, strict=True)
        )


def itemsize(element: str) -> int:
    """Bytes of an element type such as "bf16" or "f32.ftz"."""
    return _ITEMSIZE[element.partition(".")[0].lstrip("usbft")]


def decode(descriptor: bytes) -> TensorMap:
    """The tensor map held in 128 bytes.

    Raises :class:`UnsupportedLayout` for packed 4- and 6-bit types, the 96-byte swizzle and the
    8-byte flip, and :class:`TensorMapError` where the bits are no tensor map at all.
    """
    if len(descriptor) != BYTES:
        raise TensorMapError(
            "size of a tensor map",
            expected=f"{BYTES} bytes",
            actual=len(descriptor),
            consequence="Nothing can be copied through it.",
        )
    words = struct.unpack("<15I", descriptor[:60])
    flags = words[2]
    rank = _field(flags, 4, 3) + 1
    interleave, atom = _field(flags, 11, 2), _field(flags, 19, 2)
    if rank > MAX_RANK or interleave >= len(_INTERLEAVE):
        raise TensorMapError(
            "tensor map",
            expected=f"a rank of at most {MAX_RANK} and an interleave code below 3",
            actual=f"rank {rank}, interleave code {interleave}",
            consequence="The 128 bytes hold something else.",
        )
    code = (_field(flags, 7, 4), _field(flags, 16, 1))
    if code not in _TYPES:
        raise _unsupported("element type code", "0 to 10", code[0])
    if _field(flags, 22, 1):
        raise _unsupported("swizzle", "32, 64 or 128 bytes", "96 bytes")
    swizzle = _SWIZZLE[_field(flags, 13, 2)]
    if swizzle == 128 and _ATOM[atom] == 0:
        raise _unsupported("swizzle atom", "16, 32 or 64 bytes", "32 bytes with an 8-byte flip")
    strides = ((words[3 + d] | _field(words[7], 4 * d, 4) << 32) << 4 for d in range(rank - 1))
    return TensorMap(
        element=_TYPES[code],
        address=words[0] | words[1] << 32,
        extents=tuple(words[8 + d] + 1 for d in range(rank)),
        strides=tuple(strides),
        box=tuple(size + 1 for size in descriptor[55 : 55 + rank]),
        element_strides=tuple(_field(words[13], 3 * d, 3) + 1 for d in range(rank)),
        interleave=_INTERLEAVE[interleave],
        swizzle=swizzle,
        atom=_ATOM[atom] if swizzle == 128 else 16,
        fill_nan=bool(_field(flags, 15, 1)),
    )


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes of a tensor map; what :func:`decode` does not read is zero.

    Raises :class:`TensorMapError` where the driver's encoder would refuse the parameters.
    """
    check(tensor_map)
    words = [0] * 32
    code, tf32 = _CODES[tensor_map.element]
    words[0] = tensor_map.address & 0xFFFFFFFF
    words[1] = tensor_map.address >> 32
    words[2] = (
        (tensor_map.rank - 1) << 4
        | code << 7
        | _INTERLEAVE.index(tensor_map.interleave) << 11
        | _SWIZZLE.index(tensor_map.swizzle) << 13
        | int(tensor_map.fill_nan) << 15
        | tf32 << 16
        | _ATOM.index(tensor_map.atom) << 19
    )
    for d, stride in enumerate(tensor_map.strides):
        words[3 + d] = stride >> 4 & 0xFFFFFFFF
        words[7] |= stride >> 36 << 4 * d
    for d, extent in enumerate(tensor_map.extents):
        words[8 + d] = extent - 1
    for d, step in enumerate(tensor_map.element_strides):
        words[13] |= (step - 1) << 3 * d
    words[13] |= (tensor_map.box[0] - 1) << 24
    for d, size in enumerate(tensor_map.box[1:]):
        words[14] |= (size - 1) << 8 * d
    return struct.pack("<32I", *words)


def check(tensor_map: TensorMap) -> None:
    """Raise :class:`TensorMapError` for the first rule of ``cuTensorMapEncodeTiled`` broken."""
    # One by one: a later rule may rely on an earlier one.
    rules = chain(_shape_rules(tensor_map), _layout_rules(tensor_map))
    for what, expected, actual, holds in rules:
        if not holds:
            raise TensorMapError(
                f"tensor map: {what}",
                expected=expected,
                actual=actual,
                consequence="The driver refuses to encode it; the copy engine may fault.",
            )


# Fields that ``tensormap.replace`` writes as they are given: lowest bit and bits.
_REPLACED = {
    "global_address": (0, 64),
    "rank": (68, 3),
    "interleave_layout": (75, 2),
    "swizzle_mode": (77, 2),
    "fill_mode": (79, 1),
    "swizzle_atomicity": (83, 2),
}
# Fields with one entry per dimension, written minus one: lowest bit of the first, bits of each.
_REPLACED_BY_DIMENSION = {"global_dim": (256, 32), "element_stride": (416, 3), "box_dim": (440, 8)}


def replaced(descriptor: bytes, field: str, value: int, entry: int = 0) -> bytes:
    """What ``tensormap.replace.tile.<field>`` leaves of a tensor map.

    Args:
        descriptor: 128 bytes.
        field: by PTX's name, such as "global_dim".
        value: as the instruction takes it: a rank is given minus one, a stride in bytes, types
            and modes by their number (PTX ISA 9.7.9.28); others as they are.
        entry: of fields with several, which; entry 0 of "global_stride" is dimension 1's.

    Raises:
        KeyError: there is no such field.
    """
    if field == "global_stride":
        parts = [(96 + 32 * entry, 32, value >> 4), (224 + 4 * entry, 4, value >> 36)]
    elif field == "elemtype":
        codes = list(_TYPES)
        code, tf32 = codes[value] if value < len(codes) else (value, 0)
        parts = [(71, 4, code), (80, 1, tf32)]
    elif field in _REPLACED_BY_DIMENSION:
        low, size = _REPLACED_BY_DIMENSION[field]
        parts = [(low + size * entry, size, value - 1)]
    else:
        parts = [(*_REPLACED[field], value)]
    bits = int.from_bytes(descriptor, "little")
    for low, size, new in parts:
        mask = (1 << size) - 1
        bits = bits & ~(mask << low) | (new & mask) << low
    return bits.to_bytes(BYTES, "little")


# What is ruled, what was expected, what is there, and whether that is right.
_Rule = tuple[str, str, object, bool]


def _shape_rules(m: TensorMap) -> Iterator[_Rule]:
    lengths = (len(m.strides), len(m.box), len(m.element_strides))
    expected = (m.rank - 1, m.rank, m.rank)
    yield "rank", "1 to 5", m.rank, 1 <= m.rank <= MAX_RANK
    yield "numbers of strides, boxes, element strides", f"{expected}", lengths, lengths == expected
    yield "extents", "1 to 2**32 each", m.extents, all(1 <= n <= 1 << 32 for n in m.extents)
    yield "box", "1 to 256 elements each", m.box, all(1 <= n <= 256 for n in m.box)
    steps = m.element_strides
    yield "element strides", "1 to 8 each", steps, all(1 <= n <= 8 for n in steps)


def _layout_rules(m: TensorMap) -> Iterator[_Rule]:
    unit = 32 if m.interleave == 32 else 16
    yield "address", f"a multiple of {unit}", hex(m.address), m.address % unit == 0
    good = all(s % unit == 0 and 0 <= s < 1 << 40 for s in m.strides)
    yield "strides in bytes", f"multiples of {unit} below 2**40", m.strides, good
    if m.interleave:
        yield "rank of an interleaved tensor", "3 to 5", m.rank, m.rank >= 3
    else:
        inner, what = m.box[0] * m.itemsize, "bytes of the box along dimension 0"
        yield what, "a multiple of 16", inner, inner % 16 == 0
        limit = f"at most {m.swizzle}, the swizzle's span"
        yield what, limit, inner, not m.swizzle or inner <= m.swizzle
    if m.fill_nan:
        what = "element type that NaN fills"
        yield what, "a floating-point type", m.element, m.element in FLOATING


def validate(tensor_map: TensorMap, address: int, size: int) -> None:
    """Check a tensor map against the buffer (byte address and bytes) that it should describe.

    Raises :class:`TensorMapError` where a rule of the format is broken or an element of the
    tensor lies outside the buffer. Maps of ragged tensors fail on purpose: their address lies far
    before the buffer, and only the coordinates of each copy lead into it.
    """
    check(tensor_map)
    first, end = tensor_map.address, tensor_map.address + tensor_map.span
    if first < address or end > address + size:
        raise TensorMapError(
            "memory that the tensor map describes",
            expected=f"inside the buffer [{address:#x}, {address + size:#x})",
            actual=f"[{first:#x}, {end:#x})",
            consequence="A copy could touch memory that belongs to something else.",
        )


def _field(word: int, low: int, bits: int) -> int:
    return word >> low & (1 << bits) - 1


def _unsupported(what: str, expected: object, actual: object) -> UnsupportedLayout:
    return UnsupportedLayout(
        f"tensor map: {what}",
        expected=expected,
        actual=actual,
        consequence="The emulator does not know where such a copy puts its bytes.",
    )

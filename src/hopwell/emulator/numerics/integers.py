"""Integer operations that NumPy lacks. Arrays of unsigned or signed 16 to 64-bit integers."""

from typing import Final

import numpy as np

from hopwell.emulator.numerics.bits import Array

_WIDER: Final = {
    np.dtype(f"{kind}{size}"): np.dtype(f"{kind}{2 * size}") for kind in "iu" for size in (2, 4)
}
_SIGNED: Final = {np.dtype(f"u{size}"): np.dtype(f"i{size}") for size in (2, 4, 8)}
_UNSIGNED: Final = {signed: unsigned for unsigned, signed in _SIGNED.items()}


def _popcounts() -> Array:
    bits = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8))
    return bits.reshape(-1, 16).sum(1, dtype=np.uint8)


_POPCOUNT: Final = _popcounts()
_REVERSED: Final = np.packbits(
    np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(-1, 8)[:, ::-1], axis=1
)[:, 0]


def widen(x: Array) -> Array:
    """Into the integer type of twice the width."""
    return x.astype(_WIDER[x.dtype])


def unsigned(x: Array) -> Array:
    """The same bits without sign."""
    return x.view(_UNSIGNED.get(x.dtype, x.dtype))


def signed(x: Array) -> Array:
    """The same bits as a two's complement number."""
    return x.view(_SIGNED.get(x.dtype, x.dtype))


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product of twice the width."""
    if a.dtype.itemsize < 8:
        return (widen(a) * widen(b) >> (8 * a.dtype.itemsize)).astype(a.dtype)
    x, y = unsigned(a), unsigned(b)
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype == np.uint64:
        return high
    # A negative factor stands for itself plus 2**64 in the unsigned product.
    return high.view(np.int64) - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)


def multiply_wide(a: Array, b: Array) -> Array:
    """The product in twice the width."""
    return widen(a) * widen(b)


def add_saturating(a: Array, b: Array) -> Array:
    """int32 sum clamped to int32."""
    return np.clip(widen(a) + widen(b), -(1 << 31), (1 << 31) - 1).astype(np.int32)


def subtract_saturating(a: Array, b: Array) -> Array:
    """int32 difference clamped to int32."""
    return np.clip(widen(a) - widen(b), -(1 << 31), (1 << 31) - 1).astype(np.int32)


def add_carrying(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    """``a + b + carry`` and the carry out (bool)."""
    x, y = unsigned(a), unsigned(b)
    total = x + y
    out = total < x
    if carry is not None:
        total = total + carry.astype(x.dtype)
        out |= carry & (total == 0)
    return total.view(a.dtype), out


def subtract_borrowing(a: Array, b: Array, borrow: Array | None) -> tuple[Array, Array]:
    """``a - (b + borrow)`` and the borrow out (bool)."""
    x, y = unsigned(a), unsigned(b)
    rest = x - y
    out = x < y
    if borrow is not None:
        out |= borrow & (rest == 0)
        rest = rest - borrow.astype(x.dtype)
    return rest.view(a.dtype), out


def divide(a: Array, b: Array) -> Array:
    """The quotient rounded towards zero; all bits set where ``b`` is 0."""
    return np.where(b == 0, ~b, (a - np.fmod(a, b)) // b)


def remainder(a: Array, b: Array) -> Array:
    """``a - b * divide(a, b)``, with the sign of ``a``; all bits set where ``b`` is 0."""
    return np.where(b == 0, ~b, np.fmod(a, b))


def population(x: Array) -> Array:
    """How many bits are set (uint32)."""
    return _POPCOUNT[x.view(np.uint16)].reshape(len(x), -1).sum(1, dtype=np.uint32)


def bit_length(x: Array) -> Array:
    """One more than the position of the highest set bit, 0 if there is none (uint32)."""
    if x.dtype.itemsize < 8:
        return np.frexp(x.astype(np.float64))[1].astype(np.uint32)
    halves = np.frexp(x.view(np.uint32).astype(np.float64))[1].reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    return np.where(high > 0, high + 32, low).astype(np.uint32)


def reverse(x: Array) -> Array:
    """The bits in the opposite order."""
    octets = _REVERSED[x.view(np.uint8)].reshape(len(x), -1)
    return np.ascontiguousarray(octets[:, ::-1]).view(x.dtype)[:, 0]


def nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """The position of the ``offset``-th set bit from ``base``, counting upwards for a positive
    offset and downwards for a negative one; offset 0 asks for the bit at ``base`` itself.

    Args:
        mask: uint32.
        base: uint32, 0 to 31.
        offset: int32.

    Returns:
        uint32; all ones where there is no such bit.
    """
    found = np.full(len(mask), 0xFFFFFFFF, np.uint32)
    for lane, (bits, start, count) in enumerate(
        zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
    ):
        if count == 0:
            positions = [start]
        else:
            positions = list(range(start, 32)) if count > 0 else list(range(min(start, 31), -1, -1))
        hits = [position for position in positions if bits >> position & 1]
        if len(hits) >= max(abs(count), 1):
            found[lane] = hits[max(abs(count), 1) - 1]
    return found


def extract_field(x: Array, position: Array, length: Array) -> Array:
    """``length`` bits from ``position`` on, extended by sign if ``x`` is signed.

    Args:
        position, length: uint32, the low 8 bits count.
    """
    width = 8 * x.dtype.itemsize
    rest = np.maximum(width - (length & 255).astype(np.int32), 0).astype(x.dtype)
    return (x >> (position & 255).astype(x.dtype)) << rest >> rest


def insert_field(a: Array, b: Array, position: Array, length: Array) -> Array:
    """``b`` with ``length`` bits at ``position`` replaced by the low bits of ``a``."""
    one = a.dtype.type(1)
    start = (position & 255).astype(a.dtype)
    mask = ((one << (length & 255).astype(a.dtype)) - one) << start
    return (b & ~mask) | (a << start & mask)


def shift_count(count: Array, x: Array) -> Array:
    """``count`` (uint32) clamped to the width of ``x`` and carried in its type."""
    return np.minimum(count, 8 * x.dtype.itemsize).astype(x.dtype)

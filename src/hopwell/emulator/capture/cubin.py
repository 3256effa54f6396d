"""What a launch needs of a cubin: where it ends, and how many registers its kernels use."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import NamedTuple

from hopwell.errors import CaptureError

_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL_TABLE = 2
#: A fat binary, as seen where the CuTe DSL embeds one: a header, then entries with theirs.
_FAT_MAGIC = (0xBA55ED50).to_bytes(4, "little")
_FAT_HEADER = struct.Struct("<IHHQ")
_FAT_ENTRY = struct.Struct("<HHIQ")
_FAT_CUBIN = 2
_SYMBOL = struct.Struct("<IBBHQQ")
#: ``.nv.info`` attribute EIATTR_REGCOUNT with a sized value: a symbol's index and its registers.
_REGISTER_COUNT = b"\x04\x2f"


class _Section(NamedTuple):
    name: str
    kind: int
    offset: int
    size: int
    link: int


def image_at(address: int) -> bytes:
    """The cubin that stands at an address of this process, bare or in a fat binary.

    Raises:
        CaptureError: something else stands there, such as compressed code.
    """
    magic = ctypes.string_at(address, 4)
    if magic == _FAT_MAGIC:
        address = _inside_fat_binary(address)
        magic = ctypes.string_at(address, 4)
    if magic != _MAGIC:
        raise CaptureError(
            "code given to the CUDA runtime",
            expected="a cubin (an ELF file)",
            actual=f"bytes {magic.hex(' ')}",
            consequence="The kernel's PTX cannot be found.",
        )
    fields = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
    section_table, entry_size, entries = fields[6], fields[11], fields[12]
    program_table, program_size, programs = fields[5], fields[9], fields[10]
    size = max(section_table + entry_size * entries, program_table + program_size * programs)
    return ctypes.string_at(address, size)


def _inside_fat_binary(address: int) -> int:
    """Where the first cubin of a fat binary begins: entries of (kind, header size, size)."""
    _, _, header_size, size = _FAT_HEADER.unpack(ctypes.string_at(address, _FAT_HEADER.size))
    entry = address + header_size
    end = entry + size
    while entry < end:
        kind, _, header_size, size = _FAT_ENTRY.unpack(ctypes.string_at(entry, _FAT_ENTRY.size))
        if kind == _FAT_CUBIN:
            return entry + header_size
        entry += header_size + size
    return address


def registers_of(cubin: bytes, kernel: str) -> int | None:
    """32-bit registers that a thread of ``kernel`` starts with, or None when it is not said."""
    sections = list(_sections(cubin))
    symbols = next((entry for entry in sections if entry.kind == _SYMBOL_TABLE), None)
    info = next((entry for entry in sections if entry.name == ".nv.info"), None)
    if symbols is None or info is None:
        return None
    strings = sections[symbols.link].offset
    content, at = cubin[info.offset : info.offset + info.size], 0
    while at + 4 <= len(content):
        length = int.from_bytes(content[at + 2 : at + 4], "little")
        sized = content[at] == _REGISTER_COUNT[0]
        if sized and content[at : at + 2] == _REGISTER_COUNT:
            symbol, registers = struct.unpack_from("<II", content, at + 4)
            name, *_ = _SYMBOL.unpack_from(cubin, symbols.offset + symbol * _SYMBOL.size)
            if _string(cubin, strings + name) == kernel:
                return int(registers)
        at += 4 + (length if sized else 0)
    return None


def _sections(cubin: bytes) -> Iterator[_Section]:
    fields = _HEADER.unpack_from(cubin)
    table, size, count, names = fields[6], fields[11], fields[12], fields[13]
    rows = [_SECTION.unpack_from(cubin, table + index * size) for index in range(count)]
    for name, kind, _, _, offset, length, link, *_ in rows:
        yield _Section(_string(cubin, rows[names][4] + name), kind, offset, length, link)


def _string(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()

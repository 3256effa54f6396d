"""What a cubin says of a kernel: registers, stack, machine instructions.

Reads the ELF sections directly, so that no disassembler has to be installed. Imports no plan.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass

from hopwell.compile.artifact import elf_sections

#: A machine instruction has 16 bytes; its low 9 bits name the operation, 3 more the operand form.
INSTRUCTION_BYTES = 16
_OPERATION_BITS = 0x1FF
#: Operations of sm_90, as the toolkit's disassembler names them (a test compares the counts).
OPERATIONS = {
    0x1F0: "HGMMA",
    0x183: "LDL",
    0x187: "STL",
    0x1B4: "UTMALDG",
    0x1B5: "UTMASTG",
    0x1C8: "USETMAXREG",
    0x11D: "BAR",
}
#: Attributes of ``.nv.info``: (format, attribute) bytes, a length, then (symbol, value).
_FORMAT_SIZED = 0x04
_REGISTER_COUNT = 0x2F
_FRAME_SIZE = 0x11


@dataclass(frozen=True)
class Resources:
    """One kernel's static resources. Sizes in bytes, registers per thread at launch."""

    registers: int
    stack_bytes: int
    operations: dict[str, int]

    @property
    def local_accesses(self) -> int:
        """Loads and stores of local memory: spills, or arrays that are not in registers."""
        return self.operations["LDL"] + self.operations["STL"]


def resources(cubin: bytes) -> Resources:
    """Raises ValueError when the image is no cubin of exactly one kernel."""
    sections = {section.name: section for section in elf_sections(cubin)}
    code = [section.data for name, section in sections.items() if name.startswith(".text.")]
    if len(code) != 1 or ".nv.info" not in sections or len(code[0]) % INSTRUCTION_BYTES:
        raise ValueError(f"expected a cubin of one kernel, found {len(code)}")
    info = _attributes(sections[".nv.info"].data)
    if _REGISTER_COUNT not in info:
        raise ValueError("the cubin does not say how many registers its kernel has")
    return Resources(
        registers=info[_REGISTER_COUNT],
        stack_bytes=info.get(_FRAME_SIZE, 0),
        operations=_operations(code[0]),
    )


def _attributes(data: bytes) -> dict[int, int]:
    """The per-function values of ``.nv.info``; with one kernel there is one of each."""
    found, position = {}, 0
    while position + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, position)
        position += 4
        if kind != _FORMAT_SIZED:
            continue  # the value is in the two bytes of the size
        if size == 8 and position + size <= len(data):
            found[attribute] = struct.unpack_from("<II", data, position)[1]
        position += size
    return found


def _operations(code: bytes) -> dict[str, int]:
    words = struct.unpack(f"<{len(code) // INSTRUCTION_BYTES * 2}Q", code)[::2]
    counts = Counter(word & _OPERATION_BITS for word in words)
    return {name: counts[operation] for operation, name in OPERATIONS.items()}

"""One launch of a kernel as data: code, extents, raw parameters, and the memory it was given."""

from __future__ import annotations

import ctypes
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopwell.errors import CaptureError

Triple = tuple[int, int, int]

#: CUDA's CUtensorMap: 128 bytes, 64-byte aligned (CUDA driver API, "Tensor Map Object Management").
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGNMENT = 64
ADDRESS_BYTES = 8
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that a kernel may reach.

    Attributes:
        name: what reports call it.
        array: the memory; C-contiguous, any dtype. Kernels write into it.
        written: whether the kernel writes it, or None when nobody said.
        owner: kept alive with the buffer; whatever owns the memory.
    """

    name: str
    array: NDArray[Any]
    written: bool | None = None
    owner: object = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.array.flags.c_contiguous:
            raise CaptureError(
                f"buffer {self.name}",
                expected="C-contiguous memory",
                actual=f"strides {self.array.strides} of shape {self.array.shape}",
                consequence="Addresses inside it are not one range. Pass the memory it is a view "
                "of.",
            )

    @classmethod
    def at(cls, name: str, address: int, size: int, owner: object = None) -> Buffer:
        """``size`` bytes of this process's memory, which ``owner`` keeps alive."""
        memory = (ctypes.c_uint8 * size).from_address(address) if size else b""
        return cls(name, np.frombuffer(memory, np.uint8), owner=owner)

    @property
    def address(self) -> int:
        """Where the memory begins, in this process."""
        return int(self.array.ctypes.data)

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.array.nbytes)

    def __contains__(self, address: int) -> bool:
        return self.address <= address < self.address + self.size


class Parameter(NamedTuple):
    """One parameter of an entry function: bytes from the start of the parameter space."""

    name: str
    offset: int
    size: int
    alignment: int

    @property
    def tensor_maps(self) -> range:
        """Offsets of the tensor maps that a parameter of this size and alignment holds."""
        if self.alignment < TENSOR_MAP_ALIGNMENT or self.size % TENSOR_MAP_BYTES:
            return range(0)
        return range(self.offset, self.offset + self.size, TENSOR_MAP_BYTES)


class Pointer(NamedTuple):
    """An address among the parameters that lies in a buffer."""

    offset: int
    buffer: Buffer
    displacement: int


@dataclass(frozen=True, eq=False)
class Launch:
    """What a kernel was started with. ``hopwell.emulator.emulate`` runs it.

    Attributes:
        ptx: the module's text.
        kernel: the entry function.
        grid: CTAs along x, y and z; with clusters, a multiple of ``cluster``.
        block: threads of a CTA along x, y and z.
        cluster: CTAs of a cluster along x, y and z.
        shared_bytes: dynamic shared memory of a CTA.
        parameters: the parameter space, as the entry function lays it out.
        buffers: the global memory that the kernel may reach. Addresses are this process's own.
        registers: 32-bit registers of a thread as compiled, or None when no cubin said.
        filename: what locations in the PTX are reported in.
    """

    ptx: str = field(repr=False)
    kernel: str
    grid: Triple
    block: Triple
    cluster: Triple = (1, 1, 1)
    shared_bytes: int = 0
    parameters: bytes = field(default=b"", repr=False)
    buffers: tuple[Buffer, ...] = ()
    registers: int | None = None
    filename: str = "<ptx>"

    def __post_init__(self) -> None:
        for what in ("grid", "block", "cluster"):
            extents = getattr(self, what)
            if len(extents) != 3 or min(extents) < 1:
                raise self._error(what, "three positive extents", extents)
        if any(all_ % part for all_, part in zip(self.grid, self.cluster, strict=True)):
            raise self._error("grid", f"a multiple of the cluster {self.cluster}", self.grid)
        expected = parameter_bytes(self.layout)
        if len(self.parameters) != expected:
            raise self._error("parameters", f"{expected} bytes", f"{len(self.parameters)} bytes")

    def _error(self, what: str, expected: object, actual: object) -> CaptureError:
        return CaptureError(
            f"{what} of a launch of {short_name(self.kernel)}",
            expected=expected,
            actual=actual,
            consequence="The launch cannot be run.",
        )

    @property
    def layout(self) -> tuple[Parameter, ...]:
        """The entry function's parameters."""
        return parameters_of(self.ptx, self.kernel)

    @functools.cached_property
    def tensor_maps(self) -> tuple[int, ...]:
        """Offsets of the tensor maps among the parameters."""
        return tuple(offset for entry in self.layout for offset in entry.tensor_maps)

    @functools.cached_property
    def words(self) -> tuple[tuple[int, int], ...]:
        """The 64-bit words of the parameters that may be addresses, each with its offset.

        Of a tensor map only the first may: the host leaves part of a map uninitialised, and what
        is there can be the address of anything.
        """
        inside_maps = {
            offset + step
            for offset in self.tensor_maps
            for step in range(ADDRESS_BYTES, TENSOR_MAP_BYTES, ADDRESS_BYTES)
        }
        whole = len(self.parameters) // ADDRESS_BYTES * ADDRESS_BYTES
        values = np.frombuffer(self.parameters[:whole], "<u8").tolist()
        return tuple(
            (offset, value)
            for offset, value in zip(range(0, whole, ADDRESS_BYTES), values, strict=True)
            if offset not in inside_maps
        )

    @functools.cached_property
    def pointers(self) -> tuple[Pointer, ...]:
        """Every address among the parameters that lies in a buffer, tensor maps' included."""
        found = ((offset, value, self.buffer_at(value)) for offset, value in self.words)
        return tuple(
            Pointer(offset, buffer, value - buffer.address)
            for offset, value, buffer in found
            if buffer is not None
        )

    def buffer_at(self, address: int) -> Buffer | None:
        """The buffer that holds an address, if one does."""
        return next((buffer for buffer in self.buffers if address in buffer), None)

    def buffer(self, name: str) -> Buffer:
        """The buffer of a name.

        Raises:
            KeyError: there is none.
        """
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    def relocated(self, buffers: Sequence[Buffer]) -> Launch:
        """The same launch over other memory: one buffer for each, in order, of the same sizes.

        Addresses among the parameters and in tensor maps are rewritten; those that kernels
        would find in memory (arrays of pointers) are not.
        """
        sizes = [buffer.size for buffer in self.buffers]
        if [buffer.size for buffer in buffers] != sizes:
            raise self._error("buffers", sizes, [buffer.size for buffer in buffers])
        position = {id(buffer): index for index, buffer in enumerate(self.buffers)}
        addresses = [
            (pointer.offset, buffers[position[id(pointer.buffer)]].address + pointer.displacement)
            for pointer in self.pointers
        ]
        return replace(
            self,
            parameters=_with_addresses(self.parameters, addresses),
            buffers=tuple(buffers),
        )

    def copy(self) -> Launch:
        """The same launch over copies of its memory, so that running it leaves this one alone."""
        return self.relocated(
            [replace(buffer, array=aligned_copy(buffer.array), owner=None)
             for buffer in self.buffers]
        )

    def save(self, path: str | Path) -> None:
        """Write the launch with its memory to one ``.npz`` file."""
        header = {
            "format": _FORMAT,
            "kernel": self.kernel,
            "grid": self.grid,
            "block": self.block,
            "cluster": self.cluster,
            "shared_bytes": self.shared_bytes,
            "registers": self.registers,
            "filename": self.filename,
            "buffers": [(buffer.name, buffer.written) for buffer in self.buffers],
            "pointers": [
                (pointer.offset, self.buffers.index(pointer.buffer), pointer.displacement)
                for pointer in self.pointers
            ],
        }
        arrays = {f"buffer{index}": buffer.array for index, buffer in enumerate(self.buffers)}
        with open(path, "wb") as file:
            np.savez_compressed(
                file,
                header=np.array(json.dumps(header)),
                ptx=np.frombuffer(self.ptx.encode(), np.uint8),
                parameters=np.frombuffer(self.parameters, np.uint8),
                **arrays,
            )

    @classmethod
    def load(cls, path: str | Path) -> Launch:
        """Read what :meth:`save` wrote; its memory is new, and addresses are rewritten.

        Raises:
            CaptureError: the file is of another format.
        """
        with np.load(path, allow_pickle=False) as saved:
            header = json.loads(str(saved["header"]))
            if header["format"] != _FORMAT:
                raise CaptureError(
                    f"saved launch {path}",
                    expected=f"format {_FORMAT}",
                    actual=header["format"],
                    consequence="It cannot be read. Capture it again.",
                )
            buffers = tuple(
                Buffer(name, aligned_copy(saved[f"buffer{index}"]), written)
                for index, (name, written) in enumerate(header["buffers"])
            )
            parameters, ptx = saved["parameters"].tobytes(), saved["ptx"].tobytes().decode()
        addresses = [
            (offset, buffers[index].address + displacement)
            for offset, index, displacement in header["pointers"]
        ]
        return cls(
            ptx=ptx,
            kernel=header["kernel"],
            grid=tuple(header["grid"]),
            block=tuple(header["block"]),
            cluster=tuple(header["cluster"]),
            shared_bytes=header["shared_bytes"],
            parameters=_with_addresses(parameters, addresses),
            buffers=buffers,
            registers=header["registers"],
            filename=header["filename"],
        )


def _with_addresses(parameters: bytes, addresses: Iterable[tuple[int, int]]) -> bytes:
    changed = bytearray(parameters)
    for offset, address in addresses:
        changed[offset : offset + ADDRESS_BYTES] = address.to_bytes(ADDRESS_BYTES, "little")
    return bytes(changed)


def aligned_copy(array: NDArray[Any], alignment: int = 256) -> NDArray[Any]:
    """A C-contiguous copy at an address that is a multiple of ``alignment`` bytes.

    CUDA's allocations are 256-byte aligned (CUDA C++ Programming Guide, "Device Memory
    Accesses"), and kernels rely on it: tensor maps and vector accesses need 16 bytes.
    """
    memory = np.zeros(array.nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


# -- parameters ----------------------------------------------------------------------------

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.([a-z]+)(\d+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?([\w$%]+)\s*(?:\[(\d+)\])?"
)


@functools.lru_cache(maxsize=64)
def parameters_of(ptx: str, kernel: str) -> tuple[Parameter, ...]:
    """The parameters of an entry function, laid out as PTX has it: each at its alignment.

    Raises:
        CaptureError: the module has no such entry function.
    """
    entries = {match[1]: match[2] or "" for match in _ENTRY.finditer(ptx)}
    if kernel not in entries:
        raise CaptureError(
            "kernel of a launch",
            expected=f"an entry function of the PTX: {', '.join(map(short_name, entries))}",
            actual=short_name(kernel),
            consequence="The launch cannot be run.",
        )
    found: list[Parameter] = []
    for align, _, bits, name, count in _PARAMETER.findall(entries[kernel]):
        element = int(bits) // 8
        alignment = int(align or element)
        offset = -(-parameter_bytes(found) // alignment) * alignment
        found.append(Parameter(name, offset, element * int(count or 1), alignment))
    return tuple(found)


def parameter_bytes(layout: Sequence[Parameter]) -> int:
    """The size of a parameter space."""
    return layout[-1].offset + layout[-1].size if layout else 0


def pack_parameters(layout: Sequence[Parameter], values: Sequence[bytes]) -> bytes:
    """The parameter space that holds these values, one for each parameter.

    Raises:
        CaptureError: their number or a size differs.
    """
    sizes, expected = [len(value) for value in values], [entry.size for entry in layout]
    if sizes != expected:
        raise CaptureError(
            "values of a launch's parameters",
            expected=f"sizes {expected}",
            actual=f"sizes {sizes}",
            consequence="The launch cannot be run.",
        )
    space = bytearray(parameter_bytes(layout))
    for entry, value in zip(layout, values, strict=True):
        space[entry.offset : entry.offset + entry.size] = value
    return bytes(space)


def short_name(kernel: str, limit: int = 60) -> str:
    """A kernel's name for messages: mangled names can be hundreds of characters long."""
    return kernel if len(kernel) <= limit else f"{kernel[: limit - 3]}..."

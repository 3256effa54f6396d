"""One launch of a kernel as data: code, extents, raw parameters, and the memory it was given."""

from __future__ import annotations

import ctypes
import functools
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator import tensor_map
from hopwell.emulator.capture.parameters import (
    Parameter,
    argument_bytes,
    directives_of,
    pack_parameters,
    parameter_bytes,
    parameters_of,
    short_name,
)
from hopwell.emulator.tensor_map import TensorMap
from hopwell.errors import CaptureError, TensorMapError

Triple = tuple[int, int, int]

#: Limits of compute capability 9.0 (CUDA C++ Programming Guide, "Compute Capabilities").
_THREADS, _CLUSTER, _SHARED = 1024, 16, 232_448

ADDRESS_BYTES = 8
#: Along a dimension of this many elements or more no tensor ends. Ragged tensors have such
#: dimensions, whose coordinates reach each sequence from the end.
ENDLESS = 1 << 30
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
    array: NDArray[Any] = field(repr=False)
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
        if (
            not self.array.flags.writeable
            or self.array.dtype.hasobject
            or not self.array.dtype.isnative
        ):
            raise CaptureError(
                f"buffer {self.name}",
                expected="memory that can be written, of numbers in this machine's byte order",
                actual=f"dtype {self.array.dtype.str}"
                + ("" if self.array.flags.writeable else ", read-only"),
                consequence="Kernels read and write it in place. Pass a copy.",
            )

    @classmethod
    def at(cls, name: str, address: int, size: int, owner: object = None) -> Buffer:
        """``size`` bytes of this process's memory, which ``owner`` keeps alive."""
        memory: Any = (ctypes.c_uint8 * size).from_address(address)
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


class Pointer(NamedTuple):
    """An address among the parameters that means a place in a buffer.

    ``displacement`` counts bytes from the buffer's start; that of a ragged tensor map may lie far
    before it.
    """

    offset: int
    buffer: Buffer
    displacement: int


class MappedTensor(NamedTuple):
    """A tensor map among the parameters, and the buffer that its tensor lies in, if one does."""

    offset: int
    map: TensorMap
    buffer: Buffer | None


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
        self._check_limits()
        expected = parameter_bytes(self.layout)
        if len(self.parameters) != expected:
            raise self._error("parameters", f"{expected} bytes", f"{len(self.parameters)} bytes")

    def _check_limits(self) -> None:
        """What the hardware and the kernel's own directives allow (compute capability 9.0)."""
        threads, ctas = prod(self.block), prod(self.cluster)
        given = directives_of(self.ptx, self.kernel)
        limits: list[tuple[str, bool, object, object]] = [
            ("block", threads <= _THREADS, f"at most {_THREADS} threads", threads),
            ("grid", self.grid[0] < 2**31 and max(self.grid[1:]) < 2**16,
             "below 2**31 along x, below 2**16 along y and z", self.grid),
            ("cluster", ctas <= _CLUSTER, f"at most {_CLUSTER} CTAs", ctas),
            ("shared_bytes", 0 <= self.shared_bytes <= _SHARED, f"0 to {_SHARED}",
             self.shared_bytes),
        ]  # fmt: skip
        for name, what, actual, exact in (
            ("reqntid", "block", self.block, True),
            ("maxntid", "block", self.block, False),
            ("reqnctapercluster", "cluster", self.cluster, True),
        ):
            if name in given:
                wanted = (*given[name], 1, 1)[:3]
                fits = actual == wanted if exact else prod(actual) <= prod(wanted)
                limits.append((what, fits, f"what .{name} says, {wanted}", actual))
        for what, fits, expected, found in limits:
            if not fits:
                raise self._error(what, expected, found)

    def _error(self, what: str, expected: object, actual: object) -> CaptureError:
        return CaptureError(
            f"{what} of a launch of {short_name(self.kernel)}",
            expected=expected,
            actual=actual,
            consequence="The launch cannot be run.",
        )

    @classmethod
    def of(
        cls,
        ptx: str,
        kernel: str,
        grid: Triple,
        block: Triple,
        arguments: Sequence[Any] = (),
        *,
        names: Sequence[str] | None = None,
        **options: Any,
    ) -> Launch:
        """A launch with one argument for each parameter of the entry function.

        Args:
            ptx: the module's text.
            kernel: the entry function.
            grid: CTAs along x, y and z.
            block: threads of a CTA along x, y and z.
            arguments: C-contiguous arrays, whose address is passed and which the kernel may read
                and write; :class:`TensorMap`; ints, floats and NumPy scalars; or a parameter's
                bytes.
            names: of the arguments, for reports; the parameters' by default.
            options: ``cluster``, ``shared_bytes``, ``registers``, ``filename``.

        Raises:
            CaptureError: the arguments are not what the parameters need.
        """
        layout = parameters_of(ptx, kernel)
        names = names or [entry.name for entry in layout]
        if not len(arguments) == len(layout) == len(names):
            raise CaptureError(
                f"arguments of {short_name(kernel)}",
                expected=f"{len(layout)}: {', '.join(entry.type for entry in layout)}",
                actual=f"{len(arguments)}, and {len(names)} names",
                consequence="The launch cannot be run.",
            )
        buffers = tuple(
            Buffer(name, value)
            for name, value in zip(names, arguments, strict=True)
            if isinstance(value, np.ndarray)
        )
        values = [
            argument_bytes(entry, value) for entry, value in zip(layout, arguments, strict=True)
        ]
        parameters = pack_parameters(layout, values)
        return cls(ptx, kernel, grid, block, parameters=parameters, buffers=buffers, **options)

    @property
    def layout(self) -> tuple[Parameter, ...]:
        """The entry function's parameters."""
        return parameters_of(self.ptx, self.kernel)

    @functools.cached_property
    def tensor_maps(self) -> tuple[MappedTensor, ...]:
        """The tensor maps among the parameters."""
        found = []
        for offset in (offset for entry in self.layout for offset in entry.tensor_maps):
            decoded = tensor_map.decode(self.parameters[offset : offset + tensor_map.BYTES])
            homes = map(self.buffer_at, _first_elements(decoded))
            found.append(MappedTensor(offset, decoded, next(filter(None, homes), None)))
        return tuple(found)

    @functools.cached_property
    def words(self) -> tuple[tuple[int, int], ...]:
        """The 64-bit words of the parameters that may be addresses, each with its offset.

        Of a tensor map only the first may: the host leaves part of a map uninitialised, and what
        is there can be the address of anything.
        """
        inside_maps = {
            mapped.offset + step
            for mapped in self.tensor_maps
            for step in range(ADDRESS_BYTES, tensor_map.BYTES, ADDRESS_BYTES)
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
        homes = {mapped.offset: mapped.buffer for mapped in self.tensor_maps}
        found = (
            (offset, value, homes.get(offset) or self.buffer_at(value))
            for offset, value in self.words
        )
        return tuple(
            Pointer(offset, buffer, value - buffer.address)
            for offset, value, buffer in found
            if buffer is not None
        )

    @property
    def ranges(self) -> Iterator[tuple[str, int, NDArray[np.uint8]]]:
        """The bytes of the buffers by ascending address: buffers that overlap are one range."""
        left = sorted(self.buffers, key=lambda buffer: (buffer.address, buffer.size))
        while left:
            first, *left = left
            names, base, end = [first.name], first.address, first.address + first.size
            while left and left[0].address < end:
                names.append(left[0].name)
                end = max(end, left[0].address + left.pop(0).size)
            whole = first.array.reshape(-1).view(np.uint8)
            if end > base + first.size:
                whole = Buffer.at("", base, end - base).array
            yield ", ".join(dict.fromkeys(names)), base, whole

    def check_tensor_maps(self) -> None:
        """Check every tensor map among the parameters against the buffers.

        A map with the null address is of an empty tensor, whose other fields say nothing.

        Raises:
            TensorMapError: a map breaks a rule of its format, or describes memory outside every
                buffer.
        """
        for mapped in self.tensor_maps:
            if mapped.map.address == 0:
                continue  # of a tensor without elements: any copy through it is out of bounds
            tensor_map.check(mapped.map)
            what = f"tensor map at byte {mapped.offset} of the parameters"
            if mapped.buffer is None:
                raise TensorMapError(
                    what,
                    expected=f"the address of one of {[entry.name for entry in self.buffers]}",
                    actual=hex(mapped.map.address),
                    consequence="Copies through it would touch memory that was not passed.",
                )
            first = next(filter(mapped.buffer.__contains__, _first_elements(mapped.map)))
            end = first - mapped.buffer.address + _bounded_span(mapped.map)
            if end > mapped.buffer.size:
                raise TensorMapError(
                    what,
                    expected=f"a tensor inside {mapped.buffer.name}, {mapped.buffer.size} bytes",
                    actual=f"one that ends at byte {end}: extents {mapped.map.extents}, strides "
                    f"{mapped.map.strides}",
                    consequence="Copies through it would touch memory that was not passed.",
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
            [
                replace(buffer, array=aligned_copy(buffer.array), owner=None)
                for buffer in self.buffers
            ]
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
        arrays: dict[str, Any] = {
            f"buffer{index}": buffer.array for index, buffer in enumerate(self.buffers)
        }
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
        try:
            saved = np.load(path, allow_pickle=False)
            header = json.loads(str(saved["header"]))
        except (KeyError, ValueError, IndexError, EOFError, zipfile.BadZipFile) as error:
            raise CaptureError(
                f"saved launch {path}",
                expected="a file that Launch.save wrote",
                actual=str(error),
                consequence="It cannot be read.",
            ) from error
        with saved:
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
        word = address % (1 << 8 * ADDRESS_BYTES)
        changed[offset : offset + ADDRESS_BYTES] = word.to_bytes(ADDRESS_BYTES, "little")
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


# -- tensor maps ---------------------------------------------------------------------------


def _first_elements(described: TensorMap) -> Iterator[int]:
    """Where a map's tensor may begin: its address, or the end of an endless dimension before it.

    A ragged tensor's address can be moved back by a whole endless dimension, whose coordinates
    then count from its end. Addresses are 64 bits wide and wrap around.
    """
    yield described.address
    steps = (described.itemsize, *described.strides)
    for extent, step in zip(described.extents, steps, strict=True):
        if extent >= ENDLESS:
            yield (described.address + extent * step) % (1 << 64)


def _bounded_span(described: TensorMap) -> int:
    """Bytes from the first element to the end of the last, along the dimensions that end."""
    steps = (described.itemsize, *described.strides)
    return described.itemsize + sum(
        (extent - 1) * step
        for extent, step in zip(described.extents, steps, strict=True)
        if extent < ENDLESS
    )

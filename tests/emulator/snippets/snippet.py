"""What a snippet is: one PTX kernel, its launch, its arguments, and how its answers are compared.

A snippet runs on the emulator (``tests/emulator/test_snippets.py``) and on a GPU (``gpu.py``)
from the same description. Its fingerprint covers the source, the launch and every input byte, so a
recorded answer can be told to belong to exactly this snippet.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
#: What output buffers hold before the launch: a byte that was not written shows.
POISON = 0xA5


@dataclass(frozen=True)
class Comparison:
    """How a buffer is compared with its record.

    kind: ``bits`` (equal), ``relative`` (|difference| <= bound * |recorded|), ``absolute``
    (|difference| <= bound) or ``ulp``, of values of ``type`` (a PTX type). A bound that depends on
    the inputs is a function of them. ``any_nan``: a NaN equals any other NaN, whatever its payload.
    ``flush``: smaller differences are none (results that may be subnormal, or zero instead).
    """

    kind: Literal["bits", "ulp", "relative", "absolute"] = "bits"
    type: str = "b32"
    bound: float | Callable[[Mapping[str, Array]], Array] = 0.0
    any_nan: bool = False
    flush: float = 0.0


@dataclass(frozen=True)
class Buffer:
    """A pointer argument: its first contents, and the comparison of its last ones (None: input)."""

    name: str
    make: Callable[[], Array]
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Scalar:
    """A ``.param`` passed by value."""

    name: str
    value: np.generic


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over ``buffer``: what ``cuTensorMapEncodeTiled`` takes, innermost first.

    ``extents`` and ``box`` are in elements; ``strides`` (rank - 1 of them) and ``offset`` (of the
    map's address from the start of the buffer) are in bytes.
    """

    name: str
    buffer: str
    type: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Literal["none", "32B", "64B", "128B"] = "none"
    fill: Literal["zero", "nan"] = "zero"
    offset: int = 0


Argument = Buffer | Scalar | TensorMap


@dataclass(frozen=True)
class Snippet:
    """One kernel, called ``kernel`` in ``source``; ``name`` is ``family/what``.

    ``lines``: what each row of a two-dimensional output is, for messages. ``hazards``: the rules
    that the emulator is expected to report, and ``refused`` the error that the GPU ends with: both
    are there only for what hardware refuses to do.
    """

    name: str
    source: str
    arguments: tuple[Argument, ...]
    block: tuple[int, int, int] = (32, 1, 1)
    grid: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    lines: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
    refused: str = ""

    kernel = "snippet"

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    @property
    def text(self) -> str:
        """The whole PTX module."""
        return HEADER + self.source

    @functools.cached_property
    def inputs(self) -> dict[str, Array]:
        """First contents of every buffer, by name. Shared: copy before writing."""
        return {a.name: a.make() for a in self.arguments if isinstance(a, Buffer)}

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(a for a in self.arguments if isinstance(a, Buffer) and a.comparison)

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        return tuple(a for a in self.arguments if isinstance(a, TensorMap))

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over source, launch, arguments and input bytes: what makes the answer."""
        digest = hashlib.sha256(self.text.encode())
        digest.update(repr((self.grid, self.block, self.cluster, self.shared_bytes)).encode())
        for argument in self.arguments:
            if isinstance(argument, Buffer):
                contents = self.inputs[argument.name]
                digest.update(f"{argument.name} {contents.dtype.str} {contents.shape}".encode())
                digest.update(np.ascontiguousarray(contents).tobytes())
                comparison = argument.comparison
                if comparison and comparison.kind == "bits" and comparison.any_nan:
                    digest.update(b"any NaN")  # a record of digests depends on it
            else:
                digest.update(repr(argument).encode())
        return digest.hexdigest()


def poisoned(dtype: Any, *shape: int) -> Callable[[], Array]:
    """A maker of an output array in which every byte is POISON."""

    def make() -> Array:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return np.full(size, POISON, np.uint8).view(dtype).reshape(shape)

    return make


def kernel(parameters: str, body: str, directives: str = "", preamble: str = "") -> str:
    """The source of a snippet.

    parameters: names with a type each, ``"x:u64 n:u32 s:bytes24 map:tensor"``. In ``body``,
    numbered registers ``%r`` (b32), ``%d`` (b64), ``%h`` (b16), ``%p`` (pred) and ``%q`` (b128)
    are declared; ``%x`` is the thread's x index and ``%lane`` its lane; every parameter but bytes
    stands in a register ``%p_NAME`` (of a tensor map: its address). preamble: module variables.
    """
    declared, registers, loads = [], [], []
    for parameter in parameters.split():
        name, _, type_ = parameter.partition(":")
        if type_.startswith("bytes"):
            declared.append(f".param .align 16 .b8 {name}[{type_[5:]}]")
            continue
        wide = type_ in ("tensor", "u64", "s64", "b64", "f64")
        registers.append(f".reg .b{64 if wide else 32} %p_{name};")
        if type_ == "tensor":
            declared.append(f".param .align 64 .b8 {name}[128]")
            loads.append(f"mov.b64 %p_{name}, {name}; cvta.param.u64 %p_{name}, %p_{name};")
        else:
            declared.append(f".param .{type_} {name}")
            loads.append(f"ld.param.{type_} %p_{name}, [{name}];")
    lines = [
        ".reg .pred %p<64>; .reg .b16 %h<64>; .reg .b32 %r<256>; .reg .b64 %d<128>;",
        ".reg .b128 %q<16>; .reg .b32 %x; .reg .b32 %lane;",
        *registers,
        "mov.u32 %x, %tid.x;",
        "mov.u32 %lane, %laneid;",
        *loads,
        *(line.strip() for line in body.strip().splitlines() if line.strip()),
        "ret;",
    ]
    text = "".join(f"\t{line}\n" for line in lines)
    entry = f".visible .entry {Snippet.kernel}({', '.join(declared)})"
    return f"{preamble}{entry}\n{directives}{{\n{text}}}\n"


def program(
    name: str,
    body: str,
    *,
    inputs: Mapping[str, Callable[[], Array]] | None = None,
    outputs: Mapping[str, Callable[[], Array]],
    comparison: Comparison | None = None,
    scalars: Mapping[str, np.generic] | None = None,
    maps: tuple[TensorMap, ...] = (),
    preamble: str = "",
    directives: str = "",
    **launch: Any,
) -> Snippet:
    """A snippet whose kernel takes inputs, outputs, scalars and tensor maps, in this order.

    Arrays are given by makers; an output's maker gives its first contents. launch: block, grid,
    cluster, shared_bytes, lines, hazards, refused.
    """
    arguments: list[Argument] = [Buffer(n, make) for n, make in (inputs or {}).items()]
    arguments += [Buffer(n, make, comparison or Comparison()) for n, make in outputs.items()]
    parameters = [f"{argument.name}:u64" for argument in arguments]
    for scalar, value in (scalars or {}).items():
        arguments.append(Scalar(scalar, value))
        parameters.append(f"{scalar}:{_ptx_type(value)}")
    arguments += maps
    parameters += [f"{tensor_map.name}:tensor" for tensor_map in maps]
    return Snippet(
        name=name,
        source=kernel(" ".join(parameters), body, directives, preamble),
        arguments=tuple(arguments),
        **launch,
    )


def _ptx_type(value: np.generic) -> str:
    kind = {"u": "u", "i": "s", "f": "f", "V": "bytes"}[value.dtype.kind]
    return f"{kind}{value.nbytes if kind == 'bytes' else 8 * value.nbytes}"

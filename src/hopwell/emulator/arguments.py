"""Arguments of a kernel: written as text on a command line, or given as Python values.

The grammar of a text, whose words stand for the parameters in order:

==========================  ============================================================
``5``, ``0x10``, ``0.5``    a number in the parameter's own type
``s32:5``, ``f32:0.5``      a number of a PTX type; ``i32`` and ``i64`` mean ``s32``, ``s64``
``@file.npy``               an array from a file; its address is passed
``zeros:f32:128x64``        an array of zeros; ``ones:...`` of ones, ``range:...`` 0, 1, 2, ...
``random:bf16:128x64:7``    an array of normal numbers (integers: 0 to 99), seed 7 (0 if left out)
==========================  ============================================================

bf16, tf32 and 8-bit floats have no NumPy type: such arrays hold their bits, as unsigned integers.
"""

import operator
import re
import shlex
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopwell.emulator.capture.launch import Launch, Triple, aligned_copy
from hopwell.emulator.numerics.formats import ENCODE, FORMATS
from hopwell.emulator.numerics.rounding import quantise
from hopwell.emulator.types import TYPES, Type
from hopwell.errors import InputError

_ALIASES = {"i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64"}
_NUMBER = re.compile(r"[+-]?(0x[0-9a-fA-F]+|\d+)$")


class Argument(NamedTuple):
    """One argument: a NumPy array or scalar, or a Python number; and what reports call it."""

    name: str | None
    value: Any


def launch_of(
    ptx: str,
    kernel: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Any] = (),
    *,
    cluster: Sequence[int] | int = 1,
    shared_bytes: int = 0,
    names: Sequence[str] | None = None,
    registers: int | None = None,
    filename: str = "<ptx>",
) -> Launch:
    """A launch of an entry function, for :func:`hopwell.emulator.emulate`.

    Args:
        ptx: the module's text.
        kernel: the entry function.
        grid: CTAs along x, y and z; what is left out is 1.
        block: threads of a CTA, likewise.
        args: one for each parameter: a C-contiguous NumPy array, whose address is passed and
            which the kernel reads and writes in place; a Python or NumPy number, stored in the
            parameter's type; a :class:`~hopwell.emulator.tensor_map.TensorMap`; or the bytes.
        cluster: CTAs of a cluster, as ``grid``.
        shared_bytes: dynamic shared memory of a CTA.
        names: of the arguments, for reports; the parameters' by default.
        registers: 32-bit registers per thread, as the cubin has them.
        filename: what reports call the PTX.

    Raises:
        CaptureError: the arguments are not what the parameters need.
        InputError: an extent is not one to three positive integers.
    """
    return Launch.of(
        ptx,
        kernel,
        triple(grid, "grid"),
        triple(block, "block"),
        args,
        names=names,
        cluster=triple(cluster, "cluster"),
        shared_bytes=shared_bytes,
        registers=registers,
        filename=filename,
    )


def triple(value: Sequence[int] | int | str, what: str) -> Triple:
    """Three extents from one to three: ``4``, ``(4, 2)`` or ``"4,2,1"``.

    Raises:
        InputError: they are not positive integers.
    """
    parts: Sequence[Any]
    if isinstance(value, str):
        parts = value.replace("x", ",").split(",")
    else:
        parts = list(np.atleast_1d(np.asarray(value, object)))
    try:
        numbers = [int(part) if isinstance(part, str) else operator.index(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise InputError(
            what,
            expected="one to three positive integers, such as 4,2,1",
            actual=repr(value),
            consequence="Nothing was run.",
        )
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def parse_arguments(text: str, directory: Path | None = None) -> list[Argument]:
    """The arguments that a text lists. Files are relative to ``directory``.

    Raises:
        InputError: a word is not of the grammar, or its file cannot be read.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(
            "arguments",
            expected="words; quotes in pairs",
            actual=f"{text!r} ({error})",
            consequence="Nothing was run.",
        ) from error
    return [_parse(word, directory or Path()) for word in words]


def _parse(word: str, directory: Path) -> Argument:
    if word.startswith("@"):
        return Argument(Path(word[1:]).stem, _load(directory / word[1:], word))
    head, *rest = word.split(":")
    if not rest:
        return Argument(None, _number(head, word))
    if head in _MAKERS:
        return Argument(None, _made(head, rest, word))
    if len(rest) == 1 and _ALIASES.get(head, head) in TYPES:
        kind = _type(head, word)
        return Argument(None, _stored(np.array([_number(rest[0], word)]), kind)[0])
    raise _wrong(word)


def _load(path: Path, word: str) -> NDArray[Any]:
    try:
        return aligned_copy(np.load(path, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise InputError(
            f"argument {word}",
            expected="a NumPy array file (.npy)",
            actual=str(error),
            consequence="Nothing was run.",
        ) from error


def _number(text: str, word: str) -> int | float:
    try:
        return int(text, 0) if _NUMBER.match(text) else float(text)
    except ValueError as error:
        raise _wrong(word) from error


def _type(name: str, word: str) -> Type:
    kind = TYPES.get(_ALIASES.get(name, name))
    if kind is None or kind.bits < 8 or kind.bits > 64:
        raise _wrong(word)
    return kind


def _made(maker: str, rest: list[str], word: str) -> NDArray[Any]:
    if not 2 <= len(rest) <= (3 if maker == "random" else 2):
        raise _wrong(word)
    kind = _type(rest[0], word)
    try:
        shape = tuple(int(part) for part in re.split("[x,]", rest[1]))
        seed = int(rest[2]) if len(rest) == 3 else 0
    except ValueError as error:
        raise _wrong(word) from error
    if min(shape) < 1 or seed < 0:
        raise _wrong(word)
    try:
        return aligned_copy(_stored(_MAKERS[maker](kind, shape, seed), kind))
    except (MemoryError, ValueError) as error:
        raise InputError(
            f"argument {word!r}",
            expected="an array that fits into memory",
            actual=str(error),
            consequence="Nothing was run.",
        ) from error


def _random(kind: Type, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    generator = np.random.default_rng(seed)
    if kind.floating:
        return generator.standard_normal(shape)
    return generator.integers(0, 100, shape)


_MAKERS: dict[str, Callable[[Type, tuple[int, ...], int], NDArray[Any]]] = {
    "zeros": lambda kind, shape, seed: np.zeros(shape),
    "ones": lambda kind, shape, seed: np.ones(shape),
    "range": lambda kind, shape, seed: np.arange(prod(shape)).reshape(shape),
    "random": _random,
}


def _stored(values: NDArray[Any], kind: Type) -> NDArray[Any]:
    """Values in a type's own representation, rounded to nearest even."""
    if kind.name in FORMATS:
        flat = quantise(values.astype(np.float64).reshape(-1), FORMATS[kind.name], "rn")
        return ENCODE[kind.name](flat).reshape(values.shape)
    return values.astype(kind.dtype)


def _wrong(word: str) -> InputError:
    return InputError(
        f"argument {word!r}",
        expected="a number, TYPE:NUMBER, @FILE.npy, zeros:TYPE:SHAPE, ones:TYPE:SHAPE, "
        "range:TYPE:SHAPE or random:TYPE:SHAPE[:SEED], with a PTX type such as s32 or bf16",
        actual="none of these",
        consequence="Nothing was run.",
    )

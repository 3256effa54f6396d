"""Which memory a launch was given: the tensors that were passed, as buffers of exact extent."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hopwell.emulator.capture.launch import Buffer, Launch

#: Addresses of user space on 64-bit systems (canonical, lower half), above the first pages.
_USER_SPACE = range(1 << 16, 1 << 47)


class Extent(NamedTuple):
    """Bytes that a tensor reaches: from its first element to the end of its last."""

    name: str
    start: int
    end: int
    owner: object


def extents_of(name: str, value: Any) -> Iterator[Extent]:
    """The extents of every tensor inside an argument: nested containers and dataclasses too.

    Tensors are torch's, NumPy's arrays, and whatever says what it was made from in
    ``__hopwell_source__``.
    """
    source = getattr(value, "__hopwell_source__", None)
    if source is not None:
        yield from extents_of(name, source)
    elif isinstance(value, np.ndarray) or _is_torch_tensor(value):
        yield from _tensor_extent(name, value)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from extents_of(f"{name}.{key}", entry)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, entry in zip(value._fields, value, strict=True):
            yield from extents_of(f"{name}.{key}", entry)
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from extents_of(f"{name}[{index}]", entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in fields(value):
            yield from extents_of(f"{name}.{entry.name}", getattr(value, entry.name, None))


def _is_torch_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_extent(name: str, tensor: Any) -> Iterator[Extent]:
    if isinstance(tensor, np.ndarray):
        item = tensor.itemsize
        start, strides = tensor.ctypes.data, list(tensor.strides)
    else:
        item = tensor.element_size()
        start, strides = tensor.data_ptr(), [step * item for step in tensor.stride()]
    steps = [(count - 1) * step for count, step in zip(tensor.shape, strides, strict=True)]
    if min(tensor.shape, default=1) > 0:
        low, high = (sum(step for step in steps if step * sign > 0) for sign in (-1, 1))
        yield Extent(name, start + low, start + high + item, tensor)


def live_extents(addresses: Iterable[int]) -> Iterator[Extent]:
    """The extents of this process's torch tensors that hold one of these addresses.

    Programs may pass a tensor's bare address; the tensor itself is then somewhere in the process.
    Where several hold an address, it is the first that Python lists.
    """
    wanted = set(addresses)
    count = 0
    if not wanted:
        return
    torch = sys.modules.get("torch")
    kind = torch.Tensor if torch is not None else ()
    for value in gc.get_objects():
        # type(), not isinstance(): objects may compute their class when they are asked.
        if not issubclass(type(value), kind) or not _on_cpu(value):
            continue
        if str(value.layout) != "torch.strided":
            continue  # sparse tensors have no storage of their own
        storage = value.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        found = {address for address in wanted if start <= address < end}
        if found:
            wanted -= found
            count += 1
            yield Extent(f"memory {count}", start, end, storage)


def _on_cpu(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and type(tensor).__name__ != "FakeTensor"


def buffers_of(extents: Sequence[Extent]) -> tuple[Buffer, ...]:
    """Buffers that cover these extents, in their order; those that overlap are one buffer, named
    after all of them."""
    order: dict[str, int] = {}
    for extent in extents:
        order.setdefault(extent.name, len(order))
    merged: list[list[Extent]] = []
    end = 0
    for extent in sorted(extents, key=lambda extent: extent.start):
        if merged and extent.start < end:
            merged[-1].append(extent)
        else:
            merged.append([extent])
        end = max(end, extent.end)
    buffers = {}
    for group in merged:
        names = sorted({extent.name for extent in group}, key=order.__getitem__)
        start, end = group[0].start, max(extent.end for extent in group)
        owners = tuple(extent.owner for extent in group)
        buffers[order[names[0]], start] = Buffer.at(", ".join(names), start, end - start, owners)
    return tuple(buffers[key] for key in sorted(buffers))


def with_memory(launch: Launch, extents: Iterable[Extent]) -> Launch:
    """The launch with the buffers that it was given.

    They are the tensors that were passed, and those that the process holds at other addresses
    among the parameters or in passed tensors of 64-bit integers.

    Raises:
        TensorMapError: a tensor map among the parameters describes other memory.
    """
    known = list(extents)
    launch = replace(launch, buffers=buffers_of(known))
    candidates = {value for _, value in launch.words} | _integers_in(known)
    unknown = [
        value for value in candidates if value in _USER_SPACE and launch.buffer_at(value) is None
    ]
    launch = replace(launch, buffers=buffers_of([*known, *live_extents(unknown)]))
    launch.check_tensor_maps()
    return launch


def _integers_in(extents: Iterable[Extent]) -> set[int]:
    """The values of 64-bit integer tensors that may be addresses: kernels take arrays of them."""
    found: set[int] = set()
    for extent in extents:
        kind = str(getattr(extent.owner, "dtype", "")).removeprefix("torch.")
        if kind in ("int64", "uint64"):
            memory = Buffer.at(extent.name, extent.start, extent.end - extent.start, extent.owner)
            values = memory.array.view(np.uint64)
            inside = (values >= _USER_SPACE.start) & (values < _USER_SPACE.stop)
            found.update(np.unique(values[inside]).tolist())
    return found

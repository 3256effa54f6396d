"""The memory that a launch was given: exact extents of tensors, wherever arguments hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hopwell.emulator.capture import Launch
from hopwell.emulator.capture.memory import buffers_of, extents_of, live_extents, with_memory


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


@dataclass
class Holder:
    tensor: torch.Tensor
    number: int = 3


def test_an_extent_ends_with_the_last_element() -> None:
    x = torch.zeros(4, 6, dtype=torch.bfloat16)
    ((name, start, end, _),) = extents_of("x", x[1:3, 2:5])
    assert (name, start, end) == ("x", x.data_ptr() + 16, x.data_ptr() + 34)
    ((_, start, end, _),) = extents_of("y", np.arange(10, dtype=np.float32)[::-1])
    assert end - start == 40
    assert list(extents_of("none", torch.zeros(0))) == []


def test_tensors_are_found_in_containers() -> None:
    a, b, c, d, e = (torch.zeros(1) for _ in range(5))
    value = {"k": [a, (b,)], "pair": Pair(c, Holder(d)), "text": "x", "array": e.numpy()}
    assert [extent.name for extent in extents_of("arg", value)] == [
        "arg.k[0]",
        "arg.k[1][0]",
        "arg.pair.left",
        "arg.pair.right.tensor",
        "arg.array",
    ]


def test_overlapping_tensors_are_one_buffer_and_others_stay_apart() -> None:
    packed = torch.zeros(5, 3, 8)
    out = torch.zeros(4)
    named = {"out": out, "q": packed[:, 0], "k": packed[:, 1], "again": out}
    extents = [extent for name, value in named.items() for extent in extents_of(name, value)]
    first, second = buffers_of(extents)
    assert (first.name, first.address, first.size) == ("out, again", out.data_ptr(), 16)
    assert (second.name, second.address) == ("q, k", packed.data_ptr())
    assert second.size == (5 * 3 - 1) * 8 * 4


def test_neighbours_in_memory_do_not_become_one() -> None:
    whole = torch.zeros(8)
    extents = [*extents_of("a", whole[:4]), *extents_of("b", whole[4:])]
    assert [(entry.name, entry.size) for entry in buffers_of(extents)] == [("a", 16), ("b", 16)]


def test_buffers_share_the_tensors_memory() -> None:
    x = torch.zeros(4)
    (buffer,) = buffers_of(list(extents_of("x", x)))
    buffer.array.view(np.float32)[2] = 5
    assert x[2] == 5


def test_a_bare_address_is_traced_to_a_live_tensor() -> None:
    x = torch.zeros(100, dtype=torch.int64)
    (found,) = live_extents([x.data_ptr() + 80, 12345])
    assert (found.start, found.end) == (x.data_ptr(), x.data_ptr() + 800)
    assert list(live_extents([])) == []


PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry indirect(.param .u64 indirect_list, .param .u64 indirect_bare) { ret; }
"""


def test_memory_behind_arrays_of_addresses_and_bare_addresses_is_given_too() -> None:
    listed, bare, other = torch.zeros(6), torch.zeros(7), torch.zeros(8)
    addresses = torch.tensor([listed.data_ptr() + 4, 5, -1])
    launch = Launch.of(
        PTX, "indirect", (1, 1, 1), (32, 1, 1), [addresses.data_ptr(), bare.data_ptr()]
    )
    launch = with_memory(launch, extents_of("addresses", addresses))
    sizes = {buffer.address: buffer.size for buffer in launch.buffers}
    assert sizes == {addresses.data_ptr(): 24, listed.data_ptr(): 24, bare.data_ptr(): 28}
    assert launch.buffer_at(other.data_ptr()) is None
    assert launch.buffers[0].name == "addresses"

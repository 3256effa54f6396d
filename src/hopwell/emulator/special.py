"""Special registers (PTX ISA 10): what a warp can ask about itself and its launch."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hopwell.errors import HopwellError

if TYPE_CHECKING:
    from hopwell.emulator.warp import Warp

DYNAMIC_REGISTERS: Final = frozenset(
    ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
)
"""Registers whose value changes while a warp lives."""

_WIDE: Final = frozenset(("%gridid", "%clock64", "%globaltimer", "%current_graph_exec"))
_LANE_MASKS: Final = {
    "%lanemask_eq": lambda lane: 1 << lane,
    "%lanemask_le": lambda lane: (2 << lane) - 1,
    "%lanemask_lt": lambda lane: (1 << lane) - 1,
    "%lanemask_ge": lambda lane: 0xFFFF_FFFF & ~((1 << lane) - 1),
    "%lanemask_gt": lambda lane: 0xFFFF_FFFF & ~((2 << lane) - 1),
}


_SHARED: Final = "@shared"


def shared_address(address: int, bits: int) -> str:
    """The name of a pseudo register: a shared address with the CTA's rank in its cluster."""
    return f"{_SHARED}{bits}.{address}"


class UnknownSpecialRegister(HopwellError, NotImplementedError):
    """A program reads a special register that the emulator does not model."""


def special_type(name: str) -> str:
    """The type of a special register."""
    if name == "%is_explicit_cluster":
        return "pred"
    if name.startswith(_SHARED):
        return f"b{name[len(_SHARED) :].partition('.')[0]}"
    return "b64" if name in _WIDE else "b32"


def special_value(name: str, warp: "Warp") -> NDArray[Any] | int | bool:
    """The value, or 32 values, of a special register that is constant for ``warp``."""
    cta, launch = warp.cta, warp.cta.machine.launch
    base, _, component = name.partition(".")
    if base.startswith(_SHARED):
        return int(component) + cta.rank_bits
    if base in _LANE_MASKS:
        return np.array([_LANE_MASKS[base](lane) for lane in range(32)], np.uint32)
    if base == "%tid":
        return warp.thread_index["xyzw".index(component)]
    triples = {
        "%ntid": launch.block,
        "%ctaid": cta.index,
        "%nctaid": launch.grid,
        "%clusterid": tuple(i // n for i, n in zip(cta.index, launch.cluster, strict=True)),
        "%nclusterid": tuple(i // n for i, n in zip(launch.grid, launch.cluster, strict=True)),
        "%cluster_ctaid": tuple(i % n for i, n in zip(cta.index, launch.cluster, strict=True)),
        "%cluster_nctaid": launch.cluster,
    }
    if base in triples:
        return (*triples[base], 0)["xyzw".index(component)]
    scalars: dict[str, Any] = {
        "%laneid": np.arange(32, dtype=np.uint32),
        "%warpid": warp.index,
        "%nwarpid": len(cta.warps),
        "%smid": cta.residence,
        "%nsmid": cta.machine.resident,
        "%gridid": 1,
        "%cluster_ctarank": cta.rank,
        "%cluster_nctarank": int(np.prod(launch.cluster)),
        "%is_explicit_cluster": int(np.prod(launch.cluster)) > 1,
        "%dynamic_smem_size": launch.shared_bytes,
        "%total_smem_size": cta.program.static_shared + launch.shared_bytes,
        "%aggr_smem_size": cta.program.static_shared + launch.shared_bytes + 1024,
    }
    if base in scalars:
        return scalars[base]
    raise UnknownSpecialRegister(
        "Special register",
        expected=f"one of {', '.join(sorted([*scalars, *triples, *_LANE_MASKS, '%tid']))}",
        actual=name,
        consequence="The program cannot run.",
    )

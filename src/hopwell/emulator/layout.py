"""Where the variables of a module and the address windows lie.

Generic addresses are 64 bits. Global memory keeps the addresses of the host arrays that stand
for it (below 2**48), and the windows of the other spaces lie above it.
"""

from typing import Final, NamedTuple

from hopwell.ptx import nodes

SHARED_BASE: Final = 1024
"""First address of a CTA's own shared memory: the system keeps the first KiB on sm_90."""

RANK_SHIFT: Final = 24
"""A shared::cluster address holds the CTA's rank in the cluster from this bit on."""

SHARED_WINDOW: Final = 1 << 56
LOCAL_WINDOW: Final = 2 << 56
PARAMETER_WINDOW: Final = 3 << 56
CONSTANT_WINDOW: Final = 4 << 56
GLOBAL_WINDOW: Final = 5 << 56
"""Variables of the module itself (``.global``); arrays of the host lie where they are."""

WINDOW_MASK: Final = (1 << 56) - 1


class Place(NamedTuple):
    """A variable: its space, its address inside that space, its size in bytes."""

    space: str
    address: int
    size: int


def _body_variables(block: nodes.Block) -> list[nodes.Variable]:
    found = []
    for statement in block.statements:
        if isinstance(statement, nodes.Variable):
            found.append(statement)
        elif isinstance(statement, nodes.Block):
            found += _body_variables(statement)
    return found


def layout_of_module(
    module: nodes.Module, function: nodes.Function
) -> tuple[dict[str, Place], int]:
    """The place of each module and shared variable, and the bytes of static shared memory.

    Variables of fixed size come first in shared memory, in order; all ``.extern .shared`` arrays
    without extent begin together behind them, where the launch's dynamic shared memory lies.
    """
    variables = list(module.variables)
    if function.body is not None:
        variables += [v for v in _body_variables(function.body) if v.space == "shared"]
    symbols: dict[str, Place] = {}
    ends = {"shared": 0, "const": 0, "global": 0}
    windows = {"shared": SHARED_BASE, "const": 0, "global": GLOBAL_WINDOW}
    dynamic = [v for v in variables if v.space == "shared" and not v.size_bytes]
    for variable in variables:
        space = variable.space
        if space not in ends or variable in dynamic:
            continue
        start = ends[space] + -ends[space] % variable.aligned_bytes
        ends[space] = start + variable.size_bytes
        symbols[variable.name] = Place(space, windows[space] + start, variable.size_bytes)
    alignment = max((v.aligned_bytes for v in dynamic), default=1)
    static = ends["shared"] + -(ends["shared"] + SHARED_BASE) % alignment
    for variable in dynamic:
        symbols[variable.name] = Place("shared", SHARED_BASE + static, 0)
    return symbols, static

"""All snippets, by name."""

from __future__ import annotations

import functools

from tests.emulator.snippets import (
    barriers,
    conversions,
    copies,
    edges,
    floats,
    integers,
    matrices,
    memory,
    tensor_copies,
    warp_wide,
    warpgroup,
)
from tests.emulator.snippets.snippet import Snippet

FAMILIES = (
    integers,
    floats,
    conversions,
    warp_wide,
    memory,
    barriers,
    matrices,
    warpgroup,
    copies,
    edges,
    tensor_copies,
)


@functools.cache
def library() -> dict[str, Snippet]:
    """Every snippet by its name, in the order of the families."""
    found: dict[str, Snippet] = {}
    for family in FAMILIES:
        for snippet in family.snippets():
            assert snippet.name not in found, snippet.name
            found[snippet.name] = snippet
    return found

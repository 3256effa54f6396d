"""Names for ranges of shared memory and for barriers, given by whoever wrote the kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hopwell.emulator.hazards.shadow import Named


@dataclass(frozen=True)
class Names:
    """Optional annotations; without them reports give byte offsets.

    Attributes:
        ranges: name to (first byte, bytes), counted from the start of dynamic shared memory.
            Ranges may overlap where storage is shared. A range of several mbarriers names them
            ``name[0]``, ``name[1]``, ...
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def named(self, static: int) -> list[Named]:
        """The ranges as the checker takes them; ``static`` bytes of variables come before."""
        return [
            Named(static + first, static + first + size, name)
            for name, (first, size) in self.ranges.items()
        ]

    def barrier(self, rank: int, offset: int) -> str:
        """What reports call the mbarrier at ``offset`` of dynamic shared memory."""
        for name, (first, size) in self.ranges.items():
            if first <= offset < first + size:
                named = name if size <= 8 else f"{name}[{(offset - first) // 8}]"
                break
        else:
            named = f"mbarrier at shared+{offset:#x}"
        return f"{named} of cluster rank {rank}" if rank else named

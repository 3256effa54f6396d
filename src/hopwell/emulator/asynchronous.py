"""Work that completes on its own: copies of the bulk engine and of ``cp.async``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopwell.emulator.lanes import FULL, Lanes

if TYPE_CHECKING:
    from hopwell.emulator.decode import DecodedOp
    from hopwell.emulator.machine import Cta
    from hopwell.emulator.mbarrier import Mbarrier
    from hopwell.emulator.warp import Warp


@dataclass(eq=False)
class Copy:
    """A copy in flight.

    It happens in two steps, as the engine's own do: ``fetch`` reads the source, ``store`` writes
    the destination. A bulk group's ``.read`` completion stands for the first alone.

    Attributes:
        handle: the checker's record of it.
        barrier: the mbarrier that it completes, with ``bytes`` of its transaction count.
        issued_phase: the phase of that barrier when the copy was issued.
        payload: what is copied, in words: "q (0,128,0)".
    """

    warp: "Warp"
    op: "DecodedOp"
    kind: str
    handle: Any
    fetch: Callable[[], Any]
    store: Callable[[Any], None]
    barrier: "Mbarrier | None" = None
    bytes: int = 0
    issued_phase: int = 0
    destination: "Cta | None" = None
    lanes: Lanes = FULL
    fetched: bool = False
    landed: bool = False
    data: Any = None
    started: int = 0
    payload: str = ""

    def read(self) -> None:
        """Read the source, once."""
        if not self.fetched:
            self.data, self.fetched = self.fetch(), True

    def land(self) -> None:
        """Read if that is still to do, and write the destination; the barrier is the machine's."""
        if not self.landed:
            self.read()
            self.store(self.data)
            self.data, self.landed = None, True

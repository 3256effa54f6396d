"""The Hopper forward plan: the only input to the forward kernel's code (spec 0x02 to 0x05).

A plan is frozen, validates itself and *is* the compile key. It holds no extents: batch, lengths,
head counts and the grid belong to :class:`hopwell.hopper.launch.Launch`.
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

import enum
from math import ceil
from typing import Any, NamedTuple

from hopwell.errors import PlanError
from hopwell.frozen import record

WARP = 32
WARPGROUP = 128
WARPS_PER_WARPGROUP = WARPGROUP // WARP
MBARRIER_BYTES = 8
#: 128-byte swizzle repeats every 8 rows of 128 bytes; a tile must start on that period.
TILE_ALIGNMENT = 1024
#: Compute capability 9.0 (CUDA Hopper tuning guide; spec 0x02 "The Hopper Resource Envelope").
MAX_SHARED_BYTES = 227 * 1024
SHARED_BYTES_PER_SM = 228 * 1024
RESERVED_SHARED_BYTES = 1024
REGISTERS_PER_SM = 65536
MAX_REGISTERS_PER_THREAD = 255
#: Rows of one warpgroup MMA (PTX ISA, wgmma: M is always 64).
MMA_M = 64
#: K elements of one 16-bit warpgroup MMA.
MMA_K = 16
#: Registers are handed out in multiples of eight (PTX ISA, setmaxnreg).
REGISTER_UNIT = 8

DTYPES = {"bfloat16": 2, "float16": 2}
#: Short names, for the names of plans and for tables.
SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}

#: Register targets (producer, consumer) by number of MMA warpgroups; spec 0x02's table.
#: Their sum over the CTA may not pass the pool that the launch owns.
REGISTER_TARGETS = {1: (56, 256), 2: (24, 240), 3: (32, 160)}


class Role(enum.Enum):
    """What a warpgroup does. The producer is physical warpgroup 0, MMA warpgroups follow."""

    PRODUCER = "producer"
    MMA = "mma"


class MBarrier(enum.Enum):
    """Every mbarrier by the event it announces."""

    Q_FULL = "q_full"
    Q_EMPTY = "q_empty"
    K_FULL = "k_full"
    K_EMPTY = "k_empty"
    V_FULL = "v_full"
    V_EMPTY = "v_empty"


class NamedBarrier(enum.IntEnum):
    """Every named barrier by the event it announces; the value is the hardware id (0 to 15)."""

    CTA = 0  # reserved by barrier.sync 0, the CTA-wide synchronisation
    TURN_1 = 1  # ping-pong ring: MMA warpgroup 1 may issue (spec 0x04)
    TURN_2 = 2
    TURN_3 = 3
    OUTPUT_1 = 4  # MMA warpgroup 1's stage of O is free again; then: its rows are written
    OUTPUT_2 = 5
    OUTPUT_3 = 6
    P_1 = 7  # MMA warpgroup 1 has written its rows of P to shared memory
    P_2 = 8
    P_3 = 9


class PSource(str, enum.Enum):
    """Where the PV product reads P from."""

    REGISTERS = "registers"
    SHARED = "shared"


class Rescale(str, enum.Enum):
    """When O moves to the new reference maximum (spec 0x05, "Rescale Before Or After PV")."""

    BEFORE = "before"  # after QK was issued, before PV is issued
    AFTER = "after"  # once PV has completed


class TileOrder(str, enum.Enum):
    """The order in which the persistent loop visits output tiles."""

    LEXICAL = "lexical"  # query block fastest, then head, then batch: neighbours share K and V
    LONGEST_FIRST = "longest_first"  # last query block of all heads first, boustrophedon over CTAs


class OutputStorage(str, enum.Enum):
    """Where O is staged for its tensor store."""

    OWN = "own"
    ALIAS_Q = "alias_q"  # Q's rows; Q is released only when the store has read them


class Region(NamedTuple):
    """One tenant of shared memory. ``live`` names the events that open and close its lifetime."""

    name: str
    offset: int
    bytes: int
    live: tuple[str, str]

    @property
    def end(self) -> int:
        return self.offset + self.bytes


class MBarrierSpec(NamedTuple):
    """``count`` barriers (one per stage), each completed by ``arrivals`` arrivals.

    ``transaction_bytes`` is what the arming arrival expects of the copy engine (0: none).
    """

    name: MBarrier
    count: int  # type: ignore[assignment]  # not the method of a tuple
    arrivals: int
    transaction_bytes: int


def _align(value: int, unit: int) -> int:
    return ceil(value / unit) * unit


@record(frozen=True)
class HopperForwardPlan:
    """How the forward runs on SM90. Every field changes the generated code.

    Head dimensions are buckets: a smaller head dimension runs in the bucket above it, its missing
    columns filled with zeros by the copy engine. Raises :class:`PlanError` when inconsistent.
    """

    dtype: str
    head_dim: int
    head_dim_v: int
    causal: bool
    tile_m: int
    tile_n: int
    stages: int = 2
    q_stages: int = 1
    overlap: bool = True
    ping_pong: bool = True
    p_source: PSource = PSource.REGISTERS
    rescale: Rescale = Rescale.AFTER
    tile_order: TileOrder = TileOrder.LEXICAL
    output_storage: OutputStorage = OutputStorage.OWN
    producer_registers: int = 24
    consumer_registers: int = 240

    # -- roles -----------------------------------------------------------------------------

    @property
    def arch(self) -> str:
        return "sm_90a"

    @property
    def kernel_module(self) -> str:
        """The module whose ``trace(plan)`` gives the kernel."""
        return "hopwell.hopper.forward"

    @property
    def expectation_module(self) -> str | None:
        """The module whose ``expected(plan)`` says what the compiled kernel must hold."""
        return "hopwell.hopper.expect"

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype]

    @property
    def mma_warpgroups(self) -> int:
        return self.tile_m // MMA_M

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.mma_warpgroups)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Role of each physical warpgroup."""
        return (Role.PRODUCER,) + (Role.MMA,) * self.mma_warpgroups

    @property
    def launch_registers(self) -> int:
        """Registers per thread at launch: the register file shared out to one resident CTA."""
        per_thread = REGISTERS_PER_SM // self.threads // REGISTER_UNIT * REGISTER_UNIT
        return min(per_thread, MAX_REGISTERS_PER_THREAD)

    @property
    def register_pool(self) -> int:
        """Registers that the role targets ask for, summed over the CTA."""
        return WARPGROUP * (self.producer_registers + self.mma_warpgroups * self.consumer_registers)

    # -- tiles and pipelines ---------------------------------------------------------------

    @property
    def q_bytes(self) -> int:
        return self.tile_m * self.head_dim * self.element_bytes

    @property
    def k_bytes(self) -> int:
        return self.tile_n * self.head_dim * self.element_bytes

    @property
    def v_bytes(self) -> int:
        return self.tile_n * self.head_dim_v * self.element_bytes

    @property
    def o_bytes(self) -> int:
        return self.tile_m * self.head_dim_v * self.element_bytes

    @property
    def p_bytes(self) -> int:
        if self.p_source is PSource.REGISTERS:
            return 0
        return self.tile_m * self.tile_n * self.element_bytes

    @property
    def mbarriers(self) -> tuple[MBarrierSpec, ...]:
        """Full barriers: one arming arrival plus the copy's bytes. Empty: one arrival per MMA warp.

        2 * q_stages + 4 * stages in all (spec 0x02, "Full And Empty Are Different Barrier Facts").
        Where O is staged in Q's rows, the one warp that stores them is the last reader: it alone
        releases Q for its warpgroup.
        """
        warps = WARPS_PER_WARPGROUP * self.mma_warpgroups
        q_readers = warps if self.output_storage is OutputStorage.OWN else self.mma_warpgroups
        return (
            MBarrierSpec(MBarrier.Q_FULL, self.q_stages, 1, self.q_bytes),
            MBarrierSpec(MBarrier.Q_EMPTY, self.q_stages, q_readers, 0),
            MBarrierSpec(MBarrier.K_FULL, self.stages, 1, self.k_bytes),
            MBarrierSpec(MBarrier.K_EMPTY, self.stages, warps, 0),
            MBarrierSpec(MBarrier.V_FULL, self.stages, 1, self.v_bytes),
            MBarrierSpec(MBarrier.V_EMPTY, self.stages, warps, 0),
        )

    def participants(self, barrier: NamedBarrier) -> int:
        """Threads that complete a generation of ``barrier`` or of its family's members."""
        return self.named_barriers[barrier]

    @property
    def named_barriers(self) -> dict[NamedBarrier, int]:
        """Participants of every named barrier that the kernel uses."""
        used: dict[NamedBarrier, int] = {NamedBarrier.CTA: self.threads}
        for group in range(self.mma_warpgroups):
            if self.ping_pong:
                # A turn pairs the waiting group with the one that passes it (spec 0x04).
                used[NamedBarrier(NamedBarrier.TURN_1 + group)] = 2 * WARPGROUP
            used[NamedBarrier(NamedBarrier.OUTPUT_1 + group)] = WARPGROUP
            if self.p_source is PSource.SHARED:
                used[NamedBarrier(NamedBarrier.P_1 + group)] = WARPGROUP
        return used

    # -- shared memory ---------------------------------------------------------------------

    @property
    def shared_memory(self) -> tuple[Region, ...]:
        """The shared-memory map, in address order, with the events that bound each lifetime."""
        regions: list[Region] = []
        cursor = 0

        def place(name: str, size: int, live: tuple[str, str]) -> None:
            nonlocal cursor
            cursor = _align(cursor, TILE_ALIGNMENT)
            regions.append(Region(name, cursor, size, live))
            cursor += size

        place("q", self.q_stages * self.q_bytes, ("q_full", "q_empty"))
        place("k", self.stages * self.k_bytes, ("k_full", "k_empty"))
        place("v", self.stages * self.v_bytes, ("v_full", "v_empty"))
        if self.p_source is PSource.SHARED:
            place("p", self.p_bytes, ("softmax", "pv_complete"))
        if self.output_storage is OutputStorage.OWN:
            place("o", self.o_bytes, ("epilogue", "store_read"))
        else:
            regions.append(Region("o", 0, self.o_bytes, ("last_qk_complete", "store_read")))
        for spec in self.mbarriers:
            regions.append(
                Region(spec.name.value, cursor, spec.count * MBARRIER_BYTES, ("start", "exit"))
            )
            cursor += spec.count * MBARRIER_BYTES
        return tuple(regions)

    def region(self, name: str) -> Region:
        """The tenant called ``name``; its lifetime is in the region."""
        return next(region for region in self.shared_memory if region.name == name)

    @property
    def shared_bytes_raw(self) -> int:
        """Payload and barriers alone, without padding."""
        tenants = [r.bytes for r in self.shared_memory if r.name != "o"]
        own = self.o_bytes if self.output_storage is OutputStorage.OWN else 0
        return sum(tenants) + own

    @property
    def shared_bytes(self) -> int:
        """What the launch asks for: the map's end."""
        return max(region.end for region in self.shared_memory)

    @property
    def ctas_per_sm(self) -> int:
        """Resident CTAs by shared memory and by registers."""
        by_shared = SHARED_BYTES_PER_SM // (_align(self.shared_bytes, 128) + RESERVED_SHARED_BYTES)
        return min(by_shared, REGISTERS_PER_SM // (self.threads * self.launch_registers))

    # -- arithmetic ------------------------------------------------------------------------

    @property
    def qk_steps(self) -> int:
        """K steps of one QK product."""
        return self.head_dim // MMA_K

    @property
    def pv_steps(self) -> int:
        """K steps of one PV product."""
        return self.tile_n // MMA_K

    # -- validation ------------------------------------------------------------------------

    def __post_init__(self) -> None:
        for name, kind in _FIELD_TYPES.items():
            value = getattr(self, name)
            if issubclass(kind, enum.Enum):
                # Enums may arrive as their values, from JSON or the command line.
                names = [member.value for member in kind]
                _check(value in names, name, f"one of {names}", value)
                object.__setattr__(self, name, kind(value))
            else:
                # Exactly: 128.0 and True are equal to ints, and would be other text in the key.
                _check(type(value) is kind, name, f"of type {kind.__name__}", repr(value))
        _check(self.dtype in DTYPES, "dtype", f"one of {sorted(DTYPES)}", self.dtype)
        for name in ("head_dim", "head_dim_v"):
            value = getattr(self, name)
            _check(
                MMA_K <= value <= 256 and value % 32 == 0, name, "a multiple of 32 up to 256", value
            )
        _check(
            self.tile_m in (64, 128, 192),
            "tile_m",
            "64, 128 or 192 (one to three MMA warpgroups)",
            self.tile_m,
        )
        _check(
            16 <= self.tile_n <= 256 and self.tile_n % MMA_K == 0,
            "tile_n",
            "a multiple of 16 up to 256",
            self.tile_n,
        )
        _check(1 <= self.stages <= 8, "stages", "1 to 8", self.stages)
        _check(1 <= self.q_stages <= 2, "q_stages", "1 or 2", self.q_stages)
        _check(
            not self.overlap or self.stages >= 2,
            "stages",
            "at least 2 when two key blocks are in flight",
            self.stages,
        )
        admitted = ping_pong_admitted(self.mma_warpgroups, self.overlap, self.head_dim)
        _check(
            not self.ping_pong or admitted,
            "ping_pong",
            "False, by the admission rule of spec 0x04",
            self.ping_pong,
        )
        _check(
            self.overlap or self.rescale is Rescale.BEFORE,
            "rescale",
            "before: without overlap no product is pending when O is rescaled",
            self.rescale.value,
        )
        for name in ("producer_registers", "consumer_registers"):
            value = getattr(self, name)
            _check(
                24 <= value <= 256 and value % REGISTER_UNIT == 0,
                name,
                "a multiple of 8 in [24, 256]",
                value,
            )
        pool = self.launch_registers * self.threads
        _check(
            self.register_pool <= pool,
            "register targets",
            f"at most the {pool} registers owned at launch",
            self.register_pool,
        )
        _check(
            self.output_storage is OutputStorage.OWN or self.o_bytes <= self.q_bytes,
            "output_storage",
            f"O's {self.o_bytes} bytes inside Q's {self.q_bytes}",
            self.output_storage.value,
        )
        _check(
            self.shared_bytes <= MAX_SHARED_BYTES,
            "shared memory",
            f"at most {MAX_SHARED_BYTES} bytes",
            self.shared_bytes,
        )

    # -- identity --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Readable and unique: two plans with one name are equal."""
        parts = [
            "hopwell_forward_sm90",
            SHORT_DTYPES[self.dtype],
            f"d{self.head_dim}x{self.head_dim_v}",
            "causal" if self.causal else "full",
            f"m{self.tile_m}n{self.tile_n}s{self.stages}q{self.q_stages}",
            "overlap" if self.overlap else "serial",
            "pingpong" if self.ping_pong else "free",
            {"registers": "prs", "shared": "pss"}[self.p_source.value],
            {"before": "rb", "after": "ra"}[self.rescale.value],
            {"lexical": "lex", "longest_first": "lpt"}[self.tile_order.value],
            {"own": "oown", "alias_q": "oq"}[self.output_storage.value],
            f"r{self.producer_registers}x{self.consumer_registers}",
        ]
        return "_".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Canonical, JSON-ready; :meth:`from_json` inverts it."""
        return {
            key: value.value if isinstance(value, enum.Enum) else value
            for key, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "HopperForwardPlan":
        known = list(_FIELD_TYPES)
        _check(isinstance(data, dict), "plan", f"an object of {known}", type(data).__name__)
        _check(set(data) == set(known), "plan fields", known, list(data))
        return cls(**data)


_FIELD_TYPES: dict[str, type] = HopperForwardPlan.__annotations__


def _check(holds: bool, what: str, expected: object, actual: object) -> None:
    if not holds:
        raise PlanError(
            what, expected=expected, actual=actual, consequence="The plan cannot be compiled."
        )


def ping_pong_admitted(mma_warpgroups: int, overlap: bool, head_dim: int) -> bool:
    """Whether the named-barrier ring may order the warpgroups (spec 0x04's admission table)."""
    if overlap:
        return mma_warpgroups >= 2 and head_dim <= 128
    return mma_warpgroups == 2


# -- what ships ----------------------------------------------------------------------------

#: (head_dim, head_dim_v) buckets, smallest first: a problem runs in the first that holds it.
BUCKETS = ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256))

#: Tile choices per bucket; causal ones may differ.
_TILES: dict[tuple[int, int], dict[str, Any]] = {
    (64, 64): {"tile_m": 192, "tile_n": 128},
    (96, 96): {"tile_m": 128, "tile_n": 128},
    (128, 128): {"tile_m": 128, "tile_n": 128},
    (192, 128): {"tile_m": 128, "tile_n": 112},
    (192, 192): {"tile_m": 128, "tile_n": 96},
    (256, 256): {"tile_m": 128, "tile_n": 80},
}


def bucket_of(head_dim: int, head_dim_v: int) -> tuple[int, int] | None:
    """The smallest shipped bucket that holds both head dimensions, or None."""
    for bucket in BUCKETS:
        if head_dim <= bucket[0] and head_dim_v <= bucket[1]:
            return bucket
    return None


def forward_plan(dtype: str, bucket: tuple[int, int], causal: bool) -> HopperForwardPlan:
    """The shipped plan of a bucket."""
    head_dim, head_dim_v = bucket
    tiles = dict(_TILES[bucket])
    groups = tiles["tile_m"] // MMA_M
    producer, consumer = REGISTER_TARGETS[groups]
    return HopperForwardPlan(
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        causal=causal,
        ping_pong=ping_pong_admitted(groups, True, head_dim),
        rescale=Rescale.BEFORE if head_dim_v > 128 else Rescale.AFTER,
        tile_order=TileOrder.LONGEST_FIRST if causal else TileOrder.LEXICAL,
        q_stages=2 if head_dim <= 128 else 1,
        output_storage=OutputStorage.OWN if head_dim <= 128 else OutputStorage.ALIAS_Q,
        producer_registers=producer,
        consumer_registers=consumer,
        **tiles,
    )


def shipped_forward_plans() -> tuple[HopperForwardPlan, ...]:
    """Every forward plan that ships: what ``hopwell plans --list`` shows and the wheel carries."""
    return tuple(
        forward_plan(dtype, bucket, causal)
        for bucket in BUCKETS
        for dtype in DTYPES
        for causal in (False, True)
    )

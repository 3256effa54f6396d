"""Why each mutant that nothing killed lives, one by one: names as in the records.

A mutant's name is its operator, the number of the instruction in the kernel, and which of the
operator's changes of it. A survivor that is not here fails the tests, and so does a name here that
does not survive.
"""

from __future__ import annotations

from dataclasses import dataclass

EQUIVALENT = "equivalent"
NOT_MODELLED = "not modelled"


@dataclass(frozen=True)
class Reason:
    """Why mutants survive.

    Attributes:
        kind: ``EQUIVALENT``: as right as the original, under every schedule. ``NOT_MODELLED``: the
            emulator does not hold programs to what they break; a named gap.
        text: the argument, for readers.
    """

    kind: str
    text: str


REASONS: dict[str, Reason] = {
    "initialised by all lanes": Reason(
        NOT_MODELLED,
        "All lanes give the barrier the same state in one instruction, before anybody uses it. PTX "
        "leaves it undefined to initialise a valid mbarrier again; the emulator lets it pass.",
    ),
    "fence before the CTA's barrier": Reason(
        NOT_MODELLED,
        "bar.sync tells every thread of the CTA of the initialisation, and there is no cluster "
        "that the fence could be for. Whether the unit that counts a copy's bytes needs more than "
        "bar.sync PTX does not say; what Triton compiles for one CTA has no fence either, and the "
        "emulator asks for none.",
    ),
    "each warp's own rows of P": Reason(
        NOT_MODELLED,
        "P goes through shared memory, and each warp reads by wgmma the 16 rows that it wrote and "
        "fenced itself, so that the barrier of its warpgroup adds nothing, nor does it matter "
        "whom it meets there. PTX does not say which warp's part of a wgmma reads which rows of "
        "an A in shared memory; the emulator takes them to be those of its accumulators.",
    ),
    "covered by another fence": Reason(
        EQUIVALENT,
        "Since the fence before the product of Q and K nothing but that product has run when the "
        "one of P and V starts; and the loop over blocks that cross the diagonal runs at most once "
        "per tile, so that nothing has read the scores that its product overwrites. One fence "
        "covers the other.",
    ),
    "tail of the producer": Reason(
        EQUIVALENT,
        "The last waits of the producer keep its CTA there until every stage is released. Without "
        "a cluster no other CTA arrives on its barriers, and its shared memory lives until its "
        "last warp exits; after these waits the producer does nothing more.",
    ),
    "a block that is passed over": Reason(
        EQUIVALENT,
        "A warpgroup releases, unread, the stages of a block that it passes over; without the "
        "wait it must not do so before the other group has released the stage's earlier tenant. "
        "For K it has just waited for what the producer loads only after that block of K: Q of "
        "the tile, or V of the block before. For V it has taken its turn: inside a tile the other "
        "group gives it after that release. The tile before both are done with, because Q has one "
        "stage; or because who passes over has no rows, and so the second turn.",
    ),
    "nothing is left to wait for": Reason(
        EQUIVALENT,
        "Who stores a tile waits for the store to have read before it lets Q's stage go, so that "
        "no group is open when the kernel ends.",
    ),
    "waits for more": Reason(
        EQUIVALENT,
        "A bulk group that is complete has been read: waiting for its writes too costs time alone.",
    ),
    "a number that is free": Reason(
        EQUIVALENT,
        "All who meet at this named barrier take the other number together, and nobody else waits "
        "there before they are through.",
    ),
    "the other group begins": Reason(
        EQUIVALENT,
        "The arrival before the first turn decides which of two warpgroups has it. They take the "
        "same number of turns, whoever begins.",
    ),
    "a stage that nobody has used": Reason(
        EQUIVALENT,
        "Each CTA has one tile: the producer's first waits, for K and for Q, look for the phase "
        "before the first of a fresh barrier, and always pass, at this barrier or at the next.",
    ),
    "the value that it holds": Reason(
        EQUIVALENT,
        "The parity is always this one: each CTA has one tile, and the instruction runs once in "
        "it, for the first use of its barrier.",
    ),
    "nobody fills Q again": Reason(
        EQUIVALENT,
        "Each CTA has one tile: nobody waits for the stage of Q to be empty, however many arrivals "
        "that takes. Given to the barrier beside it, that of K, they come after the last wait for "
        "K that they could disturb: every K is there, and each group gives an even number.",
    ),
    "each group's own rows": Reason(
        EQUIVALENT,
        "The output takes the place of Q, each warpgroup's rows over its own rows of Q, which it "
        "has read when its last product is complete. The barrier would matter if one group wrote "
        "where the other reads.",
    ),
    "a load early": Reason(
        EQUIVALENT,
        "Before every second block of K the producer waits for the release of the block before "
        "(its stage's neighbour) instead of the one before that, which is more than is needed; the "
        "next block of K needs that release, and has it. The barrier behind the last one, which "
        "it looks at instead, is that of a block of V that is older, or comes.",
    ),
}

#: Subject, reason, mutants.
SURVIVORS: dict[str, dict[str, tuple[str, ...]]] = {
    "own-causal": {
        "fence before the CTA's barrier": ("fence removed@43.0",),
        "initialised by all lanes": ("election removed@26.0",),
        "covered by another fence": (
            "fence removed@1273.0",
            "fence removed@1338.0",
            "fence removed@2162.0",
        ),
        "tail of the producer": (
            "wait removed@348.0",
            "wait removed@359.0",
            "wait removed@369.0",
            "wait removed@380.0",
            "wait removed@384.0",
            "wait removed@388.0",
        ),
        "a block that is passed over": ("wait removed@468.0",),
        "waits for more": (
            "completion changed@2902.0",
            "completion changed@3006.0",
        ),
        "a number that is free": ("named barrier changed@44.0",),
        "the other group begins": ("named barrier changed@395.0",),
    },
    "own-full": {
        "fence before the CTA's barrier": ("fence removed@43.0",),
        "initialised by all lanes": ("election removed@26.0",),
        "covered by another fence": ("fence removed@1282.0",),
        "tail of the producer": (
            "wait removed@338.0",
            "wait removed@349.0",
            "wait removed@359.0",
            "wait removed@370.0",
            "wait removed@374.0",
            "wait removed@378.0",
        ),
        "a block that is passed over": (
            "wait removed@467.0",
            "wait removed@483.0",
        ),
        "waits for more": (
            "completion changed@1953.0",
            "completion changed@2050.0",
        ),
        "a number that is free": ("named barrier changed@44.0",),
        "the other group begins": ("named barrier changed@385.0",),
    },
    "own-p-shared": {
        "fence before the CTA's barrier": ("fence removed@42.0",),
        "initialised by all lanes": ("election removed@26.0",),
        "covered by another fence": (
            "fence removed@1283.0",
            "fence removed@1345.0",
            "fence removed@2224.0",
        ),
        "tail of the producer": (
            "wait removed@331.0",
            "wait removed@341.0",
            "wait removed@352.0",
            "wait removed@356.0",
            "wait removed@360.0",
        ),
        "a block that is passed over": (
            "wait removed@437.0",
            "wait removed@453.0",
        ),
        "nothing is left to wait for": (
            "wait removed@3132.0",
            "group count changed@3132.0",
        ),
        "each warp's own rows of P": (
            "barrier removed@1173.0",
            "barrier removed@2068.0",
            "barrier removed@2793.0",
            "named barrier changed@1173.0",
            "named barrier changed@2068.0",
            "named barrier changed@2793.0",
        ),
        "a load early": ("other mbarrier@209.0",),
        "waits for more": (
            "completion changed@3112.0",
            "completion changed@3132.0",
        ),
        "a number that is free": (
            "named barrier changed@43.0",
            "named barrier changed@3101.0",
        ),
        "the other group begins": ("named barrier changed@367.0",),
    },
    "fa4-causal": {
        "fence before the CTA's barrier": ("fence removed@78.0",),
        "initialised by all lanes": (
            "election removed@35.0",
            "election removed@42.0",
            "election removed@50.0",
            "election removed@58.0",
            "election removed@64.0",
            "election removed@71.0",
        ),
        "covered by another fence": (
            "fence removed@1155.0",
            "fence removed@1204.0",
            "fence removed@1981.0",
        ),
        "tail of the producer": (
            "wait removed@317.0",
            "wait removed@328.0",
        ),
        "a stage that nobody has used": (
            "wait removed@157.0",
            "wait removed@183.0",
            "other mbarrier@157.0",
        ),
        "the value that it holds": (
            "parity changed@157.2",
            "parity changed@183.2",
            "parity changed@440.1",
            "parity changed@447.1",
            "parity changed@1143.1",
            "parity changed@1145.1",
            "parity changed@1188.1",
            "parity changed@1190.1",
        ),
        "nobody fills Q again": (
            "arrive removed@2465.0",
            "count changed@46.0",
            "count changed@46.1",
            "count changed@2465.0",
            "count changed@2465.1",
            "other mbarrier@2465.0",
        ),
        "each group's own rows": ("barrier removed@2664.0",),
        "a load early": ("other mbarrier@220.0",),
        "waits for more": ("completion changed@2684.0",),
        "a number that is free": ("named barrier changed@79.0",),
        "the other group begins": ("named barrier changed@365.0",),
    },
    "fa4-full": {
        "fence before the CTA's barrier": ("fence removed@66.0",),
        "initialised by all lanes": (
            "election removed@22.0",
            "election removed@29.0",
            "election removed@37.0",
            "election removed@45.0",
            "election removed@51.0",
            "election removed@58.0",
        ),
        "covered by another fence": ("fence removed@960.0",),
        "tail of the producer": (
            "wait removed@251.0",
            "wait removed@262.0",
        ),
        "a stage that nobody has used": (
            "wait removed@89.0",
            "wait removed@114.0",
            "other mbarrier@89.0",
        ),
        "the value that it holds": (
            "parity changed@89.2",
            "parity changed@114.2",
            "parity changed@318.1",
            "parity changed@324.1",
        ),
        "nobody fills Q again": (
            "arrive removed@1444.0",
            "count changed@33.0",
            "count changed@33.1",
            "count changed@1444.0",
            "count changed@1444.1",
            "other mbarrier@1444.0",
        ),
        "each group's own rows": ("barrier removed@1641.0",),
        "a load early": ("other mbarrier@153.0",),
        "waits for more": ("completion changed@1665.0",),
        "a number that is free": ("named barrier changed@67.0",),
        "the other group begins": ("named barrier changed@299.0",),
    },
}


def reasons_of(subject: str) -> dict[str, str]:
    """Mutant to the name of its reason."""
    return {key: reason for reason, keys in SURVIVORS.get(subject, {}).items() for key in keys}

"""Why each mutant that nothing killed lives, one by one: names as in the records.

A mutant's name is its operator, the number of the instruction in the kernel, and which of the
operator's changes of it. A survivor that is not here is shown by the tests as not explained, and a
name here that does not survive fails them.
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
        "leaves it undefined to initialise a valid mbarrier again; the emulator lets it pass, and "
        "what is compiled has uniform operands and happens once.",
    ),
    "fence before the CTA's barrier": Reason(
        NOT_MODELLED,
        "bar.sync tells every thread of the CTA of the initialisation, and there is no cluster "
        "that the fence could be for. Whether the unit that counts a copy's bytes needs more than "
        "bar.sync PTX does not say; Triton's kernels have nothing more, and the emulator asks for "
        "nothing more.",
    ),
    "covered by the other fence": Reason(
        EQUIVALENT,
        "Between this fence and the one before it nothing but wgmma touches the registers of the "
        "products that follow, or what touches them again comes after the next fence: a loop for "
        "blocks that cross the diagonal runs at most once per tile.",
    ),
    "tail of the producer": Reason(
        EQUIVALENT,
        "The last waits of the producer keep its CTA alive until every stage is released. Without "
        "a cluster nobody arrives from another CTA, and shared memory lives until the last warp of "
        "the CTA exits; after these waits the producer does nothing. One wait more or less, or for "
        "another phase that completes, changes nothing.",
    ),
    "covered by an earlier wait": Reason(
        EQUIVALENT,
        "A warpgroup that passes over blocks of K releases them unread. The producer loads in the "
        "order K of the block, then Q of the tile or V of the block before, and the warpgroup has "
        "waited for that one just before: when it is there, the stage of K was free and could be "
        "released again.",
    ),
}

#: Subject, reason, mutants.
SURVIVORS: dict[str, dict[str, tuple[str, ...]]] = {}


def reasons_of(subject: str) -> dict[str, str]:
    """Mutant to the name of its reason."""
    return {key: reason for reason, keys in SURVIVORS.get(subject, {}).items() for key in keys}

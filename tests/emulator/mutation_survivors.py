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


REASONS: dict[str, Reason] = {}

#: Subject, reason, mutants.
SURVIVORS: dict[str, dict[str, tuple[str, ...]]] = {}


def reasons_of(subject: str) -> dict[str, str]:
    """Mutant to the name of its reason."""
    return {key: reason for reason, keys in SURVIVORS.get(subject, {}).items() for key in keys}

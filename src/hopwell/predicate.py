"""One row of a backend's support table."""

# Annotations are values here, not text: a named tuple compiles each that is text.

from collections.abc import Callable
from typing import NamedTuple

from hopwell.errors import Refusal
from hopwell.problem import Problem


class Predicate(NamedTuple):
    """One row of the support table: ``holds`` decides, the rest says what and why."""

    name: str
    expected: str
    holds: Callable[[Problem], bool]
    actual: Callable[[Problem], object]

    def refusal(self, problem: Problem) -> Refusal | None:
        """None when the problem satisfies the predicate."""
        if self.holds(problem):
            return None
        return Refusal(self.name, self.expected, str(self.actual(problem)))

"""Which keys a query sees: one interval per query row, aligned to the bottom right.

Query ``i`` of ``seqlen_q`` stands at key position ``i + seqlen_k - seqlen_q`` and sees keys from
``left`` before that position to ``right`` after it, both inclusive; ``None`` is unbounded.
"""

# Annotations are values here, not text: a named tuple compiles each that is text.

from typing import NamedTuple


class Mask(NamedTuple):
    """``left`` and ``right`` in tokens, inclusive, or None. Causal is ``right == 0``."""

    left: int | None = None
    right: int | None = None

    @classmethod
    def of(cls, causal: bool, window: tuple[int | None, int | None] | None) -> "Mask":
        """Fold ``causal`` into a window: nothing to the right of the query's own position."""
        left, right = window if window is not None else (None, None)
        # A window's right bound is never negative, so causal is always the tighter one.
        return cls(left, 0 if causal else right)

    def canonical(self, seqlen_q: int, seqlen_k: int) -> "Mask":
        """The same visibility with every bound that hides no key of these lengths removed."""
        # The last query stands at seqlen_k - 1, the first at seqlen_k - seqlen_q.
        left = None if self.left is None or self.left >= seqlen_k - 1 else self.left
        right = None if self.right is None or self.right >= seqlen_q - 1 else self.right
        return Mask(left, right)

    @property
    def is_full(self) -> bool:
        return self.left is None and self.right is None

    @property
    def is_causal(self) -> bool:
        """Causal and nothing else."""
        return self.left is None and self.right == 0

    def keys(self, row: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
        """First visible key of query ``row`` and one past its last; equal when it sees none."""
        position = row + seqlen_k - seqlen_q
        first = 0 if self.left is None else max(0, position - self.left)
        stop = seqlen_k if self.right is None else min(seqlen_k, position + self.right + 1)
        return (first, stop) if first < stop else (0, 0)

    def __str__(self) -> str:
        if self.is_full:
            return "full"
        if self.is_causal:
            return "causal"
        return f"window ({self.left}, {self.right})"

"""The online softmax of one MMA thread: two rows, base-two exponentials (spec 0x01, 0x05).

For scores s, reference m and scale c the recurrence over key blocks is

    m' = max(m, max s)        a = 2^(c (m - m'))
    l' = a l + sum 2^(c (s - m'))        O' = a O + 2^(c (s - m')) V

with c = scale * log2(e) folded into one multiply-add per score. Row sums stay partial per thread
and meet only at the end of a tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass
from cutlass import Float32, cute

from hopwell.hopper.fragments import ROWS, rows_view

#: Threads that share a row.
QUAD = 4
LN2 = math.log(2.0)


@dataclass(frozen=True)
class OnlineSoftmax:
    """Running maximum and partial sum (2,) of this thread's rows, float32 registers."""

    scale_log2: Float32
    maximum: cute.Tensor
    total: cute.Tensor

    @classmethod
    def of(cls, scale_log2: Float32) -> OnlineSoftmax:
        """Fresh registers; :meth:`reset` before use."""
        maximum = cute.make_rmem_tensor(ROWS, Float32)
        return cls(scale_log2, maximum, cute.make_rmem_tensor(ROWS, Float32))

    def reset(self) -> None:
        """Start a tile: nothing seen."""
        self.maximum.fill(-Float32.inf)
        self.total.fill(0.0)

    @cute.jit
    def update(self, scores: cute.Tensor, correction: cute.Tensor) -> None:
        """Turn a block's scores into probabilities in place.

        ``correction`` (2,) receives the factor that moves O and earlier sums to the new reference.
        """
        rows = rows_view(scores)
        columns = cute.size(rows, mode=[1])
        for r in cutlass.range_constexpr(ROWS):
            row = rows[r, None]
            before = self.maximum[r]
            # Four chains instead of one: a maximum has a latency of several cycles. Loops that the
            # assembler unrolls, not Python: tracing every column took most of the compile time.
            m0, m1, m2, m3 = cute.arch.fmax(before, row[0]), row[1], row[2], row[3]
            for c in cutlass.range(4, columns, 4, unroll_full=True):
                m0 = cute.arch.fmax(m0, row[c])
                m1 = cute.arch.fmax(m1, row[c + 1])
                m2 = cute.arch.fmax(m2, row[c + 2])
                m3 = cute.arch.fmax(m3, row[c + 3])
            highest = cute.arch.fmax(cute.arch.fmax(m0, m1), cute.arch.fmax(m2, m3))
            highest = cute.arch.warp_reduction_max(highest, threads_in_group=QUAD)
            self.maximum[r] = highest
            # A row that has seen no key yet has reference -inf, and -inf - -inf is NaN.
            reference = cutlass.select_(highest == -Float32.inf, Float32(0.0), highest)
            offset = reference * self.scale_log2
            # The difference first: an unchanged reference then gives exactly 1. With the products
            # subtracted it gives 1 +- 1e-7, which 5000 blocks turn into 1e-3 in the sum.
            factor = cute.math.exp2((before - reference) * self.scale_log2, fastmath=True)
            correction[r] = factor
            for c in cutlass.range(columns, unroll_full=True):
                row[c] = cute.math.exp2(row[c] * self.scale_log2 - offset, fastmath=True)
            s0, s1, s2, s3 = self.total[r] * factor + row[0], row[1], row[2], row[3]
            for c in cutlass.range(4, columns, 4, unroll_full=True):
                s0 += row[c]
                s1 += row[c + 1]
                s2 += row[c + 2]
                s3 += row[c + 3]
            self.total[r] = (s0 + s1) + (s2 + s3)

    @cute.jit
    def finish(self, inverse: cute.Tensor, lse: cute.Tensor) -> None:
        """End a tile: ``inverse`` (2,) scales O to its value; ``lse`` (2,) is natural.

        A row without keys has sum zero: its output is 0 and its log-sum-exp -inf, never NaN.
        """
        for r in cutlass.range_constexpr(ROWS):
            total = cute.arch.warp_reduction_sum(self.total[r], threads_in_group=QUAD)
            empty = total == 0.0
            safe = cutlass.select_(empty, Float32(1.0), total)
            inverse[r] = cute.arch.rcp_approx(safe)
            log2_sum = self.maximum[r] * self.scale_log2 + cute.math.log2(safe, fastmath=True)
            lse[r] = cutlass.select_(empty, -Float32.inf, log2_sum * LN2)


@cute.jit
def rescale(acc: cute.Tensor, factor: cute.Tensor) -> None:
    """Multiply this thread's accumulator rows by their factors."""
    rows = rows_view(acc)
    for r in cutlass.range_constexpr(ROWS):
        row, scale = rows[r, None], factor[r]
        for c in cutlass.range(cute.size(row), unroll_full=True):
            row[c] = row[c] * scale


@cute.jit
def mask_columns(scores: cute.Tensor, limits: cute.Tensor, first_column: cutlass.Int32) -> None:
    """Set scores of invisible keys to -inf. Row r sees the block's columns below ``limits[r]``.

    ``first_column`` is this thread's first column of the block, counted from key 0.
    """
    rows = rows_view(scores)
    for r in cutlass.range_constexpr(ROWS):
        row, limit = rows[r, None], limits[r] - first_column
        for c in cutlass.range(cute.size(row), unroll_full=True):
            column = c // 2 * 8 + c % 2
            row[c] = cutlass.select_(limit > column, row[c], -Float32.inf)

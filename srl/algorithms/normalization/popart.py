"""PopArt (van Hasselt et al. 2016): value targets are normalised by running moments, outputs are preserved.

The network puts out a normalised value ``n``; the value is ``deviation * n + mean``. When the moments move to
``mean'``, ``deviation'``, the last layer ``(w, b)`` becomes (equations 9 and 10)::

    w' = w * deviation / deviation'
    b' = (b * deviation + mean - mean') / deviation'

so that every value stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

DEVIATION_FLOOR = 1e-4


@dataclass(frozen=True, slots=True)
class TargetScale:
    """Exponential moving moments of value targets.

    Attributes:
        weight: Sum of the weights of all batches so far, 0 to 1: what divides the sums (no bias to the start).
        first: Weighted sum of the targets' means.
        second: Weighted sum of the means of their squares.
    """

    weight: float = 0.0
    first: float = 0.0
    second: float = 0.0

    def mean(self) -> float:
        """Mean of the targets; 0 before the first batch."""
        return self.first / self.weight if self.weight else 0.0

    def deviation(self) -> float:
        """Standard deviation of the targets; 1 before the first batch."""
        if not self.weight:
            return 1.0
        return max(sqrt(max(self.second / self.weight - self.mean() ** 2, 0.0)), DEVIATION_FLOOR)

    def updated(self, mean: float, mean_square: float, rate: float) -> TargetScale:
        """After one more batch.

        Args:
            mean: Mean of its targets.
            mean_square: Mean of their squares.
            rate: Share of the new batch, 0 to 1.
        """
        return TargetScale(
            self.weight + rate * (1.0 - self.weight),
            self.first + rate * (mean - self.first),
            self.second + rate * (mean_square - self.second),
        )

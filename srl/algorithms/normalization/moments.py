"""Count, mean and sum of squared deviations: what normalisation is made of, in float64.

Sums of squares are never formed: with observations near 10,000 and a spread of 0.08 their difference is rounding error.
Two sets of moments merge exactly as in Chan, Golub, LeVeque 1979 (equation 2.1), so ranks that saw different rows agree
with one that saw them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Reduce = Callable[[Floats], Floats]
"""Sums arrays over trainer ranks; :meth:`srl.api.algorithm.TrainerContext.reduce_array`."""

VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of samples of F numbers each.

    Attributes:
        count: Number of samples.
        mean: ``float64[F]``; zeros where there is no sample.
        m2: ``float64[F]`` sums of squared deviations from the mean.
    """

    count: float
    mean: Floats
    m2: Floats

    @classmethod
    def none(cls, size: int) -> Moments:
        """No sample of ``size`` numbers."""
        return cls(0.0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, values: NDArray[np.floating], reduce: Reduce = np.array) -> Moments:
        """The moments of samples, over all ranks.

        Args:
            values: ``[N, F]``, of this rank; N may be 0. All finite.
            reduce: Sums over ranks.
        """
        exact = np.asarray(values, np.float64)
        sums = reduce(np.concatenate([[float(len(exact))], exact.sum(axis=0)]))
        count = float(sums[0])
        if count == 0.0:
            return cls.none(exact.shape[1])
        mean = sums[1:] / count
        return cls(count, mean, reduce(np.square(exact - mean).sum(axis=0)))

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets of samples together."""
        if other.count == 0.0:
            return self
        count = self.count + other.count
        distance = other.mean - self.mean
        mean = self.mean + distance * (other.count / count)
        m2 = self.m2 + other.m2 + np.square(distance) * (self.count * other.count / count)
        return Moments(count, mean, m2)

    def variance(self) -> Floats:
        """``float64[F]``; 1 where there is no sample, so that nothing is scaled."""
        return self.m2 / self.count if self.count else np.ones_like(self.m2)

    def deviation(self) -> Floats:
        """``float64[F]`` standard deviations, never 0."""
        return np.sqrt(self.variance() + VARIANCE_FLOOR)

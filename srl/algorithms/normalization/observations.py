"""Normalised observations: every floating-point number minus its mean, divided by its standard deviation, bounded."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.normalization.moments import Floats, Moments
from srl.api.spaces import SpaceSpec


class ObservationNormalizer:
    """Reads and writes the floating-point leaves of observations; bytes and choices are left as they are.

    Args:
        space: The observation space.
        bound: Normalised numbers are cut to ``[-bound, bound]``.

    Attributes:
        size: F, floating-point numbers of one observation.
    """

    def __init__(self, space: SpaceSpec, bound: float) -> None:
        self._bound = np.float32(bound)
        self._leaves = [leaf for leaf in space.leaves() if np.dtype(leaf.space.dtype).kind == "f"]
        self._sizes = [prod(leaf.space.shape) for leaf in self._leaves]
        self.size = sum(self._sizes)
        self.use(Moments.none(self.size))

    def use(self, moments: Moments) -> None:
        """Normalise with these moments from now on."""
        self._shift, self._factor = moments.mean, (1.0 / moments.deviation()).astype(np.float32)
        self._scales = []
        first = 0
        for leaf, size in zip(self._leaves, self._sizes, strict=True):
            part, shape = slice(first, first + size), leaf.space.shape
            # A mean rounded to float32 would be off by many deviations where float64 is needed for the values.
            shift = self._shift[part].astype(np.promote_types(leaf.space.dtype, np.float32))
            self._scales.append((shift.reshape(shape), self._factor[part].reshape(shape)))
            first += size

    def scale(self) -> tuple[Floats, NDArray[np.float32]]:
        """What is subtracted, and what the difference is multiplied with: copies, ``float64[F]`` and ``float32[F]``."""
        return self._shift.copy(), self._factor.copy()

    def apply(self, observation: NDArray[Any]) -> None:
        """Normalise ``observation[...]`` (elements of the space) in place."""
        for leaf, (shift, factor) in zip(self._leaves, self._scales, strict=True):
            values = leaf.of(observation)
            values -= shift
            values *= factor
            np.clip(values, -self._bound, self._bound, out=values)

    def values(self, observation: NDArray[Any]) -> Floats:
        """The numbers to take moments of: ``float64[N, F]`` of ``observation[N, ...]``; rows with NaN are left out."""
        count = len(observation)
        pairs = zip(self._leaves, self._sizes, strict=True)
        parts = [leaf.of(observation).reshape(count, size) for leaf, size in pairs]
        numbers = np.concatenate(parts, axis=1).astype(np.float64) if parts else np.zeros((count, 0))
        finite = np.isfinite(numbers).all(axis=1)
        return numbers if finite.all() else numbers[finite]

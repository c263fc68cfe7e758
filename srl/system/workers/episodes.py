"""Episode bookkeeping of one ring group: returns, lengths and frames per column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import Ended, EnvironmentSpec
from srl.system.report import Episode


class EpisodeTracker:
    """Sums rewards and counts steps per column until an episode ends.

    Args:
        spec: The environment; ``frames_per_step`` turns steps into frames.
        columns: B.
    """

    def __init__(self, spec: EnvironmentSpec, columns: int) -> None:
        self._frames_per_step = spec.frames_per_step
        self._returns: NDArray[np.float64] = np.zeros(columns, np.float64)
        self._lengths: NDArray[np.int64] = np.zeros(columns, np.int64)

    def add(self, reward: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """One step: ``reward`` float32[B] and ``valid`` bool[B] of the row (rewards of invalid rows are 0)."""
        self._returns += reward
        self._lengths += valid

    def ended(self, ended: Ended, version: int) -> list[Episode]:
        """The episodes that ended in the step just added; their columns start from zero."""
        episodes = []
        for position, column in enumerate(ended.columns):
            if ended.counted is not None and not ended.counted[position]:
                continue
            total = self._returns[column] if ended.episode_return is None else ended.episode_return[position]
            length = int(self._lengths[column])
            episodes.append(Episode(float(total), length, length * self._frames_per_step, version))
            self._returns[column] = 0.0
            self._lengths[column] = 0
        return episodes

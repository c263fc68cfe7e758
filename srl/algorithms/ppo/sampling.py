"""Decisions from logits, in numpy: one uniform per column, by the inverse of the cumulative distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class DiscreteSampler:
    """Chooses actions and gives their log-probabilities; keeps its arrays per batch size.

    Args:
        actions: A, number of actions.
    """

    def __init__(self, actions: int) -> None:
        self._actions = actions
        self._first: dict[int, NDArray[np.int64]] = {}

    def decide(
        self,
        logits: NDArray[np.float32],
        uniform: NDArray[np.float32],
        action: NDArray[Any],
        log_probability: NDArray[np.float32],
        *,
        deterministic: bool,
    ) -> None:
        """Fill ``action`` and ``log_probability``.

        The cumulative sum is float64, so that ``u * total`` with u <= 1 - 2**-24 stays below ``total``: an action of
        probability zero is never chosen. Counting thresholds among the first A - 1 sums keeps the index in range
        whatever ``uniform`` holds.

        Args:
            logits: ``float32[B, A]``; overwritten.
            uniform: ``float32[B]`` in [0, 1); not used if deterministic.
            action: Integers ``[B]``, written.
            log_probability: ``float32[B]``, written: of the chosen action under the distribution.
            deterministic: Choose the most probable action, the first one if there are several.
        """
        logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
        cumulative = np.add.accumulate(np.exp(logits), axis=1, dtype=np.float64)
        total = cumulative[:, -1]
        if deterministic:
            chosen = logits.argmax(axis=1)
        else:
            chosen = np.add.reduce(cumulative[:, :-1] <= (uniform * total)[:, None], axis=1, dtype=np.int64)
        action[...] = chosen
        chosen += self._row_starts(len(logits))
        np.subtract(logits.reshape(-1).take(chosen), np.log(total), out=log_probability, casting="same_kind")

    def _row_starts(self, batch: int) -> NDArray[np.int64]:
        starts = self._first.get(batch)
        if starts is None:
            starts = self._first[batch] = np.arange(batch, dtype=np.int64) * self._actions
        return starts

"""Which rows make up which minibatch: one order over the data of all trainer ranks, that every rank knows.

A unit is what is shuffled as one: a row, or for recurrent policies a sequence of rows of one column. Every rank draws
the same permutation of all units and takes its own from each minibatch, so two ranks make the gradient steps that one
rank would make with all the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from srl.api.algorithm import TrainerContext
from srl.api.block import BlockHeader

Indices = NDArray[np.int64]


class Order:
    """The units of one update.

    Args:
        trainer: Its generator draws the same numbers on every rank.
        headers: The blocks of this rank, in the order of their columns; every rank has as many.
        present: ``bool[S, C]`` the units of this rank that count; units are numbered in C order among those.
    """

    def __init__(self, trainer: TrainerContext, headers: Sequence[BlockHeader], present: NDArray[np.bool_]) -> None:
        self._generator = trainer.generator
        self._owned: Indices | None = None
        self.total = int(np.count_nonzero(present))
        if trainer.ranks > 1:
            self._owned = self._numbers(trainer, headers, present)
            self.total = len(self._owned)

    def epoch(self, steps: int) -> tuple[Indices, list[tuple[int, int]]]:
        """Shuffle and cut.

        Args:
            steps: Minibatches.

        Returns:
            This rank's units in the order in which they are used, and each minibatch's part of them.
        """
        order = self._generator.permutation(self.total)
        cuts = [step * self.total // steps for step in range(steps + 1)]
        if self._owned is not None:
            mine = self._owned[order]
            is_mine = mine >= 0
            before = np.concatenate([[0], np.cumsum(is_mine)])
            order, cuts = mine[is_mine], [int(before[cut]) for cut in cuts]
        return order, list(pairwise(cuts))

    @staticmethod
    def _numbers(trainer: TrainerContext, headers: Sequence[BlockHeader], present: NDArray[np.bool_]) -> Indices:
        """For every unit of all ranks, in the order in which one rank would have them: its number here, or -1."""
        keys = np.array([(header.actor, header.ring_group, header.sequence) for header in headers], np.int64)
        all_keys = np.concatenate(trainer.gather(keys))
        masks = np.concatenate(trainer.gather(np.ascontiguousarray(present)), axis=1)
        columns = present.shape[1] // len(headers)
        in_order = np.lexsort(all_keys.T[::-1])
        numbers = np.full(masks.shape, -1, np.int64)
        first = trainer.rank * present.shape[1]
        mine = numbers[:, first : first + present.shape[1]]
        mine[present] = np.arange(np.count_nonzero(present))
        column_order = (in_order[:, None] * columns + np.arange(columns)).reshape(-1)
        result: Indices = numbers[:, column_order][masks[:, column_order]]
        return result

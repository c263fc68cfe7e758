"""The scale of rewards: the standard deviation of discounted returns, followed forward in time per column.

``R_t = r_t + gamma R_(t-1)`` since the episode's start, as in the reward scaling of Engstrom et al. 2020 (section 3).

Over a whole block that is ``R_end = factor * R_begin + offset`` per column, whatever ``R_begin``: factor and offset are
the block's alone. So blocks are followed side by side, and one after the other only in these two numbers, which is all
that ranks have to tell each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from srl.api.algorithm import TrainerContext
from srl.api.block import BlockHeader

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Followed:
    """The returns of some blocks, as if each had begun with 0, and what they take over of what it began with.

    Attributes:
        returns: ``float64[T, C]``.
        decay: ``float64[T, C]`` share of the return before row 0 in that of each row; 0 behind an episode's end.
        offset: ``float64[C]`` the return behind the last row.
        factor: ``float64[C]`` share of the return before row 0 in it.
    """

    returns: Floats
    decay: Floats
    offset: Floats
    factor: Floats


class DiscountedReturns:
    """Discounted returns under way, one per column of every ring group that sends blocks.

    The blocks of one update follow each other exactly, whichever ranks have them. Only what updates leave out makes a
    gap: a block that was dropped, or is trained in a later update than the one behind it (throughput mode over several
    ranks). Then the next one goes on from the newest return known: it belongs to another time of the same column, and
    is as good a sample of where returns stand, while starting at 0 would make returns small, and leaving rows out would
    leave out those of long episodes.

    Args:
        gamma: Discount.
        trainer: Gathers over ranks; ``None`` = there is one rank.
    """

    def __init__(self, gamma: float, trainer: TrainerContext | None = None) -> None:
        self._gamma = gamma
        self._trainer = trainer
        self._newest: dict[Key, tuple[int, int]] = {}
        self.under_way: dict[Key, Floats] = {}

    def follow(
        self,
        headers: Sequence[BlockHeader],
        reward: NDArray[np.floating],
        ended: Bools,
        valid: Bools,
        known: Bools | None = None,
    ) -> Floats:
        """The returns of the rows of some blocks; a collective call where there are several ranks.

        Args:
            headers: One per block, in the order of their columns; of as many blocks on every rank.
            reward: ``[T, C]``.
            ended: ``bool[T, C]``: the episode ends with this row.
            valid: ``bool[T, C]``; other rows change nothing.
            known: ``bool[T, C]``: the reward is the environment's own; returns pass over rows where it is not. ``None``
                = everywhere.

        Returns:
            ``float64[T, C]``; what stands in rows that are not valid, or not known, means nothing.
        """
        followed = self._apart(reward, ended & valid, valid if known is None else valid & known)
        begins = self._chain(headers, followed.factor, followed.offset)
        return followed.returns + followed.decay * begins

    def state(self) -> dict[str, Floats]:
        """For a checkpoint."""
        return {f"{actor}/{group}": value for (actor, group), value in self.under_way.items()}

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """The inverse of :meth:`state`."""
        for name, value in state.items():
            actor, _, group = name.partition("/")
            self.under_way[int(actor), int(group)] = np.array(value, np.float64)

    def _apart(self, reward: NDArray[np.floating], ended: Bools, counted: Bools) -> _Followed:
        """Every block for itself."""
        rows, columns = reward.shape
        running = np.zeros(columns)
        returns = np.empty((rows, columns))
        for row in range(rows):
            running = np.where(counted[row], self._gamma * running + reward[row], running)
            returns[row] = running
            running = np.where(ended[row], 0.0, running)
        powers = self._gamma ** np.arange(rows + 1)
        decay = powers[np.cumsum(counted, axis=0)]
        over = np.logical_or.accumulate(ended, axis=0)
        factor = np.where(over[-1], 0.0, decay[-1])
        decay[1:][over[:-1]] = 0.0
        return _Followed(returns, decay, running, factor)

    def _chain(self, headers: Sequence[BlockHeader], factor: Floats, offset: Floats) -> Floats:
        """What each block begins with, ``float64[C]``; takes all blocks of all ranks into ``under_way``, in order."""
        keys = np.array([(one.incarnation, one.sequence, one.actor, one.ring_group) for one in headers], np.int64)
        effects = np.stack([factor, offset]).reshape(2, len(headers), -1).swapaxes(0, 1)
        all_keys, all_effects, first = keys, effects, 0
        if self._trainer is not None and self._trainer.ranks > 1:
            all_keys = np.concatenate(self._trainer.gather(keys))
            all_effects = np.concatenate(self._trainer.gather(np.ascontiguousarray(effects)))
            first = self._trainer.rank * len(headers)
        begins = np.zeros_like(all_effects[:, 0])
        names: list[list[int]] = all_keys.tolist()
        for index in sorted(range(len(names)), key=names.__getitem__):
            incarnation, sequence, actor, group = names[index]
            key = actor, group
            begins[index] = self.under_way.get(key, 0.0)
            if (incarnation, sequence) >= self._newest.get(key, (0, 0)):  # else a late one: the newer return stays
                self._newest[key] = incarnation, sequence
                self.under_way[key] = all_effects[index, 0] * begins[index] + all_effects[index, 1]
        return begins[first : first + len(headers)].reshape(-1)

"""The scale of rewards: the standard deviation of discounted returns, followed forward in time per column.

``R_t = r_t + gamma R_(t-1)`` since the episode's start, as in the reward scaling of Engstrom et al. 2020 (section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from srl.api.block import BlockHeader

Key = tuple[int, int]


class DiscountedReturns:
    """Discounted returns under way, one per column of every ring group that sends blocks.

    A block that never arrives (dropped, or trained by another rank) leaves a gap: the next one goes on from the newest
    return known, which is as good a sample.

    Args:
        gamma: Discount.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self.under_way: dict[Key, NDArray[np.float64]] = {}

    def follow(
        self,
        headers: Sequence[BlockHeader],
        reward: NDArray[np.floating],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """The returns of the rows of some blocks.

        Args:
            headers: One per block, in the order of their columns.
            reward: ``[T, C]``.
            ended: ``bool[T, C]``: the episode ends with this row.
            valid: ``bool[T, C]``; other rows change nothing.

        Returns:
            ``float64[T, C]``; what stands in rows that are not valid means nothing.
        """
        columns = reward.shape[1] // len(headers)
        result = np.empty(reward.shape, np.float64)
        for turn in _turns(headers):
            # A slice where one turn has all blocks, as it nearly always does: nothing is copied.
            place: slice | NDArray[np.int64] = slice(None)
            if len(turn) < len(headers):
                place = (np.array(turn)[:, None] * columns + np.arange(columns)).reshape(-1)
            chosen = [headers[index] for index in turn]
            result[:, place] = self._follow(chosen, reward[:, place], ended[:, place], valid[:, place])
        return result

    def _follow(
        self,
        headers: Sequence[BlockHeader],
        reward: NDArray[np.floating],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """As :meth:`follow`, of blocks of different ring groups."""
        columns = reward.shape[1] // len(headers)
        running = np.concatenate([self._known(header, columns) for header in headers])
        result = np.empty(reward.shape, np.float64)
        for row in range(len(reward)):
            running = np.where(valid[row], self._gamma * running + reward[row], running)
            result[row] = running
            running = np.where(valid[row] & ended[row], 0.0, running)
        for index, header in enumerate(headers):
            part = running[index * columns : (index + 1) * columns]
            self.under_way[header.actor, header.ring_group] = part
        return result

    def state(self) -> dict[str, NDArray[np.float64]]:
        """For a checkpoint."""
        return {f"{actor}/{group}": value for (actor, group), value in self.under_way.items()}

    def load_state(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        """The inverse of :meth:`state`."""
        for name, value in state.items():
            actor, _, group = name.partition("/")
            self.under_way[int(actor), int(group)] = np.array(value, np.float64)

    def _known(self, header: BlockHeader, columns: int) -> NDArray[np.float64]:
        known = self.under_way.get((header.actor, header.ring_group))
        return np.zeros(columns) if known is None else known


def _turns(headers: Sequence[BlockHeader]) -> list[list[int]]:
    """Blocks that can be followed side by side: of each ring group its first one, then its second one, ..."""
    turns: list[list[int]] = []
    seen: dict[Key, int] = {}
    for index in sorted(range(len(headers)), key=lambda one: (headers[one].incarnation, headers[one].sequence)):
        key = (headers[index].actor, headers[index].ring_group)
        seen[key] = number = seen.get(key, -1) + 1
        if number == len(turns):
            turns.append([])
        turns[number].append(index)
    return [sorted(turn) for turn in turns]

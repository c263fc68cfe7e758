"""Filming Atari games: beside the game that is played another one runs with the same seed and actions, in colour.

ale-py's vectoriser renders nothing, but it is deterministic, sticky actions included: two vectorisers that differ only
in what their observations look like play the same game.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault

FRAMES_PER_SECOND = 60
"""Of the console."""
SCREEN = (210, 160)
"""Height and width of its picture."""


class FilmedGame(VectorEnvironment):
    """One game, and the same one in colour; frames are the second one's observations.

    Args:
        game: What is played.
        picture: The same with one coloured frame of the full size as its observation.
        frames: Receives ``uint8[210, 160, 3]``.
    """

    def __init__(self, game: VectorEnvironment, picture: VectorEnvironment, frames: list[NDArray[np.uint8]]) -> None:
        self.spec = game.spec
        self.count = 1
        self._game, self._picture, self._frames = game, picture, frames
        columns = (1,)
        self._row = StepOutput(
            observation=np.zeros((1, *picture.spec.observation.shape), np.uint8),
            reward=np.zeros(columns, np.float32),
            terminated=np.zeros(columns, np.bool_),
            truncated=np.zeros(columns, np.bool_),
            valid=np.zeros(columns, np.bool_),
            episode_start=np.zeros(columns, np.bool_),
        )

    def reset(self, out: StepOutput) -> None:
        """Start both games."""
        self._game.reset(out)
        self._picture.reset(self._row)
        self._take(self._row.observation[0])

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step both games.

        Raises:
            EnvironmentFault: They are not the same game any more.
        """
        ended = self._picture.step(action.copy(), self._row)
        result = self._game.step(action, out)
        same = np.array_equal(self._row.reward, out.reward) and np.array_equal(self._row.terminated, out.terminated)
        if not same:
            raise EnvironmentFault("the filmed game went another way than the one that is played", where=self.spec.name)
        if ended is not None and (ended.counted is None or ended.counted[0]):
            self._take(ended.final_observation[0])
        self._take(self._row.observation[0])
        return result

    def close(self) -> None:
        """Close both games."""
        self._game.close()
        self._picture.close()

    def _take(self, observation: NDArray[np.uint8]) -> None:
        self._frames.append(np.ascontiguousarray(observation.transpose(1, 2, 0)))

"""The environment ``skeleton``: catch a falling ball with a paddle.

The return of an episode is 1 if the ball was caught, else -1. The best policy gets 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Observation = NDArray[np.float32]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}


class Skeleton(gymnasium.Env[Observation, Any]):
    """A ball in a random column, a paddle in another; one row further per step.

    Observations are ``float32[3]`` in [0, 1]: column and row of the ball, column of the
    paddle. Actions: 0 = left, 1 = stay, 2 = right.

    Args:
        size: Columns, and rows, of the grid.
        render_mode: ``"rgb_array"``, or ``None`` if nothing is rendered.
    """

    metadata = METADATA

    def __init__(self, size: int = 6, render_mode: str | None = None) -> None:
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(3)
        self.render_mode = render_mode
        self._size = size
        self._ball = self._row = self._paddle = 0

    def reset(
        self,
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """A new episode.

        A seed comes with the first reset only. It seeds ``self.np_random``, from which
        all randomness must come: then equal seeds give equal episodes.
        """
        super().reset(seed=seed)
        self._ball, self._paddle = self.np_random.integers(self._size, size=2)
        self._row = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        """One row further; the last row ends the episode.

        Ends that belong to the task are ``terminated``; a limit on the number of steps
        that the agent cannot see would be ``truncated``.
        """
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, self._size - 1))
        self._row += 1
        terminated = self._row == self._size - 1
        reward = 0.0
        if terminated:
            reward = 1.0 if self._paddle == self._ball else -1.0
        return self._observation(), reward, terminated, False, {}

    def render(self) -> Any:
        """The grid as ``uint8[H, W, 3]``, 16 pixels per cell; for ``srl-run video``."""
        if self.render_mode != "rgb_array":
            return None
        frame = np.zeros((self._size, self._size, 3), np.uint8)
        frame[-1, self._paddle] = (80, 160, 255)
        frame[self._row, self._ball] = (255, 200, 0)
        return frame.repeat(16, axis=0).repeat(16, axis=1)

    def _observation(self) -> Observation:
        cells = np.array([self._ball, self._row, self._paddle], np.float32)
        return cells / np.float32(self._size - 1)

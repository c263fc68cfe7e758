"""A wrapper for field case 20: observations far from zero."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Shifted(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations become 100 + 10 times what they were."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)

    def observation(self, observation: Any) -> Any:
        """The shifted observation."""
        return np.float32(100.0) + np.float32(10.0) * observation

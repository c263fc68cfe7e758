"""Environments to film, and one with spaces of every kind."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

LENGTH = 5
SHADE_PER_STEP = 20
SHADE_PER_EPISODE = 120


class Film(gymnasium.Env):
    """Episodes of 5 steps; the picture's shade tells step and episode: 20 a step, 120 more in every second episode.

    The picture has an odd number of rows and columns, and is drawn into one buffer again and again.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = Box(0.0, 10.0, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode=None, size=(33, 47)):
        self.render_mode = render_mode
        self.episode = -1
        self.picture = np.zeros((*size, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.episode += 1
        return self._observation(), {}

    def step(self, action):
        self.time += 1
        return self._observation(), 1.0, self.time == LENGTH, False, {}

    def render(self):
        self.picture[...] = SHADE_PER_STEP * self.time + SHADE_PER_EPISODE * (self.episode % 2)
        return self.picture

    def _observation(self):
        return np.array([self.time, self.episode % 2], np.float32)


class TextOnly(Film):
    """Renders, but not as pictures."""

    metadata: ClassVar = {"render_modes": ["ansi"]}


class Numbers(Film):
    """Observations of any shape and dtype, drawn from their space."""

    def __init__(self, shape=(), dtype="float32", low=0, high=1, render_mode=None):
        super().__init__(render_mode)
        self.observation_space = Box(low, high, tuple(shape), np.dtype(dtype).type)

    def _observation(self):
        return self.observation_space.sample()


class Everything(gymnasium.Env):
    """Nested observations and actions, discrete values that do not count from 0, an action mask, endless episodes."""

    observation_space = Dict(
        {
            "place": Discrete(4, start=3),
            "parts": Tuple((Box(-1.0, 1.0, (2, 2), np.float32), MultiBinary(3))),
            "gears": MultiDiscrete([2, 3], start=[1, -1]),
        }
    )
    action_space = Tuple((Discrete(3, start=5), Box(-2.0, 3.0, (2,), np.float32), MultiDiscrete([2, 4], start=[0, 10])))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"action_mask": self._mask()}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 1.0, False, False, {"action_mask": self._mask()}

    def _mask(self):
        mask = self.np_random.random(9) < 0.5
        mask[[0, 3, 5]] = True
        return mask

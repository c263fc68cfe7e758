"""Environments that do something wrong, for the messages of the troubleshooting page."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env):
    """Episodes of 20 steps, two numbers to see, two actions; truncated."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.step_number = 0

    def observation(self):
        return np.zeros(2, np.float32)

    def info(self):
        return {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self.observation(), self.info()

    def step(self, action):
        self.step_number += 1
        return self.observation(), 1.0, False, self.step_number >= 20, self.info()


class NaN(Sound):
    def observation(self):
        return np.full(2, np.nan if self.step_number == 7 else 0.0, np.float32)


class Raises(Sound):
    def step(self, action):
        if self.step_number == 10:
            raise ValueError("the simulator lost its licence")
        return super().step(action)


class WrongShape(Sound):
    def observation(self):
        return np.zeros(3 if self.step_number else 2, np.float32)


class Graph(Sound):
    observation_space = spaces.Graph(spaces.Box(-1, 1, (2,)), None)


class NothingLegal(Sound):
    def info(self):
        return {"action_mask": np.full(2, self.step_number != 7)}


class Killed(Sound):
    def step(self, action):
        if self.step_number == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Hangs(Sound):
    def step(self, action):
        if self.step_number == 10:
            time.sleep(120)
        return super().step(action)

"""Environments of the field cases that ``srl.environments.toy`` does not have."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from srl.environments.toy import Count, CountVector, RandomStart

Step = tuple[NDArray[Any], float, bool, bool, dict[str, Any]]


class Scripts(VectorEnv[Any, Any, Any]):
    """Column i plays ``columns[i]``, a list of episodes, over and over.

    An episode is ``{first: 10, rewards: [0, 0, 1], end: terminated | truncated | both}``; its observations are
    ``first``, ``first + 1``, ...: no two columns need have one in common.
    """

    def __init__(
        self, num_envs: int, columns: Sequence[Sequence[Mapping[str, Any]]], autoreset_mode: str = "next_step"
    ) -> None:
        self.num_envs = num_envs
        self._mode = CountVector.MODES[autoreset_mode]
        self.metadata = {"autoreset_mode": self._mode}
        self.single_observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = Box(0.0, np.inf, (num_envs, 1), np.float32)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._columns = [columns[index % len(columns)] for index in range(num_envs)]
        self._episode = [-1] * num_envs
        self._count = [0] * num_envs
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The next episode, for all or (``options["reset_mask"]``) some."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        for index in np.flatnonzero(mask):
            self._begin(index)
        return self._observations(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of each script."""
        if self._mode is AutoresetMode.DISABLED:
            assert not self._ended.any(), "an ended environment was not reset"
        reward = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for index in range(self.num_envs):
            if self._ended[index]:
                self._begin(index)
                continue
            script = self._script(index)
            reward[index] = script["rewards"][self._count[index]]
            self._count[index] += 1
            if self._count[index] == len(script["rewards"]):
                terminated[index] = script["end"] in ("terminated", "both")
                truncated[index] = script["end"] in ("truncated", "both")
        self._ended = terminated | truncated
        if self._mode is not AutoresetMode.SAME_STEP or not self._ended.any():
            return self._observations(), reward, terminated, truncated, {}
        infos = {"final_obs": self._observations(), "_final_obs": self._ended.copy()}
        for index in np.flatnonzero(self._ended):
            self._begin(index)
        return self._observations(), reward, terminated, truncated, infos

    def _begin(self, index: int) -> None:
        self._episode[index] += 1
        self._count[index] = 0
        self._ended[index] = False

    def _script(self, index: int) -> Mapping[str, Any]:
        episodes = self._columns[index]
        return episodes[self._episode[index] % len(episodes)]

    def _observations(self) -> NDArray[np.float32]:
        numbers = [self._script(index)["first"] + self._count[index] for index in range(self.num_envs)]
        return np.array(numbers, np.float32)[:, None]


class SeedCount(Count):
    """The observation is (a draw of the environment's generator made at the reset, seeds given so far)."""

    def __init__(self, length: int = 3) -> None:
        super().__init__(length)
        self.observation_space = Box(0.0, np.inf, (2,), np.float64)
        self._draw = 0.0
        self._seeds = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new draw."""
        self._seeds += seed is not None
        super().reset(seed=seed)
        self._draw = self.np_random.random()
        return self._observation(), {}

    def _observation(self) -> NDArray[Any]:
        return np.array([self._draw, self._seeds], np.float64)


class LoggedStart(RandomStart):
    """Writes the first observation of every episode into a file of its own in ``directory``, one per line."""

    def __init__(self, directory: str, length: int = 3) -> None:
        super().__init__(length)
        self._file = Path(directory) / f"{os.getpid()}-{id(self)}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As :class:`RandomStart`, written down."""
        observation, infos = super().reset(seed=seed)
        with self._file.open("a") as file:
            file.write(f"{self._draw!r}\n")
        return observation, infos


class TwoLengths(gymnasium.Env[Any, Any]):
    """Half of the episodes are short, half long: the observation is the length of the episode.

    Args:
        lengths: The two lengths in steps.
        slow_file: The environments of one process are slow: of the one that makes this file.
        slow_seconds: Time of one step of a slow environment.
    """

    def __init__(self, lengths: tuple[int, int], slow_file: str, slow_seconds: float) -> None:
        self.observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.action_space = Discrete(2)
        self._lengths = lengths
        self._slow_file = Path(slow_file)
        self._slow_seconds = slow_seconds
        self._seconds = 0.0
        self._length = self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode of a random one of the two lengths."""
        super().reset(seed=seed)
        if seed is not None:
            self._seconds = self._slow_seconds if self._is_slow() else 0.0
        self._length = self._left = self._lengths[int(self.np_random.integers(2))]
        return np.array([self._length], np.float32), {}

    def step(self, action: Any) -> Step:
        """One further."""
        if self._seconds:
            time.sleep(self._seconds)
        self._left -= 1
        return np.array([self._length], np.float32), 1.0, self._left == 0, False, {}

    def _is_slow(self) -> bool:
        try:
            with self._slow_file.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return self._slow_file.read_text() == str(os.getpid())
        return True


class BlockedAlone(CountVector):
    """One environment alone (an evaluator's, where actors have several) blocks in ``step`` until a file is there."""

    def __init__(self, num_envs: int, file: str) -> None:
        super().__init__(num_envs, lengths=(3, 5))
        self._file = Path(file)

    def step(self, actions: Any) -> Any:
        """As :class:`CountVector`, when it may."""
        while self.num_envs == 1 and not self._file.exists():
            threading.Event().wait(0.02)
        return super().step(actions)


class WithLock(Count):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(5)
        self._lock = threading.Lock()

    def step(self, action: Any) -> Step:
        """As :class:`Count`, under the lock."""
        with self._lock:
            return super().step(action)

"""Small environments with known answers, for tests of SRL itself and of algorithms.

Each is a :class:`gymnasium.Env` with two actions, used as ``{type: gymnasium, entry: "srl.environments.toy:Count"}``.
None of them is meant to be solved.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

Observation = NDArray[Any]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
End = Literal["terminated", "truncated"]
Fault = Literal["raise", "exit", "segv", "kill", "hang", "nan_reward", "nan_observation", "inf_observation"]


class Count(gymnasium.Env[Observation, Any]):
    """Counts its steps: the observation is ``float32[1]`` 0..length, the reward 1, the end at ``length``.

    Args:
        length: Steps of an episode.
        end: Which flag the last step sets.
    """

    def __init__(self, length: int = 3, end: End = "terminated") -> None:
        self.observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.action_space = Discrete(2)
        self._length = length
        self._end = end
        self._count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Back to 0."""
        super().reset(seed=seed)
        self._count = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        """One further, whatever the action."""
        self._count += 1
        ended = self._count >= self._length
        terminated = ended and self._end == "terminated"
        return self._observation(), 1.0, terminated, ended and not terminated, {}

    def _observation(self) -> Observation:
        return np.array([self._count], np.float32)


class RandomStart(Count):
    """As :class:`Count`, but the observation is one draw of the environment's own generator, made at the reset.

    Two environments (or episodes) with equal observations have equal random streams.

    Args:
        length: Steps of an episode.
        end: Which flag the last step sets.
    """

    def __init__(self, length: int = 3, end: End = "terminated") -> None:
        super().__init__(length, end)
        self._draw = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new draw."""
        super().reset(seed=seed)
        self._draw = float(self.np_random.random())
        return self._observation(), {}

    def _observation(self) -> Observation:
        return np.array([self._draw], np.float32)


class FrameSkip(gymnasium.Env[Observation, Any]):
    """Reward 1 per raw frame, ``skip`` frames under one step; the episode ends at ``frames``, within a step too.

    The observation is the frame number, ``float32[1]``.

    Args:
        frames: Raw frames of an episode.
        skip: Raw frames under one step; give the same number as ``frames_per_step``.
    """

    def __init__(self, frames: int = 40, skip: int = 4) -> None:
        self.observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.action_space = Discrete(2)
        self._frames = frames
        self._skip = skip
        self._frame = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Back to frame 0."""
        super().reset(seed=seed)
        self._frame = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Step:
        """Up to ``skip`` frames."""
        played = min(self._skip, self._frames - self._frame)
        self._frame += played
        return np.array([self._frame], np.float32), float(played), self._frame >= self._frames, False, {}


class Faulty(Count):
    """Fails at a given step, counted over the life of the environment (not of the episode).

    Args:
        kind: ``raise`` a ValueError("boom-42"); ``exit`` with code 3 at once; ``segv``: a native crash; ``kill``:
            SIGKILL to itself; ``hang``: never return; ``nan_reward``, ``nan_observation``, ``inf_observation``: the
            value, in this step only.
        step: The step, counted from 1.
        length: Steps of an episode.
    """

    def __init__(self, kind: Fault, step: int = 37, length: int = 10) -> None:
        super().__init__(length)
        self._act: dict[str, Callable[[], None]] = {
            "raise": _raise,
            "exit": lambda: os._exit(3),
            "segv": _segv,
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "hang": _hang,
        }
        self._kind = kind
        self._fault_step = step
        self._lived = 0

    def step(self, action: Any) -> Step:
        """As :class:`Count`, but for the fault."""
        self._lived += 1
        if self._lived != self._fault_step:
            return super().step(action)
        if self._kind in self._act:
            self._act[self._kind]()
        observation, reward, terminated, truncated, info = super().step(action)
        if self._kind == "nan_reward":
            return observation, float("nan"), terminated, truncated, info
        bad = np.full_like(observation, np.nan if self._kind == "nan_observation" else np.inf)
        return bad, reward, terminated, truncated, info


class SlowStep(Count):
    """As :class:`Count`, but a step takes time.

    Args:
        seconds: Time of one step.
        length: Steps of an episode.
        end: Which flag the last step sets.
    """

    def __init__(self, seconds: float, length: int = 3, end: End = "terminated") -> None:
        super().__init__(length, end)
        self._seconds = seconds

    def step(self, action: Any) -> Step:
        """As :class:`Count`, late."""
        time.sleep(self._seconds)
        return super().step(action)


class BigObservation(Count):
    """As :class:`Count`, but the observation is ``uint8[size_bytes]``, all elements the count modulo 256.

    Args:
        size_bytes: Bytes of one observation.
        length: Steps of an episode.
        end: Which flag the last step sets.
    """

    def __init__(self, size_bytes: int, length: int = 3, end: End = "terminated") -> None:
        super().__init__(length, end)
        self.observation_space = Box(0, 255, (size_bytes,), np.uint8)
        self._size_bytes = size_bytes

    def _observation(self) -> Observation:
        return np.full(self._size_bytes, self._count % 256, np.uint8)


class CountVector(VectorEnv[Observation, Any, Any]):
    """:class:`Count` as a vector environment, in any autoreset mode; environment i has ``lengths[i % len(lengths)]``.

    Args:
        num_envs: Number of environments.
        lengths: Steps of an episode, cycled over the environments.
        end: Which flag the last step sets.
        autoreset_mode: ``next_step``, ``same_step`` or ``disabled``.
        final_layout: How same-step autoreset reports final observations: ``objects`` (an object array with ``None``
            where nothing ended, as ``SyncVectorEnv``) or ``stacked`` (one array over all environments).
    """

    MODES: ClassVar[dict[str, AutoresetMode]] = {
        "next_step": AutoresetMode.NEXT_STEP,
        "same_step": AutoresetMode.SAME_STEP,
        "disabled": AutoresetMode.DISABLED,
    }

    def __init__(
        self,
        num_envs: int = 1,
        lengths: Sequence[int] = (3, 5),
        end: End = "terminated",
        autoreset_mode: Literal["next_step", "same_step", "disabled"] = "next_step",
        final_layout: Literal["objects", "stacked"] = "objects",
    ) -> None:
        self.num_envs = num_envs
        self._mode = self.MODES[autoreset_mode]
        self.metadata = {"autoreset_mode": self._mode}
        self.single_observation_space = Box(0.0, np.inf, (1,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = Box(0.0, np.inf, (num_envs, 1), np.float32)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._lengths = np.resize(np.array(lengths, np.int64), num_envs)
        self._terminates = end == "terminated"
        self._stacked = final_layout == "stacked"
        self._count = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Back to 0, all or (``options["reset_mask"]``) some."""
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._count[mask] = 0
        self._ended[mask] = False
        return self._observation(), {}

    def step(
        self, actions: Any
    ) -> tuple[Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One further; what an ended environment does depends on the mode."""
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            raise RuntimeError(f"environments {np.flatnonzero(self._ended).tolist()} ended and were not reset")
        resetting = self._ended.copy()
        self._count = np.where(resetting, 0, self._count + 1)
        ended = self._count >= self._lengths
        infos: dict[str, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            infos = {"final_obs": self._final(ended), "_final_obs": ended.copy()}
            self._count[ended] = 0
        else:
            self._ended = ended.copy()
        reward = np.where(resetting, 0.0, 1.0)
        no = np.zeros(self.num_envs, np.bool_)
        return self._observation(), reward, ended if self._terminates else no, no if self._terminates else ended, infos

    def _observation(self) -> Observation:
        return self._count.astype(np.float32)[:, None]

    def _final(self, ended: NDArray[np.bool_]) -> NDArray[Any]:
        observation = self._observation()
        if self._stacked:
            return observation
        objects = np.full(self.num_envs, None, object)
        for index in np.flatnonzero(ended):
            objects[index] = observation[index]
        return objects


def _raise() -> None:
    raise ValueError("boom-42")


def _segv() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    while True:
        time.sleep(1.0)

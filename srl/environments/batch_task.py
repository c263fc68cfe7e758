"""The form of our own tasks: a batch in numpy, from which both a vector environment and a single one are made."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


class BatchTask(VectorEnv[Any, Any, Any]):
    """A vector environment that resets on the same step.

    A task says how episodes begin, what a step does and what is seen; its random numbers come from ``np_random`` alone,
    which ``reset(seed=...)`` drives.

    Args:
        num_envs: B.
        observation: Space of one observation.
        action: Space of one action.
    """

    def __init__(self, num_envs: int, observation: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = batch_space(observation, num_envs)
        self.action_space = batch_space(action, num_envs)

    @property
    @abstractmethod
    def optimum(self) -> float:
        """Expected return of the best policy."""

    @abstractmethod
    def begin(self, mask: Mask) -> None:
        """New episodes where ``mask`` (bool[B]) is set."""

    @abstractmethod
    def advance(self, actions: Any) -> tuple[NDArray[Any], Mask, Mask]:
        """One step of all: ``reward`` [B], ``terminated`` bool[B], ``truncated`` bool[B]."""

    @abstractmethod
    def observe(self) -> Any:
        """Observations of all, arrays ``[B, ...]`` that nothing changes afterwards."""

    def legal(self) -> NDArray[np.bool_] | None:
        """``bool[B, M]`` legal actions; ``None`` = all."""
        return None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """New episodes, all or (``options["reset_mask"]``) some."""
        if isinstance(seed, int):
            super().reset(seed=seed)
        self.begin((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        return self.observe(), self._infos()

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], Mask, Mask, dict[str, Any]]:
        """One step; ended episodes begin anew, their last observations are in ``infos["final_obs"]`` [B, ...]."""
        reward, terminated, truncated = self.advance(actions)
        ended = terminated | truncated
        if not ended.any():
            return self.observe(), reward, terminated, truncated, self._infos()
        final = {"final_obs": self.observe(), "_final_obs": ended}
        self.begin(ended)
        return self.observe(), reward, terminated, truncated, {**self._infos(), **final}

    def _infos(self) -> dict[str, Any]:
        legal = self.legal()
        return {} if legal is None else {"action_mask": legal, "_action_mask": np.ones(self.num_envs, np.bool_)}


class SingleTask(gymnasium.Env[Any, Any]):
    """A task as a single environment, for wrappers.

    Args:
        arguments: Those of the task.
    """

    task: ClassVar[type[BatchTask]]

    def __init__(self, **arguments: Any) -> None:
        self._batch = self.task(1, **arguments)
        self.observation_space = self._batch.single_observation_space
        self.action_space = self._batch.single_action_space

    @property
    def optimum(self) -> float:
        """Expected return of the best policy."""
        return self._batch.optimum

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        super().reset(seed=seed)
        observation, _ = self._batch.reset(seed=seed)
        return _first(observation), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        reward, terminated, truncated = self._batch.advance(_batch_of(action))
        observation = _first(self._batch.observe())
        return observation, float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def _info(self) -> dict[str, Any]:
        legal = self._batch.legal()
        return {} if legal is None else {"action_mask": legal[0]}


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _first(entry) for key, entry in batch.items()}
    return tuple(_first(entry) for entry in batch) if isinstance(batch, tuple) else batch[0]


def _batch_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _batch_of(entry) for key, entry in value.items()}
    return tuple(_batch_of(entry) for entry in value) if isinstance(value, tuple) else np.asarray(value)[None]

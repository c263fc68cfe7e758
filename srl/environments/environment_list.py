"""Single Gymnasium environments, stepped one after the other, as one batch.

A loop of our own in place of ``SyncVectorEnv``: it writes each result straight into the block, resets on the same step,
and names the environment and the step where one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault
from srl.api.importing import place_of
from srl.environments.sources import making
from srl.environments.spaces import environment_spec, fits, misfit

SingleEnv = gymnasium.Env[Any, Any]


class EnvironmentList(VectorEnvironment):
    """``count`` single environments; every row is valid, the row after an end starts the next episode.

    Args:
        make: Makes one environment.
        seeds: One per environment, given to its first reset only.
        name: Name for messages.
        frames_per_step: Emulator frames under one env step.

    Raises:
        EnvironmentFault: If an environment cannot be made, or has other spaces than the first.
    """

    def __init__(
        self, make: Callable[[], SingleEnv], seeds: Sequence[int], *, name: str, frames_per_step: int = 1
    ) -> None:
        self.count = len(seeds)
        self._name = name
        self._step = 0
        self._seeds = [int(seed) for seed in seeds]
        self._envs: list[SingleEnv] = []
        try:
            for _ in seeds:
                with making(name):
                    self._envs.append(make())
            self.spec = environment_spec(self._envs[0], name, frames_per_step)
            self._check_equal_spaces()
        except BaseException:
            self.close()
            raise
        self._start = self.spec.action.start
        self._discrete = self.spec.action.kind == "discrete"
        self._action_dtype: np.dtype[Any] = np.dtype(self._envs[0].action_space.dtype)
        self._shape = self.spec.observation.shape
        self._dtype: np.dtype[Any] = np.dtype(self.spec.observation.dtype)

    def reset(self, out: StepOutput) -> None:
        """Start every environment with its seed (the only time seeds are given)."""
        index = 0
        try:
            for index, env in enumerate(self._envs):
                observation, _ = env.reset(seed=self._seeds[index])
                out.observation[index] = self._checked(index, observation)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise self._raised(index, "reset", error) from error
        out.valid[...] = True
        out.episode_start[...] = True

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every environment once; see :meth:`VectorEnvironment.step`.

        Raises:
            EnvironmentFault: If an environment raises or returns what its spaces do not allow.
        """
        self._step += 1
        actions = self._given(action)
        out.valid[...] = True
        out.episode_start[...] = False
        columns: list[int] = []
        finals: list[NDArray[Any]] = []
        index = 0
        try:
            for index, env in enumerate(self._envs):
                observation, reward, terminated, truncated, _ = env.step(actions[index])
                out.reward[index] = reward
                out.terminated[index] = terminated
                out.truncated[index] = truncated
                if terminated or truncated:
                    columns.append(index)
                    # A copy, because an environment may hand out one buffer again and again.
                    finals.append(np.array(self._checked(index, observation), self._dtype))
                    observation, _ = env.reset()
                    out.episode_start[index] = True
                out.observation[index] = self._checked(index, observation)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise self._raised(index, "step", error) from error
        if not columns:
            return None
        return Ended(np.array(columns, np.int64), np.stack(finals))

    def close(self) -> None:
        """Close the environments; may be called twice."""
        envs, self._envs = self._envs, []
        with ExitStack() as stack:  # closes the others too where one of them raises
            for env in envs:
                stack.callback(env.close)

    def _given(self, action: NDArray[Any]) -> Sequence[Any]:
        """One action per environment, each its own to keep or change."""
        if self._discrete:
            return list((action + self._start).astype(self._action_dtype, copy=False))
        copy = action.astype(self._action_dtype)
        return [copy[index, ...] for index in range(self.count)]

    def _checked(self, index: int, observation: Any) -> Any:
        if type(observation) is np.ndarray and observation.dtype == self._dtype and observation.shape == self._shape:
            return observation
        if isinstance(observation, (dict, tuple)) or not fits(np.asarray(observation), self._shape, self._dtype):
            raise misfit("observation", observation, self._shape, self._dtype, self._where(index))
        return observation

    def _check_equal_spaces(self) -> None:
        first = self._envs[0]
        for index, env in enumerate(self._envs):
            for field in ("observation_space", "action_space"):
                if getattr(env, field) != getattr(first, field):
                    raise EnvironmentFault(
                        f"environments of one kind differ in their {field}",
                        where=self._where(index),
                        value=str(getattr(env, field)),
                        expected=f"{getattr(first, field)}, as in environment 0",
                        hint="Spaces must be fixed at the start and the same for every environment.",
                    )

    def _where(self, index: int) -> str:
        return f"{self._name}, environment {index}, step {self._step}"

    def _raised(self, index: int, call: str, error: Exception) -> EnvironmentFault:
        return EnvironmentFault(
            f"the environment raised {type(error).__name__} in {call}: {error}",
            where=self._where(index),
            hint=f"Raised at {place_of(error)}",
        )

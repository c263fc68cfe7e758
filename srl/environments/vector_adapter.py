"""From a Gymnasium vector environment, in any autoreset mode, to the environment contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault
from srl.api.importing import place_of
from srl.environments.spaces import environment_spec, fits, misfit


class VectorAdapter(VectorEnvironment):
    """Wraps a vector environment; per-episode data are the same whatever its autoreset mode.

    ======== ================================================ ====================================================
    mode     the ending step's result                         the row after it
    ======== ================================================ ====================================================
    NEXT     its observation is the final one                 invalid (the reset query; the action is ignored), and
                                                              the row after that starts the episode
    SAME     the final observation is in ``infos``            valid, starts the episode
    DISABLED its observation is the final one; the adapter    valid, starts the episode
             resets the ended environments in the same call
    ======== ================================================ ====================================================

    Args:
        env: The vector environment, not yet reset; owned from here on.
        seeds: One per environment, for the first reset; a vector environment with one generator takes the first.
        name: Name for messages.
        frames_per_step: Emulator frames under one env step.

    Raises:
        EnvironmentFault: For spaces that SRL cannot carry, or where the autoreset mode is not declared.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], seeds: Sequence[int], *, name: str, frames_per_step: int = 1
    ) -> None:
        self._env = env
        self._mode = autoreset_mode(env, name)
        self.count = int(env.num_envs)
        self.spec = environment_spec(env, name, frames_per_step)
        self._seeds = [int(seed) for seed in seeds]
        self._start = self.spec.action.start
        self._action_dtype: np.dtype[Any] = np.dtype(env.single_action_space.dtype)
        self._vector_shape = (self.count,)
        self._observation_shape = (self.count, *self.spec.observation.shape)
        self._observation_dtype: np.dtype[Any] = np.dtype(self.spec.observation.dtype)
        self._ended = np.zeros(self.count, np.bool_)
        self._resetting = np.zeros(self.count, np.bool_)
        self._any_resetting = False
        self._step = 0
        self._closed = False

    def reset(self, out: StepOutput) -> None:
        """Start every environment with its seed (the only time seeds are given)."""
        several = isinstance(self._env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        seed: Any = self._seeds if several else self._seeds[0]
        try:
            observation, _ = self._env.reset(seed=seed)
        except Exception as error:
            raise self._raised("reset", error) from error
        self._write_observation(observation, out.observation)
        out.valid[...] = True
        out.episode_start[...] = True
        self._any_resetting = False

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every environment once; see :meth:`VectorEnvironment.step`.

        Raises:
            EnvironmentFault: If the environment raises or returns what its spaces do not allow.
        """
        self._step += 1
        # A copy in any case: an environment that keeps or changes its action must not reach the caller's array.
        given = action + self._start if self._start else action.astype(self._action_dtype)
        try:
            observation, reward, terminated, truncated, infos = self._env.step(given)
        except Exception as error:
            raise self._raised("step", error) from error
        self._write_observation(observation, out.observation)
        self._write_vectors(np.asarray(reward), np.asarray(terminated), np.asarray(truncated), out)
        if self._any_resetting:
            self._blank_resetting(out)
        ended = np.logical_or(out.terminated, out.truncated, out=self._ended)
        out.valid[...] = True
        if self._any_resetting:
            out.episode_start[...] = self._resetting
            self._any_resetting = False
        else:
            out.episode_start[...] = False
        if not np.count_nonzero(ended):
            return None
        return self._end(observation, infos, out)

    def close(self) -> None:
        """Release the vector environment."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _end(self, observation: NDArray[Any], infos: dict[str, Any], out: StepOutput) -> Ended:
        """The rare path: at least one environment ended in this step."""
        columns = np.flatnonzero(self._ended)
        if self._mode is AutoresetMode.SAME_STEP:
            final = self._final_from_infos(infos, columns)
            out.episode_start[columns] = True
        elif self._mode is AutoresetMode.NEXT_STEP:
            final = observation[columns].astype(self._observation_dtype, copy=False)
            out.valid[columns] = False
            self._resetting[...] = self._ended
            self._any_resetting = True
        else:
            final = observation[columns].astype(self._observation_dtype, copy=False)
            self._reset_ended(columns, out)
        return Ended(columns, final)

    def _reset_ended(self, columns: NDArray[np.int64], out: StepOutput) -> None:
        try:
            observation, _ = self._env.reset(options={"reset_mask": self._ended.copy()})
        except Exception as error:
            raise self._raised("reset", error) from error
        if not fits(observation, self._observation_shape, self._observation_dtype):
            raise self._misfit("observation", observation, self._observation_shape, self._observation_dtype)
        out.observation[columns] = observation[columns]
        out.episode_start[columns] = True

    def _blank_resetting(self, out: StepOutput) -> None:
        """The row of a reset query holds no transition, whatever the environment reports for it."""
        out.reward[self._resetting] = 0.0
        out.terminated[self._resetting] = False
        out.truncated[self._resetting] = False

    def _final_from_infos(self, infos: dict[str, Any], columns: NDArray[np.int64]) -> NDArray[Any]:
        """``[E, ...]`` from ``infos["final_obs"]``: one array over all environments, or one object for each."""
        stored = infos.get("final_obs")
        if stored is None:
            raise EnvironmentFault(
                "the vector environment resets on the same step but reports no final observation",
                where=self._where(),
                expected='infos["final_obs"]',
            )
        final = stored[columns]
        if final.dtype == object:
            final = np.stack([np.asarray(one) for one in final])
        shape = (len(columns), *self.spec.observation.shape)
        if not fits(final, shape, self._observation_dtype):
            raise self._misfit("final observation", final, shape, self._observation_dtype)
        return np.asarray(final, self._observation_dtype)

    def _write_observation(self, observation: Any, target: NDArray[Any]) -> None:
        if (
            type(observation) is not np.ndarray
            or observation.shape != self._observation_shape
            or observation.dtype != self._observation_dtype
        ) and not (
            isinstance(observation, np.ndarray) and fits(observation, self._observation_shape, self._observation_dtype)
        ):
            raise self._misfit("observation", observation, self._observation_shape, self._observation_dtype)
        target[...] = observation

    def _write_vectors(
        self, reward: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any], out: StepOutput
    ) -> None:
        shape = self._vector_shape
        if reward.shape != shape or terminated.shape != shape or truncated.shape != shape:
            raise self._wrong_vector(reward=reward, terminated=terminated, truncated=truncated)
        out.reward[...] = reward
        out.terminated[...] = terminated
        out.truncated[...] = truncated

    def _wrong_vector(self, **vectors: NDArray[Any]) -> EnvironmentFault:
        field, value = next((name, one) for name, one in vectors.items() if one.shape != self._vector_shape)
        dtype = np.dtype(np.float32 if field == "reward" else np.bool_)
        return self._misfit(field, value, self._vector_shape, dtype)

    def _where(self) -> str:
        return f"{self.spec.name}, step {self._step}"

    def _misfit(self, field: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> EnvironmentFault:
        return misfit(field, value, shape, dtype, self._where())

    def _raised(self, call: str, error: Exception) -> EnvironmentFault:
        return EnvironmentFault(
            f"the vector environment raised {type(error).__name__} in {call}: {error}",
            where=f"{self.spec.name}, {self.count} environments, step {self._step}",
            hint=f"Raised at {place_of(error)}",
        )


def autoreset_mode(env: VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    """The autoreset mode a vector environment declares.

    Raises:
        EnvironmentFault: If it declares none; guessing one would misplace every episode end.
    """
    mode = env.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return mode
    raise EnvironmentFault(
        "the vector environment does not declare its autoreset mode",
        where=name,
        value=mode,
        expected='metadata["autoreset_mode"] to be a gymnasium.vector.AutoresetMode',
        hint="Which row holds the final observation depends on it.",
    )

"""From a Gymnasium vector environment, in any autoreset mode, to the environment contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from srl.api.environment import Ended, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault
from srl.environments.masks import MaskReader, MaskSource, split_mask
from srl.environments.results import RESET, STEP, info_of, parts_fault, raised_fault
from srl.environments.spaces import MASK_KEY, MASK_METHOD, environment_spec
from srl.environments.values import ActionReader, ObservationWriter, misfit


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
        action_mask: Where the environment puts action masks; ``None`` = nowhere. The mask of a row is that of the
            observation in the row; rows of reset queries have everything legal.

    Raises:
        EnvironmentFault: For spaces that SRL cannot carry, or where the autoreset mode is not declared.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        seeds: Sequence[int],
        *,
        name: str,
        frames_per_step: int = 1,
        action_mask: MaskSource | None = None,
    ) -> None:
        self._env = env
        self._mode = autoreset_mode(env, name)
        self.count = int(env.num_envs)
        self.spec = environment_spec(env, name, frames_per_step, action_mask)
        self._seeds = [int(seed) for seed in seeds]
        self._actions = ActionReader(self.spec.action, env.single_action_space)
        self._writer = ObservationWriter(self.spec.observation)
        self._final_writer = ObservationWriter(self.spec.observation, "final observation")
        self._masks = None if action_mask is None else MaskReader(self.spec.action, action_mask)
        self._vector_shape = (self.count,)
        self._ended = np.zeros(self.count, np.bool_)
        self._resetting = np.zeros(self.count, np.bool_)
        self._any_resetting = False
        self._step = 0
        self._closed = False

    @property
    def _several(self) -> bool:
        """True if it is made of single environments, each with its own generator and methods."""
        return isinstance(self._env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))

    def reset(self, out: StepOutput) -> None:
        """Start every environment with its seed (the only time seeds are given)."""
        seed: Any = self._seeds if self._several else self._seeds[0]
        observation, infos = self._reset(seed=seed)
        every = np.ones(self.count, np.bool_)
        self._write(observation, infos, every, out)
        out.valid[...] = True
        out.episode_start[...] = True
        self._any_resetting = False

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every environment once; see :meth:`VectorEnvironment.step`.

        Raises:
            EnvironmentFault: If the environment raises or returns what its spaces do not allow.
        """
        self._step += 1
        given = self._actions.batch(action)
        try:
            result = self._env.step(given)
        except Exception as error:
            raise self._raised("step", error) from error
        fault = parts_fault(result, STEP, self._where)
        if fault is not None:
            raise fault
        observation, reward, terminated, truncated, infos = result
        self._write_vectors(np.asarray(reward), np.asarray(terminated), np.asarray(truncated), out)
        if self._any_resetting:
            self._blank_resetting(out)
        ended = np.logical_or(out.terminated, out.truncated, out=self._ended)
        # Until it is reset, the mask of an ended environment is of no use.
        masked = None if self._masks is None else ~ended | (self._mode is AutoresetMode.SAME_STEP)
        self._write(observation, infos, masked, out)
        out.valid[...] = True
        if self._any_resetting:
            out.episode_start[...] = self._resetting
            self._any_resetting = False
        else:
            out.episode_start[...] = False
        if not np.count_nonzero(ended):
            return None
        return self._end(infos, out)

    def close(self) -> None:
        """Release the vector environment."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _end(self, infos: dict[str, Any], out: StepOutput) -> Ended:
        """The rare path: at least one environment ended in this step."""
        columns = np.flatnonzero(self._ended)
        if self._mode is AutoresetMode.SAME_STEP:
            final = self._final_from_infos(infos, columns)
            out.episode_start[columns] = True
        elif self._mode is AutoresetMode.NEXT_STEP:
            final = out.observation[columns]
            out.valid[columns] = False
            self._resetting[...] = self._ended
            self._any_resetting = True
        else:
            final = out.observation[columns]
            self._reset_ended(columns, out)
        return Ended(columns, final)

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        try:
            result = self._env.reset(**arguments)
        except Exception as error:
            raise self._raised("reset", error) from error
        fault = parts_fault(result, RESET, self._where)
        if fault is not None:
            raise fault
        observation, infos = result
        return observation, infos

    def _reset_ended(self, columns: NDArray[np.int64], out: StepOutput) -> None:
        observation, infos = self._reset(options={"reset_mask": self._ended.copy()})
        others = out.observation.copy()
        self._write(observation, infos, self._ended, out)
        out.observation[~self._ended] = others[~self._ended]
        out.episode_start[columns] = True

    def _write(
        self, observation: Any, infos: dict[str, Any], masked: NDArray[np.bool_] | None, out: StepOutput
    ) -> None:
        """Observations of all environments, and masks of those that ``masked`` (bool[B]) marks."""
        if self._masks is not None:
            observation, mask, present = self._mask(observation, infos)
            if out.action_mask is not None and masked is not None:
                self._masks.write_batch(mask, present, masked, out.action_mask, self._where)
                if self._mode is AutoresetMode.NEXT_STEP:
                    out.action_mask[~masked] = True
        self._writer.write_batch(observation, out.observation, self._where)

    def _mask(self, observation: Any, infos: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The observation without its mask, the masks, and for which environments there is one (``None`` = all)."""
        assert self._masks is not None  # the caller looked
        if self._masks.source == "observation":
            return *split_mask(observation, self._where), None
        if self._masks.source == "info":
            told = info_of(infos, self._where)
            return observation, told.get(MASK_KEY), told.get(f"_{MASK_KEY}")
        unwrapped: Any = self._env.unwrapped
        return observation, unwrapped.call(MASK_METHOD) if self._several else getattr(unwrapped, MASK_METHOD)(), None

    def _blank_resetting(self, out: StepOutput) -> None:
        """The row of a reset query holds no transition, whatever the environment reports for it."""
        out.reward[self._resetting] = 0.0
        out.terminated[self._resetting] = False
        out.truncated[self._resetting] = False

    def _final_from_infos(self, infos: dict[str, Any], columns: NDArray[np.int64]) -> NDArray[Any]:
        """``[E, ...]`` from ``infos["final_obs"]``: one array over all environments, or one object for each."""
        stored = info_of(infos, self._where).get("final_obs")
        if stored is None:
            raise EnvironmentFault(
                "the vector environment resets on the same step but reports no final observation",
                where=self._where(),
                expected='infos["final_obs"]',
            )
        found = np.zeros((len(columns), *self.spec.observation.shape), self.spec.observation.dtype)
        if isinstance(stored, np.ndarray) and stored.dtype == object:
            for position, column in enumerate(columns):
                self._final_writer.write(self._observed(stored[column]), found, position, self._where)
        else:
            self._final_writer.write_batch(_taken(self._observed(stored), columns), found, self._where)
        return found

    def _observed(self, observation: Any) -> Any:
        """The observation without its mask."""
        if self._masks is None or self._masks.source != "observation":
            return observation
        return split_mask(observation, self._where)[0]

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
        where = f"{self.spec.name}, {self.count} environments, step {self._step}"
        return raised_fault(error, "the vector environment", call, where)


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


def _taken(batch: Any, columns: NDArray[np.int64]) -> Any:
    """Some columns of arrays ``[B, ...]``, nested or not."""
    if isinstance(batch, dict):
        return {key: _taken(entry, columns) for key, entry in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_taken(entry, columns) for entry in batch)
    return batch[columns]

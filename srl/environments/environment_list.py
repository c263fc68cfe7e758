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
from srl.environments.masks import MaskReader, MaskSource, split_mask
from srl.environments.results import NOTHING, RESET, info_of, parts_fault, raised_fault, step_fault
from srl.environments.sources import making
from srl.environments.spaces import MASK_KEY, MASK_METHOD, environment_spec
from srl.environments.values import ActionReader, ObservationWriter
from srl.environments.wrapping import RawEpisode

SingleEnv = gymnasium.Env[Any, Any]


class EnvironmentList(VectorEnvironment):
    """``count`` single environments; every row is valid, the row after an end starts the next episode.

    Args:
        make: Makes one environment.
        seeds: One per environment, given to its first reset only.
        name: Name for messages.
        frames_per_step: Emulator frames under one env step.
        wrap: Puts the experiment's wrappers around an environment; ``None`` = there are none. With wrappers the
            reported return is the sum of rewards under them, and an end after which the wrappers do not reset the
            environment under them (a lost life) is no end of a reported episode.
        action_mask: Where the environments put action masks; ``None`` = nowhere.

    Raises:
        EnvironmentFault: If an environment cannot be made, or has other spaces than the first.
    """

    def __init__(
        self,
        make: Callable[[], SingleEnv],
        seeds: Sequence[int],
        *,
        name: str,
        frames_per_step: int = 1,
        wrap: Callable[[SingleEnv], SingleEnv] | None = None,
        action_mask: MaskSource | None = None,
    ) -> None:
        self.count = len(seeds)
        self._name = name
        self._step = 0
        self._seeds = [int(seed) for seed in seeds]
        self._envs: list[SingleEnv] = []
        self._raw: list[RawEpisode] = []
        try:
            for _ in seeds:
                self._add(make, wrap)
            self.spec = environment_spec(self._envs[0], name, frames_per_step, action_mask)
            self._check_equal_spaces()
        except BaseException:
            self.close()
            raise
        self._actions = ActionReader(self.spec.action, self._envs[0].action_space)
        self._writer = ObservationWriter(self.spec.observation)
        self._masks = None if action_mask is None else MaskReader(self.spec.action, action_mask)
        self._shape = self.spec.observation.shape
        self._dtype: np.dtype[Any] = np.dtype(self.spec.observation.dtype)
        self._is_box = self.spec.observation.kind == "box"

    def reset(self, out: StepOutput) -> None:
        """Start every environment with its seed (the only time seeds are given)."""
        for index, seed in enumerate(self._seeds):
            self._write(index, *self._reset(index, seed=seed), out)
        out.valid[...] = True
        out.episode_start[...] = True

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every environment once; see :meth:`VectorEnvironment.step`.

        Raises:
            EnvironmentFault: If an environment raises or returns what its spaces do not allow.
        """
        self._step += 1
        actions = self._actions.each(action)
        out.valid[...] = True
        out.episode_start[...] = False
        ends: list[tuple[int, NDArray[Any], float, bool]] = []
        index = 0
        result: Any = NOTHING
        try:
            for index, env in enumerate(self._envs):
                result = NOTHING
                result = env.step(actions[index])
                observation, reward, terminated, truncated, info = result
                out.reward[index] = float(reward)  # None would be written as NaN
                out.terminated[index] = terminated
                out.truncated[index] = truncated
                if terminated or truncated:
                    # A copy, because an environment may hand out one buffer again and again.
                    final = self._copied(index, observation)
                    total, counted, observation, info = self._restart(index)
                    ends.append((index, final, total, counted))
                    out.episode_start[index] = True
                self._write(index, observation, info, out)
        except EnvironmentFault:
            raise
        except Exception as error:
            fault = None if result is NOTHING else step_fault(result, lambda: self._where(index))
            raise fault or self._raised(index, "step", error) from error
        return self._ended(ends) if ends else None

    def close(self) -> None:
        """Close the environments; may be called twice."""
        envs, self._envs = self._envs, []
        with ExitStack() as stack:  # closes the others too where one of them raises
            for env in envs:
                stack.callback(env.close)

    def _add(self, make: Callable[[], SingleEnv], wrap: Callable[[SingleEnv], SingleEnv] | None) -> None:
        with making(self._name):
            env = make()
        # Known before it is wrapped: a wrapper that fails must not leave it open.
        self._envs.append(env)
        if wrap is not None:
            raw = RawEpisode(env)
            self._raw.append(raw)
            self._envs[-1] = wrap(raw)

    def _restart(self, index: int) -> tuple[float, bool, Any, dict[str, Any]]:
        """Return of the episode under the wrappers, whether it is over there too, and the reset's results."""
        if not self._raw:
            return 0.0, True, *self._reset(index)
        raw = self._raw[index]
        total, resets = raw.episode_return, raw.resets
        observation, info = self._reset(index)
        return total, raw.resets != resets, observation, info

    def _reset(self, index: int, **seed: Any) -> tuple[Any, Any]:
        """Observation and info of a reset."""
        raw = self._raw[index] if self._raw else None
        if raw is not None:
            raw.begins = True
        try:
            result = self._envs[index].reset(**seed)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise self._raised(index, "reset", error) from error
        if raw is not None:
            raw.begins = False  # until the next one: a wrapper may put several episodes below into one
        fault = parts_fault(result, RESET, lambda: self._where(index))  # two numbers would unpack as well
        if fault is not None:
            raise fault
        observation, info = result
        return observation, info

    def _ended(self, ends: list[tuple[int, NDArray[Any], float, bool]]) -> Ended:
        columns = np.array([index for index, _, _, _ in ends], np.int64)
        finals = np.concatenate([final for _, final, _, _ in ends])
        if not self._raw:
            return Ended(columns, finals)
        counted = np.array([over for _, _, _, over in ends], np.bool_)
        returns = np.array([total for _, _, total, _ in ends], np.float64)
        return Ended(columns, finals, returns, None if counted.all() else counted)

    def _write(self, index: int, observation: Any, info: dict[str, Any], out: StepOutput) -> None:
        if self._masks is not None:
            observation, mask = self._mask(index, observation, info)
            if out.action_mask is not None:
                self._masks.write(mask, out.action_mask[index], lambda: self._where(index))
        if (
            self._is_box
            and type(observation) is np.ndarray
            and observation.dtype == self._dtype
            and observation.shape == self._shape
        ):
            out.observation[index] = observation
        else:
            self._writer.write(observation, out.observation, index, lambda: self._where(index))

    def _mask(self, index: int, observation: Any, info: dict[str, Any]) -> tuple[Any, Any]:
        assert self._masks is not None  # the caller looked
        if self._masks.source == "observation":
            return split_mask(observation, lambda: self._where(index))
        if self._masks.source == "info":
            return observation, info_of(info, lambda: self._where(index)).get(MASK_KEY)
        return observation, self._envs[index].get_wrapper_attr(MASK_METHOD)()

    def _copied(self, index: int, observation: Any) -> NDArray[Any]:
        """``[1, ...]``."""
        if self._masks is not None and self._masks.source == "observation":
            observation, _ = split_mask(observation, lambda: self._where(index))
        final = np.zeros((1, *self._shape), self._dtype)
        self._writer.write(observation, final, 0, lambda: self._where(index))
        return final

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
        return raised_fault(error, "the environment", call, self._where(index))

"""An environment of known optimum, stepped as one numpy batch: no gymnasium, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srl.api.environment import Ended, EnvironmentFactory, EnvironmentSpec, StepOutput, VectorEnvironment
from srl.api.errors import SRLError
from srl.api.spaces import SpaceSpec
from srl.environments.options import Options, option_problems, parse_options

STEP_REWARD = -0.05
GOAL_REWARD = 1.0


class CorridorOptions(Options):
    """Options beside ``type: example_corridor``."""

    distance: int = Field(default=2, ge=1, description="Steps from the start to either end.")
    limit: int = Field(default=40, ge=1, description="Steps after which an episode is truncated.")


class Corridor(VectorEnvironment):
    """A start in the middle and a goal at one end; action 1 goes right and 0 left, or the other way round.

    The observation is ``float32[3]``: position in [-1, 1], the side of the goal (-1 or 1), and the way of the actions
    (-1 or 1); the last two are drawn per episode, so no linear policy is good. An end without the goal is a wall.
    Ended columns begin anew in the same step, so every row is a transition.
    """

    def __init__(self, spec: EnvironmentSpec, options: CorridorOptions, count: int, seeds: Sequence[int]) -> None:
        self.spec = spec
        self.count = count
        self._options = options
        self._generator = np.random.default_rng(list(seeds))
        self._position = np.zeros(count, np.int64)
        self._goal = np.zeros(count, np.int64)
        self._way = np.zeros(count, np.int64)
        self._steps = np.zeros(count, np.int64)

    def reset(self, out: StepOutput) -> None:
        """Every column at a start."""
        self._begin(np.arange(self.count))
        out.observation[...] = self._observation()
        out.valid[...] = True
        out.episode_start[...] = True

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """One step of every column."""
        options = self._options
        self._position += (2 * action - 1) * self._way
        np.clip(self._position, -options.distance, options.distance, out=self._position)
        self._steps += 1
        terminated = self._position == self._goal * options.distance
        truncated = ~terminated & (self._steps >= options.limit)
        out.reward[...] = np.where(terminated, GOAL_REWARD, STEP_REWARD)
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        columns = np.flatnonzero(terminated | truncated)
        final_observation = self._observation()[columns]
        self._begin(columns)
        out.observation[...] = self._observation()
        out.valid[...] = True
        out.episode_start[...] = terminated | truncated
        return Ended(columns, final_observation) if len(columns) else None

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self, columns: NDArray[np.int64]) -> None:
        self._position[columns] = 0
        self._steps[columns] = 0
        self._goal[columns], self._way[columns] = 2 * self._generator.integers(2, size=(2, len(columns))) - 1

    def _observation(self) -> NDArray[np.float32]:
        position = self._position / self._options.distance
        return np.stack([position, self._goal, self._way], axis=1).astype(np.float32)


class CorridorFactory(EnvironmentFactory):
    """The environment type ``example_corridor``."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[SRLError]:
        """One error per problem; ``where`` is the key."""
        return option_problems(CorridorOptions, options)

    def probe(self) -> EnvironmentSpec:
        """Known without making one."""
        return EnvironmentSpec(
            name="example_corridor",
            observation=SpaceSpec("box", (3,), "float32", low=-1.0, high=1.0),
            action=SpaceSpec("discrete", (), "int64", n=2),
        )

    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """``count`` columns with one generator, seeded by all their seeds."""
        return Corridor(self.probe(), parse_options(CorridorOptions, self.options), count, seeds)

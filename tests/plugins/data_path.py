"""An environment and an algorithm that use all that a block can carry: records, action masks and recurrent states.

Every observation, mask and reward is a function of (column, count), and the policy writes down what it saw: tests say
from the batches that reached the trainer whether anything was lost, moved or mixed on the way. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.block import FieldSpec
from srl.api.environment import Ended, EnvironmentFactory, EnvironmentSpec, StepOutput, VectorEnvironment
from srl.api.policy import ActingPolicy, ActInput, ActOutput, NoiseSpec, PolicySpec
from srl.api.spaces import SpaceSpec, mask_size, stored_action

TRAINER = Path(__file__).with_name("data_path_trainer.py")
LENGTHS = (3, 3, 5)
"""Steps of an episode, cycled over the columns; odd columns have a reset query (next-step autoreset)."""

OBSERVATION = SpaceSpec.nested(
    "dict",
    {
        "image": SpaceSpec("box", (3, 2), "uint8", low=0.0, high=255.0),
        "count": SpaceSpec("box", (1,), "float32"),
        "inner": SpaceSpec.nested(
            "tuple", {"0": SpaceSpec("discrete", (), "int64", n=3), "1": SpaceSpec("box", (2,), "float32")}
        ),
    },
)
ACTION = SpaceSpec.nested(
    "dict",
    {
        "push": SpaceSpec("box", (2,), "float32"),
        "choice": SpaceSpec("discrete", (), "int64", n=3),
        "switches": SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 2)),
    },
)
CHOICES = (("choice", 0, 3), ("switches", 3, 2), ("switches", 5, 2))
"""Leaf, first entry in the mask, number of values."""


def leaf(space: SpaceSpec, path: str, array: NDArray[Any]) -> NDArray[Any]:
    """The part of a record with this path."""
    return next(one for one in space.leaves() if one.path == path).of(array)


def observation(column: int, count: int) -> NDArray[Any]:
    """What column shows after ``count`` steps of an episode: a record of shape ()."""
    result = np.zeros((), OBSERVATION.dtype)
    leaf(OBSERVATION, "image", result)[...] = (np.arange(6).reshape(3, 2) + 40 * column + 7 * count) % 256
    leaf(OBSERVATION, "count", result)[...] = count + column / 16
    leaf(OBSERVATION, "inner.0", result)[...] = count % 3
    leaf(OBSERVATION, "inner.1", result)[...] = [column, -count]
    return result


def mask(column: int, count: int) -> NDArray[np.bool_]:
    """Which actions are legal then: two of three values, and one or two of each switch."""
    choice = [(column + count) % 3 != value for value in range(3)]
    return np.array([*choice, True, count % 2 == 0, count % 2 == 1, True])


class EverythingEnvironment(VectorEnvironment):
    """Counts; see :class:`Everything`."""

    def __init__(self, spec: EnvironmentSpec, count: int, options: Mapping[str, Any]) -> None:
        self.spec = spec
        self.count = count
        self._counts = [0] * count
        self._ended = [False] * count
        self._step = 0
        self._illegal = options.get("illegal")
        self._nan = options.get("nan")

    def reset(self, out: StepOutput) -> None:
        """All counts 0."""
        for column in range(self.count):
            self._show(column, out)
        out.valid[:] = True
        out.episode_start[:] = True

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """One further; an action that the mask forbade is a ValueError."""
        self._step += 1
        ended, finals = [], []
        out.reward[:], out.terminated[:], out.truncated[:] = 0.0, False, False
        out.valid[:], out.episode_start[:] = True, False
        for column in range(self.count):
            if self._ended[column]:
                self._begin(column, out)
                continue
            self._check(column, action[column])
            self._counts[column] += 1
            out.reward[column] = 1.0
            self._show(column, out)
            if self._counts[column] == LENGTHS[column % len(LENGTHS)]:
                ended.append(column)
                finals.append(observation(column, self._counts[column]))
                out.terminated[column] = True
                self._end(column, out)
        action[...] = np.zeros((), action.dtype)  # environments may change what they are given
        return Ended(np.array(ended), np.array(finals, OBSERVATION.dtype)) if ended else None

    def close(self) -> None:
        """Nothing to release."""

    def _end(self, column: int, out: StepOutput) -> None:
        if column % 2 == 0:
            self._begin(column, out)
            return
        self._ended[column] = True
        out.valid[column] = False
        if out.action_mask is not None:
            out.action_mask[column] = False

    def _begin(self, column: int, out: StepOutput) -> None:
        self._counts[column], self._ended[column] = 0, False
        self._show(column, out)
        out.episode_start[column] = True

    def _show(self, column: int, out: StepOutput) -> None:
        count = self._counts[column]
        out.observation[column] = observation(column, count)
        if self._nan == [column, self._step]:
            leaf(OBSERVATION, "inner.1", out.observation)[column, 1] = np.nan
        if out.action_mask is not None:
            out.action_mask[column] = mask(column, count)
            if self._illegal == [column, self._step]:
                out.action_mask[column, 5:] = False

    def _check(self, column: int, action: NDArray[Any]) -> None:
        legal = mask(column, self._counts[column])
        switches = leaf(ACTION, "switches", action)
        taken = [leaf(ACTION, "choice", action), 3 + switches[0], 5 + switches[1]]
        if not legal[taken].all():
            raise ValueError(f"column {column}: {taken} under {legal}")


class Everything(EnvironmentFactory):
    """Options: ``illegal`` and ``nan``, each [column, step] of a mask without a legal value and of a NaN."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[Any]:
        """Only tests use it."""
        return []

    def probe(self) -> EnvironmentSpec:
        """The spaces."""
        return EnvironmentSpec("Everything", OBSERVATION, ACTION, action_mask=True)

    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """Nothing here is random."""
        return EverythingEnvironment(self.probe(), count, self.options)


class DataPathConfig(BaseModel):
    """Where batches go, and how long a block is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: str = Field(description="Where update-NNNNN.npz go.")
    rows: int = Field(default=4, description="T.")
    state_rows: int = Field(default=2, description="C.")


def policy_spec(name: str, environment: EnvironmentSpec, state_rows: int) -> PolicySpec:
    """A cell that adds, and extras that say what the policy saw."""
    extras = (
        FieldSpec("output", (), "float32"),
        FieldSpec("seen_observation", (), environment.observation.dtype),
        FieldSpec("seen_mask", (mask_size(environment.action),), "bool"),
        FieldSpec("seen_noise", (3,), "float32"),
        FieldSpec("used", (2,), "float32"),
    )
    return PolicySpec(
        name=name,
        module=f"{TRAINER}:Cell",
        acting=f"{Path(__file__)}:CellActing",
        backend="numpy",
        observation=environment.observation,
        action=environment.action,
        action_array=stored_action(environment.action),
        extras=extras,
        noise=NoiseSpec("uniform", (3,)),
        action_mask=mask_size(environment.action),
        state_size=2,
        state_rows=state_rows,
    )


class DataPath(AlgorithmPlugin):
    """Registered by its path: ``type: ./data_path.py:DataPath``."""

    name: ClassVar[str] = "data_path"
    config: ClassVar[type[BaseModel]] = DataPathConfig
    implementation: ClassVar[str] = f"{TRAINER}:Recorder"

    @classmethod
    def requirements(cls, config: DataPathConfig) -> DataRequirements:
        """On-policy fragments."""
        return DataRequirements(rows=config.rows)

    @classmethod
    def policy_spec(
        cls, name: str, config: DataPathConfig, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """See :func:`policy_spec`."""
        return policy_spec(name, environment, config.state_rows)

    @classmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """There is none: only tests use it, from files."""
        raise NotImplementedError


class CellActing(ActingPolicy):
    """Field case 13: h' = h + 1 from h0 = 0.5; beside it the sum of the counts seen in the episode.

    It advances the state of invalid rows too, which the runtime has to undo.
    """

    initial: NDArray[np.float32] = np.array([0.5, 0.0], np.float32)

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Take over the initial state."""
        self.initial = np.array(parameters["initial"], np.float32)

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide for a batch."""
        assert batch.state is not None
        assert batch.action_mask is not None
        assert out.state is not None
        assert out.used_state is not None
        used = np.where(batch.episode_start[:, None], self.initial, batch.state)
        count = np.floor(leaf(OBSERVATION, "count", batch.observation)[:, 0])
        out.used_state[...] = used
        out.state[:, 0] = used[:, 0] + 1
        out.state[:, 1] = used[:, 1] + count
        out.action[...] = 0
        for column in range(len(used)):
            self._choose(batch, out.action, column)
        out.extras["output"][...] = out.state[:, 0]
        out.extras["seen_observation"][...] = batch.observation
        out.extras["seen_mask"][...] = batch.action_mask
        out.extras["seen_noise"][...] = batch.noise
        out.extras["used"][...] = used

    def _choose(self, batch: ActInput, action: NDArray[Any], column: int) -> None:
        assert batch.action_mask is not None
        chosen = []
        for index, (_, first, values) in enumerate(CHOICES):
            legal = np.flatnonzero(batch.action_mask[column, first : first + values])
            chosen.append(legal[int(batch.noise[column, index] * len(legal))] if len(legal) else 0)
        leaf(ACTION, "choice", action)[column] = chosen[0]
        leaf(ACTION, "switches", action)[column] = chosen[1:]
        leaf(ACTION, "push", action)[column] = batch.noise[column, :2] - 0.5

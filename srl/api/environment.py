"""The environment contract: a batch of environments of one ring group, stepped in place.

Order of calls::

    environment = factory.make(count, seeds)        # in the actor process, never in the controller
    environment.reset(out)                          # once; seeds go to this reset only
    while True:
        environment.step(action, out)               # writes the result of the step into the arrays of ``out``
    environment.close()

The adapter owns autoreset, action offsets and everything else in which environment libraries differ: whatever the
source's autoreset mode, per-episode data are the same. It never keeps or changes the arrays it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.spaces import SpaceSpec


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What an environment is, as plain data; found once, before the start.

    Attributes:
        name: Name for messages, such as ``CartPole-v1``.
        observation: Observation space of one agent.
        action: Action space of one agent.
        slots: Agent slots per environment; 1 for single-agent environments.
        frames_per_step: Emulator frames under one env step (4 with the usual Atari frame skip, else 1).
        agents: Agent ids, matched against the patterns of the experiment's agent groups.
        action_mask: The environment says which actions are legal (:func:`srl.api.spaces.mask_size` entries).
    """

    name: str
    observation: SpaceSpec
    action: SpaceSpec
    slots: int = 1
    frames_per_step: int = 1
    agents: tuple[str, ...] = ("agent",)
    action_mask: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {**asdict(self), "observation": self.observation.to_dict(), "action": self.action.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EnvironmentSpec:
        """The inverse of :meth:`to_dict`."""
        return cls(
            name=data["name"],
            observation=SpaceSpec.from_dict(data["observation"]),
            action=SpaceSpec.from_dict(data["action"]),
            slots=data["slots"],
            frames_per_step=data["frames_per_step"],
            agents=tuple(data["agents"]),
            action_mask=data["action_mask"],
        )


@dataclass(slots=True)
class StepOutput:
    """Where a step writes; the arrays are rows of a block, or scratch for row T.

    ``reward``, ``terminated`` and ``truncated`` belong to the row that was acted on; ``observation``, ``action_mask``,
    ``valid`` and ``episode_start`` to the row that comes next.

    Attributes:
        observation: ``[B, ...]`` next observation.
        reward: ``float32[B]``.
        terminated: ``bool[B]``.
        truncated: ``bool[B]``; where both are set, terminated wins.
        valid: ``bool[B]`` False where the next row holds no transition (the reset query of next-step autoreset).
        episode_start: ``bool[B]`` True where the next observation is the first of an episode.
        action_mask: ``bool[B, M]`` True where the action is legal at the next observation; ``None`` if the
            environment says nothing about it.
    """

    observation: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    episode_start: NDArray[np.bool_]
    action_mask: NDArray[np.bool_] | None = None


@dataclass(slots=True)
class Ended:
    """The columns whose episode ended in this step.

    Attributes:
        columns: ``int64[E]`` column numbers, ascending.
        final_observation: ``[E, ...]`` true last observations, in the order of ``columns``.
        episode_return: ``float64[E]`` sums of rewards as the environment gave them (before clipping, over lost lives)
            where the adapter knows better than the sum of ``reward``; else ``None``.
        counted: ``bool[E]`` False where the end is not the end of a reported episode (a lost life); ``None`` = all.
    """

    columns: NDArray[np.int64]
    final_observation: NDArray[Any]
    episode_return: NDArray[np.float64] | None = None
    counted: NDArray[np.bool_] | None = None


class VectorEnvironment(ABC):
    """``count`` environments of one ring group (B = count x slots columns)."""

    spec: EnvironmentSpec
    count: int

    @abstractmethod
    def reset(self, out: StepOutput) -> None:
        """Start every environment; writes ``observation``, ``action_mask``, ``valid`` and ``episode_start``.

        The last two are True everywhere.
        """

    @abstractmethod
    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """Step every environment once.

        Args:
            action: ``[B, ...]`` transformed actions, a copy the environment may keep or change. Discrete actions count
                from 0; the adapter adds ``start``. Entries of rows without a transition are ignored.
            out: Arrays to fill.

        Returns:
            The columns that ended in this step, ``None`` if there are none.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the environments; may be called twice."""


@dataclass(frozen=True)
class Recording:
    """One environment that is filmed; see :meth:`EnvironmentFactory.record`.

    Attributes:
        environment: One environment; owned by the caller.
        frames: ``uint8[height, width, 3]`` each, appended by the environment, taken away by the caller: one after the
            first reset and one per step, of the observation the step returned; a step that ends an episode adds two,
            the final observation's and the first one of the next episode.
        frames_per_second: Env steps a second as a person should see them.
    """

    environment: VectorEnvironment
    frames: list[NDArray[np.uint8]]
    frames_per_second: float


class EnvironmentFactory(ABC):
    """What a registered environment type is: built from its options, JSON-compatible, cheap to construct.

    Args:
        options: The experiment's ``environment`` mapping without ``type``, validated by :meth:`check`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)

    @classmethod
    @abstractmethod
    def check(cls, options: Mapping[str, Any]) -> list[Any]:
        """Problems with the options as :class:`srl.api.errors.SRLError` (``where`` = key below ``environment``).

        Called in the controller's process before anything starts: unknown keys, an unknown id (near matches, and the
        inner ImportError if that was the cause), a missing extra with the command that installs it. Makes no
        environment.
        """

    @abstractmethod
    def probe(self) -> EnvironmentSpec:
        """Make one environment, read its spaces, close it. Called once per trial, in a process of its own.

        Raises:
            EnvironmentFault: For spaces that SRL cannot carry, with the word for what they are.
        """

    @abstractmethod
    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """``count`` environments.

        Args:
            count: Number of environments.
            seeds: One seed per environment (below 2**31), all distinct; a native vector entry point with a single
                generator takes the first. Passed to the first reset only.
        """

    def record(self, seed: int) -> Recording:
        """One environment that is filmed, the same as :meth:`make` makes but for its speed.

        Args:
            seed: Of the environment.

        Raises:
            UsageError: Environments of this type cannot be filmed.
        """
        raise UsageError(
            "environments of this type cannot be filmed",
            where=type(self).__name__,
            hint="An environment type brings pictures by defining EnvironmentFactory.record.",
        )

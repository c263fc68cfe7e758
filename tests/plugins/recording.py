"""An algorithm for tests that writes down what it is given: what really reached a trainer, through the whole path.

It is PPO with a policy whose values are a table, indexed by the first number of the observation, so that targets have
closed forms. Imports no torch; what does lies in ``recording_trainer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.spec import EXTRAS
from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.environment import EnvironmentSpec
from srl.api.policy import ActingPolicy, ActInput, ActOutput, NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec

TRAINER = Path(__file__).with_name("recording_trainer.py")


class RecordingConfig(PPOConfig):
    """Options of PPO, and what is recorded."""

    directory: str = Field(default="", description="Where update-NNNNN.npz go; empty = nothing is recorded.")
    values: tuple[float, ...] = Field(default=(0.0,), description="Value of observation 0, 1, ...; the last for more.")
    targets: tuple[tuple[float, float], ...] = Field(default=(), description="(gamma, lambda) of recorded advantages.")
    stamp: bool = Field(default=False, description="Set every value to the number of the version after each update.")
    update_seconds: float = Field(default=0.0, description="How long an update takes at least.")
    hold_file: str = Field(default="", description="Every update waits until this file is there.")


class Recording(AlgorithmPlugin):
    """Registered by its path: ``type: ./recording.py:Recording``."""

    name = "recording"
    config = RecordingConfig
    implementation = f"{TRAINER}:RecordingPPO"

    @classmethod
    def requirements(cls, config: RecordingConfig) -> DataRequirements:
        """As PPO."""
        return DataRequirements(rows=config.rows)

    @classmethod
    def policy_spec(
        cls, name: str, config: RecordingConfig, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """A table of values and the logits of one distribution."""
        return PolicySpec(
            name=name,
            module=f"{TRAINER}:TablePolicy",
            acting=f"{Path(__file__)}:TableActing",
            backend="numpy",
            observation=environment.observation,
            action=environment.action,
            action_array=ArraySpec((), environment.action.dtype),
            extras=EXTRAS,
            noise=NoiseSpec("uniform", (1,)),
            network={"values": list(config.values)},
        )

    @classmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """There is none: only tests use it, from files."""
        raise NotImplementedError


class TableActing(ActingPolicy):
    """Values from the table, actions from the logits."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._distribution = build_distribution(spec.action)
        self._values: NDArray[np.float32] = np.zeros(1, np.float32)
        self._logits: NDArray[np.float32] = np.zeros(spec.action.n, np.float32)

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Take over a version's table."""
        self._values = np.array(parameters["table"], np.float32)
        self._logits = np.array(parameters["logits"], np.float32)

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide for a batch."""
        count = len(batch.observation)
        self._distribution.decide(
            np.tile(self._logits, (count, 1)),
            batch.noise,
            batch.action_mask,
            out.action,
            out.extras["log_probability"],
            deterministic=deterministic,
        )
        index = batch.observation.reshape(count, -1)[:, 0].astype(np.int64)
        out.extras["value"][...] = self._values.take(index, mode="clip")

"""A small algorithm for tests of several trainer ranks: one gradient step per update, over all rows of all blocks.

So one rank and several compute the same sum in another order. Imports no torch; what does lies in
``reinforce_trainer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.policy import ActingPolicy, ActInput, ActOutput, NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec

TRAINER = Path(__file__).with_name("reinforce_trainer.py")


class ReinforceConfig(BaseModel):
    """Options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(default=16, description="Rows per block.")
    blocks_per_update: int | None = Field(default=None, description="N.")
    learning_rate: float = Field(default=0.01, description="Step size.")
    directory: str = Field(default="", description="Where each rank writes a line per update; empty = nowhere.")
    fault: str = Field(
        default="", description="What goes wrong once, on rank 1 at version 2: nan, nan_agreed, raise, diverge or hang."
    )
    odd: bool = Field(default=False, description="Draw a first weight from a generator that differs between workers.")


class Reinforce(AlgorithmPlugin):
    """Registered by its path: ``type: ./reinforce.py:Reinforce``."""

    name = "reinforce"
    config = ReinforceConfig
    implementation = f"{TRAINER}:ReinforceAlgorithm"

    @classmethod
    def requirements(cls, config: ReinforceConfig) -> DataRequirements:
        """Fragments."""
        return DataRequirements(rows=config.rows, blocks_per_update=config.blocks_per_update)

    @classmethod
    def policy_spec(
        cls, name: str, config: ReinforceConfig, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """Two linear maps."""
        return PolicySpec(
            name=name,
            module=f"{TRAINER}:{'OddPolicy' if config.odd else 'LinearPolicy'}",
            acting=f"{Path(__file__)}:LinearActing",
            backend="numpy",
            observation=environment.observation,
            action=environment.action,
            action_array=ArraySpec((), environment.action.dtype),
            extras=(FieldSpec("value", (), "float32"),),
            noise=NoiseSpec("uniform", (1,)),
        )

    @classmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """There is none: only tests use it, from files."""
        raise NotImplementedError


class LinearActing(ActingPolicy):
    """Samples from linear logits."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._weights: Mapping[str, NDArray[Any]] = {}

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Take over a version."""
        self._weights = {name: np.array(array) for name, array in parameters.items()}

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide for a batch."""
        logits = batch.observation @ self._weights["logits.weight"].T + self._weights["logits.bias"]
        exponentials = np.exp(logits - logits.max(1, keepdims=True))
        right = exponentials[:, 1] / exponentials.sum(1)
        chance = 0.5 if deterministic else batch.noise[:, 0]
        out.action[...] = chance < right
        value = batch.observation @ self._weights["value.weight"].T + self._weights["value.bias"]
        out.extras["value"][...] = value[:, 0]

"""PPO as a plugin; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.recipe import ppo_recipe
from srl.algorithms.ppo.spec import ppo_policy_spec
from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.environment import EnvironmentSpec
from srl.api.policy import PolicySpec


class PPO(AlgorithmPlugin):
    """Proximal policy optimisation: on-policy, for observations and actions of every space."""

    name = "ppo"
    config = PPOConfig
    implementation = "srl.algorithms.ppo.trainer:PPOAlgorithm"

    @classmethod
    def requirements(cls, config: PPOConfig) -> DataRequirements:
        """Fragments of ``rows`` rows, on-policy, at most one version of lag."""
        return DataRequirements(rows=config.rows)

    @classmethod
    def cautions(cls, config: PPOConfig, rows_per_update: int) -> Sequence[str]:
        """A single transition has nothing to be normalised against: its advantage becomes 0."""
        smallest = rows_per_update // ceil(rows_per_update / config.minibatch_rows)
        if not config.normalize_advantages or smallest > 1:
            return ()
        return (
            f"minibatch_rows {config.minibatch_rows} cuts the {rows_per_update} transitions of an update into "
            "minibatches some of which hold a single one: normalised, its advantage is 0, and it teaches nothing but "
            "values",
        )

    @classmethod
    def policy_spec(
        cls, name: str, config: PPOConfig, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """Resolve the policy for an environment."""
        return ppo_policy_spec(name, config, network, environment)

    @classmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """A default experiment."""
        return ppo_recipe(environment, spec, cores)

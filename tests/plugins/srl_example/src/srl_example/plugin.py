"""The algorithm as the graph sees it: options, needs, policy, default experiment. Imported everywhere, so: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, SRLError
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import stored_action


class ActorCriticConfig(BaseModel):
    """Options under ``policies.NAME.algorithm`` with ``type: example_actor_critic``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(default=16, ge=1, description="T: env steps per environment and block.")
    hidden: int = Field(default=32, ge=1, description="Units of the hidden layer.")
    gamma: float = Field(default=0.95, ge=0.0, le=1.0, description="Discount per env step.")
    learning_rate: float = Field(default=0.005, gt=0.0, description="Step size of Adam.")
    entropy_coefficient: float = Field(default=0.05, ge=0.0, description="Weight of the entropy bonus (nats).")


class ActorCritic(AlgorithmPlugin):
    """Advantage actor-critic: one gradient step per update, returns bootstrapped at the end of a block."""

    name = "example_actor_critic"
    config = ActorCriticConfig
    implementation = "srl_example.learning:Learning"

    @classmethod
    def requirements(cls, config: ActorCriticConfig) -> DataRequirements:
        """Fragments of ``rows`` rows; on-policy, at most one version of lag."""
        return DataRequirements(rows=config.rows)

    @classmethod
    def policy_spec(
        cls, name: str, config: ActorCriticConfig, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """One hidden layer, discrete actions, a value per row."""
        observation, action = environment.observation, environment.action
        if observation.kind != "box" or len(observation.shape) != 1 or action.kind != "discrete":
            raise ExperimentError(
                [
                    SRLError(
                        f"the example cannot act in {environment.name}",
                        where=f"policies.{name}.algorithm",
                        value=f"observations {observation.describe()}, actions {action.describe()}",
                        expected="a vector as observation, and Discrete actions",
                    )
                ]
            )
        return PolicySpec(
            name=name,
            module="srl_example.learning:Module",
            acting="srl_example.acting:Acting",
            backend="numpy",
            observation=observation,
            action=action,
            action_array=stored_action(action),
            extras=(FieldSpec("value", (), "float32"),),
            noise=NoiseSpec("uniform", (1,)),
            options={"hidden": config.hidden},
        )

    @classmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """A trainer, and actors on the cores that are left."""
        return {
            "name": cls.name,
            "environment": dict(environment),
            "policies": {"learner": {"algorithm": {"type": cls.name}}},
            "streams": {"samples": {"kind": "sample"}},
            "workers": {
                "actors": {
                    "kind": "actor",
                    "count": max(1, cores - 1),
                    "agents": [{"policy": "learner", "samples": "samples"}],
                },
                "trainer": {"kind": "trainer", "policy": "learner", "samples": "samples"},
            },
            "stop": {"env_steps": 100_000},
        }

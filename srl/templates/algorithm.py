"""The algorithm ``skeleton``: advantage actor-critic, one gradient step per update.

Three parts, by where they run:

- ``Skeleton`` says what the algorithm needs: options, data, policy. Every process that
  resolves the experiment asks it.
- ``Acting`` decides, in actors, policy workers and evaluators.
- ``Module`` and ``Update`` learn, in the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.networks.actor_critic import Place, build_network, gather
from srl.algorithms.networks.spec import resolve_network, state_of
from srl.algorithms.ppo.targets import advantages, final_rows_needed
from srl.api.algorithm import (
    Algorithm,
    AlgorithmPlugin,
    Batch,
    DataRequirements,
    TrainerContext,
)
from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, SRLError
from srl.api.policy import ActingPolicy, ActInput, ActOutput, PolicySpec
from torch import nn


class SkeletonConfig(BaseModel):
    """Options under ``policies.NAME.algorithm``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(default=16, ge=1, description="T: env steps per block.")
    gamma: float = Field(default=0.99, ge=0.0, le=1.0, description="Discount.")
    gae_lambda: float = Field(default=0.95, ge=0.0, le=1.0, description="GAE's lambda.")
    learning_rate: float = Field(default=3e-3, gt=0.0, description="Adam's step size.")
    entropy_coefficient: float = Field(
        default=0.01,
        ge=0.0,
        description="Weight of the entropy bonus (nats).",
    )


class Skeleton(AlgorithmPlugin):
    """What the rest of the system needs to know; named in experiments."""

    name = "skeleton"
    config = SkeletonConfig
    implementation = f"{__file__}:Update"

    @classmethod
    def requirements(cls, config: SkeletonConfig) -> DataRequirements:
        """Blocks of ``rows`` rows, not older than one policy version."""
        return DataRequirements(rows=config.rows)

    @classmethod
    def policy_spec(
        cls,
        name: str,
        config: SkeletonConfig,
        network: Mapping[str, Any],
        environment: EnvironmentSpec,
    ) -> PolicySpec:
        """Any observation, any network without memory, Discrete actions."""
        key = f"policies.{name}"
        if environment.action.kind != "discrete" or environment.action_mask:
            problem = SRLError(
                f"this algorithm cannot act in {environment.name}",
                where=f"{key}.algorithm",
                value=environment.action.describe(),
                expected="Discrete actions, without an action mask",
            )
            raise ExperimentError([problem])
        resolved = resolve_network(network, environment.observation, f"{key}.network")
        if state_of(resolved) != (0, 0):
            problem = SRLError("memory is not trained", where=f"{key}.network")
            raise ExperimentError([problem])
        return PolicySpec(
            name=name,
            module=f"{__file__}:Module",
            acting=f"{__file__}:Acting",
            backend="torch",
            observation=environment.observation,
            action=environment.action,
            action_array=environment.action.array,
            extras=(
                FieldSpec("log_probability", (), "float32"),
                FieldSpec("value", (), "float32"),
            ),
            noise=build_distribution(environment.action).noise,
            network=resolved,
        )

    @classmethod
    def recipe(
        cls,
        environment: Mapping[str, Any],
        spec: EnvironmentSpec,
        cores: int,
    ) -> dict[str, Any]:
        """The experiment of ``srl-run --algorithm ... --environment ...``."""
        agents = [{"policy": "learner", "samples": "samples"}]
        actors = {"kind": "actor", "count": max(1, cores - 1), "agents": agents}
        trainer = {"kind": "trainer", "policy": "learner", "samples": "samples"}
        evaluator = {"kind": "evaluator", "policy": "learner"}
        return {
            "name": cls.name,
            "environment": dict(environment),
            "policies": {"learner": {"algorithm": {"type": cls.name}}},
            "streams": {"samples": {"kind": "sample"}},
            "workers": {
                "actors": actors,
                "trainer": trainer,
                "evaluator": evaluator,
            },
            "stop": {"env_steps": 200_000},
        }


class Module(nn.Module):
    """Logits and a value, from the network that the experiment asks for."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.network = build_network(spec.network, spec.observation, spec.action.n)

    def forward(
        self,
        observation: NDArray[Any],
        place: Place | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[N, A]`` and values ``[N]`` of an array ``[N, ...]``.

        ``place`` brings tensors to where the module computes.
        """
        rows = np.arange(len(observation))
        inputs = gather(self.network.inputs(observation), rows, place)
        logits, value = self.network(inputs)
        return logits, value


class Acting(ActingPolicy):
    """Decides for a batch of columns, with one version of the weights."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.module = Module(spec).requires_grad_(False)
        self.distribution = build_distribution(spec.action)
        self.device = torch.device("cpu")

    def to(self, device: str) -> None:
        """Compute elsewhere, where the experiment gives policy workers a device."""
        self.device = torch.device(device)
        self.module.to(self.device)

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Copy a version's weights."""
        for name, tensor in self.module.state_dict().items():
            tensor.copy_(torch.from_numpy(np.array(parameters[name])))

    def act(
        self,
        batch: ActInput,
        out: ActOutput,
        *,
        deterministic: bool = False,
    ) -> None:
        """Write into the arrays of ``out``; the noise comes from the actor."""
        logits, value = self.module(batch.observation, self.placed)
        self.distribution.decide(
            logits.cpu().numpy(),
            batch.noise,
            batch.action_mask,
            out.action,
            out.extras["log_probability"],
            deterministic=deterministic,
        )
        out.extras["value"][...] = value.cpu().numpy()

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where the module computes."""
        return tensor.to(self.device)


class Update(Algorithm):
    """Turns batches into better weights."""

    def __init__(self, config: SkeletonConfig, trainer: TrainerContext) -> None:
        super().__init__(config, trainer)
        self.optimizer = trainer.optimizer(
            learning_rate=config.learning_rate,
            epsilon=1e-5,
            max_gradient_norm=0.5,
        )

    def update(self, batch: Batch) -> dict[str, float]:
        """One gradient step on the valid rows; returns metrics."""
        rows = batch["valid"]
        estimates = self.advantages(batch)[rows].astype(np.float32)
        advantage = self.trainer.to_device(estimates)
        target = advantage + self.trainer.to_device(batch["value"][rows])
        logits, value = self.evaluated(batch["observation"][:-1][rows])
        log_probabilities = torch.log_softmax(logits, dim=1)
        action = self.trainer.to_device(batch["action"][rows]).long().unsqueeze(1)
        log_probability = log_probabilities.gather(1, action).squeeze(1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1)
        policy_loss = -advantage * log_probability
        value_loss = 0.5 * (value - target) ** 2
        bonus = self.config.entropy_coefficient * entropy
        norm = self.trainer.step(
            self.optimizer,
            loss_sum=(policy_loss + value_loss - bonus).sum(),
            valid_count=batch.valid_rows,
        )
        return {
            "loss/policy": policy_loss.mean().item(),
            "loss/value": value_loss.mean().item(),
            "entropy": entropy.mean().item(),
            "gradient_norm": norm,
        }

    def advantages(self, batch: Batch) -> NDArray[np.float64]:
        """GAE ``[T, C]``; ends of episodes and rows without a transition included."""
        flags = {name: batch[name] for name in ("terminated", "truncated", "valid")}
        final_row, finals = batch["final_row"], batch["final_observation"]
        needed = final_rows_needed(**flags, final_row=final_row)
        last = batch["observation"][-1]
        values = self.values(np.concatenate([last, finals[needed]]))
        final_value = np.zeros(len(finals), np.float32)
        final_value[needed] = values[len(last) :]
        return advantages(
            reward=batch["reward"],
            value=batch["value"],
            **flags,
            final_row=final_row,
            last_value=values[: len(last)],
            final_value=final_value,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )

    def values(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        """Values ``[N]`` by the present weights."""
        with torch.no_grad():
            _, value = self.evaluated(observation)
        result: NDArray[np.float32] = value.cpu().numpy()
        return result

    def evaluated(self, observation: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values by the present weights."""
        logits, value = self.trainer.policy(observation, self.trainer.to_device)
        return logits, value

    def state(self) -> dict[str, Any]:
        """What a resume needs beside weights and optimizer: nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

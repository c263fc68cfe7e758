"""An algorithm, an environment and a network in one file, named with ``plugins: [./one_file.py]``.

Says in the log of every process that it is imported there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import nn

from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.networks.actor_critic import build_network, gather
from srl.algorithms.networks.spec import resolve_network
from srl.api.algorithm import Algorithm, AlgorithmPlugin, Batch, DataRequirements, TrainerContext
from srl.api.block import FieldSpec
from srl.api.environment import Ended, EnvironmentFactory, EnvironmentSpec, StepOutput, VectorEnvironment
from srl.api.policy import ActingPolicy, ActInput, ActOutput, PolicySpec
from srl.api.registry import register
from srl.api.spaces import SpaceSpec

print("one_file.py is imported", file=sys.stderr)

LIGHTS = 4
STEPS = 5


class Lights(VectorEnvironment):
    """One of four lights is on; the action that names it pays 1. Best return: 5. The first light looks like none."""

    def __init__(self, spec: EnvironmentSpec, count: int, seeds: Sequence[int]) -> None:
        self.spec, self.count = spec, count
        self._generators = [np.random.default_rng(seed) for seed in seeds]
        self._light = np.zeros(count, np.int64)
        self._steps = 0

    def reset(self, out: StepOutput) -> None:
        """All at once."""
        self._switch(out)
        out.valid[...] = True
        out.episode_start[...] = True

    def step(self, action: NDArray[Any], out: StepOutput) -> Ended | None:
        """All episodes have the same length."""
        out.reward[...] = action == self._light
        self._switch(out)
        self._steps += 1
        ended = self._steps % STEPS == 0
        out.terminated[...] = ended
        out.truncated[...] = False
        out.valid[...] = True
        out.episode_start[...] = ended
        return Ended(np.arange(self.count), out.observation.copy()) if ended else None

    def close(self) -> None:
        """Nothing to do."""

    def _switch(self, out: StepOutput) -> None:
        self._light[:] = [generator.integers(LIGHTS) for generator in self._generators]
        out.observation[...] = np.eye(LIGHTS, dtype=np.float32)[self._light][:, 1:]


class LightsFactory(EnvironmentFactory):
    """Registered as ``lights``."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[Any]:
        """There are no options."""
        return []

    def probe(self) -> EnvironmentSpec:
        """Known."""
        observation = SpaceSpec("box", (LIGHTS - 1,), "float32", low=0.0, high=1.0)
        return EnvironmentSpec("lights", observation, SpaceSpec("discrete", (), "int64", n=LIGHTS))

    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """A batch."""
        return Lights(self.probe(), count, seeds)


class Wide(nn.Module):
    """An encoder, registered as ``wide``: one dense layer."""

    class Options(BaseModel):
        """Its options."""

        model_config = ConfigDict(frozen=True, extra="forbid")
        width: int = 16

    def __init__(self, observation: SpaceSpec, options: Options) -> None:
        super().__init__()
        self.features = options.width
        self.layer = nn.Linear(observation.shape[0], options.width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Features ``[B, width]``."""
        return torch.tanh(self.layer(inputs))


class Policy(nn.Module):
    """Logits from whatever network the experiment names."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.network = build_network(spec.network, spec.observation, spec.action.n)

    def forward(self, observation: NDArray[np.float32]) -> torch.Tensor:
        """``[N, A]``."""
        inputs = gather(self.network.inputs(observation), np.arange(len(observation)))
        logits, _ = self.network(inputs)
        return logits


class Acting(ActingPolicy):
    """Samples from the logits."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self.policy = Policy(spec).requires_grad_(False)
        self.distribution = build_distribution(spec.action)

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """A version's weights."""
        self.policy.load_state_dict(
            {name: torch.from_numpy(np.array(parameters[name])) for name in self.policy.state_dict()}
        )

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide."""
        self.distribution.decide(
            self.policy(batch.observation).numpy(),
            batch.noise,
            None,
            out.action,
            out.extras["log_probability"],
            deterministic=deterministic,
        )


class ReinforceConfig(BaseModel):
    """Options of the algorithm."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    learning_rate: float = 0.02


class Reinforce(AlgorithmPlugin):
    """Registered as ``reinforce``: the reward of a step times the gradient of its log-probability."""

    name = "reinforce"
    config = ReinforceConfig
    implementation = f"{__file__}:Update"

    @classmethod
    def requirements(cls, config: ReinforceConfig) -> DataRequirements:
        """Blocks of 8 rows."""
        return DataRequirements(rows=8)

    @classmethod
    def policy_spec(
        cls, name: str, config: ReinforceConfig, network: Mapping[str, Any], environment: EnvironmentSpec
    ) -> PolicySpec:
        """Any network."""
        return PolicySpec(
            name=name,
            module=f"{__file__}:Policy",
            acting=f"{__file__}:Acting",
            backend="torch",
            observation=environment.observation,
            action=environment.action,
            action_array=environment.action.array,
            extras=(FieldSpec("log_probability", (), "float32"),),
            noise=build_distribution(environment.action).noise,
            network=resolve_network(network, environment.observation, f"policies.{name}.network"),
        )

    @classmethod
    def recipe(cls, environment: Mapping[str, Any], spec: EnvironmentSpec, cores: int) -> dict[str, Any]:
        """There is none."""
        raise NotImplementedError


class Update(Algorithm):
    """One gradient step per batch."""

    def __init__(self, config: ReinforceConfig, trainer: TrainerContext) -> None:
        super().__init__(config, trainer)
        self.optimizer = trainer.optimizer(learning_rate=config.learning_rate, epsilon=1e-8, max_gradient_norm=None)

    def update(self, batch: Batch) -> dict[str, float]:
        """The baseline is the batch's mean reward."""
        rows = batch["valid"]
        reward, action = (torch.from_numpy(batch[name][rows]) for name in ("reward", "action"))
        log_probabilities = torch.log_softmax(self.trainer.policy(batch["observation"][:-1][rows]), dim=1)
        chosen = log_probabilities.gather(1, action.unsqueeze(1)).squeeze(1)
        loss = -((reward - reward.mean()) * chosen).sum()
        norm = self.trainer.step(self.optimizer, loss_sum=loss, valid_count=batch.valid_rows)
        return {"reward": float(reward.mean()), "gradient_norm": norm}

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


register("algorithm", "reinforce", Reinforce)
register("environment", "lights", LightsFactory)
register("network", "wide", Wide)

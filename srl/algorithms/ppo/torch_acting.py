"""Acting in torch, for CNNs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from srl.algorithms.networks.torch_networks import Prepared
from srl.algorithms.ppo.policy import PPOPolicy
from srl.algorithms.ppo.sampling import DiscreteSampler
from srl.api.policy import ActingPolicy, ActInput, ActOutput, PolicySpec


class TorchActing(ActingPolicy):
    """PPO's policy with any network; weights are converted (bfloat16, channels last) once per version."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        with torch.random.fork_rng(devices=[]):  # initial weights are replaced by load; nobody else's stream moves
            self._policy = PPOPolicy(spec).requires_grad_(False)
        self._sampler = DiscreteSampler(spec.action.n)
        self._prepared: Prepared = ()
        self._observation = torch.empty(0)

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Take over a version's weights."""
        with torch.inference_mode():
            for name, tensor in self._policy.state_dict().items():
                tensor.copy_(torch.from_numpy(np.array(parameters[name])))
            # Cloned: what needs no conversion would otherwise alias the parameters.
            self._prepared = [tensor.clone() for tensor in self._policy.network.prepare()]

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Decide for a batch."""
        with torch.inference_mode():
            logits, value = self._policy.network.compute(self._copied(batch.observation), self._prepared)
        self._sampler.decide(
            logits.numpy(),
            batch.noise.reshape(-1),
            out.action,
            out.extras["log_probability"],
            deterministic=deterministic,
        )
        out.extras["value"][...] = value.numpy()

    def _copied(self, observation: NDArray[Any]) -> torch.Tensor:
        """The observation in memory of torch's own: its alignment, and with it the result, is the same everywhere."""
        if self._observation.shape != observation.shape:
            self._observation = torch.from_numpy(np.empty(0, observation.dtype)).new_empty(observation.shape)
        np.copyto(self._observation.numpy(), observation)
        return self._observation

"""PPO's policy as a torch module: a categorical distribution over discrete actions and a value."""

from __future__ import annotations

import torch
from torch import nn

from srl.algorithms.networks.torch_networks import Array, Backward, build_network
from srl.api.policy import PolicySpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PPOPolicy(nn.Module):
    """Logits and value of an observation.

    Args:
        spec: The policy, as resolved by :func:`srl.algorithms.ppo.spec.ppo_policy_spec`.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.network = build_network(spec.network, spec.observation, spec.action.n, DTYPES[spec.acting_dtype])

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``float32[B, A]`` and values ``float32[B]`` of ``observation[B, ...]``."""
        logits, value = self.network(observation)
        return logits, value

    def differentiable(self, observation: torch.Tensor) -> tuple[Array, Array, Backward]:
        """A forward pass and its backward pass; see :meth:`ActorCritic.differentiable`."""
        return self.network.differentiable(observation)

    def evaluate_actions(
        self, observation: torch.Tensor, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What PPO's loss is made of, differentiable.

        Args:
            observation: ``[B, ...]``.
            action: Integers ``[B]``.

        Returns:
            Log-probabilities of the actions, entropies and values, ``float32[B]`` each.
        """
        logits, value = self(observation)
        log_probabilities = torch.log_softmax(logits, dim=1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1)
        return log_probabilities.gather(1, action.long().unsqueeze(1)).squeeze(1), entropy, value

    def act(self, observation: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decide by the inverse of the cumulative distribution, as the acting policies do.

        Args:
            observation: ``[B, ...]``.
            noise: Uniforms ``[B]`` or ``[B, 1]`` in [0, 1).

        Returns:
            Actions ``int64[B]``, their log-probabilities and values ``float32[B]``.
        """
        logits, value = self(observation)
        log_probabilities = torch.log_softmax(logits, dim=1)
        cumulative = log_probabilities.double().exp().cumsum(dim=1)
        threshold = noise.reshape(-1, 1).double() * cumulative[:, -1:]
        action = (cumulative[:, :-1] <= threshold).sum(dim=1)
        return action, log_probabilities.gather(1, action.unsqueeze(1)).squeeze(1), value

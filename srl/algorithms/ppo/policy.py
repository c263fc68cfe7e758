"""PPO's policy as a torch module: a network with two heads, a distribution over actions, and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from srl.algorithms.networks.actor_critic import Array, Backward, Inputs, Memory, build_network
from srl.algorithms.normalization.moments import Moments
from srl.algorithms.normalization.observations import ObservationNormalizer
from srl.algorithms.normalization.popart import TargetScale
from srl.algorithms.ppo.export import ExportedPolicy
from srl.algorithms.ppo.spec import distribution_of
from srl.api.policy import PolicySpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Statistics(nn.Module):
    """Moments as buffers, in float64: published, saved and restored with the weights.

    Args:
        size: F.
    """

    count: torch.Tensor
    mean: torch.Tensor
    m2: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(size, dtype=torch.float64))

    def moments(self) -> Moments:
        """As numpy arrays of their own."""
        return Moments(float(self.count[0]), self.mean.cpu().numpy().copy(), self.m2.cpu().numpy().copy())

    def set(self, moments: Moments) -> None:
        """Take over moments."""
        self.count.fill_(moments.count)
        self.mean.copy_(torch.from_numpy(moments.mean))
        self.m2.copy_(torch.from_numpy(moments.m2))


class PopArt(nn.Module):
    """The moments of value targets as buffers, in float64."""

    moments: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moments", torch.zeros(3, dtype=torch.float64))

    def scale(self) -> TargetScale:
        """As plain numbers."""
        return TargetScale(*self.moments.tolist())

    def move(self, scale: TargetScale, weight: nn.Parameter, bias: nn.Parameter) -> None:
        """Take over new moments; the last layer ``weight [1, H]``, ``bias [1]`` is changed so that values stay."""
        old = self.scale()
        self.moments.copy_(torch.tensor([scale.weight, scale.first, scale.second], dtype=torch.float64))
        factor = old.deviation() / scale.deviation()
        with torch.no_grad():
            weight.mul_(factor)
            bias.mul_(factor).add_((old.mean() - scale.mean()) / scale.deviation())


class PPOPolicy(nn.Module):
    """A network, the parameters of its distribution that no observation changes, and statistics.

    Args:
        spec: The policy, as resolved by :func:`srl.algorithms.ppo.spec.ppo_policy_spec`.

    Attributes:
        network: Puts out ``distribution.head_outputs`` numbers and a value.
        free: ``float32[distribution.free_outputs]``; ``None`` if there are none.
        observation_statistics: ``None`` where observations are not normalised.
        return_statistics: ``None`` where returns are not.
        popart: ``None`` where values are not.
        normalizer: Normalises with ``observation_statistics``; see :meth:`refresh`.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.distribution = distribution_of(spec)
        self.network = build_network(
            spec.network, spec.observation, self.distribution.head_outputs, DTYPES[spec.acting_dtype]
        )
        initial = torch.from_numpy(np.array(self.distribution.initial_free, np.float32))
        self.free = nn.Parameter(initial) if self.distribution.free_outputs else None
        self.normalizer = ObservationNormalizer(spec.observation, spec.options["observation_bound"])
        normalizes = spec.options["normalize_observations"] and self.normalizer.size
        self.observation_statistics = Statistics(self.normalizer.size) if normalizes else None
        self.return_statistics = Statistics(1) if spec.options["normalize_returns"] else None
        self.popart = PopArt() if spec.options["popart"] else None

    def export_module(self) -> ExportedPolicy:
        """Deterministic acting as one module of torch's operators alone; see :class:`ExportedPolicy`."""
        return ExportedPolicy(self)

    def refresh(self) -> None:
        """Normalise with the present statistics; after they changed."""
        if self.observation_statistics is not None:
            self.normalizer.use(self.observation_statistics.moments())

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """What the network takes, of ``observation[N, ...]``; normalised **in place** where the policy does that."""
        if self.observation_statistics is not None:
            self.normalizer.apply(observation)
        return self.network.inputs(observation)

    def forward(self, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs ``float32[N, P]`` and values ``float32[N]`` of a network without state."""
        outputs, value = self.network(inputs)
        if self.free is not None:
            outputs = torch.cat([outputs, self.free.expand(len(outputs), -1)], dim=1)
        if self.popart is not None:
            scale = self.popart.scale()
            value = value * scale.deviation() + scale.mean()
        return outputs, value

    def differentiable(self, inputs: Inputs, memory: Memory | None = None) -> tuple[Array, Array, Backward]:
        """A forward pass and its backward pass.

        Args:
            inputs: Of N rows.
            memory: Recurrent networks: the rows are sequences, time first.

        Returns:
            Outputs ``float32[N, P]`` and values ``float32[N]`` (normalised with PopArt), and what adds the gradients to
            the parameters, given the loss's gradients with respect to the two.
        """
        outputs, value, backward = self.network.differentiable(inputs, memory)
        free = self.free
        if free is None:
            return outputs, value, backward
        head = outputs.shape[1]
        together = np.empty((len(outputs), head + len(free)), np.float32)
        together[:, :head] = outputs
        together[:, head:] = free.detach().cpu().numpy()

        def backward_both(outputs_gradient: Array, value_gradient: Array) -> None:
            backward(np.ascontiguousarray(outputs_gradient[:, :head]), value_gradient)
            if free.grad is not None:
                free.grad += torch.from_numpy(outputs_gradient[:, head:].sum(axis=0)).to(free.device)

        return together, value, backward_both

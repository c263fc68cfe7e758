"""The MLP with two heads: numpy on the CPU, torch elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from srl.algorithms.networks.base import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    VALUE_GAIN,
    ActorCritic,
    Array,
    Backward,
    Inputs,
    Memory,
    Prepared,
    as_tensor,
    one_tensor,
    orthogonal,
)
from srl.algorithms.networks.features import FlatFeatures, observation_scale
from srl.algorithms.networks.numpy_mlp import NumpyMLP
from srl.api.spaces import SpaceSpec


class MLPActorCritic(ActorCritic):
    """An MLP; with K = 2 towers (policy, value) or, shared, K = 1. Parameters of both towers are stacked.

    Its inputs are the observations themselves where these are boxes (bytes stay bytes), else flat features.

    Args:
        network: Resolved options of type ``mlp``.
        observation: The observation space.
        outputs: P.
    """

    def __init__(self, network: Mapping[str, Any], observation: SpaceSpec, outputs: int) -> None:
        super().__init__(torch.float32)
        self.towers = 1 if network["shared"] else 2
        self.activation = torch.tanh if network["activation"] == "tanh" else torch.relu
        self._features = FlatFeatures(observation)
        seen = observation if observation.kind == "box" else SpaceSpec("box", (self._features.size,), "float32")
        self._plain = observation.kind == "box"
        self.scale = observation_scale(seen)
        widths = [self._features.size, *network["hidden"]]
        self.layers = len(widths) - 1
        for index in range(self.layers):
            weight = _stacked_orthogonal(self.towers, widths[index + 1], widths[index])
            self.register_parameter(f"hidden_{index}_weight", nn.Parameter(weight))
            bias = torch.zeros(self.towers, 1, widths[index + 1])
            self.register_parameter(f"hidden_{index}_bias", nn.Parameter(bias))
        self.policy_weight = nn.Parameter(orthogonal(outputs, widths[-1], POLICY_GAIN))
        self.policy_bias = nn.Parameter(torch.zeros(outputs))
        self.value_weight = nn.Parameter(orthogonal(1, widths[-1], VALUE_GAIN))
        self.value_bias = nn.Parameter(torch.zeros(1))
        self._numpy = NumpyMLP(network, seen, outputs)

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """Boxes as they are, ``[N, ...]``; else flat features ``float32[N, F]``."""
        if self._plain:
            return as_tensor(observation)
        features = torch.empty(len(observation), self._features.size)
        self._features.write(observation, features.numpy())
        return features

    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """As in the base class."""
        return leaves[""] if self._plain else self._features.of_tensors(leaves)

    def step(self, inputs: Inputs, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As in the base class."""
        return self.compute_in_torch(one_tensor(inputs), self.prepare())[0], None

    def prepare(self) -> Prepared:
        """The parameters themselves, in order of registration."""
        return tuple(self.parameters())

    def compute(
        self, inputs: Inputs, prepared: Prepared, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The pass, both towers at once; on the CPU in numpy."""
        inputs = one_tensor(inputs)
        if inputs.device.type != "cpu":
            return *self.compute_in_torch(inputs, prepared), None
        outputs, value = NumpyMLPFunction.apply(self._numpy, inputs, *prepared)  # type: ignore[no-untyped-call]
        return outputs, value, None

    def value_head(self) -> tuple[nn.Parameter, nn.Parameter]:
        """As in the base class."""
        return self.value_weight, self.value_bias

    def differentiable(self, inputs: Inputs, memory: Memory | None = None) -> tuple[Array, Array, Backward]:
        """As in the base class; on the CPU without torch's graph, which costs a quarter of such a small pass."""
        inputs = one_tensor(inputs)
        if inputs.device.type != "cpu":
            return super().differentiable(inputs, memory)
        parameters = tuple(self._parameters.values())
        arrays = [parameter.detach().numpy() for parameter in parameters if parameter is not None]
        outputs, value = self._numpy.forward(arrays, inputs.numpy())

        def backward(outputs_gradient: Array, value_gradient: Array) -> None:
            gradients = self._numpy.backward(arrays, outputs_gradient, value_gradient.reshape(-1, 1))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter is not None and parameter.grad is not None:
                    parameter.grad.numpy()[...] += gradient.reshape(parameter.shape)

        return outputs, value.reshape(-1), backward

    def compute_in_torch(self, inputs: torch.Tensor, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as :meth:`compute` by torch's operators, for other devices and for export."""
        *hidden, policy_weight, policy_bias, value_weight, value_bias = prepared
        features = inputs.reshape(-1, self._features.size).float()
        if self.scale != 1.0:
            features = features * self.scale
        features = features.expand(self.towers, -1, -1)
        for index in range(self.layers):
            weight, bias = hidden[2 * index], hidden[2 * index + 1]
            features = self.activation(torch.baddbmm(bias, features, weight.transpose(1, 2)))
        outputs = functional.linear(features[0], policy_weight, policy_bias)
        value = functional.linear(features[-1], value_weight, value_bias)
        return outputs, value.squeeze(1)


class NumpyMLPFunction(torch.autograd.Function):
    """:class:`NumpyMLP` as one node of torch's graph."""

    @staticmethod
    def forward(
        ctx: Any, mlp: NumpyMLP, inputs: torch.Tensor, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Policy outputs ``float32[B, P]`` and values ``float32[B]``."""
        arrays = [parameter.detach().numpy() for parameter in parameters]
        outputs, value = mlp.forward(arrays, inputs.numpy())
        ctx.mlp, ctx.number, ctx.parameters = mlp, mlp.passes, arrays
        return torch.from_numpy(outputs.copy()), torch.from_numpy(value.reshape(-1).copy())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs_gradient: torch.Tensor, value_gradient: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of the parameters; there is none of the inputs."""
        if ctx.number != ctx.mlp.passes:
            raise RuntimeError("another forward pass overwrote what this backward pass needs")
        gradients = ctx.mlp.backward(
            ctx.parameters,
            outputs_gradient.contiguous().numpy(),
            value_gradient.contiguous().numpy().reshape(-1, 1),
        )
        return (None, None, *(torch.from_numpy(gradient) for gradient in gradients))


def _stacked_orthogonal(towers: int, rows: int, columns: int) -> torch.Tensor:
    return torch.stack([orthogonal(rows, columns, HIDDEN_GAIN) for _ in range(towers)])

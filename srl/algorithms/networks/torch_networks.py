"""Actor-critic networks in torch: an observation becomes logits (or other policy outputs) and a value.

Every network splits its forward pass in two: ``prepare`` turns the float32 parameters into what the pass computes with
(dtype, memory format, scale of the observation folded into the first layer), ``compute`` does the pass. Training
prepares at every pass, so that gradients reach the float32 parameters; acting prepares once per version.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from srl.algorithms.networks.features import observation_scale
from srl.algorithms.networks.numpy_mlp import NumpyMLP
from srl.api.spaces import SpaceSpec

HIDDEN_GAIN = sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

Prepared = Sequence[torch.Tensor]
Array = NDArray[np.float32]
Backward = Callable[[Array, Array], None]


class ActorCritic(nn.Module, ABC):
    """Base of the networks.

    Args:
        dtype: What the hidden layers compute in; both heads always compute in float32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    @abstractmethod
    def prepare(self) -> Prepared:
        """The parameters in the form that :meth:`compute` takes; differentiable."""

    @abstractmethod
    def compute(self, observation: torch.Tensor, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """Policy outputs ``float32[B, A]`` and values ``float32[B]``; ``observation`` is ``[B, ...]``."""

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`compute` with the present parameters."""
        return self.compute(observation, self.prepare())

    def differentiable(self, observation: torch.Tensor) -> tuple[Array, Array, Backward]:
        """A forward pass, and the backward pass that belongs to it.

        Args:
            observation: ``[B, ...]``.

        Returns:
            Policy outputs ``float32[B, A]`` and values ``float32[B]``, valid until the next pass, and what adds the
            gradients to the parameters' ``grad``, given the loss's gradients with respect to the two.
        """
        logits, value = self(observation)

        def backward(logits_gradient: Array, value_gradient: Array) -> None:
            gradients = (torch.from_numpy(logits_gradient), torch.from_numpy(value_gradient))
            torch.autograd.backward((logits, value), tuple(one.to(observation.device) for one in gradients))

        return logits.detach().cpu().numpy(), value.detach().cpu().numpy(), backward


def build_network(
    network: Mapping[str, Any], observation: SpaceSpec, outputs: int, dtype: torch.dtype = torch.float32
) -> ActorCritic:
    """The network that resolved options describe, freshly initialised.

    Args:
        network: From :func:`srl.algorithms.networks.spec.resolve_network`.
        observation: The observation space.
        outputs: A, numbers that the policy head puts out.
        dtype: What the hidden layers compute in.
    """
    if network["type"] == "mlp":
        return MLPActorCritic(network, observation, outputs)
    return NatureCNNActorCritic(network, observation, outputs, dtype)


class MLPActorCritic(ActorCritic):
    """An MLP; with K = 2 towers (policy, value) or, shared, K = 1. Parameters of both towers are stacked."""

    def __init__(self, network: Mapping[str, Any], observation: SpaceSpec, outputs: int) -> None:
        super().__init__(torch.float32)
        self.towers = 1 if network["shared"] else 2
        self.activation = torch.tanh if network["activation"] == "tanh" else torch.relu
        self.scale = observation_scale(observation)
        widths = [prod(observation.shape), *network["hidden"]]
        self.layers = len(widths) - 1
        for index in range(self.layers):
            weight = _stacked_orthogonal(self.towers, widths[index + 1], widths[index])
            self.register_parameter(f"hidden_{index}_weight", nn.Parameter(weight))
            bias = torch.zeros(self.towers, 1, widths[index + 1])
            self.register_parameter(f"hidden_{index}_bias", nn.Parameter(bias))
        self.policy_weight = nn.Parameter(_orthogonal(outputs, widths[-1], gain=POLICY_GAIN))
        self.policy_bias = nn.Parameter(torch.zeros(outputs))
        self.value_weight = nn.Parameter(_orthogonal(1, widths[-1], gain=VALUE_GAIN))
        self.value_bias = nn.Parameter(torch.zeros(1))
        self._numpy = NumpyMLP(network, observation, outputs)

    def prepare(self) -> Prepared:
        """The parameters themselves, in order of registration."""
        return tuple(self.parameters())

    def compute(self, observation: torch.Tensor, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """The pass, both towers at once; on the CPU in numpy."""
        if observation.device.type == "cpu":
            logits, value = NumpyMLPFunction.apply(self._numpy, observation, *prepared)  # type: ignore[no-untyped-call]
            return logits, value
        return self.compute_in_torch(observation, prepared)

    def differentiable(self, observation: torch.Tensor) -> tuple[Array, Array, Backward]:
        """As in the base class; on the CPU without torch's graph, which costs a quarter of such a small pass."""
        if observation.device.type != "cpu":
            return super().differentiable(observation)
        parameters = tuple(self._parameters.values())
        arrays = [parameter.detach().numpy() for parameter in parameters if parameter is not None]
        logits, value = self._numpy.forward(arrays, observation.numpy())

        def backward(logits_gradient: Array, value_gradient: Array) -> None:
            gradients = self._numpy.backward(arrays, logits_gradient, value_gradient.reshape(-1, 1))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if parameter is not None and parameter.grad is not None:
                    parameter.grad.numpy()[...] += gradient.reshape(parameter.shape)

        return logits, value.reshape(-1), backward

    def compute_in_torch(self, observation: torch.Tensor, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as :meth:`compute` by torch's operators, for other devices."""
        *hidden, policy_weight, policy_bias, value_weight, value_bias = prepared
        features = observation.flatten(1).float()
        if self.scale != 1.0:
            features = features * self.scale
        features = features.expand(self.towers, -1, -1)
        for index in range(self.layers):
            weight, bias = hidden[2 * index], hidden[2 * index + 1]
            features = self.activation(torch.baddbmm(bias, features, weight.transpose(1, 2)))
        logits = functional.linear(features[0], policy_weight, policy_bias)
        value = functional.linear(features[-1], value_weight, value_bias)
        return logits, value.squeeze(1)


class NumpyMLPFunction(torch.autograd.Function):
    """:class:`NumpyMLP` as one node of torch's graph."""

    @staticmethod
    def forward(
        ctx: Any, mlp: NumpyMLP, observation: torch.Tensor, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``float32[B, A]`` and values ``float32[B]``."""
        arrays = [parameter.detach().numpy() for parameter in parameters]
        logits, value = mlp.forward(arrays, observation.numpy())
        ctx.mlp, ctx.number, ctx.parameters = mlp, mlp.passes, arrays
        return torch.from_numpy(logits.copy()), torch.from_numpy(value.reshape(-1).copy())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logits_gradient: torch.Tensor, value_gradient: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of the parameters; there is none of the observation."""
        if ctx.number != ctx.mlp.passes:
            raise RuntimeError("another forward pass overwrote what this backward pass needs")
        gradients = ctx.mlp.backward(
            ctx.parameters,
            logits_gradient.contiguous().numpy(),
            value_gradient.contiguous().numpy().reshape(-1, 1),
        )
        return (None, None, *(torch.from_numpy(gradient) for gradient in gradients))


class NatureCNNActorCritic(ActorCritic):
    """The CNN of Mnih et al. 2015 with two heads; channels last inside, whatever the device."""

    STRIDES = (4, 2, 1)

    def __init__(
        self, network: Mapping[str, Any], observation: SpaceSpec, outputs: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(dtype)
        channels, height, width = observation.shape
        self.scale = observation_scale(observation)
        self.convolution_1 = nn.Conv2d(channels, 32, 8, 4)
        self.convolution_2 = nn.Conv2d(32, 64, 4, 2)
        self.convolution_3 = nn.Conv2d(64, 64, 3, 1)
        flat = 64 * _size_after_convolutions(height) * _size_after_convolutions(width)
        self.features = nn.Linear(flat, network["features"])
        self.policy_head = nn.Linear(network["features"], outputs)
        self.value_head = nn.Linear(network["features"], 1)
        for layer in (self.convolution_1, self.convolution_2, self.convolution_3, self.features):
            _initialise(layer, HIDDEN_GAIN)
        _initialise(self.policy_head, POLICY_GAIN)
        _initialise(self.value_head, VALUE_GAIN)

    def prepare(self) -> Prepared:
        """Hidden layers in the compute dtype; convolutions channels last, the first one scaled for bytes."""
        prepared = []
        for layer in (self.convolution_1, self.convolution_2, self.convolution_3):
            weight = layer.weight * self.scale if layer is self.convolution_1 else layer.weight
            prepared.append(weight.to(self.dtype, memory_format=torch.channels_last))
            prepared.append(_bias(layer).to(self.dtype))
        prepared += [self.features.weight.to(self.dtype), self.features.bias.to(self.dtype)]
        prepared += [self.policy_head.weight, self.policy_head.bias, self.value_head.weight, self.value_head.bias]
        return prepared

    def compute(self, observation: torch.Tensor, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """The pass; bytes 0 to 255 are exact in bfloat16 too."""
        # Bytes change places before they grow: half the time of doing both at once.
        features = observation.contiguous(memory_format=torch.channels_last).to(self.dtype)
        for index, stride in enumerate(self.STRIDES):
            weight, bias = prepared[2 * index], prepared[2 * index + 1]
            features = functional.conv2d(features, weight, bias, stride=stride)
            # The last one is flattened first: else its gradient would meet it in another memory format (5 % slower).
            features = functional.relu(features.flatten(1) if stride == 1 else features, inplace=True)
        features = functional.linear(features, prepared[6], prepared[7])
        features = functional.relu(features, inplace=True).float()
        logits = functional.linear(features, prepared[8], prepared[9])
        return logits, functional.linear(features, prepared[10], prepared[11]).squeeze(1)


def _size_after_convolutions(size: int) -> int:
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        size = (size - kernel) // stride + 1
    return size


def _orthogonal(rows: int, columns: int, *, gain: float) -> torch.Tensor:
    return nn.init.orthogonal_(torch.empty(rows, columns), gain)


def _stacked_orthogonal(towers: int, rows: int, columns: int) -> torch.Tensor:
    return torch.stack([_orthogonal(rows, columns, gain=HIDDEN_GAIN) for _ in range(towers)])


def _initialise(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(_bias(layer))


def _bias(layer: nn.Conv2d | nn.Linear) -> torch.Tensor:
    if layer.bias is None:  # narrows the type: every layer here is made with a bias
        raise TypeError(f"{layer} has no bias")
    return layer.bias

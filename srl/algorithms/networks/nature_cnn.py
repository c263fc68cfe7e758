"""The CNN of Mnih et al. 2015; channels last inside, whatever the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from srl.algorithms.networks.base import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    VALUE_GAIN,
    ActorCritic,
    Inputs,
    Prepared,
    ValueHead,
    as_tensor,
    bias_of,
    initialise,
    one_tensor,
)
from srl.algorithms.networks.features import observation_scale
from srl.api.spaces import SpaceSpec

KERNELS = ((8, 4), (4, 2), (3, 1))
"""Size and stride of each convolution."""


class NatureCNNActorCritic(ActorCritic):
    """The CNN with two heads.

    Args:
        network: Resolved options of type ``nature_cnn``.
        observation: The observation space: images, channels first.
        outputs: P.
        dtype: What everything but the heads computes in.
    """

    def __init__(
        self, network: Mapping[str, Any], observation: SpaceSpec, outputs: int, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(dtype)
        self.scale = observation_scale(observation)
        layers = nature_cnn_layers(observation, network["features"])
        self.convolution_1, self.convolution_2, self.convolution_3, self.features = layers
        self.policy_head = nn.Linear(network["features"], outputs)
        self.value_head = ValueHead(network["features"])
        for layer in layers:
            initialise(layer, HIDDEN_GAIN)
        initialise(self.policy_head, POLICY_GAIN)
        initialise(self.value_head, VALUE_GAIN)

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """The images themselves."""
        return as_tensor(observation)

    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """The images themselves."""
        return leaves[""]

    def prepare(self) -> Prepared:
        """Hidden layers in the compute dtype; convolutions channels last, the first one scaled for bytes."""
        layers = (self.convolution_1, self.convolution_2, self.convolution_3, self.features)
        heads = [self.policy_head.weight, self.policy_head.bias, *self.value_head()]
        return [*prepare_nature_cnn(layers, self.scale, self.dtype), *heads]

    def compute(
        self, inputs: Inputs, prepared: Prepared, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The pass; bytes 0 to 255 are exact in bfloat16 too."""
        features = nature_cnn_features(one_tensor(inputs), prepared[:8], self.dtype)
        outputs = functional.linear(features, prepared[8], prepared[9])
        return outputs, functional.linear(features, prepared[10], prepared[11]).squeeze(1), None


Layers = tuple[nn.Conv2d, nn.Conv2d, nn.Conv2d, nn.Linear]


def nature_cnn_layers(observation: SpaceSpec, features: int) -> Layers:
    """The layers below the heads, not yet initialised."""
    channels, height, width = observation.shape
    flat = 64 * _size_after_convolutions(height) * _size_after_convolutions(width)
    first, second, third = ((32, *KERNELS[0]), (64, *KERNELS[1]), (64, *KERNELS[2]))
    return nn.Conv2d(channels, *first), nn.Conv2d(32, *second), nn.Conv2d(64, *third), nn.Linear(flat, features)


def prepare_nature_cnn(layers: Sequence[nn.Conv2d | nn.Linear], scale: float, dtype: torch.dtype) -> Prepared:
    """Weight and bias of each layer as :func:`nature_cnn_features` takes them.

    Args:
        layers: From :func:`nature_cnn_layers`.
        scale: What the images are to be multiplied with.
        dtype: What to compute in.
    """
    *convolutions, last = layers
    prepared = []
    for layer in convolutions:
        weight = layer.weight * scale if layer is convolutions[0] else layer.weight
        prepared.append(weight.to(dtype, memory_format=torch.channels_last))
        prepared.append(bias_of(layer).to(dtype))
    return [*prepared, last.weight.to(dtype), bias_of(last).to(dtype)]


def nature_cnn_features(images: torch.Tensor, prepared: Prepared, dtype: torch.dtype) -> torch.Tensor:
    """Features ``float32[B, features]`` of images ``[B, channels, height, width]``."""
    # Bytes change places before they grow: half the time of doing both at once.
    features = images.contiguous(memory_format=torch.channels_last).to(dtype)
    for index, (_, stride) in enumerate(KERNELS):
        weight, bias = prepared[2 * index], prepared[2 * index + 1]
        features = functional.conv2d(features, weight, bias, stride=stride)
        # The last one is flattened first: else its gradient would meet it in another memory format (5 % slower).
        features = functional.relu(features.flatten(1) if stride == 1 else features, inplace=True)
    features = functional.linear(features, prepared[6], prepared[7])
    return functional.relu(features, inplace=True).float()


def _size_after_convolutions(size: int) -> int:
    for kernel, stride in KERNELS:
        size = (size - kernel) // stride + 1
    return size

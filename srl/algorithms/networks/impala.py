"""The deep residual network of Espeholt et al. 2018 (IMPALA, figure 3 right), without its LSTM."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import torch
from torch import nn
from torch.nn import functional

from srl.algorithms.networks.base import HIDDEN_GAIN, Inputs, initialise, one_tensor
from srl.algorithms.networks.encoders import Encoder
from srl.algorithms.networks.features import observation_scale
from srl.algorithms.networks.options import ImpalaOptions
from srl.api.spaces import SpaceSpec

BLOCKS = 2
"""Residual blocks per section."""


class ImpalaEncoder(Encoder):
    """Sections of a convolution, pooling and residual blocks, then one layer; channels last inside."""

    Options = ImpalaOptions

    def __init__(self, observation: SpaceSpec, options: ImpalaOptions) -> None:
        super().__init__(observation)
        self.features = options.features
        self.scale = observation_scale(observation)
        channels = (observation.shape[0], *options.channels)
        # Every block adds to its input: second convolutions start small enough that the sum stays of one size.
        gain = HIDDEN_GAIN / sqrt(BLOCKS * len(options.channels))
        self.sections = nn.ModuleList(_Section(*pair, gain) for pair in pairwise(channels))
        height, width = (_size_after_sections(size, len(options.channels)) for size in observation.shape[1:])
        self.hidden = nn.Linear(channels[-1] * height * width, options.features)
        initialise(self.hidden, HIDDEN_GAIN)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """As in the base class."""
        features = one_tensor(inputs).contiguous(memory_format=torch.channels_last).float()
        if self.scale != 1.0:
            features = features * self.scale
        for section in self.sections:
            features = section(features)
        return functional.relu(self.hidden(functional.relu(features).flatten(1)))


class _Section(nn.Module):
    def __init__(self, before: int, after: int, gain: float) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(before, after, 3, padding=1)
        self.blocks = nn.ModuleList(_Block(after, gain) for _ in range(BLOCKS))
        initialise(self.convolution, HIDDEN_GAIN)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = functional.max_pool2d(self.convolution(features), 3, stride=2, padding=1)
        for block in self.blocks:
            features = block(features)
        return features


class _Block(nn.Module):
    def __init__(self, channels: int, gain: float) -> None:
        super().__init__()
        self.convolution_1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.convolution_2 = nn.Conv2d(channels, channels, 3, padding=1)
        initialise(self.convolution_1, HIDDEN_GAIN)
        initialise(self.convolution_2, gain)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inside = self.convolution_1(functional.relu(features))
        result: torch.Tensor = features + self.convolution_2(functional.relu(inside))
        return result


def _size_after_sections(size: int, sections: int) -> int:
    for _ in range(sections):
        size = (size + 1) // 2
    return size

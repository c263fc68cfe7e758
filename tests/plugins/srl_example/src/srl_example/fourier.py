"""A network: sines and cosines of a vector before one dense layer. SRL adds heads, and memory where asked for."""

from __future__ import annotations

from math import pi

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from srl.api.spaces import SpaceSpec


class FourierOptions(BaseModel):
    """Options beside ``type: example_fourier``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    frequencies: int = Field(default=2, ge=1, description="K: sin and cos of pi, 2 pi, ..., K pi times the input.")
    hidden: int = Field(default=32, ge=1, description="Units of the layer behind them.")


class Fourier(nn.Module):
    """The encoder.

    Args:
        observation: The observation space, a vector.
        options: As validated.

    Attributes:
        features: Width of what :meth:`forward` returns.
    """

    Options = FourierOptions

    def __init__(self, observation: SpaceSpec, options: FourierOptions) -> None:
        super().__init__()
        self.features = options.hidden
        self.register_buffer("scales", pi * torch.arange(1, options.frequencies + 1, dtype=torch.float32))
        self.layer = nn.Linear(observation.shape[0] * (1 + 2 * options.frequencies), options.hidden)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Features ``[B, features]`` of observations ``[B, n]``."""
        angles = (inputs.unsqueeze(2) * self.scales).flatten(1)
        return torch.tanh(self.layer(torch.cat([inputs, angles.sin(), angles.cos()], dim=1)))

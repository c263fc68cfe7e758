"""Networks by their resolved options; the names that algorithms use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from srl.algorithms.networks.base import ActorCritic, Array, Backward, Inputs, Memory, Place, Prepared, gather
from srl.algorithms.networks.encoder_network import EncoderActorCritic
from srl.algorithms.networks.encoders import build_encoder
from srl.algorithms.networks.mlp import MLPActorCritic
from srl.algorithms.networks.nature_cnn import NatureCNNActorCritic
from srl.algorithms.networks.recurrent import build_core
from srl.api.spaces import SpaceSpec

__all__ = ["ActorCritic", "Array", "Backward", "Inputs", "Memory", "Place", "Prepared", "build_network", "gather"]


def build_network(
    network: Mapping[str, Any], observation: SpaceSpec, outputs: int, dtype: torch.dtype = torch.float32
) -> ActorCritic:
    """The network that resolved options describe, freshly initialised.

    Args:
        network: From :func:`srl.algorithms.networks.spec.resolve_network`.
        observation: The observation space.
        outputs: P, numbers that the policy head puts out.
        dtype: What the hidden layers compute in; an MLP without a recurrent core always computes in float32.

    Raises:
        PluginError: If a plugin's encoder cannot be imported, or declares no features.
    """
    recurrent = network.get("recurrent")
    if recurrent is None and network["type"] == "mlp":
        return MLPActorCritic(network, observation, outputs)
    if recurrent is None and network["type"] == "nature_cnn":
        return NatureCNNActorCritic(network, observation, outputs, dtype)
    encoder = build_encoder(network, observation)
    core = None if recurrent is None else build_core(recurrent, encoder.features)
    return EncoderActorCritic(encoder, outputs, core, dtype)

"""Encoders: from inputs to features. SRL's own, and the wrapper around those of plugins.

A plugin's encoder is a torch module class with ``Options`` (a pydantic model; none = no options), called as
``Class(observation, options)``, with an attribute ``features: int`` and ``forward(inputs) -> float [B, features]``. Its
inputs are observations as they are: one tensor ``[B, *shape]`` in the space's dtype, for nested spaces a dict of such
by path. SRL's own follow the same rules, and may choose their inputs by a method ``inputs``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import nn

from srl.algorithms.networks.base import HIDDEN_GAIN, Inputs, as_tensor, initialise, one_tensor
from srl.algorithms.networks.features import FlatFeatures, observation_scale
from srl.algorithms.networks.nature_cnn import nature_cnn_features, nature_cnn_layers, prepare_nature_cnn
from srl.algorithms.networks.options import DictOptions, MLPEncoderOptions, NatureCNNOptions, NoOptions
from srl.api.errors import PluginError
from srl.api.importing import import_target
from srl.api.registry import REGISTRY
from srl.api.spaces import NESTED, SpaceSpec


class Encoder(nn.Module, ABC):
    """Base of SRL's own.

    Args:
        observation: The observation space, or the part of it that this encoder sees.

    Attributes:
        features: Width of what :meth:`forward` returns.
    """

    features: int

    def __init__(self, observation: SpaceSpec) -> None:
        super().__init__()
        self._space = observation

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """What :meth:`forward` takes, of ``observation[N, ...]``, on the CPU; by default observations as they are."""
        if self._space.kind in NESTED:
            return {leaf.path: as_tensor(leaf.of(observation)) for leaf in self._space.leaves()}
        return as_tensor(observation)

    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """The same as :meth:`inputs` by torch's operators alone, from the leaves of the space by path."""
        return dict(leaves) if self._space.kind in NESTED else leaves[""]

    @abstractmethod
    def forward(self, inputs: Inputs) -> torch.Tensor:
        """Features ``[B, features]``."""


class MLPEncoder(Encoder):
    """Flat features through hidden layers; without any, the flat features themselves."""

    Options = MLPEncoderOptions

    def __init__(self, observation: SpaceSpec, options: MLPEncoderOptions) -> None:
        super().__init__(observation)
        self._flat = FlatFeatures(observation)
        self.layers = _Layers(self._flat.size, options.hidden, options.activation)
        self.features = self.layers.features

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """Flat features ``float32[N, F]``."""
        features = torch.empty(len(observation), self._flat.size)
        self._flat.write(observation, features.numpy())
        return features

    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """As in the base class."""
        return self._flat.of_tensors(leaves)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """As in the base class."""
        result: torch.Tensor = self.layers(one_tensor(inputs))
        return result


class NatureCNNEncoder(Encoder):
    """The layers of :class:`srl.algorithms.networks.nature_cnn.NatureCNNActorCritic` below its heads."""

    Options = NatureCNNOptions

    def __init__(self, observation: SpaceSpec, options: NatureCNNOptions) -> None:
        super().__init__(observation)
        self.features = options.features
        self.scale = observation_scale(observation)
        layers = nature_cnn_layers(observation, options.features)
        self.convolution_1, self.convolution_2, self.convolution_3, self.hidden = layers
        for layer in layers:
            initialise(layer, HIDDEN_GAIN)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """As in the base class."""
        layers = (self.convolution_1, self.convolution_2, self.convolution_3, self.hidden)
        prepared = prepare_nature_cnn(layers, self.scale, torch.float32)
        return nature_cnn_features(one_tensor(inputs), prepared, torch.float32)


class DictEncoder(Encoder):
    """One encoder per leaf of a nested space; their features one after the other, then hidden layers."""

    Options = DictOptions

    def __init__(self, observation: SpaceSpec, options: DictOptions) -> None:
        super().__init__(observation)
        self._leaves = observation.leaves()
        encoders = {leaf.path: build_encoder(options.encoders[leaf.path], leaf.space) for leaf in self._leaves}
        self.encoders = nn.ModuleDict({_name(path): encoder for path, encoder in encoders.items()})
        width = sum(encoder.features for encoder in encoders.values())
        self.layers = _Layers(width, options.hidden, options.activation)
        self.features = self.layers.features

    def inputs(self, observation: NDArray[Any]) -> Inputs:
        """By path what the leaf's encoder takes."""
        return {leaf.path: one_tensor(self._encoder(leaf.path).inputs(leaf.of(observation))) for leaf in self._leaves}

    def inputs_of(self, leaves: Mapping[str, torch.Tensor]) -> Inputs:
        """As in the base class."""
        parts = {leaf.path: self._encoder(leaf.path).inputs_of({"": leaves[leaf.path]}) for leaf in self._leaves}
        return {path: one_tensor(part) for path, part in parts.items()}

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """As in the base class."""
        if isinstance(inputs, torch.Tensor):
            raise TypeError("this network takes several tensors, as its method inputs makes them")
        features = [self._encoder(leaf.path)(inputs[leaf.path]).float() for leaf in self._leaves]
        result: torch.Tensor = self.layers(torch.cat(features, dim=1))
        return result

    def _encoder(self, path: str) -> Encoder:
        encoder: Encoder = self.encoders[_name(path)]  # type: ignore[assignment]  # what the constructor put there
        return encoder


class PluginEncoder(Encoder):
    """A plugin's encoder, its results checked.

    Args:
        module: The encoder.
        observation: What it was made for.

    Raises:
        PluginError: If it declares no features.
    """

    def __init__(self, module: nn.Module, observation: SpaceSpec) -> None:
        super().__init__(observation)
        self._class = f"{type(module).__module__}:{type(module).__qualname__}"
        features = getattr(module, "features", None)
        if not isinstance(module, nn.Module) or not isinstance(features, int) or features < 1:
            raise PluginError(
                "a network does not say how many features it puts out",
                where=self._class,
                value=features,
                expected="a torch module with an attribute 'features', a positive int, after its constructor",
            )
        self.module = module
        self.features = features

    def forward(self, inputs: Inputs) -> torch.Tensor:
        """As in the base class.

        Raises:
            PluginError: If the result has another shape than declared, or is not of floating-point numbers.
        """
        result = self.module(inputs)
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # sizes are no numbers then
            return cast(torch.Tensor, result)
        first = inputs if isinstance(inputs, torch.Tensor) else next(iter(inputs.values()))
        expected = (len(first), self.features)
        if isinstance(result, torch.Tensor) and result.shape == expected and result.is_floating_point():
            return result
        seen = f"{tuple(result.shape)} {result.dtype}" if isinstance(result, torch.Tensor) else type(result).__name__
        raise PluginError(
            "a network puts out something else than it declares",
            where=self._class,
            value=seen,
            expected=f"floating-point numbers of shape {expected}: one row per observation, features = {expected[1]}",
        )


def build_encoder(options: Mapping[str, Any], observation: SpaceSpec) -> Encoder:
    """The encoder that resolved options describe, freshly initialised.

    Args:
        options: ``type`` and the options of that type; ``recurrent`` is passed over.
        observation: What it will see.

    Raises:
        PluginError: If a plugin's encoder cannot be imported, or declares no features.
    """
    kind: Any = import_target(REGISTRY.target("network", options["type"]))
    own = {key: value for key, value in options.items() if key not in ("type", "recurrent")}
    encoder = kind(observation, getattr(kind, "Options", NoOptions).model_validate(own))
    return encoder if isinstance(encoder, Encoder) else PluginEncoder(encoder, observation)


class _Layers(nn.Module):
    """Dense layers, each followed by the activation."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], activation: str) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.features = widths[-1]
        self.activation = torch.tanh if activation == "tanh" else torch.relu
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        for layer in self.hidden:
            initialise(layer, HIDDEN_GAIN)  # type: ignore[arg-type]  # a list of linear layers

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            features = self.activation(layer(features))
        return features


def _name(path: str) -> str:
    """Name of a leaf's encoder among the parameters: torch allows no dots and no names of its own methods."""
    return "/" + path.replace("/", "//").replace(".", "/")

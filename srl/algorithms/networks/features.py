"""Observations of any space as flat vectors, in numpy.

Leaves follow each other in the order of :meth:`srl.api.spaces.SpaceSpec.leaves`: floats as they are, bytes divided by
255, every choice (Discrete, each element of a MultiDiscrete) as one number per value, zeros and ones as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from srl.api.spaces import Leaf, SpaceSpec

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float32]


def observation_scale(observation: SpaceSpec) -> float:
    """What networks multiply a box with: bytes are scaled to [0, 1], everything else is taken as it is."""
    return 1.0 / 255.0 if observation.kind == "box" and observation.dtype == "uint8" else 1.0


class FlatFeatures:
    """Turns observations into vectors.

    Args:
        space: The observation space.

    Attributes:
        size: F, numbers per observation.
    """

    def __init__(self, space: SpaceSpec) -> None:
        self._parts: list[tuple[slice, _Part]] = []
        self.size = 0
        for leaf in space.leaves():
            part: _Part = _Choices(leaf) if leaf.space.kind in ("discrete", "multi_discrete") else _Numbers(leaf)
            self._parts.append((slice(self.size, self.size + part.size), part))
            self.size += part.size
        self._as_it_is = space.kind == "box" and space.dtype == "float32"

    def write(self, observation: NDArray[Any], out: Array) -> None:
        """Write the features of ``observation[N, ...]`` (elements of the space) into ``out``, ``float32[N, F]``."""
        if len(self._parts) == 1:
            self._parts[0][1].write(observation, out)
            return
        for place, part in self._parts:
            part.write(observation, out[:, place])

    def of(self, observation: NDArray[Any]) -> Array:
        """The features, ``float32[N, F]``; of a plain float32 box a view."""
        if self._as_it_is:
            return observation.reshape(len(observation), self.size)
        features = np.empty((len(observation), self.size), np.float32)
        self.write(observation, features)
        return features

    def of_tensors(self, leaves: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The features ``float32[N, F]`` by torch's operators alone, from leaves by path: for export."""
        import torch  # actors that compute in numpy never come here

        return torch.cat([part.of_tensor(leaves[part.path]) for _, part in self._parts], dim=1)


class _Part(ABC):
    """The features of one leaf."""

    size: int

    def __init__(self, leaf: Leaf) -> None:
        self._leaf = leaf
        self.path = leaf.path
        self._elements = prod(leaf.space.shape)

    @abstractmethod
    def write(self, observation: NDArray[Any], out: Array) -> None:
        """Write the leaf's features of ``observation[N, ...]`` of the whole space into ``out[N, size]``."""

    @abstractmethod
    def of_tensor(self, leaf: torch.Tensor) -> torch.Tensor:
        """The same of the leaf's own tensor ``[N, ...]``, by torch's operators alone."""

    def _values(self, observation: NDArray[Any]) -> NDArray[Any]:
        return self._leaf.of(observation).reshape(len(observation), self._elements)


class _Numbers(_Part):
    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self.size = self._elements
        self._scale = np.float32(observation_scale(leaf.space))

    def write(self, observation: NDArray[Any], out: Array) -> None:
        np.copyto(out, self._values(observation), casting="unsafe")
        if self._scale != 1.0:
            out *= self._scale

    def of_tensor(self, leaf: torch.Tensor) -> torch.Tensor:
        return leaf.reshape(-1, self._elements).float() * float(self._scale)


class _Choices(_Part):
    """One number per value of every choice: 1 where the value is chosen, else 0."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        counts = leaf.space.nvec or (leaf.space.n,)
        self.size = sum(counts)
        self._value = np.concatenate([np.arange(count) for count in counts])
        self._element = np.repeat(np.arange(len(counts)), counts) if len(counts) > 1 else None

    def write(self, observation: NDArray[Any], out: Array) -> None:
        values = self._values(observation)
        np.equal(values if self._element is None else values[:, self._element], self._value, out=out)

    def of_tensor(self, leaf: torch.Tensor) -> torch.Tensor:
        values = leaf.reshape(-1, self._elements)
        if self._element is not None:
            values = values[:, self._element.tolist()]
        return (values == leaf.new_tensor(self._value)).float()

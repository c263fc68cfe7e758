"""The MLP of :class:`srl.algorithms.networks.mlp.MLPActorCritic` in numpy, forward and backward.

For networks this small the overhead of torch's operators and, on AMD processors, the slow tanh of its vector library
cost more than the arithmetic. Nothing is allocated on the way: every array lives in a workspace that grows to the
largest batch seen.

Axes: ``K`` towers (1 if shared, else policy and value), ``B`` batch, ``H`` width of a layer, ``A`` policy outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.networks.features import FlatFeatures
from srl.api.spaces import SpaceSpec

Array = NDArray[np.float32]
VIEWS_KEPT = 32
"""Batch sizes whose views are kept; a training run meets few."""


class NumpyMLP:
    """One network with its workspace; weights are given at every call.

    Args:
        network: Resolved options of type ``mlp``.
        observation: The observation space, of any kind.
        outputs: A, numbers that the policy head puts out.
    """

    def __init__(self, network: Mapping[str, Any], observation: SpaceSpec, outputs: int) -> None:
        self.towers = 1 if network["shared"] else 2
        self._features = FlatFeatures(observation)
        self.inputs = self._features.size
        self.widths: tuple[int, ...] = tuple(network["hidden"])
        self.outputs = outputs
        self.passes = 0
        self._relu = network["activation"] == "relu"
        self._forward = _Storage(self._forward_shape)
        self._backward = _Storage(self._backward_shape)

    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in the order in which all methods take and give them."""
        hidden = [f"hidden_{index}_{part}" for index in range(len(self.widths)) for part in ("weight", "bias")]
        return (*hidden, "policy_weight", "policy_bias", "value_weight", "value_bias")

    def forward(self, parameters: Sequence[Array], observation: NDArray[Any]) -> tuple[Array, Array]:
        """Policy outputs and values.

        Args:
            parameters: In the order of :meth:`names`, weights ``[..., out, in]``.
            observation: ``[B, ...]``.

        Returns:
            ``float32[B, A]`` and ``float32[B, 1]``, valid until the next forward pass.
        """
        self.passes += 1
        inputs, *hidden, logits, value = self._forward.views(len(observation))
        self._features.write(observation, inputs[0])
        before = inputs
        for index, features in enumerate(hidden):
            np.matmul(before, parameters[2 * index].swapaxes(1, 2), out=features)
            features += parameters[2 * index + 1]
            if self._relu:
                np.maximum(features, 0.0, out=features)
            else:
                np.tanh(features, out=features)
            before = features
        policy_weight, policy_bias, value_weight, value_bias = parameters[-4:]
        np.matmul(before[0], policy_weight.T, out=logits)
        logits += policy_bias
        np.matmul(before[-1], value_weight.T, out=value)
        value += value_bias
        return logits, value

    def backward(self, parameters: Sequence[Array], logits_gradient: Array, value_gradient: Array) -> list[Array]:
        """Gradients of the parameters for the batch of the last forward pass.

        Args:
            parameters: The same as in that pass.
            logits_gradient: ``float32[B, A]``, gradient of the loss.
            value_gradient: ``float32[B, 1]``, likewise.

        Returns:
            In the order of :meth:`names`, arrays of the caller's.
        """
        batch = len(logits_gradient)
        inputs, *hidden, _, _ = self._forward.views(batch)
        *deltas, slopes, ones = self._backward.views(batch)
        ones.fill(1.0)
        policy_weight, _, value_weight, _ = parameters[-4:]
        last, delta = hidden[-1], deltas[-1]
        np.matmul(logits_gradient, policy_weight, out=delta[0])
        if self.towers == 2:
            np.multiply(value_gradient, value_weight, out=delta[1])
        else:
            delta[0] += value_gradient * value_weight
        heads = [
            logits_gradient.T @ last[0],
            ones[0] @ logits_gradient,
            value_gradient.T @ last[-1],
            ones[0] @ value_gradient,
        ]
        gradients: list[Array] = []
        for index in reversed(range(len(hidden))):
            features, delta = hidden[index], deltas[index]
            self._times_slope(delta, features, slopes)
            before = hidden[index - 1] if index else inputs
            gradients[:0] = [np.matmul(delta.swapaxes(1, 2), before), np.matmul(ones, delta)]
            if index:
                np.matmul(delta, parameters[2 * index], out=deltas[index - 1])
        return gradients + heads

    def _times_slope(self, delta: Array, features: Array, slopes: Array) -> None:
        """``delta`` times the derivative of the activation, which follows from its result."""
        if self._relu:
            np.multiply(delta, features > 0.0, out=delta)
            return
        slope = slopes.reshape(-1)[: features.size].reshape(features.shape)
        np.multiply(features, features, out=slope)
        np.subtract(1.0, slope, out=slope)
        np.multiply(delta, slope, out=delta)

    def _forward_shape(self, batch: int) -> list[tuple[int, ...]]:
        hidden = [(self.towers, batch, width) for width in self.widths]
        return [(1, batch, self.inputs), *hidden, (batch, self.outputs), (batch, 1)]

    def _backward_shape(self, batch: int) -> list[tuple[int, ...]]:
        hidden = [(self.towers, batch, width) for width in self.widths]
        return [*hidden, (self.towers, batch, max(self.widths)), (1, 1, batch)]


@dataclass
class _Storage:
    """Arrays for any batch size, in memory that is allocated once per growth."""

    shapes: Any
    capacity: int = -1
    memory: list[Array] = field(default_factory=list)
    known: dict[int, list[Array]] = field(default_factory=dict)

    def views(self, batch: int) -> list[Array]:
        """Contiguous arrays for a batch size; they alias those of every other size."""
        views = self.known.get(batch)
        return self._make(batch) if views is None else views

    def _make(self, batch: int) -> list[Array]:
        if batch > self.capacity or len(self.known) == VIEWS_KEPT:
            self.known.clear()
        if batch > self.capacity:
            self.capacity = batch
            self.memory = [np.empty(prod(shape), np.float32) for shape in self.shapes(batch)]
        pairs = zip(self.memory, self.shapes(batch), strict=True)
        self.known[batch] = [memory[: prod(shape)].reshape(shape) for memory, shape in pairs]
        return self.known[batch]

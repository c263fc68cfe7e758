"""Independent distributions side by side: the distribution of Dict and Tuple spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.distributions.base import ActionDistribution, Array, Evaluation, Mask
from srl.api.policy import NoiseSpec
from srl.api.spaces import Leaf, SpaceSpec, stored_space


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf's distribution, and which columns of outputs, noise and mask are its own."""

    leaf: Leaf
    distribution: ActionDistribution
    head: slice
    free: slice
    noise: slice
    mask: slice

    def outputs(self, outputs: Array) -> Array:
        """``[M, P]`` of the whole to that of the part."""
        if not self.distribution.free_outputs:
            return outputs[:, self.head]
        return np.concatenate([outputs[:, self.head], outputs[:, self.free]], axis=1)

    def legal(self, mask: Mask | None) -> Mask | None:
        """The part's mask; ``None`` if it has nothing to mask."""
        return None if mask is None or not self.distribution.mask else mask[:, self.mask]


class Composite(ActionDistribution):
    """Log-probability and entropy are the sums over the leaves; the action is a record of theirs.

    The outputs are those from the head, leaf by leaf in the space's order, then the free ones, leaf by leaf. Noise: of
    one kind if all leaves need that kind; else uniforms, and behind them pairs of uniforms that become the normals.

    Args:
        space: A Dict or Tuple space.
        distributions: One for every leaf.
    """

    def __init__(self, space: SpaceSpec, distributions: Sequence[ActionDistribution]) -> None:
        stored = stored_space(space)
        self.action = stored.array
        self.head_outputs = sum(part.head_outputs for part in distributions)
        self.free_outputs = sum(part.free_outputs for part in distributions)
        self.initial_free = np.concatenate([np.zeros(0, np.float32), *(part.initial_free for part in distributions)])
        self.mask = sum(part.mask for part in distributions)
        self._uniforms, self._normals = (
            sum(part.noise.shape[0] for part in distributions if part.noise.kind == kind)
            for kind in ("uniform", "normal")
        )
        self._mixed = bool(self._uniforms and self._normals)
        pairs = -(-self._normals // 2)
        self.noise = (
            NoiseSpec("uniform", (self._uniforms + 2 * pairs,))
            if self._mixed
            else NoiseSpec("normal" if self._normals else "uniform", (self._uniforms + self._normals,))
        )
        self._parts = tuple(_parts(stored, distributions, self.head_outputs, self._uniforms))

    def decide(
        self,
        outputs: Array,
        noise: Array,
        mask: Mask | None,
        action: NDArray[Any],
        log_probability: Array,
        *,
        deterministic: bool,
    ) -> None:
        """See the base class."""
        if self._mixed and not deterministic:
            normals = normals_from_pairs(noise[:, self._uniforms :])[:, : self._normals]
            noise = np.concatenate([noise[:, : self._uniforms], normals], axis=1)
        log_probability.fill(0.0)
        own = np.empty(len(outputs), np.float32)
        for part in self._parts:
            part.distribution.decide(
                part.outputs(outputs),
                noise[:, part.noise],
                part.legal(mask),
                part.leaf.of(action),
                own,
                deterministic=deterministic,
            )
            log_probability += own

    def evaluate(self, outputs: Array, action: NDArray[Any], mask: Mask | None) -> Evaluation:
        """See the base class."""
        rows = len(outputs)
        log_probability, entropy = np.zeros((2, rows), np.float32)
        evaluations = []
        for part in self._parts:
            evaluation = part.distribution.evaluate(part.outputs(outputs), part.leaf.of(action), part.legal(mask))
            log_probability += evaluation.log_probability
            entropy += evaluation.entropy
            evaluations.append(evaluation)

        def backward(by_log_probability: Array, by_entropy: Array) -> Array:
            gradient = np.empty((rows, self.outputs), np.float32)
            for part, evaluation in zip(self._parts, evaluations, strict=True):
                own = evaluation.backward(by_log_probability, by_entropy)
                gradient[:, part.head] = own[:, : part.distribution.head_outputs]
                gradient[:, part.free] = own[:, part.distribution.head_outputs :]
            return gradient

        return Evaluation(log_probability, entropy, backward)


def normals_from_pairs(uniform: Array) -> Array:
    """Box-Muller, both branches.

    Args:
        uniform: ``float32[B, 2 N]`` in [0, 1), multiples of 2**-24; the radii are made of the first half.

    Returns:
        ``float32[B, 2 N]`` normals, at most 5.8 in size.
    """
    half = uniform.shape[1] // 2
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform[:, :half].astype(np.float64)))  # 1 - u > 0: finite
    angle = (2.0 * np.pi) * uniform[:, half:].astype(np.float64)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)


def _parts(stored: SpaceSpec, distributions: Sequence[ActionDistribution], heads: int, uniforms: int) -> list[Part]:
    """Where each leaf's columns lie."""
    parts = []
    head, free, mask = 0, heads, 0
    noise = {"uniform": 0, "normal": uniforms}
    for leaf, own in zip(stored.leaves(), distributions, strict=True):
        first = noise[own.noise.kind]
        noise[own.noise.kind] += own.noise.shape[0]
        parts.append(
            Part(
                leaf,
                own,
                head=slice(head, head + own.head_outputs),
                free=slice(free, free + own.free_outputs),
                noise=slice(first, first + own.noise.shape[0]),
                mask=slice(mask, mask + own.mask),
            )
        )
        head, free, mask = head + own.head_outputs, free + own.free_outputs, mask + own.mask
    return parts

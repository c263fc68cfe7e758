"""Independent zeros and ones: the distribution of multi-binary action spaces."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.distributions.base import ActionDistribution, Array, Evaluation, Mask
from srl.algorithms.distributions.choices import LOWEST
from srl.api.policy import NoiseSpec
from srl.api.spaces import SpaceSpec, stored_action


class Bernoulli(ActionDistribution):
    """One probability per element, of its being 1; the outputs are the logits of these, in C order.

    Logits beyond 1e30 count as 1e30, so that no probability of 0 is multiplied by an infinity.

    Args:
        space: A multi-binary space.
    """

    def __init__(self, space: SpaceSpec) -> None:
        self.head_outputs, self.free_outputs = prod(space.shape), 0
        self.initial_free = np.zeros(0, np.float32)
        self.noise = NoiseSpec("uniform", (self.head_outputs,))
        self.action = stored_action(space)
        self.mask = 0

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
        """See the base class; 0 is the mode where both are equally probable."""
        logits = _bounded(outputs)
        # An element is 1 where u reaches the probability of 0: with u < 1 never if that is 1, always if it is 0.
        one = outputs.T > 0.0 if deterministic else _probability(-logits.astype(np.float64)) <= noise.T
        action[...] = one.T.reshape(action.shape)
        log_probability[...] = np.add.reduce(_log_probabilities(logits, one), axis=0)

    def evaluate(self, outputs: Array, action: NDArray[Any], mask: Mask | None) -> Evaluation:
        """See the base class.

        With p = P(1): ``d log p(a) / d logit = a - p`` and ``dH / d logit = -logit p (1 - p)``.
        """
        logits = _bounded(outputs)
        one = action.reshape(outputs.shape).T != 0
        probability, complement = _probability(logits), _probability(-logits)
        # H = log(1 + exp(|l|)) - |l| max(p, 1 - p), as a sum of two terms that are both small where H is.
        size = np.abs(logits)
        entropy = np.log1p(np.exp(-size)) + size * np.minimum(probability, complement)

        def backward(by_log_probability: Array, by_entropy: Array) -> Array:
            gradient = np.where(one, complement, -probability)
            gradient *= by_log_probability
            gradient -= logits * (probability * complement) * by_entropy
            return np.ascontiguousarray(gradient.T)

        return Evaluation(
            np.add.reduce(_log_probabilities(logits, one), axis=0), np.add.reduce(entropy, axis=0), backward
        )


def _bounded(outputs: Array) -> Array:
    """Logits ``[N, M]`` in C order, elements first: see ``choices.py`` for why."""
    logits: Array = np.maximum(outputs.T, LOWEST, order="C")
    return np.minimum(logits, -LOWEST, out=logits)


def _probability(logits: NDArray[Any]) -> NDArray[Any]:
    """The logistic function, accurate for both signs and without overflow."""
    small = np.exp(-np.abs(logits))
    result: NDArray[Any] = np.where(logits < 0.0, small, np.ones((), logits.dtype)) / (small + 1)
    return result


def _log_probabilities(logits: Array, one: NDArray[np.bool_]) -> Array:
    """Of each element, ``[N, M]``."""
    signed = np.where(one, logits, -logits)
    return np.minimum(signed, np.float32(0.0)) - np.log1p(np.exp(-np.abs(logits)))

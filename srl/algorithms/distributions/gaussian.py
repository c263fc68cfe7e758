"""Independent normal distributions: the distribution of boxes.

Log-probabilities are those of the stored action: before it is clipped or squashed for the environment, where a density
exists whatever the action, however far it lies beyond the bounds. Entropies are those of the same distribution.
"""

from __future__ import annotations

from math import log, pi, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.distributions.base import ActionDistribution, Array, Evaluation, Mask
from srl.api.policy import NoiseSpec
from srl.api.spaces import SpaceSpec, stored_action

StandardDeviation = Literal["free", "state"]
LOG_STD_RANGE = (-20.0, 2.0)
"""What logarithms of standard deviations are clipped to; beyond it their gradient is 0."""

HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)


class Gaussian(ActionDistribution):
    """A normal distribution per element, in C order; the mode is the mean.

    The outputs are D means, then D natural logarithms of standard deviations: from the network's head (``state``), or
    parameters of their own (``free``), the same in every row.

    Args:
        space: A box.
        standard_deviation: Where standard deviations come from.
        initial_log_std: What free ones start from.
    """

    def __init__(self, space: SpaceSpec, standard_deviation: StandardDeviation, initial_log_std: float) -> None:
        self._size = prod(space.shape)
        self._free = standard_deviation == "free"
        self.free_outputs = self._size if self._free else 0
        self.head_outputs = 2 * self._size - self.free_outputs
        self.initial_free = np.full(self.free_outputs, initial_log_std, np.float32)
        self.noise = NoiseSpec("normal", (self._size,))
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
        """See the base class."""
        mean, log_std = outputs[:, : self._size].T, _clipped(self._log_std(outputs))
        sample = mean if deterministic else np.add(mean, np.exp(log_std) * noise.T, dtype=np.float32)
        action[...] = sample.T.reshape(action.shape)
        # From the rounded sample, not from the noise: that is what evaluate() will see.
        standard = _standard(sample, mean, log_std)
        log_probability[...] = _log_density(standard * standard, log_std)

    def evaluate(self, outputs: Array, action: NDArray[Any], mask: Mask | None) -> Evaluation:
        """See the base class.

        With z = (a - mean) / std: ``d log p(a) / d mean = z / std``, ``d log p(a) / d log std = z^2 - 1`` and
        ``dH / d log std = 1``.
        """
        rows, raw = len(outputs), self._log_std(outputs)
        log_std = _clipped(raw)
        standard = _standard(action.reshape(rows, self._size).T, outputs[:, : self._size].T, log_std)
        squares = standard * standard
        entropy = np.add.reduce(log_std, axis=0) + np.float32(self._size * (0.5 + HALF_LOG_TWO_PI))

        def backward(by_log_probability: Array, by_entropy: Array) -> Array:
            gradient = np.empty((2 * self._size, rows), np.float32)
            by_mean, by_log_std = gradient[: self._size], gradient[self._size :]
            np.multiply(standard, np.exp(-log_std), out=by_mean)
            by_mean *= by_log_probability
            np.subtract(squares, np.float32(1.0), out=by_log_std)
            by_log_std *= by_log_probability
            by_log_std += by_entropy
            np.copyto(by_log_std, 0.0, where=(raw < LOG_STD_RANGE[0]) | (raw > LOG_STD_RANGE[1]))
            return np.ascontiguousarray(gradient.T)

        return Evaluation(_log_density(squares, log_std), entropy + np.zeros(rows, np.float32), backward)

    def _log_std(self, outputs: Array) -> Array:
        """``[D, M]``, or ``[D, 1]`` where it is the same in every row."""
        return outputs[:1, self._size :].T if self._free else outputs[:, self._size :].T


def _clipped(log_std: Array) -> Array:
    low, high = LOG_STD_RANGE
    clipped: Array = np.maximum(log_std, np.float32(low), order="C")
    return np.minimum(clipped, np.float32(high), out=clipped)


def _standard(sample: Array, mean: Array, log_std: Array) -> Array:
    """z, ``[D, M]`` in C order: see ``choices.py`` for why."""
    standard: Array = np.subtract(sample, mean, order="C")
    standard *= np.exp(-log_std)
    return standard


def _log_density(squares: Array, log_std: Array) -> Array:
    """``float32[M]``: the sum over elements of ``-z^2 / 2 - log std - log(2 pi) / 2``."""
    result: Array = np.add.reduce(squares, axis=0)
    result *= np.float32(-0.5)
    result -= np.add.reduce(log_std, axis=0) + np.float32(len(squares) * HALF_LOG_TWO_PI)
    return result

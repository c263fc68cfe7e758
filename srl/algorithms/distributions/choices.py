"""Choices among n values: drawing them, and log-probabilities and entropies with their gradients.

Arrays are ``[n, R]``: values along the first axis, one column per choice of a row. Reductions and broadcasts over a
short first axis run through contiguous memory; with the rows first they are several times slower.

Logits may be of any size: what is below ``LOWEST`` (minus infinity too) counts as ``LOWEST``, so that a probability of
0 is never multiplied by an infinity. NaN and plus infinity become NaN, which the trainer's checks name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.distributions.base import Array

LOWEST = np.float32(-1e30)
Index = NDArray[np.int64]
Backward = Callable[[Array, Array], Array]


def legal_values(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A copy of masks ``[n, R]``, in C order, in which choices with nothing legal are free."""
    legal = np.array(mask, order="C")
    free = ~np.logical_or.reduce(legal, axis=0)
    if free.any():
        legal |= free
    return legal


def choose(logits: Array, uniform: Array | None, legal: NDArray[np.bool_] | None) -> tuple[Index, Array]:
    """Draw values by the inverse of the cumulative distribution.

    The cumulative sum is float64, so that ``u * total`` with u <= 1 - 2**-24 stays below ``total``: a value of
    probability zero is never chosen. Counting thresholds among the first n - 1 sums keeps the result in range, and what
    comes of a NaN or of a uniform that is none is at least legal.

    Args:
        logits: ``float32[n, R]`` in C order; overwritten.
        uniform: ``float32[R]`` in [0, 1); ``None`` = the most probable value.
        legal: ``bool[n, R]``, at least one per column; ``None`` = all are.

    Returns:
        Values ``int64[R]`` and their log-probabilities ``float32[R]``.
    """
    if legal is not None:
        np.maximum(logits, LOWEST, out=logits)  # so that the largest legal one is finite
        np.copyto(logits, -np.inf, where=~legal)
    logits -= np.maximum.reduce(logits, axis=0)
    cumulative = np.add.accumulate(np.exp(logits), axis=0, dtype=np.float64)
    total = cumulative[-1]
    if uniform is None:
        chosen = logits.argmax(axis=0)
    else:
        chosen = np.add.reduce(cumulative[:-1] <= uniform * total, axis=0, dtype=np.int64)
    if legal is not None:
        unfit = ~legal.reshape(-1).take(_flat(chosen))
        if unfit.any():
            chosen = np.where(unfit, legal.argmax(axis=0), chosen)
    log_probability = logits.reshape(-1).take(_flat(chosen))
    np.subtract(log_probability, np.log(total), out=log_probability, casting="same_kind")
    return chosen, log_probability


def evaluate_choices(
    logits: Array, chosen: NDArray[Any], legal: NDArray[np.bool_] | None
) -> tuple[Array, Array, Backward]:
    """Log-probabilities and entropies of choices, and their gradient.

    With probabilities p and entropy H: ``d log p(a) / d logit = [a] - p`` and ``dH / d logit = -p (log p + H)``.

    Args:
        logits: ``float32[n, R]`` in C order; overwritten.
        chosen: Integers ``[R]``.
        legal: ``bool[n, R]``, at least one per column; ``None`` = all are.

    Returns:
        Log-probability ``float32[R]``, entropy ``float32[R]``, and what makes the gradient by the logits
        ``float32[n, R]`` from the gradients by those two.
    """
    illegal = None if legal is None else ~legal
    np.maximum(logits, LOWEST, out=logits)
    if illegal is not None:
        np.copyto(logits, -np.inf, where=illegal)
    logits -= np.maximum.reduce(logits, axis=0)
    probability = np.exp(logits)
    total = np.add.reduce(probability, axis=0)
    probability /= total
    logits -= np.log(total)
    if illegal is not None:
        np.copyto(logits, LOWEST, where=illegal)  # finite, as it is multiplied by a probability of 0
    flat = _flat(chosen)
    log_probability = logits.reshape(-1).take(flat)
    negative_entropy = np.add.reduce(probability * logits, axis=0)

    def backward(by_log_probability: Array, by_entropy: Array) -> Array:
        gradient = logits
        gradient -= negative_entropy
        gradient *= -by_entropy
        gradient -= by_log_probability
        gradient *= probability
        elements = gradient.reshape(-1)
        elements[flat] = elements.take(flat) + by_log_probability
        if illegal is not None:
            np.copyto(gradient, 0.0, where=illegal)
        return gradient

    return log_probability, -negative_entropy, backward


def _flat(chosen: NDArray[Any]) -> Index:
    """Where the chosen elements lie in a flattened ``[n, R]``."""
    count = len(chosen)
    index: Index = np.multiply(chosen, count, dtype=np.int64)
    index += _numbers(count)
    return index


@lru_cache(maxsize=32)  # decisions always have the same few batch sizes
def _numbers(count: int) -> Index:
    numbers = np.arange(count, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers

"""Several independent choices: the distribution of multi-discrete action spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.distributions.base import ActionDistribution, Array, Evaluation, Mask
from srl.algorithms.distributions.choices import Backward, Index, choose, evaluate_choices, legal_values
from srl.api.policy import NoiseSpec
from srl.api.spaces import SpaceSpec, stored_action


@dataclass(frozen=True, slots=True)
class Group:
    """Choices of a multi-discrete space that have the same number of values; they are computed together.

    Attributes:
        values: n.
        elements: Which elements of the action, E of them.
        columns: Their logits and mask entries, ``E * n`` columns, element by element.
    """

    values: int
    elements: slice | Index
    columns: slice | Index

    def values_first(self, array: NDArray[Any]) -> NDArray[Any]:
        """The group's part of ``[M, P]`` as ``[n, E, M]``, not copied if its columns lie together."""
        part = array[:, self.columns]
        return part.reshape(len(part), part.shape[1] // self.values, self.values).transpose(2, 1, 0)


class MultiCategorical(ActionDistribution):
    """Several independent choices: one log-probability and one entropy, the sums over all of them.

    The outputs are the logits of the first element, then of the second, and so on (C order).

    Args:
        space: A multi-discrete space.
    """

    def __init__(self, space: SpaceSpec) -> None:
        self.head_outputs, self.free_outputs = sum(space.nvec), 0
        self.initial_free = np.zeros(0, np.float32)
        self.noise = NoiseSpec("uniform", (len(space.nvec),))
        self.action = stored_action(space)
        self.mask = self.head_outputs
        self._elements = len(space.nvec)
        self._groups = _groups(space.nvec)

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
        """See the base class; of several most probable values of an element the first one is its mode."""
        rows = len(outputs)
        values = np.empty((rows, self._elements), np.int64)
        log_probability.fill(0.0)
        for group in self._groups:
            chosen, chosen_log_probability = choose(
                _logits(group, outputs),
                None if deterministic else noise[:, group.elements].T.reshape(-1),
                _legal(group, mask),
            )
            values[:, group.elements] = chosen.reshape(-1, rows).T
            log_probability += np.add.reduce(chosen_log_probability.reshape(-1, rows), axis=0)
        action[...] = values.reshape(action.shape)

    def evaluate(self, outputs: Array, action: NDArray[Any], mask: Mask | None) -> Evaluation:
        """See the base class."""
        rows = len(outputs)
        values = action.reshape(rows, self._elements)
        log_probability, entropy = np.zeros((2, rows), np.float32)
        parts: list[tuple[Group, int, Backward]] = []
        for group in self._groups:
            chosen = values[:, group.elements].T
            count = len(chosen)
            by_choice = evaluate_choices(_logits(group, outputs), chosen.reshape(-1), _legal(group, mask))
            log_probability += np.add.reduce(by_choice[0].reshape(count, rows), axis=0)
            entropy += np.add.reduce(by_choice[1].reshape(count, rows), axis=0)
            parts.append((group, count, by_choice[2]))

        def backward(by_log_probability: Array, by_entropy: Array) -> Array:
            gradient = np.empty((rows, self.head_outputs), np.float32)
            for group, count, part in parts:
                by_logits = part(np.tile(by_log_probability, count), np.tile(by_entropy, count))
                by_logits = by_logits.reshape(group.values, count, rows).transpose(2, 1, 0)
                gradient[:, group.columns] = by_logits.reshape(rows, count * group.values)
            return gradient

        return Evaluation(log_probability, entropy, backward)


def _groups(nvec: tuple[int, ...]) -> tuple[Group, ...]:
    """Elements of equal n together; one group without index arrays if all are equal."""
    if len(set(nvec)) == 1:
        return (Group(nvec[0], slice(None), slice(None)),)
    sizes = np.array(nvec)
    starts = np.cumsum(sizes) - sizes
    groups = []
    for n in sorted(set(nvec)):
        elements = np.flatnonzero(sizes == n)
        groups.append(Group(n, elements, (starts[elements][:, None] + np.arange(n)).reshape(-1)))
    return tuple(groups)


def _logits(group: Group, outputs: Array) -> Array:
    """A copy ``[n, R]``, R = elements of the group x rows."""
    return _joined(group.values_first(outputs))


def _legal(group: Group, mask: Mask | None) -> NDArray[np.bool_] | None:
    return None if mask is None else legal_values(_joined(group.values_first(mask)))


def _joined(array: NDArray[Any]) -> NDArray[Any]:
    """``[n, E, M]`` as ``[n, E * M]`` in memory of its own."""
    return array.copy().reshape(len(array), array.shape[1] * array.shape[2])

"""One choice among n values: the distribution of discrete action spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.algorithms.distributions.base import ActionDistribution, Array, Evaluation, Mask
from srl.algorithms.distributions.choices import choose, evaluate_choices, legal_values
from srl.api.policy import NoiseSpec
from srl.api.spaces import SpaceSpec, stored_action


class Categorical(ActionDistribution):
    """One of ``n`` values; the outputs are its logits, ``n`` of them.

    Args:
        space: A discrete space.
    """

    def __init__(self, space: SpaceSpec) -> None:
        self.head_outputs, self.free_outputs = space.n, 0
        self.initial_free = np.zeros(0, np.float32)
        self.noise = NoiseSpec("uniform", (1,))
        self.action = stored_action(space)
        self.mask = space.n

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
        """See the base class. The first of several most probable values is the mode."""
        chosen, log_probability[...] = choose(
            outputs.T.copy(),
            None if deterministic else noise.reshape(-1),
            None if mask is None else legal_values(mask.T),
        )
        action[...] = chosen

    def evaluate(self, outputs: Array, action: NDArray[Any], mask: Mask | None) -> Evaluation:
        """See the base class."""
        legal = None if mask is None else legal_values(mask.T)
        log_probability, entropy, backward = evaluate_choices(outputs.T.copy(), action, legal)
        return Evaluation(
            log_probability,
            entropy,
            lambda by_log_probability, by_entropy: np.ascontiguousarray(backward(by_log_probability, by_entropy).T),
        )

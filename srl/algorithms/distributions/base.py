"""What a distribution over actions is: a function of the numbers that a policy puts out.

Axes: ``B`` or ``M`` rows, ``P`` policy outputs (``head_outputs`` from the network's policy head, then ``free_outputs``
from parameters that do not depend on the observation, the same in every row), ``K`` entries of the action mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.policy import NoiseSpec
from srl.api.spaces import ArraySpec

Array = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Evaluation:
    """Given actions under a distribution.

    Attributes:
        log_probability: ``float32[M]``, of the whole action: the sum over its parts.
        entropy: ``float32[M]`` in nats, of the whole distribution; of legal actions only.
        backward: Given the loss's gradients by ``log_probability`` and by ``entropy`` (``float32[M]`` each), its
            gradient by the outputs, ``float32[M, P]``; called at most once, may overwrite the outputs.
    """

    log_probability: Array
    entropy: Array
    backward: Callable[[Array, Array], Array]


class ActionDistribution(ABC):
    """A family of distributions over one action space.

    Attributes:
        head_outputs: Numbers that the network's policy head has to put out.
        free_outputs: Numbers that do not depend on the observation, such as the logarithms of standard deviations.
        initial_free: ``float32[free_outputs]``, what those start from.
        noise: Randomness that one decision needs.
        action: How an action is stored in a block (:func:`srl.api.spaces.stored_action`).
        mask: K; 0 = the space has no discrete choice to mask.
    """

    head_outputs: int
    free_outputs: int
    initial_free: Array
    noise: NoiseSpec
    action: ArraySpec
    mask: int

    @property
    def outputs(self) -> int:
        """P."""
        return self.head_outputs + self.free_outputs

    @abstractmethod
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
        """Choose actions.

        Args:
            outputs: ``float32[B, P]``; may be overwritten.
            noise: ``float32[B, *noise.shape]``; not used if deterministic.
            mask: ``bool[B, K]``, True = legal; ``None`` = everything is. A choice with nothing legal counts as free
                (rows without a transition have such masks); who has transitions refuses it before.
            action: ``[B, ...]`` as in ``action``, written.
            log_probability: ``float32[B]``, written: of the stored action.
            deterministic: The mode instead of a sample.
        """

    @abstractmethod
    def evaluate(self, outputs: Array, action: NDArray[Any], mask: Mask | None) -> Evaluation:
        """Log-probabilities and entropies of stored actions.

        Args:
            outputs: ``float32[M, P]``; may be overwritten.
            action: ``[M, ...]`` as stored.
            mask: ``bool[M, K]`` as at the time of the decision; ``None`` = everything was legal.
        """

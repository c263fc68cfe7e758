"""From the action a policy stores to the action an environment takes: always a copy, never the block's array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.policy import PolicySpec


class ActionTransformer:
    """The action transform of a policy.

    ``none`` copies. The others are for boxes with one lower and one upper bound: ``clip`` cuts at the bounds,
    ``affine`` maps [-1, 1] linearly onto them (cut at the bounds), ``tanh_affine`` does so with the action's tanh.

    Args:
        policy: Whose actions they are.

    Raises:
        UsageError: The transform needs bounds that the action space does not have.
    """

    def __init__(self, policy: PolicySpec) -> None:
        space = policy.action
        self._transform = policy.action_transform
        self._dtype = np.dtype(space.dtype)
        self._low, self._high = space.low, space.high
        bounded = space.low is not None and space.high is not None and bool(np.isfinite([space.low, space.high]).all())
        if self._transform != "none" and not bounded:
            raise UsageError(
                f"the action transform '{self._transform}' needs one finite lower and one finite upper bound",
                where=f"policies.{policy.name}",
                value=space.describe(),
                expected="an action space bounded by the same two numbers in every element",
                hint="Rescale the actions in the environment, or use the transform 'none'.",
            )

    def __call__(self, action: NDArray[Any]) -> NDArray[Any]:
        """The environment's action.

        Args:
            action: ``[B, ...]`` as stored in a block; never changed.

        Returns:
            ``[B, ...]`` in the dtype of the action space, an array of its own.
        """
        if self._transform == "none":
            return action.astype(self._dtype)
        if self._transform == "clip":
            return self._cut(action).astype(self._dtype)
        unit = np.tanh(action) if self._transform == "tanh_affine" else np.clip(action, -1.0, 1.0)
        return self._scale(unit).astype(self._dtype)

    def _scale(self, unit: NDArray[Any]) -> NDArray[Any]:
        assert self._low is not None  # narrowed in the constructor
        assert self._high is not None
        scaled = self._low + (unit + 1.0) * (0.5 * (self._high - self._low))
        return self._cut(scaled)  # rounding may step over a bound

    def _cut(self, action: NDArray[Any]) -> NDArray[Any]:
        cut: NDArray[Any] = np.clip(action, self._low, self._high)
        return cut

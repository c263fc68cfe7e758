"""From the action a policy stores to the action an environment takes: always a copy, never the block's array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.policy import ActionTransform, PolicySpec
from srl.api.spaces import Bound, Leaf, SpaceSpec, stored_space

Transform = Callable[[NDArray[Any]], NDArray[Any]]


class ActionTransformer:
    """The action transform of a policy.

    It concerns boxes, plain ones and those in a Dict or Tuple: ``none`` copies, ``clip`` cuts at the bounds there are,
    ``affine`` maps [-1, 1] linearly onto the bounds (cut at them), ``tanh_affine`` does so with the action's tanh.
    Bounds are one number or one per element. Boxes of integers are rounded to the nearest. Discrete, multi-discrete
    and multi-binary actions only get the dtype of their space.

    Args:
        policy: Whose actions they are.

    Raises:
        UsageError: The transform needs bounds that a box does not have.
    """

    def __init__(self, policy: PolicySpec) -> None:
        space = policy.action
        leaves = space.leaves()
        transforms = [_transform(policy, leaf) for leaf in leaves]
        self._dtype = np.dtype(space.dtype)
        self._plain = None if leaves[0].field else transforms[0]
        self._parts = list(zip(stored_space(space).leaves(), leaves, transforms, strict=True))

    def __call__(self, action: NDArray[Any]) -> NDArray[Any]:
        """The environment's action.

        Args:
            action: ``[B, ...]`` as stored in a block; never changed.

        Returns:
            ``[B, ...]`` in the dtype of the action space, an array of its own.
        """
        if self._plain is not None:
            return self._plain(action)
        result = np.zeros(action.shape, self._dtype)
        for stored, leaf, transform in self._parts:
            leaf.of(result)[...] = transform(stored.of(action))
        return result


class BoxTransform:
    """The transform of one box.

    Bounds are moved inwards to the next numbers of the space's dtype. Cut at these, a result stays within the bounds
    when it is rounded to that dtype, whatever it was computed in.

    Args:
        space: The box.
        transform: Which one; ``affine`` and ``tanh_affine`` need both bounds, finite.
    """

    def __init__(self, space: SpaceSpec, transform: ActionTransform) -> None:
        self._transform = transform
        self._dtype = np.dtype(space.dtype)
        bounded = transform != "none"
        self._low = _inwards(space.low if bounded else None, space, upwards=True)
        self._high = _inwards(space.high if bounded else None, space, upwards=False)
        if transform in ("affine", "tanh_affine"):
            low, high = _array(space.low, space.shape), _array(space.high, space.shape)
            self._offset, self._half_width = low, 0.5 * (high - low)

    def __call__(self, action: NDArray[Any]) -> NDArray[Any]:
        """``[B, *shape]`` in the space's dtype, an array of its own."""
        if self._transform == "tanh_affine":
            action = self._offset + (np.tanh(action) + 1.0) * self._half_width
        elif self._transform == "affine":
            action = self._offset + (np.clip(action, -1.0, 1.0) + 1.0) * self._half_width
        if self._dtype.kind != "f":
            action = np.rint(action)
        if self._low is not None:
            action = np.maximum(action, self._low)
        if self._high is not None:
            action = np.minimum(action, self._high)
        return action.astype(self._dtype)


def _transform(policy: PolicySpec, leaf: Leaf) -> Transform:
    space, transform = leaf.space, policy.action_transform
    if space.kind != "box":
        dtype = np.dtype(space.dtype)
        return lambda action: action.astype(dtype)
    if transform in ("affine", "tanh_affine") and not (_finite(space.low) and _finite(space.high)):
        raise UsageError(
            f"the action transform '{transform}' needs a finite lower and a finite upper bound of every element",
            where=f"policies.{policy.name}",
            value=f"{leaf.path}: {space.describe()}" if leaf.path else space.describe(),
            expected="a box that is bounded below and above",
            hint="Rescale the actions in the environment, or use the transform 'clip' or 'none'.",
        )
    return BoxTransform(space, transform)


def _finite(bound: Bound) -> bool:
    return bound is not None and bool(np.isfinite(bound).all())


def _array(bound: Bound, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The bound as ``[*shape]``, or ``[]`` if it is one number."""
    array = np.asarray(bound, np.float64)
    return array.reshape(shape) if isinstance(bound, tuple) else array


def _inwards(bound: Bound, space: SpaceSpec, *, upwards: bool) -> NDArray[Any] | None:
    """The bound, moved to the nearest number within it that the space's dtype has; ``None`` if there is none.

    Boxes of integers are always bounded: by their dtype, whose range a conversion must not leave.
    """
    dtype = np.dtype(space.dtype)
    if dtype.kind != "f":
        return _integer_bound(bound, space, upwards=upwards)
    if bound is None:
        return None
    exact = _array(bound, space.shape)
    with np.errstate(over="ignore"):  # infinity is outside
        rounded = exact.astype(dtype)
    outside = rounded < exact if upwards else rounded > exact
    towards = np.array(np.inf if upwards else -np.inf, dtype)
    inside: NDArray[Any] = np.where(outside, np.nextafter(rounded, towards), rounded)
    return inside.astype(np.float64 if dtype.itemsize > 4 else np.float32)


def _integer_bound(bound: Bound, space: SpaceSpec, *, upwards: bool) -> NDArray[np.float64]:
    dtype = np.dtype(space.dtype)
    least, largest = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if upwards:
        return np.maximum(np.ceil(_array(-np.inf if bound is None else bound, space.shape)), float(least))
    limit = float(largest)
    if int(limit) > largest:  # 64 bits do not fit into a float64
        limit = float(np.nextafter(limit, 0.0))
    return np.minimum(np.floor(_array(np.inf if bound is None else bound, space.shape)), limit)

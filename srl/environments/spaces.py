"""From Gymnasium spaces to space specs, and the check of what an environment returns against its spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from srl.api.environment import EnvironmentSpec
from srl.api.errors import EnvironmentFault, UsageError
from srl.api.spaces import SpaceSpec


def space_spec(space: gymnasium.Space[Any], field: str, name: str) -> SpaceSpec:
    """The spec of a Gymnasium space.

    float64 boxes become float32 (networks compute in at most float32, and a block would be twice the size); every other
    dtype is kept, so that uint8 images stay uint8. Infinite bounds become ``None`` (they have no JSON form).

    Args:
        space: The space of one agent.
        field: ``"observation"`` or ``"action"``, for the message.
        name: Name of the environment, for the message.

    Raises:
        EnvironmentFault: For every space but Box and Discrete, with the word for what it is.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return SpaceSpec("discrete", (), "int64", n=int(space.n), start=int(space.start))
    if isinstance(space, gymnasium.spaces.Box):
        dtype = "float32" if space.dtype == np.float64 else np.dtype(space.dtype).name
        return SpaceSpec("box", tuple(space.shape), dtype, low=_one_bound(space.low), high=_one_bound(space.high))
    raise EnvironmentFault(
        f"{type(space).__name__} {field} spaces are not supported yet",
        where=name,
        value=str(space),
        expected="a Box or Discrete space",
        hint="Wrap the environment so that it offers one, for example with gymnasium.wrappers.FlattenObservation.",
    )


def environment_spec(
    env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], name: str, frames_per_step: int
) -> EnvironmentSpec:
    """The spec of a single-agent environment, single or vector.

    Raises:
        EnvironmentFault: For spaces that SRL cannot carry.
    """
    if isinstance(env, VectorEnv):
        observation, action = env.single_observation_space, env.single_action_space
    else:
        observation, action = env.observation_space, env.action_space
    return EnvironmentSpec(
        name=name,
        observation=space_spec(observation, "observation", name),
        action=space_spec(action, "action", name),
        frames_per_step=frames_per_step,
    )


def check_seeds(count: int, seeds: Sequence[int]) -> None:
    """Raise if there is not one distinct seed per environment: equal seeds would make equal episodes.

    Raises:
        UsageError: Naming the numbers.
    """
    if count < 1 or len(seeds) != count or len(set(seeds)) != count:
        raise UsageError(
            "environments need one seed each, all distinct",
            value=f"{count} environments, {len(set(seeds))} distinct of {len(seeds)} seeds",
        )


def _one_bound(bound: NDArray[Any]) -> float | None:
    """The bound if it is one finite number for all elements."""
    if bound.size == 0 or not np.all(bound == bound.flat[0]) or not np.isfinite(bound.flat[0]):
        return None
    return float(bound.flat[0])


def fits(array: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether the array has this shape and its values fit the dtype.

    Between float types precision may be lost (many environments compute in float64 under a float32 space); no other
    conversion that loses values fits.
    """
    if array.shape != shape:
        return False
    return np.can_cast(array.dtype, dtype, "safe") or (array.dtype.kind == "f" and dtype.kind == "f")


def misfit(field: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> EnvironmentFault:
    """The error for a value that does not fit the spec.

    Args:
        field: ``"observation"``, ``"reward"``, ...
        value: What the environment returned.
        shape: Expected shape.
        dtype: Expected dtype.
        where: Environment and step.
    """
    seen = np.asarray(value) if not isinstance(value, (dict, tuple)) else None
    return EnvironmentFault(
        f"the {field} does not have the shape and dtype of the space the environment declares",
        where=where,
        value=type(value).__name__ if seen is None else f"shape {seen.shape}, dtype {seen.dtype}",
        expected=f"shape {shape}, dtype {dtype}",
        hint="Spaces must be fixed at the start, and observations must belong to them.",
    )

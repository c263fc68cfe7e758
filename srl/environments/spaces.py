"""From Gymnasium spaces to space specs.

The names of nested entries are the keys of a Dict and the indices of a Tuple; a spec orders a Dict's entries by key, so
that nothing depends on the order in which an environment writes them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from srl.api.environment import EnvironmentSpec
from srl.api.errors import EnvironmentFault, UsageError
from srl.api.spaces import Bound, SpaceSpec, mask_size

MASK_KEY = "action_mask"
"""Where environments put action masks: this key of ``info``, or of a Dict observation."""
MASK_METHOD = "action_masks"
"""The method that some environments tell them by."""


def space_spec(space: gymnasium.Space[Any], field: str, name: str) -> SpaceSpec:
    """The spec of a Gymnasium space: Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, nested to any depth.

    float64 boxes become float32 (networks compute in at most float32, and a block would be twice the size); every other
    dtype is kept, so that uint8 images stay uint8.

    Args:
        space: The space of one agent.
        field: ``"observation"`` or ``"action"``, for the message.
        name: Name of the environment, for the message.

    Raises:
        EnvironmentFault: For every other space, with the word for what it is and where it lies.
    """
    spec = _spec(space, field, name, "")
    leaves = spec.leaves()
    if not leaves or not all(prod(leaf.space.shape) for leaf in leaves):
        raise EnvironmentFault(f"the {field} space holds nothing", where=name, value=str(space))
    ((path, count),) = Counter(leaf.path for leaf in leaves).most_common(1)
    if count > 1:
        raise EnvironmentFault(
            f"two entries of the {field} space have the same path",
            where=name,
            value=path,
            hint="Keys are joined by dots: name one of them otherwise.",
        )
    return spec


def environment_spec(
    env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
    name: str,
    frames_per_step: int = 1,
    action_mask: str | None = None,
) -> EnvironmentSpec:
    """The spec of a single-agent environment, single or vector.

    Args:
        env: The environment.
        name: Name for messages.
        frames_per_step: Emulator frames under one env step.
        action_mask: Where the environment puts its action masks, ``None`` if it has none. ``"observation"`` takes the
            key ``action_mask`` out of a Dict observation.

    Raises:
        EnvironmentFault: For spaces that SRL cannot carry, or where the masks cannot be what they are said to be.
    """
    prefix = "single_" if isinstance(env, VectorEnv) else ""
    observation = _declared(env, f"{prefix}observation_space", name)
    action = _declared(env, f"{prefix}action_space", name)
    given = space_spec(action, "action", name)
    if action_mask is not None and not mask_size(given):
        raise EnvironmentFault(
            "there is no discrete choice in the action space that a mask could restrict",
            where=name,
            value=given.describe(),
            hint="Leave environment.action_mask out.",
        )
    if action_mask == "method" and not _has_method(env, MASK_METHOD):
        raise EnvironmentFault(
            f"the environment has no method {MASK_METHOD}()",
            where=name,
            expected=f"one that returns the mask, as environment.{MASK_KEY} is method",
        )
    if action_mask == "observation":
        observation = _without_mask(observation, given, name)
    return EnvironmentSpec(
        name=name,
        observation=space_spec(observation, "observation", name),
        action=given,
        frames_per_step=frames_per_step,
        action_mask=action_mask is not None,
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


def unbounded(spec: SpaceSpec) -> SpaceSpec:
    """The same space without the bounds of its floating-point boxes, for sources that declare wrong ones."""
    children = tuple((name, unbounded(child)) for name, child in spec.children)
    is_float = spec.kind == "box" and np.dtype(spec.dtype).kind == "f"
    bounds: dict[str, Any] = {"low": None, "high": None} if is_float else {}
    return dataclasses.replace(spec, children=children, **bounds)


def _declared(env: Any, field: str, name: str) -> gymnasium.Space[Any]:
    space = getattr(env, field, None)
    if space is None:
        raise EnvironmentFault(
            f"the environment declares no {field}",
            where=name,
            expected=f"self.{field} set in __init__, such as gymnasium.spaces.Box(-1.0, 1.0, (3,))",
        )
    return space  # type: ignore[no-any-return]  # whatever else it is, space_spec refuses it


def _has_method(env: Any, method: str) -> bool:
    """Whether an environment has a method; one in other processes is believed to."""
    if not isinstance(env, VectorEnv):
        return bool(env.has_wrapper_attr(method))
    inner = env.unwrapped
    if isinstance(inner, SyncVectorEnv):
        return all(one.has_wrapper_attr(method) for one in inner.envs)
    return isinstance(inner, AsyncVectorEnv) or callable(getattr(inner, method, None))


def _spec(space: gymnasium.Space[Any], field: str, name: str, path: str) -> SpaceSpec:
    if isinstance(space, spaces.Discrete):
        return SpaceSpec("discrete", (), "int64", n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        starts = tuple(int(start) for start in space.start.flat)
        values = tuple(int(count) for count in space.nvec.flat)
        return SpaceSpec(
            "multi_discrete", tuple(space.nvec.shape), "int64", nvec=values, starts=starts if any(starts) else ()
        )
    if isinstance(space, spaces.MultiBinary):
        return SpaceSpec("multi_binary", tuple(space.shape), "int8")
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "fiub":
        return _box(space)
    if isinstance(space, spaces.Dict) and all(isinstance(key, str) for key in space.spaces):
        return SpaceSpec.nested(
            "dict", {key: _spec(entry, field, name, f"{path}{key}.") for key, entry in space.spaces.items()}
        )
    if isinstance(space, spaces.Tuple):
        entries = {str(index): _spec(entry, field, name, f"{path}{index}.") for index, entry in enumerate(space.spaces)}
        return SpaceSpec.nested("tuple", entries)
    at = f" (at '{path.rstrip('.')}')" if path else ""
    raise EnvironmentFault(
        f"{type(space).__name__} {field} spaces are not supported{at}",
        where=name,
        value=str(space),
        expected="Box, Discrete, MultiDiscrete, MultiBinary, or a Dict (keys are text) or Tuple of these",
        hint="Wrap the environment so that it offers one, for example a Box padded to a fixed size.",
    )


def _box(space: spaces.Box) -> SpaceSpec:
    dtype = np.dtype(space.dtype)
    stored = np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize > 4 else dtype
    return SpaceSpec(
        "box", tuple(space.shape), stored.name, low=_bound(space.low, -np.inf), high=_bound(space.high, np.inf)
    )


def _bound(bound: NDArray[Any], absent: float) -> Bound:
    """One number if all are equal, one per element in C order if not, ``None`` if all are infinite.

    The largest number of a floating-point type stands for infinity, as environments often write it.

    Args:
        bound: As the environment declares it.
        absent: What stands for no bound, one of the infinities.
    """
    limit = np.finfo(bound.dtype).max if bound.dtype.kind == "f" else np.inf
    there = np.abs(bound.astype(np.float64)) < limit
    if not there.any():
        return None
    numbers = tuple(float(number) if held else absent for number, held in zip(bound.flat, there.flat, strict=True))
    return numbers[0] if all(number == numbers[0] for number in numbers) else numbers


def _without_mask(space: gymnasium.Space[Any], action: SpaceSpec, name: str) -> spaces.Dict:
    if not isinstance(space, spaces.Dict) or MASK_KEY not in space.spaces:
        raise EnvironmentFault(
            f"the observation has no '{MASK_KEY}'",
            where=name,
            value=str(space),
            expected=f"a Dict space with the key '{MASK_KEY}', as environment.action_mask is observation",
        )
    mask = space.spaces[MASK_KEY]
    size = prod(mask.shape) if mask.shape is not None else mask_size(action)
    if size != mask_size(action):
        raise EnvironmentFault(
            "the action mask in the observation does not fit the action space",
            where=name,
            value=str(mask),
            expected=f"{mask_size(action)} entries for {action.describe()}",
        )
    return spaces.Dict({key: entry for key, entry in space.spaces.items() if key != MASK_KEY})

"""What exported policies are checked against: random observations, and the framework's own decisions for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.policy import ActingPolicy, PolicySpec
from srl.api.spaces import Bound, SpaceSpec
from srl.system.actions import ActionTransformer
from srl.system.decisions import new_input, new_output

SIZES = (2, 1, 64)
"""Batch sizes; the first one is what a module is traced with."""
ROUNDS = 4
NEXT_STATE = "next_state"


@dataclass(frozen=True)
class Batch:
    """One batch of inputs.

    Attributes:
        inputs: By name, in the order in which a module takes them; ``[B, ...]`` each.
        observation: The same observations as a policy takes them: ``[B, ...]`` in the space's dtype, counted from 0.
    """

    inputs: Mapping[str, NDArray[Any]]
    observation: NDArray[Any]

    @property
    def size(self) -> int:
        """B."""
        return len(self.observation)


def check_batches(spec: PolicySpec, seed: int = 0) -> list[Batch]:
    """Random batches of several sizes.

    Args:
        spec: The policy.
        seed: Of the randomness.
    """
    generator = np.random.default_rng(seed)
    return [_batch(spec, size, generator) for size in SIZES for _ in range(1 if size == SIZES[0] else ROUNDS)]


def expected_outputs(spec: PolicySpec, acting: ActingPolicy, batch: Batch) -> dict[str, NDArray[Any]]:
    """What the framework decides for a batch: outputs by name, actions as the environment takes them."""
    given, out = new_input(spec, batch.size), new_output(spec, batch.size)
    given.observation[...] = batch.observation
    given.valid[...] = True
    if given.action_mask is not None:
        given.action_mask[...] = batch.inputs["action_mask"]
    if given.state is not None:
        given.state[...] = batch.inputs["state"]
        given.episode_start[...] = batch.inputs["episode_start"]
    acting.act(given, out, deterministic=True)
    action = ActionTransformer(spec)(out.action)
    outputs = {
        f"action.{leaf.path}" if leaf.path else "action": leaf.of(action) + _starts(leaf.space)
        for leaf in spec.action.leaves()
    }
    return outputs if out.state is None else {**outputs, NEXT_STATE: out.state}


def largest_difference(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The largest difference, relative to the largest value wanted where that is above 1.

    Infinite where shapes differ or something is not a number.
    """
    if got.shape != wanted.shape:
        return float("inf")
    exact = wanted.astype(np.float64)
    difference = np.abs(got.astype(np.float64) - exact)
    scale = max(1.0, float(np.abs(exact).max(initial=0.0)))
    return float("inf") if np.isnan(difference).any() else float(difference.max(initial=0.0)) / scale


def _batch(spec: PolicySpec, size: int, generator: np.random.Generator) -> Batch:
    observation: NDArray[Any] = np.zeros((size, *spec.observation.shape), spec.observation.dtype)
    inputs: dict[str, NDArray[Any]] = {}
    for leaf in spec.observation.leaves():
        values = _random(leaf.space, size, generator)
        leaf.of(observation)[...] = values
        inputs[leaf.path or "observation"] = (values + _starts(leaf.space)).astype(leaf.space.dtype)
    if spec.action_mask:
        inputs["action_mask"] = _mask(spec, size, generator)
    if spec.state_size:
        inputs["state"] = generator.uniform(-1, 1, (size, spec.state_size)).astype(np.float32)
        inputs["episode_start"] = generator.random(size) < 0.5
    return Batch(inputs, observation)


def _random(space: SpaceSpec, size: int, generator: np.random.Generator) -> NDArray[Any]:
    """Values counted from 0, ``[B, *shape]``."""
    shape, dtype = (size, *space.shape), np.dtype(space.dtype)
    if space.kind == "discrete":
        return generator.integers(space.n, size=shape).astype(dtype)
    if space.kind == "multi_discrete":
        return generator.integers(np.reshape(space.nvec, space.shape), size=shape).astype(dtype)
    if space.kind == "multi_binary" or dtype.kind == "b":
        return generator.integers(2, size=shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        least = max(-1000 if space.low is None else float(np.min(space.low)), limits.min)
        largest = min(1000 if space.high is None else float(np.max(space.high)), limits.max)
        return generator.integers(int(least), int(largest), size=shape, dtype=dtype.type, endpoint=True)
    low, high = _bound(space.low, -np.inf, space.shape), _bound(space.high, np.inf, space.shape)
    bounded = np.isfinite(low) & np.isfinite(high)
    lowest, highest = np.where(bounded, low, 0.0), np.where(bounded, high, 0.0)
    # Far outside of its bounds, where it never is in use, a policy's own float32 errors are beyond the tolerance.
    within = lowest + generator.random(shape) * (highest - lowest)
    return np.where(bounded, within, np.clip(generator.normal(0.0, 1.0, shape), low, high)).astype(dtype)


def _bound(bound: Bound, absent: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(absent if bound is None else bound, np.float64)
    return array.reshape(shape) if isinstance(bound, tuple) else array


def _mask(spec: PolicySpec, size: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Half of the values legal, at least one of every choice."""
    mask = generator.random((size, spec.action_mask)) < 0.5
    first = 0
    for leaf in spec.action.leaves():
        for width in leaf.space.nvec or ((leaf.space.n,) if leaf.space.n else ()):
            mask[np.arange(size), first + generator.integers(width, size=size)] = True
            first += width
    return mask


def _starts(space: SpaceSpec) -> Any:
    return np.reshape(space.starts, space.shape) if space.starts else space.start

"""The environment contract, checked by stepping an environment as an actor does: for authors, and for their tests.

::

    from srl.environments.checking import check_environment

    def test_contract():
        check_environment({"type": "./maze.py:MazeFactory", "size": 9})

Everything comes from :mod:`srl.api.environment`; the message names what was broken, where, and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import Ended, EnvironmentSpec, StepOutput, VectorEnvironment
from srl.api.errors import EnvironmentFault, ExperimentError
from srl.api.registry import environment_factory
from srl.api.spaces import SpaceSpec, mask_size

_Trace = list[NDArray[Any]]


def check_environment(
    environment: Mapping[str, Any], *, count: int = 4, steps: int = 300, seed: int = 1
) -> EnvironmentSpec:
    """Step ``count`` environments with random actions, twice with the same seeds, and compare with the contract.

    Args:
        environment: As in an experiment: ``type`` and options.
        count: Environments side by side.
        steps: Steps of each.
        seed: Root of their seeds and of the actions.

    Returns:
        What the environment says it is.

    Raises:
        ExperimentError: Its options are wrong; every problem.
        EnvironmentFault: It broke its contract.
    """
    factory = environment_factory(environment)
    problems = factory.check(factory.options)
    if problems:
        raise ExperimentError(problems, source="environment")
    spec = factory.probe()
    if not isinstance(spec, EnvironmentSpec):
        raise _fault("probe() returned something else", "probe", type(spec).__name__, "an EnvironmentSpec")
    seeds = [seed + index for index in range(count)]
    first, again = (_Check(factory.make(count, seeds), spec, count, seed).run(steps) for _ in range(2))
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        if one.tobytes() != other.tobytes():
            raise _fault(
                "equal seeds and actions gave other observations or rewards",
                f"number {step}",
                other,
                f"{one}: all randomness from the seed of the first reset, none from global generators",
            )
    return spec


class _Check:
    """One life of a batch of environments."""

    def __init__(self, batch: VectorEnvironment, spec: EnvironmentSpec, count: int, seed: int) -> None:
        self._batch = batch
        self._spec = spec
        self._columns = count * spec.slots
        self._generator = np.random.default_rng(seed)

    def run(self, steps: int) -> _Trace:
        """Observations and rewards, step by step."""
        out = self._output()
        self._batch.reset(out)
        where = "reset"
        for name in ("valid", "episode_start"):
            if not getattr(out, name).all():
                raise _fault(f"{name} is not True everywhere", where, getattr(out, name), "True: every episode begins")
        self._look(out, where)
        trace: _Trace = [out.observation.copy()]
        begins = np.zeros(self._columns, np.bool_)
        for step in range(steps):
            where = f"step {step}"
            acted, previous = out.valid.copy(), out
            out = self._output()
            ended = self._batch.step(self._action(previous), out)
            ends = self._ends(out, ended, acted, where)
            begins = (begins & ~acted) | ends  # an episode begins with the next row that holds a transition
            self._beginnings(out, begins, where)
            self._look(out, where)
            trace += [out.observation.copy(), out.reward.copy()]
        self._batch.close()
        self._batch.close()  # allowed
        return trace

    def _output(self) -> StepOutput:
        observation, rows = self._spec.observation, self._columns
        mask = mask_size(self._spec.action) if self._spec.action_mask else 0
        return StepOutput(
            observation=np.zeros((rows, *observation.shape), observation.dtype),
            reward=np.full(rows, np.nan, np.float32),
            terminated=np.zeros(rows, np.bool_),
            truncated=np.zeros(rows, np.bool_),
            valid=np.zeros(rows, np.bool_),
            episode_start=np.zeros(rows, np.bool_),
            action_mask=np.zeros((rows, mask), np.bool_) if mask else None,
        )

    def _ends(self, out: StepOutput, ended: Ended | None, acted: NDArray[np.bool_], where: str) -> NDArray[np.bool_]:
        """Where episodes ended: the flags and the answer of ``step`` must agree."""
        if not np.isfinite(out.reward[acted]).all():
            raise _fault("a reward was not written, or is not finite", where, out.reward, "finite float32")
        flags = acted & (out.terminated | out.truncated)
        columns = np.flatnonzero(flags)
        said = np.zeros(0, np.int64) if ended is None else np.asarray(ended.columns)
        if not np.array_equal(columns, said):
            raise _fault("terminated and truncated say other columns ended than step()", where, said, f"{columns}")
        if ended is not None:
            wanted = (len(columns), *self._spec.observation.shape)
            if np.shape(ended.final_observation) != wanted:
                shape = np.shape(ended.final_observation)
                raise _fault("final observations have another shape", where, shape, f"{wanted}, one per ended column")
            _in_space(self._spec.observation, ended.final_observation, f"{where}, final observation")
        return flags

    def _beginnings(self, out: StepOutput, begins: NDArray[np.bool_], where: str) -> None:
        wrong = np.flatnonzero(out.valid & (out.episode_start != begins))
        if len(wrong):
            raise _fault(
                "episode_start is wrong", f"{where}, column {wrong[0]}", bool(out.episode_start[wrong[0]]),
                "True exactly at the first observation of an episode",
            )  # fmt: skip

    def _look(self, out: StepOutput, where: str) -> None:
        _in_space(self._spec.observation, out.observation, f"{where}, observation")

    def _action(self, out: StepOutput) -> NDArray[Any]:
        """Random actions, legal ones where there is a mask."""
        space = self._spec.action
        action = np.zeros((self._columns, *space.shape), space.dtype)
        offset = 0
        for leaf in space.leaves():
            size = mask_size(leaf.space)
            mask = None if out.action_mask is None else out.action_mask[:, offset : offset + size]
            leaf.of(action)[...] = self._sample(leaf.space, mask)
            offset += size
        return action

    def _sample(self, space: SpaceSpec, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        shape, draw = (self._columns, *space.shape), self._generator
        if space.kind == "multi_binary":
            return draw.integers(2, size=shape)
        if space.kind == "box":
            low = -np.inf if space.low is None else np.array(space.low)
            high = np.inf if space.high is None else np.array(space.high)
            return np.clip(draw.normal(size=shape).reshape(self._columns, -1), low, high).reshape(shape)
        sizes = [space.n] if space.kind == "discrete" else list(space.nvec)
        legal = np.ones((self._columns, sum(sizes)), np.bool_) if mask is None else mask
        parts = np.split(draw.random((self._columns, sum(sizes))) * legal, np.cumsum(sizes)[:-1], axis=1)
        return np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(shape)


def _in_space(space: SpaceSpec, array: NDArray[Any], where: str) -> None:
    """Every leaf finite and within its bounds."""
    for leaf in space.leaves():
        values, name = leaf.of(array), f"{where} {leaf.path}".strip()
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise _fault("a value is not finite", name, values, "finite values")
        flat = values.reshape(len(values), -1)
        kind = leaf.space.kind
        low = leaf.space.low if kind == "box" else 0
        high: Any = leaf.space.high
        if kind != "box":
            high = {"discrete": leaf.space.n, "multi_binary": 2}.get(kind, np.array(leaf.space.nvec)) - 1
        too_low = low is not None and bool((flat < np.asarray(low, flat.dtype)).any())
        too_high = high is not None and bool((flat > np.asarray(high, flat.dtype)).any())
        if too_low or too_high:
            raise _fault("a value is outside its space", name, values, f"{leaf.space.describe()}, {low} to {high}")


def _fault(what: str, where: str, value: Any, expected: str) -> EnvironmentFault:
    return EnvironmentFault(what, where=where, value=str(value), expected=expected)

"""Wrappers by name: from ``environment.wrappers`` of an experiment to a function that wraps one environment.

::

    environment:
      type: gymnasium
      id: CarRacing-v3
      wrappers:                          # the first one is the innermost
        - {type: frame_skip, frames: 4}
        - {type: gray_scale}
        - {type: frame_stack, frames: 4}
        - {type: reward_clip, low: -1, high: 1}
        - {type: "./wrappers.py:PenaltyForBraking", penalty: 0.1}

A wrapper is a class or function, registered as kind ``wrapper`` or named by its module or file, that takes an
environment and returns one: ``wrapper(env, **options)``. Two attributes make more of it, see :func:`wrapper_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import gymnasium
from pydantic import BaseModel

from srl.api.errors import EnvironmentFault, ExperimentError, PluginError, SRLError
from srl.api.experiment import PluginMapping
from srl.api.registry import REGISTRY
from srl.environments.options import option_problems
from srl.environments.results import step_fault
from srl.environments.sources import check_kwargs, making

SingleEnv = gymnasium.Env[Any, Any]
Wrap = Callable[[SingleEnv], SingleEnv]

_Wrapper = TypeVar("_Wrapper", bound=Callable[..., Any])


def wrapper_options(
    model: type[BaseModel], frames: Callable[[Any], int] | None = None
) -> Callable[[_Wrapper], _Wrapper]:
    """Decorate a wrapper with a model of its options.

    Args:
        model: A pydantic model that forbids unknown keys; the wrapper is then called ``wrapper(env, options)`` with an
            instance. It becomes the attribute ``Options``.
        frames: How many steps of the environment below lie under one step, from the options, for a wrapper that skips
            frames. It becomes the attribute ``frames_per_step``.
    """

    def decorate(wrapper: _Wrapper) -> _Wrapper:
        wrapper.Options = model  # type: ignore[attr-defined]
        if frames is not None:
            wrapper.frames_per_step = frames  # type: ignore[attr-defined]
        return wrapper

    return decorate


@dataclass(frozen=True)
class Wrapping:
    """One wrapper with its options.

    Attributes:
        name: As the experiment names it.
        apply: Wraps an environment.
        frames: Steps below under one step above.
    """

    name: str
    apply: Wrap
    frames: int


class RawEpisode(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What happens below the experiment's wrappers.

    Attributes:
        episode_return: Sum of rewards since the last reset that began an episode.
        resets: Number of resets.
        begins: A reset begins an episode; False = it is a wrapper's own, in the midst of one.
    """

    def __init__(self, env: SingleEnv) -> None:
        super().__init__(env)
        self.episode_return = 0.0
        self.resets = 0
        self.begins = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        if self.begins:
            self.episode_return = 0.0
        self.resets += 1
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        result: Any = self.env.step(action)
        try:
            _, reward, _, _, _ = result
            self.episode_return += float(reward)
        except (TypeError, ValueError):
            fault = step_fault(result, lambda: f"{self.env.unwrapped}, under the wrappers")
            if fault is None:
                raise
            raise fault from None
        return result  # type: ignore[no-any-return]


def resolve_wrappers(entries: Sequence[PluginMapping], where: str = "wrappers") -> list[Wrapping]:
    """The wrappers of an experiment, imported and their options checked.

    Args:
        entries: ``type`` and options each, innermost first.
        where: Key path below ``environment``.

    Raises:
        ExperimentError: With every problem: unknown names with the nearest ones, failed imports, options.
    """
    found, problems = [], []
    for index, entry in enumerate(entries):
        try:
            found.append(_resolve(entry, f"{where}.{index}"))
        except ExperimentError as error:
            problems += error.problems
        except SRLError as error:
            problems.append(error)
    if problems:
        raise ExperimentError(problems, source="environment")
    return found


def wrap_all(wrappings: Sequence[Wrapping], name: str) -> Wrap | None:
    """One function for all of them; ``None`` if there are none.

    Args:
        wrappings: Innermost first.
        name: The environment, for messages.
    """
    if not wrappings:
        return None

    def wrap(env: SingleEnv) -> SingleEnv:
        return reduce(lambda inner, wrapping: _applied(wrapping, inner, name), wrappings, env)

    return wrap


def _applied(wrapping: Wrapping, env: SingleEnv, name: str) -> SingleEnv:
    where = f"{name}, wrapper {wrapping.name}"
    with making(where):
        wrapped = wrapping.apply(env)
    if not isinstance(wrapped, gymnasium.Env):
        raise EnvironmentFault(
            "the wrapper did not return an environment",
            where=where,
            value=type(wrapped).__name__,
            expected="a gymnasium.Env",
        )
    return wrapped


def _resolve(entry: PluginMapping, where: str) -> Wrapping:
    wrapper = REGISTRY.resolve("wrapper", entry.type, f"{where}.type")
    if not callable(wrapper):
        raise PluginError(
            "not a wrapper",
            where=f"{where}.type",
            value=entry.type,
            expected="a class or function that takes an environment and returns one",
        )
    model = getattr(wrapper, "Options", None)
    if model is None:
        check_kwargs(wrapper, entry.options, where=where, skip=1)
        return Wrapping(entry.type, lambda env: wrapper(env, **entry.options), 1)
    problems = option_problems(model, entry.options)
    if problems:
        for problem in problems:
            problem.where = f"{where}.{problem.where}" if problem.where else where
        raise ExperimentError(problems, source="environment")
    options = model.model_validate(entry.options)
    frames = getattr(wrapper, "frames_per_step", None)
    return Wrapping(entry.type, lambda env: wrapper(env, options), 1 if frames is None else int(frames(options)))

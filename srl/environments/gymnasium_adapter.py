"""The environment type ``gymnasium``: registered ids, classes, functions and vector environments.

::

    environment: {type: gymnasium, id: CartPole-v1}
    environment: {type: gymnasium, id: "my_package:Maze-v0", kwargs: {size: 9}}
    environment: {type: gymnasium, entry: "my_package.maze:Maze", frames_per_step: 4}
    environment: {type: gymnasium, id: CartPole-v1, wrappers: [{type: frame_stack, frames: 4}]}
    environment: {type: gymnasium, id: srl/LegalMoves-v0, action_mask: info}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from srl.api.environment import EnvironmentFactory, EnvironmentSpec, Recording, VectorEnvironment
from srl.api.errors import ExperimentError, SRLError, UsageError
from srl.api.experiment import PluginMapping
from srl.api.importing import import_module
from srl.environments.environment_list import EnvironmentList
from srl.environments.masks import MaskSource
from srl.environments.options import Options, option_problems, parse_options
from srl.environments.recording import (
    RENDER_MODE,
    FrameRecorder,
    cannot_be_filmed,
    check_render_modes,
    follow_the_body,
    frames_per_second,
)
from srl.environments.sources import SingleSource, VectorSource, from_entry, from_id, import_named, making
from srl.environments.spaces import check_seeds, environment_spec
from srl.environments.vector_adapter import VectorAdapter
from srl.environments.wrapping import SingleEnv, Wrapping, resolve_wrappers, wrap_all


class GymnasiumOptions(Options):
    """Options of the environment type ``gymnasium``; exactly one of ``id`` and ``entry`` is needed."""

    id: str | None = Field(default=None, min_length=1, description="Gymnasium id; may be module:Name-v0; null = entry.")
    entry: str | None = Field(
        default=None,
        min_length=1,
        description="package.module:Attr of an Env or VectorEnv class, or a function that returns one; null = id.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment.")
    vectorization: Literal["auto", "vector_entry_point", "sync"] = Field(
        default="auto",
        description="auto = the native vector entry point where there is one; vector_entry_point = only that; "
        "sync = single environments, one after the other.",
    )
    frames_per_step: int | None = Field(
        default=None,
        ge=1,
        description="Emulator frames under one env step, wrappers included; null = as registered (frameskip), else 1, "
        "times what the wrappers skip.",
    )
    action_mask: MaskSource | None = Field(
        default=None,
        description="Where legal actions are said: info = info['action_mask']; observation = the key action_mask of a "
        "Dict observation, which is taken out of it; method = action_masks() of the environment; null = nowhere.",
    )
    wrappers: tuple[PluginMapping, ...] = Field(
        default=(),
        description="Wrappers, the innermost first: type (a registered name, package.module:Attr or ./file.py:Attr) "
        "and options. With wrappers environments are single ones, stepped one after the other.",
    )
    modules: tuple[str, ...] = Field(default=(), description="Modules to import first, for what they register.")

    @model_validator(mode="before")
    @classmethod
    def _one_source(cls, data: dict[str, Any]) -> dict[str, Any]:
        if "class" in data:
            if "entry" in data:
                raise ValueError("'class' is another word for 'entry'; give one of them")
            data = {**{key: value for key, value in data.items() if key != "class"}, "entry": data["class"]}
        given = [key for key in ("id", "entry") if data.get(key) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of 'id' and 'entry'")
        return data


class GymnasiumFactory(EnvironmentFactory):
    """Makes environments from :class:`GymnasiumOptions`."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[SRLError]:
        """Problems with the options, found by importing what they name, without making an environment."""
        problems = option_problems(GymnasiumOptions, options)
        if problems:
            return problems
        parsed = parse_options(GymnasiumOptions, options)
        for find in (_resolve, _wrappings):
            try:
                find(parsed)
            except ExperimentError as error:
                problems += error.problems
            except SRLError as error:
                problems.append(error)
        return problems

    def probe(self) -> EnvironmentSpec:
        """Make one environment, read its spaces, close it.

        Raises:
            EnvironmentFault: If it cannot be made, or for spaces that SRL cannot carry.
        """
        setup = self._setup()
        if isinstance(setup.source, VectorSource):
            with making(setup.name):
                env: Any = setup.source.create(1)
            try:
                return environment_spec(env, setup.name, setup.frames_per_step, setup.action_mask)
            finally:
                env.close()
        environment = self._list(setup, setup.source, [0])
        environment.close()
        return environment.spec

    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """``count`` environments; see :meth:`EnvironmentFactory.make`.

        Raises:
            EnvironmentFault: If they cannot be made, or for spaces that SRL cannot carry.
        """
        check_seeds(count, seeds)
        setup = self._setup()
        if isinstance(setup.source, SingleSource):
            return self._list(setup, setup.source, seeds)
        with making(setup.name):
            env = setup.source.create(count)
        return VectorAdapter(
            env, seeds, name=setup.name, frames_per_step=setup.frames_per_step, action_mask=setup.action_mask
        )

    def record(self, seed: int) -> Recording:
        """One environment with its wrappers, rendered at every step; a single one also where a native vector exists.

        Raises:
            UsageError: The environment has no render mode ``rgb_array``, or there is no single one.
            EnvironmentFault: It cannot be made.
        """
        options = parse_options(GymnasiumOptions, self.options)
        setup = self._setup()
        kwargs = {**options.kwargs, "render_mode": RENDER_MODE}
        try:
            check_render_modes(setup.name, options.entry)
            source = _resolve(options.model_copy(update={"kwargs": kwargs, "vectorization": "sync"}))
        except UsageError:
            raise
        except SRLError as error:
            raise cannot_be_filmed(setup.name, error.what) from error
        if isinstance(source, VectorSource):
            raise cannot_be_filmed(setup.name, "it is a vector environment")
        frames: list[NDArray[np.uint8]] = []
        wrap = wrap_all(setup.wrappings, setup.name)
        made: list[SingleEnv] = []

        def filmed(env: SingleEnv) -> SingleEnv:
            follow_the_body(env)
            made.append(FrameRecorder(wrap(env) if wrap else env, frames, setup.name))
            return made[-1]

        environment = EnvironmentList(
            source.create,
            [seed],
            name=setup.name,
            frames_per_step=setup.frames_per_step,
            wrap=filmed,
            action_mask=setup.action_mask,
        )
        rate = frames_per_second(made[0], prod(one.frames for one in setup.wrappings))
        return Recording(environment, frames, rate)

    def _list(self, setup: _Setup, source: SingleSource, seeds: Sequence[int]) -> EnvironmentList:
        return EnvironmentList(
            source.create,
            seeds,
            name=setup.name,
            frames_per_step=setup.frames_per_step,
            wrap=wrap_all(setup.wrappings, setup.name),
            action_mask=setup.action_mask,
        )

    def _setup(self) -> _Setup:
        options = parse_options(GymnasiumOptions, self.options)
        source, wrappings = _resolve(options), _wrappings(options)
        frames = options.frames_per_step or source.frames_per_step * prod(one.frames for one in wrappings)
        return _Setup(source, wrappings, frames, options.action_mask)


@dataclass(frozen=True)
class _Setup:
    """What an environment is made from."""

    source: SingleSource | VectorSource
    wrappings: list[Wrapping]
    frames_per_step: int
    action_mask: MaskSource | None

    @property
    def name(self) -> str:
        return self.source.name


def _wrappings(options: GymnasiumOptions) -> list[Wrapping]:
    return resolve_wrappers(options.wrappers)


def _resolve(options: GymnasiumOptions) -> SingleSource | VectorSource:
    for index, module in enumerate(options.modules):
        import_named(import_module, module, f"modules.{index}")
    # Wrappers go around single environments.
    vectorization = "sync" if options.wrappers and options.vectorization == "auto" else options.vectorization
    if options.wrappers and vectorization == "vector_entry_point":
        raise SRLError(
            "wrappers go around single environments",
            where="vectorization",
            value=vectorization,
            expected="auto or sync where there are wrappers",
        )
    if options.id is not None:
        return from_id(options.id, options.kwargs, vectorization)
    if options.entry is None:
        raise UsageError("neither an id nor an entry is given", where="environment")
    source = from_entry(options.entry, options.kwargs, options.vectorization)
    if options.wrappers and isinstance(source, VectorSource):
        raise SRLError(
            "wrappers go around single environments, and this entry is a vector environment",
            where="wrappers",
            value=options.entry,
            hint="Name the class of the single environment, or do what the wrappers do in the vector environment.",
        )
    return source

"""The environment type ``gymnasium``: registered ids, classes, functions and vector environments.

::

    environment: {type: gymnasium, id: CartPole-v1}
    environment: {type: gymnasium, id: "my_package:Maze-v0", kwargs: {size: 9}}
    environment: {type: gymnasium, entry: "my_package.maze:Maze", frames_per_step: 4}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from srl.api.environment import EnvironmentFactory, EnvironmentSpec, VectorEnvironment
from srl.api.errors import SRLError, UsageError
from srl.api.importing import import_module
from srl.environments.environment_list import EnvironmentList
from srl.environments.options import Options, option_problems, parse_options
from srl.environments.sources import SingleSource, VectorSource, from_entry, from_id, import_named, making
from srl.environments.spaces import check_seeds, environment_spec
from srl.environments.vector_adapter import VectorAdapter


class GymnasiumOptions(Options):
    """Options of the environment type ``gymnasium``; exactly one of ``id`` and ``entry`` is needed."""

    id: str | None = Field(default=None, min_length=1, description="Gymnasium id; may be module:Name-v0.")
    entry: str | None = Field(
        default=None,
        min_length=1,
        description="package.module:Attr of an Env class, a VectorEnv class, or a function that returns either.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment.")
    vectorization: Literal["auto", "vector_entry_point", "sync"] = Field(
        default="auto",
        description="auto = the native vector entry point where there is one; vector_entry_point = only that; "
        "sync = single environments, one after the other.",
    )
    frames_per_step: int | None = Field(
        default=None, ge=1, description="Emulator frames under one env step; null = as registered (frameskip), else 1."
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
        try:
            _resolve(parse_options(GymnasiumOptions, options))
        except SRLError as error:
            return [error]
        return []

    def probe(self) -> EnvironmentSpec:
        """Make one environment, read its spaces, close it.

        Raises:
            EnvironmentFault: If it cannot be made, or for spaces that SRL cannot carry.
        """
        source, frames = self._source()
        with making(source.name):
            env = source.create(1) if isinstance(source, VectorSource) else source.create()
        try:
            return environment_spec(env, source.name, frames)
        finally:
            env.close()

    def make(self, count: int, seeds: Sequence[int]) -> VectorEnvironment:
        """``count`` environments; see :meth:`EnvironmentFactory.make`.

        Raises:
            EnvironmentFault: If they cannot be made, or for spaces that SRL cannot carry.
        """
        check_seeds(count, seeds)
        source, frames = self._source()
        if isinstance(source, SingleSource):
            return EnvironmentList(source.create, seeds, name=source.name, frames_per_step=frames)
        with making(source.name):
            env = source.create(count)
        return VectorAdapter(env, seeds, name=source.name, frames_per_step=frames)

    def _source(self) -> tuple[SingleSource | VectorSource, int]:
        options = parse_options(GymnasiumOptions, self.options)
        source = _resolve(options)
        return source, options.frames_per_step or source.frames_per_step


def _resolve(options: GymnasiumOptions) -> SingleSource | VectorSource:
    for index, module in enumerate(options.modules):
        import_named(import_module, module, f"modules.{index}")
    if options.id is not None:
        return from_id(options.id, options.kwargs, options.vectorization)
    if options.entry is not None:
        return from_entry(options.entry, options.kwargs, options.vectorization)
    raise UsageError("neither an id nor an entry is given", where="environment")

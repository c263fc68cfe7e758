"""Options of plugins, checked in the same pass as the experiment that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from srl.api.algorithm import AlgorithmPlugin
from srl.api.environment import EnvironmentFactory
from srl.api.errors import SRLError
from srl.api.keys import KeyTree
from srl.api.metrics import MetricsSink
from srl.api.plain import code_names
from srl.api.problems import problems_of, with_line
from srl.api.registry import BUILT_IN, REGISTRY, Kind, Registry
from srl.api.yaml_text import KeyPath


class OptionsCheck:
    """Finds and checks the plugins that an experiment names.

    Args:
        allow_plugins: False admits built-in names only.
        registry: Where names are looked up.
    """

    def __init__(self, allow_plugins: bool = True, registry: Registry = REGISTRY) -> None:
        self._allow_plugins = allow_plugins
        self._registry = registry

    def plugin(self, name: str) -> type[AlgorithmPlugin]:
        """The algorithm plugin of a name that passed :meth:`problems`."""
        plugin: type[AlgorithmPlugin] = self._registry.resolve("algorithm", name)
        return plugin

    def model(self, path: KeyPath, value: Mapping[str, Any]) -> type[BaseModel] | None:
        """The options model of the plugin mapping at a path, ``None`` if it has none or its type is wrong."""
        is_sink = path[:1] == ("sinks",)
        name = value.get("type", path[-1] if is_sink else None)
        kind: Kind = "metrics_sink" if is_sink else "algorithm"
        if path == ("environment",) or not isinstance(name, str) or self._forbidden(kind, name):
            return None
        try:
            if is_sink:
                options: type[BaseModel] = self._registry.resolve(kind, name).Options
                return options
            return self.plugin(name).config
        except SRLError:
            return None  # said by problems()

    def problems(self, raw: Mapping[str, Any], tree: KeyTree, lines: Mapping[KeyPath, int]) -> list[SRLError]:
        """Everything wrong with the options of the environment, of all algorithms and of the metrics sinks.

        Args:
            raw: The experiment as written; parts of the wrong form are passed over, the typed model names them.
            tree: Its places.
            lines: Line numbers by key path.
        """
        found = [*self._environment(raw.get("environment"))]
        policies = raw.get("policies")
        for name, policy in policies.items() if isinstance(policies, Mapping) else ():
            algorithm = policy.get("algorithm") if isinstance(policy, Mapping) else None
            found += self._network(
                f"policies.{name}.network", policy.get("network") if isinstance(policy, Mapping) else None
            )
            found += self._algorithm(("policies", str(name), "algorithm"), algorithm, tree, lines)
        sinks = raw.get("sinks")
        for name, sink in sinks.items() if isinstance(sinks, Mapping) else ():
            found += self._sink(("sinks", str(name)), sink, tree, lines)
        return [_with_line(problem, lines) for problem in found]

    def _environment(self, value: Any) -> Iterator[SRLError]:
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            return
        if not self._allow_plugins:
            code = code_names({key: entry for key, entry in value.items() if key != "type"}, "environment")
            for path, text in code:
                yield SRLError("--no-plugins forbids what names code to import", where=path, value=text)
            registered = [
                SRLError(
                    "--no-plugins admits built-in wrappers only",
                    where=f"environment.wrappers.{index}.type",
                    value=entry["type"],
                    expected=" or ".join(sorted(BUILT_IN["wrapper"])),
                )
                for index, entry in enumerate(_entries(value.get("wrappers")))
                if isinstance(entry.get("type"), str) and self._forbidden("wrapper", entry["type"])
            ]
            named = {path for path, _ in code}
            yield from (problem for problem in registered if problem.where not in named)
            if code or registered:
                return  # the factory's own check would import it
        plugin = yield from self._resolve("environment", value["type"], "environment.type")
        if plugin is not None:
            factory: type[EnvironmentFactory] = plugin
            for problem in factory.check({key: entry for key, entry in value.items() if key != "type"}):
                problem.where = f"environment.{problem.where}" if problem.where else "environment"
                yield problem

    def _algorithm(self, path: KeyPath, value: Any, tree: KeyTree, lines: Mapping[KeyPath, int]) -> Iterator[SRLError]:
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            return
        plugin = yield from self._resolve("algorithm", value["type"], ".".join((*path, "type")))
        if plugin is None:
            return
        options = {key: entry for key, entry in value.items() if key != "type"}
        yield from _passed_over(plugin.config, options, tree, path)
        try:
            plugin.config.model_validate(options)
        except ValidationError as error:
            yield from problems_of(error, options, tree=tree, lines=lines, prefix=path)

    def _sink(self, path: KeyPath, value: Any, tree: KeyTree, lines: Mapping[KeyPath, int]) -> Iterator[SRLError]:
        given = {"type": path[-1], **value} if isinstance(value, Mapping) else {"type": path[-1]}
        if (value is not None and not isinstance(value, Mapping)) or not isinstance(given["type"], str):
            return
        plugin = yield from self._resolve("metrics_sink", given["type"], ".".join((*path, "type")))
        if plugin is None:
            return
        kind: type[MetricsSink] = plugin
        options = {key: entry for key, entry in given.items() if key != "type"}
        yield from _passed_over(kind.Options, options, tree, path)
        try:
            for problem in kind.check(kind.Options.model_validate(options)):
                problem.where = ".".join((*path, problem.where) if problem.where else path)
                yield problem
        except ValidationError as error:
            yield from problems_of(error, options, tree=tree, lines=lines, prefix=path)

    def _network(self, path: str, value: Any) -> Iterator[SRLError]:
        """What ``--no-plugins`` forbids; the rest is said by the algorithm, which knows the observation space."""
        if self._allow_plugins or not isinstance(value, Mapping):
            return
        code = code_names(value, path)
        for where, text in code:
            yield SRLError("--no-plugins forbids what names code to import", where=where, value=text)
        encoders = value.get("encoders")
        parts = encoders.items() if isinstance(encoders, Mapping) else ()
        for where, entry in ((path, value), *((f"{path}.encoders.{key}", entry) for key, entry in parts)):
            name = entry.get("type") if isinstance(entry, Mapping) else None
            if isinstance(name, str) and self._forbidden("network", name) and (f"{where}.type", name) not in code:
                yield SRLError(
                    "--no-plugins admits built-in networks only",
                    where=f"{where}.type",
                    value=name,
                    expected=" or ".join(sorted(BUILT_IN["network"])),
                )

    def _resolve(self, kind: Kind, name: str, where: str) -> Any:
        if self._forbidden(kind, name):
            yield SRLError(
                "--no-plugins admits built-in plugins only",
                where=where,
                value=name,
                expected=" or ".join(sorted(BUILT_IN[kind])),
            )
            return None
        try:
            return self._registry.resolve(kind, name, where)
        except SRLError as error:
            yield error
            return None

    def _forbidden(self, kind: Kind, name: str) -> bool:
        return not self._allow_plugins and name not in BUILT_IN[kind]


def _passed_over(
    model: type[BaseModel], options: Mapping[str, Any], tree: KeyTree, path: KeyPath
) -> Iterator[SRLError]:
    """Keys that no field has, where the plugin's author left it to pydantic, which drops them without a word."""
    if model.model_config.get("extra") in ("forbid", "allow"):
        return
    aliases = [alias for field in model.model_fields.values() for alias in (field.alias, field.validation_alias)]
    if any(alias is not None and not isinstance(alias, str) for alias in aliases):
        return  # a choice of several names, or a path: only pydantic knows what it takes
    names = {*model.model_fields, *aliases}
    for key in options:
        if key not in names:
            place = (*path, key)
            yield SRLError("unknown key", where=".".join(place), hint=tree.suggestion(place))


def _entries(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; whatever else stands there is named by the model."""
    return [entry if isinstance(entry, Mapping) else {} for entry in value] if isinstance(value, list) else []


def _with_line(problem: SRLError, lines: Mapping[KeyPath, int]) -> SRLError:
    if "(line " not in problem.what and "(override)" not in problem.what:
        problem.what = with_line(problem.what, tuple(problem.where.split(".")), lines)
    return problem

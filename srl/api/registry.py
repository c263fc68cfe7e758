"""Names of plugins: lazily resolved strings, one table per kind, the same in every process.

A plugin is named in an experiment by a registered name (``ppo``), by ``package.module:Attr`` or by ``./file.py:Attr``.
Names come from three places: the table below, packages (entry-point group ``srl.plugins``, entry name ``KIND.NAME``,
value ``package.module:Attr``) and the ``plugins`` of an experiment, which call :func:`register` while imported. Nothing
is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, get_args

from srl.api.algorithm import AlgorithmPlugin
from srl.api.environment import EnvironmentFactory
from srl.api.errors import PluginError
from srl.api.importing import import_module, import_target, is_target, target_of
from srl.api.metrics import MetricsSink
from srl.api.plugin_checks import check_class
from srl.api.suggest import did_you_mean

Kind = Literal["algorithm", "environment", "wrapper", "network", "transport", "launcher", "metrics_sink"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENTRY_POINT_GROUP = "srl.plugins"

BUILT_IN: Mapping[Kind, Mapping[str, str]] = {
    "algorithm": {"ppo": "srl.algorithms.ppo.plugin:PPO"},
    "environment": {
        "gymnasium": "srl.environments.gymnasium_adapter:GymnasiumFactory",
        "atari": "srl.environments.atari:AtariFactory",
        "envpool": "srl.environments.envpool_adapter:EnvPoolFactory",
    },
    "wrapper": {
        name: f"srl.environments.wrappers:{name}"
        for name in (
            "channels_first",
            "filter_observation",
            "flatten_observation",
            "frame_skip",
            "frame_stack",
            "gray_scale",
            "normalize_observation",
            "rescale_observation",
            "resize",
            "reward_clip",
            "reward_scale",
            "sticky_action",
            "time_aware",
            "time_limit",
        )
    },
    "network": {
        "mlp": "srl.algorithms.networks.encoders:MLPEncoder",
        "nature_cnn": "srl.algorithms.networks.encoders:NatureCNNEncoder",
        "impala_resnet": "srl.algorithms.networks.impala:ImpalaEncoder",
        "dict": "srl.algorithms.networks.encoders:DictEncoder",
    },
    "metrics_sink": {
        "json_lines": "srl.system.metrics.local_sinks:JsonLinesSink",
        "tensorboard": "srl.system.metrics.local_sinks:TensorBoardSink",
        "wandb": "srl.system.metrics.wandb_sink:WandbSink",
        "prometheus": "srl.system.metrics.prometheus_sink:PrometheusSink",
    },
}
BASES: Mapping[Kind, type[Any]] = {
    "algorithm": AlgorithmPlugin,
    "environment": EnvironmentFactory,
    "metrics_sink": MetricsSink,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a name leads: the target, and who registered it (for messages)."""

    target: str
    source: str


class Registry:
    """Names to targets, per kind."""

    def __init__(self, entries: Mapping[Kind, Mapping[str, str]] = BUILT_IN, source: str = "srl") -> None:
        self._entries: dict[Kind, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self._packages_read = False
        for kind, names in entries.items():
            for name, target in names.items():
                self.register(kind, name, target, source=source)

    def register(self, kind: Kind, name: str, target: str | type[Any], *, source: str = "register()") -> None:
        """Add a name.

        Args:
            kind: One of :data:`KINDS`.
            name: The name.
            target: ``package.module:Attr``, or the class itself.
            source: Who registers, for messages.

        Raises:
            PluginError: For an unknown kind, a malformed target, or a name that already leads somewhere else.
        """
        if kind not in KINDS:
            raise PluginError(
                "unknown kind of plugin", where=source, value=kind, hint=did_you_mean(kind, KINDS, "kinds")
            )
        text = target if isinstance(target, str) else target_of(target, where=source)
        if not is_target(text):
            raise PluginError(
                f"malformed target of {kind} '{name}'", where=source, value=text, expected="package.module:Attr"
            )
        present = self._entries[kind].get(name)
        if present is not None and present.target != text:
            raise PluginError(
                f"the name '{name}' is registered twice as {kind}",
                where=source,
                value=text,
                expected=f"another name, as '{name}' already leads to {present.target} (from {present.source})",
            )
        self._entries[kind][name] = Entry(text, source)

    def names(self, kind: Kind) -> tuple[str, ...]:
        """All names of a kind in alphabetical order, installed packages included."""
        self._read_packages()
        return tuple(sorted(self._entries[kind]))

    def entries(self, kind: Kind) -> dict[str, Entry]:
        """Name to target and source of a kind, in alphabetical order, installed packages included."""
        return {name: self._entries[kind][name] for name in self.names(kind)}

    def target(self, kind: Kind, name: str, where: str = "") -> str:
        """``package.module:Attr`` behind a name (or the name itself if it has that form); imports nothing.

        Raises:
            PluginError: If the name is unknown, with the nearest names.
        """
        if is_target(name):
            return name
        if name not in self._entries[kind]:
            self._read_packages()
        if name not in self._entries[kind]:
            raise PluginError(
                f"unknown {kind}",
                where=where,
                value=name,
                expected="a registered name, package.module:Attr or ./file.py:Attr",
                hint=did_you_mean(name, self._entries[kind]),
            )
        return self._entries[kind][name].target

    def resolve(self, kind: Kind, name: str, where: str = "") -> Any:
        """The object behind a name, imported now.

        Raises:
            PluginError: If the name is unknown, the import fails (with the inner cause), or the object is of another
                kind or incomplete (:func:`srl.api.plugin_checks.check_class`).
        """
        target = self.target(kind, name, where)
        value = import_target(target, where)
        base = BASES.get(kind)
        if base is not None:
            check_class(value, base, f"plugin of kind '{kind}'", target, where)
        return value

    def to_dict(self) -> dict[str, dict[str, str]]:
        """JSON-compatible form, for another process."""
        return {kind: {name: e.target for name, e in names.items()} for kind, names in self._entries.items()}

    @classmethod
    def from_dict(cls, data: Mapping[Any, Mapping[str, str]]) -> Registry:
        """The inverse of :meth:`to_dict`."""
        registry = cls(data, source="the controller's registry")
        registry._packages_read = True
        return registry

    def _read_packages(self) -> None:
        if self._packages_read:
            return
        self._packages_read = True
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            kind, _, name = entry.name.partition(".")
            source = f"package {entry.dist.name}" if entry.dist else f"entry point {entry.name}"
            if kind not in KINDS or not name:
                raise PluginError(
                    f"malformed entry point in group '{ENTRY_POINT_GROUP}'",
                    where=source,
                    value=entry.name,
                    expected=f"KIND.NAME with KIND one of {', '.join(KINDS)}",
                )
            self.register(kind, name, entry.value, source=source)


REGISTRY = Registry()
"""The registry of this process."""


def register(kind: Kind, name: str, target: str | type[Any]) -> None:
    """Add a name to this process's registry; what a plugin file calls at its top level."""
    REGISTRY.register(kind, name, target)


def load_plugins(paths: Iterable[str], where: str = "plugins") -> None:
    """Import plugin modules and files (absolute paths) once; each calls :func:`register`.

    A worker does this first of all, with ``experiment.plugin_paths(...)``.

    Raises:
        PluginError: If an import fails, with the inner cause.
    """
    for path in paths:
        import_module(path, where)


def algorithm_plugin(name: str, where: str = "") -> type[AlgorithmPlugin]:
    """The algorithm plugin class behind a name; see :meth:`Registry.resolve`."""
    plugin: type[AlgorithmPlugin] = REGISTRY.resolve("algorithm", name, where)
    return plugin


def environment_factory(environment: Mapping[str, Any], where: str = "environment") -> EnvironmentFactory:
    """The factory that an experiment's ``environment`` mapping (``type`` and options) describes."""
    options = {key: value for key, value in environment.items() if key != "type"}
    factory: EnvironmentFactory = REGISTRY.resolve("environment", environment["type"], f"{where}.type")(options)
    return factory

"""Experiments from whatever a person has at hand: a name, a file, a mapping, an object, or an algorithm's recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srl.api.algorithm import AlgorithmPlugin
from srl.api.environment import EnvironmentFactory
from srl.api.errors import PluginError, SRLError, UsageError
from srl.api.experiment import Experiment
from srl.api.importing import absolute, import_target, is_file, is_target, refuse_while_importing
from srl.api.loading import experiment_from_mapping, experiment_from_object, load_experiment
from srl.api.overrides import split
from srl.api.plugin_checks import failure
from srl.api.registry import BUILT_IN, REGISTRY, algorithm_plugin
from srl.system.seeding import check_seed

ExperimentLike = Experiment | Mapping[str, Any] | str | Path
Overrides = Sequence[str] | Mapping[str, Any]
ALE = "ALE/"
ALE_STICKINESS = 0.25
"""Probability that games registered as ``ALE/...-v5`` repeat the previous action."""


def as_experiment(source: ExperimentLike, overrides: Overrides = (), *, allow_plugins: bool = True) -> Experiment:
    """A valid experiment with every default filled in.

    Args:
        source: A bundled name, the path of a YAML or Python file, a mapping of the same form as YAML, or an
            ``Experiment``.
        overrides: ``["stop.env_steps=100000"]`` as on the command line, or ``{"stop.env_steps": 100_000}``.
        allow_plugins: False refuses Python experiments and every plugin that is not built in.

    Raises:
        ExperimentError: With every problem found.
        UsageError: There is no such experiment.
    """
    words = override_words(overrides)
    if isinstance(source, Experiment):
        return experiment_from_object(source, words, allow_plugins=allow_plugins)
    if isinstance(source, Mapping):
        return experiment_from_mapping(
            source, words, source=str(source.get("name", "experiment")), allow_plugins=allow_plugins
        )
    if isinstance(source, Path):
        source = str(source.expanduser().absolute())
    if not isinstance(source, str):
        raise UsageError(
            "not an experiment",
            value=type(source).__name__,
            expected="a bundled name, the path of a file, a mapping, or an Experiment",
        )
    return load_experiment(source, words, allow_plugins=allow_plugins)


def recipe(
    algorithm: str, environment: str | Mapping[str, Any], overrides: Overrides = (), *, allow_plugins: bool = True
) -> Experiment:
    """An algorithm's own default experiment for an environment.

    One environment is made, in a process of its own: the recipe depends on what it is.

    Args:
        algorithm: Registered name, ``package.module:Attr`` or ``./file.py:Attr``.
        environment: As in :func:`environment_mapping`.
        overrides: As in :func:`as_experiment`.
        allow_plugins: As in :func:`as_experiment`.

    Raises:
        ExperimentError: With every problem found.
        EnvironmentFault: The environment could not be made.
        WaitTimeout: Making it took longer than ``limits.connect_seconds``.
        UsageError: ``allow_plugins`` is False and the algorithm is not built in; or a plugin or experiment calls this
            while it is being imported.
        PluginError: There is no such algorithm, or its recipe failed.
    """
    if not allow_plugins and algorithm not in BUILT_IN["algorithm"]:
        raise UsageError(
            "--no-plugins admits built-in plugins only",
            where="--algorithm",
            value=algorithm,
            expected=" or ".join(BUILT_IN["algorithm"]),
        )
    refuse_while_importing("asks for a recipe, which makes an environment,")
    plugin = algorithm_plugin(algorithm, "--algorithm")
    words = override_words(overrides)
    source = f"recipe of {algorithm}"
    bare = {**_BARE, "environment": environment_mapping(environment, allow_plugins=allow_plugins)}
    probed = experiment_from_mapping(bare, _about_environment(words), source=source, allow_plugins=allow_plugins)
    made = _made(plugin, algorithm, probed)
    return experiment_from_mapping(made, words, source=source, allow_plugins=allow_plugins)


def override_words(overrides: Overrides) -> list[str]:
    """Overrides as they stand on the command line."""
    if isinstance(overrides, str):
        raise UsageError("overrides are a list", value=overrides, expected=f"[{overrides!r}]")
    if isinstance(overrides, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]  # JSON is YAML
    return list(overrides)


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with another seed.

    Raises:
        UsageError: The seed is no whole number from 0 to 2**31 - 1.
    """
    check_seed(seed)
    return experiment.model_copy(update={"seed": seed})


def environment_mapping(environment: str | Mapping[str, Any], *, allow_plugins: bool = True) -> dict[str, Any]:
    """The ``environment`` mapping that is meant.

    Args:
        environment: The mapping itself, a registered type, what ``package.module:Attr`` or ``./file.py:Attr`` names (an
            environment type, or a class or function of Gymnasium environments), or a Gymnasium id. ``ALE/Pong-v5`` is
            the type ``atari``, which prepares frames as all networks for Atari expect them, with the sticky actions
            that this id stands for.
        allow_plugins: False imports nothing: what is not built in is refused later.

    Raises:
        UsageError: A file is named, and not what in it.
    """
    if not isinstance(environment, str):
        return dict(environment)
    if environment in REGISTRY.names("environment"):
        return {"type": environment}
    if is_target(environment):
        is_entry = allow_plugins and _is_gymnasium_entry(environment)
        return {"type": "gymnasium", "entry": environment} if is_entry else {"type": environment}
    if is_file(environment):
        raise UsageError(
            "a file may define many things",
            where="--environment",
            value=environment,
            expected=f"the name of a class or function in it too, as in {environment}:Maze",
        )
    if environment.startswith(ALE):
        return {"type": "atari", "game": environment, "repeat_action_probability": ALE_STICKINESS}
    return {"type": "gymnasium", "id": environment}


def _is_gymnasium_entry(target: str) -> bool:
    """Whether a name is that of something else than an environment type; one that cannot be imported is not judged."""
    try:
        named = import_target(absolute(target, Path.cwd()), "--environment")
    except PluginError:
        return False
    return callable(named) and not (isinstance(named, type) and issubclass(named, EnvironmentFactory))


def _about_environment(words: Sequence[str]) -> list[str]:
    """The overrides that say what the environment is, or how long it may take to make one."""
    found = []
    for word in words:
        try:
            path, _ = split(word)
        except SRLError:
            continue  # said when all of them are applied
        if path[0] in ("environment", "plugins") or path == ("limits", "connect_seconds"):
            found.append(word)
    return found


def _made(plugin: type[AlgorithmPlugin], algorithm: str, probed: Experiment) -> dict[str, Any]:
    """The recipe for a checked environment; ``algorithm`` is the name under which the plugin was asked for."""
    from srl.distributed.probing import probe_environment

    spec = probe_environment(probed)
    environment = probed.environment.model_dump(mode="json")
    try:
        made = plugin.recipe(environment, spec, len(os.sched_getaffinity(0)))
        for policy in made["policies"].values():
            # An algorithm that inherits its recipe inherits the name in it too; meant is the one that was asked for.
            if policy["algorithm"]["type"] == plugin.name:
                policy["algorithm"]["type"] = algorithm
        first, dash, rest = str(made["name"]).partition("-")
        if first == plugin.name:
            made["name"] = f"{re.split('[:.]', algorithm)[-1]}{dash}{rest}"[:64]
    except SRLError:
        raise
    except Exception as error:
        expected = "recipe(environment, spec, cores), which returns an experiment as a mapping"
        raise failure(f"recipe() of '{algorithm}'", error, plugin, "--algorithm", expected) from error
    return made


# A graph around an environment that is still to be looked at; whatever is wrong with the environment is said of this.
_BARE: Mapping[str, Any] = {
    "name": "recipe",
    "policies": {"learner": {"algorithm": {"type": "ppo"}}},
    "streams": {"samples": {"kind": "sample"}},
    "workers": {
        "actor": {"kind": "actor", "agents": [{"policy": "learner", "samples": "samples"}]},
        "trainer": {"kind": "trainer", "policy": "learner", "samples": "samples"},
    },
    "stop": {"updates": 1},
}

"""Experiments from whatever a person has at hand: a name, a file, a mapping, an object, or an algorithm's recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srl.api.errors import UsageError
from srl.api.experiment import Experiment
from srl.api.importing import is_target
from srl.api.loading import experiment_from_mapping, experiment_from_object, load_experiment
from srl.api.registry import BUILT_IN, REGISTRY, algorithm_plugin

ExperimentLike = Experiment | Mapping[str, Any] | str | Path
Overrides = Sequence[str] | Mapping[str, Any]


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

    Args:
        algorithm: Registered name, ``package.module:Attr`` or ``./file.py:Attr``.
        environment: A Gymnasium id, a registered type, or the ``environment`` mapping.
        overrides: As in :func:`as_experiment`.
        allow_plugins: As in :func:`as_experiment`.

    Raises:
        ExperimentError: With every problem found.
        UsageError: ``allow_plugins`` is False and the algorithm is not built in.
        PluginError: There is no such algorithm.
    """
    if not allow_plugins and algorithm not in BUILT_IN["algorithm"]:
        raise UsageError(
            "--no-plugins admits built-in plugins only",
            where="--algorithm",
            value=algorithm,
            expected=" or ".join(BUILT_IN["algorithm"]),
        )
    plugin = algorithm_plugin(algorithm, "--algorithm")
    made = plugin.recipe(_environment(environment), len(os.sched_getaffinity(0)))
    for policy in made["policies"].values():
        # An algorithm that inherits its recipe inherits the name in it too; meant is the one that was asked for.
        if policy["algorithm"]["type"] == plugin.name:
            policy["algorithm"]["type"] = algorithm
    return experiment_from_mapping(
        made, override_words(overrides), source=f"recipe of {algorithm}", allow_plugins=allow_plugins
    )


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
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise UsageError("not a seed", value=seed, expected="a whole number from 0 to 2147483647")
    return experiment.model_copy(update={"seed": seed})


def _environment(environment: str | Mapping[str, Any]) -> dict[str, Any]:
    """The ``environment`` mapping: as given, or for a registered or importable type, or for a Gymnasium id."""
    if not isinstance(environment, str):
        return dict(environment)
    if environment in REGISTRY.names("environment") or is_target(environment):
        return {"type": environment}
    return {"type": "gymnasium", "id": environment}

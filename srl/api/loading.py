"""Experiments from files and names: one typed :class:`Experiment`, or every problem at once.

    experiment = load_experiment("cartpole_ppo", ["stop.env_steps=100000"])
    text = resolved_yaml(experiment)        # every default written out; runs as it is

YAML executes nothing but the plugins it names. A Python experiment is code; workers import its file too, so that what
it registers or defines exists in every process.
"""

from __future__ import annotations

import copy
import importlib.resources
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from srl.api import overrides as override
from srl.api.errors import ExperimentError, PluginError, SRLError, UsageError
from srl.api.experiment import Experiment
from srl.api.importing import absolute, import_module, is_file, place_of
from srl.api.keys import KeyTree
from srl.api.options import OptionsCheck
from srl.api.plain import absolute_paths, plain
from srl.api.problems import problems_of, unknown_keys
from srl.api.registry import load_plugins
from srl.api.structure import structure_problems
from srl.api.suggest import did_you_mean
from srl.api.unread import unread_keys
from srl.api.yaml_text import COMMAND_LINE, Document, KeyPath, dump, parse

BUNDLED_PACKAGE = "srl.experiments"


class UnreadOptionWarning(UserWarning):
    """Keys are set that nothing in this graph reads."""


@dataclass
class _Draft:
    """An experiment on its way: as written so far, and the problems found so far."""

    raw: dict[str, Any]
    source: str
    base: Path
    allow_plugins: bool
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[SRLError] = field(default_factory=list)


def load_experiment(source: str, overrides: Sequence[str] = (), *, allow_plugins: bool = True) -> Experiment:
    """Read and validate an experiment.

    Args:
        source: A YAML file, a Python file with ``def experiment() -> Experiment``, or a bundled name.
        overrides: ``key.path=value`` each, the value in YAML; later ones win. ``null`` removes a policy, stream or
            worker group.
        allow_plugins: False refuses Python experiments, ``plugins`` and every ``type`` that is not built in.

    Raises:
        ExperimentError: With every problem found.
        UsageError: If there is no such experiment.
    """
    path = _locate(source)
    if not is_file(path.name):
        try:
            document = parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the experiment cannot be read: {error}", where=str(path)) from None
        return _finish(_from_document(document, path, allow_plugins), overrides)
    if not allow_plugins:
        raise UsageError("a Python experiment is code, and --no-plugins forbids running code", where=str(path))
    return _finish(_from_python(path), overrides)


def experiment_from_mapping(
    mapping: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    source: str = "",
    base: Path | None = None,
    allow_plugins: bool = True,
) -> Experiment:
    """Validate an experiment given as plain mappings (the same form as YAML).

    Args:
        mapping: The experiment.
        overrides: As in :func:`load_experiment`.
        source: What to call it in messages.
        base: Directory that ``./file.py`` is relative to; the current one if ``None``.
        allow_plugins: As in :func:`load_experiment`.

    Raises:
        ExperimentError: With every problem found.
    """
    draft = _Draft({}, source, base or Path.cwd(), allow_plugins)
    if not isinstance(mapping, Mapping):
        raise _no_mapping(mapping, source)
    draft.raw = plain(mapping, "", draft.problems)
    return _finish(draft, overrides)


def experiment_from_object(
    experiment: Experiment, overrides: Sequence[str] = (), *, allow_plugins: bool = True
) -> Experiment:
    """Validate an experiment made in Python: its model knows its own keys, but not those of plugins, nor the graph.

    Args:
        experiment: The experiment.
        overrides: As in :func:`load_experiment`.
        allow_plugins: As in :func:`load_experiment`.

    Raises:
        ExperimentError: With every problem found.
    """
    draft = _Draft({}, experiment.name, Path.cwd(), allow_plugins)
    _take_apart(draft, experiment)
    return _finish(draft, overrides)


def resolved_yaml(experiment: Experiment) -> str:
    """The experiment with every default written out, as YAML that runs as it is."""
    return dump(experiment.model_dump(mode="json"))


def bundled_experiments() -> dict[str, Path]:
    """Name to file of the experiments that come with SRL."""
    folder = Path(str(importlib.resources.files(BUNDLED_PACKAGE)))
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".yaml", ".py") and path.stem[0] != "_"]
    return {path.stem: path for path in files}


def _locate(source: str) -> Path:
    if source.endswith((".yaml", ".yml", ".py")) or "/" in source:
        path = Path(source).expanduser().resolve()
        if path.is_file() and path.suffix in (".yaml", ".yml", ".py"):
            return path
        near = [str(file) for file in path.parent.glob("*") if file.suffix in (".yaml", ".yml", ".py")]
        raise UsageError(
            "there is no such experiment file",
            where=str(path),
            expected="a .yaml or .py file",
            hint=did_you_mean(str(path), near, "files there"),
        )
    names = bundled_experiments()
    if source in names:
        return names[source]
    raise UsageError(
        "there is no bundled experiment of this name",
        value=source,
        expected="a bundled name, or the path of a .yaml or .py file",
        hint=did_you_mean(source, names, "experiments"),
    )


def _from_document(document: Document, path: Path, allow_plugins: bool) -> _Draft:
    if not isinstance(document.value, dict):
        raise _no_mapping(document.value, str(path))
    return _Draft(document.value, str(path), path.parent, allow_plugins, document.lines, [*document.problems])


def _no_mapping(value: Any, source: str) -> ExperimentError:
    problem = SRLError("not a mapping", value=value, expected="keys such as name, environment, policies")
    return ExperimentError([problem], source)


def _from_python(path: Path) -> _Draft:
    """Run the file's ``experiment()`` and take its result apart again, so that both forms go the same way."""
    module = import_module(str(path), str(path))
    build = getattr(module, "experiment", None)
    if not callable(build):
        raise PluginError("the file does not define an experiment", where=str(path), expected="def experiment()")
    draft = _Draft({}, str(path), path.parent, True)
    try:
        experiment = build()
    except ValidationError as error:
        tree = KeyTree({}, lambda _path, _value: None)
        problems = problems_of(error, None, tree=tree, lines={}, prefix=(error.title,))
        raise ExperimentError(problems, str(path)) from None
    except Exception as error:
        if isinstance(error, SRLError):
            raise
        what = f"experiment() failed: {type(error).__name__}: {error}"
        raise PluginError(what, where=str(path), hint=f"Raised at {place_of(error)}") from error
    if not isinstance(experiment, Experiment):
        raise PluginError(
            "experiment() returned something else",
            where=str(path),
            value=type(experiment).__name__,
            expected="srl.api.experiment.Experiment",
        )
    _take_apart(draft, experiment)
    draft.raw["plugins"] = [*draft.raw.get("plugins", []), str(path)]
    return draft


def _take_apart(draft: _Draft, experiment: Experiment) -> None:
    """What the experiment was made of, as it would stand in a file."""
    raw = experiment.model_dump(exclude_unset=True)
    for section, entries in (("workers", experiment.workers), ("streams", experiment.streams)):
        for name, entry in entries.items():
            raw[section][name]["kind"] = entry.kind
    draft.raw = plain(raw, "", draft.problems)


def _finish(draft: _Draft, overrides: Sequence[str]) -> Experiment:
    options = OptionsCheck(draft.allow_plugins)
    pairs = _split(draft, overrides)
    _apply(draft, [pair for pair in pairs if pair[0][0] == "plugins"], options)
    _load_plugins(draft)
    _apply(draft, [pair for pair in pairs if pair[0][0] != "plugins"], options)
    draft.raw = _absolute(draft)
    experiment = _validate(draft, options)
    if draft.problems or experiment is None:
        raise ExperimentError(draft.problems, draft.source)
    unread = unread_keys(
        experiment, {name: options.plugin(policy.algorithm.type) for name, policy in experiment.policies.items()}
    )
    if unread:
        warnings.warn(f"nothing reads these keys in this experiment: {', '.join(unread)}", UnreadOptionWarning, 3)
    return experiment


def _split(draft: _Draft, overrides: Sequence[str]) -> list[tuple[KeyPath, Any]]:
    pairs = []
    for text in overrides:
        try:
            pairs.append(override.split(text))
        except SRLError as error:
            draft.problems.append(error)
    return pairs


def _apply(draft: _Draft, pairs: list[tuple[KeyPath, Any]], options: OptionsCheck) -> None:
    draft.raw = copy.deepcopy(draft.raw)
    for path, value in pairs:
        try:
            override.apply(draft.raw, path, value, KeyTree(draft.raw, options.model))
        except SRLError as error:
            draft.problems.append(error)
        else:
            draft.lines = {key: line for key, line in draft.lines.items() if key[: len(path)] != path}
            draft.lines[path] = COMMAND_LINE


def _load_plugins(draft: _Draft) -> None:
    entries = draft.raw.get("plugins")
    if not entries or not isinstance(entries, list):
        return
    if not draft.allow_plugins:
        draft.problems.append(SRLError("--no-plugins forbids plugins", where="plugins", value=str(entries)))
        return
    for index, entry in enumerate(entries):
        path = entry.get("path") if isinstance(entry, dict) else entry
        if not isinstance(path, str):
            continue  # the model says what is wrong with it
        try:
            load_plugins([absolute(path, draft.base)], f"plugins.{index}")
        except SRLError as error:
            draft.problems.append(error)


def _absolute(draft: _Draft) -> dict[str, Any]:
    """Files relative to the experiment's file, made absolute: workers and copies of the experiment sit elsewhere."""
    sections = ("plugins", "environment", "policies", "sinks")
    return {key: absolute_paths(value, draft.base) if key in sections else value for key, value in draft.raw.items()}


def _validate(draft: _Draft, options: OptionsCheck) -> Experiment | None:
    """Model, plugin options and structure in one pass; adds to ``draft.problems``."""
    tree = KeyTree(draft.raw, options.model)
    found = options.problems(draft.raw, tree, draft.lines)
    raw = draft.raw
    try:
        experiment: Experiment | None = Experiment.model_validate(raw)
    except ValidationError as error:
        draft.problems += problems_of(error, raw, tree=tree, lines=draft.lines)
        experiment = _without(raw, unknown_keys(error, raw))
    named = {problem.where for problem in draft.problems}
    draft.problems += [problem for problem in found if problem.where not in named]
    if experiment is None:
        return None
    draft.problems += structure_problems(experiment)
    return _with_defaults(experiment, options) if not draft.problems else None


def _without(raw: dict[str, Any], paths: list[KeyPath]) -> Experiment | None:
    """The experiment without its unknown keys, so that the rest is checked too; ``None`` if more is wrong with it."""
    pruned = copy.deepcopy(raw)
    for path in paths:
        target: Any = pruned
        for key in path[:-1]:
            target = target[int(key)] if isinstance(target, list) else target[key]
        del target[path[-1]]
    try:
        return Experiment.model_validate(pruned)
    except ValidationError:
        return None


def _with_defaults(experiment: Experiment, options: OptionsCheck) -> Experiment:
    """The algorithms' own defaults written out too."""
    raw = experiment.model_dump(mode="json")
    for name, policy in experiment.policies.items():
        config = options.plugin(policy.algorithm.type).config.model_validate(policy.algorithm.options)
        raw["policies"][name]["algorithm"] = {"type": policy.algorithm.type, **config.model_dump(mode="json")}
    return Experiment.model_validate(raw)

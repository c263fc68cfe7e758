"""Keys that are set although nothing in the experiment reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from srl.api.algorithm import AlgorithmPlugin
from srl.api.experiment import EvaluatorGroup, Experiment, InferenceStream, SampleStream, TrainerGroup
from srl.api.plugin_checks import misfit, requirements_of, texts_of


def unread_keys(experiment: Experiment, plugins: Mapping[str, type[AlgorithmPlugin]]) -> list[str]:
    """Key paths whose value differs from the default and has no effect.

    Args:
        experiment: A valid experiment.
        plugins: Policy name to its algorithm plugin.

    Raises:
        PluginError: A plugin cannot say which of its options it reads.
    """
    return [*_graph(experiment), *_streams(experiment, plugins), *_algorithms(experiment, plugins)]


def _set(model: BaseModel, key: str) -> bool:
    """True if a key was given another value than its default (a resolved experiment gives every key)."""
    return bool(getattr(model, key) != type(model).model_fields[key].get_default(call_default_factory=True))


def _graph(experiment: Experiment) -> Iterator[str]:
    if experiment.lockstep and _set(experiment.checkpoints, "interval_seconds"):
        yield "checkpoints.interval_seconds (lockstep: updates rule)"
    asked = any(isinstance(stream, InferenceStream) for stream in experiment.streams.values())
    if not asked and _set(experiment.limits, "inference_seconds"):
        yield "limits.inference_seconds (all inference is inline)"
    for name, group in experiment.workers.items():
        if isinstance(group, EvaluatorGroup) and group.interval_env_steps is None and group.count > 1:
            yield f"workers.{name}.count (there is only one evaluation)"


def _streams(experiment: Experiment, plugins: Mapping[str, type[AlgorithmPlugin]]) -> Iterator[str]:
    for group in experiment.workers.values():
        if not isinstance(group, TrainerGroup):
            continue
        stream = experiment.streams[group.samples]
        if not isinstance(stream, SampleStream):
            continue
        config = _config(experiment, group.policy, plugins)
        where = f"policies.{group.policy}.algorithm"
        if _set(stream, "max_policy_lag") and not requirements_of(plugins[group.policy], config, where).on_policy:
            yield f"streams.{group.samples}.max_policy_lag (the algorithm takes data of any age)"
        if experiment.lockstep and stream.on_straggler == "drop":
            yield f"streams.{group.samples}.on_straggler (lockstep always waits)"


def _algorithms(experiment: Experiment, plugins: Mapping[str, type[AlgorithmPlugin]]) -> Iterator[str]:
    for name in experiment.policies:
        config, where = _config(experiment, name, plugins), f"policies.{name}.algorithm"
        for key in texts_of(plugins[name], "unread", where, config):
            if key not in type(config).model_fields:
                raise misfit(plugins[name], "unread", where, key, f"names of fields of {type(config).__name__}")
            if _set(config, key):
                yield f"{where}.{key}"


def _config(experiment: Experiment, policy: str, plugins: Mapping[str, type[AlgorithmPlugin]]) -> Any:
    return plugins[policy].config.model_validate(experiment.policies[policy].algorithm.options)

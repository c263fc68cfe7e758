"""Checks of a graph that need the environment's spaces and the algorithms' requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from srl.api.algorithm import AlgorithmPlugin
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, SRLError
from srl.api.experiment import ActorGroup, Experiment
from srl.api.policy import PolicySpec
from srl.api.registry import algorithm_plugin
from srl.distributed.policy_checks import policy_spec_of, spec_problems


def algorithm_plugins(experiment: Experiment) -> tuple[dict[str, type[AlgorithmPlugin]], list[SRLError]]:
    """Policy name to algorithm plugin, and what is wrong with those that are missing."""
    plugins, problems = {}, []
    for name, policy in experiment.policies.items():
        try:
            plugins[name] = algorithm_plugin(policy.algorithm.type, f"policies.{name}.algorithm.type")
        except SRLError as error:
            problems.append(error)
    return plugins, problems


def algorithm_config(experiment: Experiment, policy: str, plugin: type[AlgorithmPlugin]) -> Any:
    """The typed options of a policy's algorithm."""
    return plugin.config.model_validate(experiment.policies[policy].algorithm.options)


def policy_specs(
    experiment: Experiment, plugins: Mapping[str, type[AlgorithmPlugin]], environment: EnvironmentSpec
) -> tuple[dict[str, PolicySpec], list[SRLError]]:
    """Policy name to spec, and where spaces, network options or policy outputs do not fit."""
    specs: dict[str, PolicySpec] = {}
    problems: list[SRLError] = []
    for name, plugin in plugins.items():
        try:
            config = algorithm_config(experiment, name, plugin)
            specs[name] = policy_spec_of(plugin, name, config, experiment.policies[name].network, environment)
        except ExperimentError as error:
            problems += error.problems
        except SRLError as error:
            problems.append(error)
        else:
            problems += spec_problems(specs[name], environment)
    return specs, problems


def policy_problems(experiment: Experiment) -> Iterator[SRLError]:
    """More policies than one trial can train: checkpoints, budgets and the end of the trial are one policy's."""
    if len(experiment.policies) > 1:
        yield SRLError(
            "several policies in one trial are not available yet",
            where="policies",
            value=", ".join(experiment.policies),
            expected="one policy",
            hint="Run one trial for each.",
        )


def agent_problems(experiment: Experiment, environment: EnvironmentSpec) -> Iterator[SRLError]:
    """Agents that do not match exactly one group of an actor."""
    for name, group in experiment.workers.items():
        if not isinstance(group, ActorGroup):
            continue
        for agent in environment.agents:
            matches = [index for index, agents in enumerate(group.agents) if _matches(agents.match, agent)]
            if len(matches) != 1:
                yield SRLError(
                    f"agent '{agent}' of {environment.name} matches {len(matches) or 'none'} of the agent groups",
                    where=f"workers.{name}.agents",
                    value=", ".join(agents.match for agents in group.agents),
                    expected="exactly one whose 'match' is a regular expression for the whole agent id",
                    hint=f"Agents of this environment: {', '.join(environment.agents[:12])}",
                )


def _matches(pattern: str, agent: str) -> bool:
    try:
        return re.fullmatch(pattern, agent) is not None
    except re.error:
        return False  # said by structure_problems

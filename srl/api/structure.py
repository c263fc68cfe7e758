"""What must hold between the parts of a declared graph, whatever environment and algorithm it has.

Pure: an experiment in, problems out. What needs the environment's spaces is checked in ``srl.distributed.graph``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from srl.api.errors import SRLError
from srl.api.experiment import (
    ActorGroup,
    AgentGroup,
    EvaluatorGroup,
    Experiment,
    InferenceStream,
    PolicyGroup,
    SampleStream,
    TrainerGroup,
)
from srl.api.suggest import did_you_mean

INLINE = "inline"


@dataclass(frozen=True)
class Feed:
    """One agent group of one actor group, and its key path."""

    where: str
    group: str
    actors: ActorGroup
    agents: AgentGroup


def feeds(experiment: Experiment) -> list[Feed]:
    """All agent groups of all actor groups."""
    return [
        Feed(f"workers.{name}.agents.{index}", name, group, agents)
        for name, group in experiment.workers.items()
        if isinstance(group, ActorGroup)
        for index, agents in enumerate(group.agents)
    ]


def structure_problems(experiment: Experiment) -> list[SRLError]:
    """All problems between the parts, each with its key path and what to do."""
    checks = (_references, _stream_ends, _policy_trainers, _actors, _ranks, _stops, _lockstep, _placement)
    return [problem for check in checks for problem in check(experiment)]


def _references(experiment: Experiment) -> Iterator[SRLError]:
    for feed in feeds(experiment):
        yield from _named(f"{feed.where}.policy", feed.agents.policy, experiment.policies, "policies")
        yield from _stream(experiment, f"{feed.where}.samples", feed.agents.samples, SampleStream)
        if feed.agents.inference != INLINE:
            yield from _stream(experiment, f"{feed.where}.inference", feed.agents.inference, InferenceStream)
            yield from _asks_own_policy(experiment, feed)
    for name, group in experiment.workers.items():
        if isinstance(group, TrainerGroup | EvaluatorGroup):
            yield from _named(f"workers.{name}.policy", group.policy, experiment.policies, "policies")
        if isinstance(group, TrainerGroup):
            yield from _stream(experiment, f"workers.{name}.samples", group.samples, SampleStream)
        if isinstance(group, PolicyGroup):
            yield from _stream(experiment, f"workers.{name}.serves", group.serves, InferenceStream)
    for name, stream in experiment.streams.items():
        if isinstance(stream, InferenceStream):
            yield from _named(f"streams.{name}.policy", stream.policy, experiment.policies, "policies")


def _named(where: str, name: str, known: Iterable[str], noun: str) -> Iterator[SRLError]:
    names = list(known)
    if name not in names:
        yield SRLError(
            f"there is no such entry under '{noun}'", where=where, value=name, hint=did_you_mean(name, names)
        )


def _stream(experiment: Experiment, where: str, name: str, kind: type) -> Iterator[SRLError]:
    wanted = "sample" if kind is SampleStream else "inference"
    stream = experiment.streams.get(name)
    if stream is None:
        names = [known for known, other in experiment.streams.items() if isinstance(other, kind)]
        hint = did_you_mean(name, names) or f"Declare a stream of kind '{wanted}' under 'streams'."
        yield SRLError("there is no such entry under 'streams'", where=where, value=name, hint=hint)
    elif not isinstance(stream, kind):
        yield SRLError(f"stream '{name}' is of kind '{stream.kind}'", where=where, expected=f"one of kind '{wanted}'")


def _asks_own_policy(experiment: Experiment, feed: Feed) -> Iterator[SRLError]:
    stream = experiment.streams.get(feed.agents.inference)
    if isinstance(stream, InferenceStream) and stream.policy != feed.agents.policy:
        yield SRLError(
            f"stream '{feed.agents.inference}' asks another policy",
            where=f"{feed.where}.inference",
            value=stream.policy,
            expected=f"'{feed.agents.policy}', the policy of these agents",
        )


def _stream_ends(experiment: Experiment) -> Iterator[SRLError]:
    for name, stream in experiment.streams.items():
        where = f"streams.{name}"
        if name == INLINE:
            yield SRLError("this name means inference in the actor itself", where=where, hint="Rename the stream.")
        if isinstance(stream, SampleStream):
            senders = [feed.where for feed in feeds(experiment) if feed.agents.samples == name]
            takers = _groups(experiment, TrainerGroup, "samples", name)
            ends = ("no agents send to it", "samples"), ("no trainer group consumes it", "samples")
        else:
            senders = [feed.where for feed in feeds(experiment) if feed.agents.inference == name]
            takers = _groups(experiment, PolicyGroup, "serves", name)
            ends = ("no agents ask it", "inference"), ("no policy group serves it", "serves")
        for found, (what, key), kind in zip((senders, takers), ends, ("agent group", "worker group"), strict=True):
            if not found:
                yield SRLError(what, where=where, hint=f"Name it as '{key}' of one {kind}, or remove the stream.")
            elif len(found) > 1:
                yield SRLError(
                    f"more than one {kind} has this end of it",
                    where=where,
                    value=", ".join(found),
                    expected=f"one {kind}",
                    hint="Give each its own stream, or raise the 'count' of one group.",
                )


def _groups(experiment: Experiment, kind: type, key: str, stream: str) -> list[str]:
    return [
        f"workers.{name}"
        for name, group in experiment.workers.items()
        if isinstance(group, kind) and getattr(group, key) == stream
    ]


def _policy_trainers(experiment: Experiment) -> Iterator[SRLError]:
    for policy in experiment.policies:
        trainers = _groups(experiment, TrainerGroup, "policy", policy)
        if len(trainers) != 1:
            yield SRLError(
                "a policy needs exactly one trainer group",
                where=f"policies.{policy}",
                value=", ".join(trainers) or "none",
                hint=f"Declare one group of kind 'trainer' with 'policy: {policy}' under 'workers'.",
            )
    for feed in feeds(experiment):
        for name, group in experiment.workers.items():
            if not isinstance(group, TrainerGroup) or group.samples != feed.agents.samples:
                continue
            if group.policy != feed.agents.policy:
                yield SRLError(
                    f"these agents act with another policy than workers.{name} trains from the same stream",
                    where=f"{feed.where}.policy",
                    value=feed.agents.policy,
                    expected=f"'{group.policy}', or another sample stream",
                )


def _actors(experiment: Experiment) -> Iterator[SRLError]:
    for name, group in experiment.workers.items():
        if isinstance(group, ActorGroup) and group.environments % group.ring_groups:
            yield SRLError(
                f"does not divide {group.environments} environments",
                where=f"workers.{name}.ring_groups",
                value=group.ring_groups,
                expected=f"one of {', '.join(map(str, _divisors(group.environments)))}",
            )
        if isinstance(group, ActorGroup) and len(group.agents) > 1:
            yield SRLError(
                "several agent groups in one actor are not available yet",
                where=f"workers.{name}.agents",
                value=len(group.agents),
                expected="one agent group",
            )
    for feed in feeds(experiment):
        try:
            re.compile(feed.agents.match)
        except re.error as error:
            yield SRLError(f"not a regular expression: {error}", where=f"{feed.where}.match", value=feed.agents.match)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, 64) + 1) if number % divisor == 0]


def _ranks(experiment: Experiment) -> Iterator[SRLError]:
    """Several trainer ranks are processes of their own."""
    for name, group in experiment.workers.items():
        if not isinstance(group, TrainerGroup) or group.count == 1:
            continue
        for key, value in (("placement", "fused"), ("transport", "in_process")):
            if getattr(experiment, key) == value:
                yield SRLError(
                    f"several trainer ranks need processes of their own, and '{key}: {value}' puts all workers into "
                    "one thread",
                    where=f"workers.{name}.count",
                    value=group.count,
                    expected=f"1, or another '{key}'",
                )


def _stops(experiment: Experiment) -> Iterator[SRLError]:
    stop = experiment.stop
    if not any(value is not None for value in stop.model_dump().values()):
        yield SRLError(
            "the trial would never end",
            where="stop",
            expected="at least one of env_steps, updates, wall_seconds, evaluation_return",
        )
    evaluators = [group for group in experiment.workers.values() if isinstance(group, EvaluatorGroup)]
    if stop.evaluation_return is not None and all(group.interval_env_steps is None for group in evaluators):
        yield SRLError(
            "nothing is evaluated during training",
            where="stop.evaluation_return",
            value=stop.evaluation_return,
            expected="a worker group of kind 'evaluator' with 'interval_env_steps'",
        )


def _lockstep(experiment: Experiment) -> Iterator[SRLError]:
    if not experiment.lockstep:
        return
    if experiment.stop.env_steps is None and experiment.stop.updates is None:
        yield SRLError(
            "a lockstep trial must end at the same update wherever it runs",
            where="stop",
            expected="env_steps or updates",
            hint="wall_seconds and evaluation_return depend on the machine's speed.",
        )
    for name, stream in experiment.streams.items():
        if isinstance(stream, SampleStream) and stream.max_policy_lag is None:
            yield SRLError(
                "a lockstep trial needs a bound on the policy lag",
                where=f"streams.{name}.max_policy_lag",
                expected="0 or more, instead of null",
            )


def _placement(experiment: Experiment) -> Iterator[SRLError]:
    placement, transport = experiment.placement, experiment.transport
    if placement == "fused" and transport not in ("auto", "in_process"):
        yield SRLError(
            "a fused trial has one process, and streams in one process need no such transport",
            where="transport",
            value=transport,
            expected="auto or in_process, or placement: processes",
        )
    if placement == "processes" and transport == "in_process":
        yield SRLError(
            "workers in different processes cannot pass blocks by reference",
            where="transport",
            value=transport,
            expected="auto, shared_memory or tcp, or placement: fused",
        )

"""What each worker of a resolved graph needs from its host: descriptors it shares, and whether it needs torch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from srl.api.experiment import ActorGroup, AgentGroup, EvaluatorGroup, InferenceStream, PolicyGroup, TrainerGroup
from srl.distributed.graph import ResolvedGraph
from srl.system.streams.shared_memory.descriptors import (
    DescriptorPlan,
    InferenceSegment,
    SampleSegments,
    WeightsSegment,
    plan_descriptors,
)
from srl.system.worker import WorkerId

INLINE = "inline"


def shared_memory_plan(graph: ResolvedGraph) -> tuple[DescriptorPlan, ...]:
    """Every descriptor that the workers of a graph on one host share, each with its holders."""
    return plan_descriptors(
        [_samples(graph, name) for name in graph.schemas],
        list(_inference(graph)),
        [WeightsSegment(policy, _users_of_weights(graph, policy)) for policy in graph.policies],
    )


def needs_torch(graph: ResolvedGraph, worker: WorkerId) -> bool:
    """Whether a worker computes with torch: every trainer, and whoever acts with a policy that does."""
    group = graph.experiment.workers[worker.group]
    if isinstance(group, TrainerGroup):
        return True
    return any(graph.policies[policy].backend != "numpy" for policy in acting_policies(graph, worker))


def acting_policies(graph: ResolvedGraph, worker: WorkerId) -> list[str]:
    """Policies whose weights a worker reads to act with."""
    group = graph.experiment.workers[worker.group]
    if isinstance(group, ActorGroup):
        return [agents.policy for agents in group.agents if agents.inference == INLINE]
    if isinstance(group, PolicyGroup):
        stream = graph.experiment.streams[group.serves]
        return [stream.policy] if isinstance(stream, InferenceStream) else []
    return [group.policy] if isinstance(group, EvaluatorGroup) else []


def consumers_of(graph: ResolvedGraph, worker: WorkerId) -> list[str]:
    """Workers that consume what an actor produces."""
    group = graph.experiment.workers[worker.group]
    streams = {agents.samples for agents in group.agents} if isinstance(group, ActorGroup) else set()
    return [
        other.name
        for other in graph.workers
        if isinstance(consumer := graph.experiment.workers[other.group], TrainerGroup) and consumer.samples in streams
    ]


def ranks_beside(graph: ResolvedGraph, worker: WorkerId) -> list[str]:
    """The other ranks of a trainer."""
    if not isinstance(graph.experiment.workers[worker.group], TrainerGroup):
        return []
    return [name for name in _names(graph, worker.group) if name != worker.name]


def meeting_files(graph: ResolvedGraph, run_dir: Path) -> dict[str, str]:
    """Where the ranks of each trainer group with several of them meet: ``ranks:GROUP`` to a path."""
    return {
        f"ranks:{name}": str(run_dir / f"ranks-{name}")
        for name, group in graph.experiment.workers.items()
        if isinstance(group, TrainerGroup) and group.count > 1
    }


def _names(graph: ResolvedGraph, group: str) -> tuple[str, ...]:
    return tuple(worker.name for worker in graph.workers if worker.group == group)


def _agents(graph: ResolvedGraph) -> Iterator[tuple[str, ActorGroup, AgentGroup]]:
    for name, group in graph.experiment.workers.items():
        if isinstance(group, ActorGroup):
            for agents in group.agents:
                yield name, group, agents


def _servers(graph: ResolvedGraph, stream: str) -> tuple[str, ...]:
    groups = graph.experiment.workers.items()
    return tuple(
        worker
        for name, group in groups
        if isinstance(group, PolicyGroup) and group.serves == stream
        for worker in _names(graph, name)
    )


def _samples(graph: ResolvedGraph, stream: str) -> SampleSegments:
    groups = graph.experiment.workers.items()
    consumers = [
        worker
        for name, group in groups
        if isinstance(group, TrainerGroup) and group.samples == stream
        for worker in _names(graph, name)
    ]
    users: list[str] = []
    for name, _, agents in _agents(graph):
        if agents.samples == stream:
            users += _names(graph, name)
            users += _servers(graph, agents.inference) if agents.inference != INLINE else ()
    slots = int(graph.flow[stream]["slots"])
    return SampleSegments(stream, graph.schemas[stream], slots, tuple(consumers), tuple(dict.fromkeys(users)))


def _inference(graph: ResolvedGraph) -> Iterator[InferenceSegment]:
    for name, group, agents in _agents(graph):
        if agents.inference != INLINE:
            yield InferenceSegment(
                stream=agents.inference,
                schema=graph.schemas[agents.samples],
                spec=graph.policies[agents.policy],
                ring_groups=group.ring_groups,
                actors=_names(graph, name),
                servers=_servers(graph, agents.inference),
            )


def _users_of_weights(graph: ResolvedGraph, policy: str) -> tuple[str, ...]:
    groups = graph.experiment.workers
    return tuple(
        worker.name
        for worker in graph.workers
        if policy in acting_policies(graph, worker)
        or (isinstance(trainer := groups[worker.group], TrainerGroup) and trainer.policy == policy)
    )

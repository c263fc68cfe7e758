"""The resolved graph as text, for ``srl-run --show-graph``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from srl.api.experiment import ActorGroup, EvaluatorGroup, Group, PolicyGroup, TrainerGroup
from srl.api.structure import INLINE
from srl.distributed.graph import ResolvedGraph
from srl.distributed.memory import describe_needs, mebibytes


def describe(graph: ResolvedGraph) -> str:
    """Groups, streams, transports, threads and memory, drawn with plain characters."""
    parts = [_title(graph), *_paths(graph), _evaluators(graph), _footer(graph)]
    return "\n\n".join(part for part in parts if part)


def _title(graph: ResolvedGraph) -> str:
    experiment, environment = graph.experiment, graph.environment
    return (
        f"{experiment.name}: {environment.name}, observation {environment.observation.describe()}, "
        f"action {environment.action.describe()}\n"
        f"placement {graph.placement}, transport {graph.transport}, lockstep {'on' if experiment.lockstep else 'off'}, "
        f"seed {experiment.seed}"
    )


def _paths(graph: ResolvedGraph) -> Iterator[str]:
    """One drawing per actor group: actors, what decides for them, the sample stream, its trainer."""
    for name, group in graph.experiment.workers.items():
        if isinstance(group, ActorGroup):
            for agents in group.agents:
                yield "\n".join(_path(graph, name, group, agents.samples, agents.inference, agents.policy))


def _path(
    graph: ResolvedGraph, name: str, group: ActorGroup, samples: str, inference: str, policy: str
) -> Iterator[str]:
    yield _worker_line(graph, name, group)
    if inference == INLINE:
        yield f"    |   inference inline: policy {policy}, weights from the parameter store"
    else:
        servers = _found(graph, PolicyGroup, "serves", inference)
        yield f"    |<===> inference stream '{inference}' ({graph.transport}) <===>"
        yield from (
            f"    |        {_worker_line(graph, server, graph.experiment.workers[server])}" for server in servers
        )
    schema, flow = graph.schemas[samples], graph.flow[samples]
    lag = "unbounded" if flow["max_policy_lag"] is None else f"at most {flow['max_policy_lag']}"
    yield "    |"
    yield f"    | sample stream '{samples}' ({graph.transport})"
    yield (
        f"    |   blocks of {schema.rows} rows x {schema.columns} columns, {mebibytes(schema.size_bytes)} each, "
        f"{flow['slots']} slots{' for each rank' if flow['ranks'] > 1 else ''}"
    )
    yield (
        f"    |   {flow['blocks_per_update']} per update{_dealt(flow['ranks'])} from {flow['producers']} "
        f"(actor, ring group) pairs, "
        f"policy lag {lag}, stragglers: {flow['on_straggler']}"
    )
    yield "    v"
    for trainer in _found(graph, TrainerGroup, "samples", samples):
        yield _worker_line(graph, trainer, graph.experiment.workers[trainer])
        yield from _network(graph.policies[policy].network)
        yield f"    |   publishes policy {policy} to the parameter store"


def _network(network: Mapping[str, Any]) -> Iterator[str]:
    """What stands between observations and heads, where the algorithm lets the experiment choose it."""
    if "type" in network:
        core = (network.get("recurrent") or {}).get("type")
        yield f"    |   network {network['type']}{f' with {core}' if core else ''}"


def _dealt(ranks: int) -> str:
    return f", dealt over {ranks} trainer ranks," if ranks > 1 else ""


def _evaluators(graph: ResolvedGraph) -> str:
    groups = graph.experiment.workers.items()
    lines = [_worker_line(graph, name, group) for name, group in groups if isinstance(group, EvaluatorGroup)]
    return "\n".join(lines)


def _worker_line(graph: ResolvedGraph, name: str, group: Group) -> str:
    threads = f"{group.threads} thread{'s' if group.threads > 1 else ''} each"
    return f"[{name}] {group.count} x {group.kind}: {_details(graph, name, group)}, {threads}"


def _details(graph: ResolvedGraph, name: str, group: Group) -> str:
    if isinstance(group, ActorGroup):
        per_group = group.environments // group.ring_groups
        return f"{group.environments} environments in {group.ring_groups} ring group(s) of {per_group}"
    if isinstance(group, TrainerGroup):
        algorithm = graph.experiment.policies[group.policy].algorithm.type
        return f"{algorithm} trains policy {group.policy} on {_devices(graph, name)}"
    if isinstance(group, EvaluatorGroup):
        every = f"every {group.interval_env_steps:,} env steps" if group.interval_env_steps else "at the end"
        return f"{group.episodes} episodes of policy {group.policy} {every}"
    return f"on {_devices(graph, name)}"


def _devices(graph: ResolvedGraph, group: str) -> str:
    """The devices of a group's workers, each named once."""
    own = [graph.devices[worker.name] for worker in graph.workers if worker.group == group]
    return ", ".join(dict.fromkeys(own))


def _footer(graph: ResolvedGraph) -> str:
    experiment = graph.experiment
    stops = [f"{key} {value:,}" for key, value in experiment.stop.model_dump().items() if value is not None]
    threads = sum(group.count * group.threads for group in experiment.workers.values())
    used = f"{threads} worker threads" if graph.placement == "processes" else "all workers in one thread"
    memory = describe_needs(graph.needs).replace("\n", "\n        ")
    return (
        f"stop    {' or '.join(stops)}\n"
        f"cores   {graph.cores}, {used}\n"
        f"memory  {memory}, of {mebibytes(graph.room.available_bytes)} ({graph.room.source})"
    )


def _found(graph: ResolvedGraph, kind: type, key: str, stream: str) -> list[str]:
    return [
        name
        for name, group in graph.experiment.workers.items()
        if isinstance(group, kind) and getattr(group, key) == stream
    ]

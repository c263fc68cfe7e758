"""From an experiment and its environment's spaces to everything that workers are told: the resolved graph.

Pure apart from reading how much memory there is. Every problem is found before any process starts, all at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from srl.api.algorithm import AlgorithmPlugin, DataRequirements
from srl.api.block import BlockSchema, policy_schema
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, SRLError
from srl.api.experiment import Experiment, SampleStream, TrainerGroup
from srl.api.plugin_checks import requirements_of, texts_of
from srl.api.policy import PolicySpec
from srl.api.structure import Feed, feeds, structure_problems
from srl.distributed.devices import (
    CPU,
    DeviceReader,
    DeviceTable,
    acting_device_problems,
    device_problems,
    device_table,
    needs_devices,
    worker_devices,
)
from srl.distributed.memory import MemoryReader, Need, Room, available_memory, memory_problem
from srl.distributed.policy_checks import state_problems
from srl.distributed.validation import (
    agent_problems,
    algorithm_config,
    algorithm_plugins,
    policy_problems,
    policy_specs,
)
from srl.system.flow.gate import default_slots
from srl.system.worker import Assignment, WorkerId
from srl.system.workers.batch import copied_blocks

Placement = Literal["fused", "processes"]
TransportName = Literal["in_process", "shared_memory", "tcp"]


@dataclass(frozen=True)
class ResolvedGraph:
    """Everything that follows from an experiment and its environment.

    Attributes:
        experiment: The experiment; ``auto`` stays ``auto`` in it, so that it runs elsewhere too.
        environment: The environment.
        workers: Every worker, in the order of the experiment's groups.
        policies: Policy name to spec.
        requirements: Policy name to what its algorithm asks of the data path.
        schemas: Sample stream name to block schema.
        flow: Sample stream name to ``blocks_per_update``, ``max_policy_lag``, ``on_straggler``, ``slots``,
            ``producers`` and ``ranks``, as in :class:`srl.system.worker.Assignment`.
        threads: Worker group name to threads per worker.
        placement: ``fused`` or ``processes``.
        transport: ``in_process``, ``shared_memory`` or ``tcp``.
        needs: Memory per sample stream.
        room: Memory there is.
        cores: Cores this process may use.
        cautions: What the algorithms warn of.
        devices: Worker name to torch device, of trainer and policy workers.
    """

    experiment: Experiment
    environment: EnvironmentSpec
    workers: tuple[WorkerId, ...]
    policies: Mapping[str, PolicySpec]
    requirements: Mapping[str, DataRequirements]
    schemas: Mapping[str, BlockSchema]
    flow: Mapping[str, Mapping[str, Any]]
    threads: Mapping[str, int]
    placement: Placement
    transport: TransportName
    needs: tuple[Need, ...]
    room: Room
    cores: int
    cautions: tuple[str, ...]
    devices: Mapping[str, str]

    def assignment(self, worker: WorkerId, trial_dir: Path | str, resume_from: str | None = None) -> Assignment:
        """What one worker is told, without endpoints and descriptors.

        Args:
            worker: The worker (of any incarnation).
            trial_dir: Directory of the trial.
            resume_from: Checkpoint directory to start from.
        """
        return Assignment(
            worker=worker,
            experiment=self.experiment.model_dump(mode="json"),
            environment=self.environment.to_dict(),
            policies={name: spec.to_dict() for name, spec in self.policies.items()},
            schemas={name: schema.to_dict() for name, schema in self.schemas.items()},
            flow={name: dict(flow) for name, flow in self.flow.items()},
            trial_dir=str(trial_dir),
            transport=self.transport,
            resume_from=resume_from,
            device=self.devices.get(worker.name, CPU),
        )


def resolve(
    experiment: Experiment,
    environment: EnvironmentSpec,
    *,
    placement: Literal["auto", "fused", "processes"] | None = None,
    transport: Literal["auto", "in_process", "shared_memory", "tcp"] | None = None,
    cores: int | None = None,
    memory: MemoryReader = available_memory,
    devices: DeviceReader | None = device_table,
) -> ResolvedGraph:
    """Resolve and check a graph.

    Args:
        experiment: The experiment.
        environment: Its environment, probed.
        placement: In place of the experiment's.
        transport: In place of the experiment's.
        cores: Cores to plan for; those this process may use if ``None``.
        memory: Reads how much memory there is.
        devices: Reads which devices there are, where any worker needs another than the CPU; ``None`` = nothing is to
            run here, and whether its devices are here is not looked at.

    Raises:
        ExperimentError: With every problem found, each with its key path and what to do.
    """
    given = {"placement": placement, "transport": transport}
    experiment = experiment.model_copy(update={key: value for key, value in given.items() if value is not None})
    cores = cores or len(os.sched_getaffinity(0))
    problems = structure_problems(experiment)
    plugins, unknown = algorithm_plugins(experiment)
    policies, misfits = policy_specs(experiment, plugins, environment)
    table = devices() if devices is not None and needs_devices(experiment) else DeviceTable()
    if devices is not None:
        problems += device_problems(experiment, table)
    problems += [*policy_problems(experiment), *unknown, *misfits, *agent_problems(experiment, environment)]
    problems += acting_device_problems(experiment, policies)
    if problems:
        raise ExperimentError(problems, experiment.name)
    requirements = {
        name: requirements_of(plugin, algorithm_config(experiment, name, plugin), f"policies.{name}.algorithm")
        for name, plugin in plugins.items()
    }
    problems += [problem for name, spec in policies.items() for problem in state_problems(spec, requirements[name])]
    where = choose_placement(experiment, cores)
    how = choose_transport(experiment, where)
    streams = [_Stream(experiment, feed, requirements[feed.agents.policy], environment) for feed in feeds(experiment)]
    problems += [problem for stream in streams for problem in stream.rank_problems()]
    if problems:
        raise ExperimentError(problems, experiment.name)
    schemas = {stream.name: stream.schema(policies[stream.policy]) for stream in streams}
    needs = tuple(stream.need(schemas[stream.name], how) for stream in streams)
    room = memory(experiment.limits.memory_bytes)
    problem = memory_problem(needs, room)
    if problem is not None:
        raise ExperimentError([problem], experiment.name)
    return ResolvedGraph(
        experiment=experiment,
        environment=environment,
        workers=_workers(experiment),
        policies=policies,
        requirements=requirements,
        schemas=schemas,
        flow={stream.name: stream.flow(where) for stream in streams},
        threads={name: group.threads for name, group in experiment.workers.items()},
        placement=where,
        transport=how,
        needs=needs,
        room=room,
        cores=cores,
        cautions=_cautions(experiment, plugins, streams, schemas),
        devices=worker_devices(experiment, table),
    )


def choose_placement(experiment: Experiment, cores: int) -> Placement:
    """``auto``: what the transport and trainer ranks ask for; else processes where there are at least two cores."""
    if experiment.placement != "auto":
        return experiment.placement
    if experiment.transport == "in_process":
        return "fused"
    if any(isinstance(group, TrainerGroup) and group.count > 1 for group in experiment.workers.values()):
        return "processes"
    return "processes" if cores >= 2 or experiment.transport != "auto" else "fused"


def choose_transport(experiment: Experiment, placement: Placement) -> TransportName:
    """``auto``: by reference in one process, shared memory between the processes of one host."""
    if experiment.transport != "auto":
        return experiment.transport
    return "in_process" if placement == "fused" else "shared_memory"


@dataclass(frozen=True)
class _Stream:
    """One sample stream with the agents that feed it."""

    experiment: Experiment
    feed: Feed
    requirements: DataRequirements
    environment: EnvironmentSpec

    @property
    def name(self) -> str:
        return self.feed.agents.samples

    @property
    def policy(self) -> str:
        return self.feed.agents.policy

    @property
    def producers(self) -> int:
        """Number of (actor, ring group) pairs."""
        return self.feed.actors.count * self.feed.actors.ring_groups

    @property
    def trainer(self) -> str:
        """The trainer group that consumes it."""
        groups = self.experiment.workers.items()
        return next(name for name, group in groups if isinstance(group, TrainerGroup) and group.samples == self.name)

    @property
    def ranks(self) -> int:
        """Number of trainer ranks."""
        return self.experiment.workers[self.trainer].count

    @property
    def blocks_per_update(self) -> int:
        """N, over all ranks."""
        return self.requirements.blocks_per_update or self.producers

    @property
    def max_policy_lag(self) -> int | None:
        stream = self.experiment.streams[self.name]
        lag = stream.max_policy_lag if isinstance(stream, SampleStream) else None
        return self.requirements.default_lag_versions if lag == "default" else lag

    @property
    def slots(self) -> int:
        """Of each rank."""
        blocks = self.blocks_per_update // self.ranks
        slots = default_slots(blocks, self.max_policy_lag)
        # without a bound on the lag only slots hold producers back: each may fill one while two updates are in memory
        return slots if self.max_policy_lag is not None else max(slots, 2 * blocks + self.producers)

    def rank_problems(self) -> Iterator[SRLError]:
        """Blocks that cannot be dealt evenly over the trainer ranks."""
        where, ranks = f"workers.{self.trainer}.count", self.ranks
        actors = f"'workers.{self.feed.group}.count' or 'ring_groups'"
        if self.blocks_per_update % ranks:
            yield SRLError(
                f"{self.blocks_per_update} blocks per update cannot be dealt evenly over {ranks} trainer ranks",
                where=where,
                value=ranks,
                expected=f"a divisor of {self.blocks_per_update}",
                hint="The algorithm sets the number of blocks per update."
                if self.requirements.blocks_per_update
                else f"There is one per ring group of every actor: change {actors}.",
            )
        elif self.experiment.lockstep and self.producers % ranks:
            yield SRLError(
                f"in lockstep every {ranks} neighbouring ring groups feed {ranks} trainer ranks, and there are "
                f"{self.producers} of them",
                where=where,
                value=ranks,
                expected=f"a divisor of {self.producers}",
                hint=f"Change {actors}, or switch lockstep off.",
            )

    def schema(self, policy: PolicySpec) -> BlockSchema:
        """The block: T rows, one column per environment of a ring group and agent slot."""
        per_group = self.feed.actors.environments // self.feed.actors.ring_groups
        return policy_schema(
            policy,
            rows=self.requirements.rows,
            columns=per_group * self.environment.slots,
            marks_replaced=self.experiment.on_non_finite != "stop",
        )

    def flow(self, placement: Placement) -> dict[str, Any]:
        """Flow-control parameters, as in :class:`srl.system.worker.Assignment`.

        In one thread nobody can be slower than the others: while the trainer trains, every actor stands still.
        """
        never_cuts = self.experiment.lockstep or placement == "fused"
        stream = self.experiment.streams[self.name]
        straggler = stream.on_straggler if isinstance(stream, SampleStream) else "wait"
        return {
            "blocks_per_update": self.blocks_per_update,
            "max_policy_lag": self.max_policy_lag,
            "on_straggler": "wait" if never_cuts else straggler,
            "slots": self.slots,
            "producers": self.producers,
            "ranks": self.ranks,
        }

    def need(self, schema: BlockSchema, transport: TransportName) -> Need:
        return Need(
            stream=self.name,
            slots=self.ranks * self.slots,
            block_bytes=schema.size_bytes,
            batch_blocks=self.ranks * copied_blocks(self.blocks_per_update // self.ranks),
            private_blocks=self.producers if transport == "tcp" else 0,
            key=f"workers.{self.feed.group}.{'count' if self.feed.actors.count > 1 else 'environments'}",
        )


def _cautions(
    experiment: Experiment,
    plugins: Mapping[str, type[AlgorithmPlugin]],
    streams: Sequence[_Stream],
    schemas: Mapping[str, BlockSchema],
) -> tuple[str, ...]:
    found = []
    for stream in streams:
        schema, plugin = schemas[stream.name], plugins[stream.policy]
        rows = schema.rows * schema.columns * stream.blocks_per_update
        where, config = f"policies.{stream.policy}.algorithm", algorithm_config(experiment, stream.policy, plugin)
        found += [f"{where}: {text}" for text in texts_of(plugin, "cautions", where, config, rows)]
    return tuple(found)


def _workers(experiment: Experiment) -> tuple[WorkerId, ...]:
    return tuple(
        WorkerId(name, group.kind, index) for name, group in experiment.workers.items() for index in range(group.count)
    )

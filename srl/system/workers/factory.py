"""From an assignment to a worker: the one place where workers, streams, plugins and options meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from srl.api.block import BlockSchema
from srl.api.environment import EnvironmentSpec, VectorEnvironment
from srl.api.errors import UsageError
from srl.api.experiment import ActorGroup, EvaluatorGroup, Experiment, PolicyGroup, TrainerGroup
from srl.api.policy import PolicySpec
from srl.api.registry import algorithm_plugin, environment_factory
from srl.system.collective import Alone, Collective
from srl.system.seeding import environment_seeds
from srl.system.streams.dealing import DealingProducer
from srl.system.streams.interface import InferenceClient, Producer, SampleProducer
from srl.system.transport import Transport
from srl.system.trial import BEST, CHECKPOINTS
from srl.system.worker import Assignment, Worker
from srl.system.workers.acting import ENV_STEPS_FIELD, InlineInference, VersionedPolicy
from srl.system.workers.finite import FiniteGuard

_Kind = TypeVar("_Kind")


class Site:
    """An assignment with its parts in typed form, and the transport of this process.

    Args:
        assignment: What the controller sent.
        transport: Builds stream ends.
        threaded: The worker has a process of its own and may use threads beside its loop.
    """

    def __init__(self, assignment: Assignment, transport: Transport, threaded: bool) -> None:
        self.assignment = assignment
        self.transport = transport
        self.threaded = threaded
        self.worker = assignment.worker
        self.experiment = Experiment.model_validate(assignment.experiment)
        self.environment = EnvironmentSpec.from_dict(assignment.environment)
        self.group = self.experiment.workers[assignment.worker.group]

    def policy(self, name: str) -> PolicySpec:
        """A policy as plain data."""
        return PolicySpec.from_dict(self.assignment.policies[name])

    def schema(self, stream: str) -> BlockSchema:
        """Block schema of a sample stream."""
        return BlockSchema.from_dict(self.assignment.schemas[stream])

    def versioned(self, policy: str, device: str = "cpu") -> VersionedPolicy:
        """An acting policy that follows the published weights."""
        limits = self.experiment.limits
        reader = self.transport.parameter_reader(policy)
        return VersionedPolicy(self.policy(policy), reader, limits.connect_seconds, device)

    def make_environment(self, count: int, ring_group: int = 0) -> VectorEnvironment:
        """``count`` environments with seeds of their own; called in actors and evaluators only."""
        seeds = environment_seeds(
            self.experiment.seed,
            kind=f"{self.worker.kind}/{self.worker.group}",
            worker=self.worker.index,
            incarnation=self.worker.incarnation,
            ring_group=ring_group,
            count=count,
        )
        return environment_factory(self.assignment.experiment["environment"]).make(count, seeds)


def build_worker(assignment: Assignment, transport: Transport, *, threaded: bool = True) -> Worker:
    """The worker that an assignment describes.

    Raises:
        UsageError: For a kind that is not known.
        SRLError: Whatever the worker's parts raise: plugins that cannot be imported, environments that cannot be made.
    """
    site = Site(assignment, transport, threaded)
    builders: Mapping[str, Callable[[Site], Worker]] = {
        "actor": _actor,
        "policy": _policy_worker,
        "trainer": _trainer,
        "evaluator": _evaluator,
    }
    builder = builders.get(assignment.worker.kind)
    if builder is None:
        raise UsageError("unknown kind of worker", where=assignment.worker.name, value=assignment.worker.kind)
    return builder(site)


def _actor(site: Site) -> Worker:
    from srl.system.workers.actor import ActorWorker
    from srl.system.workers.ring_group import RingGroup, RingGroupIdentity

    group = _as(site.group, ActorGroup)
    agents = next(entry for entry in group.agents if entry.policy in site.assignment.policies)
    spec, schema = site.policy(agents.policy), site.schema(agents.samples)
    producer = Producer(site.worker.index, site.worker.incarnation, group.ring_groups)
    guard = FiniteGuard(site.experiment.on_non_finite)
    per_group = group.environments // group.ring_groups
    groups = [
        RingGroup(
            RingGroupIdentity(producer, index, site.experiment.seed ^ site.worker.incarnation << 32),
            site.make_environment(per_group, index),
            schema,
            spec,
            guard,
        )
        for index in range(group.ring_groups)
    ]
    return ActorWorker(
        site.worker,
        groups,
        _sample_producer(site, agents.samples, schema, producer),
        _inference(site, agents.policy, agents.inference, schema, producer),
        guard,
        inference_seconds=site.experiment.limits.inference_seconds,
        edge=agents.samples,
        inference_edge=None if agents.inference == "inline" else agents.inference,
    )


def _sample_producer(site: Site, stream: str, schema: BlockSchema, producer: Producer) -> SampleProducer:
    """One end, or one per trainer rank with the dealing in front."""
    ranks = site.assignment.flow[stream]["ranks"]
    ends = [site.transport.sample_producer(stream, rank, schema, producer) for rank in range(ranks)]
    return ends[0] if ranks == 1 else DealingProducer(ends, producer, strict=site.experiment.lockstep)


def _inference(site: Site, policy: str, stream: str, schema: BlockSchema, producer: Producer) -> InferenceClient:
    if stream == "inline":
        return InlineInference(site.versioned(policy))
    servers = sum(
        group.count
        for group in site.experiment.workers.values()
        if isinstance(group, PolicyGroup) and group.serves == stream
    )
    samples = _samples_beside(site, stream)
    return site.transport.inference_client(stream, servers, schema, site.policy(policy), producer, samples)


def _policy_worker(site: Site) -> Worker:
    from srl.system.workers.policy_worker import PolicyWorker

    group = _as(site.group, PolicyGroup)
    stream = site.experiment.streams[group.serves]
    if stream.kind != "inference":
        raise UsageError("a policy worker serves a stream that is no inference stream", where=site.worker.name)
    samples = _samples_beside(site, group.serves)
    spec = site.policy(stream.policy)
    server = site.transport.inference_server(group.serves, site.worker.index, site.schema(samples), spec, samples)
    _claim_device(site, group)
    policy = site.versioned(stream.policy, site.assignment.device)
    return PolicyWorker(site.worker, server, policy, spec, edge=group.serves, lockstep=site.experiment.lockstep)


def _samples_beside(site: Site, inference: str) -> str:
    """The sample stream whose blocks an inference stream decides on."""
    for group in site.experiment.workers.values():
        if isinstance(group, ActorGroup):
            for agents in group.agents:
                if agents.inference == inference:
                    return agents.samples
    raise UsageError("no actor asks this inference stream", where=f"streams.{inference}")


def _trainer(site: Site) -> Worker:
    from srl.system.flow.control import FlowControl
    from srl.system.workers.algorithm_check import build_algorithm
    from srl.system.workers.intake import Intake
    from srl.system.workers.trainer import TrainerOptions, TrainerWorker
    from srl.system.workers.training import Training

    group = _as(site.group, TrainerGroup)
    schema, flow = site.schema(group.samples), site.assignment.flow[group.samples]
    spec = site.policy(group.policy)
    plugin = algorithm_plugin(site.experiment.policies[group.policy].algorithm.type)
    config = plugin.config.model_validate(site.experiment.policies[group.policy].algorithm.options)
    extra = {ENV_STEPS_FIELD: ((1,), "int64")}
    _claim_device(site, group)
    collective = _collective(site, group)
    training = Training(
        spec, seed=site.experiment.seed, device=site.assignment.device, collective=collective, extra=extra
    )
    algorithm = build_algorithm(plugin, config, training, group.policy)
    rank, lag, blocks = site.worker.index, flow["max_policy_lag"], flow["blocks_per_update"] // flow["ranks"]
    intake = Intake(
        site.transport.sample_consumer(group.samples, rank, schema, flow["slots"]),
        FlowControl(
            blocks_per_update=blocks,
            max_policy_lag=lag,
            on_straggler=flow["on_straggler"],
            slots=flow["slots"],
            producers=flow["producers"],
            lockstep=site.experiment.lockstep,
            rank=rank,
            ranks=flow["ranks"],
        ),
        schema,
        blocks_per_update=blocks,
        threaded=site.threaded,
    )
    options = TrainerOptions(
        stop=site.experiment.stop,
        checkpoints=site.experiment.checkpoints,
        checkpoint_root=Path(site.assignment.trial_dir) / CHECKPOINTS,
        frames_per_step=site.environment.frames_per_step,
        on_non_finite=site.experiment.on_non_finite,
        edge=group.samples,
    )
    writer = site.transport.parameter_writer(group.policy, 2 if lag is None else lag + 2) if rank == 0 else None
    return TrainerWorker(site.worker, intake, writer, training, algorithm, options, collective)


def _claim_device(site: Site, group: TrainerGroup | PolicyGroup) -> None:
    if site.assignment.device != "cpu":
        from srl.system.workers.staging import claim_device

        claim_device(site.assignment.device, group.gpu_memory_fraction)


def _collective(site: Site, group: TrainerGroup) -> Collective:
    if group.count == 1:
        return Alone()
    # Not needed by one rank, and it takes its time to import.
    import torch

    from srl.system.process_group import Meeting, ProcessGroup

    limits = site.experiment.limits
    meeting = Meeting(
        file=Path(site.assignment.endpoints[f"ranks:{site.worker.group}"]),
        name=site.worker.group,
        rank=site.worker.index,
        ranks=group.count,
        connect_seconds=limits.connect_seconds,
        # Whoever hangs is to be found out, and killed, by the controller first: it can say why.
        silence_seconds=limits.heartbeat_seconds + limits.shutdown_seconds,
    )
    return ProcessGroup(meeting, torch.device(site.assignment.device))


def _evaluator(site: Site) -> Worker:
    from srl.system.workers.evaluator import EvaluatorWorker

    group = _as(site.group, EvaluatorGroup)
    count = min(group.environments, group.episodes)
    return EvaluatorWorker(
        site.worker,
        site.policy(group.policy),
        site.versioned(group.policy),
        site.make_environment(count),
        episodes=group.episodes,
        interval_env_steps=group.interval_env_steps,
        workers=group.count,
        best_root=Path(site.assignment.trial_dir) / BEST,
    )


def _as(group: object, kind: type[_Kind]) -> _Kind:
    if not isinstance(group, kind):
        raise UsageError("the worker's kind and its group's kind differ", value=type(group).__name__)
    return group

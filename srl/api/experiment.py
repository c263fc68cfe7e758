"""The experiment: the declared graph as a frozen, typed model. YAML and Python experiments both become this.

Every field is documented with its unit, the meaning of its default and of ``null``. Unknown keys are errors.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from srl.api.importing import target_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_\-]*$", max_length=64)]
Device = Annotated[str, Field(pattern=r"^(cpu|mps|cuda(:(0|[1-9]\d*))?)$")]
DEVICE = (
    "torch device: cpu, cuda, cuda:N or mps. cuda = GPU 0, or with several workers one after the other over all GPUs."
)
GPU_MEMORY_FRACTION = (
    "Share of its GPU's memory that a worker may take, so that several share one GPU; null = no bound."
)


class Model(BaseModel):
    """Base of all experiment models: frozen, unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class PluginMapping(BaseModel):
    """A mapping with a ``type`` whose other keys belong to the plugin that ``type`` names."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = Field(description="Registered name, package.module:Attr or ./file.py:Attr; in Python also the class.")

    @field_validator("type", mode="before")
    @classmethod
    def _name_of_class(cls, value: Any) -> Any:
        return target_of(value, "type") if isinstance(value, type) else value

    @property
    def options(self) -> dict[str, Any]:
        """Everything but ``type``."""
        return dict(self.model_extra or {})


class Sink(PluginMapping):
    """A metrics sink with its options."""

    type: str = Field(
        default="",
        description="Registered name, package.module:Attr or ./file.py:Attr; as the entry's own name if left out.",
    )


class PluginFile(Model):
    """A plugin file or module together with what it brings."""

    path: str = Field(description="File (./file.py) or module.")
    provides: tuple[
        Literal["algorithm", "environment", "wrapper", "network", "transport", "launcher", "metrics_sink"], ...
    ] = Field(
        default=(),
        description="Kinds it registers. Actors import only plugins that provide environments or wrappers; empty = "
        "unknown, every process imports it.",
    )


class Policy(Model):
    """One policy: who trains it and what network it has."""

    algorithm: PluginMapping = Field(description="The algorithm that trains this policy, with its options.")
    network: dict[str, Any] = Field(
        default_factory=dict, description="Network options; empty = the algorithm's choice for the observation space."
    )


class SampleStream(Model):
    """A one-way flow of blocks from actors to a trainer (or buffer)."""

    kind: Literal["sample"] = "sample"
    max_policy_lag: Annotated[int, Field(ge=0)] | Literal["default"] | None = Field(
        default="default",
        description="Bound on the policy lag in versions. 0 = synchronous; null = no bound (throughput mode); "
        "'default' = what the algorithm asks for.",
    )
    on_straggler: Literal["cut", "wait", "drop"] = Field(
        default="cut",
        description="When an old block holds up an update: cut = its owner sends the rows it has; wait = wait for it; "
        "drop = discard it, counted. Lockstep always waits.",
    )


class InferenceStream(Model):
    """Requests of actors, answered by policy workers."""

    kind: Literal["inference"] = "inference"
    policy: Name = Field(description="The policy that this stream asks.")


Stream = Annotated[SampleStream | InferenceStream, Field(discriminator="kind")]


class AgentGroup(Model):
    """Agents of equal spaces that share one stream pair."""

    match: str = Field(default=".*", description="Regular expression on the agent id; must match it whole.")
    policy: Name = Field(description="The policy that acts.")
    samples: Name = Field(description="Sample stream that receives the blocks.")
    inference: str = Field(
        default="inline", description="'inline' = the actor computes the policy itself; else an inference stream."
    )


class ActorGroup(Model):
    """Workers that step environments."""

    kind: Literal["actor"] = "actor"
    count: int = Field(default=1, ge=1, le=100_000, description="Number of actor workers.")
    environments: int = Field(
        default=16, ge=1, le=1_000_000, description="Environments per worker, over all its ring groups."
    )
    ring_groups: int = Field(default=1, ge=1, description="Batches the environments are split into; divides them.")
    threads: int = Field(
        default=1, ge=1, le=1024, description="Threads per worker for BLAS, torch and environment libraries."
    )
    agents: tuple[AgentGroup, ...] = Field(min_length=1, description="Agent groups; every agent matches exactly one.")


class PolicyGroup(Model):
    """Workers that answer an inference stream."""

    kind: Literal["policy"] = "policy"
    count: int = Field(default=1, ge=1, le=100_000, description="Number of policy workers.")
    serves: Name = Field(description="The inference stream.")
    threads: int = Field(default=1, ge=1, le=1024, description="Threads per worker.")
    device: Device = Field(default="cpu", description=DEVICE)
    gpu_memory_fraction: float | None = Field(default=None, gt=0, le=1, description=GPU_MEMORY_FRACTION)


class TrainerGroup(Model):
    """Workers that make gradient steps and publish weights."""

    kind: Literal["trainer"] = "trainer"
    count: int = Field(
        default=1, ge=1, le=1024, description="Number of trainer ranks: an update's blocks are dealt evenly over them."
    )
    policy: Name = Field(description="The policy it trains; every policy has exactly one trainer group.")
    samples: Name = Field(description="Sample stream it consumes.")
    threads: int = Field(default=1, ge=1, le=1024, description="Threads per worker.")
    device: Device = Field(default="cpu", description=DEVICE)
    gpu_memory_fraction: float | None = Field(default=None, gt=0, le=1, description=GPU_MEMORY_FRACTION)


class EvaluatorGroup(Model):
    """Workers that score frozen versions: inline, deterministic, statistics read-only."""

    kind: Literal["evaluator"] = "evaluator"
    count: int = Field(default=1, ge=1, le=1024, description="Number of evaluator workers; they take turns.")
    policy: Name = Field(description="The policy to score.")
    episodes: int = Field(
        default=20,
        ge=1,
        le=1_000_000,
        description="Episodes per evaluation, dealt out over the environments in advance.",
    )
    environments: int = Field(
        default=10, ge=1, le=1_000_000, description="Environments per worker; each has a quota of episodes."
    )
    interval_env_steps: int | None = Field(
        default=None, ge=1, description="Env steps between evaluations; null = only the last version."
    )
    threads: int = Field(default=1, ge=1, le=1024, description="Threads per worker.")


Group = Annotated[ActorGroup | PolicyGroup | TrainerGroup | EvaluatorGroup, Field(discriminator="kind")]


class Stop(Model):
    """When the trial ends; whichever comes first. At least one is needed."""

    env_steps: int | None = Field(default=None, ge=1, description="Valid environment steps consumed; null = no bound.")
    updates: int | None = Field(default=None, ge=1, description="Calls of update = policy versions; null = no bound.")
    wall_seconds: float | None = Field(default=None, gt=0, description="Seconds since training began; null = no bound.")
    evaluation_return: float | None = Field(
        default=None, description="Mean return of one evaluation that is at least this; null = no such goal."
    )


class Checkpoints(Model):
    """What is saved, and when."""

    interval_seconds: float | None = Field(
        default=60.0, gt=0, description="Seconds between checkpoints; null = only the last. Lockstep: updates rule."
    )
    interval_updates: int | None = Field(
        default=None, ge=1, description="Updates between checkpoints; null = time alone decides."
    )
    keep: int = Field(default=2, ge=1, description="Newest checkpoints kept.")


class Limits(Model):
    """Bounds on waits, in seconds, and on memory."""

    connect_seconds: float = Field(default=60.0, gt=0, description="Start of a worker until it is connected.")
    heartbeat_seconds: float = Field(default=60.0, gt=0, description="Silence after which a worker counts as hung.")
    inference_seconds: float = Field(default=60.0, gt=0, description="Wait for one reply of a policy worker.")
    shutdown_seconds: float = Field(default=8.0, gt=0, description="From stop to the killing of what is left.")
    memory_bytes: int | None = Field(
        default=None, ge=1, description="Memory for shared blocks; null = what the machine and its cgroup have."
    )


class Experiment(Model):
    """A declared graph with everything a trial needs."""

    name: Name = Field(description="Name of the experiment; part of the trial directory's name.")
    seed: int = Field(default=1, ge=0, lt=2**31, description="Root of all randomness.")
    plugins: tuple[str | PluginFile, ...] = Field(
        default=(),
        description="Files (./file.py, relative to the experiment's file) or modules, imported before names are "
        "resolved; they register plugins. A mapping with path and provides keeps them out of processes that need none.",
    )
    environment: PluginMapping = Field(description="The environment, with its options.")
    policies: dict[Name, Policy] = Field(min_length=1, description="Policies by name.")
    streams: dict[Name, Stream] = Field(default_factory=dict, description="Streams by name.")
    workers: dict[Name, Group] = Field(min_length=1, description="Worker groups by name.")
    stop: Stop = Field(description="When the trial ends.")
    placement: Literal["auto", "fused", "processes"] = Field(
        default="auto", description="fused = one process and thread; processes = one process per worker."
    )
    transport: Literal["auto", "in_process", "shared_memory", "tcp"] = Field(
        default="auto", description="How blocks move; auto = what the placement allows that is fastest."
    )
    lockstep: bool = Field(
        default=False, description="Bit-identical weights whatever the placement; needs stop.env_steps or stop.updates."
    )
    on_non_finite: Literal["stop", "skip", "replace"] = Field(
        default="stop",
        description="NaN or infinity in an observation or reward: stop = end the run; skip = drop the block, counted; "
        "replace = put zero in its place, counted.",
    )
    checkpoints: Checkpoints = Field(default_factory=Checkpoints, description="Checkpoints.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on waits and memory.")
    sinks: dict[Name, Sink] = Field(
        default_factory=dict,
        description="Where the metrics go beside the trial directory (metrics.jsonl and TensorBoard's event files are "
        "always written): wandb, prometheus, or a sink of your own, each with its options.",
    )

    @field_validator("sinks", mode="before")
    @classmethod
    def _type_by_name(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: {"type": name, **(options or {})} if options is None or isinstance(options, dict) else options
            for name, options in value.items()
        }

    def plugin_paths(self, kinds: Collection[str] | None = None) -> tuple[str, ...]:
        """Plugin files and modules to import in a process.

        Args:
            kinds: Kinds of plugins the process uses; ``None`` = all.
        """
        files = [PluginFile(path=entry) if isinstance(entry, str) else entry for entry in self.plugins]
        return tuple(
            file.path for file in files if kinds is None or not file.provides or set(file.provides) & set(kinds)
        )

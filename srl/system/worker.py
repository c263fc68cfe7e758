"""What every worker is: a plain object that does one piece of work at a time, usable in one process.

The shell around it (``srl.distributed.worker_process`` for a process of its own, ``srl.distributed.fused`` for all in
one thread) holds loop, signals and life cycle::

    worker = build_worker(assignment, transport)     # constructors bind and connect; nothing runs
    worker.start()                                   # environments made, modules built, first weights published
    while running:
        if not worker.poll():                        # one bounded piece of work; False = nothing to do now
            wait(worker.wait_descriptors(), timeout) # fused: the next worker's turn instead
    worker.drain()                                   # no new blocks; then poll until drained() or a deadline
    worker.close()                                   # or abort(), which is all a destructor may call
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from srl.system.report import WorkerReport


@dataclass(frozen=True, slots=True)
class WorkerId:
    """A worker: its group's name, its kind, its index in the group and its incarnation (counted from 0)."""

    group: str
    kind: str
    index: int
    incarnation: int = 0

    @property
    def name(self) -> str:
        """Name for messages, such as ``actor/0``."""
        return f"{self.group}/{self.index}"


@dataclass(frozen=True)
class Assignment:
    """Everything a worker needs to know, as plain JSON-compatible data.

    Attributes:
        worker: Who it is.
        experiment: The resolved experiment (``Experiment.model_dump(mode="json")``).
        environment: ``EnvironmentSpec.to_dict()``.
        policies: Policy name to ``PolicySpec.to_dict()``.
        schemas: Sample stream name to ``BlockSchema.to_dict()``.
        flow: Sample stream name to flow-control parameters (``blocks_per_update``, ``max_policy_lag``,
            ``on_straggler``, ``slots`` of each trainer rank, ``producers``: number of (actor, ring group) pairs,
            ``ranks``: number of trainer ranks, over which the blocks of an update are dealt evenly).
        endpoints: Name to address of what this worker connects to (``sample:NAME``, ``inference:NAME:INDEX``,
            ``weights:POLICY``), and the file where trainer ranks meet (``ranks:GROUP``); empty for in-process.
        descriptors: Name to file descriptor number in this process (segments, eventfds, key material).
        trial_dir: Directory of the trial.
        resume_from: Checkpoint directory to start from, or ``None``.
        transport: ``in_process``, ``shared_memory`` or ``tcp``.
        device: torch device that it computes on (trainer and policy workers).
    """

    worker: WorkerId
    experiment: dict[str, Any]
    environment: dict[str, Any]
    policies: dict[str, dict[str, Any]]
    schemas: dict[str, dict[str, Any]]
    flow: dict[str, dict[str, Any]]
    trial_dir: str
    transport: str
    endpoints: dict[str, str] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    resume_from: str | None = None
    device: str = "cpu"


class Worker(ABC):
    """One worker of any kind."""

    @abstractmethod
    def start(self) -> None:
        """Heavy construction: environments, modules, first publication."""

    @abstractmethod
    def poll(self) -> bool:
        """Do one bounded piece of work; False if there was nothing to do."""

    @abstractmethod
    def wait_descriptors(self) -> Iterable[int]:
        """Descriptors that become readable when :meth:`poll` may have work again."""

    @abstractmethod
    def drain(self) -> None:
        """Begin no new work; open blocks are finished or given back."""

    @abstractmethod
    def drained(self) -> bool:
        """True when nothing is under way any more."""

    def peer_gone(self, peer: WorkerId) -> None:  # noqa: B027  # Only consumers have anything to do then.
        """The process of an actor that feeds this worker, or of another rank of it, is dead.

        An actor's credits end, its slots are nobody's.
        """

    def keep_turning(self, turn: Callable[[str], None]) -> None:  # noqa: B027  # Others never wait inside a piece.
        """Have ``turn`` called, with what is waited for, while a piece of work has to wait for another worker."""

    @abstractmethod
    def report(self) -> WorkerReport:
        """What happened since the last report. Called between polls, in the worker's own thread."""

    @abstractmethod
    def finished(self) -> str | None:
        """The reason why the worker needs no further polling (``env_steps``, ``updates``, ...), else ``None``."""

    @abstractmethod
    def close(self) -> None:
        """Release everything gracefully."""

    @abstractmethod
    def abort(self) -> None:
        """Release everything at once."""

"""What the screen and the sinks get to see: frozen plain data, made by the monitor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class EvaluationResult:
    """One whole evaluation of one frozen version, merged over the evaluators that took part.

    Attributes:
        policy: Policy name.
        policy_version: The version.
        env_steps: Budget counter when the version was published.
        returns: One return per episode, before clipping.
        lengths: One length per episode, in env steps.
        wall_seconds: The longest part's duration.
    """

    policy: str
    policy_version: int
    env_steps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    wall_seconds: float

    @cached_property
    def mean(self) -> float:
        """Mean return."""
        return sum(self.returns) / len(self.returns)

    @cached_property
    def std(self) -> float:
        """Standard deviation of the returns (of this sample: divided by the number of episodes)."""
        mean = self.mean
        return float((sum((value - mean) ** 2 for value in self.returns) / len(self.returns)) ** 0.5)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: its state, shares of the last seconds by activity (sum 1), and seconds since its last report."""

    name: str
    kind: str
    state: str
    incarnation: int
    shares: Mapping[str, float]
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    """All workers of one group: how many are in each state, and the mean of their shares."""

    name: str
    kind: str
    states: Mapping[str, int]
    shares: Mapping[str, float]
    busy: float

    @property
    def workers(self) -> int:
        """Number of workers."""
        return sum(self.states.values())


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """One stream: blocks (or requests) as its ends count them, and who waits for whom.

    Attributes:
        name: Stream name.
        kind: ``sample`` or ``inference``.
        sent: By all producers.
        received: By all consumers.
        in_flight: Sent, neither received nor dropped.
        dropped: By reason.
        producers_wait: Share of time that its producers wait for credit or for replies.
        consumers_wait: Share of time that its consumers wait for blocks or requests.
    """

    name: str
    kind: Literal["sample", "inference"]
    sent: int
    received: int
    in_flight: int
    dropped: Mapping[str, int]
    producers_wait: float
    consumers_wait: float


@dataclass(frozen=True, slots=True)
class Progress:
    """One stop condition: its name, what is reached, and the target. ``value`` is ``None`` before a first result."""

    name: str
    value: float | None
    target: float


@dataclass(frozen=True, slots=True)
class Message:
    """A warning of a worker; ``count`` equal ones came one after the other."""

    worker: str
    text: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialSnapshot:
    """The whole trial at one moment. ``None`` means "no such number yet".

    Attributes:
        experiment: Name.
        phase: ``starting``, ``training`` or ``stopping``.
        wall_seconds: Since the monitor was made.
        training_seconds: Since training began.
        env_steps: Budget counter.
        frames: Frames under it.
        updates: Completed updates.
        gradient_steps: Optimizer steps.
        policy_version: Newest published version.
        env_steps_per_second: Over the last seconds.
        frames_per_second: Over the last seconds.
        lag_mean: Mean policy lag over the last seconds, in versions.
        lag_max: Largest policy lag of the trial, in versions.
        lag_bound: The bound; ``None`` = no bound.
        episodes: Finished training episodes.
        episode_return: Mean return of the last 100 of them.
        return_history: (env steps, mean training return) over the trial, at most 120 points.
        evaluations: All whole evaluations, oldest first.
        progress: Stop conditions.
        groups: One row per worker group.
        workers: One row per worker, the first ones only in large trials.
        edges: One row per stream.
        bottleneck: One sentence; empty before there is a figure.
        messages: The last warnings, oldest first.
    """

    experiment: str
    phase: str
    wall_seconds: float
    training_seconds: float
    env_steps: int
    frames: int
    updates: int
    gradient_steps: int
    policy_version: int
    env_steps_per_second: float
    frames_per_second: float
    lag_mean: float | None
    lag_max: int | None
    lag_bound: int | None
    episodes: int
    episode_return: float | None
    return_history: tuple[tuple[int, float], ...]
    evaluations: tuple[EvaluationResult, ...]
    progress: tuple[Progress, ...]
    groups: tuple[GroupRow, ...]
    workers: tuple[WorkerRow, ...]
    edges: tuple[EdgeRow, ...]
    bottleneck: str
    messages: tuple[Message, ...]

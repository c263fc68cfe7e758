"""How long each part of a stop may take: pure functions of the plan and the clock.

An orderly stop (the goal is reached) goes through the drain steps one after the other; the last evaluations have no
bound but the heartbeat, the last checkpoint has the heartbeat's. A prompt stop (a signal, a failure) is over within
``shutdown_seconds`` whatever happens: the first half belongs to all drain steps but the last, so that a hanging actor
cannot take the trainer's time for its checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from srl.distributed.lifecycle import DRAIN_STEPS

EVALUATOR_STEP = DRAIN_STEPS["evaluator"]
LAST_STEP = DRAIN_STEPS["trainer"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on waits, in seconds (``Limits`` of the experiment); ``are_suspended`` by ``--debug``."""

    connect_seconds: float
    heartbeat_seconds: float
    shutdown_seconds: float
    are_suspended: bool = False


@dataclass(slots=True)
class Stop:
    """A stop under way.

    Attributes:
        reason: The word for the summary.
        exit_code: Exit code of the run.
        is_orderly: See the module's docstring.
        since: Monotonic seconds at which it began.
        step: Drain step it has come to, -1 before the first.
        step_since: Monotonic seconds at which that step began.
    """

    reason: str
    exit_code: int
    is_orderly: bool
    since: float
    step: int = -1
    step_since: float = 0.0

    @property
    def scores_last_version(self) -> bool:
        """Whether evaluators have something left to do."""
        return scores_last_version(self.reason, self.is_orderly)


def scores_last_version(reason: str, is_orderly: bool) -> bool:
    """Whether evaluators score the last version before they end: not in a hurry, nor where a score was the goal."""
    return is_orderly and reason != "evaluation_return"


def step_deadline(stop: Stop, last_step: int, bounds: Bounds) -> float | None:
    """Monotonic time at which what is left of the present drain step is killed.

    Args:
        stop: The stop under way.
        last_step: Highest drain step that has any worker.
        bounds: The bounds.

    Returns:
        ``None`` = no bound.
    """
    half_seconds = bounds.shutdown_seconds / 2
    if not stop.is_orderly:
        return stop.since + (bounds.shutdown_seconds if stop.step >= last_step else half_seconds)
    if bounds.are_suspended or stop.step == EVALUATOR_STEP:
        return None
    if stop.step == LAST_STEP:
        return stop.step_since + max(bounds.heartbeat_seconds, bounds.shutdown_seconds)
    return stop.step_since + half_seconds

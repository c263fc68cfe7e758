"""What a worker tells the controller about itself: one report a heartbeat, plain data."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Activity(StrEnum):
    """Where a worker's time goes; exactly one at a time."""

    STEPPING = "stepping"
    INFERRING = "inferring"
    WAITING_FOR_CREDIT = "waiting_for_credit"
    WAITING_FOR_INFERENCE = "waiting_for_inference"
    ASSEMBLING = "assembling"
    TRAINING = "training"
    PUBLISHING = "publishing"
    EVALUATING = "evaluating"
    WAITING_FOR_RANKS = "waiting_for_ranks"
    IDLE = "idle"


class TimeShares:
    """Seconds per activity, by a monotonic clock. ``switch`` is on the step path: one clock call, one addition."""

    __slots__ = ("_current", "_seconds", "_since")

    def __init__(self) -> None:
        self._seconds: defaultdict[Activity, float] = defaultdict(float)
        self._current = Activity.IDLE
        self._since = time.perf_counter()

    def switch(self, activity: Activity) -> None:
        """The time since the last switch was spent on the activity named there; ``activity`` begins."""
        now = time.perf_counter()
        self._seconds[self._current] += now - self._since
        self._current = activity
        self._since = now

    def seconds(self) -> dict[str, float]:
        """Seconds per activity until now."""
        self.switch(self._current)
        return {activity.value: seconds for activity, seconds in self._seconds.items()}


@dataclass(slots=True)
class Episode:
    """One finished episode: return before clipping, length in env steps, frames, version that acted at its end."""

    episode_return: float
    length: int
    frames: int
    policy_version: int


@dataclass(slots=True)
class EdgeCount:
    """Blocks on one edge as one end sees them: sent, received, and dropped by reason."""

    sent: int = 0
    received: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Evaluation:
    """One finished evaluation of one frozen version, or one evaluator worker's part of it.

    All workers of an evaluator group score the same versions in the same order; the n-th parts that they report for
    one version belong together. ``returns`` has one entry per episode (before clipping), ``lengths`` counts env steps,
    ``env_steps`` is the trainer's budget counter when the version was published.
    """

    policy: str
    policy_version: int
    env_steps: int
    returns: list[float]
    lengths: list[int]
    wall_seconds: float


@dataclass(slots=True)
class WorkerReport:
    """One worker's report.

    Counters with a fixed meaning; a worker reports those that apply to it, and may add others of its own:

    ========================== =========== ====================================================================
    name                       by          meaning
    ========================== =========== ====================================================================
    ``env_steps``              trainer     The budget: valid rows consumed, by all ranks.
    ``frames``                 trainer     Frames under them; where absent, ``env_steps`` x frames per step.
    ``updates``                trainer     Completed calls of ``update``.
    ``gradient_steps``         trainer     Optimizer steps.
    ``policy_version``         trainer     Newest published version.
    ``policy_lag_sum``         trainer     Sum of the policy lag over trained valid rows, in versions.
    ``policy_lag_rows``        trainer     Number of those rows.
    ``policy_lag_max``         trainer     Largest of those lags.
    ``blocks_trained``         trainer     Blocks that entered an update; ``rows_trained``: their valid rows.
    ``blocks_in_flight``       trainer     Blocks announced to it, neither trained nor dropped yet.
    ``blocks_dropped/REASON``  any         Blocks dropped; ``rows_dropped/REASON``: their valid rows.
    ``blocks_produced``        actor       Blocks sent; ``rows_produced``: their valid rows.
    ``env_steps``, ``frames``  actor       Steps taken; not the budget.
    ``requests``, ``batches``  policy      Inference requests answered, forward passes made.
    ========================== =========== ====================================================================

    A trainer's ``env_steps``, ``frames``, ``updates``, ``gradient_steps`` and ``policy_version`` are totals of the
    trial: they go on from the checkpoint that an incarnation was started from. Of several trainer ranks only rank 0
    reports these, ``updates_skipped`` and metrics of updates; what concerns blocks, rows and lag each rank reports for
    its own. Every other counter begins at zero
    with each incarnation; readers add incarnations up (names ending in ``_max``: take the largest).

    Attributes:
        worker: Name such as ``actor/0``: group name and index.
        kind: ``actor``, ``policy``, ``trainer`` or ``evaluator``.
        incarnation: Which life of the worker.
        seconds: Seconds per activity since the start of this incarnation.
        counters: Whole numbers, as above.
        gauges: Newest values (``queue``, ...).
        edges: Per edge name, as this end counts.
        episodes: Episodes finished since the last report.
        updates: Metrics of updates since the last report: ``{"version": v, "env_steps": n, ...}``.
        evaluations: Evaluations (or this worker's part of one) finished since the last report.
        messages: Warnings for the main log since the last report.
        weights_sha256: Digest of a trainer's last weights, once it has come to rest; empty before.
    """

    worker: str
    kind: str
    incarnation: int
    seconds: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    edges: dict[str, EdgeCount] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)
    updates: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    weights_sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WorkerReport:
        """The inverse of :meth:`to_dict`."""
        return cls(
            **{
                **data,
                "edges": {name: EdgeCount(**edge) for name, edge in data["edges"].items()},
                "episodes": [Episode(**episode) for episode in data["episodes"]],
                "evaluations": [Evaluation(**evaluation) for evaluation in data["evaluations"]],
            }
        )

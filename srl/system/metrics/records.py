"""Points of the curves, made from updates and evaluations: few enough to write, on one ascending axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from srl.api.metrics import MetricRecord
from srl.system.metrics.snapshot import EvaluationResult

_INTERVAL_SECONDS = 1.0
_AXIS = frozenset({"version", "env_steps"})


class RecordMaker:
    """Collects what happened between two records. Pure."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._version = 0
        self._env_steps = 0
        self._updates = 0
        self._evaluations: list[EvaluationResult] = []
        self._restart: tuple[int, int] | None = None
        self._last = float("-inf")

    def add_updates(self, updates: Sequence[Mapping[str, float]]) -> None:
        """Metrics of single updates; ``version`` and ``env_steps`` are the axis, the rest is averaged."""
        for update in updates:
            self._updates += 1
            self._version = int(update.get("version", self._version))
            self._env_steps = int(update.get("env_steps", self._env_steps))
            for name, value in update.items():
                if name not in _AXIS:
                    total, count = self._sums.get(name, (0.0, 0))
                    self._sums[name] = (total + value, count + 1)

    def add_evaluation(self, result: EvaluationResult) -> None:
        """A whole evaluation; becomes one record."""
        self._evaluations.append(result)

    def restart(self, env_steps: int, version: int) -> None:
        """Training went back to a checkpoint: what was collected and not yet taken after it is void."""
        self._restart = (env_steps, version)
        self._sums, self._updates = {}, 0
        self._env_steps, self._version = env_steps, version

    def take(
        self,
        *,
        now: float,
        final: bool,
        seconds: float,
        frames_per_env_step: float,
        values: Mapping[str, float | None],
        waits: bool = False,
    ) -> list[MetricRecord]:
        """The records that are due.

        Args:
            now: Monotonic seconds.
            final: Leave nothing behind, whatever the interval.
            seconds: Training seconds, for the records.
            frames_per_env_step: For the records' ``frames``.
            values: Numbers that go into the training record beside the updates' means.
            waits: The next training record is the last one, and not complete before ``final``.
        """
        records = []
        if self._restart is not None:
            env_steps, version = self._restart
            frames = round(env_steps * frames_per_env_step)
            records.append(MetricRecord("restart", env_steps, frames, seconds, version, {}))
            self._restart = None
        if self._updates and (final or (now - self._last >= _INTERVAL_SECONDS and not waits)):
            means = {name: total / count for name, (total, count) in self._sums.items()}
            frames = round(self._env_steps * frames_per_env_step)
            merged = {**values, **means}
            records.append(MetricRecord("training", self._env_steps, frames, seconds, self._version, merged))
            self._sums, self._updates, self._last = {}, 0, now
        records += [_evaluation_record(result, seconds, frames_per_env_step) for result in self._evaluations]
        self._evaluations = []
        return records


def _evaluation_record(result: EvaluationResult, seconds: float, frames_per_env_step: float) -> MetricRecord:
    return MetricRecord(
        "evaluation",
        result.env_steps,
        round(result.env_steps * frames_per_env_step),
        seconds,
        result.policy_version,
        {
            "evaluation/return_mean": result.mean,
            "evaluation/return_std": result.std,
            "evaluation/return_min": min(result.returns),
            "evaluation/return_max": max(result.returns),
            "evaluation/length_mean": sum(result.lengths) / len(result.lengths),
            "evaluation/episodes": float(len(result.returns)),
        },
    )

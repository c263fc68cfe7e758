"""The monitor: takes the workers' reports, adds them up, says when the trial is over and what came of it.

Pure: no process, file or socket; time comes from the clock it is given. Order of calls::

    monitor = TrialMonitor(experiment, workers)
    monitor.training_started()              # the controller's start command
    monitor.add(report)                     # every report of every worker, from first to last
    monitor.stop_reason()                   # after each round of reports
    monitor.records()                       # for the sinks
    monitor.snapshot()                      # for the screen
    monitor.training_stopped()              # at the stop command; what comes later is shutdown
    monitor.summary(exit_reason=...)        # after the last reports
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from srl.api.experiment import EvaluatorGroup, Experiment
from srl.api.metrics import MetricRecord
from srl.system.metrics.evaluations import EvaluationMerger
from srl.system.metrics.ledger import WorkerLedger
from srl.system.metrics.messages import MessageLog
from srl.system.metrics.records import RecordMaker
from srl.system.metrics.rows import edge_rows, group_rows, lag_bound, whole_run_edges
from srl.system.metrics.snapshot import EvaluationResult, Progress, TrialSnapshot
from srl.system.metrics.summary import build_summary, frames_of
from srl.system.metrics.time_shares import bottleneck
from srl.system.metrics.windows import ThinnedCurve, Window
from srl.system.report import Episode, WorkerReport
from srl.system.worker import WorkerId

_RECENT_EPISODES = 100
_RATE_WINDOW_SECONDS = 5.0
_HISTORY_POINTS = 120
_DECISIVE = frozenset({"trainer", "evaluator"})


class TrialMonitor:
    """Everything that is known about a running trial.

    Args:
        experiment: The resolved experiment.
        workers: All workers that were declared.
        clock: Seconds, monotonic.
        frames_per_step: Frames under one env step, where the trainer reports no ``frames``.
        flow: Flow-control parameters by sample stream, as workers are told them: they know what a ``max_policy_lag`` of
            ``default`` is. ``None`` = take the experiment's.
    """

    def __init__(
        self,
        experiment: Experiment,
        workers: Sequence[WorkerId],
        clock: Callable[[], float] = time.monotonic,
        *,
        frames_per_step: int = 1,
        flow: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.experiment = experiment
        self._clock = clock
        self._frames_per_step = frames_per_step
        self._flow = flow
        self._lag_bound = lag_bound(experiment, flow)
        self._made = clock()
        self._started: float | None = None
        self._stopped: float | None = None
        self._ledgers = {worker.name: WorkerLedger(worker, self._made) for worker in workers}
        self._trainers = [ledger for ledger in self._ledgers.values() if ledger.worker.kind == "trainer"]
        self._mergers = {
            name: EvaluationMerger(group.episodes)
            for name, group in experiment.workers.items()
            if isinstance(group, EvaluatorGroup)
        }
        self.evaluations: list[EvaluationResult] = []
        self._episodes: deque[Episode] = deque(maxlen=_RECENT_EPISODES)
        self._episode_count = 0
        self._history = ThinnedCurve(_HISTORY_POINTS)
        self._rates: Window[tuple[int, int, int, int]] = Window(_RATE_WINDOW_SECONDS)
        self._records = RecordMaker()
        self._messages = MessageLog()
        self._stop_reason: str | None = None

    def add(self, report: WorkerReport) -> bool:
        """Take one report.

        Returns:
            False if it was refused: of a worker that was not declared, or of a superseded incarnation. Its messages
            are kept all the same.
        """
        now = self._clock()
        ledger = self._ledgers.get(report.worker)
        env_steps_before = self.env_steps if report.kind == "trainer" else 0
        for text in report.messages:
            self.warn(report.worker, text)
        if ledger is None or not ledger.add(report, now):
            self.warn(report.worker, f"report of incarnation {report.incarnation} refused")
            return False
        self._episodes.extend(report.episodes)
        self._episode_count += len(report.episodes)
        self._add_evaluations(ledger, report)
        if report.kind == "trainer":
            self._add_trainer_report(report, env_steps_before, now)
        # Reports of actors (thousands a second in a large trial) cannot reach a stop condition.
        if report.kind in _DECISIVE and self.stop_reason() is not None and self._started is not None:
            self.training_stopped()
        return True

    def warn(self, worker: str, text: str) -> None:
        """Note a warning; equal ones that follow each other are counted, not repeated."""
        self._messages.add(worker, text, self._clock() - self._made)

    def worker_state(self, name: str, state: str) -> None:
        """Note a worker's life-cycle state for the screen."""
        self._ledgers[name].state = state.lower()

    def training_started(self) -> None:
        """Training begins now: start-up is over. Only the first call counts."""
        if self._started is None:
            self._started = self._clock()
            self._rates.push(self._started, self._rate_counters())
            for ledger in self._ledgers.values():
                ledger.start_clock()

    def training_stopped(self) -> None:
        """Training is over now; only the first call counts. Reports that reach a stop condition do the same."""
        if self._stopped is None:
            self._stopped = self._clock()

    @property
    def env_steps(self) -> int:
        """Budget counter: valid rows consumed, over all trainer ranks."""
        return self._trainer_sum("env_steps")

    @property
    def frames(self) -> int:
        """Frames under :attr:`env_steps`."""
        return self._trainer_sum("frames") or self.env_steps * self._frames_per_step

    @property
    def policy_version(self) -> int:
        """Newest published version."""
        return self._trainer_max("policy_version")

    @property
    def updates(self) -> int:
        """Completed updates; all ranks make the same number."""
        return self._trainer_max("updates")

    @property
    def training_seconds(self) -> float:
        """From the start of training to its stop, or until now."""
        if self._started is None:
            return 0.0
        return (self._clock() if self._stopped is None else self._stopped) - self._started

    @property
    def episode_return(self) -> float | None:
        """Mean return of the last 100 training episodes; ``None`` before the first."""
        return (
            sum(episode.episode_return for episode in self._episodes) / len(self._episodes) if self._episodes else None
        )

    @property
    def episode_env_steps(self) -> float | None:
        """Mean length of the last 100 training episodes in env steps; ``None`` before the first."""
        return _mean([episode.length for episode in self._episodes])

    @property
    def frames_per_env_step(self) -> float:
        """Frames under one env step."""
        return self.frames / self.env_steps if self.env_steps else float(self._frames_per_step)

    def stop_reason(self) -> str | None:
        """Why the trial is over (name of the stop condition), ``None`` while it is not; never changes once given."""
        if self._stop_reason is None:
            self._stop_reason = next(
                (one.name for one in self.progress() if one.value is not None and one.value >= one.target), None
            )
        return self._stop_reason

    def progress(self) -> tuple[Progress, ...]:
        """The stop conditions that the experiment has, and how far each is."""
        stop = self.experiment.stop
        best = max((result.mean for result in self.evaluations), default=None)
        conditions = [
            ("evaluation_return", best, stop.evaluation_return),
            ("env_steps", self.env_steps, stop.env_steps),
            ("updates", self.updates, stop.updates),
            ("wall_seconds", self.training_seconds, stop.wall_seconds),
        ]
        return tuple(Progress(name, value, target) for name, value, target in conditions if target is not None)

    def records(self, *, final: bool = False) -> list[MetricRecord]:
        """Points of the curves since the last call: at most one training record a second, unless ``final``.

        Once training has stopped its last record waits for ``final``: workers still report what belongs to it.
        """
        now = self._training_time()
        lag = self._recent_lag(now)
        return self._records.take(
            now=now,
            final=final,
            waits=self._stopped is not None,
            seconds=self.training_seconds,
            frames_per_env_step=self.frames_per_env_step,
            values={
                "episode/return": self.episode_return,
                "episode/env_steps": self.episode_env_steps,
                "episode/frames": frames_of(self.episode_env_steps, self.frames_per_env_step),
                "episode/count": float(self._episode_count),
                "rate/env_steps_per_second": self._rate(now, 0),
                "policy_lag/mean": lag,
                "policy_lag/max": float(self._trainer_max("policy_lag_max")),
            },
        )

    def snapshot(self, max_workers: int = 32) -> TrialSnapshot:
        """The trial as it is now; rows of at most ``max_workers`` workers."""
        now = self._clock()
        rows = [ledger.row(now) for ledger in self._ledgers.values()]
        groups = group_rows(self.experiment, self._ledgers.values(), rows)
        return TrialSnapshot(
            experiment=self.experiment.name,
            phase="starting" if self._started is None else "training" if self._stopped is None else "stopping",
            wall_seconds=now - self._made,
            training_seconds=self.training_seconds,
            env_steps=self.env_steps,
            frames=self.frames,
            updates=self.updates,
            gradient_steps=self._trainer_max("gradient_steps"),
            policy_version=self.policy_version,
            env_steps_per_second=self._rate(self._training_time(), 0),
            frames_per_second=self._rate(self._training_time(), 1),
            lag_mean=self._recent_lag(now),
            lag_max=self._trainer_max("policy_lag_max") if self._trainer_sum("policy_lag_rows") else None,
            lag_bound=self._lag_bound,
            episodes=self._episode_count,
            episode_return=self.episode_return,
            return_history=self._history.points(),
            evaluations=tuple(self.evaluations),
            progress=self.progress(),
            groups=groups,
            workers=tuple(rows[:max_workers]),
            edges=edge_rows(self.experiment, [ledger.edges() for ledger in self._ledgers.values()], groups, self._flow),
            bottleneck=bottleneck(groups),
            messages=self._messages.newest(),
        )

    def summary(
        self,
        *,
        exit_reason: str,
        start_up_seconds: float | None = None,
        weights_sha256: str | None = None,
        command: Sequence[str] = (),
        **extra: Any,
    ) -> dict[str, Any]:
        """The result, valid as JSON: ``None`` where there is no number.

        Args:
            exit_reason: A stop condition's name, ``interrupted``, ``failed``, ...
            start_up_seconds: ``None`` = from this monitor's making to the start of training.
            weights_sha256: Digest of the last weights.
            command: The command line.
            **extra: Further entries, put behind the others.
        """
        started = self._clock() if self._started is None else self._started
        shares = {name: ledger.shares() for name, ledger in self._ledgers.items()}
        return build_summary(
            monitor=self,
            counters=[(ledger.worker, ledger.counters()) for ledger in self._ledgers.values()],
            worker_shares=shares,
            edges=whole_run_edges(self.experiment, [ledger.edges() for ledger in self._ledgers.values()], shares),
            incarnations={name: ledger.incarnation for name, ledger in self._ledgers.items()},
            digests={name: ledger.weights_sha256 for name, ledger in self._ledgers.items() if ledger.weights_sha256},
            episode_count=self._episode_count,
            entries={
                "exit_reason": exit_reason,
                "wall_seconds": self._clock() - self._made,
                "start_up_seconds": started - self._made if start_up_seconds is None else start_up_seconds,
                "weights_sha256": weights_sha256,
                "command": list(command),
                **extra,
            },
        )

    def _add_evaluations(self, ledger: WorkerLedger, report: WorkerReport) -> None:
        merger = self._mergers.get(ledger.worker.group)
        for part in report.evaluations:
            if merger is None:
                self.warn(report.worker, f"{report.kind} is no evaluator of the experiment; its evaluation is left out")
                continue
            result, warning = merger.add(report.worker, part)
            if warning is not None:
                self.warn(report.worker, warning)
            if result is not None:
                self.evaluations.append(result)
                self._records.add_evaluation(result)

    def _add_trainer_report(self, report: WorkerReport, env_steps_before: int, now: float) -> None:
        self._rates.push(now, self._rate_counters())
        if self.env_steps < env_steps_before:
            self._records.restart(self.env_steps, self.policy_version)
            self._history.cut(self.env_steps)
        self._records.add_updates(report.updates)
        if report.updates and self.episode_return is not None:
            self._history.add(self.env_steps, self.episode_return)

    def _trainer_sum(self, name: str) -> int:
        return sum(ledger.counter(name) for ledger in self._trainers)

    def _trainer_max(self, name: str) -> int:
        return max((ledger.counter(name) for ledger in self._trainers), default=0)

    def _rate_counters(self) -> tuple[int, int, int, int]:
        return self.env_steps, self.frames, self._trainer_sum("policy_lag_sum"), self._trainer_sum("policy_lag_rows")

    def _training_time(self) -> float:
        """Now, and the end of training behind it: rates do not fall while the last episodes are scored."""
        return self._clock() if self._stopped is None else self._stopped

    def _rate(self, now: float, index: int) -> float:
        baseline = self._rates.baseline()
        if baseline is None or now <= baseline[0]:
            return 0.0
        return max(0.0, (self._rate_counters()[index] - baseline[1][index]) / (now - baseline[0]))

    def _recent_lag(self, now: float) -> float | None:
        baseline = self._rates.baseline()
        if baseline is None:
            return None
        newest = self._rate_counters()
        rows = newest[3] - baseline[1][3]
        if rows > 0:
            return (newest[2] - baseline[1][2]) / rows
        return newest[2] / newest[3] if newest[3] else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

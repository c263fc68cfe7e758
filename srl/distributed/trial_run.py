"""What one run of an experiment is, whatever its placement: monitor, screen, logs, signals, summary.

::

    with trial_run(graph, trial, screen, signals) as run:
        outcome = run_fused(graph, run)       # or run_processes(graph, run): they call started, take, tick, stop, ...
        result = run.finish(outcome)
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from srl.api.metrics import TrialInfo
from srl.distributed.exits import log_tail
from srl.distributed.graph import ResolvedGraph
from srl.distributed.process_setup import let_go_of_dead_outputs
from srl.distributed.signals import ANNOUNCEMENT, Signals
from srl.distributed.trial_events import AbortRequested, StopRequested
from srl.system.checkpoint import newest_complete
from srl.system.metrics.log_limit import LogFloodFilter
from srl.system.metrics.monitor import TrialMonitor
from srl.system.metrics.sinks import SinkGroup, failures_of
from srl.system.metrics.snapshot import TrialSnapshot
from srl.system.report import WorkerReport
from srl.system.trial import TrialDirectory

logger = logging.getLogger("srl.trial")

TICK_SECONDS = 0.25
"""Between looks at the stop conditions, the sinks and the screen."""


class Screen(Protocol):
    """What a person looks at (:mod:`srl.screen`)."""

    is_live: bool
    """Whether it is drawn over and over: then nothing may be written to the terminal past it."""

    def due(self) -> bool:
        """Whether it is time to show something."""

    def update(self, snapshot: TrialSnapshot) -> None:
        """Show the trial as it is."""

    def catch_up(self, snapshot: TrialSnapshot) -> None:
        """Show what happened since the last update and would be missed otherwise."""

    def finish(self, summary: Mapping[str, Any], trial: Path) -> None:
        """Show how it ended."""

    def close(self) -> None:
        """Give the terminal back."""

    def __enter__(self) -> Any:
        """Take the terminal."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: A stop condition's name, ``interrupted``, ``terminated`` or ``failed``.
        exit_code: 0, 1, 130 or 143.
        failures: (worker, text) of every failure; the first is the cause.
        refused: Control messages refused, by reason.
    """

    reason: str
    exit_code: int
    failures: tuple[tuple[str, str], ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial.

    Attributes:
        exit_code: Exit code for the process: 0 done, 1 failed, 130 interrupted, 143 terminated.
        summary: Content of ``summary.json``.
        trial_dir: The trial directory.
    """

    exit_code: int
    summary: dict[str, Any]
    trial_dir: Path


class TrialRun:
    """The part of a run that does not depend on placement.

    Args:
        graph: The resolved graph.
        trial: Its directory.
        screen: What a person sees.
        signals: Signals of this process.
        began: Monotonic seconds at which the start-up began.
        is_debug: Bounds on waits are suspended.
    """

    def __init__(
        self,
        graph: ResolvedGraph,
        trial: TrialDirectory,
        screen: Screen,
        signals: Signals,
        *,
        began: float,
        is_debug: bool = False,
    ) -> None:
        self.graph = graph
        self.trial = trial
        self.signals = signals
        self.is_debug = is_debug
        self.monitor = TrialMonitor(
            graph.experiment, graph.workers, frames_per_step=graph.environment.frames_per_step, flow=graph.flow
        )
        self._screen = screen
        self._is_watched = True
        signals.announces = not screen.is_live
        self._sinks = SinkGroup.open(_info(graph, trial), graph.experiment.sinks)
        self._began = began
        self._start_up_seconds: float | None = None
        self._next_tick = 0.0

    def started(self) -> None:
        """Training begins."""
        if self._start_up_seconds is None:
            for text in self._sinks.notes:
                self.note(text)
                self.monitor.warn("metrics", text)
            self._start_up_seconds = time.monotonic() - self._began
            self.monitor.training_started()

    def take(self, report: WorkerReport) -> None:
        """Take in a worker's report."""
        for text in report.messages:
            self.note(f"{report.worker}: {text}", is_warning=True)
        self.monitor.add(report)

    def tick(self) -> bool:
        """Write metrics and show the screen if it is time to; returns whether it was."""
        if time.monotonic() < self._next_tick:
            return False
        self._next_tick = time.monotonic() + TICK_SECONDS
        self._write_metrics(final=False)
        if self._screen.due():
            self._show(lambda: self._screen.update(self.monitor.snapshot()))
        return True

    def stop_request(self) -> StopRequested | AbortRequested | None:
        """What signals and stop conditions ask for, ``None`` = to go on."""
        request = self.signals.request()
        if request is not None and not self.signals.announces:
            self.signals.announces = True
            # A live screen has replaced the stream: it appears above it.
            self._show(lambda: print(ANNOUNCEMENT, file=sys.stderr, flush=True))
        if request is None and (reason := self.monitor.stop_reason()) is not None:
            request = StopRequested(reason, exit_code=0, is_orderly=True)
        if request is not None:
            self.monitor.training_stopped()
        return request

    def note(self, text: str, *, is_warning: bool = False) -> None:
        """A line for the main log; warnings also reach the terminal."""
        # The whole text as the format, and no arguments: the flood filter tells messages apart by their format.
        logger.log(logging.WARNING if is_warning else logging.INFO, text)

    def failure(self, worker: str, text: str, *, with_log: bool) -> None:
        """Say which worker failed, how, and what it said last."""
        log = self.trial.worker_log(worker)
        said = log_tail(log) if with_log else ""
        tail = f"\n--- the end of {log} ---\n{said}\n---" if said else ""
        logger.error("%s failed: %s%s", worker, text, tail)
        self.monitor.warn(worker, f"failed: {text.splitlines()[0]}")

    def finish(self, outcome: Outcome) -> TrialResult:
        """Write the last metrics and the summary, and show the end."""
        self.monitor.training_stopped()
        self._write_metrics(final=True)
        for problem in self._sinks.close():
            self.note(problem, is_warning=True)
        checkpoint = newest_complete(self.trial.checkpoints)
        summary = self.monitor.summary(
            exit_reason=outcome.reason,
            start_up_seconds=self._start_up_seconds,
            weights_sha256=None if checkpoint is None else checkpoint.weights_sha256,
            command=[Path(sys.argv[0]).name, *sys.argv[1:]],
            wall_seconds=time.monotonic() - self._began,
            exit_code=outcome.exit_code,
            placement=self.graph.placement,
            transport=self.graph.transport,
            failures=[{"worker": worker, "text": text} for worker, text in outcome.failures],
            control_messages_refused=dict(outcome.refused),
            metrics_sinks_failed=failures_of(self._sinks),
        )
        self.trial.write_summary(summary)
        self.note(f"over: {outcome.reason}, exit code {outcome.exit_code}")
        self._show(lambda: self._screen.catch_up(self.monitor.snapshot()))
        self._show(lambda: self._screen.finish(summary, self.trial.path))
        return TrialResult(outcome.exit_code, summary, self.trial.path)

    def close(self) -> None:
        """Close sinks and screen, whatever happened."""
        self._sinks.close()
        with contextlib.suppress(OSError):
            self._screen.close()

    def _show(self, show: Callable[[], None]) -> None:
        """Show something; a trial does not depend on it.

        Whoever watched may be gone, with the terminal or as the reader of a pipe, and what is shown may have a fault.
        """
        if not self._is_watched:
            return
        try:
            show()
        except (OSError, SystemExit) as error:  # rich makes the second one of a broken pipe
            self._is_watched = False
            let_go_of_dead_outputs()
            self.note(f"nothing is shown any more: its reader is gone ({error})")
        except Exception as error:  # as with curves: never a reason to end training
            self._is_watched = False
            self.note(f"nothing is shown any more: {type(error).__name__}: {error}", is_warning=True)

    def _write_metrics(self, *, final: bool) -> None:
        for problem in self._sinks.write(self.monitor.records(final=final)):
            self.note(problem, is_warning=True)


@contextlib.contextmanager
def trial_run(
    graph: ResolvedGraph,
    trial: TrialDirectory,
    screen: Screen,
    signals: Signals,
    *,
    began: float,
    is_debug: bool = False,
) -> Iterator[TrialRun]:
    """A run with its log and screen open; arguments as for :class:`TrialRun`."""
    with main_log(trial.main_log), contextlib.ExitStack() as stack:
        run = TrialRun(graph, trial, screen, signals, began=began, is_debug=is_debug)
        stack.callback(run.close)
        screen.__enter__()
        yield run


def _info(graph: ResolvedGraph, trial: TrialDirectory) -> TrialInfo:
    experiment = graph.experiment
    return TrialInfo(experiment.name, trial.path, experiment.seed, experiment.model_dump(mode="json"))


class _Terminal(logging.StreamHandler[Any]):
    """Standard error as it is at each line: a live screen replaces it, so that lines appear above the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@contextlib.contextmanager
def main_log(path: Path) -> Iterator[None]:
    """Everything that ``srl`` logs goes to ``path``; warnings and errors also to the terminal."""
    root = logging.getLogger("srl")
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    terminal = _Terminal()
    terminal.setLevel(logging.WARNING)
    terminal.setFormatter(logging.Formatter("srl-run: %(levelname)s: %(message)s"))
    level = root.level
    root.setLevel(logging.INFO)
    for handler in (file, terminal):
        handler.addFilter(LogFloodFilter())
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in (file, terminal):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)

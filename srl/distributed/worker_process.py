"""The shell of a worker in a process of its own: control connection, life cycle, loop, failures.

The worker itself is a plain object; here it is polled, drained and closed as the controller commands. Every wait is at
most :data:`WAIT_SECONDS` long, so a command is obeyed as soon as the worker's present piece of work is done.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srl.api.errors import SRLError
from srl.api.experiment import Experiment
from srl.api.registry import load_plugins
from srl.distributed.certificates import CertificateFiles
from srl.distributed.client import ControlClient, ControllerLost, Dialling, PeerGone
from srl.distributed.lifecycle import TERMINATED, State
from srl.distributed.trial_events import CommandKind
from srl.system.metrics.log_limit import LogFloodFilter
from srl.system.report import WorkerReport
from srl.system.seeding import seed_sequence
from srl.system.transport import Transport
from srl.system.worker import Assignment, Worker, WorkerId

logger = logging.getLogger(__name__)

WAIT_SECONDS = 0.05
REPORT_SECONDS = 0.5
FLUSH_SECONDS = 2.0
"""Bound on bringing the last words to the controller."""

START_FLUSH_SECONDS = 0.5
"""Bound on bringing the news of the start to the controller."""

TERMINATE_SECONDS = 1.0
"""After a SIGTERM, the time for the controller to say what is to be done."""

PLUGIN_KINDS = {
    "actor": {"environment", "wrapper"},
    "evaluator": {"environment", "wrapper"},
    "policy": {"network"},
    "trainer": {"algorithm", "network"},
}
"""What a kind of worker needs plugins for; others are not imported there."""


@dataclass(frozen=True)
class ShellOptions:
    """What a worker process is told before it has dialled, JSON-compatible.

    Attributes:
        worker: Who it is.
        trial: Name of the trial.
        address: Address of the control server.
        keys: Directory of the trial's certificates; empty on unix sockets.
        run_dir: Directory of the run's sockets.
        connect_seconds: Bound on connecting.
        heartbeat_seconds: A controller that is silent for longer is gone.
        grace_seconds: Bound on finding a lost controller again.
    """

    worker: WorkerId
    trial: str
    address: str
    keys: str
    run_dir: str
    connect_seconds: float
    heartbeat_seconds: float
    grace_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShellOptions:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**data, "worker": WorkerId(**data["worker"])})

    def dialling(self) -> Dialling:
        """Where the controller is."""
        return Dialling(
            trial=self.trial,
            address=self.address,
            connect_seconds=self.connect_seconds,
            silence_seconds=self.heartbeat_seconds,
            grace_seconds=self.grace_seconds,
            credentials=CertificateFiles(Path(self.keys)).worker if self.keys else None,
        )


Builder = Callable[[Assignment, Mapping[str, int], Path], tuple[Transport, Worker]]


def build(assignment: Assignment, descriptors: Mapping[str, int], run_dir: Path) -> tuple[Transport, Worker]:
    """The transport and the worker that an assignment describes."""
    from srl.system.streams.opening import open_transport
    from srl.system.workers.factory import build_worker

    transport = open_transport(assignment, descriptors, run_dir)
    return transport, build_worker(assignment, transport)


class _Leave(Exception):
    """The worker is to end now, for a reason that is no failure of its own."""

    def __init__(self, why: str, exit_code: int = 0) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class WorkerShell:
    """One worker's life.

    Args:
        options: Who it is and where its controller is.
        descriptors: Name to descriptor of what it inherited.
        builder: Makes transport and worker from an assignment.
    """

    def __init__(self, options: ShellOptions, descriptors: Mapping[str, int], builder: Builder = build) -> None:
        self._options = options
        self._descriptors = descriptors
        self._builder = builder
        self._client = ControlClient(options.worker, options.dialling())
        self._transport: Transport | None = None
        self._worker: Worker | None = None
        self._terminate_at: float | None = None
        self._told: deque[Assignment | CommandKind | ControllerLost] = deque()
        self._doing = "connect"
        self._exit_code = 0
        self._is_draining = False
        self._said_finished = False
        self._next_report = 0.0
        self._poller = select.poll()
        self._poller.register(self._client.wake_descriptor, select.POLLIN)
        self._polled: tuple[int, ...] = ()

    def run(self) -> int:
        """From dialling to the exit code."""
        try:
            self._client.connect()
        except SRLError as error:
            logger.error("%s", error)
            self._client.close()
            return 1
        try:
            self._live()
            self._end(State.STOPPED)
        except _Leave as leave:
            logger.info("ends: %s", leave)
            self._exit_code = self._exit_code or leave.exit_code
            self._last_report()
            self._abort()
            self._end(State.STOPPED)
        except BaseException as error:
            # Whatever a plugin raises, SystemExit too, is this worker's failure and goes to the main log.
            self._fail(error)
        self._client.close()
        return self._exit_code

    def terminate(self) -> None:
        """SIGTERM: drain as after a command, but let the exit code tell that it was none.

        A batch system sends it to every process of a job. So the controller has the first word: where it was told to
        end as well, it stops the workers in order.
        """
        self._terminate_at = self._terminate_at or time.monotonic() + TERMINATE_SECONDS

    # The life cycle

    def _live(self) -> None:
        assignment = self._await(Assignment, "wait for the assignment")
        self._turn("load plugins")
        experiment = Experiment.model_validate(assignment.experiment)
        _seed_globals(experiment.seed, assignment.worker)
        load_plugins(experiment.plugin_paths(PLUGIN_KINDS.get(assignment.worker.kind)))
        self._turn("build")
        self._transport, self._worker = self._builder(assignment, self._descriptors, Path(self._options.run_dir))
        self._worker.keep_turning(self._turn)
        self._client.bound(self._transport.bound_endpoints())
        self._await(CommandKind, "wait for the start")
        self._turn("start")
        self._worker.start()
        self._client.reached(State.RUNNING)
        # A native crash in the very first step says nothing: let the controller know by then that it was a step.
        self._client.flush(START_FLUSH_SECONDS)
        self._loop(self._worker)
        self._drain(self._worker)
        self._turn("close")
        self._report(self._worker)
        self._worker.close()
        self._transport.close()

    def _await(self, kind: type[Any], doing: str) -> Any:
        """The next thing told, which must be of a kind; what ends the worker raises."""
        while True:
            self._turn(doing)
            for told in self._commands():
                if isinstance(told, kind) and told not in (CommandKind.STOP, CommandKind.DRAIN):
                    return told
                self._leave_for(told)
            self._wait(())

    def _leave_for(self, told: Assignment | CommandKind | ControllerLost) -> None:
        if isinstance(told, ControllerLost):
            raise _Leave(told.reason, exit_code=1)
        if told in (CommandKind.STOP, CommandKind.DRAIN):
            raise _Leave(f"told to {told}")

    def _loop(self, worker: Worker) -> None:
        """Poll until told to drain."""
        is_paused = False
        while True:
            for told in self._commands():
                if told is CommandKind.DRAIN:
                    return
                if isinstance(told, ControllerLost):
                    logger.error("%s: draining", told.reason)
                    self._exit_code = 1
                    return
                if told is CommandKind.STOP:
                    self._leave_for(told)
                if told in (CommandKind.PAUSE, CommandKind.START):
                    is_paused = self._pause(told is CommandKind.PAUSE, is_paused)
            self._turn("poll")
            if is_paused or self._said_finished or not worker.poll():
                self._wait(() if is_paused or self._said_finished else tuple(worker.wait_descriptors()))
            self._say_finished(worker)
            self._report_if_due(worker)

    def _pause(self, wanted: bool, is_paused: bool) -> bool:
        if wanted != is_paused:
            self._client.reached(State.PAUSED if wanted else State.RUNNING)
        return wanted

    def _say_finished(self, worker: Worker) -> None:
        if not self._said_finished and (reason := worker.finished()) is not None:
            self._said_finished = True
            self._report(worker)
            self._client.finished(reason)

    def _drain(self, worker: Worker) -> None:
        """Have the worker finish what is under way; the controller's bound, or the zygote's, ends it otherwise."""
        self._is_draining = True
        self._client.reached(State.DRAINING)
        self._turn("drain")
        worker.drain()
        while not worker.drained():
            for told in self._commands():
                if told is CommandKind.STOP:
                    self._leave_for(told)
            self._turn("drain")
            if not worker.poll() and not worker.drained():
                self._wait(tuple(worker.wait_descriptors()))
            self._report_if_due(worker)

    # Ends

    def _end(self, state: State) -> None:
        self._client.reached(state)
        if not self._client.flush(FLUSH_SECONDS):
            logger.warning("the last words did not reach the controller")

    def _fail(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        logger.error("failed at: %s\n%s", self._doing, text)
        counters = self._last_report()
        if "env_steps" in counters:
            self._client.turned(f"{self._doing}, env step {counters['env_steps']}")
        self._client.failed(f"{type(error).__name__}: {error}", text)
        self._exit_code = 1
        if not self._client.flush(FLUSH_SECONDS):
            logger.warning("the failure did not reach the controller")
        self._abort()

    def _last_report(self) -> dict[str, int]:
        """Send what can still be reported where the end comes at once; returns its counters."""
        if self._worker is None:
            return {}
        try:
            return self._report(self._worker).counters
        except Exception as error:
            logger.warning("no last report: %s", error)
            return {}

    def _abort(self) -> None:
        try:
            if self._worker is not None:
                self._worker.abort()
            if self._transport is not None:
                self._transport.close()
        except Exception as error:
            # The process ends anyway; the first error is the one that matters.
            logger.warning("while aborting: %s", error)

    # Turns of the loop

    def _turn(self, doing: str) -> None:
        self._doing = doing
        self._client.turned(doing)

    def _commands(self) -> Iterator[Assignment | CommandKind | ControllerLost]:
        """What is to be obeyed, one by one; what is only to be known goes to the worker at once.

        Whoever stops in the middle leaves the rest for the next call: a start and the order to drain may arrive
        together, and belong to different states.
        """
        for one in self._client.take():
            if not isinstance(one, PeerGone):
                self._told.append(one)
            elif self._worker is not None:
                self._worker.peer_gone(one.worker)
        if self._terminate_at is not None and not self._is_draining and time.monotonic() >= self._terminate_at:
            self._exit_code = TERMINATED
            self._told.append(CommandKind.DRAIN)
        while self._told:
            yield self._told.popleft()

    def _wait(self, descriptors: tuple[int, ...]) -> None:
        """Sleep until something is readable, a command came, or :data:`WAIT_SECONDS` passed."""
        if descriptors != self._polled:
            for descriptor in self._polled:
                self._poller.unregister(descriptor)
            for descriptor in descriptors:
                self._poller.register(descriptor, select.POLLIN)
            self._polled = descriptors
        self._poller.poll(WAIT_SECONDS * 1000.0)

    def _report_if_due(self, worker: Worker) -> None:
        if time.monotonic() >= self._next_report:
            self._report(worker)

    def _report(self, worker: Worker) -> WorkerReport:
        self._next_report = time.monotonic() + REPORT_SECONDS
        report = worker.report()
        self._client.report(report)
        return report


def _seed_globals(seed: int, worker: WorkerId) -> None:
    """Seed the global generators that environments of others may use, each worker's and each life's its own."""
    sequence = seed_sequence(seed, f"globals/{worker.group}", worker.index, worker.incarnation)
    words = sequence.generate_state(2)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))


def main(options: Mapping[str, Any], descriptors: Mapping[str, int]) -> int:
    """Run one worker; called in its own process, after the fork.

    Args:
        options: :meth:`ShellOptions.to_dict`.
        descriptors: Name to descriptor of what it inherited.

    Returns:
        The exit code.
    """
    shell_options = ShellOptions.from_dict(options)
    name = shell_options.worker.name
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(LogFloodFilter())
    form = f"%(asctime)s {name} %(levelname)s %(message)s"
    logging.basicConfig(handlers=[handler], level=logging.INFO, format=form)
    logger.info("pid %d, incarnation %d", os.getpid(), shell_options.worker.incarnation)
    shell = WorkerShell(shell_options, descriptors)
    signal.signal(signal.SIGTERM, lambda number, frame: shell.terminate())
    return shell.run()

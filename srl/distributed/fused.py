"""All workers in one process and one thread: the same worker objects, polled in turn.

The trainer goes first: a ready batch is trained on before any actor steps on, so a fused run has the smallest lag that
its credits allow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from srl.api.errors import SRLError, WaitTimeout, WorkerFailure
from srl.distributed.lifecycle import DRAIN_STEPS
from srl.distributed.stopping import scores_last_version
from srl.distributed.trial_events import StopRequested
from srl.system.report import WorkerReport
from srl.system.streams.in_process import InProcessTransport
from srl.system.worker import Assignment, Worker
from srl.system.workers.factory import build_worker

TICK_SECONDS = 0.25
ORDER = ("trainer", "policy", "actor", "evaluator")
"""Construction and polling order: who binds and publishes comes before who connects and reads."""


class FusedRun:
    """One trial in one thread.

    Args:
        assignments: One per worker.
        on_report: Takes each worker's reports, about four times a second and once at the end.
        stop: Says whether to stop; asked at every tick and after every update.
        on_started: Called when every worker has started, before the first step.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        *,
        on_report: Callable[[WorkerReport], None],
        stop: Callable[[], StopRequested | None],
        on_started: Callable[[], None],
    ) -> None:
        self._assignments = sorted(assignments, key=lambda assignment: ORDER.index(assignment.worker.kind))
        self._on_report = on_report
        self._stop = stop
        self._on_started = on_started
        self._workers: list[tuple[str, str, Worker]] = []

    def run(self) -> StopRequested:
        """Run until something asks to stop; everything is closed on return.

        Returns:
            What ended it: the first request, or a signal that came while the last version was being scored.

        Raises:
            WorkerFailure: A worker raised; the original exception is its cause. The last checkpoint is written.
        """
        transport = InProcessTransport()
        try:
            request = self._live(transport)
            self._report()
        except BaseException as error:
            if isinstance(error, Exception):
                self._save_after_failure()
            # It may have been cut off in the middle of a piece of work: accounts that do not add up are no news.
            with contextlib.suppress(SRLError):
                self._report()
            with contextlib.suppress(WorkerFailure):
                self._close(transport)
            raise
        self._close(transport)
        return request

    def _live(self, transport: InProcessTransport) -> StopRequested:
        for assignment in self._assignments:
            name = assignment.worker.name
            worker = _guarded(name, partial(build_worker, assignment, transport, threaded=False))
            self._workers.append((assignment.worker.kind, name, worker))
        for _, name, worker in self._workers:
            _guarded(name, worker.start)
        self._on_started()
        return self._drain(self._loop())

    def _loop(self) -> StopRequested:
        next_tick = time.monotonic()
        while True:
            worked = False
            for kind, name, worker in self._workers:
                try:
                    worked = worker.poll() or worked
                except RAISED as error:
                    raise _failure(name, error) from error
                if kind == "trainer" and (reason := worker.finished()) is not None:
                    return StopRequested(reason, exit_code=0, is_orderly=True)
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_SECONDS
                self._report()
                if (request := self._stop()) is not None:
                    return request
            elif not worked:
                time.sleep(0.0005)  # nothing to do until a tick: every worker waits for another, or the trial is over

    def _drain(self, request: StopRequested) -> StopRequested:
        """Drain in steps: actors and policy workers, then evaluators (orderly stops only), then the trainer."""
        for step in sorted(set(DRAIN_STEPS.values())):
            workers = [(name, worker) for kind, name, worker in self._workers if DRAIN_STEPS[kind] == step]
            scores = step == DRAIN_STEPS["evaluator"]
            if scores and not scores_last_version(request.reason, request.is_orderly):
                continue
            for name, worker in workers:
                _guarded(name, worker.drain)
            request = self._poll_until_drained(workers, request, scores=scores)
        return request

    def _poll_until_drained(
        self, workers: Sequence[tuple[str, Worker]], request: StopRequested, *, scores: bool
    ) -> StopRequested:
        """Poll until ``workers`` are drained; a signal makes an orderly stop a prompt one, which scores nothing."""
        next_tick = time.monotonic() + TICK_SECONDS
        idle_since = time.monotonic()
        while not all(worker.drained() for _, worker in workers):
            worked = [_guarded(name, worker.poll) for _, name, worker in self._workers]
            now = time.monotonic()
            if any(worked):
                idle_since = now
            elif now - idle_since > DRAIN_SECONDS:
                waiting = ", ".join(name for name, worker in workers if not worker.drained())
                raise WaitTimeout("workers did not come to rest", where=waiting, value=f"{DRAIN_SECONDS} s")
            if now >= next_tick:
                next_tick = now + TICK_SECONDS
                self._report()
                asked = self._stop()  # a second signal raises here
                if asked is not None and request.is_orderly and not asked.is_orderly:
                    request = asked
            if scores and not request.is_orderly:
                break
        return request

    def _save_after_failure(self) -> None:
        for kind, name, worker in self._workers:
            if kind == "trainer":
                try:
                    worker.drain()
                except SRLError as error:  # the failure itself is the news; this comes on top of it
                    message = f"no last checkpoint was written: {error}"
                    self._on_report(WorkerReport(name, kind, 0, messages=[message]))

    def _close(self, transport: InProcessTransport) -> None:
        """Close everything, whatever one of them raises; the first failure is told."""
        failures: list[WorkerFailure] = []
        for _, name, worker in self._workers:
            try:
                _guarded(name, worker.close)
            except WorkerFailure as failure:
                failures.append(failure)
        transport.close()
        if failures:
            raise failures[0]

    def _report(self) -> None:
        for _, _, worker in self._workers:
            self._on_report(worker.report())


DRAIN_SECONDS = 5.0
"""How long nothing may happen while workers are asked to come to rest."""


RAISED = (Exception, SystemExit)
"""What a worker's failure is: a plugin that calls ``sys.exit`` ends its worker, not the trial without a word."""

_Result = TypeVar("_Result")


def _guarded(name: str, action: Callable[[], _Result]) -> _Result:
    try:
        return action()
    except RAISED as error:
        raise _failure(name, error) from error


def _failure(name: str, error: BaseException) -> WorkerFailure:
    text = str(error) if isinstance(error, SRLError) else f"{type(error).__name__}: {error}"
    return WorkerFailure(text, where=name)

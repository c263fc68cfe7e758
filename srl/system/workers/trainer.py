"""The trainer worker: turns batches into versions of the weights, publishes and saves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from srl.api.algorithm import Algorithm
from srl.api.errors import NonFiniteError
from srl.api.experiment import Checkpoints, Stop
from srl.system.checkpoint import newest_complete, prune, save_checkpoint
from srl.system.collective import Alone, Collective, RankLost
from srl.system.parameters import ParameterWriter, weights_sha256
from srl.system.report import Activity, TimeShares, WorkerReport
from srl.system.worker import Worker, WorkerId
from srl.system.workers.acting import ENV_STEPS_FIELD
from srl.system.workers.algorithm_check import metrics_of
from srl.system.workers.batch import lag_of
from srl.system.workers.consent import Consent
from srl.system.workers.finite import OnNonFinite
from srl.system.workers.intake import Delivery, Intake
from srl.system.workers.sample_counts import flow_counters, sample_edge
from srl.system.workers.training import Training

SKIPS_IN_A_ROW = 100
"""Updates that are not finite one after the other, after which none is expected to be: no budget is used up."""

NEWS_SECONDS = 5.0
"""Where the connection to another rank broke: how long the controller has to say what became of it."""


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """What the experiment says about a trainer.

    Attributes:
        stop: ``env_steps`` and ``updates`` are the trainer's to keep exactly.
        checkpoints: When and how many.
        checkpoint_root: Directory of the trial's checkpoints.
        frames_per_step: Frames under one env step.
        on_non_finite: A loss or gradient that is not finite: ``stop`` ends the run; otherwise the update's blocks are
            dropped, counted, and the weights stay as they were.
        edge: Name of the sample edge in reports.
    """

    stop: Stop
    checkpoints: Checkpoints
    checkpoint_root: Path
    frames_per_step: int
    on_non_finite: OnNonFinite
    edge: str


class TrainerWorker(Worker):
    """At most one update per poll, made by all ranks or by none.

    Args:
        worker: Who it is; its index is its rank.
        intake: Brings batches; owned.
        writer: Takes versions; owned. ``None`` for ranks that do not publish: all but rank 0.
        training: Module, optimizer and counters.
        algorithm: Trains ``training``.
        options: From the experiment.
        collective: The way to the other ranks; owned. ``None`` = there are none.
    """

    def __init__(
        self,
        worker: WorkerId,
        intake: Intake,
        writer: ParameterWriter | None,
        training: Training,
        algorithm: Algorithm,
        options: TrainerOptions,
        collective: Collective | None = None,
    ) -> None:
        self._worker = worker
        self._intake = intake
        self._training = training
        self._algorithm = algorithm
        self._options = options
        self._writer = writer
        self._collective = collective or Alone()
        self._consent = Consent(self._collective, worker.group)
        self._time = TimeShares()
        self._turn: Callable[[str], None] = lambda doing: None
        self._env_steps = 0
        self._lag = {"policy_lag_sum": 0, "policy_lag_rows": 0, "policy_lag_max": 0}
        self._skipped = 0
        self._skipped_in_a_row = 0
        self._updates: list[dict[str, float]] = []
        self._messages: list[str] = []
        self._saved_version = -1
        self._saved_at = time.monotonic()
        self._draining = False
        self._delivery: Delivery | None = None
        self._is_settled = False
        self._lost: RankLost | None = None
        self._lost_at = 0.0
        self._gone: list[str] = []
        self._sha256 = ""
        self._collective.watch(self._waits)

    @property
    def is_first(self) -> bool:
        """Whether it is rank 0, which publishes, saves and reports what all ranks have in common."""
        return self._collective.rank == 0

    def start(self) -> None:
        """Take up the newest checkpoint if there is one, publish the first version, begin to grant credits."""
        self._collective.open()
        self._resume()
        self._training.synchronize()
        self._time.switch(Activity.PUBLISHING)
        self._publish()
        self._intake.start(self._training.version)
        self._time.switch(Activity.IDLE)

    def poll(self) -> bool:
        """One update, if its blocks are there and the other ranks have theirs."""
        if self._lost is not None:
            self._await_news(self._lost)
            return False
        try:
            return self._work()
        except RankLost as error:
            self._lose(error)
            return False

    def wait_descriptors(self) -> Iterable[int]:
        """Readable when a batch may be ready, or the other ranks have said whether they have theirs."""
        if self._consent.is_pending:
            return self._collective.wait_descriptors()
        return self._intake.wait_descriptors()

    def drain(self) -> None:
        """Train no more, grant no more, and write the last checkpoint once no other rank counts on this one."""
        self._draining = True
        self._intake.drain()
        self.poll()

    def drained(self) -> bool:
        """True once the last checkpoint is written and no credit is out."""
        return self._draining and self._is_settled and self._intake.drained()

    def peer_gone(self, peer: WorkerId) -> None:
        """End the credits of an actor that is dead; remember which rank is. It may be told more than once."""
        if peer.kind != "trainer":
            self._intake.producer_gone(peer.index, peer.incarnation)
        elif peer.name not in self._gone:
            self._gone.append(peer.name)

    def keep_turning(self, turn: Callable[[str], None]) -> None:
        """Have ``turn`` called while an update waits for other ranks."""
        self._turn = turn

    def finished(self) -> str | None:
        """``env_steps`` or ``updates`` once that budget is used up."""
        stop = self._options.stop
        if stop.env_steps is not None and self._env_steps >= stop.env_steps:
            return "env_steps"
        if stop.updates is not None and self._training.version >= stop.updates:
            return "updates"
        return None

    def weights_sha256(self) -> str:
        """Digest of the present weights."""
        return weights_sha256(self._weights())

    def report(self) -> WorkerReport:
        """Counters, metrics of updates, accounting of the sample edge."""
        updates, self._updates = self._updates, []
        messages, self._messages = self._messages, []
        return WorkerReport(
            worker=self._worker.name,
            kind="trainer",
            incarnation=self._worker.incarnation,
            seconds=self._time.seconds(),
            counters={**self._reported_counters(), **flow_counters(self._intake.counts())},
            edges={self._options.edge: sample_edge(self._intake.counts())},
            updates=updates,
            messages=messages,
            weights_sha256=self._sha256,
        )

    def close(self) -> None:
        """Close the stream's end, the publication and the way to the other ranks."""
        self._intake.close()
        if self._writer is not None:
            self._writer.close()
        self._collective.close()

    def abort(self) -> None:
        """Close all of them at once."""
        self._intake.abort()
        if self._writer is not None:
            self._writer.close()
        self._collective.abort()

    def _work(self) -> bool:
        if not self._consent.is_pending and not self._vote():
            self._time.switch(Activity.IDLE)
            return False
        decision = self._consent.decision()
        if decision is None:
            self._time.switch(Activity.WAITING_FOR_RANKS)
            return False
        delivery, self._delivery = self._delivery, None
        if delivery is None or not decision.is_yes:
            self._settle()
            return False
        self._update(delivery, decision.valid_rows)
        self._time.switch(Activity.IDLE)
        return True

    def _vote(self) -> bool:
        """Vote on the next update; False if there is none to vote on, or not yet.

        The budget is used up at the same update on all ranks: no word is needed.
        """
        if self._is_settled or self.finished() is not None:
            if self._draining and not self._is_settled:
                self._settle()
            return False
        if not self._draining:
            self._time.switch(Activity.ASSEMBLING)
            self._delivery = self._intake.take()
            if self._delivery is None:
                return False
        rows = None if self._delivery is None else self._delivery.batch.valid_rows
        self._consent.cast(rows, version=self._training.version, checksum=self._training.checksum)
        return True

    def _settle(self) -> None:
        """No update will follow: the weights are the last ones."""
        self._is_settled = True
        self._save()
        self._sha256 = self.weights_sha256()
        self._time.switch(Activity.IDLE)

    def _lose(self, error: RankLost) -> None:
        """Another rank is gone. What it died of is said by the controller, which then ends this one in order."""
        self._lost, self._lost_at = error, time.monotonic()
        self._messages.append(str(error))
        self._consent.abandon()
        self._settle()

    def _await_news(self, error: RankLost) -> None:
        self._time.switch(Activity.IDLE)
        if self._draining or time.monotonic() - self._lost_at < NEWS_SECONDS:
            return
        gone = ", ".join(self._gone) or "unknown: its process may live, but does not answer"
        raise RankLost("another trainer rank is lost", where=self._worker.name, value=gone) from error

    def _waits(self, is_waiting: bool) -> None:
        """A call that all ranks make has to wait for another rank, or has not to wait any more."""
        self._time.switch(Activity.WAITING_FOR_RANKS if is_waiting else Activity.TRAINING)
        if is_waiting:
            self._turn("wait for the other trainer ranks")

    def _update(self, delivery: Delivery, valid_rows: int) -> None:
        """One update.

        Args:
            delivery: This rank's batch.
            valid_rows: Valid rows of all ranks' batches.
        """
        training = self._training
        self._time.switch(Activity.TRAINING)
        training.progress = self._progress()
        try:
            with training.transaction():
                metrics = metrics_of(self._algorithm.update(delivery.batch), self._algorithm)
        except NonFiniteError as error:
            self._refuse(delivery, error)
            return
        self._skipped_in_a_row = 0
        self._env_steps += valid_rows
        self._count_lag(delivery, training.version)
        training.version += 1
        self._time.switch(Activity.PUBLISHING)
        self._publish()
        self._intake.trained(delivery, training.version)
        if self.is_first:
            self._updates.append({"version": training.version, "env_steps": self._env_steps, **metrics})
        if self._checkpoint_due():
            self._save()

    def _refuse(self, delivery: Delivery, error: NonFiniteError) -> None:
        """An update that was not finite left the weights unchanged: end the run, or drop its blocks and go on.

        Raises:
            NonFiniteError: The run is to end: as the experiment says, or because no update is finite any more.
        """
        if self._options.on_non_finite == "stop":
            raise error
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == SKIPS_IN_A_ROW:
            raise NonFiniteError(
                f"{SKIPS_IN_A_ROW} updates in a row were not finite and were skipped, this one last",
                where=self._worker.name,
                value=str(error),
                expected="an update that can be made",
                hint="The weights are those of the last update that was. A smaller learning rate may help.",
            ) from error
        if self.is_first:
            self._messages.append(f"{error}: the update is skipped")
        self._skipped += 1
        self._intake.discard(delivery, "non_finite_update")

    def _count_lag(self, delivery: Delivery, version: int) -> None:
        total, rows, largest = lag_of(delivery.batch, version)
        self._lag["policy_lag_sum"] += total
        self._lag["policy_lag_rows"] += rows
        self._lag["policy_lag_max"] = max(self._lag["policy_lag_max"], largest)

    def _progress(self) -> float:
        """Of the budgets that the trainer keeps, the one that will be used up first decides."""
        used = ((self._env_steps, self._options.stop.env_steps), (self._training.version, self._options.stop.updates))
        return min(1.0, max((done / budget for done, budget in used if budget is not None), default=0.0))

    def _publish(self) -> None:
        training = self._training
        training.set_extra(ENV_STEPS_FIELD, self._env_steps)
        if self._writer is not None:
            self._writer.publish(training.version, training.layout, training.flat_weights())

    def _weights(self) -> dict[str, NDArray[Any]]:
        """Parameters and buffers of the policy by name; they alias the weights under training."""
        views = self._training.layout.views(self._training.flat_weights())
        return {name: array for name, array in views.items() if name != ENV_STEPS_FIELD}

    def _checkpoint_due(self) -> bool:
        checkpoints = self._options.checkpoints
        if checkpoints.interval_updates is not None:
            return self._training.version - max(self._saved_version, 0) >= checkpoints.interval_updates
        seconds = checkpoints.interval_seconds
        return seconds is not None and time.monotonic() - self._saved_at >= seconds

    def _save(self) -> None:
        if not self.is_first or self._saved_version == self._training.version:
            return
        save_checkpoint(
            self._options.checkpoint_root,
            version=self._training.version,
            weights=self._weights(),
            state={"training": self._training.state(), "algorithm": self._algorithm.state()},
            counters=self._counters(),
        )
        prune(self._options.checkpoint_root, self._options.checkpoints.keep)
        self._saved_version = self._training.version
        self._saved_at = time.monotonic()

    def _resume(self) -> None:
        checkpoint = newest_complete(self._options.checkpoint_root)
        if checkpoint is None:
            return
        state = checkpoint.state()
        self._training.load_weights(checkpoint.weights())
        self._training.load_state(state["training"])
        self._algorithm.load_state(state["algorithm"])
        self._training.version = checkpoint.version
        self._env_steps = int(checkpoint.counters["env_steps"])
        self._saved_version = checkpoint.version

    def _counters(self) -> dict[str, int]:
        return {
            "env_steps": self._env_steps,
            "frames": self._env_steps * self._options.frames_per_step,
            "updates": self._training.version,
            "gradient_steps": self._training.gradient_steps,
            "policy_version": self._training.version,
            "updates_skipped": self._skipped,
            **self._lag,
        }

    def _reported_counters(self) -> dict[str, int]:
        """Of what all ranks have in common only rank 0 speaks; readers add ranks up."""
        return self._counters() if self.is_first else dict(self._lag)

"""The trainer worker: turns batches into versions of the weights, publishes and saves them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from srl.api.algorithm import Algorithm
from srl.api.errors import NonFiniteError
from srl.api.experiment import Checkpoints, Stop
from srl.system.checkpoint import newest_complete, prune, save_checkpoint
from srl.system.parameters import ParameterWriter, weights_sha256
from srl.system.report import Activity, EdgeCount, TimeShares, WorkerReport
from srl.system.worker import Worker, WorkerId
from srl.system.workers.acting import ENV_STEPS_FIELD
from srl.system.workers.batch import lag_of
from srl.system.workers.finite import OnNonFinite
from srl.system.workers.intake import Delivery, Intake
from srl.system.workers.training import Training


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
    """One update per poll.

    Args:
        worker: Who it is.
        intake: Brings batches; owned.
        writer: Takes versions; owned.
        training: Module, optimizer and counters.
        algorithm: Trains ``training``.
        options: From the experiment.
    """

    def __init__(
        self,
        worker: WorkerId,
        intake: Intake,
        writer: ParameterWriter,
        training: Training,
        algorithm: Algorithm,
        options: TrainerOptions,
    ) -> None:
        self._worker = worker
        self._intake = intake
        self._training = training
        self._algorithm = algorithm
        self._options = options
        self._writer = writer
        self._time = TimeShares()
        self._env_steps = 0
        self._lag = {"policy_lag_sum": 0, "policy_lag_rows": 0, "policy_lag_max": 0}
        self._skipped = 0
        self._updates: list[dict[str, float]] = []
        self._messages: list[str] = []
        self._saved_version = -1
        self._saved_at = time.monotonic()
        self._draining = False

    def start(self) -> None:
        """Take up the newest checkpoint if there is one, publish the first version, begin to grant credits."""
        self._resume()
        self._publish()
        self._intake.start(self._training.version)

    def poll(self) -> bool:
        """One update, if its blocks are there."""
        if self._draining or self.finished():
            self._time.switch(Activity.IDLE)
            return False
        self._time.switch(Activity.ASSEMBLING)
        delivery = self._intake.take()
        if delivery is None:
            self._time.switch(Activity.IDLE)
            return False
        self._update(delivery)
        self._time.switch(Activity.IDLE)
        return True

    def wait_descriptors(self) -> Iterable[int]:
        """Readable when a batch may be ready."""
        return self._intake.wait_descriptors()

    def drain(self) -> None:
        """Train no more, grant no more, and write the last checkpoint."""
        self._draining = True
        self._intake.drain()
        self._save()

    def drained(self) -> bool:
        """True once the last checkpoint is written and no credit is out."""
        return self._draining and self._intake.drained()

    def peer_gone(self, peer: WorkerId) -> None:
        """End the credits of an actor that is dead."""
        self._intake.producer_gone(peer.index, peer.incarnation)

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
            counters={**self._counters(), **_flow_counters(self._intake.counts())},
            edges={self._options.edge: _edge(self._intake.counts())},
            updates=updates,
            messages=messages,
        )

    def close(self) -> None:
        """Close the stream's end and the publication."""
        self._intake.close()
        self._writer.close()

    def abort(self) -> None:
        """Close both at once."""
        self._intake.abort()
        self._writer.close()

    def _update(self, delivery: Delivery) -> None:
        training = self._training
        self._time.switch(Activity.TRAINING)
        training.progress = self._progress()
        try:
            with training.transaction():
                metrics = self._algorithm.update(delivery.batch)
        except NonFiniteError as error:
            self._refuse(delivery, error)
            return
        self._count(delivery, training.version)
        training.version += 1
        self._time.switch(Activity.PUBLISHING)
        self._publish()
        self._intake.trained(delivery, training.version)
        self._updates.append({"version": training.version, "env_steps": self._env_steps, **metrics})
        if self._checkpoint_due():
            self._save()

    def _refuse(self, delivery: Delivery, error: NonFiniteError) -> None:
        """An update that was not finite left the weights unchanged: end the run, or drop its blocks and go on."""
        if self._options.on_non_finite == "stop":
            raise error
        self._messages.append(f"{error}: the update is skipped")
        self._skipped += 1
        self._intake.discard(delivery, "non_finite_update")

    def _count(self, delivery: Delivery, version: int) -> None:
        self._env_steps += delivery.batch.valid_rows
        total, rows, largest = lag_of(delivery.batch, version)
        self._lag["policy_lag_sum"] += total
        self._lag["policy_lag_rows"] += rows
        self._lag["policy_lag_max"] = max(self._lag["policy_lag_max"], largest)

    def _progress(self) -> float:
        stop = self._options.stop
        if stop.env_steps is not None:
            return min(1.0, self._env_steps / stop.env_steps)
        if stop.updates is not None:
            return min(1.0, self._training.version / stop.updates)
        return 0.0

    def _publish(self) -> None:
        training = self._training
        training.set_extra(ENV_STEPS_FIELD, self._env_steps)
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
        if self._saved_version == self._training.version:
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


def _flow_counters(counts: Mapping[str, Any]) -> dict[str, int]:
    """The accounting of a sample stream as counters of a report."""
    counters = {}
    for unit, key in (("blocks", "blocks"), ("rows", "valid_rows")):
        account = counts[key]
        counters[f"{unit}_trained"] = int(account["trained"])
        counters[f"{unit}_in_flight"] = int(account["in_flight"])
        for reason, number in account["dropped"].items():
            counters[f"{unit}_dropped/{reason}"] = int(number)
    for length, number in counts["lengths"]["trained"].items():
        counters[f"lengths_trained/{length}"] = int(number)
    for reason, lengths in counts["lengths"]["dropped"].items():
        for length, number in lengths.items():
            counters[f"lengths_dropped/{reason}/{length}"] = int(number)
    counters["stragglers"] = int(counts["stragglers"])
    counters["messages_refused"] = sum(int(number) for number in counts["refused"].values())
    return counters


def _edge(counts: Mapping[str, Any]) -> EdgeCount:
    blocks = counts["blocks"]
    dropped = {reason: int(number) for reason, number in blocks["dropped"].items()}
    return EdgeCount(sent=0, received=int(blocks["produced"]), dropped=dropped)

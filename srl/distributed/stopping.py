"""How a trial is stopped: who is told when, how long each part may take, who is killed. Pure.

An orderly stop (the goal is reached) goes through the drain steps one after the other; the last evaluations have no
bound but the heartbeat, the last checkpoint has the heartbeat's. A prompt stop (a signal, a failure) is over within
``shutdown_seconds`` whatever happens: the first half belongs to all drain steps but the last, so that a hanging actor
cannot take the trainer's time for its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from srl.distributed.lifecycle import DRAIN_STEPS, State, WorkerRecord
from srl.distributed.trial_events import CommandKind, DumpStacks, Instruction, Kill, Note, Send, StopRequested

DUMP_SECONDS = 1.0
"""Between the request for a silent worker's stacks and its killing: the time to write them."""

KILL_SECONDS = 3.0
"""Time for the death of a killed process to be confirmed; after it the process is named and left."""

MAX_NAMED = 8
"""Workers named in one line."""

EVALUATOR_STEP = DRAIN_STEPS["evaluator"]
LAST_STEP = DRAIN_STEPS["trainer"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on waits, in seconds (``Limits`` of the experiment); ``are_suspended`` by ``--debug``."""

    connect_seconds: float
    heartbeat_seconds: float
    shutdown_seconds: float
    are_suspended: bool = False


def scores_last_version(reason: str, is_orderly: bool) -> bool:
    """Whether evaluators score the last version before they end: not in a hurry, nor where a score was the goal."""
    return is_orderly and reason != "evaluation_return"


class Stopper:
    """One stop under way: who is told what, and who is killed because he does not obey.

    Args:
        records: Every worker's record, by name; changed here.
        bounds: Bounds on waits.
        request: Why and how.
        now: Monotonic seconds.

    Attributes:
        reason: The word for the summary.
        exit_code: Exit code of the run.
        is_orderly: See the module's docstring.
    """

    def __init__(self, records: Mapping[str, WorkerRecord], bounds: Bounds, request: StopRequested, now: float) -> None:
        self.reason, self.exit_code, self.is_orderly = request.reason, request.exit_code, request.is_orderly
        self._records = records
        self._bounds = bounds
        self._since = now
        self._step = -1
        self._step_since = now

    def replace(self, request: StopRequested, now: float) -> bool:
        """Something came in between: from here on an orderly stop is a prompt one. False = nothing changed."""
        if not self.is_orderly or request.is_orderly:
            return False
        self.reason, self.exit_code, self.is_orderly = request.reason, request.exit_code, False
        self._since = now
        for record in self._records.values():
            if record.id.kind == "evaluator" and not record.is_killed:
                record.drain_sent = False  # It drains by a last evaluation, for which there is no time any more.
        return True

    def advance(self, now: float) -> list[Instruction]:
        """What is to be done now."""
        out: list[Instruction] = list(self._give_up_on_unkillable(now))
        living = [record for record in self._records.values() if record.is_alive]
        if not living:
            return out
        step = min(record.drain_step for record in living)
        if step > self._step:
            self._step, self._step_since = step, now
        for record in living:
            if not record.drain_sent and (record.drain_step <= self._step or self._must_not_drain(record)):
                out += self._send(record, now)
        return out + self._enforce(living, now)

    def deadline(self) -> float | None:
        """Monotonic time at which what is left of the present drain step is killed; ``None`` = no bound."""
        half_seconds = self._bounds.shutdown_seconds / 2
        if not self.is_orderly:
            is_last = self._step >= max(record.drain_step for record in self._records.values())
            return self._since + (self._bounds.shutdown_seconds if is_last else half_seconds)
        if self._bounds.are_suspended or self._step == EVALUATOR_STEP:
            return None
        if self._step == LAST_STEP:
            return self._step_since + max(self._bounds.heartbeat_seconds, self._bounds.shutdown_seconds)
        return self._step_since + half_seconds

    def _must_not_drain(self, record: WorkerRecord) -> bool:
        """Who was never started, or could only wait, is stopped at once: no order is needed."""
        if not record.is_started:
            return True
        if record.id.kind == "evaluator":
            return not scores_last_version(self.reason, self.is_orderly)
        # An actor would wait for the reply of a policy worker that is dead.
        return record.id.kind == "actor" and any(
            other.id.kind == "policy" and other.state is State.FAILED for other in self._records.values()
        )

    def _send(self, record: WorkerRecord, now: float) -> list[Instruction]:
        if not record.is_assigned:
            record.drain_sent = True
            return [kill(record, now)]
        if record.connection is None:
            return []
        record.drain_sent = True
        return [Send(record.name, CommandKind.STOP if self._must_not_drain(record) else CommandKind.DRAIN)]

    def _enforce(self, living: Sequence[WorkerRecord], now: float) -> list[Instruction]:
        deadline = self.deadline()
        if deadline is None:
            return []
        late = [record for record in living if not record.is_killed and record.drain_step <= self._step]
        if now >= deadline:
            kills: list[Instruction] = [kill(record, now) for record in late]
            return [self._complaint(late, now), *kills] if late else []
        out: list[Instruction] = []
        for record in late:
            if not record.stacks_asked and now >= deadline - DUMP_SECONDS:
                record.stacks_asked = True
                out.append(DumpStacks(record.name))
        return out

    def _complaint(self, late: Sequence[WorkerRecord], now: float) -> Note:
        named = [f"{record.name}{record.place}" for record in late[:MAX_NAMED]]
        more = f"; and {len(late) - MAX_NAMED} more" if len(late) > MAX_NAMED else ""
        waited_seconds = now - (self._step_since if self.is_orderly else self._since)
        return Note(f"did not stop within {waited_seconds:.1f} s, killed: {'; '.join(named)}{more}", is_warning=True)

    def _give_up_on_unkillable(self, now: float) -> Iterator[Note]:
        for record in self._records.values():
            if record.is_alive and record.killed_at is not None and now - record.killed_at > KILL_SECONDS:
                record.is_gone = True
                text = f"{record.name}: its death is not confirmed {KILL_SECONDS:g} s after it was killed"
                yield Note(text, is_warning=True)


def kill(record: WorkerRecord, now: float) -> Kill:
    """Order the killing of a worker."""
    record.killed_at = now
    return Kill(record.name)

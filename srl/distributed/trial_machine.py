"""The trial machine: events in, instructions out. Decides everything about processes, does nothing itself.

::

    machine = TrialMachine(workers, bounds)
    perform(machine.begin(now))                         # Launch for every worker
    while machine.end is None:
        for event in what_happened():
            perform(machine.handle(event, now))
        perform(machine.handle(Tick(), now))            # a few times a second: bounds are checked here
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from srl.distributed.lifecycle import TERMINATED, LifecycleError, State, WorkerRecord, check_transition
from srl.distributed.stopping import DUMP_SECONDS, Bounds, Stopper, kill
from srl.distributed.trial_events import (
    AbortRequested,
    Assign,
    Beat,
    CommandKind,
    Disconnected,
    DumpStacks,
    End,
    EndpointsBound,
    Event,
    Exited,
    Instruction,
    Launch,
    Note,
    Refuse,
    Registered,
    ReportFailure,
    Send,
    StateReached,
    StopRequested,
    TellGone,
    Tick,
    WorkerEvent,
    WorkerFailed,
    WorkerFinished,
)
from srl.system.worker import WorkerId


class TrialMachine:
    """The state of a trial and its workers.

    Args:
        workers: Every worker of the graph.
        bounds: Bounds on waits.

    Attributes:
        state: State of the trial.
        failures: (worker, text) of every failure, the first one first: it is the cause.
        refused: Reason to number of messages refused.
        end: How it ended; ``None`` until then.
    """

    def __init__(self, workers: Sequence[WorkerId], bounds: Bounds) -> None:
        self.state = State.CREATED
        self.failures: list[tuple[str, str]] = []
        self.refused: Counter[str] = Counter()
        self.end: End | None = None
        self._bounds = bounds
        self._records = {worker.name: WorkerRecord(worker) for worker in workers}
        self._stopper: Stopper | None = None
        self._out: list[Instruction] = []
        self._now = 0.0

    @property
    def endpoints(self) -> dict[str, str]:
        """Name to address of everything that was bound so far."""
        return {name: at for record in self._records.values() for name, at in record.endpoints.items()}

    def states(self) -> dict[str, State]:
        """State of every worker."""
        return {name: record.state for name, record in self._records.items()}

    def connection(self, worker: str) -> int | None:
        """The control connection of a worker, ``None`` while it has none."""
        return self._records[worker].connection

    def begin(self, now: float) -> list[Instruction]:
        """Launch every worker."""
        for record in self._records.values():
            record.is_launched, record.alive_at = True, now
            self._out.append(Launch(record.name, record.id.incarnation))
        return self._flush()

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event.

        Args:
            event: What happened.
            now: Monotonic seconds.

        Returns:
            What is to be done, in this order.
        """
        self._now = now
        if self.end is not None:
            return []
        match event:
            case Tick():
                self._check_alive()
                self._advance()
            case StopRequested():
                self._request_stop(event)
                self._advance()
            case AbortRequested():
                self._abort(event)
                self._advance()
            case Disconnected():
                self._on_disconnected(event)
            case _:
                self._on_worker_event(event)
        return self._flush()

    def _flush(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    # Events of workers

    def _on_worker_event(self, event: WorkerEvent) -> None:
        record = self._records.get(event.worker)
        refusal = self._refusal(record, event)
        if record is None or refusal:
            self.refused[refusal] += 1
            if isinstance(event, Registered):
                self._out.append(Refuse(event.connection, f"{event.worker}: {refusal}"))
            return
        if isinstance(event, Beat):
            # Thousands a second in a large trial: nothing else can follow from a heartbeat.
            self._on_beat(record, event)
            return
        self._take_in(record, event)
        self._advance()

    def _take_in(self, record: WorkerRecord, event: WorkerEvent) -> None:
        match event:
            case Registered():
                self._on_registered(record, event)
            case EndpointsBound():
                record.endpoints = dict(event.endpoints)
                self._enter(record, State.CONFIGURED)
            case StateReached():
                self._enter(record, event.state)
            case WorkerFinished() if record.id.kind == "trainer":
                self._request_stop(StopRequested(event.reason, exit_code=0, is_orderly=True))
            case WorkerFinished():
                self._out.append(Note(f"{record.name} has finished: {event.reason}"))
            case WorkerFailed():
                self._fail(record, event.text, with_log=False)
            case Exited():
                self._on_exited(record, event)

    def _refusal(self, record: WorkerRecord | None, event: WorkerEvent) -> str:
        """Why the event is not taken in; empty = it is."""
        if record is None:
            return "unknown worker"
        if event.incarnation != record.id.incarnation:
            return "superseded incarnation"
        if record.is_gone:
            return "exited already"
        return ""

    def _on_registered(self, record: WorkerRecord, event: Registered) -> None:
        if record.connection is not None and record.connection != event.connection:
            self._out.append(Refuse(record.connection, f"{record.name} connected anew"))
        record.connection, record.host = event.connection, event.host
        record.alive_at, record.hung_at = self._now, None
        # What was sent on a connection that broke may be lost: a worker that comes back hears it again.
        record.is_assigned = record.is_assigned and event.state is not State.CREATED
        if record.is_started and event.state is State.CONFIGURED:
            # In a stop, too: the last evaluation waits for a version of the trainer, which publishes when it starts.
            self._out.append(Send(record.name, CommandKind.START))
        record.is_started = record.is_started and event.state is not State.CREATED
        record.drain_sent = False
        if event.state is not State.CREATED:
            gone = [other for other in self._records.values() if other.is_gone]
            self._out += [TellGone(other.name, other.id.incarnation) for other in gone]

    def _on_beat(self, record: WorkerRecord, event: Beat) -> None:
        record.alive_at = max(record.alive_at, self._now - event.silent_seconds)
        record.doing = event.doing
        if record.hung_at is not None and record.alive_at >= record.hung_at:
            self._out.append(Note(f"{record.name} turns again"))
            record.hung_at = None

    def _enter(self, record: WorkerRecord, state: State) -> None:
        try:
            record.advance(state)
        except LifecycleError as error:
            self.refused["impossible state"] += 1
            self._out.append(Note(str(error), is_warning=True))
            return
        record.alive_at = self._now

    def _on_disconnected(self, event: Disconnected) -> None:
        for record in self._records.values():
            if record.connection == event.connection:
                record.connection = None

    def _on_exited(self, record: WorkerRecord, event: Exited) -> None:
        record.is_gone, record.connection = True, None
        self._out.append(TellGone(record.name, event.incarnation))
        if record.is_killed or record.state is State.FAILED:
            record.state = State.FAILED
        elif (event.code == 0 and record.drain_sent) or self._ends_by_itself(event):
            record.state = State.STOPPED
        elif event.code == 0:
            self._fail(record, f"ended without being told to (exit code 0){record.place_and_host}", with_log=True)
        else:
            self._fail(record, f"{event.description}{record.place_and_host}", with_log=True)

    def _ends_by_itself(self, event: Exited) -> bool:
        """Whether a worker drained because of a SIGTERM of its own while the trial was being stopped anyway.

        A batch system sends it to every process; a worker whose turn has not come within a second goes ahead.
        """
        return event.code == TERMINATED and self._stopper is not None and not self._stopper.is_orderly

    # Wiring

    def _advance(self) -> None:
        if self._stopper is not None:
            self._advance_stop(self._stopper)
            return
        records = list(self._records.values())
        self._assign(records)
        if self.state is State.CREATED and all(record.state is State.CONFIGURED for record in records):
            self._enter_trial(State.CONFIGURED)
        if self.state is not State.CREATED:
            for record in records:
                if not record.is_started and record.connection is not None:
                    record.is_started = True
                    self._out.append(Send(record.name, CommandKind.START))
        if self.state is State.CONFIGURED and all(record.state is State.RUNNING for record in records):
            self._enter_trial(State.RUNNING)

    def _assign(self, records: Sequence[WorkerRecord]) -> None:
        """Assign in steps: those who connect come after all those who bind have published where."""
        unconfigured = [record for record in records if record.state is State.CREATED]
        if not unconfigured:
            return
        step = min(record.assignment_step for record in unconfigured)
        for record in unconfigured:
            if record.assignment_step == step and record.connection is not None and not record.is_assigned:
                record.is_assigned = True
                self._out.append(Assign(record.name, self.endpoints))

    def _enter_trial(self, state: State) -> None:
        check_transition("trial", self.state, state)
        self.state = state
        self._out.append(Note(f"trial is {state}"))

    # Failures and bounds

    def _fail(self, record: WorkerRecord, text: str, *, with_log: bool) -> None:
        if record.state is State.FAILED:
            return
        record.state = State.FAILED
        record.drain_sent = True  # It ends by itself; if it does not, the stop's deadline kills it.
        self.failures.append((record.name, text))
        self._out.append(ReportFailure(record.name, text, with_log))
        self._request_stop(StopRequested("failed", exit_code=1, is_orderly=False))

    def _check_alive(self) -> None:
        # A prompt stop has a deadline of its own, which is the shorter one.
        if self._bounds.are_suspended or (self._stopper is not None and not self._stopper.is_orderly):
            return
        for record in self._records.values():
            if record.is_alive and not record.is_killed:
                self._check_silence(record)

    def _check_silence(self, record: WorkerRecord) -> None:
        is_connecting = record.connection is None and record.state is State.CREATED
        bound = self._bounds.connect_seconds if is_connecting else self._bounds.heartbeat_seconds
        silent_seconds = self._now - record.alive_at
        if record.hung_at is None and silent_seconds > bound:
            record.hung_at = self._now
            self._out.append(DumpStacks(record.name))
        elif record.hung_at is not None and self._now - record.hung_at >= DUMP_SECONDS:
            what = "not connected" if is_connecting else "no heartbeat"
            self._fail(
                record, f"{what} for {silent_seconds:.0f} s (bound {bound:g} s){record.place_and_host}", with_log=True
            )
            self._out.append(kill(record, self._now))

    def _request_stop(self, event: StopRequested) -> None:
        if self._stopper is None:
            check_transition("trial", self.state, State.DRAINING)
            self.state = State.DRAINING
            self._stopper = Stopper(self._records, self._bounds, event, self._now)
            self._out.append(Note(f"stopping: {event.reason}"))
        elif self._stopper.replace(event, self._now):
            self._out.append(Note(f"stopping: {event.reason}"))

    def _abort(self, event: AbortRequested) -> None:
        self._request_stop(StopRequested(event.reason, event.exit_code, is_orderly=False))
        for record in self._records.values():
            if record.is_alive and not record.is_killed:
                self._out.append(kill(record, self._now))

    def _advance_stop(self, stopper: Stopper) -> None:
        self._out += stopper.advance(self._now)
        if not any(record.is_alive for record in self._records.values()):
            self.state = State.FAILED if stopper.exit_code == 1 else State.STOPPED
            self.end = End(stopper.reason, stopper.exit_code)
            self._out.append(self.end)

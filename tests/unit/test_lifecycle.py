"""The state machine of workers and trials, without a process, a socket or a clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.distributed.lifecycle import TRANSITIONS, LifecycleError, State, WorkerRecord, check_transition
from srl.distributed.stopping import Bounds
from srl.distributed.trial_events import (
    AbortRequested,
    Assign,
    Beat,
    CommandKind,
    Disconnected,
    DumpStacks,
    End,
    EndpointsBound,
    Exited,
    Instruction,
    Kill,
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
    WorkerFailed,
    WorkerFinished,
)
from srl.distributed.trial_machine import TrialMachine
from srl.system.worker import WorkerId

BOUNDS = Bounds(connect_seconds=10.0, heartbeat_seconds=20.0, shutdown_seconds=8.0)
TRAINER = WorkerId("trainer", "trainer", 0)
POLICY = WorkerId("policy", "policy", 0)
ACTORS = [WorkerId("actor", "actor", 0), WorkerId("actor", "actor", 1)]
EVALUATOR = WorkerId("evaluator", "evaluator", 0)
GRAPH = [*ACTORS, TRAINER, POLICY, EVALUATOR]
INTERRUPT = StopRequested("interrupted", exit_code=130, is_orderly=False)


def of_kind(instructions: list[Instruction], kind: type) -> list:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


@dataclass
class Driver:
    """Plays the workers of a machine that do what they are told, unless a test says otherwise."""

    machine: TrialMachine
    now: float = 100.0
    connections: dict[str, int] = field(default_factory=dict)

    def __call__(self, event: object, at: float | None = None) -> list[Instruction]:
        self.now = at if at is not None else self.now
        return self.machine.handle(event, self.now)

    def register(self, worker: WorkerId) -> list[Instruction]:
        connection = self.connections[worker.name] = len(self.connections) + 1
        return self(Registered(worker.name, worker.incarnation, connection, pid=1, host="here"))

    def bound(self, worker: WorkerId) -> list[Instruction]:
        return self(EndpointsBound(worker.name, worker.incarnation, {f"at:{worker.name}": "address"}))

    def reach(self, worker: WorkerId, state: State) -> list[Instruction]:
        return self(StateReached(worker.name, worker.incarnation, state))

    def exit(self, worker: WorkerId, code: int = 0) -> list[Instruction]:
        out = self(Exited(worker.name, worker.incarnation, code, f"exit code {code}"))
        assert out[0] == TellGone(worker.name, worker.incarnation)
        return out[1:]


def running_trial(workers: list[WorkerId] = GRAPH, bounds: Bounds = BOUNDS) -> Driver:
    driver = Driver(TrialMachine(workers, bounds))
    driver.machine.begin(driver.now)
    for worker in workers:
        driver.register(worker)
    for worker in sorted(workers, key=lambda w: WorkerRecord(w).assignment_step):
        driver.bound(worker)
    for worker in workers:
        driver.reach(worker, State.RUNNING)
    assert driver.machine.state is State.RUNNING
    return driver


def test_final_states_lead_nowhere_and_every_other_state_can_fail_and_stop() -> None:
    for state, following in TRANSITIONS.items():
        assert state.is_final == (state in (State.STOPPED, State.FAILED))
        if not state.is_final:
            assert {State.STOPPED, State.FAILED} <= following


def test_an_impossible_transition_names_what_could_follow() -> None:
    with pytest.raises(LifecycleError, match=r"actor/0: cannot go from stopped to running.*final"):
        check_transition("actor/0", State.STOPPED, State.RUNNING)
    with pytest.raises(LifecycleError, match=r"created to running.*configured, draining"):
        WorkerRecord(ACTORS[0]).advance(State.RUNNING)


def test_consumers_are_assigned_first_and_the_others_learn_their_endpoints() -> None:
    driver = Driver(TrialMachine(GRAPH, BOUNDS))
    launched = of_kind(driver.machine.begin(100.0), Launch)
    assert {launch.worker for launch in launched} == {worker.name for worker in GRAPH}

    assert driver.register(ACTORS[0]) == []
    assert driver.register(POLICY) == []
    assert driver.register(TRAINER) == [Assign("trainer/0", {})]
    assert driver.bound(TRAINER) == [Assign("policy/0", {"at:trainer/0": "address"})]
    both = {"at:trainer/0": "address", "at:policy/0": "address"}
    assert driver.bound(POLICY) == [Assign("actor/0", both)]
    assert driver.register(ACTORS[1]) == [Assign("actor/1", both)]
    assert driver.register(EVALUATOR) == [Assign("evaluator/0", both)]


def test_nobody_starts_before_all_are_configured() -> None:
    driver = Driver(TrialMachine([TRAINER, *ACTORS], BOUNDS))
    driver.machine.begin(100.0)
    for worker in (TRAINER, *ACTORS):
        driver.register(worker)
    assert of_kind(driver.bound(TRAINER), Send) == []
    assert of_kind(driver.bound(ACTORS[0]), Send) == []
    sent = of_kind(driver.bound(ACTORS[1]), Send)
    assert sent == [Send(name, CommandKind.START) for name in ("trainer/0", "actor/0", "actor/1")]
    assert driver.machine.state is State.CONFIGURED


def test_a_reached_goal_drains_actors_then_policy_workers_then_evaluators_then_trainers() -> None:
    driver = running_trial()
    out = driver(WorkerFinished("trainer/0", 0, "env_steps"))
    assert of_kind(out, Send) == [Send("actor/0", CommandKind.DRAIN), Send("actor/1", CommandKind.DRAIN)]
    assert of_kind(driver.exit(ACTORS[0]), Send) == []
    assert of_kind(driver.exit(ACTORS[1]), Send) == [Send("policy/0", CommandKind.DRAIN)]
    assert of_kind(driver.exit(POLICY), Send) == [Send("evaluator/0", CommandKind.DRAIN)]
    # The last evaluation has no bound but the heartbeat.
    for _ in range(60):
        driver.now += 1.0
        for worker in (EVALUATOR, TRAINER):
            driver(Beat(worker.name, 0, 0.1, "poll"))
        assert driver(Tick()) == []
    assert of_kind(driver.exit(EVALUATOR), Send) == [Send("trainer/0", CommandKind.DRAIN)]
    assert driver.exit(TRAINER) == [End("env_steps", 0)]
    assert driver.machine.state is State.STOPPED


def test_only_a_trainer_ends_the_trial_by_finishing() -> None:
    driver = running_trial()
    assert of_kind(driver(WorkerFinished("evaluator/0", 0, "evaluated")), Send) == []
    assert driver.machine.state is State.RUNNING


def test_an_interrupt_before_anything_is_configured_kills_what_was_launched() -> None:
    driver = Driver(TrialMachine([TRAINER, ACTORS[0]], BOUNDS))
    driver.machine.begin(100.0)
    driver.register(ACTORS[0])
    assert of_kind(driver(INTERRUPT), Kill) == [Kill("trainer/0"), Kill("actor/0")] or of_kind(
        driver.machine.handle(Tick(), 100.0), Kill
    )
    driver.exit(TRAINER, -9)
    assert driver.exit(ACTORS[0], -9) == [End("interrupted", 130)]
    assert driver.machine.failures == []


def test_an_interrupt_while_starting_stops_configured_workers_without_an_order() -> None:
    driver = Driver(TrialMachine([TRAINER, ACTORS[0]], BOUNDS))
    driver.machine.begin(100.0)
    driver.register(TRAINER)
    driver.bound(TRAINER)
    driver.register(ACTORS[0])
    sent = of_kind(driver(INTERRUPT), Send)
    assert sorted(sent, key=lambda s: s.worker) == [
        Send("actor/0", CommandKind.STOP),
        Send("trainer/0", CommandKind.STOP),
    ]


def test_a_hanging_actor_leaves_the_trainer_half_of_the_time_and_is_killed_and_named() -> None:
    driver = running_trial([TRAINER, *ACTORS])
    driver(INTERRUPT)
    driver.exit(ACTORS[0])
    assert driver(Tick(), at=102.9) == []
    assert driver(Tick(), at=103.0) == [DumpStacks("actor/1")]
    out = driver(Tick(), at=104.0)
    assert of_kind(out, Kill) == [Kill("actor/1")]
    assert any(
        note.text == "did not stop within 4.0 s, killed: actor/1" and note.is_warning for note in of_kind(out, Note)
    )
    assert of_kind(driver.exit(ACTORS[1], -9), Send) == [Send("trainer/0", CommandKind.DRAIN)]
    assert driver.exit(TRAINER) == [End("interrupted", 130)]
    assert driver.machine.failures == []


def test_a_second_interrupt_kills_everything_at_once() -> None:
    driver = running_trial([TRAINER, *ACTORS])
    driver(INTERRUPT)
    out = driver(AbortRequested("interrupted", 130))
    assert {kill.worker for kill in of_kind(out, Kill)} == {"trainer/0", "actor/0", "actor/1"}
    for worker in (TRAINER, *ACTORS):
        out = driver.exit(worker, -9)
    assert out == [End("interrupted", 130)]


def test_a_process_whose_death_is_never_confirmed_is_named_and_left() -> None:
    driver = running_trial([TRAINER])
    driver(AbortRequested("interrupted", 130))
    assert driver(Tick(), at=102.9) == []
    out = driver(Tick(), at=103.1)
    assert "trainer/0: its death is not confirmed" in of_kind(out, Note)[0].text
    assert of_kind(out, End) == [End("interrupted", 130)]


def test_an_exception_ends_the_run_with_code_1_and_is_reported_once() -> None:
    driver = running_trial([TRAINER, *ACTORS])
    out = driver(WorkerFailed("actor/1", 0, "boom-42"))
    assert of_kind(out, ReportFailure) == [ReportFailure("actor/1", "boom-42", with_log=False)]
    assert of_kind(out, Send) == [Send("actor/0", CommandKind.DRAIN)]
    assert of_kind(driver.exit(ACTORS[1], 1), ReportFailure) == []
    driver.exit(ACTORS[0])
    assert driver.exit(TRAINER) == [End("failed", 1)]
    assert driver.machine.failures == [("actor/1", "boom-42")]
    assert driver.machine.state is State.FAILED


@pytest.mark.parametrize(("code", "text"), [(3, "exit code 3"), (0, "without being told"), (-11, "exit code -11")])
def test_a_worker_that_ends_unasked_is_a_failure_with_its_log(code: int, text: str) -> None:
    driver = running_trial([TRAINER, *ACTORS])
    (report,) = of_kind(driver.exit(ACTORS[0], code), ReportFailure)
    assert report.worker == "actor/0"
    assert text in report.text
    assert report.with_log
    driver.exit(ACTORS[1])
    assert driver.exit(TRAINER) == [End("failed", 1)]


def test_a_worker_that_drained_by_its_own_sigterm_in_a_prompt_stop_is_no_failure() -> None:
    """A batch system sends it to every process of a job; the trainer's turn comes late where actors are slow."""
    driver = running_trial([TRAINER, ACTORS[0]])
    driver(StopRequested("terminated", exit_code=143, is_orderly=False))
    assert driver.exit(TRAINER, 143) == []
    assert driver.machine.states()["trainer/0"] is State.STOPPED
    assert driver.exit(ACTORS[0], 0) == [End("terminated", 143)]
    assert driver.machine.failures == []


def test_but_it_is_one_where_the_trial_went_on() -> None:
    driver = running_trial([TRAINER, ACTORS[0]])
    driver.exit(ACTORS[0], 143)
    assert [worker for worker, _ in driver.machine.failures] == ["actor/0"]


def test_a_failure_in_the_last_evaluation_fails_the_run() -> None:
    driver = running_trial([TRAINER, EVALUATOR])
    driver(WorkerFinished("trainer/0", 0, "updates"))
    out = driver.exit(EVALUATOR, -11)
    assert of_kind(out, Send) == [Send("trainer/0", CommandKind.DRAIN)]
    assert driver.exit(TRAINER) == [End("failed", 1)]


def test_an_interrupt_during_the_last_evaluation_makes_the_stop_a_prompt_one() -> None:
    driver = running_trial([TRAINER, EVALUATOR])
    driver(WorkerFinished("trainer/0", 0, "updates"))
    out = driver(INTERRUPT, at=150.0)
    assert of_kind(out, Send) == [Send("evaluator/0", CommandKind.STOP)]
    assert of_kind(driver(Tick(), at=153.9), Kill) == []
    assert of_kind(driver(Tick(), at=154.0), Kill) == [Kill("evaluator/0")]
    driver.exit(EVALUATOR, -9)
    assert driver.exit(TRAINER) == [End("interrupted", 130)]


def test_an_interrupt_stops_evaluators_at_once_beside_the_actors() -> None:
    driver = running_trial([TRAINER, EVALUATOR, ACTORS[0]])
    assert of_kind(driver(INTERRUPT), Send) == [
        Send("evaluator/0", CommandKind.STOP),
        Send("actor/0", CommandKind.DRAIN),
    ]


def test_a_trial_that_ends_with_a_score_is_not_scored_again() -> None:
    driver = running_trial([TRAINER, EVALUATOR, ACTORS[0]])
    out = driver(StopRequested("evaluation_return", 0, is_orderly=True))
    assert of_kind(out, Send) == [Send("evaluator/0", CommandKind.STOP), Send("actor/0", CommandKind.DRAIN)]


def test_actors_whose_policy_worker_is_dead_are_not_asked_to_wait_for_replies() -> None:
    driver = running_trial([TRAINER, POLICY, *ACTORS])
    assert of_kind(driver.exit(POLICY, -9), Send) == [
        Send("actor/0", CommandKind.STOP),
        Send("actor/1", CommandKind.STOP),
    ]


def test_many_that_do_not_stop_are_one_line() -> None:
    actors = [WorkerId("actor", "actor", index) for index in range(50)]
    driver = running_trial([TRAINER, *actors])
    driver(INTERRUPT)
    out = driver(Tick(), at=104.0)
    assert len(of_kind(out, Kill)) == 50
    (note,) = of_kind(out, Note)
    assert note.text.startswith("did not stop within 4.0 s, killed: actor/0; actor/1; ")
    assert note.text.endswith("actor/7; and 42 more")


def test_silence_is_a_hang_whose_stacks_are_written_before_the_kill() -> None:
    driver = running_trial([TRAINER, *ACTORS])
    for at in range(101, 131):
        for name in ("trainer/0", "actor/0"):
            driver(Beat(name, 0, 0.0, "poll"), at=float(at))
        # The control thread of actor/1 lives, its main loop does not.
        driver(Beat("actor/1", 0, silent_seconds=float(at - 100), doing="poll"), at=float(at))
        out = driver(Tick())
        if at <= 120:
            assert out == []
        elif at == 121:
            assert out == [DumpStacks("actor/1")]
        elif at == 122:
            assert of_kind(out, Kill) == [Kill("actor/1")]
            (report,) = of_kind(out, ReportFailure)
            text = "no heartbeat for 22 s (bound 20 s), at: poll, on host here"
            assert report == ReportFailure("actor/1", text, with_log=True)
    assert driver.machine.failures[0][0] == "actor/1"


def test_a_worker_that_turns_again_after_its_stacks_were_asked_for_lives_on() -> None:
    driver = running_trial([TRAINER])
    assert driver(Tick(), at=121.0) == [DumpStacks("trainer/0")]
    assert of_kind(driver(Beat("trainer/0", 0, 0.0, "poll"), at=121.5), Note)
    assert driver(Tick(), at=123.0) == []


def test_a_worker_that_never_dials_in_is_named_after_the_connect_bound() -> None:
    driver = Driver(TrialMachine([TRAINER], BOUNDS))
    driver.machine.begin(100.0)
    assert driver(Tick(), at=109.9) == []
    assert driver(Tick(), at=110.1) == [DumpStacks("trainer/0")]
    (report,) = of_kind(driver(Tick(), at=111.2), ReportFailure)
    assert report.text == "not connected for 11 s (bound 10 s)"


def test_debug_suspends_the_bounds_but_not_the_one_of_an_interrupt() -> None:
    driver = running_trial([TRAINER, *ACTORS], Bounds(10.0, 20.0, 8.0, are_suspended=True))
    assert driver(Tick(), at=100_000.0) == []
    driver(INTERRUPT)
    assert len(of_kind(driver(Tick(), at=100_004.1), Kill)) == 2


def test_superseded_incarnations_and_strangers_are_refused_and_counted() -> None:
    actor = WorkerId("actor", "actor", 0, incarnation=2)
    driver = Driver(TrialMachine([TRAINER, actor], BOUNDS))
    driver.machine.begin(100.0)
    assert driver(Registered("actor/0", 1, connection=7, pid=1, host="far")) == [
        Refuse(7, "actor/0: superseded incarnation")
    ]
    assert driver(Registered("nobody/0", 0, connection=8, pid=1, host="far")) == [Refuse(8, "nobody/0: unknown worker")]
    assert driver(WorkerFailed("actor/0", 1, "late")) == []
    assert driver(Exited("actor/0", 1, 1, "exit code 1")) == []
    driver.register(actor)
    driver.register(TRAINER)
    driver.exit(actor, 1)
    assert driver(Beat("actor/0", 2, 0.0, "poll")) == []
    assert driver.machine.refused == {"superseded incarnation": 3, "unknown worker": 1, "exited already": 1}
    assert [worker for worker, _ in driver.machine.failures] == ["actor/0"]


def test_a_worker_that_connects_anew_hears_again_what_may_have_been_lost() -> None:
    driver = running_trial([TRAINER, ACTORS[0]])
    driver(Disconnected(driver.connections["actor/0"]))
    driver(INTERRUPT)
    out = driver(Registered("actor/0", 0, connection=50, pid=1, host="here", state=State.RUNNING))
    assert of_kind(out, Send) == [Send("actor/0", CommandKind.DRAIN)]


def test_a_second_connection_of_one_worker_replaces_the_first() -> None:
    driver = running_trial([TRAINER])
    out = driver(Registered("trainer/0", 0, connection=50, pid=1, host="here", state=State.RUNNING))
    assert out == [Refuse(1, "trainer/0 connected anew")]
    assert driver(Disconnected(1)) == []
    assert of_kind(driver(INTERRUPT), Send) == [Send("trainer/0", CommandKind.DRAIN)]


BEHAVIOURS = st.sampled_from(["obey", "never dial", "hang", "deaf to drain", "crash", "raise", "leave", "unkillable"])


@settings(max_examples=150, deadline=None)
@given(
    behaviours=st.lists(BEHAVIOURS, min_size=4, max_size=4),
    moments=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    stop_at=st.integers(0, 60),
    is_orderly=st.booleans(),
)
def test_every_trial_ends_within_its_bounds_whatever_its_workers_do(
    behaviours: list[str], moments: list[int], stop_at: int, is_orderly: bool
) -> None:
    """Four workers, each with a fault that strikes at a random tick; a stop at a random tick."""
    workers = [TRAINER, POLICY, ACTORS[0], EVALUATOR]
    # A last evaluation that turns and turns has no bound: there, a fault is a hang.
    behaviours[3] = "hang" if behaviours[3] == "deaf to drain" else behaviours[3]
    faults = zip(workers, behaviours, moments, strict=True)
    simulated = {worker.name: Simulated(worker, behaviour, at) for worker, behaviour, at in faults}
    simulation = Simulation(TrialMachine(workers, BOUNDS), simulated)
    simulation.perform(simulation.machine.begin(0.0))
    goal = StopRequested("env_steps", 0, True) if is_orderly else INTERRUPT
    for tick in range(600):
        if tick == stop_at:
            simulation.feed(goal)
        simulation.turn()
        if simulation.machine.end is not None:
            break
    assert simulation.machine.end is not None
    # Bounds: connect, heartbeat, its dump, the four orderly steps and the unconfirmed death.
    assert simulation.now <= stop_at * 0.5 + 10 + 20 + 2 * 8 + 20 + 5
    left = [worker.id.name for worker in simulation.workers.values() if worker.is_alive and worker.how != "unkillable"]
    assert left == []
    assert simulation.machine.end.exit_code in (0, 1, 130)


@dataclass
class Simulated:
    """A worker process on paper."""

    id: WorkerId
    how: str
    strikes_at: int
    is_alive: bool = False
    state: State = State.CREATED


@dataclass
class Simulation:
    """Plays processes and the clock (half a second a turn) around a machine."""

    machine: TrialMachine
    workers: dict[str, Simulated]
    now: float = 0.0
    ticks: int = 0

    def feed(self, event: object) -> None:
        self.perform(self.machine.handle(event, self.now))

    def turn(self) -> None:
        self.ticks += 1
        self.now += 0.5
        for worker in self.workers.values():
            if worker.is_alive:
                self._live(worker)
        self.feed(Tick())

    def _live(self, worker: Simulated) -> None:
        name = worker.id.name
        has_struck = self.ticks >= worker.strikes_at
        if has_struck and worker.how == "raise":
            self.feed(WorkerFailed(name, 0, "boom"))
        if has_struck and worker.how in ("crash", "raise", "leave"):
            self.die(worker, {"crash": -11, "raise": 1, "leave": 0}[worker.how])
        elif not (has_struck and worker.how in ("hang", "unkillable")):
            self.feed(Beat(name, 0, 0.0, "poll"))

    def die(self, worker: Simulated, code: int) -> None:
        if worker.is_alive:
            worker.is_alive = False
            self.feed(Exited(worker.id.name, 0, code, f"code {code}"))

    def perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Launch):
                worker = self.workers[instruction.worker]
                worker.is_alive = True
                if worker.how != "never dial":
                    self.feed(Registered(worker.id.name, 0, len(worker.id.name), 1, "here"))
            elif isinstance(instruction, Assign):
                self.feed(EndpointsBound(instruction.worker, 0, {}))
            elif isinstance(instruction, Send):
                self._obey(self.workers[instruction.worker], instruction.command)
            elif isinstance(instruction, Kill):
                worker = self.workers[instruction.worker]
                if worker.how != "unkillable":
                    self.die(worker, -9)

    def _obey(self, worker: Simulated, command: CommandKind) -> None:
        has_struck = self.ticks >= worker.strikes_at
        if not worker.is_alive or (has_struck and worker.how in ("hang", "unkillable", "deaf to drain")):
            return
        if command is CommandKind.START:
            self.feed(StateReached(worker.id.name, 0, State.RUNNING))
        elif command in (CommandKind.DRAIN, CommandKind.STOP):
            self.feed(StateReached(worker.id.name, 0, State.DRAINING))
            self.die(worker, 0)

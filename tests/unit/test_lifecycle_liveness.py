"""Every trial ends, whatever the order in which orders and answers travel: machine and workers, on paper.

Two properties that meet in the middle. The machine with workers that obey like the real shell, but whose messages are
late, come in bunches, and get lost with a connection that breaks: every trial ends, nobody has to be killed, and the
exit code is that of its reason. And the real shell with everything that it can be told, in bunches of any size: it
ends, and goes through states that may follow each other.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shell_assignment import SHELL_ASSIGNMENT, SHELL_WORKER

from srl.distributed.client import ControllerLost, PeerGone
from srl.distributed.lifecycle import State, check_transition
from srl.distributed.stopping import Bounds
from srl.distributed.trial_events import (
    Assign,
    Beat,
    CommandKind,
    Disconnected,
    DumpStacks,
    EndpointsBound,
    Exited,
    Instruction,
    Kill,
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
from srl.distributed.worker_process import ShellOptions, WorkerShell
from srl.system.report import WorkerReport
from srl.system.worker import Assignment, WorkerId

BOUNDS = Bounds(connect_seconds=10.0, heartbeat_seconds=20.0, shutdown_seconds=8.0)
TURN_SECONDS = 0.02
"""Every delay below is a few turns: all of them together stay far below the bounds."""

GRAPHS = {
    "one actor": ["trainer/0", "actor/0"],
    "ranks": ["trainer/0", "trainer/1", "actor/0", "actor/1", "evaluator/0"],
    "everything": ["actor/0", "actor/1", "policy/0", "policy/1", "evaluator/0", "trainer/0"],
}
STOPS = {
    "goal": StopRequested("wall_seconds", 0, is_orderly=True),
    "score": StopRequested("evaluation_return", 0, is_orderly=True),
    "signal": StopRequested("interrupted", 130, is_orderly=False),
}


# The machine, with workers on paper.


@dataclass
class PaperWorker:
    """What the shell does, without a process: it looks at what it is told only between its pieces of work."""

    id: WorkerId
    state: State = State.CREATED
    waits_for: str = "assignment"
    busy_turns: int = 0
    drain_turns: int = 0
    finishes_in: int | None = None
    awaits_version_of: PaperWorker | None = None
    awaits_death_of: set[str] = field(default_factory=set)
    inbox: deque[str | CommandKind | TellGone] = field(default_factory=deque)
    said: deque[object] = field(default_factory=deque)
    has_published: bool = False
    has_ended: bool = False

    def turn(self, rng: random.Random) -> None:
        """One turn of its main loop."""
        if self.busy_turns:
            self.busy_turns -= 1
            return
        if self.waits_for == "built":
            self.waits_for, self.state = "start", State.CONFIGURED
            self.said.append(EndpointsBound(self.id.name, 0, {}))
        elif self.waits_for == "started":
            self.waits_for, self.has_published = "goal", True
            self._reach(State.RUNNING)
        for _ in range(rng.randint(0, len(self.inbox))):
            if self.waits_for in ("built", "started") or self.has_ended:
                return  # the rest waits for the next state
            self._obey(self.inbox.popleft(), rng)
        if self.waits_for == "goal" and self.finishes_in is not None:
            self.finishes_in -= 1
            if self.finishes_in <= 0:
                self.finishes_in = None
                self.said.append(WorkerFinished(self.id.name, 0, "updates"))
        if self.waits_for == "drained":
            self.drain_turns -= 1
            has_version = self.awaits_version_of is None or self.awaits_version_of.has_published
            if self.drain_turns <= 0 and has_version and not self.awaits_death_of:
                self._leave()

    def _obey(self, told: str | CommandKind | TellGone, rng: random.Random) -> None:
        if isinstance(told, TellGone):
            self.awaits_death_of.discard(told.worker)
        elif told is CommandKind.STOP or (told is CommandKind.DRAIN and self.waits_for in ("assignment", "start")):
            self._leave()
        elif told == "assignment" and self.waits_for == "assignment":
            self.waits_for, self.busy_turns = "built", rng.randint(0, 5)
        elif told is CommandKind.START and self.waits_for == "start":
            self.waits_for, self.busy_turns = "started", rng.randint(0, 5)
        elif told is CommandKind.DRAIN and self.waits_for == "goal":
            self._reach(State.DRAINING)
            self.waits_for, self.drain_turns = "drained", rng.randint(0, 5)

    def _reach(self, state: State) -> None:
        self.state = state
        self.said.append(StateReached(self.id.name, 0, state))

    def _leave(self) -> None:
        self._reach(State.STOPPED)
        self.has_ended = True


@dataclass
class Line:
    """A worker's connection: in order while it holds; what is under way to the worker when it breaks is lost."""

    number: int | None = None
    to_worker: deque[str | CommandKind | TellGone] = field(default_factory=deque)
    broken: list[int] = field(default_factory=list)


class World:
    """Workers, lines and a clock around a machine."""

    def __init__(self, names: list[str], seed: int, breaks: float) -> None:
        self.rng = random.Random(seed)
        self.breaks = breaks
        workers = [WorkerId(*_group_kind_index(name)) for name in names]
        self.machine = TrialMachine(workers, BOUNDS)
        self.now = 0.0
        self.numbers = 0
        self.ended: dict[str, int] = {}
        self.complaints: list[Instruction] = []
        self.workers = {worker.name: PaperWorker(worker) for worker in workers}
        self.lines = {worker.name: Line() for worker in workers}
        for worker in self.workers.values():
            if worker.id.kind == "trainer":
                # A credit that an actor had not looked at when it ended comes back with the news of its death alone.
                worker.awaits_death_of = {name for name in names if name.startswith("actor")}
            if worker.id.kind == "evaluator":
                worker.awaits_version_of = self.workers["trainer/0"]
        self.perform(self.machine.begin(self.now))

    def feed(self, event: Any) -> None:
        self.perform(self.machine.handle(event, self.now))

    def perform(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case Assign():
                    self._send(one.worker, "assignment")
                case Send():
                    self._send(one.worker, one.command)
                case TellGone():
                    for name in self.workers:
                        self._send(name, one)
                case Kill():
                    # Who has no assignment yet has nothing to finish; nobody else is to be killed.
                    if self.machine._records[one.worker].is_assigned:
                        self.complaints.append(one)
                    self.workers[one.worker].has_ended = True
                    self.workers[one.worker].said.clear()
                    self.ended.setdefault(one.worker, -9)
                case ReportFailure() | DumpStacks():
                    self.complaints.append(one)

    def _send(self, name: str, told: str | CommandKind | TellGone) -> None:
        line = self.lines[name]
        if line.number is not None and line.number == self.machine.connection(name):
            line.to_worker.append(told)

    def turn(self) -> None:
        self.now += TURN_SECONDS
        for name in self.rng.sample(sorted(self.workers), len(self.workers)):
            self._live(name)
        if self.rng.random() < 0.3:
            self.feed(Tick())

    def _live(self, name: str) -> None:
        worker, line, rng = self.workers[name], self.lines[name], self.rng
        if self.ended.get(name) is not None and not worker.said:
            self._bury(name)
            return
        if line.number is None:
            if rng.random() < 0.3:
                self._dial(name)
        elif rng.random() < self.breaks:
            line.broken.append(line.number)
            line.number = None
            line.to_worker.clear()
        for number in line.broken if rng.random() < 0.3 else []:
            # The controller may notice only after the worker has dialled anew.
            line.broken.remove(number)
            self.feed(Disconnected(number))
        for _ in range(rng.randint(0, len(line.to_worker))):
            worker.inbox.append(line.to_worker.popleft())
        if not worker.has_ended:
            worker.turn(rng)
        self._deliver(name)
        if worker.has_ended and not worker.said:
            # It ends only when its last words have arrived.
            self.ended.setdefault(name, 0)

    def _dial(self, name: str) -> None:
        worker, line = self.workers[name], self.lines[name]
        self.numbers += 1
        line.number = self.numbers
        self.feed(Registered(name, 0, self.numbers, 1, "here", worker.state))

    def _deliver(self, name: str) -> None:
        worker, line = self.workers[name], self.lines[name]
        if line.number is None:
            return
        for _ in range(self.rng.randint(0, len(worker.said))):
            self.feed(worker.said.popleft())
        if not worker.has_ended:
            self.feed(Beat(name, 0, 0.0, "poll"))

    def _bury(self, name: str) -> None:
        if name in self.workers and self.machine._records[name].is_alive:
            self.feed(Exited(name, 0, self.ended[name], f"exit code {self.ended[name]}"))


def _group_kind_index(name: str) -> tuple[str, str, int]:
    kind, _, index = name.partition("/")
    return kind, kind, int(index)


@settings(max_examples=300)
@given(
    names=st.sampled_from(sorted(GRAPHS)),
    seed=st.integers(0, 2**32 - 1),
    stop=st.sampled_from(["trainer", *sorted(STOPS), "goal, then signal"]),
    stop_at=st.integers(0, 150),
    breaks=st.sampled_from([0.0, 0.0, 0.01, 0.05]),
)
def test_every_trial_of_obedient_workers_ends_without_a_kill(
    names: str, seed: int, stop: str, stop_at: int, breaks: float
) -> None:
    world = World(GRAPHS[names], seed, breaks)
    if stop == "trainer":
        for worker in world.workers.values():
            worker.finishes_in = 1 + stop_at % 20 if worker.id.kind == "trainer" else None
    for turn in range(3000):
        if turn == stop_at and stop != "trainer":
            world.feed(STOPS[stop.partition(",")[0]])
        if stop.endswith("then signal") and turn == stop_at + 1 + seed % 20:
            world.feed(STOPS["signal"])
        world.turn()
        if world.machine.end is not None:
            break
    states = {name: (worker.waits_for, worker.inbox) for name, worker in world.workers.items()}
    assert world.machine.end is not None, states
    assert world.complaints == []
    assert world.machine.failures == []
    assert set(world.ended) == set(world.workers)
    reason, code = world.machine.end.reason, world.machine.end.exit_code
    if stop == "trainer":
        assert (reason, code) == ("updates", 0)
    else:
        # A signal that comes when all is over anyway has nothing to change.
        expected = [STOPS[stop.partition(",")[0]]] + ([STOPS["signal"]] if stop.endswith("signal") else [])
        assert (reason, code) in [(one.reason, one.exit_code) for one in expected]


# The real shell, without a controller.

GONE = PeerGone(WorkerId("actor", "actor", 0))
LOST = ControllerLost("no connection to the controller")
QUIET = 200
"""Looks without anything new, after which a worker that was told to end and has not counts as hung."""


class Hung(BaseException):
    """Everything was told, and the shell goes on."""


class Script:
    """In place of the control client: tells what a test has written down, in its bunches."""

    def __init__(self, bunches: list[list[Any]]) -> None:
        self.wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self.states: list[State] = []
        self.failures: list[str] = []
        self._bunches = deque(bunches)
        self._quiet = 0

    def take(self) -> list[Any]:
        if self._bunches:
            return self._bunches.popleft()
        self._quiet += 1
        if self._quiet > QUIET:
            raise Hung
        return []

    def reached(self, state: State) -> None:
        self.states.append(state)

    def bound(self, endpoints: Mapping[str, str]) -> None:
        self.states.append(State.CONFIGURED)

    def failed(self, error: str, traceback: str) -> None:
        self.failures.append(error)

    def flush(self, timeout_seconds: float) -> bool:
        return True

    def connect(self) -> None: ...

    def turned(self, doing: str) -> None: ...

    def report(self, report: WorkerReport) -> None: ...

    def finished(self, reason: str) -> None: ...

    def close(self) -> None:
        os.close(self.wake_descriptor)


class Idle:
    """A worker with nothing to do, and the transport that it does not need."""

    def __init__(self, drain_polls: int) -> None:
        self.calls: list[str] = []
        self._drain_polls = drain_polls

    def poll(self) -> bool:
        self._drain_polls -= "drain" in self.calls
        return False

    def drained(self) -> bool:
        return "drain" in self.calls and self._drain_polls <= 0

    def __getattr__(self, name: str) -> Any:
        answers = {"wait_descriptors": (), "report": WorkerReport("trainer/0", "trainer", 0), "bound_endpoints": {}}
        return lambda *_: answers.get(name, self.calls.append(name))


TOLD = st.sampled_from(
    [SHELL_ASSIGNMENT, GONE, LOST, CommandKind.START, CommandKind.PAUSE, CommandKind.DRAIN, CommandKind.STOP]
)


@st.composite
def bunches(draw: st.DrawFn) -> list[list[Any]]:
    """A life's orders with others strewn in, cut into bunches anywhere; somewhere among them one to end."""
    orders: list[Any] = [
        SHELL_ASSIGNMENT,
        CommandKind.START,
        draw(st.sampled_from([CommandKind.DRAIN, CommandKind.STOP])),
    ]
    for told in draw(st.lists(TOLD, max_size=4)):
        orders.insert(draw(st.integers(0, len(orders))), told)
    parts: list[list[Any]] = [[]]
    for order in orders:
        parts += [[]] * draw(st.sampled_from([0, 0, 1, 3]))
        parts = [*parts[:-1], [*parts[-1], order]]
    return parts


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ShellOptions:
    return ShellOptions(SHELL_WORKER, "trial", "unix:/nowhere", "", str(tmp_path_factory.mktemp("run")), 1.0, 1.0, 1.0)


@settings(max_examples=300)
@given(parts=bunches(), drain_polls=st.integers(0, 3))
def test_the_shell_ends_whatever_it_is_told_together(
    options: ShellOptions, parts: list[list[Any]], drain_polls: int
) -> None:
    worker, script = Idle(drain_polls), Script(parts)

    def build(assignment: Assignment, descriptors: Mapping[str, int], run_dir: Path) -> tuple[Any, Any]:
        return Idle(0), worker

    shell = WorkerShell(options, {}, build)
    shell._client.close()
    shell._client = script  # type: ignore[assignment]
    shell._wait = lambda descriptors: None  # type: ignore[method-assign]
    code = shell.run()
    assert script.failures == []
    assert code == (1 if LOST in _obeyed(parts) else 0)
    assert script.states[-1] is State.STOPPED
    for present, following in zip([State.CREATED, *script.states], script.states, strict=False):
        check_transition("the shell", present, following)
    # Whoever began ends gracefully or at once, never both, and never not at all.
    assert worker.calls.count("close") + worker.calls.count("abort") == ("start" in worker.calls or _is_built(script))


def _is_built(script: Script) -> bool:
    return State.CONFIGURED in script.states


def _obeyed(parts: list[list[Any]]) -> list[Any]:
    """What a shell hears until it knows that it is to end."""
    heard = []
    for told in (one for part in parts for one in part):
        heard.append(told)
        if told in (CommandKind.DRAIN, CommandKind.STOP, LOST):
            break
    return heard


def test_a_failure_beside_obedient_workers_ends_the_trial_with_code_1_and_is_named_once() -> None:
    world = World(GRAPHS["everything"], seed=1, breaks=0.0)
    while world.machine.state is not State.RUNNING:
        world.turn()
    world.feed(WorkerFailed("actor/1", 0, "boom"))
    world.workers["actor/1"].has_ended = True
    world.ended["actor/1"] = 1
    for _ in range(1000):
        world.turn()
    assert world.machine.end is not None
    assert world.machine.end.exit_code == 1
    assert world.machine.failures == [("actor/1", "boom")]


def test_the_news_of_a_death_are_told_once_for_every_worker() -> None:
    world = World(GRAPHS["ranks"], seed=7, breaks=0.0)
    told: list[TellGone] = []
    perform = world.perform

    def listening(instructions: list[Instruction]) -> None:
        told.extend(one for one in instructions if isinstance(one, TellGone))
        perform(instructions)

    world.perform = listening  # type: ignore[method-assign]
    while world.machine.state is not State.RUNNING:
        world.turn()
    world.feed(STOPS["goal"])
    while world.machine.end is None:
        world.turn()
    assert sorted(one.worker for one in told) == sorted(world.workers)

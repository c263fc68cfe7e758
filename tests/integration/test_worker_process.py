"""The shell of a worker, in a thread of this process: a real control server, and a worker that is only a fake."""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from shell_assignment import SHELL_ASSIGNMENT, SHELL_WORKER

from srl.distributed import control_pb2 as pb
from srl.distributed import worker_process
from srl.distributed.lifecycle import State
from srl.distributed.messages import assignment_json, command, gone
from srl.distributed.server import ControlServer, Inbound
from srl.distributed.trial_events import (
    CommandKind,
    EndpointsBound,
    Registered,
    StateReached,
    WorkerFailed,
    WorkerFinished,
)
from srl.distributed.worker_process import ShellOptions, WorkerShell
from srl.system.report import WorkerReport
from srl.system.worker import Assignment, Worker, WorkerId

SECONDS = 60.0


class FakeWorker(Worker):
    """Writes down what is done with it; raises where a test wants it to."""

    def __init__(self, raises_in: str = "", finishes_after: int | None = None, drain_polls: int = 3) -> None:
        self.calls: list[str] = []
        self.polls = 0
        self.gone: list[WorkerId] = []
        self._raises_in = raises_in
        self._finishes_after = finishes_after
        self._drain_polls = drain_polls
        self._draining = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._at_close = threading.Event()

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self._raises_in:
            raise ValueError("boom-42")

    def start(self) -> None:
        self._called("start")

    def poll(self) -> bool:
        self.polls += 1
        if self._draining:
            self._drain_polls -= 1
        elif self.polls == 2:
            self._called("poll")
        return self._draining

    def wait_descriptors(self) -> list[int]:
        return [self._wake]

    def drain(self) -> None:
        self._called("drain")
        self._draining = True

    def drained(self) -> bool:
        return self._draining and self._drain_polls <= 0

    def peer_gone(self, peer: WorkerId) -> None:
        self.gone.append(peer)

    def report(self) -> WorkerReport:
        return WorkerReport("trainer/0", "trainer", 0, counters={"env_steps": self.polls})

    def finished(self) -> str | None:
        return "updates" if self._finishes_after is not None and self.polls >= self._finishes_after else None

    def close(self) -> None:
        self._called("close")
        os.close(self._wake)

    def abort(self) -> None:
        self._called("abort")
        os.close(self._wake)


class FakeTransport:
    def __init__(self) -> None:
        self.closed = False

    def bound_endpoints(self) -> Mapping[str, str]:
        return {"sample:samples:0": "ipc:///x"}

    def close(self) -> None:
        self.closed = True


class Stage:
    """A server, a shell in a thread, and everything that was heard."""

    def __init__(self, worker: FakeWorker, **options: float) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="srl-t"))
        self.worker = worker
        self.transport = FakeTransport()
        self.server = ControlServer("trial", f"unix:{self._directory}/c")
        self.heard: list[Inbound] = []
        self.code: int | None = None
        fields = {"connect_seconds": SECONDS, "heartbeat_seconds": SECONDS, "grace_seconds": 0.3, **options}
        self.shell = WorkerShell(
            ShellOptions(SHELL_WORKER, "trial", self.server.start(SECONDS), "", str(self._directory), **fields),
            {},
            self._build,
        )
        self._thread = threading.Thread(target=self._run, name="shell")
        self._thread.start()
        self.connection = self.hear(Registered).connection

    def _build(self, assignment: Assignment, descriptors: Mapping[str, int], run_dir: Path) -> tuple[Any, Any]:
        assert run_dir == self._directory
        self.worker._called("build")
        return self.transport, self.worker

    def _run(self) -> None:
        self.code = self.shell.run()

    def hear(self, kind: type, where: Callable[[Any], bool] = lambda event: True) -> Any:
        deadline = time.monotonic() + SECONDS
        while True:
            for inbound in self.heard:
                if isinstance(inbound.event, kind) and where(inbound.event):
                    return inbound.event
            left = deadline - time.monotonic()
            assert left > 0, self.heard
            select.select([self.server.event_descriptor], [], [], left)
            self.heard += self.server.take()

    def assign(self) -> None:
        message = pb.ToWorker(assignment=pb.Assignment(assignment_json=assignment_json(SHELL_ASSIGNMENT)))
        self.server.send(self.connection, message)

    def command(self, kind: CommandKind) -> None:
        self.server.send(self.connection, command("trainer/0", kind))

    def start(self) -> None:
        self.assign()
        assert self.hear(EndpointsBound).endpoints == {"sample:samples:0": "ipc:///x"}
        self.command(CommandKind.START)
        self.hear(StateReached, lambda event: event.state is State.RUNNING)

    def ended(self) -> int:
        self._thread.join(SECONDS)
        assert self.code is not None
        self.heard += self.server.take()
        return self.code

    def states(self) -> list[State]:
        return [inbound.event.state for inbound in self.heard if isinstance(inbound.event, StateReached)]

    def close(self) -> None:
        self.server.close(5.0)
        self._thread.join(SECONDS)
        shutil.rmtree(self._directory)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(worker: FakeWorker | None = None, **options: float) -> Stage:
        stages.append(Stage(worker or FakeWorker(), **options))
        return stages[-1]

    yield make
    for one in stages:
        one.close()


def test_a_whole_life(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.start()
    play.command(CommandKind.DRAIN)
    assert play.ended() == 0
    assert play.states() == [State.RUNNING, State.DRAINING, State.STOPPED]
    assert [call for call in play.worker.calls if call != "poll"] == ["build", "start", "drain", "close"]
    assert play.transport.closed
    # The last report is from after the last poll.
    reports = [inbound.report for inbound in play.heard if inbound.report is not None]
    assert reports[-1].counters == {"env_steps": play.worker.polls}


def test_a_finished_worker_says_so_once_and_is_polled_no_more_until_it_drains(stage: Callable[..., Stage]) -> None:
    play = stage(FakeWorker(finishes_after=5))
    play.start()
    assert play.hear(WorkerFinished).reason == "updates"
    # Its report is there before the trial is stopped because of it.
    kinds = [type(inbound.event) if inbound.report is None else WorkerReport for inbound in play.heard]
    assert WorkerReport in kinds[: kinds.index(WorkerFinished)]
    play.command(CommandKind.DRAIN)
    assert play.ended() == 0
    assert play.worker.polls == 5 + 3
    assert sum(isinstance(inbound.event, WorkerFinished) for inbound in play.heard) == 1


def test_the_order_to_drain_may_come_together_with_the_start(stage: Callable[..., Stage]) -> None:
    """A short trial is over before a slow worker has looked at its start: neither order may be lost."""
    building, release = threading.Event(), threading.Event()

    class SlowToBuild(FakeWorker):
        def _called(self, name: str) -> None:
            super()._called(name)
            if name == "build":
                building.set()
                assert release.wait(SECONDS)

    play = stage(SlowToBuild())
    play.assign()
    assert building.wait(SECONDS)
    for kind in (CommandKind.START, CommandKind.DRAIN):
        play.command(kind)
    wait_until(lambda: play.shell._client._told.qsize() == 2)  # both are there when it looks
    release.set()
    assert play.ended() == 0
    assert play.states() == [State.RUNNING, State.DRAINING, State.STOPPED]
    assert [call for call in play.worker.calls if call != "poll"] == ["build", "start", "drain", "close"]


def test_a_worker_that_is_stopped_reports_a_last_time(stage: Callable[..., Stage]) -> None:
    """Else what it had produced since its last report would be missing in the accounts."""
    play = stage()
    play.start()
    play.command(CommandKind.STOP)
    assert play.ended() == 0
    reports = [inbound.report for inbound in play.heard if inbound.report is not None]
    assert reports[-1].counters == {"env_steps": play.worker.polls}
    assert play.worker.calls[-1] == "abort"


def test_pause_and_start_again(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.start()
    play.command(CommandKind.PAUSE)
    play.hear(StateReached, lambda event: event.state is State.PAUSED)
    polls = play.worker.polls
    play.command(CommandKind.START)
    wait_until(lambda: play.worker.polls > polls)
    play.command(CommandKind.STOP)
    assert play.ended() == 0
    assert play.states() == [State.RUNNING, State.PAUSED, State.RUNNING, State.STOPPED]
    assert play.worker.calls[-1] == "abort"


@pytest.mark.parametrize("kind", [CommandKind.STOP, CommandKind.DRAIN])
def test_stopped_before_it_was_configured(stage: Callable[..., Stage], kind: CommandKind) -> None:
    play = stage()
    play.command(kind)
    assert play.ended() == 0
    assert play.states() == [State.STOPPED]
    assert play.worker.calls == []


def test_stopped_before_it_was_started(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.assign()
    play.hear(EndpointsBound)
    play.command(CommandKind.STOP)
    assert play.ended() == 0
    assert play.worker.calls == ["build", "abort"]
    assert play.transport.closed


@pytest.mark.parametrize(
    ("where", "doing"), [("build", "build"), ("start", "start, env step 0"), ("poll", "poll, env step 2")]
)
def test_an_exception_is_told_with_its_traceback(stage: Callable[..., Stage], where: str, doing: str) -> None:
    play = stage(FakeWorker(raises_in=where))
    play.assign()
    if where != "build":
        play.hear(EndpointsBound)
        play.command(CommandKind.START)
    text = play.hear(WorkerFailed).text
    assert text.startswith("ValueError: boom-42 (on host ")
    assert f"at: {doing})" in text
    assert "in _called" in text
    assert play.ended() == 1
    assert play.worker.calls[-1] == ("build" if where == "build" else "abort")


def test_an_exception_while_draining_is_a_failure_too(stage: Callable[..., Stage]) -> None:
    play = stage(FakeWorker(raises_in="drain"))
    play.start()
    play.command(CommandKind.DRAIN)
    assert "at: drain" in play.hear(WorkerFailed).text
    assert play.ended() == 1


def test_a_dead_peer_is_made_known_to_the_worker(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.start()
    dead = WorkerId("actors", "actor", 3, 1)
    play.server.send(play.connection, gone("trainer/0", dead))
    play.command(CommandKind.DRAIN)
    assert play.ended() == 0
    assert play.worker.gone == [dead]


def test_without_its_controller_it_drains_and_ends_with_a_code_of_its_own(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.start()
    play.server.close(5.0)
    play._thread.join(SECONDS)
    assert play.code == 1
    assert play.worker.calls[-2:] == ["drain", "close"]


def test_sigterm_drains_it_but_the_exit_code_tells(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.start()
    play.shell.terminate()
    assert play.ended() == 143
    assert play.worker.calls[-2:] == ["drain", "close"]


def test_after_sigterm_the_controller_has_the_first_word(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "TERMINATE_SECONDS", SECONDS)
    play = stage()
    play.start()
    play.shell.terminate()
    play.command(CommandKind.DRAIN)
    assert play.ended() == 0


def test_sigterm_before_the_assignment(stage: Callable[..., Stage]) -> None:
    play = stage()
    play.shell.terminate()
    assert play.ended() == 143

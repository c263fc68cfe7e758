"""The fused run with workers of the test's own: signals at the end, failures of every kind, everything closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from srl.api.errors import StreamError, WorkerFailure
from srl.distributed import fused
from srl.distributed.fused import FusedRun
from srl.distributed.trial_events import StopRequested
from srl.system.report import WorkerReport
from srl.system.worker import Assignment, Worker, WorkerId

INTERRUPT = StopRequested("interrupted", 130, is_orderly=False)
GOAL = StopRequested("updates", 0, is_orderly=True)


class Puppet(Worker):
    """Does nothing, or what the test puts in its place.

    Args:
        kind: Its kind.
        ends: Whether it comes to rest once it is asked to.
    """

    def __init__(self, kind: str, *, ends: bool = True) -> None:
        self.kind = kind
        self.ends = ends
        self.calls: list[str] = []
        self.raises: dict[str, BaseException] = {}
        self.goal: str | None = None

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.raises:
            raise self.raises[name]

    def start(self) -> None:
        self._called("start")

    def poll(self) -> bool:
        self._called("poll")
        return True

    def wait_descriptors(self) -> Iterable[int]:
        return ()

    def drain(self) -> None:
        self._called("drain")

    def drained(self) -> bool:
        return self.ends and "drain" in self.calls

    def report(self) -> WorkerReport:
        self._called("report")
        return WorkerReport(self.kind, self.kind, 0)

    def finished(self) -> str | None:
        return self.goal

    def close(self) -> None:
        self._called("close")

    def abort(self) -> None:
        self._called("abort")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FusedRun, dict[str, Puppet]]]:
    monkeypatch.setattr(fused, "TICK_SECONDS", 0.0)

    def make(stop: Callable[[], StopRequested | None] = lambda: None) -> tuple[FusedRun, dict[str, Puppet]]:
        puppets = {kind: Puppet(kind) for kind in ("trainer", "actor", "evaluator")}
        monkeypatch.setattr(fused, "build_worker", lambda assignment, *_, **__: puppets[assignment.worker.kind])
        assignments = [Assignment(WorkerId(kind, kind, 0), {}, {}, {}, {}, {}, "", "in_process") for kind in puppets]
        run = FusedRun(assignments, on_report=lambda report: None, stop=stop, on_started=lambda: None)
        return run, puppets

    return make


def test_a_signal_while_the_last_version_is_scored_ends_the_scoring_and_saves(stage: Callable[..., object]) -> None:
    """One is enough, as with workers in processes: after the second nothing is saved."""
    run, puppets = stage(lambda: INTERRUPT if "drain" in puppets["evaluator"].calls else None)
    puppets["trainer"].goal = "updates"
    puppets["evaluator"].ends = False
    assert run.run() == INTERRUPT
    assert "drain" in puppets["trainer"].calls
    assert all(puppet.calls[-1] == "close" for puppet in puppets.values())


def test_a_signal_while_actors_come_to_rest_leaves_no_time_for_scoring(stage: Callable[..., object]) -> None:
    def stop() -> StopRequested | None:
        if "drain" not in puppets["actor"].calls:
            return None
        puppets["actor"].ends = True
        return INTERRUPT

    run, puppets = stage(stop)
    puppets["trainer"].goal = "updates"
    puppets["actor"].ends = False
    assert run.run() == INTERRUPT
    assert "drain" not in puppets["evaluator"].calls
    assert "drain" in puppets["trainer"].calls


def test_a_stop_condition_reached_meanwhile_changes_nothing(stage: Callable[..., object]) -> None:
    run, puppets = stage(lambda: StopRequested("wall_seconds", 0, is_orderly=True) if over else None)
    over = False
    puppets["trainer"].goal = "updates"
    assert run.run() == GOAL
    assert "drain" in puppets["evaluator"].calls


def test_an_exit_asked_for_by_a_plugin_is_the_failure_of_its_worker(stage: Callable[..., object]) -> None:
    for moment in ("start", "poll", "close"):
        run, puppets = stage()
        puppets["trainer"].goal = "updates" if moment == "close" else None
        puppets["actor"].raises[moment] = SystemExit(5)
        with pytest.raises(WorkerFailure, match="SystemExit: 5") as caught:
            run.run()
        assert caught.value.where == "actor/0"
        assert all("close" in puppet.calls for puppet in puppets.values())
        assert "drain" in puppets["trainer"].calls


def test_a_second_signal_is_told_as_such_even_if_the_accounts_do_not_add_up(stage: Callable[..., object]) -> None:
    run, puppets = stage()
    puppets["actor"].raises["poll"] = KeyboardInterrupt()
    puppets["trainer"].raises["report"] = StreamError("something is unaccounted for")
    puppets["trainer"].raises["close"] = StreamError("nor does it close")
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert all("close" in puppet.calls for puppet in puppets.values())


def test_accounts_that_do_not_add_up_at_a_quiet_end_are_an_error(stage: Callable[..., object]) -> None:
    run, puppets = stage()
    puppets["trainer"].goal = "updates"
    puppets["evaluator"].raises["report"] = StreamError("something is unaccounted for")
    with pytest.raises(StreamError, match="unaccounted"):
        run.run()
    assert all("close" in puppet.calls for puppet in puppets.values())

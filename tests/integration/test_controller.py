"""Whole trials through ``run_trial``, called from Python: what is left in the caller's process, and what is written."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from srl.api.errors import SRLError, UsageError
from srl.api.experiment import Experiment
from srl.distributed.controller import run_trial
from srl.distributed.signals import handled_signals
from srl.distributed.trial_events import AbortRequested, StopRequested
from srl.distributed.trial_run import TrialResult, TrialRun

pytestmark = pytest.mark.usefixtures("no_leaks")


def experiment(**changes: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "small",
            "environment": {"type": "gymnasium", "id": "CartPole-v1"},
            "policies": {"main": {"algorithm": {"type": "ppo", "rows": 16, "minibatch_rows": 64, "epochs": 1}}},
            "streams": {"samples": {"kind": "sample"}, "act": {"kind": "inference", "policy": "main"}},
            "workers": {
                "actors": {
                    "kind": "actor",
                    "count": 2,
                    "environments": 4,
                    "agents": [{"policy": "main", "samples": "samples", "inference": "act"}],
                },
                "policy": {"kind": "policy", "serves": "act"},
                "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
                "evaluator": {"kind": "evaluator", "policy": "main", "episodes": 5, "environments": 5},
            },
            "stop": {"updates": 5},
            "placement": "processes",
            **changes,
        }
    )


def check_whole(result: TrialResult) -> None:
    """What every trial that reached its goal of five updates must have left."""
    summary = result.summary
    assert result.exit_code == 0
    assert summary == json.loads((result.trial_dir / "summary.json").read_text())
    assert (summary["exit_reason"], summary["exit_code"]) == ("updates", 0)
    assert summary["policy_version"] == summary["updates"] == 5
    assert summary["failures"] == []
    # Versions that are evaluated are the last ones, and the last checkpoint is the last version.
    assert (summary["evaluation"]["episodes"], summary["evaluation"]["policy_version"]) == (5, 5)
    checkpoints = sorted(path.name for path in (result.trial_dir / "checkpoints").iterdir())
    assert checkpoints[-1] == "version-000000005"
    assert len(summary["weights_sha256"]) == 64
    blocks = summary["blocks"]
    assert blocks["produced"] == blocks["trained"] + blocks["in_flight"] + sum(blocks["dropped"].values())
    assert 0 < summary["start_up_seconds"] < summary["wall_seconds"]


@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
def test_a_trial_in_processes(tmp_path: Path, transport: str) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    result = run_trial(experiment(transport=transport), trial_dir=tmp_path / "trial", screen="off")
    check_whole(result)
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert result.summary["control_messages_refused"] == {}
    assert (result.summary["placement"], result.summary["transport"]) == ("processes", transport)
    log = (result.trial_dir / "main.log").read_text()
    lines = [line.split(" ", 3)[3] for line in log.splitlines()]
    memory = lines.pop(1)  # how much there is depends on the machine
    assert re.fullmatch(r"memory for blocks: [\d.]+ MiB of [\d,]+ MiB \(.+\)", memory)
    assert lines == [
        f"5 workers, placement processes, transport {transport}",
        "trial is configured",
        "trial is running",
        "stopping: updates",
        "over: updates, exit code 0",
    ]
    logs = {path.name for path in (result.trial_dir / "logs").iterdir()}
    assert {"actors-0.log", "actors-1.log", "policy-0.log", "trainer-0.log", "evaluator-0.log"} <= logs


def test_a_trial_in_one_thread(tmp_path: Path) -> None:
    result = run_trial(experiment(placement="fused"), trial_dir=tmp_path / "trial", screen="off")
    check_whole(result)
    assert (result.summary["placement"], result.summary["transport"]) == ("fused", "in_process")


def test_the_screen_of_a_fused_trial_shows_running_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[set[str]] = []
    tick = TrialRun.tick

    def noting(run: TrialRun) -> bool:
        states.append({row.state for row in run.monitor.snapshot().workers})
        return tick(run)

    monkeypatch.setattr(TrialRun, "tick", noting)
    run_trial(experiment(placement="fused", stop={"updates": 1}), trial_dir=tmp_path / "trial", screen="off")
    assert {"running"} in states


@pytest.mark.parametrize("placement", ["processes", "fused"])
def test_a_fault_of_the_controller_itself_costs_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    def faulty(run: TrialRun) -> bool:
        if run.monitor.updates > 1:
            raise RuntimeError("boom-42")
        return True

    monkeypatch.setattr(TrialRun, "tick", faulty)
    endless = experiment(placement=placement, stop={"env_steps": 1_000_000_000})
    result = run_trial(endless, trial_dir=tmp_path / "trial", screen="off")
    assert (result.exit_code, result.summary["exit_reason"]) == (1, "failed")
    assert result.summary["failures"] == [{"worker": "controller", "text": "RuntimeError: boom-42"}]
    assert "in faulty" in (tmp_path / "trial" / "main.log").read_text()
    assert result.summary["weights_sha256"]


def test_a_fault_of_the_screen_costs_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(screen: Any, snapshot: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("srl.screen.PlainScreen.update", faulty)
    monkeypatch.setattr("srl.screen.PlainScreen.due", lambda screen: True)
    check_whole(run_trial(experiment(placement="fused"), trial_dir=tmp_path / "trial", screen="plain"))
    assert "nothing is shown any more: ZeroDivisionError" in (tmp_path / "trial" / "main.log").read_text()


def test_a_trial_elsewhere_than_in_the_main_thread(tmp_path: Path) -> None:
    """No signals there, everything else as ever: notebooks and sweeps do this."""
    results: list[TrialResult] = []
    changed = experiment(stop={"updates": 1})
    thread = threading.Thread(
        target=lambda: results.append(run_trial(changed, trial_dir=tmp_path / "trial", screen="off"))
    )
    thread.start()
    thread.join(150.0)
    assert [result.exit_code for result in results] == [0]


def test_what_is_wrong_beforehand_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        run_trial(experiment(), trial_dir=tmp_path / "trial", screen="off")
    with pytest.raises(SRLError):
        run_trial(experiment(environment={"type": "gymnasium", "id": "CartPol-v1"}), trial_dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_logging_is_as_it_was(tmp_path: Path) -> None:
    before = list(logging.getLogger("srl").handlers), logging.getLogger("srl").level
    run_trial(experiment(placement="fused", stop={"updates": 1}), trial_dir=tmp_path / "trial", screen="off")
    assert (list(logging.getLogger("srl").handlers), logging.getLogger("srl").level) == before


@contextlib.contextmanager
def raised() -> Iterator[Any]:
    with handled_signals() as signals:
        signals.raises_at = None
        yield signals


def test_the_first_signal_stops_the_second_aborts_and_the_first_gives_the_code(capfd: Any) -> None:
    with raised() as signals:
        assert signals.request() is None
        signal.raise_signal(signal.SIGTERM)
        assert signals.request() == StopRequested("terminated", 143, is_orderly=False)
        signal.raise_signal(signal.SIGINT)
        assert signals.request() == AbortRequested("terminated", 143)
    assert "again = at once" in capfd.readouterr().err
    with handled_signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)

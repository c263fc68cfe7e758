"""Field cases 23 and 60: what the other tests of failures and signals leave open."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"
FAULTS = {
    "raise": "boom-42",
    "exit": "exit code 3",
    "segv": "signal SEGV",
    "kill": "signal KILL, possibly out of memory",
}


@pytest.fixture(scope="module")
def broken(shared_trial_run: Any) -> dict[str, Any]:
    """One trial per fault at step 37 of environment 0 of one of two actors; side by side."""
    environment = "environment={type: gymnasium, entry: 'srl.environments.toy:Faulty'}"
    common = ["workers.actors.count=2", "stop.updates=1000", "--screen", "off", "--placement", "processes"]
    trials = {
        fault: shared_trial_run.start(FIELD, environment, f"environment.kwargs={{kind: {fault}}}", *common)
        for fault in FAULTS
    }
    return {fault: trial.finish(90).check(1) for fault, trial in trials.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_case_23_worker_host_and_cause_are_in_the_main_log(broken: Any, fault: str) -> None:
    log = (broken[fault].trial_dir / "main.log").read_text()
    (line, *_) = (line for line in log.splitlines() if " ERROR actors/" in line)
    assert FAULTS[fault] in line
    assert "at: poll" in line
    assert f"host {socket.gethostname()}" in line
    assert "EOFError" not in log
    assert "BrokenPipe" not in log


def test_case_23_an_exception_has_its_step_and_traceback(broken: Any) -> None:
    log = (broken["raise"].trial_dir / "main.log").read_text()
    assert "environment 0, step 37: the environment raised ValueError in step: boom-42" in log
    assert 'raise ValueError("boom-42")\nValueError: boom-42' in log


def test_case_60_a_batch_system_terminates_every_process_at_once(trial_run: Any) -> None:
    trial = trial_run.start(
        FIELD,
        "streams.ask={kind: inference, policy: main}",
        "workers.servers={kind: policy, serves: ask, count: 2}",
        "workers.actors.agents=[{policy: main, samples: samples, inference: ask}]",
        "workers.actors.count=3",
        "workers.evaluator={kind: evaluator, policy: main}",
        "stop={env_steps: 100000000}",
        *("--screen", "off", "--placement", "processes"),
    )
    metrics = trial.trial_dir / "metrics.jsonl"
    trial.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, "training")
    for pid in trial.processes():
        os.kill(pid, signal.SIGTERM)
    ended = trial.finish(10).check(143)
    summary = ended.summary
    assert summary["exit_reason"] == "terminated"
    assert summary["failures"] == []
    (newest,) = sorted(path.name for path in (ended.trial_dir / "checkpoints").iterdir())[-1:]
    assert int(newest.rpartition("-")[2]) == summary["policy_version"] > 0

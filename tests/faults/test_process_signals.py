"""Ctrl-C and SIGTERM at any moment, once and twice; the controller killed (field cases 8 and 60)."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from srl.api.experiment import Limits
from srl.distributed.run_directory import run_directory

ENVIRONMENTS = Path(__file__).with_name("faulty_environments.py")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    graph = {
        "name": "endless",
        "environment": {"type": "gymnasium", "entry": f"{ENVIRONMENTS}:Faulty"},
        "policies": {"main": {"algorithm": {"type": "ppo", "rows": 32, "minibatch_rows": 64, "epochs": 2}}},
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
            "evaluator": {"kind": "evaluator", "policy": "main", "episodes": 4, "environments": 2},
        },
        "stop": {"env_steps": 100_000_000},
        "limits": {"shutdown_seconds": 30.0},  # whoever hangs is killed then, and the log says so; nobody may be
        "placement": "processes",
    }
    path = tmp_path / "endless.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def is_running(trial: Any) -> bool:
    return "trial is running" in text_of(trial.trial_dir / "main.log")


def has_trained(trial: Any) -> bool:
    lines = text_of(trial.trial_dir / "metrics.jsonl").split("\n")
    return any(json.loads(line).get("policy_version", 0) > 0 for line in lines[:-1])


MOMENTS = {
    "zygotes are there": lambda trial: any("zygote" in command for command in trial.processes().values()),
    "workers dial": lambda trial: any("pid" in text_of(log) for log in trial.trial_dir.glob("logs/*-0.log")),
    "first batch": is_running,
    "training": has_trained,
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("zygotes are there", signal.SIGTERM),
        ("workers dial", signal.SIGINT),
        ("first batch", signal.SIGTERM),
        ("training", signal.SIGTERM),
    ],
)
def test_one_signal_stops_everything_in_order(
    trial_run: Any, experiment: Path, moment: str, number: signal.Signals
) -> None:
    trial = trial_run.start(experiment, "--screen", "off")
    trial.wait_for(lambda: MOMENTS[moment](trial), moment)
    trial.send_signal(number)
    ended = trial.finish().check(returncode=CODES[number])
    summary = ended.summary
    assert summary["exit_reason"] == REASONS[number]
    assert summary["failures"] == []
    if moment == "training":
        # The trainer's last checkpoint holds the last version.
        assert summary["weights_sha256"]
        newest = max(path.name for path in (ended.trial_dir / "checkpoints").iterdir())
        assert int(newest.rpartition("-")[2]) == summary["policy_version"] > 0
        assert "killed" not in (ended.trial_dir / "main.log").read_text()


def test_ctrl_c_before_anything_is_started(trial_run: Any, experiment: Path) -> None:
    trial = trial_run.start(experiment, "--screen", "off")
    trial.wait_for(lambda: any("probing" in command for command in trial.processes().values()), "the probe")
    trial.interrupt_group()
    ended = trial.finish().check(returncode=130)
    assert "Traceback" not in ended.stderr


def test_ctrl_c_at_a_terminal_reaches_only_the_controller_and_all_is_over_in_10_s(
    trial_run: Any, experiment: Path
) -> None:
    """The one place where the promise of 10 s is measured, with the limits that a user has."""
    trial = trial_run.start(experiment, f"limits.shutdown_seconds={Limits().shutdown_seconds}", "--screen", "off")
    trial.wait_for(lambda: has_trained(trial), "training")
    trial.interrupt_group()
    ended = trial.finish(10).check(returncode=130)
    assert "killed" not in (ended.trial_dir / "main.log").read_text()
    assert ended.stderr.splitlines() == [
        "srl-run: stopping, the last checkpoint is being written (again = at once, without it)"
    ]


@pytest.mark.parametrize("placement", ["processes", "fused"])
def test_a_second_signal_ends_it_at_once(trial_run: Any, experiment: Path, placement: str) -> None:
    """Every step of the environments takes so long that draining would, too, and so does the bound of a stop."""
    overrides = ["environment.kwargs={seconds: 100.0}", "limits.shutdown_seconds=150", f"placement={placement}"]
    if placement == "fused":
        overrides.append("workers.evaluator=null")
    trial = trial_run.start(experiment, *overrides, "--screen", "off")
    trial.wait_for(lambda: is_running(trial) or "placement fused" in text_of(trial.trial_dir / "main.log"), "a run")
    trial.send_signal(signal.SIGINT)
    trial.wait_for_output("again = at once")
    trial.send_signal(signal.SIGINT)
    ended = trial.finish(50).check(returncode=130)
    assert ended.summary["exit_reason"] == "interrupted"


def test_a_worker_that_does_not_stop_is_killed_and_named(trial_run: Any, experiment: Path, tmp_path: Path) -> None:
    marker = tmp_path / "hung"
    overrides = [f"environment.kwargs={{fault: hang, at: 50, marker: {marker}}}", "workers.evaluator=null"]
    trial = trial_run.start(experiment, *overrides, "limits.shutdown_seconds=6.0", "--screen", "off")
    trial.wait_for(marker.exists, "a hang")
    trial.send_signal(signal.SIGTERM)
    ended = trial.finish().check(returncode=143)
    assert "did not stop within" in ended.stderr
    assert "killed: actors/" in ended.stderr
    assert ", at: poll" in ended.stderr
    assert ended.summary["weights_sha256"]


def test_unread_blocks_do_not_hold_up_the_end(trial_run: Any, experiment: Path) -> None:
    """The trainer consumes nothing any more and 16 actors have blocks for it (field case 8)."""
    overrides = ["workers.actors.count=16", "environment.kwargs={size: 4096}", "workers.evaluator=null"]
    overrides.append("limits.shutdown_seconds=10.0")
    trial = trial_run.start(experiment, *overrides, "--screen", "off")
    trial.wait_for(lambda: has_trained(trial), "training")
    pid = int(text_of(trial.trial_dir / "logs" / "trainer-0.log").partition("pid ")[2].partition(",")[0])
    os.kill(pid, signal.SIGSTOP)
    trial.send_signal(signal.SIGINT)
    ended = trial.finish().check(returncode=130)
    assert "killed: trainer/0" in ended.stderr
    assert "actors" not in ended.stderr


def test_a_killed_controller_leaves_nothing_but_its_run_directory_which_the_next_start_removes(
    trial_run: Any, experiment: Path
) -> None:
    trial = trial_run.start(experiment, "--screen", "off", "limits.shutdown_seconds=8.0")
    trial.wait_for(lambda: has_trained(trial), "training")
    (left,) = trial.trial_dir.parent.glob("srl-*")
    trial.send_signal(signal.SIGKILL)
    ended = trial.finish()
    deadline = time.monotonic() + 60.0
    while trial.processes():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
    # Workers drain by themselves: the trainer's last checkpoint is there.
    assert list((ended.trial_dir / "checkpoints").iterdir())
    with run_directory(left.parent) as following:
        assert not left.exists()
        assert following.exists()

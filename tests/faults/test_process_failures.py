"""Workers that raise, exit, crash, are killed or hang (field cases 23 and 47), through whole trials in processes."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

ENVIRONMENTS = Path(__file__).with_name("faulty_environments.py")
FAULT_STEP = 37
"""As in that file."""


def experiment(path: Path, *, actors: int = 1, placement: str = "processes", **environment: Any) -> Path:
    """An experiment whose environment breaks at a step; written to ``path``."""
    graph = {
        "name": "faulty",
        "environment": {"type": "gymnasium", "entry": f"{ENVIRONMENTS}:Faulty", "kwargs": environment},
        "policies": {"main": {"algorithm": {"type": "ppo", "rows": 16, "minibatch_rows": 32, "epochs": 1}}},
        "streams": {"samples": {"kind": "sample"}},
        "workers": {
            "actors": {
                "kind": "actor",
                "count": actors,
                "environments": 2,
                "agents": [{"policy": "main", "samples": "samples"}],
            },
            "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        },
        "stop": {"env_steps": 10_000_000},
        "limits": {"shutdown_seconds": 15.0},
        "placement": placement,
    }
    file = path / "faulty.yaml"
    file.write_text(yaml.safe_dump(graph))
    return file


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise", [f"environment 0, step {FAULT_STEP}", "ValueError: boom-42", "Traceback", "in _break", "env step "]),
        ("exit", ["exit code 3"]),
        ("system_exit", ["SystemExit: 5", "in _break"]),
        ("segfault", ["signal SEGV", "in _break"]),
        ("kill", ["signal KILL, possibly out of memory"]),
    ],
)
def test_the_main_log_says_which_worker_where_and_how(
    trial_run: Any, tmp_path: Path, fault: str, expected: list[str]
) -> None:
    ended = trial_run(experiment(tmp_path, fault=fault), "--screen", "off").check(returncode=1)
    log = (ended.trial_dir / "main.log").read_text()
    for text in ["ERROR actors/0 failed: ", f"on host {socket.gethostname()}", "at: poll", *expected]:
        assert text in log
        assert text in ended.stderr or text == "ERROR actors/0 failed: "
    summary = ended.summary
    assert summary["exit_reason"] == "failed"
    assert summary["exit_code"] == 1
    assert [failure["worker"] for failure in summary["failures"]] == ["actors/0"]
    assert "killed" not in log, "the others end by themselves"


def test_the_same_failure_in_a_fused_run(trial_run: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path, fault="raise", placement="fused")
    ended = trial_run(file, "--screen", "off").check(returncode=1)
    assert "ERROR actors/0 failed: " in (ended.trial_dir / "main.log").read_text()
    assert "boom-42" in ended.stderr
    assert ended.summary["failures"][0]["worker"] == "actors/0"


@pytest.mark.parametrize("fault", ["hang_in_c", "stop"])
def test_a_hang_is_named_with_its_stack_and_ends_the_run(trial_run: Any, tmp_path: Path, fault: str) -> None:
    file = experiment(tmp_path, fault=fault)
    ended = trial_run(file, "limits.heartbeat_seconds=4.0", "--screen", "off").check(returncode=1)
    log = (ended.trial_dir / "main.log").read_text()
    assert "ERROR actors/0 failed: no heartbeat for" in log
    assert "(bound 4 s), at: poll" in log
    if fault != "stop":  # A stopped process writes nothing.
        assert "in _break" in log


def test_slow_steps_are_no_hang(trial_run: Any, tmp_path: Path) -> None:
    file = experiment(tmp_path, seconds=0.1)  # a block of 16 rows and 2 environments takes longer than the bound
    overrides = ["limits.heartbeat_seconds=3.0", "stop.updates=2", "stop.env_steps=null"]
    assert trial_run(file, *overrides, "--screen", "off").check().summary["exit_reason"] == "updates"


def test_a_killed_actor_of_several_ends_the_run_and_the_checkpoint_is_written(trial_run: Any, tmp_path: Path) -> None:
    trial = trial_run.start(experiment(tmp_path, actors=3), "--screen", "off")
    log = trial.trial_dir / "logs" / "actors-1.log"
    trial.wait_for(lambda: "is running" in text_of(trial.trial_dir / "main.log"), "a running trial")
    pid = int(log.read_text().partition("pid ")[2].partition(",")[0])
    os.kill(pid, signal.SIGKILL)
    ended = trial.finish().check(returncode=1)
    assert ended.summary["failures"][0]["worker"] == "actors/1"
    assert ended.summary["weights_sha256"]
    assert list((ended.trial_dir / "checkpoints").iterdir())


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""

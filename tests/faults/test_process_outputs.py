"""The reader of what srl-run shows goes away: the trial does not depend on it, and ends as it would have."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

SECONDS = 60.0


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """An endless fused trial; shows lines."""
    graph = {
        "name": "watched",
        "environment": {"type": "gymnasium", "entry": "srl.environments.toy:Count"},
        "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8, "minibatch_rows": 8}}},
        "streams": {"samples": {"kind": "sample"}},
        "workers": {
            "actors": {"kind": "actor", "environments": 1, "agents": [{"policy": "main", "samples": "samples"}]},
            "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        },
        "stop": {"env_steps": 1_000_000_000},
        "placement": "fused",
    }
    file = tmp_path / "watched.yaml"
    file.write_text(yaml.safe_dump(graph))
    return [str(Path(sys.executable).parent / "srl-run"), str(file), "--trial-dir", str(tmp_path / "trial")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def says(trial: Path, text: str) -> bool:
    log = trial / "main.log"
    return log.exists() and text in log.read_text()


def check_ended(trial: Path, process: subprocess.Popen[bytes], code: int) -> None:
    assert process.wait(SECONDS) == code
    summary = json.loads((trial / "summary.json").read_text())
    assert summary["exit_code"] == code
    assert summary["failures"] == []
    assert summary["weights_sha256"]


@pytest.mark.parametrize("both", [True, False])
def test_ctrl_c_where_the_output_goes_through_tee(tmp_path: Path, command: list[str], both: bool) -> None:
    """The same Ctrl-C ends the reader; only the lines, or the complaints as well, go through it."""
    other = subprocess.STDOUT if both else subprocess.DEVNULL
    process = subprocess.Popen(
        [*command, "--screen", "plain"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=other
    )
    assert process.stdout is not None
    wait_until(lambda: says(tmp_path / "trial", "trial is running"))
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    check_ended(tmp_path / "trial", process, 130)


def test_training_goes_on_without_its_reader(tmp_path: Path, command: list[str]) -> None:
    process = subprocess.Popen(
        [*command, "--screen", "plain"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    wait_until(lambda: says(tmp_path / "trial", "its reader is gone"))
    process.send_signal(signal.SIGTERM)
    check_ended(tmp_path / "trial", process, 143)


def test_a_terminal_that_is_closed_ends_the_trial_in_order(tmp_path: Path, command: list[str]) -> None:
    """A live screen on a terminal of its own, whose other side goes away: what the end of an ssh session does."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*command, "--screen", "live"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=lambda: (os.setsid(), os.close(os.open(os.ttyname(0), os.O_RDWR)))[1],  # its controlling terminal
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(slave)
    over = threading.Event()
    reader = threading.Thread(target=_read, args=(master, over), daemon=True)
    reader.start()
    wait_until(lambda: says(tmp_path / "trial", "trial is running"))
    over.set()
    reader.join(SECONDS)
    os.close(master)
    check_ended(tmp_path / "trial", process, 143)


def _read(descriptor: int, over: threading.Event) -> None:
    """Take what a terminal shows, so that its writer never waits."""
    while not over.is_set():
        if select.select([descriptor], [], [], 0.05)[0]:
            os.read(descriptor, 65536)

"""Field case 7: no actor hangs at the handshake, whatever happened to the controller or to the actor before it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from srl.distributed.server import ControlServer
from srl.distributed.trial_events import Registered
from srl.distributed.worker_process import ShellOptions
from srl.system.worker import WorkerId

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"
SECONDS = 90.0
HEARTBEAT_SECONDS = 5.0
WORKER_PROCESS = (
    "import json, sys; from srl.distributed.worker_process import main; sys.exit(main(json.loads(sys.argv[1]), {}))"
)


class Actors:
    """Actor processes that dial a controller, each with its log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"unix:{self._directory}/control"

    def start(self, incarnation: int, connect_seconds: float = SECONDS) -> tuple[subprocess.Popen[bytes], Path]:
        options = ShellOptions(
            worker=WorkerId("actors", "actor", 0, incarnation),
            trial="trial",
            address=self.address,
            keys="",
            run_dir=str(self._directory),
            connect_seconds=connect_seconds,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            grace_seconds=1.0,
        )
        log = self._directory / f"log-{incarnation}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", WORKER_PROCESS, json.dumps(options.to_dict())], stdout=file, stderr=file
            )
        self._processes.append(process)
        return process, log

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(SECONDS)


@pytest.fixture
def actors() -> Iterator[Actors]:
    directory = Path(tempfile.mkdtemp(prefix="st"))
    started = Actors(directory)
    yield started
    started.kill()
    shutil.rmtree(directory)


def wait_until(condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < SECONDS
        threading.Event().wait(0.02)


def registered(server: ControlServer) -> Registered:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        select.select([server.event_descriptor], [], [], 0.1)
        for inbound in server.take():
            if isinstance(inbound.event, Registered):
                return inbound.event
    pytest.fail("nobody registered")


def test_an_actor_before_its_controller_and_one_after_a_stopped_actor(actors: Actors) -> None:
    first, log = actors.start(incarnation=0)
    wait_until(lambda: "no connection to the controller at" in log.read_text())
    assert "trying for" in log.read_text()
    server = ControlServer("trial", actors.address)
    server.start(SECONDS)
    try:
        assert registered(server).incarnation == 0
        # Its stream stays half open: nobody answers at the other end.
        os.kill(first.pid, signal.SIGSTOP)
        actors.start(incarnation=1)
        assert registered(server).incarnation == 1
    finally:
        began = time.monotonic()
        server.close(3.0)
        assert time.monotonic() - began < SECONDS


def test_without_a_controller_the_wait_is_bounded_and_the_exit_code_tells(actors: Actors) -> None:
    process, log = actors.start(incarnation=0, connect_seconds=1.0)
    assert process.wait(SECONDS) == 1
    assert "no connection to the controller within 1" in log.read_text()
    assert actors.address in log.read_text()


def test_a_stopped_actor_of_a_trial_is_noticed_and_named(trial_run: Any) -> None:
    trial = trial_run.start(
        FIELD,
        "workers.actors.count=2",
        "stop={env_steps: 100000000}",
        "limits.heartbeat_seconds=4",
        "limits.shutdown_seconds=15",
        *("--screen", "off", "--placement", "processes"),
    )
    main_log = trial.trial_dir / "main.log"
    trial.wait_for(lambda: main_log.exists() and "trial is running" in main_log.read_text(), "a running trial")
    log = trial.trial_dir / "logs" / "actors-1.log"
    pid = int(log.read_text().partition("pid ")[2].partition(",")[0])
    os.kill(pid, signal.SIGSTOP)
    trial.wait_for_output("actors/1 failed: no heartbeat for")
    ended = trial.finish().check(1)
    assert "(bound 4 s)" in ended.stderr
    assert f"process {pid} is stopped by a signal" in ended.stderr
    assert [failure["worker"] for failure in ended.summary["failures"]] == ["actors/1"]
    assert ended.summary["weights_sha256"]

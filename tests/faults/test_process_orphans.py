"""Whatever is killed, nothing outlives it: controller, zygote, or both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SECONDS = 90.0
CHILDREN = Path(__file__).parents[1] / "integration" / "launched_processes.py"

CONTROLLER = """
import os, sys
from pathlib import Path
from srl.distributed.launchers.base import LaunchRequest
from srl.distributed.launchers.local import LocalLauncher
from srl.system.worker import WorkerId

launcher = LocalLauncher(Path(sys.argv[1]), grace_seconds=0.5)
for index, entry in enumerate(["sleep", "deaf", "stuck_in_c"]):
    read_end, write_end = os.pipe()
    launcher.submit(LaunchRequest(
        worker=WorkerId("actor", "actor", index), options={}, log=Path(sys.argv[1]) / "log",
        entry=f"{sys.argv[2]}:{entry}", descriptors={"out": write_end},
    ))
    os.read(read_end, 100)
while len(launcher.pids()) < 4:
    assert not launcher.poll()
print(*launcher.pids().values(), flush=True)
sys.stdin.read()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has launched three workers: a sleeping one, a deaf one with a child, one stuck in C."""
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path), str(CHILDREN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def family(controller: subprocess.Popen[str]) -> list[int]:
    assert controller.stdout is not None
    pids = [int(pid) for pid in controller.stdout.readline().split()]
    assert len(pids) == 4
    return [*pids, *(child.pid for pid in pids[1:] for child in psutil.Process(pid).children(recursive=True))]


def test_a_killed_controller_leaves_no_process(controller: subprocess.Popen[str]) -> None:
    pids = family(controller)
    assert len(pids) == 5
    controller.kill()
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_killed_zygote_takes_its_workers_along(controller: subprocess.Popen[str]) -> None:
    zygote, *workers = family(controller)
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, workers[:3])))
    # The deaf worker's own child is nobody's any more; only here may it be left.
    for pid in workers[3:]:
        os.kill(pid, signal.SIGKILL)


def test_controller_and_zygote_killed_together(controller: subprocess.Popen[str]) -> None:
    zygote, *workers = family(controller)
    controller.kill()
    os.kill(zygote, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, workers[:3])))
    for pid in workers[3:]:
        os.kill(pid, signal.SIGKILL)

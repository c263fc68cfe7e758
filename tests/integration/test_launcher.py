"""The local launcher with real zygotes and real children, each of a few milliseconds."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from srl.api.errors import ResourceError
from srl.distributed.exits import log_tail
from srl.distributed.launchers import wire
from srl.distributed.launchers.base import LaunchRequest, WorkerExit
from srl.distributed.launchers.local import LocalLauncher
from srl.distributed.server import ControlServer
from srl.system.worker import WorkerId

CHILDREN = Path(__file__).with_name("launched_processes.py")
SECONDS = 90.0


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def launcher(log_dir: Path) -> Iterator[LocalLauncher]:
    """One launcher for the whole module: nothing of a test may be left in it."""
    # What gRPC keeps for the whole process is no leak of a test.
    server = ControlServer("trial", f"unix:{log_dir}/c"[:100])
    server.start(SECONDS)
    server.close(5.0)
    launcher = LocalLauncher(log_dir, grace_seconds=1.0)
    yield launcher
    pids = list(launcher.pids().values())
    launcher.close(5.0)
    wait_until(lambda: not any(map(is_running, pids)))


@pytest.fixture(autouse=True)
def no_leaks(launcher: LocalLauncher) -> Iterator[None]:
    launcher.prepare(light=True, torch=False)
    before = psutil.Process().num_fds()
    yield
    zygotes = [psutil.Process(pid) for name, pid in launcher.pids().items() if name.startswith("zygote")]
    wait_until(lambda: not any(zygote.children() for zygote in zygotes))
    gc.collect()  # gRPC closes some descriptors only in destructors.
    assert psutil.Process().num_fds() <= before + len(zygotes) - 1


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def request(log_dir: Path, entry: str, index: int = 0, **fields: object) -> LaunchRequest:
    worker = WorkerId("actor", "actor", index)
    fields.setdefault("options", {})
    return LaunchRequest(worker=worker, log=log_dir / f"{entry}-{index}.log", entry=f"{CHILDREN}:{entry}", **fields)


def wait_exits(launcher: LocalLauncher, count: int = 1) -> list[WorkerExit]:
    exits: list[WorkerExit] = []
    deadline = time.monotonic() + SECONDS
    while len(exits) < count:
        left = deadline - time.monotonic()
        assert left > 0, exits
        select.select(list(launcher.wait_descriptors()), [], [], left)
        exits += launcher.poll()
    return exits


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("entry", "code", "description", "said"),
    [
        ("leave", 7, "exit code 7", ""),
        ("boom", 1, "exit code 1", "ValueError: boom-42"),
        ("leave_hard", 3, "exit code 3", ""),
        ("segfault", -signal.SIGSEGV, "signal SEGV", "in segfault"),
        ("kill_itself", -signal.SIGKILL, "signal KILL, possibly out of memory", ""),
    ],
)
def test_every_way_to_end_is_told_in_words(
    launcher: LocalLauncher, log_dir: Path, entry: str, code: int, description: str, said: str
) -> None:
    launcher.submit(request(log_dir, entry, options={"code": 7}))
    assert wait_exits(launcher) == [WorkerExit("actor/0", 0, code, description)]
    assert said in log_tail(log_dir / f"{entry}-0.log")


def test_a_worker_gets_its_descriptors_threads_cores_and_log_and_nothing_else(
    launcher: LocalLauncher, log_dir: Path, pipe: tuple[int, int]
) -> None:
    segment = os.memfd_create("srl-test")
    core = min(os.sched_getaffinity(0))
    launcher.submit(
        request(log_dir, "say", descriptors={"out": pipe[1], "segment": segment}, threads=3, cores=(core,)),
    )
    wait_exits(launcher)
    os.close(segment)
    facts = json.loads(os.read(pipe[0], 65536))
    assert facts["session"] == facts["pid"]
    assert facts["parent"] == launcher.pids()["zygote light"]
    assert facts["threads"] == "3"
    assert facts["cores"] == [core]
    assert facts["sigint_ignored"]
    assert not facts["torch"]
    assert "srl-test" in facts["descriptors"]["segment"]
    assert len(facts["open"]) == 2, facts["open"]
    assert log_tail(log_dir / "say-0.log") == "a line on standard output\na line on standard error"


def test_more_descriptors_than_one_message_takes(launcher: LocalLauncher, log_dir: Path, pipe: tuple[int, int]) -> None:
    descriptors = {f"wake:{index}": os.eventfd(0) for index in range(450)}
    launcher.submit(request(log_dir, "say", descriptors={**descriptors, "out": pipe[1]}))
    wait_exits(launcher)
    for descriptor in descriptors.values():
        os.close(descriptor)
    facts = json.loads(os.read(pipe[0], 1 << 20))
    assert set(facts["descriptors"]) == set(descriptors)


def test_the_torch_zygote_sets_torchs_threads_after_the_fork(
    launcher: LocalLauncher, log_dir: Path, pipe: tuple[int, int]
) -> None:
    launcher.submit(request(log_dir, "say", needs_torch=True, threads=2, descriptors={"out": pipe[1]}))
    wait_exits(launcher)
    facts = json.loads(os.read(pipe[0], 65536))
    assert facts["torch"]
    assert facts["torch_threads"] == 2


def test_many_children_at_once_each_ends_once(launcher: LocalLauncher, log_dir: Path) -> None:
    for index in range(40):
        launcher.submit(request(log_dir, "leave", index, options={"code": index}))
    exits = wait_exits(launcher, 40)
    assert {(one.worker, one.code) for one in exits} == {(f"actor/{index}", index) for index in range(40)}
    assert list(launcher.poll()) == []


def test_more_workers_than_answers_find_room(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers pile up while requests are handed over: were they left unread, each end would wait for the other."""

    def narrow_pair() -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's smallest: a few messages
        return pair

    monkeypatch.setattr(wire, "socket_pair", narrow_pair)
    launcher = LocalLauncher(log_dir, grace_seconds=1.0, send_seconds=SECONDS)
    for index in range(30):
        launcher.submit(request(log_dir, "leave", index, options={"code": 0}))
    assert {one.code for one in wait_exits(launcher, 30)} == {0}
    launcher.close(5.0)


def test_a_worker_handed_to_a_dead_zygote_ends_too(log_dir: Path, pipe: tuple[int, int]) -> None:
    launcher = LocalLauncher(log_dir, grace_seconds=1.0)
    launcher.submit(request(log_dir, "sleep", descriptors={"out": pipe[1]}))
    os.read(pipe[0], 1)
    os.kill(launcher.pids()["zygote light"], signal.SIGKILL)
    assert [one.worker for one in wait_exits(launcher)] == ["actor/0"]
    launcher.submit(request(log_dir, "sleep", 1, descriptors={"out": pipe[1]}))
    assert [one.worker for one in launcher.poll()] == ["actor/1"]
    launcher.close(5.0)


def test_a_cancelled_worker_dies_with_what_it_started(
    launcher: LocalLauncher, log_dir: Path, pipe: tuple[int, int]
) -> None:
    launcher.submit(request(log_dir, "deaf", descriptors={"out": pipe[1]}))
    grandchild = int(os.read(pipe[0], 100))
    launcher.cancel("actor/0", incarnation=1)
    launcher.cancel("actor/0", incarnation=0)
    (end,) = wait_exits(launcher)
    assert end.code == -signal.SIGKILL
    wait_until(lambda: not is_running(grandchild))


def test_stacks_are_written_even_where_no_thread_can_turn(
    launcher: LocalLauncher, log_dir: Path, pipe: tuple[int, int]
) -> None:
    launcher.submit(request(log_dir, "stuck_in_c", descriptors={"out": pipe[1]}))
    os.read(pipe[0], 1)
    assert launcher.dump_stacks("actor/0", 0)
    wait_until(lambda: "in stuck_in_c" in log_tail(log_dir / "stuck_in_c-0.log"))
    launcher.cancel("actor/0", 0)
    wait_exits(launcher)


def test_grpc_works_in_children_of_a_zygote_that_imported_it(launcher: LocalLauncher, log_dir: Path) -> None:
    path = Path("/tmp") / f"srl-t-{os.getpid()}"
    server = ControlServer("trial", f"unix:{path}")
    server.start(SECONDS)
    for index in range(8):
        launcher.submit(request(log_dir, "use_grpc", index, options={"address": str(path)}))
    exits = wait_exits(launcher, 8)
    server.close(5.0)
    path.unlink(missing_ok=True)
    assert [one.code for one in exits] == [0] * 8


def test_a_limit_that_is_too_low_is_named(launcher: LocalLauncher) -> None:
    launcher.scale(2)
    with pytest.raises(ResourceError, match="too many workers for the limit on open files"):
        launcher.scale(10**9)


def test_a_dead_zygote_is_named_as_the_end_of_its_workers(log_dir: Path, pipe: tuple[int, int]) -> None:
    launcher = LocalLauncher(log_dir, grace_seconds=1.0)
    for index in range(2):
        launcher.submit(request(log_dir, "sleep", index, descriptors={"out": pipe[1]}))
        os.read(pipe[0], 1)
    os.kill(launcher.pids()["zygote light"], signal.SIGKILL)
    exits = wait_exits(launcher, 2)
    assert {one.worker for one in exits} == {"actor/0", "actor/1"}
    assert all("its light zygote ended unexpectedly (signal KILL" in one.description for one in exits)
    launcher.close(5.0)

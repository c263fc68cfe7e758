"""The control plane over unix sockets and mutual TLS, with workers that are only clients."""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from srl.api.errors import ResourceError, StreamError
from srl.distributed import control_pb2 as pb
from srl.distributed.certificates import CertificateFiles
from srl.distributed.client import ControlClient, ControllerLost, Dialling
from srl.distributed.lifecycle import State
from srl.distributed.messages import (
    MAX_MESSAGE_BYTES,
    METHOD,
    assignment_json,
    command,
)
from srl.distributed.server import ControlServer, Inbound
from srl.distributed.trial_events import (
    Beat,
    CommandKind,
    Disconnected,
    EndpointsBound,
    Registered,
    StateReached,
    WorkerFailed,
    WorkerFinished,
)
from srl.system.report import Episode, WorkerReport
from srl.system.worker import Assignment, WorkerId

ACTOR = WorkerId("actor", "actor", 3, incarnation=2)
TRIAL = "trial-1"
SECONDS = 60.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short: a unix socket's path has at most 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="srl-t"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails on threads and descriptors left behind."""
    process = psutil.Process()
    grpc_warm_up()
    before = process.num_fds()
    yield
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and (process.num_fds() > before or control_threads()):
        gc.collect()  # gRPC closes some descriptors only in destructors.
        threading.Event().wait(0.02)
    assert control_threads() == []
    assert process.num_fds() <= before, os.listdir("/proc/self/fd")


@functools.cache
def grpc_warm_up() -> None:
    """What gRPC keeps for the whole process (pollers, their descriptors) is no leak of a test."""
    with tempfile.TemporaryDirectory(prefix="srl-t") as path:
        server = ControlServer(TRIAL, f"unix:{path}/c")
        client = ControlClient(ACTOR, dialling(server.start(SECONDS)))
        client.connect()
        client.close()
        server.close(5.0)


def control_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("control-")]


class Controller:
    """A server and what it heard."""

    def __init__(self, server: ControlServer, timeout_seconds: float = SECONDS) -> None:
        self.server = server
        self.address = server.start(timeout_seconds)
        self.heard: list[Inbound] = []

    def wait_for(self, wanted: Callable[[Inbound], bool]) -> Inbound:
        deadline = time.monotonic() + SECONDS
        while True:
            for inbound in self.heard:
                if wanted(inbound):
                    return inbound
            left = deadline - time.monotonic()
            assert left > 0, self.heard
            select.select([self.server.event_descriptor], [], [], left)
            self.heard += self.server.take()

    def wait_event(self, kind: type) -> object:
        return self.wait_for(lambda inbound: isinstance(inbound.event, kind)).event

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close(5.0)


def dialling(address: str, **changes: object) -> Dialling:
    fields = {"connect_seconds": SECONDS, "silence_seconds": SECONDS, "grace_seconds": 2.0, **changes}
    return Dialling(TRIAL, address, **fields)


def wait_told(client: ControlClient, kind: type) -> object:
    deadline = time.monotonic() + SECONDS
    while True:
        ready, _, _ = select.select([client.wake_descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing of {kind} was told"
        for told in client.take():
            if isinstance(told, kind):
                return told


def assignment() -> Assignment:
    return Assignment(
        worker=ACTOR,
        experiment={"name": "x", "seed": 1},
        environment={},
        policies={"p": {"a": [1, 2]}},
        schemas={},
        flow={},
        trial_dir="/trial",
        transport="shared_memory",
        endpoints={"sample:s:0": "ipc://x"},
    )


def the_whole_conversation(controller: Controller, client: ControlClient) -> None:
    server = controller.server
    client.connect()
    registered = controller.wait_event(Registered)
    assert (registered.worker, registered.incarnation, registered.pid) == ("actor/3", 2, os.getpid())

    server.send(
        registered.connection, pb.ToWorker(assignment=pb.Assignment(assignment_json=assignment_json(assignment())))
    )
    assert wait_told(client, Assignment) == assignment()
    client.bound({"sample:s:0": "ipc://y"})
    assert controller.wait_event(EndpointsBound).endpoints == {"sample:s:0": "ipc://y"}

    server.send(registered.connection, command("actor/3", CommandKind.START))
    assert wait_told(client, CommandKind) is CommandKind.START
    client.turned("poll")
    client.reached(State.RUNNING)
    assert controller.wait_event(StateReached).state is State.RUNNING

    sent = WorkerReport("actor/3", "actor", 2, counters={"env_steps": 5}, episodes=[Episode(1.5, 3, 12, 4)])
    client.report(sent)
    inbound = controller.wait_for(lambda inbound: inbound.report is not None)
    assert inbound.report == sent
    assert inbound.event.doing == "poll"

    client.finished("env_steps")
    client.failed("ValueError: boom-42", "Traceback ...\nValueError: boom-42")
    assert client.flush(SECONDS)
    assert controller.wait_event(WorkerFinished).reason == "env_steps"
    text = controller.wait_event(WorkerFailed).text
    assert "boom-42 (on host" in text
    assert "at: poll" in text
    assert "Traceback" in text

    client.close()
    assert controller.wait_event(Disconnected).connection == registered.connection


def test_over_a_unix_socket(directory: Path) -> None:
    with Controller(ControlServer(TRIAL, f"unix:{directory}/c")) as controller:
        the_whole_conversation(controller, ControlClient(ACTOR, dialling(controller.address)))


def test_over_tcp_with_mutual_tls(directory: Path) -> None:
    files = CertificateFiles.create(directory / "keys")
    with Controller(ControlServer(TRIAL, "127.0.0.1:0", files.server)) as controller:
        assert not controller.address.endswith(":0")
        the_whole_conversation(controller, ControlClient(ACTOR, dialling(controller.address, credentials=files.worker)))


def test_tcp_without_certificates_is_refused() -> None:
    with pytest.raises(StreamError, match="needs certificates"):
        ControlServer(TRIAL, "127.0.0.1:0")


@pytest.mark.parametrize("whose", ["another trial's", "none"])
def test_a_peer_without_the_trials_certificate_gets_nowhere(directory: Path, whose: str) -> None:
    files = CertificateFiles.create(directory / "keys")
    other = CertificateFiles.create(directory / "other").worker if whose != "none" else None
    with Controller(ControlServer(TRIAL, "127.0.0.1:0", files.server)) as controller:
        client = ControlClient(ACTOR, dialling(controller.address, credentials=other, connect_seconds=1.0))
        with pytest.raises(StreamError, match="no connection to the controller within"):
            client.connect()
        client.close()
        assert controller.server.take() == []


def test_a_worker_of_another_trial_is_refused_at_once(directory: Path) -> None:
    with Controller(ControlServer("another", f"unix:{directory}/c")) as controller:
        client = ControlClient(ACTOR, dialling(controller.address))
        with pytest.raises(StreamError, match="refused by the controller: a worker of another trial"):
            client.connect()
        client.close()
        assert controller.server.refused == {"a worker of another trial": 1}


def test_the_controller_can_refuse_a_connection_and_say_why(directory: Path) -> None:
    with Controller(ControlServer(TRIAL, f"unix:{directory}/c")) as controller:
        client = ControlClient(ACTOR, dialling(controller.address))
        client.connect()
        registered = controller.wait_event(Registered)
        controller.server.refuse(registered.connection, "actor/3", "superseded incarnation")
        assert "superseded incarnation" in wait_told(client, ControllerLost).reason
        client.close()


@pytest.mark.parametrize("no_proxy", [None, "localhost,127.0.0.1"])
def test_proxy_variables_do_not_matter(directory: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str | None) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if no_proxy is not None:
        monkeypatch.setenv("no_proxy", no_proxy)
    files = CertificateFiles.create(directory / "keys")
    with Controller(ControlServer(TRIAL, "127.0.0.1:0", files.server)) as controller:
        client = ControlClient(ACTOR, dialling(controller.address, credentials=files.worker))
        client.connect()
        controller.wait_event(Registered)
        client.close()


def test_a_worker_that_comes_before_its_controller_waits_visibly(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{directory}/c"
    client = ControlClient(ACTOR, dialling(address))
    waiter = threading.Thread(target=client.connect, name="control-waiter")
    waiter.start()
    deadline = time.monotonic() + SECONDS
    while "no connection to the controller at" not in caplog.text:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    with Controller(ControlServer(TRIAL, address)) as controller:
        controller.wait_event(Registered)
        waiter.join(SECONDS)
        client.close()
    assert "trying for" in caplog.text


def test_without_a_controller_the_wait_is_bounded_and_names_the_cause(directory: Path) -> None:
    client = ControlClient(ACTOR, dialling(f"unix:{directory}/c", connect_seconds=0.5))
    began = time.monotonic()
    with pytest.raises(StreamError, match=r"no connection to the controller within .* UNAVAILABLE"):
        client.connect()
    assert time.monotonic() - began < SECONDS / 2
    client.close()


def test_what_was_said_while_the_controller_was_away_arrives_once(directory: Path) -> None:
    address = f"unix:{directory}/c"
    client = ControlClient(ACTOR, dialling(address, grace_seconds=SECONDS))
    with Controller(ControlServer(TRIAL, address)) as controller:
        client.connect()
        controller.wait_event(Registered)
        client.reached(State.CONFIGURED)
        assert client.flush(SECONDS)
    client.reached(State.RUNNING)
    client.finished("updates")
    with Controller(ControlServer(TRIAL, address)) as controller:
        assert controller.wait_event(Registered).state is State.RUNNING
        assert controller.wait_event(WorkerFinished).reason == "updates"
        assert client.flush(SECONDS)
        states = [inbound.event.state for inbound in controller.heard if isinstance(inbound.event, StateReached)]
        assert states == [State.RUNNING]
        client.close()


def test_a_worker_whose_controller_never_returns_learns_it_within_the_grace(directory: Path) -> None:
    with Controller(ControlServer(TRIAL, f"unix:{directory}/c")) as controller:
        client = ControlClient(ACTOR, dialling(controller.address, grace_seconds=0.3))
        client.connect()
        controller.wait_event(Registered)
    assert "no connection to the controller" in wait_told(client, ControllerLost).reason
    client.close()


def test_heartbeats_tell_for_how_long_the_main_loop_is_silent(directory: Path) -> None:
    with Controller(ControlServer(TRIAL, f"unix:{directory}/c")) as controller:
        client = ControlClient(ACTOR, dialling(controller.address))
        client.connect()
        client.turned("step of the environment")
        beat = controller.wait_for(
            lambda inbound: isinstance(inbound.event, Beat) and inbound.event.silent_seconds > 0.8
        ).event
        assert beat.doing == "step of the environment"
        client.close()


def raw_stream(address: str, *messages: object) -> list[object]:
    """What a hostile peer gets back that speaks the protocol by hand."""
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        method = channel.stream_stream(
            METHOD,
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=pb.ToWorker.FromString,
        )
        try:
            return list(method(iter(messages), timeout=SECONDS))
        except grpc.RpcError as error:
            return [error.code()]


def test_hostile_messages_are_refused_and_the_server_lives_on(directory: Path) -> None:
    with Controller(ControlServer(TRIAL, f"unix:{directory}/c")) as controller:
        register = pb.FromWorker(worker="actor/3", register=pb.Register(protocol=1, trial=TRIAL, state="CREATED"))
        raw_stream(controller.address, b"\xff\xff\xff")
        raw_stream(controller.address, pb.FromWorker(worker="actor/3", finished=pb.Finished(reason="x")))
        nested = b"[" * 200_000
        bad_reports = [b"{", b"[]", nested, b'{"worker": 1}', json.dumps({"worker": "actor/3", "kind": []}).encode()]
        raw_stream(
            controller.address,
            register,
            pb.FromWorker(worker="../../etc", finished=pb.Finished(reason="x")),
            pb.FromWorker(worker="actor/3", finished=pb.Finished(reason="x" * 10_000)),
            pb.FromWorker(worker="actor/3", heartbeat=pb.Heartbeat(silent_seconds=float("nan"))),
            pb.FromWorker(worker="actor/3"),
            *(pb.FromWorker(worker="actor/3", heartbeat=pb.Heartbeat(report_json=report)) for report in bad_reports),
        )
        too_long = pb.FromWorker(worker="actor/3", failure=pb.Failure(traceback="x" * (MAX_MESSAGE_BYTES + 1)))
        assert raw_stream(controller.address, register, too_long)[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED

        client = ControlClient(ACTOR, dialling(controller.address))
        client.connect()
        controller.wait_for(lambda inbound: isinstance(inbound.event, Registered) and inbound.event.incarnation == 2)
        client.close()
        assert controller.server.refused["malformed"] == 9
        assert not any(isinstance(inbound.event, (WorkerFinished, Beat)) for inbound in controller.heard)


def test_a_used_port_is_named(directory: Path) -> None:
    files = CertificateFiles.create(directory / "keys")
    with Controller(ControlServer(TRIAL, "127.0.0.1:0", files.server)) as controller:
        second = ControlServer(TRIAL, controller.address, files.server)
        with pytest.raises(ResourceError, match="cannot bind the control server"):
            second.start(SECONDS)
        second.close(5.0)


def test_a_silent_controller_is_noticed(directory: Path) -> None:
    """A peer that accepts the connection and then says nothing: a stopped controller."""
    with Controller(ControlServer(TRIAL, f"unix:{directory}/c")) as controller:
        client = ControlClient(ACTOR, dialling(controller.address, silence_seconds=0.5, grace_seconds=0.5))
        client.connect()
        controller.wait_event(Registered)
        noticed = threading.Event()
        controller.server._loop.call_soon_threadsafe(noticed.wait, SECONDS)
        try:
            assert wait_told(client, ControllerLost).reason
        finally:
            noticed.set()
        client.close()

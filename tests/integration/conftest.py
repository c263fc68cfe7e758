"""Fixtures of transports."""

import os
import tempfile
from pathlib import Path

import pytest
import zmq
from transport_wiring import TIMEOUT_SECONDS, Wiring


@pytest.fixture(scope="session")
def zero_copy_collector():
    """pyzmq keeps a thread and sockets for the life of a process that free what was sent without copying: no leak."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://once")
        other.connect("inproc://once")
        tracker = one.send(bytes(1 << 20), copy=False, track=True)
        other.recv()
        tracker.wait(TIMEOUT_SECONDS)


@pytest.fixture
def run_dir():
    """The private directory of a run; a socket left in it fails the test."""
    with tempfile.TemporaryDirectory(prefix="st") as directory:  # short: a socket's path has at most 107 characters
        os.chmod(directory, 0o700)
        yield Path(directory)
        assert [path for path in Path(directory).iterdir() if path.is_socket()] == []


@pytest.fixture(params=["in_process", "shared_memory", "tcp"])
def transport_kind(request):
    return request.param


@pytest.fixture
def wiring(transport_kind, run_dir):
    """Both ends of one transport after the other."""
    wiring = Wiring(transport_kind, run_dir)
    yield wiring
    wiring.close()

"""A zygote: a single-threaded process that has imported what workers need, and forks one of them in milliseconds.

``python -m srl.distributed.launchers.zygote KIND DESCRIPTOR GRACE_SECONDS``, started by the local launcher with one
end of a socket pair. Requests: ``descriptors``, ``launch``, ``kill``, ``dump_stacks``, ``close``; answers:
``launched``, ``exited``. When the socket ends, the controller is dead: workers are asked to end, and after the grace
killed. Workers die with their zygote. So nothing outlives the controller.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from srl.api.importing import import_target
from srl.distributed.exits import describe_exit
from srl.distributed.launchers import wire
from srl.distributed.process_setup import count_threads, die_with_parent, set_affinity, set_threads, tune_allocator

LIGHT_MODULES = ("numpy", "gymnasium", "zmq", "srl.distributed.worker_process")
"""gRPC comes with the last one; it is imported here and never used, so nothing of it runs when a worker is forked."""

TORCH_MODULES = (*LIGHT_MODULES, "torch")

EXIT_SECONDS = 5.0
"""Bound on what a worker does between its last word and its exit (handlers registered with atexit)."""


@dataclass
class Zygote:
    """The loop: requests, ends of children, end of the controller.

    Attributes:
        end: The own end of the socket pair.
        grace_seconds: For workers to end by themselves once the controller is gone.
    """

    end: socket.socket
    grace_seconds: float
    _wake: int = -1
    _children: dict[int, str] = field(default_factory=dict)
    _descriptors: dict[str, dict[str, int]] = field(default_factory=dict)

    def run(self) -> None:
        """Serve until told to close, or until the controller is gone."""
        with _child_signals() as self._wake:
            wake = self._wake
            poller = select.poll()
            poller.register(self.end, select.POLLIN)
            poller.register(wake, select.POLLIN)
            while True:
                ready = {descriptor for descriptor, _ in poller.poll()}
                if wake in ready:
                    self._reap()
                if self.end.fileno() in ready and not self._serve():
                    return

    def _serve(self) -> bool:
        """Handle one request; False = this zygote ends."""
        message, descriptors = wire.receive(self.end)
        if message is None:
            self._end_children(signal.SIGTERM, self.grace_seconds)
            return False
        key = message.get("key", "")
        match message["op"]:
            case "descriptors":
                self._descriptors.setdefault(key, {}).update(zip(message["names"], descriptors, strict=True))
            case "launch":
                self._launch(key, message)
            case "kill":
                self._signal(key, signal.SIGKILL)
            case "dump_stacks":
                self._signal(key, signal.SIGUSR1)
            case "close":
                self._end_children(signal.SIGKILL, 0.0)
                return False
        return True

    def _launch(self, key: str, message: dict[str, Any]) -> None:
        descriptors = self._descriptors.pop(key, {})
        if (threads := count_threads()) > 1:
            # Locks that another thread holds at the fork would stay locked in the child for ever.
            self._tell_exit(key, 1, f"not started: the zygote has {threads} threads")
            return
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell_exit(key, 1, f"not started: {error.strerror}")
            pid = -1
        if pid == 0:
            self.end.close()
            os.close(self._wake)
            _become_worker(message, descriptors, parent)
        for descriptor in descriptors.values():
            os.close(descriptor)
        if pid > 0:
            self._children[pid] = key
            self._tell({"event": "launched", "key": key, "pid": pid})

    def _signal(self, key: str, number: signal.Signals) -> None:
        for pid, child in self._children.items():
            if child == key:
                if number is signal.SIGKILL:
                    _kill_group(pid)
                os.kill(pid, number)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            key = self._children.pop(pid)
            _kill_group(pid)  # What the worker started itself and left behind.
            code = os.waitstatus_to_exitcode(status)
            self._tell_exit(key, code, describe_exit(code))

    def _tell_exit(self, key: str, code: int, description: str) -> None:
        self._tell({"event": "exited", "key": key, "code": code, "description": description})

    def _tell(self, message: dict[str, Any]) -> None:
        # The controller is gone: the loop notices by itself.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            wire.send(self.end, message)

    def _end_children(self, number: signal.Signals, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        for pid in self._children:
            os.kill(pid, number)
        while self._children and (left := deadline - time.monotonic()) > 0:
            select.select([self._wake], [], [], left)
            self._reap()
        for pid in self._children:
            _kill_group(pid)
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)
        self._children.clear()


@contextlib.contextmanager
def _child_signals() -> Iterator[int]:
    """A descriptor that is readable when a child has ended: nothing polls for it."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read_end)
        os.close(write_end)


def _kill_group(pid: int) -> None:
    # The group is gone with its last process, or is not there yet in the first moment after the fork.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _become_worker(message: dict[str, Any], descriptors: dict[str, int], parent: int) -> NoReturn:
    """The child after the fork: shed what is the zygote's, set what is the worker's, run, exit."""
    code = 1
    try:
        _shed(message, parent)
        code = import_target(message["entry"])(message["options"], descriptors)
    except BaseException:
        # Whatever it is, it goes to the worker's log, and the exit code tells the controller.
        traceback.print_exc()
    finally:
        _exit(code)


def _shed(message: dict[str, Any], parent: int) -> None:
    die_with_parent(parent)
    os.close(signal.set_wakeup_fd(-1))
    # A session of its own: a Ctrl-C at the terminal reaches the controller alone, which stops the workers in order.
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    atexit._clear()
    log = os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    gc.unfreeze()
    set_threads(message["threads"])
    set_affinity(message["cores"])
    tune_allocator()
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _exit(code: int) -> NoReturn:
    """Leave without the zygote's own shutdown, but with what the worker registered."""
    faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=2)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(kind: str, descriptor: int, grace_seconds: float) -> NoReturn:
    """The process.

    Args:
        kind: ``light`` or ``torch``.
        descriptor: Its end of the socket pair.
        grace_seconds: For workers once the controller is gone.
    """
    # The controller tells when to end: by message, or by its own end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for module in TORCH_MODULES if kind == "torch" else LIGHT_MODULES:
        importlib.import_module(module)
    # The collector would touch, and so copy, every page that children share with the zygote.
    gc.collect()
    gc.freeze()
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    Zygote(end, grace_seconds).run()
    # What it imported has nothing to finish, and taking torch down in order would take a good part of a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))

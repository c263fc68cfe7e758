"""The local launcher: worker processes on this host, forked by two zygotes that are started side by side."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from srl.api import errors
from srl.api.errors import ResourceError
from srl.distributed.exits import describe_exit, describe_halt, log_tail
from srl.distributed.launchers import wire
from srl.distributed.launchers.base import Launcher, LaunchRequest, WorkerExit
from srl.distributed.process_setup import raise_descriptor_limit, thread_environment

DESCRIPTORS_PER_WORKER = 8
"""In the controller: control connection, log, wake-ups and the like, with room to spare."""

ASK_SECONDS = 1.0
"""Bound on handing a short request to a zygote: the socket has room unless the zygote hangs."""


@dataclass
class _Zygote:
    """One zygote as the launcher sees it.

    Attributes:
        kind: ``light`` or ``torch``.
        process: The process.
        end: The launcher's end of the socket pair.
        log: What the zygote itself said.
        pids: Worker to process id of those that live.
        keys: Workers asked for that have not ended.
    """

    kind: str
    process: subprocess.Popen[bytes]
    end: socket.socket
    log: Path
    pids: dict[str, int] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    is_lost: bool = False


class LocalLauncher(Launcher):
    """Forks workers from zygotes; a zygote is started when the first worker needs it.

    Args:
        log_dir: Where the zygotes' own logs go.
        grace_seconds: For workers to end by themselves if this process dies.
        send_seconds: Bound on handing a request to a zygote, which may still be importing.
    """

    def __init__(self, log_dir: Path, *, grace_seconds: float, send_seconds: float = 60.0) -> None:
        self._log_dir = log_dir
        self._grace_seconds = grace_seconds
        self._send_seconds = send_seconds
        self._zygotes: dict[str, _Zygote] = {}
        self._exits: list[WorkerExit] = []
        self._logs: dict[str, Path] = {}

    def scale(self, workers: int) -> None:
        """Raise the descriptor limit, which the zygotes inherit, and check it."""
        raise_descriptor_limit(64 + DESCRIPTORS_PER_WORKER * workers)

    def prepare(self, *, light: bool, torch: bool) -> None:
        """Start zygotes before anything is submitted, so that their imports run side by side."""
        for kind, is_needed in (("light", light), ("torch", torch)):
            if is_needed:
                self._zygote(kind)

    def submit(self, request: LaunchRequest) -> None:
        """Hand the request to the zygote that has what the worker needs."""
        zygote = self._zygote("torch" if request.needs_torch else "light")
        key = _key(request.worker.name, request.worker.incarnation)
        zygote.keys.add(key)
        self._logs[key] = request.log
        names = list(request.descriptors)
        launch = {
            "op": "launch",
            "key": key,
            "entry": request.entry,
            "options": dict(request.options),
            "log": str(request.log),
            "threads": request.threads,
            "cores": list(request.cores),
        }
        try:
            for start in range(0, len(names), wire.MAX_DESCRIPTORS):
                part = names[start : start + wire.MAX_DESCRIPTORS]
                message = {"op": "descriptors", "key": key, "names": part}
                self._send(zygote, message, self._send_seconds, [request.descriptors[name] for name in part])
            self._send(zygote, launch, self._send_seconds)
        except OSError as error:
            self._lose(zygote, str(error))

    def poll(self) -> Sequence[WorkerExit]:
        """Ends that the zygotes have reported."""
        for zygote in self._zygotes.values():
            while not zygote.is_lost and select.select([zygote.end], [], [], 0)[0]:
                self._receive(zygote)
        exits, self._exits = self._exits, []
        return exits

    def cancel(self, worker: str, incarnation: int) -> None:
        """Kill with SIGKILL, the worker's whole process group."""
        self._ask("kill", worker, incarnation)

    def dump_stacks(self, worker: str, incarnation: int) -> bool:
        """Have faulthandler write all stacks: it needs no turn of the interpreter.

        Where the process cannot do even that, its log says why.
        """
        self._ask("dump_stacks", worker, incarnation)
        key = _key(worker, incarnation)
        pid = self.pids().get(key)
        if pid is not None and (why := describe_halt(pid)):
            with open(self._logs[key], "a") as log:
                log.write(f"{why}: it can write no stack\n")
        return True

    def wait_descriptors(self) -> Iterable[int]:
        """One per zygote."""
        return [zygote.end.fileno() for zygote in self._zygotes.values() if not zygote.is_lost]

    def pids(self) -> dict[str, int]:
        """Process ids of the living workers, by ``NAME#INCARNATION``, and of the zygotes."""
        pids = {f"zygote {zygote.kind}": zygote.process.pid for zygote in self._zygotes.values()}
        return pids | {key: pid for zygote in self._zygotes.values() for key, pid in zygote.pids.items()}

    def close(self, timeout_seconds: float) -> None:
        """Have the zygotes kill their workers and end."""
        deadline = time.monotonic() + timeout_seconds
        for zygote in self._zygotes.values():
            try:
                self._send(zygote, {"op": "close"}, ASK_SECONDS)
            except OSError:
                # It is gone, or does not read any more: the kill below is for that.
                zygote.is_lost = True
        for zygote in self._zygotes.values():
            try:
                zygote.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                zygote.process.kill()  # Its workers die with it.
                zygote.process.wait(timeout_seconds)
            zygote.end.close()
        self._zygotes.clear()

    def _zygote(self, kind: str) -> _Zygote:
        if kind not in self._zygotes:
            self._zygotes[kind] = self._start(kind)
        return self._zygotes[kind]

    def _start(self, kind: str) -> _Zygote:
        own, other = wire.socket_pair()
        log = self._log_dir / f"zygote-{kind}.log"
        command = [sys.executable, "-m", "srl.distributed.launchers.zygote", kind, str(other.fileno())]
        try:
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    [*command, str(self._grace_seconds)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[other.fileno()],
                    start_new_session=True,
                    # One thread per library: a fork takes no other thread along.
                    env={**os.environ, **thread_environment(1), "PYTHONPATH": _search_path()},
                )
        except OSError as error:
            own.close()
            raise ResourceError(f"cannot start a process: {error.strerror}", where=f"zygote {kind}") from error
        finally:
            other.close()
        return _Zygote(kind, process, own, log)

    def _send(self, zygote: _Zygote, message: dict[str, Any], seconds: float, descriptors: Sequence[int] = ()) -> None:
        """Send once there is room, and take in what comes meanwhile.

        A zygote that waits for room for its answers reads nothing: two ends that both only send would wait for ever.

        Raises:
            OSError: The zygote is gone, or does not read in time.
        """
        deadline = time.monotonic() + seconds
        while not zygote.is_lost:
            left = max(0.0, deadline - time.monotonic())
            answers, room, _ = select.select([zygote.end], [zygote.end], [], left)
            if answers:
                self._receive(zygote)
            elif room:
                zygote.end.settimeout(max(0.1, left))
                wire.send(zygote.end, message, descriptors)
                return
            else:
                raise TimeoutError(f"does not read its orders for {seconds:g} s")
        raise BrokenPipeError("has ended")

    def _receive(self, zygote: _Zygote) -> None:
        message, _ = wire.receive(zygote.end)
        if message is None:
            self._lose(zygote, "ended unexpectedly")
        else:
            self._take_in(zygote, message)

    def _take_in(self, zygote: _Zygote, message: dict[str, Any]) -> None:
        key = message["key"]
        if message["event"] == "launched":
            zygote.pids[key] = message["pid"]
        else:
            zygote.pids.pop(key, None)
            zygote.keys.discard(key)
            self._exits.append(_exit(key, message["code"], message["description"]))

    def _lose(self, zygote: _Zygote, how: str) -> None:
        """A zygote is dead, and its workers with it."""
        zygote.is_lost = True
        if zygote.process.poll() is None:
            zygote.process.kill()
        code = zygote.process.wait(self._send_seconds)
        said = log_tail(zygote.log, 10)
        text = f"its {zygote.kind} zygote {how} ({describe_exit(code)})" + (f"; it said:\n{said}" if said else "")
        self._exits += [_exit(key, -9, text) for key in sorted(zygote.keys)]
        zygote.keys.clear()
        zygote.pids.clear()

    def _ask(self, operation: str, worker: str, incarnation: int) -> None:
        key = _key(worker, incarnation)
        for zygote in self._zygotes.values():
            if key in zygote.keys and not zygote.is_lost:
                try:
                    self._send(zygote, {"op": operation, "key": key}, ASK_SECONDS)
                except OSError as error:
                    self._lose(zygote, str(error))


def _key(worker: str, incarnation: int) -> str:
    return f"{worker}#{incarnation}"


def _exit(key: str, code: int, description: str) -> WorkerExit:
    worker, _, incarnation = key.rpartition("#")
    return WorkerExit(worker, int(incarnation), code, description)


def _search_path() -> str:
    """Where the child finds this very package, and everything else that this process finds."""
    package_parent = str(Path(errors.__file__).resolve().parents[2])
    return os.pathsep.join(dict.fromkeys([package_parent, *(entry or os.getcwd() for entry in sys.path)]))

"""A worker's end of the control plane: one bidirectional gRPC stream, kept by background threads.

The worker's own thread never waits for the network: what it says is queued, sent, kept until it is acknowledged and
sent again after a lost connection; what it is told lies in :meth:`ControlClient.take`, announced on a descriptor. Order
of calls::

    client = ControlClient(worker, trial, address, ...)
    client.connect()                               # retries until the deadline; then the controller knows us
    select([client.wake_descriptor, ...]); client.take() -> [Assignment | CommandKind | PeerGone | ControllerLost, ...]
    client.turned("poll")                          # every turn of the main loop: what silence is measured against
    client.report(report); client.reached(state)
    client.flush(timeout_seconds)                  # before the end: what was said has arrived
    client.close()
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc

from srl.api.errors import StreamError, WaitTimeout
from srl.distributed import control_pb2 as pb
from srl.distributed.certificates import SERVER_NAME, Credentials
from srl.distributed.lifecycle import State
from srl.distributed.messages import (
    CHANNEL_OPTIONS,
    METHOD,
    PROTOCOL,
    MalformedMessage,
    command_kind,
    parse_assignment,
    report_json,
    shorten,
)
from srl.distributed.trial_events import CommandKind
from srl.system.report import WorkerReport
from srl.system.worker import Assignment, WorkerId

logger = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
"""Between heartbeats when nothing else is sent."""

ATTEMPT_SECONDS = 5.0
"""Bound on one attempt to connect."""

STREAM_SECONDS = 6 * 3600.0
"""Deadline of the stream itself; when it passes, the worker dials anew."""

_OPTIONS = [
    *CHANNEL_OPTIONS,
    # Else a new attempt would inherit the back-off of the one before.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.ssl_target_name_override", SERVER_NAME),
]


@dataclass(frozen=True, slots=True)
class ControllerLost:
    """The controller cannot be reached any more, or has refused this worker; the worker ends by itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class Dialling:
    """Where the controller is and how long to try.

    Attributes:
        trial: Name of the trial.
        address: ``unix:/path`` or ``host:port``.
        connect_seconds: Bound on the first connection.
        silence_seconds: A connection without an answer for so long is dropped.
        grace_seconds: Bound on connecting anew after a lost connection.
        credentials: For mutual TLS; ``None`` on unix sockets.
    """

    trial: str
    address: str
    connect_seconds: float
    silence_seconds: float
    grace_seconds: float
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The process of another worker is dead."""

    worker: WorkerId


Told = Assignment | CommandKind | PeerGone | ControllerLost


class ControlClient:
    """The connection of one worker.

    Args:
        worker: Who it is.
        dialling: Where the controller is.

    Attributes:
        wake_descriptor: Readable when :meth:`take` has something.
        state: The state told last.
    """

    def __init__(self, worker: WorkerId, dialling: Dialling) -> None:
        self.worker = worker
        self.state = State.CREATED
        self.wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._dialling = dialling
        self._told: SimpleQueue[Told] = SimpleQueue()
        self._changed = threading.Condition()
        self._unacknowledged: dict[int, Any] = {}
        self._sequence = 0
        self._session = 0
        self._is_closing = False
        self._registered = threading.Event()
        self._lost: ControllerLost | None = None
        self._call: Any = None
        self._answered_at = 0.0
        self._turned_at = time.monotonic()
        self._doing = "connect"
        self._thread = threading.Thread(target=self._run, name="control-client", daemon=True)

    # The worker's own thread

    def connect(self) -> None:
        """Connect and register; blocks until the controller has answered.

        Raises:
            WaitTimeout: It did not within ``connect_seconds``; names address and last error.
            StreamError: It refused this worker.
        """
        self._thread.start()
        is_registered = self._registered.wait(self._dialling.connect_seconds + 2 * ATTEMPT_SECONDS)
        if self._lost is not None:
            raise StreamError(self._lost.reason, where=self._dialling.address)
        if not is_registered:
            raise WaitTimeout("no answer from the controller", where=self._dialling.address)

    def take(self) -> list[Told]:
        """What was told since the last call, in order; cheap when there is nothing."""
        if self._told.empty():
            return []
        # As many as were announced, no more: whoever takes one before its announcement leaves a descriptor that stays
        # readable with nothing to take, and every wait of this worker returns at once from then on.
        try:
            announced = os.eventfd_read(self.wake_descriptor)
        except BlockingIOError:
            return []
        return [self._told.get_nowait() for _ in range(announced)]

    def turned(self, doing: str) -> None:
        """The main loop turned, and is now at ``doing``; cheap, called every turn."""
        self._turned_at = time.monotonic()
        self._doing = doing

    def bound(self, endpoints: Mapping[str, str]) -> None:
        """Say what was bound: the worker is configured."""
        self.state = State.CONFIGURED
        self._say(endpoints=pb.Endpoints(addresses=dict(endpoints)))

    def reached(self, state: State) -> None:
        """Say which state was reached."""
        self.state = state
        self._say(state=pb.StateChange(state=state.name))

    def report(self, report: WorkerReport) -> None:
        """Send a report with a heartbeat."""
        for part in report_json(report):
            self._say(heartbeat=self._heartbeat(part))

    def finished(self, reason: str) -> None:
        """Say that the goal is reached."""
        self._say(finished=pb.Finished(reason=reason))

    def failed(self, error: str, traceback: str) -> None:
        """Say what went wrong: one line, and the traceback."""
        self.state = State.FAILED
        host = socket.gethostname()
        failure = pb.Failure(error=shorten(error), doing=self._doing, host=host, traceback=shorten(traceback))
        self._say(failure=failure)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything said has arrived; False if it did not in time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unacknowledged or self._lost is not None, timeout_seconds)
            return not self._unacknowledged

    def close(self, timeout_seconds: float = 2.0) -> None:
        """End the connection and the threads; what is unsent is lost."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds / 2)
            self._cancel()
            self._thread.join(timeout_seconds / 2)
        if not self._thread.is_alive() and self.wake_descriptor >= 0:
            os.close(self.wake_descriptor)
            self.wake_descriptor = -1

    def _say(self, **body: Any) -> None:
        with self._changed:
            self._sequence += 1
            self._unacknowledged[self._sequence] = self._message(sequence=self._sequence, **body)
            self._changed.notify_all()

    def _message(self, **fields: Any) -> Any:
        return pb.FromWorker(worker=self.worker.name, incarnation=self.worker.incarnation, **fields)

    def _heartbeat(self, report: bytes = b"") -> Any:
        silent_seconds = max(0.0, time.monotonic() - self._turned_at)
        return pb.Heartbeat(silent_seconds=silent_seconds, doing=self._doing, report_json=report)

    # The control thread

    def _run(self) -> None:
        deadline = time.monotonic() + self._dialling.connect_seconds
        attempt, started_at, error = 0, time.monotonic(), ""
        while not self._is_closing and self._lost is None:
            left = deadline - time.monotonic()
            if left <= 0:
                waited_seconds = time.monotonic() - started_at
                self._lose(f"no connection to the controller within {waited_seconds:.0f} s: {error or 'no answer'}")
                return
            was_registered, error = self._attempt(min(left, ATTEMPT_SECONDS))
            if self._is_closing or self._lost is not None:
                return
            if was_registered:
                attempt, started_at = 0, time.monotonic()
                deadline = started_at + self._dialling.grace_seconds
            attempt += 1
            pause_seconds = random.uniform(0.5, 1.5) * min(2.0, 0.05 * 2 ** min(attempt, 6))
            left = max(0.0, deadline - time.monotonic())
            at = self._dialling.address
            logger.warning("no connection to the controller at %s (%s); trying for %.0f s more", at, error, left)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, min(pause_seconds, left))

    def _attempt(self, seconds: float) -> tuple[bool, str]:
        """Dial once and stay as long as the connection holds.

        Returns:
            Whether the controller answered at all, and what ended it.
        """
        registered = False
        channel = self._channel()
        timer = threading.Timer(seconds, self._cancel)
        timer.daemon = True
        try:
            method = channel.stream_stream(
                METHOD, request_serializer=pb.FromWorker.SerializeToString, response_deserializer=pb.ToWorker.FromString
            )
            self._session += 1
            self._answered_at = time.monotonic()
            self._call = method(self._outgoing(self._session), timeout=STREAM_SECONDS)
            timer.start()
            for message in self._call:
                timer.cancel()
                self._answered_at = time.monotonic()
                self._receive(message)
                registered = registered or self._lost is None
            return registered, "the controller ended the connection"
        except grpc.RpcError as error:
            return registered, _reason(error, seconds)
        finally:
            timer.cancel()
            channel.close()
            with self._changed:
                self._session += 1  # The generator of this connection takes nothing any more.
                self._changed.notify_all()

    def _channel(self) -> Any:
        own = self._dialling.credentials
        if own is None:
            return grpc.insecure_channel(self._dialling.address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        return grpc.secure_channel(self._dialling.address, credentials, options=_OPTIONS)

    def _outgoing(self, session: int) -> Iterator[Any]:
        """What is sent on one connection: the registration, then everything that is not acknowledged, then beats."""
        register = pb.Register(
            protocol=PROTOCOL,
            trial=self._dialling.trial,
            pid=os.getpid(),
            host=socket.gethostname(),
            state=self.state.name,
        )
        yield self._message(register=register)
        sent = 0
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._has_news, session, sent), BEAT_SECONDS)
                number = self._next(sent)
                if self._session != session or (self._is_closing and not number):
                    return
                message = self._unacknowledged[number] if number else self._message(heartbeat=self._heartbeat())
            sent = number or sent
            if time.monotonic() - self._answered_at > self._dialling.silence_seconds:
                self._cancel()
                return
            yield message

    def _has_news(self, session: int, sent: int) -> bool:
        return self._session != session or self._is_closing or self._next(sent) > 0

    def _next(self, sent: int) -> int:
        """Number of the oldest message after ``sent``, 0 if there is none."""
        return next((number for number in self._unacknowledged if number > sent), 0)

    def _receive(self, message: Any) -> None:
        kind = message.WhichOneof("body")
        try:
            if kind == "acknowledge":
                self._acknowledged(message.acknowledge.sequence)
            elif kind == "refusal":
                self._lose(f"refused by the controller: {message.refusal.reason}")
            elif kind == "assignment":
                self._tell(parse_assignment(message.assignment.assignment_json))
            elif kind == "gone":
                peer = message.gone
                self._tell(PeerGone(WorkerId(peer.group, peer.kind, peer.index, peer.incarnation)))
            elif kind == "command":
                self._obey(command_kind(message.command.kind))
        except MalformedMessage as error:
            self._lose(f"the controller sent what cannot be read: {error}")

    def _acknowledged(self, sequence: int) -> None:
        with self._changed:
            for number in [number for number in self._unacknowledged if number <= sequence]:
                del self._unacknowledged[number]
            self._changed.notify_all()
        self._registered.set()

    def _obey(self, command: CommandKind) -> None:
        if command is CommandKind.DUMP_STACKS:
            # Here, not in the main loop: that one is what hangs.
            faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        else:
            self._tell(command)

    def _tell(self, what: Told) -> None:
        self._told.put(what)
        self._announce()

    def _announce(self) -> None:
        os.eventfd_write(self.wake_descriptor, 1)

    def _lose(self, reason: str) -> None:
        if self._is_closing:
            return
        with self._changed:
            self._lost = ControllerLost(reason)
            self._changed.notify_all()
        self._tell(self._lost)
        self._registered.set()

    def _cancel(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()


def _reason(error: grpc.RpcError, seconds: float) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.CANCELLED:
        return f"no answer within {seconds:.0f} s"
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    return f"{code.name if code is not None else 'error'}: {details}"

"""The controller's end of the control plane: an asynchronous gRPC server in a thread and event loop of its own.

It decides nothing: what arrives is checked, queued and announced on a descriptor; what the controller sends goes to
the connection it names. Order of calls::

    server = ControlServer(trial, bind, credentials)
    address = server.start(timeout_seconds)        # unix:/path or host:port, with the port that was really bound
    select([server.event_descriptor]) ; server.take() -> [Inbound, ...]
    server.send(connection, message)
    server.close(timeout_seconds)
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from srl.api.errors import ResourceError, StreamError, WaitTimeout
from srl.distributed import control_pb2 as pb
from srl.distributed.certificates import Credentials
from srl.distributed.messages import CHANNEL_OPTIONS, METHOD, PROTOCOL, MalformedMessage, from_worker
from srl.distributed.trial_events import Disconnected, WorkerEvent
from srl.system.report import WorkerReport

logger = logging.getLogger(__name__)

REGISTER_SECONDS = 10.0
"""A connection that has not said who it is by then is ended."""

ACKNOWLEDGE_SECONDS = 2.0
"""Bare heartbeats are answered this often: enough for a worker to notice a controller that is gone."""

MAX_WAITING = 50_000
"""Messages that may wait for the controller; beyond it the server stops reading, and the workers' sends back up."""

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # The stubs lack it.
_FRAGMENT = METHOD.strip("/").split("/")


@dataclass(frozen=True, slots=True)
class Inbound:
    """What arrived: an event, and with some heartbeats a report."""

    event: WorkerEvent | Disconnected
    report: WorkerReport | None = None


class ControlServer:
    """Serves the workers of one trial.

    Args:
        trial: Name of the trial; workers of another are refused.
        bind: ``unix:/path`` (in a directory that only the owner enters) or ``host:port``; port 0 = any free one.
        credentials: For mutual TLS; needed for everything but unix sockets.
        max_connections: Streams served at once; more are refused by gRPC itself.
    """

    def __init__(
        self, trial: str, bind: str, credentials: Credentials | None = None, max_connections: int = 64
    ) -> None:
        if credentials is None and not bind.startswith("unix:"):
            raise StreamError("a control server over TCP needs certificates", where=bind)
        self.trial = trial
        self.refused: Counter[str] = Counter()
        self.event_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bind = bind
        self._credentials = credentials
        self._max_connections = max_connections
        self._inbox: SimpleQueue[Inbound] = SimpleQueue()
        self._outboxes: dict[int, asyncio.Queue[Any]] = {}
        self._numbers = itertools.count(1)
        self._heard: dict[tuple[str, int], int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None
        self._address = ""
        self._error: Exception | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control-server", daemon=True)

    def start(self, timeout_seconds: float) -> str:
        """Bind and serve.

        Returns:
            The address that workers dial.

        Raises:
            ResourceError: The address cannot be bound.
            WaitTimeout: The server did not come up in time.
        """
        self._thread.start()
        if not self._ready.wait(timeout_seconds):
            raise WaitTimeout("the control server did not start", where=self._bind, value=f"{timeout_seconds} s")
        if self._error is not None:
            raise self._error
        return self._address

    def take(self) -> list[Inbound]:
        """Everything that arrived since the last call, in order."""
        try:
            os.eventfd_read(self.event_descriptor)
        except BlockingIOError:
            return []
        taken = []
        while True:
            try:
                taken.append(self._inbox.get_nowait())
            except Empty:
                return taken

    def send(self, connection: int, message: Any) -> None:
        """Queue a ``ToWorker`` for a connection; to one that is gone, nothing happens."""
        self._call(self._put, connection, message)

    def refuse(self, connection: int, worker: str, reason: str) -> None:
        """Tell a connection why it ends, and end it."""
        self._call(self._put, connection, pb.ToWorker(worker=worker, refusal=pb.Refusal(reason=reason)))
        self._call(self._put, connection, None)

    def close(self, timeout_seconds: float) -> None:
        """End every connection and the thread.

        Raises:
            WaitTimeout: The thread did not end in time.
        """
        self._call(self._stop)
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise WaitTimeout("the control server did not stop", where=self._bind, value=f"{timeout_seconds} s")
        if self.event_descriptor >= 0:
            os.close(self.event_descriptor)
            self.event_descriptor = -1

    # Everything below runs in the server's thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._server = grpc.aio.server(
            options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)], maximum_concurrent_rpcs=self._max_connections
        )
        service, method = _FRAGMENT
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach,
            request_deserializer=pb.FromWorker.FromString,
            response_serializer=pb.ToWorker.SerializeToString,
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        try:
            self._address = self._listen()
            await self._server.start()
            self._ready.set()
            await self._stopping.wait()
            for outbox in self._outboxes.values():
                outbox.put_nowait(None)
        finally:
            await self._server.stop(grace=0.5)

    def _listen(self) -> str:
        try:
            if self._credentials is None:
                self._server.add_insecure_port(self._bind)
                return self._bind
            own = self._credentials
            credentials = grpc.ssl_server_credentials(
                [(own.key, own.certificate)], root_certificates=own.authority, require_client_auth=True
            )
            port = self._server.add_secure_port(self._bind, credentials)
        except RuntimeError as error:
            hint = "Is the port in use? Port 0 takes any free one."
            raise ResourceError(
                "cannot bind the control server", where=self._bind, value=str(error), hint=hint
            ) from error
        host, _, _ = self._bind.rpartition(":")
        return f"{host}:{port}"

    def _call(self, function: Any, *arguments: Any) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                logger.debug("the control server stopped before a call")

    def _stop(self) -> None:
        self._stopping.set()

    def _put(self, connection: int, message: Any) -> None:
        outbox = self._outboxes.get(connection)
        if outbox is not None:
            outbox.put_nowait(message)

    def _announce(self, inbound: Inbound) -> None:
        self._inbox.put(inbound)
        os.eventfd_write(self.event_descriptor, 1)

    async def _attach(self, requests: Any, context: Any) -> None:
        connection = next(self._numbers)
        outbox: asyncio.Queue[Any] = asyncio.Queue()
        refusal = await self._first_message(connection, context, outbox)
        if refusal:
            self.refused[refusal] += 1
            await context.write(pb.ToWorker(refusal=pb.Refusal(reason=refusal)))
            return
        try:
            reader = asyncio.ensure_future(self._read(connection, context, outbox))
            writer = asyncio.ensure_future(_write(context, outbox))
            # Either side may end it: the worker by closing its half, the controller by an empty entry.
            await _first_of(reader, writer)
        finally:
            self._outboxes.pop(connection, None)
            self._announce(Inbound(Disconnected(connection)))

    async def _first_message(self, connection: int, context: Any, outbox: asyncio.Queue[Any]) -> str:
        """Take in the registration; returns why it is refused, empty = it is not."""
        try:
            message = await asyncio.wait_for(context.read(), REGISTER_SECONDS)
        except TimeoutError:
            return "no registration"
        if message is _EOF or message.WhichOneof("body") != "register":
            return "the first message was no registration"
        if message.register.protocol != PROTOCOL:
            return f"protocol {message.register.protocol}, this controller speaks {PROTOCOL}"
        if message.register.trial != self.trial:
            return "a worker of another trial"
        self._outboxes[connection] = outbox
        return "" if self._receive(connection, message, outbox) else "malformed"

    async def _read(self, connection: int, context: Any, outbox: asyncio.Queue[Any]) -> None:
        answered_at = time.monotonic()
        while (message := await context.read()) is not _EOF:
            while self._inbox.qsize() > MAX_WAITING:
                await asyncio.sleep(0.05)
            self._receive(connection, message, outbox)
            now = time.monotonic()
            if not message.sequence and now - answered_at >= ACKNOWLEDGE_SECONDS:
                answered_at = now
                outbox.put_nowait(_acknowledge(message.worker, 0))

    def _receive(self, connection: int, message: Any, outbox: asyncio.Queue[Any]) -> bool:
        """Check and queue one message; answers what has a sequence number, whether or not it was good."""
        try:
            event, report = from_worker(message, connection)
        except MalformedMessage as error:
            self.refused["malformed"] += 1
            logger.warning("connection %d: message refused: %s", connection, error)
            is_good = False
        else:
            is_good = True
            if self._is_new(message):
                self._announce(Inbound(event, report))
        if message.sequence or message.WhichOneof("body") == "register":
            outbox.put_nowait(_acknowledge(message.worker, message.sequence))
        return is_good

    def _is_new(self, message: Any) -> bool:
        """False for what was sent again after a lost connection and had arrived all the same."""
        if not message.sequence:
            return True
        key = (message.worker, message.incarnation)
        if message.sequence <= self._heard.get(key, 0):
            self.refused["arrived already"] += 1
            return False
        self._heard[key] = message.sequence
        return True


def _acknowledge(worker: str, sequence: int) -> Any:
    return pb.ToWorker(worker=worker, acknowledge=pb.Acknowledge(sequence=sequence))


async def _write(context: Any, outbox: asyncio.Queue[Any]) -> None:
    while (message := await outbox.get()) is not None:
        await context.write(message)


async def _first_of(*tasks: asyncio.Future[None]) -> None:
    """Wait until one ends, end the others, and let nothing they raise be lost."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results: Awaitable[list[BaseException | None]] = asyncio.gather(*tasks, return_exceptions=True)
        for result in await results:
            if isinstance(result, Exception) and not isinstance(result, grpc.aio.UsageError):
                logger.debug("a control connection ended with %r", result)

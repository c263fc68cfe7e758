"""A ZeroMQ socket that never blocks and can be waited for.

ZeroMQ's descriptor is edge-triggered: it becomes readable when something happened, not while something is there, and
any call on the socket, a send too, may swallow that edge. So every send looks whether something arrived, and if so
makes a second descriptor of ours readable, which stays so until the next :meth:`Port.receive`.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import zmq

from srl.api.errors import StreamError
from srl.system.streams.interface import StreamEnd

LINGER_MILLISECONDS = 1000
MESSAGES_PER_RECEIVE = 256
# As plain numbers: arithmetic on enumerations costs as much as the call.
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)

Buffer = bytes | memoryview


class Incoming(NamedTuple):
    """One message.

    Attributes:
        identity: Whom it came from (ROUTER), else empty.
        head: The head; empty, which no protocol accepts, if the message has not one head and at most one payload.
        payload: The raw frame behind the head.
    """

    identity: bytes
    head: bytes
    payload: Buffer | None


class Port:
    """A socket and its two descriptors.

    Args:
        socket: Bound or connected; owned by the port from here on.
        payload_in_place: Receive payloads without copying them out of ZeroMQ's memory; worth it for large ones.
    """

    def __init__(self, socket: zmq.Socket[bytes], *, payload_in_place: bool = False) -> None:
        self._socket = socket
        self._routed = socket.type == zmq.ROUTER
        self._payload_in_place = payload_in_place
        self._kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._kicked = False
        self._descriptors = (int(socket.get(zmq.FD)), self._kick)
        self._poller = select.poll()
        for descriptor in self._descriptors:
            self._poller.register(descriptor, select.POLLIN)
        self._rearm()

    def receive(self) -> list[Incoming]:
        """Messages that arrived, oldest first, at most ``MESSAGES_PER_RECEIVE``."""
        if not self._poller.poll(0):  # on the step path: half the time of a call of the socket
            return []
        messages: list[Incoming] = []
        while self._readable():
            messages.append(self._receive_one())
            if len(messages) == MESSAGES_PER_RECEIVE:
                self._rearm()
                return messages
        if self._kicked:
            os.eventfd_read(self._kick)
            self._kicked = False
        return messages

    def _readable(self) -> bool:
        return bool(int(self._socket.get(_EVENTS)) & _POLLIN)

    def _receive_one(self) -> Incoming:
        parts: list[Buffer]
        if self._payload_in_place:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            small = 2 if self._routed else 1
            parts = [frame.bytes if index < small else frame.buffer for index, frame in enumerate(frames)]
        else:
            parts = [*self._socket.recv_multipart(zmq.NOBLOCK)]
        identity = bytes(parts.pop(0)) if self._routed else b""
        head = bytes(parts[0]) if 1 <= len(parts) <= 2 else b""
        return Incoming(identity, head, parts[1] if len(parts) == 2 else None)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send without waiting; False if the peer of a ROUTER is gone.

        Raises:
            StreamError: If the other end has refused the connection.
        """
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise _send_error(error) from error
            return False
        finally:
            self._rearm()
        return True

    def send_in_place(self, frames: Sequence[Buffer]) -> zmq.MessageTracker:
        """Send without copying large frames; their memory is free again when the tracker is done.

        Raises:
            StreamError: If the other end has refused the connection.
        """
        try:
            tracker = self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False, track=True)
        except zmq.ZMQError as error:
            raise _send_error(error) from error
        self._rearm()
        assert isinstance(tracker, zmq.MessageTracker)
        return tracker

    def _rearm(self) -> None:
        if not self._kicked and self._readable():
            os.eventfd_write(self._kick, 1)
            self._kicked = True

    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of which one is readable when :meth:`receive` may return something."""
        return self._descriptors

    def wait(self, timeout_seconds: float) -> None:
        """Wait until there may be something to receive, or the time ran out.

        On our descriptors: ZeroMQ's own waiting would swallow the edge that :meth:`receive` looks for.
        """
        self._poller.poll(max(0, 1000 * timeout_seconds))

    @property
    def closed(self) -> bool:
        """Whether the port is closed."""
        return self._socket.closed

    def close(self, linger_milliseconds: int = LINGER_MILLISECONDS) -> None:
        """Close; what was sent is still delivered within the linger time (bounded by the context's end)."""
        if self._socket.closed:
            return
        self._socket.close(linger_milliseconds)
        os.close(self._kick)

    def abort(self) -> None:
        """Close and drop what is unsent."""
        self.close(0)


class PortEnd(StreamEnd):
    """What ends of streams over a port have in common; stands before the role among the bases."""

    _port: Port

    def wait_descriptors(self) -> Iterable[int]:
        """Descriptors of which one is readable when there may be something to poll for."""
        return self._port.descriptors()

    def close(self) -> None:
        """Close gracefully: what was sent is delivered (bounded linger)."""
        self._port.close()

    def abort(self) -> None:
        """Close at once, losing what is unsent."""
        self._port.abort()


def _send_error(error: zmq.ZMQError) -> StreamError:
    """What a failed send means: there are no water marks, so 'again' says that ZeroMQ gave the connection up."""
    if error.errno == zmq.EAGAIN:
        return StreamError(
            "the other end refused the connection",
            hint="It belongs to another trial (its key is another), or is not SRL.",
        )
    return StreamError(f"a socket failed: {error.strerror}")

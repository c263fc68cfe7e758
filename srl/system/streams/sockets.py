"""What the transports with sockets have in common: one ZeroMQ context of their own, and its bounded end."""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import zmq

from srl.api.errors import ResourceError, StreamError
from srl.system.streams.port import Port
from srl.system.transport import Transport

RECONNECT_MILLISECONDS, RECONNECT_MAX_MILLISECONDS = 20, 1000
HELLO_BYTES = 1 << 20
HEAD_BYTES = 4096


@contextmanager
def _closed_on_error(socket: zmq.Socket[bytes]) -> Iterator[zmq.Socket[bytes]]:
    """A socket that is nobody's yet: one left open would keep its context from ending."""
    try:
        yield socket
    except BaseException:
        socket.close(0)
        raise


class SocketTransport(Transport):
    """Binds and connects; owns the context and closes what its users left open.

    Args:
        endpoints: Name to address of what other processes bound.
    """

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self._endpoints = dict(endpoints)
        self._bound: dict[str, str] = {}
        self._ports: list[Port] = []
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """The context, made at first use: never before a fork."""
        if self._context is None:
            self._context = zmq.Context()
        return self._context

    @abstractmethod
    def _address_to_bind(self, name: str) -> str:
        """Where to bind a name."""

    @abstractmethod
    def _secure(self, socket: zmq.Socket[bytes], *, binds: bool) -> None:
        """Set what keeps strangers out, before binding or connecting."""

    def _socket(self, kind: int, frame_bytes: int) -> zmq.Socket[bytes]:
        """A socket with every option set: after binding or connecting some would have no effect.

        Credits, not water marks, bound what is queued; so a send never drops and never waits.
        """
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.setsockopt(zmq.MAXMSGSIZE, max(frame_bytes, HELLO_BYTES) + HEAD_BYTES)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        else:
            # The same after a reconnection, so that the other end goes on knowing whom it talks to.
            socket.setsockopt(zmq.ROUTING_ID, b"\1" + os.urandom(15))
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MILLISECONDS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MILLISECONDS)
        return socket

    def _bind(self, name: str, frame_bytes: int = 0, *, payload_in_place: bool = False) -> Port:
        """A bound ROUTER.

        Args:
            name: Name of the endpoint, such as ``sample:STREAM:RANK``.
            frame_bytes: The largest frame that an honest peer sends.
            payload_in_place: As for :class:`Port`.

        Raises:
            ResourceError: If the address is in use.
            StreamError: If it cannot be bound for another reason.
        """
        address = self._address_to_bind(name)
        with _closed_on_error(self._socket(zmq.ROUTER, frame_bytes)) as socket:
            self._secure(socket, binds=True)
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                raise self._bind_error(name, address, error) from error
            self._bound[name] = socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
            return self._own(socket, payload_in_place)

    def _bind_error(self, name: str, address: str, error: zmq.ZMQError) -> ResourceError | StreamError:
        if error.errno == errno.EADDRINUSE:
            return ResourceError(
                "the address is in use",
                where=name,
                value=address,
                expected="a free one",
                hint=self._in_use_hint(address),
            )
        return StreamError(f"cannot bind: {error.strerror}", where=name, value=address)

    def _in_use_hint(self, address: str) -> str:
        """What to do about an address that is in use."""
        return "Another worker or trial has bound it."

    def _connect(self, name: str, frame_bytes: int = 0, *, payload_in_place: bool = False) -> Port:
        """A DEALER on its way to where ``name`` is bound; it connects when the other end is there."""
        address = self._address_of(name)
        with _closed_on_error(self._socket(zmq.DEALER, frame_bytes)) as socket:
            self._secure(socket, binds=False)
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                raise StreamError(f"cannot connect: {error.strerror}", where=name, value=address) from error
            return self._own(socket, payload_in_place)

    def _own(self, socket: zmq.Socket[bytes], payload_in_place: bool) -> Port:
        port = Port(socket, payload_in_place=payload_in_place)
        self._ports = [known for known in self._ports if not known.closed] + [port]
        return port

    def _address_of(self, name: str) -> str:
        address = self._endpoints.get(name)
        if address is None:
            raise StreamError(
                "the address of this endpoint is not known here",
                where=name,
                value=sorted(self._endpoints),
                hint="The worker that binds it has to publish it before others are given their assignment.",
            )
        return address

    def bound_endpoints(self) -> Mapping[str, str]:
        """Name to address of what was bound in this process so far."""
        return dict(self._bound)

    def close(self) -> None:
        """Close what is still open and end the context; waits for unsent messages no longer than ports linger."""
        for port in self._ports:
            port.close()
        self._ports.clear()
        if self._context is not None:
            self._context.term()
            self._context = None

"""Streams between hosts, or between processes of one host that are to be as separate as if they were not."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import zmq

from srl.api.block import BlockSchema
from srl.api.policy import PolicySpec
from srl.system.parameters import ParameterReader, ParameterWriter
from srl.system.streams.interface import InferenceClient, InferenceServer, Producer, SampleConsumer, SampleProducer
from srl.system.streams.sockets import SocketTransport
from srl.system.streams.tcp.inference import Frames, TcpInferenceClient, TcpInferenceServer
from srl.system.streams.tcp.keys import Gatekeeper, TrialKeys
from srl.system.streams.tcp.samples import TcpSampleConsumer, TcpSampleProducer
from srl.system.streams.tcp.weights import MAX_WEIGHTS_BYTES, TcpParameterReader, TcpParameterWriter

LOOPBACKS = ("127.0.0.1", "::1")
HANDSHAKE_MILLISECONDS = 10_000
FETCH_SECONDS = 30.0


class TcpTransport(SocketTransport):
    """One process's way to streams over TCP; CURVE with the trial key on every bind, loopback too.

    Args:
        endpoints: Name to address of what this process connects to: ``sample:STREAM:RANK``, ``inference:STREAM:INDEX``,
            ``weights:POLICY``.
        keys: The trial key.
        host: Address to bind to, IPv6 without brackets; ``None`` = the loopback address that the machine has.
        ports: Name to fixed port; others are chosen by the system and published by :meth:`bound_endpoints`.
        fetch_seconds: Bound on the wait for one version of the weights.
    """

    def __init__(
        self,
        endpoints: Mapping[str, str],
        keys: TrialKeys,
        *,
        host: str | None = None,
        ports: Mapping[str, int] | None = None,
        fetch_seconds: float = FETCH_SECONDS,
    ) -> None:
        super().__init__(endpoints)
        self._keys = keys
        self._host = loopback() if host is None else host
        self._fixed_ports = dict(ports or {})
        self._fetch_seconds = fetch_seconds
        self._gatekeeper: Gatekeeper | None = None
        self._writers: list[TcpParameterWriter] = []

    def sample_consumer(self, stream: str, rank: int, schema: BlockSchema, slots: int) -> SampleConsumer:
        """The consumer's end; allocates the pool."""
        name = f"sample:{stream}:{rank}"
        return TcpSampleConsumer(name, rank, schema, slots, self._bind(name, schema.size_bytes, payload_in_place=True))

    def sample_producer(self, stream: str, rank: int, schema: BlockSchema, producer: Producer) -> SampleProducer:
        """An actor's end."""
        name = f"sample:{stream}:{rank}"
        return TcpSampleProducer(name, schema, producer, self._connect(name))

    def inference_server(
        self, stream: str, index: int, schema: BlockSchema, spec: PolicySpec, samples: str
    ) -> InferenceServer:
        """The end of policy worker ``index``."""
        name, frames = f"inference:{stream}:{index}", Frames.of(schema, spec)
        return TcpInferenceServer(name, frames, self._bind(name, frames.size_bytes))

    def inference_client(
        self, stream: str, servers: int, schema: BlockSchema, spec: PolicySpec, producer: Producer, samples: str
    ) -> InferenceClient:
        """An actor's end."""
        name, frames = f"inference:{stream}:{producer.actor % servers}", Frames.of(schema, spec)
        return TcpInferenceClient(name, frames, producer, self._connect(name, frames.size_bytes))

    def parameter_writer(self, policy: str, versions_kept: int) -> ParameterWriter:
        """The writer of a policy's weights."""
        writer = TcpParameterWriter(policy, versions_kept, self._bind(f"weights:{policy}"))
        self._writers.append(writer)
        return writer

    def parameter_reader(self, policy: str) -> ParameterReader:
        """A reader of a policy's weights."""
        port = self._connect(f"weights:{policy}", MAX_WEIGHTS_BYTES, payload_in_place=True)
        return TcpParameterReader(policy, port, self._fetch_seconds)

    @property
    def denied(self) -> int:
        """Connections refused because they had not the trial key."""
        return 0 if self._gatekeeper is None else self._gatekeeper.denied

    def _address_to_bind(self, name: str) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"tcp://{host}:{self._fixed_ports.get(name, 0) or '*'}"

    def _secure(self, socket: zmq.Socket[bytes], *, binds: bool) -> None:
        # A connecting end takes what the name resolves to; a binding one is what its host is.
        socket.setsockopt(zmq.IPV6, not binds or ":" in self._host)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
        if binds:
            if self._gatekeeper is None:
                self._gatekeeper = Gatekeeper(self.context, self._keys)
            self._keys.protect_server(socket)
        else:
            self._keys.protect_client(socket)

    def _in_use_hint(self, address: str) -> str:
        port = int(address.rpartition(":")[2])
        owner = port_owner(port)
        return f"Port {port} is held by {owner}. Choose another, or leave the choice to the system."

    def close(self) -> None:
        """End everything: first the threads that use a socket; the gatekeeper's ends with the context."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        super().close()
        self._gatekeeper = None


def loopback() -> str:
    """The machine's loopback address: IPv4 where there is any."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET) as probe:
        probe.bind((LOOPBACKS[0], 0))
        return LOOPBACKS[0]
    return LOOPBACKS[1]


def port_owner(port: int) -> str:
    """Who listens on a TCP port, as far as this user may see."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            return f"process {process.name} ({command[:100]})"
    return "another process" if inodes else "nobody that is still there"


def _listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on a port (state 0A in the kernel's tables)."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    return inodes


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(entry) in inodes for entry in (process / "fd").iterdir())
    except OSError:  # another user's process, or it ended meanwhile
        return False

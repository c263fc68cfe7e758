"""Streams between the processes of one host. See the package's other modules for what lies where."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import zmq

from srl.api.block import BlockSchema
from srl.api.errors import StreamError
from srl.api.policy import PolicySpec
from srl.system.parameter_store.regions import MemfdRegion
from srl.system.parameter_store.store import SharedParameterReader, SharedParameterWriter
from srl.system.parameters import ParameterReader, ParameterWriter
from srl.system.streams.interface import InferenceClient, InferenceServer, Producer, SampleConsumer, SampleProducer
from srl.system.streams.shared_memory.inference_client import SharedMemoryInferenceClient
from srl.system.streams.shared_memory.inference_server import SharedMemoryInferenceServer
from srl.system.streams.shared_memory.mailboxes import Mailboxes
from srl.system.streams.shared_memory.samples import SharedMemorySampleConsumer, SharedMemorySampleProducer
from srl.system.streams.shared_memory.segments import SlotPool, map_segment
from srl.system.streams.sockets import SocketTransport

# sockaddr_un holds 108 bytes, the last of which is zero.
MAX_PATH_BYTES = 107


class SharedMemoryTransport(SocketTransport):
    """One process's way to the streams of its host.

    Args:
        descriptors: Name to descriptor of the segments and eventfds, as ``plan_descriptors`` names them. They stay the
            caller's; mappings outlive them.
        run_dir: Directory of mode 0700 that the unix sockets of the run lie in.
        endpoints: Name to address, where it is not the one that ``run_dir`` implies.
    """

    def __init__(self, descriptors: Mapping[str, int], run_dir: Path, endpoints: Mapping[str, str] = {}) -> None:
        super().__init__(endpoints)
        self._descriptors = dict(descriptors)
        self._run_dir = run_dir
        self._pools: dict[str, SlotPool] = {}

    def sample_consumer(self, stream: str, rank: int, schema: BlockSchema, slots: int) -> SampleConsumer:
        """The consumer's end; maps the pool ``samples:STREAM:RANK``."""
        pool = SlotPool(self._descriptor(f"samples:{stream}:{rank}"), schema, f"samples:{stream}:{rank}", slots)
        name = f"sample:{stream}:{rank}"
        return SharedMemorySampleConsumer(name, rank, schema, pool, self._bind(name))

    def sample_producer(self, stream: str, rank: int, schema: BlockSchema, producer: Producer) -> SampleProducer:
        """An actor's end."""
        name = f"sample:{stream}:{rank}"
        return SharedMemorySampleProducer(name, schema, producer, self._pool(stream, rank, schema), self._connect(name))

    def _pool(self, stream: str, rank: int, schema: BlockSchema) -> SlotPool:
        """The pool of a rank, mapped once per process for producers and inference."""
        name = f"samples:{stream}:{rank}"
        if name not in self._pools:
            self._pools[name] = SlotPool(self._descriptor(name), schema, name)
        return self._pools[name]

    def _all_pools(self, stream: str, schema: BlockSchema) -> list[SlotPool]:
        ranks = sum(name.rpartition(":")[0] == f"samples:{stream}" for name in self._descriptors)
        return [self._pool(stream, rank, schema) for rank in range(ranks)]

    def inference_server(
        self, stream: str, index: int, schema: BlockSchema, spec: PolicySpec, samples: str
    ) -> InferenceServer:
        """The end of policy worker ``index``."""
        name = f"inference:{stream}"
        segment = map_segment(self._descriptor(name), name)
        layout = Mailboxes.opened(segment, schema, spec, name)
        actors = range(index, layout.actors, layout.servers)
        return SharedMemoryInferenceServer(
            name,
            index,
            layout,
            segment,
            schema,
            spec,
            self._all_pools(samples, schema),
            self._descriptor(f"wake:{stream}:server:{index}"),
            {actor: self._descriptor(f"wake:{stream}:actor:{actor}") for actor in actors},
        )

    def inference_client(
        self, stream: str, servers: int, schema: BlockSchema, spec: PolicySpec, producer: Producer, samples: str
    ) -> InferenceClient:
        """An actor's end."""
        name = f"inference:{stream}"
        segment = map_segment(self._descriptor(name), name)
        layout = Mailboxes.opened(segment, schema, spec, name)
        if layout.servers != servers:
            raise StreamError(
                "the inference segment was made for another number of policy workers",
                where=name,
                value=layout.servers,
                expected=str(servers),
            )
        return SharedMemoryInferenceClient(
            name,
            layout,
            segment,
            producer,
            schema.rows,
            self._all_pools(samples, schema),
            self._descriptor(f"wake:{stream}:server:{producer.actor % servers}"),
            self._descriptor(f"wake:{stream}:actor:{producer.actor}"),
        )

    def parameter_writer(self, policy: str, versions_kept: int) -> ParameterWriter:
        """The writer of a policy's weights."""
        return SharedParameterWriter(policy, self._weights(policy), versions_kept)

    def parameter_reader(self, policy: str) -> ParameterReader:
        """A reader of a policy's weights."""
        return SharedParameterReader(policy, self._weights(policy))

    def _weights(self, policy: str) -> MemfdRegion:
        name = f"weights:{policy}"
        return MemfdRegion(self._descriptor(name), name)

    def _descriptor(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            raise StreamError(
                "this process was not given the descriptor",
                where=name,
                value=sorted(self._descriptors),
                hint="The plan of descriptors has to list this worker among the holders.",
            )
        return descriptor

    def _address_to_bind(self, name: str) -> str:
        mode = stat.S_IMODE(self._run_dir.stat().st_mode)
        if mode & 0o077:
            raise StreamError(
                "others have access to the directory of the run's sockets",
                where=str(self._run_dir),
                value=oct(mode),
                expected="0o700",
            )
        return self._address_of(name)

    def _address_of(self, name: str) -> str:
        return self._endpoints.get(name) or f"ipc://{self._socket_path(name)}"

    def _socket_path(self, name: str) -> Path:
        path = self._run_dir / name
        if len(bytes(path)) > MAX_PATH_BYTES:
            raise StreamError(
                "the path of a unix socket is too long",
                where=name,
                value=str(path),
                expected=f"at most {MAX_PATH_BYTES} bytes",
                hint="Use a shorter run directory (TMPDIR or XDG_RUNTIME_DIR).",
            )
        return path

    def _secure(self, socket: zmq.Socket[bytes], *, binds: bool) -> None:
        """Nothing to set: only the user gets at the directory."""

    def close(self) -> None:
        """End the context, let go of the pools, remove the socket files bound here."""
        super().close()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        for address in self._bound.values():
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
        self._bound.clear()

"""Sample stream ends on one host: blocks are filled and read in the shared pool, slot numbers travel."""

from __future__ import annotations

from srl.api.block import Block, BlockHeader, BlockSchema
from srl.system.streams.interface import Credit, Producer
from srl.system.streams.messages import pack_block
from srl.system.streams.port import Buffer, Port
from srl.system.streams.samples import SocketSampleConsumer, SocketSampleProducer
from srl.system.streams.shared_memory.segments import SlotPool


class SharedMemorySampleConsumer(SocketSampleConsumer):
    """The consumer's end; the pool is the segment's."""

    def __init__(self, name: str, rank: int, schema: BlockSchema, pool: SlotPool, port: Port) -> None:
        super().__init__(name, rank, schema, pool.slots, port)
        self._pool = pool

    def block(self, slot: int) -> Block:
        """The block in a slot."""
        return self._pool.block(slot)

    def _payload_fits(self, payload: Buffer | None) -> bool:
        return payload is None

    def _take_payload(self, slot: int, payload: Buffer | None) -> None:
        """Nothing to do: the block lies in its slot."""

    def close(self) -> None:
        """Close gracefully (bounded linger), and let go of the pool."""
        super().close()
        self._pool.close()

    def abort(self) -> None:
        """Close at once, and let go of the pool."""
        super().abort()
        self._pool.close()


class SharedMemorySampleProducer(SocketSampleProducer):
    """An actor's end."""

    def __init__(self, name: str, schema: BlockSchema, producer: Producer, pool: SlotPool, port: Port) -> None:
        super().__init__(name, schema, producer, port)
        self._pool = pool

    def block(self, credit: Credit) -> Block:
        """The consumer's slot itself."""
        return self._pool.block(credit.slot)

    def _send_block(self, header: BlockHeader) -> None:
        self._port.send((pack_block(header),))

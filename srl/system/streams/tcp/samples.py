"""Sample stream ends between hosts: a header frame and the block's bytes as one raw frame.

The producer fills private buffers; a sent one is used again when ZeroMQ has let go of it. The consumer copies a payload
into the slot of its pool: so blocks are aligned and memory is bounded by the slots, whatever is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zmq

from srl.api.block import Block, BlockHeader, BlockSchema
from srl.system.memory import PAGE_BYTES, aligned_zeros, round_up
from srl.system.streams.interface import Credit, Producer
from srl.system.streams.messages import pack_block
from srl.system.streams.port import Buffer, Port
from srl.system.streams.samples import SocketSampleConsumer, SocketSampleProducer


class TcpSampleConsumer(SocketSampleConsumer):
    """The consumer's end; the pool is private memory."""

    def __init__(self, name: str, rank: int, schema: BlockSchema, slots: int, port: Port) -> None:
        super().__init__(name, rank, schema, slots, port)
        stride = round_up(schema.size_bytes, PAGE_BYTES)
        pool = aligned_zeros(slots * stride, PAGE_BYTES)
        self._blocks: Sequence[Block] = [
            Block(schema, pool[slot * stride : (slot + 1) * stride]) for slot in range(slots)
        ]

    def block(self, slot: int) -> Block:
        """The block in a slot."""
        return self._blocks[slot]

    def _payload_fits(self, payload: Buffer | None) -> bool:
        return payload is not None and len(payload) == self._schema.size_bytes

    def _take_payload(self, slot: int, payload: Buffer | None) -> None:
        assert payload is not None
        np.copyto(self._blocks[slot].buffer, np.frombuffer(payload, np.uint8))


class TcpSampleProducer(SocketSampleProducer):
    """An actor's end; credits bound the number of buffers."""

    def __init__(self, name: str, schema: BlockSchema, producer: Producer, port: Port) -> None:
        super().__init__(name, schema, producer, port)
        self._filling: dict[int, Block] = {}
        self._sending: list[tuple[zmq.MessageTracker, Block]] = []
        self._free: list[Block] = []

    def block(self, credit: Credit) -> Block:
        """A private buffer for the credit."""
        block = self._filling.get(credit.grant)
        if block is None:
            block = self._filling[credit.grant] = self._buffer()
        return block

    def _buffer(self) -> Block:
        """A buffer that nobody uses."""
        sending, self._sending = self._sending, []
        for tracker, block in sending:
            if tracker.done:
                self._free.append(block)
            else:
                self._sending.append((tracker, block))
        if self._free:
            return self._free.pop()
        return Block(self._schema, aligned_zeros(self._schema.size_bytes))

    def _send_block(self, header: BlockHeader) -> None:
        block = self._filling.pop(header.grant, None)
        if block is None:  # never asked for: its contents are stale, as they would be in a shared slot
            block = self._buffer()
        tracker = self._port.send_in_place((pack_block(header), block.buffer.data))
        self._sending.append((tracker, block))

    def give_back(self, credit: Credit, reason: str) -> None:
        """Return a credit without a block."""
        super().give_back(credit, reason)
        block = self._filling.pop(credit.grant, None)
        if block is not None:
            self._free.append(block)

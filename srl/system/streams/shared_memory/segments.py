"""Mapping segments, and the pool of slots in one."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from srl.api.block import Block, BlockSchema
from srl.api.errors import StreamError
from srl.system.memory import PAGE_BYTES, round_up


def slot_stride_bytes(schema: BlockSchema) -> int:
    """Distance of two slots: a block's size in whole pages, so that no two blocks share one."""
    return round_up(schema.size_bytes, PAGE_BYTES)


def map_segment(descriptor: int, where: str, at_least_bytes: int = PAGE_BYTES) -> NDArray[np.uint8]:
    """The whole segment as writable ``uint8`` array; the mapping lives as long as a view of it.

    Raises:
        StreamError: If it is shorter than ``at_least_bytes``: touching what is missing would kill with SIGBUS.
    """
    size = os.fstat(descriptor).st_size
    if size < at_least_bytes:
        raise StreamError(
            "a shared segment is smaller than both ends agreed",
            where=where,
            value=size,
            expected=f"at least {at_least_bytes} bytes",
        )
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


class SlotPool:
    """The blocks in a sample segment.

    Args:
        descriptor: The segment ``samples:STREAM:RANK``.
        schema: What a block looks like.
        where: Name for messages.
        slots: Slots there must be; ``None`` = as many as fit.
    """

    def __init__(self, descriptor: int, schema: BlockSchema, where: str, slots: int | None = None) -> None:
        self._stride = slot_stride_bytes(schema)
        self._segment = map_segment(descriptor, where, (slots or 1) * self._stride)
        self._schema = schema
        self._where = where
        self._blocks: dict[int, Block] = {}
        self.slots = len(self._segment) // self._stride if slots is None else slots

    def block(self, slot: int) -> Block:
        """The block in a slot, its views made once.

        Raises:
            StreamError: If there is no such slot.
        """
        block = self._blocks.get(slot)
        return self._open(slot) if block is None else block

    def _open(self, slot: int) -> Block:
        if not 0 <= slot < self.slots:
            raise StreamError("no such slot", where=self._where, value=slot, expected=f"below {self.slots}")
        start = slot * self._stride
        block = self._blocks[slot] = Block(self._schema, self._segment[start : start + self._stride])
        return block

    def close(self) -> None:
        """Let go of the mapping; it ends with the last block that someone holds."""
        self._blocks = {}
        self._segment = np.zeros(0, np.uint8)
        self.slots = 0

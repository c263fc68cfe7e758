"""What brings blocks to a trainer: stream end, flow control and batch assembly, beside training where it has a thread.

The same object without a thread serves the fused run: the trainer then pumps it itself.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from srl.api.algorithm import Batch
from srl.api.block import BlockSchema
from srl.system.flow.control import Cut, FlowControl, Grant, ReadyBlock
from srl.system.streams.interface import Connected, Producer, SampleConsumer
from srl.system.workers.batch import BatchBuffer, batch_in_place

IDLE_SECONDS = 0.05
"""How long the intake thread sleeps at most without looking at stragglers."""


@dataclass(slots=True)
class Delivery:
    """A batch and the blocks it was made of; ``held`` means that it aliases their slots."""

    batch: Batch
    blocks: Sequence[ReadyBlock]
    held: bool


class Intake:
    """Pumps a sample stream into batches.

    One batch may wait assembled while another is being trained on; single blocks are handed on in place.

    Args:
        consumer: The stream's end; owned.
        flow: Credits, ledger, gate and accounting of the stream.
        schema: Schema of a block.
        blocks_per_update: N.
        threaded: Run beside training, in a thread of its own.
    """

    def __init__(
        self,
        consumer: SampleConsumer,
        flow: FlowControl,
        schema: BlockSchema,
        *,
        blocks_per_update: int,
        threaded: bool,
    ) -> None:
        self._consumer = consumer
        self._flow = flow
        self._in_place = blocks_per_update == 1
        self._buffers = [] if self._in_place else [BatchBuffer(schema, blocks_per_update) for _ in range(2)]
        self._producers: dict[int, Producer] = {}
        self._turn = 0
        self._version = 0
        self._entering = 0
        self._ready: Delivery | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._error: BaseException | None = None
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if threaded else -1
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if threaded else -1
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True) if threaded else None

    def start(self, version: int) -> None:
        """Begin to grant credits, at ``version``."""
        self._version = self._entering = version
        if self._thread is not None:
            self._thread.start()

    def pump(self) -> bool:
        """Take in what arrived, send what is due, assemble the next batch; True if anything happened."""
        with self._lock:
            return not self._closed and self._pump()

    def take(self) -> Delivery | None:
        """The next batch, if it is ready; the trainer is then inside the update until :meth:`trained`."""
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self.pump()
        else:
            _clear(self._signal)
        with self._lock:
            delivery, self._ready = self._ready, None
            if delivery is not None:
                self._entering = self._version + 1
        return delivery

    def trained(self, delivery: Delivery, version: int) -> None:
        """The update is done and ``version`` is published: its slots are free, credits for the next go out."""
        with self._lock:
            self._flow.trained(delivery.blocks, version - 1)
            if delivery.held:
                self._flow.release(delivery.blocks)
            self._version = version
            self._entering = version
            self._pump_dry()

    def discard(self, delivery: Delivery, reason: str) -> None:
        """The update came to nothing: its blocks are dropped for ``reason`` and the version stays."""
        with self._lock:
            self._flow.discard(delivery.blocks, reason)
            if delivery.held:
                self._flow.release(delivery.blocks)
            self._entering = self._version
            self._pump_dry()

    def drain(self) -> None:
        """Grant no more."""
        with self._lock:
            self._flow.drain()

    def drained(self) -> bool:
        """True when no credit is out."""
        with self._lock:
            self._pump_dry()
            return self._flow.drained()

    def producer_gone(self, actor: int, incarnation: int) -> None:
        """An actor's process is dead: what it had announced is taken in, then its credits end."""
        with self._lock:
            self._pump_dry()
            producer = self._producers.get(actor)
            if producer is None or producer.incarnation != incarnation:
                # Its greeting may be under way still: whoever believed it would grant to a dead process.
                producer = Producer(actor, incarnation, ring_groups=0)
            else:
                del self._producers[actor]
            self._flow.producer_died(producer)
            self._consumer.forget(producer)

    def counts(self) -> dict[str, Any]:
        """The accounting of the stream."""
        with self._lock:
            return self._flow.counts()

    def wait_descriptors(self) -> list[int]:
        """Readable when :meth:`take` may have something."""
        return list(self._consumer.wait_descriptors()) if self._thread is None else [self._signal]

    def stop(self) -> None:
        """End the thread; the stream's end stays open."""
        with self._lock:
            self._closed = True
        if self._thread is not None and self._thread.is_alive():
            os.eventfd_write(self._wake, 1)
            self._thread.join(timeout=5.0)

    def close(self) -> None:
        """Stop, and close the stream's end."""
        self.stop()
        self._consumer.close()
        self._close_descriptors()

    def abort(self) -> None:
        """Stop, and close the stream's end at once."""
        self.stop()
        self._consumer.abort()
        self._close_descriptors()

    def _pump_dry(self) -> None:
        """Pump until nothing happens: sending may swallow the edge that would have woken the intake thread."""
        while not self._closed and self._pump():
            pass

    def _pump(self) -> bool:
        now = time.monotonic()
        events = self._consumer.events()
        for event in events:
            if isinstance(event, Connected):
                self._producers[event.producer.actor] = event.producer
            self._flow.handle(event, now)
        assembled = self._ready is None and self._assemble(now)
        sent = self._send(now)
        return bool(events) or assembled or sent

    def _send(self, now: float) -> bool:
        instructions = self._flow.instructions(self._version, now)
        for instruction in instructions:
            if isinstance(instruction, Grant):
                self._consumer.send_credit(instruction.producer, instruction.credit)
            elif isinstance(instruction, Cut):
                self._consumer.send_cut(instruction.producer, instruction.grant)
        return bool(instructions)

    def _assemble(self, now: float) -> bool:
        """Take the blocks of the update that is entered next.

        While one update runs, the next one's lag rule is checked for the version it will be entered with; what is
        outstanding can only become less until then, so the rule still holds on entering.
        """
        blocks = self._flow.take(self._entering, now)
        if blocks is None:
            return False
        pairs = [(ready.header, self._consumer.block(ready.slot)) for ready in blocks]
        if self._in_place:
            self._ready = Delivery(batch_in_place(*pairs[0]), blocks, held=True)
        else:
            self._turn ^= 1
            self._ready = Delivery(self._buffers[self._turn].fill(pairs), blocks, held=False)
            self._flow.release(blocks)
        if self._thread is not None:
            os.eventfd_write(self._signal, 1)
        return True

    def _run(self) -> None:
        poller = select.poll()
        for descriptor in (*self._consumer.wait_descriptors(), self._wake):
            poller.register(descriptor, select.POLLIN)
        try:
            while not self._closed:
                if not self.pump():
                    poller.poll(1000 * self._sleep_seconds())
        except BaseException as error:
            self._error = error
            os.eventfd_write(self._signal, 1)

    def _sleep_seconds(self) -> float:
        with self._lock:
            due = self._flow.wake_time(time.monotonic())
        return IDLE_SECONDS if due is None else min(IDLE_SECONDS, max(0.001, due - time.monotonic()))

    def _close_descriptors(self) -> None:
        for descriptor in (self._signal, self._wake):
            if descriptor >= 0:
                os.close(descriptor)
        self._signal = self._wake = -1


def _clear(descriptor: int) -> None:
    try:
        os.eventfd_read(descriptor)
    except BlockingIOError:
        pass

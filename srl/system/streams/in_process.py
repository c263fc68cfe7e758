"""The transport of a fused run: the same calls without sockets.

One :class:`InProcessTransport` is shared by all workers of the process. Messages are objects in deques, blocks lie in
one pool of private memory, inference writes in place. Nothing can be waited for (``wait_descriptors`` is empty): a
worker that has nothing to do gives the turn to the next one.

Both ends may be built in either order; each pair meets in a channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from srl.api.block import Block, BlockHeader, BlockSchema
from srl.api.errors import SchemaMismatchError, StreamError, UsageError
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.memory import PAGE_BYTES, aligned_zeros, round_up
from srl.system.parameter_store.store import SharedParameterStore
from srl.system.parameters import ParameterReader, ParameterWriter
from srl.system.streams.bookkeeping import SCHEMA_MISMATCH, Admission, CreditBook, refusal
from srl.system.streams.interface import (
    Credit,
    InferenceClient,
    InferenceRequest,
    InferenceServer,
    Producer,
    Refused,
    SampleConsumer,
    SampleEvent,
    SampleProducer,
)
from srl.system.transport import Transport

_ToConsumer = tuple["InProcessSampleProducer", "Producer | BlockHeader | tuple[int, str]"]


class _SampleChannel:
    """Where the consumer and the producers of one stream and rank meet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.to_consumer: deque[_ToConsumer] = deque()
        self.consumer: InProcessSampleConsumer | None = None


class InProcessSampleConsumer(SampleConsumer):
    """The consumer's end; owns the pool."""

    def __init__(self, channel: _SampleChannel, rank: int, schema: BlockSchema, slots: int) -> None:
        self.slots = slots
        self._schema = schema
        self._rank = rank
        self._channel = channel
        self._admission = Admission(schema)
        self._producers: dict[Producer, InProcessSampleProducer] = {}
        stride = round_up(schema.size_bytes, PAGE_BYTES)
        pool = aligned_zeros(slots * stride, PAGE_BYTES)
        self._blocks = [Block(schema, pool[slot * stride : (slot + 1) * stride]) for slot in range(slots)]

    def events(self) -> Sequence[SampleEvent]:
        """What arrived since the last call, in order of arrival."""
        waiting = self._channel.to_consumer
        events: list[SampleEvent] = []
        while waiting:
            end, message = waiting.popleft()
            if isinstance(message, BlockHeader):
                events.append(self._admission.announce(end.producer, message))
            elif isinstance(message, Producer):
                events.append(self._connect(end))
            else:
                events.append(self._admission.give_back(end.producer, *message))
        return events

    def _connect(self, end: InProcessSampleProducer) -> SampleEvent:
        try:
            self._schema.check_equal(end.schema, self._channel.name)
        except SchemaMismatchError as error:
            end.rejected = error
            return Refused(SCHEMA_MISMATCH)
        event = self._admission.connect(end.producer)
        if isinstance(event, Refused):
            end.rejected = refusal(self._channel.name, event.reason, end.producer)
        else:
            self._producers[end.producer] = end
        return event

    def send_credit(self, producer: Producer, credit: Credit) -> None:
        """Grant."""
        credit = credit if credit.rank == self._rank else replace(credit, rank=self._rank)
        self._admission.granted(producer, credit)
        end = self._producers.get(producer)
        if end is not None:
            end.inbox.append(credit)

    def send_cut(self, producer: Producer, grant: int) -> None:
        """Ask for the rows there are."""
        end = self._producers.get(producer)
        if end is not None:
            end.inbox.append(grant)

    def block(self, slot: int) -> Block:
        """The block in a slot."""
        return self._blocks[slot]

    def forget(self, producer: Producer) -> None:
        """The producer is dead."""
        self._admission.forget(producer)
        self._producers.pop(producer, None)

    def wait_descriptors(self) -> Iterable[int]:
        """None: all ends share one thread."""
        return ()

    def close(self) -> None:
        """Let go of the producers; blocks stay valid while someone holds them."""
        self._producers.clear()

    def abort(self) -> None:
        """The same as :meth:`close`: nothing is ever unsent here."""
        self.close()


class InProcessSampleProducer(SampleProducer):
    """An actor's end."""

    def __init__(self, channel: _SampleChannel, schema: BlockSchema, producer: Producer) -> None:
        self.producer = producer
        self.schema = schema
        self.inbox: deque[Credit | int] = deque()
        self.rejected: StreamError | SchemaMismatchError | None = None
        self._channel = channel
        self._book = CreditBook(producer.ring_groups, channel.name)
        channel.to_consumer.append((self, producer))

    def poll(self) -> None:
        """Take in credits and cut requests.

        Raises:
            SchemaMismatchError: If the consumer's schema is another one.
            StreamError: If the consumer refused this incarnation.
        """
        if self.rejected is not None:
            raise self.rejected
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Credit):
                self._book.receive(message)
            else:
                self._book.cut(message)

    def take_credit(self, ring_group: int) -> Credit | None:
        """The oldest unused credit of a ring group."""
        return self._book.take(ring_group)

    def block(self, credit: Credit) -> Block:
        """The consumer's slot itself."""
        consumer = self._channel.consumer
        if consumer is None:
            raise StreamError("a block was asked for before its consumer exists", where=self._channel.name)
        return consumer.block(credit.slot)

    def send(self, header: BlockHeader) -> None:
        """Announce a filled block."""
        self._book.settle(header.grant)
        self._channel.to_consumer.append((self, header))

    def give_back(self, credit: Credit, reason: str) -> None:
        """Return a credit without a block."""
        self._book.settle(credit.grant)
        self._channel.to_consumer.append((self, (credit.grant, reason)))

    def cuts(self) -> set[int]:
        """Grants whose consumer asked for the rows there are."""
        return self._book.cuts

    def wait_descriptors(self) -> Iterable[int]:
        """None: all ends share one thread."""
        return ()

    def close(self) -> None:
        """Forget what is unread; what was sent lies at the consumer already."""
        self.inbox.clear()

    def abort(self) -> None:
        """The same as :meth:`close`."""
        self.close()


class _InferenceChannel:
    """Where the policy workers and actors of one inference stream meet: one queue per policy worker."""

    def __init__(self) -> None:
        self.queues: dict[int, deque[InferenceRequest]] = {}

    def queue(self, index: int) -> deque[InferenceRequest]:
        """The queue of policy worker ``index``."""
        return self.queues.setdefault(index, deque())


class InProcessInferenceClient(InferenceClient):
    """An actor's end: requests are appended to its policy worker's queue."""

    def __init__(self, queue: deque[InferenceRequest], producer: Producer) -> None:
        self._queue = queue
        self._actor = producer.actor
        self._incarnation = producer.incarnation
        self._replies: deque[tuple[int, int]] = deque()

    def request(self, credit: Credit, row: int, batch: ActInput, out: ActOutput) -> None:
        """Ask for decisions; ``batch`` and ``out`` are handed over as they are."""
        self._queue.append(
            InferenceRequest(
                self._actor,
                self._incarnation,
                credit.ring_group,
                credit.min_version,
                credit.exact,
                batch,
                out,
                self._replies,
            )
        )

    def poll(self) -> Sequence[tuple[int, int]]:
        """Replies since the last call: (ring group, version)."""
        replies = self._replies
        return [replies.popleft() for _ in range(len(replies))] if replies else ()

    def wait_descriptors(self) -> Iterable[int]:
        """None: all ends share one thread."""
        return ()

    def close(self) -> None:
        """Forget unread replies."""
        self._replies.clear()

    def abort(self) -> None:
        """The same as :meth:`close`."""
        self.close()


class InProcessInferenceServer(InferenceServer):
    """A policy worker's end."""

    def __init__(self, queue: deque[InferenceRequest]) -> None:
        self._queue = queue

    def requests(self) -> Sequence[InferenceRequest]:
        """Requests that wait, oldest first."""
        queue = self._queue
        return [queue.popleft() for _ in range(len(queue))] if queue else ()

    def reply(self, request: InferenceRequest, version: int) -> None:
        """The decision lies in the actor's arrays; say so."""
        replies = request.ticket
        if not isinstance(replies, deque):
            raise UsageError("a request is answered to the end that it came from", value=type(replies).__name__)
        replies.append((request.ring_group, version))

    def wait_descriptors(self) -> Iterable[int]:
        """None: all ends share one thread."""
        return ()

    def close(self) -> None:
        """Drop what waits."""
        self._queue.clear()

    def abort(self) -> None:
        """The same as :meth:`close`."""
        self.close()


class InProcessTransport(Transport):
    """All streams of a fused run; every worker of the process gets this one object."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], _SampleChannel] = {}
        self._inference: dict[str, _InferenceChannel] = {}
        self._stores: dict[str, SharedParameterStore] = {}

    def _sample_channel(self, stream: str, rank: int) -> _SampleChannel:
        return self._samples.setdefault((stream, rank), _SampleChannel(f"sample:{stream}:{rank}"))

    def sample_consumer(self, stream: str, rank: int, schema: BlockSchema, slots: int) -> SampleConsumer:
        """The consumer's end; allocates the pool.

        Raises:
            UsageError: If the stream and rank have a consumer already.
        """
        channel = self._sample_channel(stream, rank)
        if channel.consumer is not None:
            raise UsageError("this stream and rank have a consumer already", where=channel.name)
        channel.consumer = InProcessSampleConsumer(channel, rank, schema, slots)
        return channel.consumer

    def sample_producer(self, stream: str, rank: int, schema: BlockSchema, producer: Producer) -> SampleProducer:
        """An actor's end."""
        return InProcessSampleProducer(self._sample_channel(stream, rank), schema, producer)

    def inference_server(
        self, stream: str, index: int, schema: BlockSchema, spec: PolicySpec, samples: str
    ) -> InferenceServer:
        """The end of policy worker ``index``."""
        return InProcessInferenceServer(self._inference.setdefault(stream, _InferenceChannel()).queue(index))

    def inference_client(
        self, stream: str, servers: int, schema: BlockSchema, spec: PolicySpec, producer: Producer, samples: str
    ) -> InferenceClient:
        """An actor's end."""
        channel = self._inference.setdefault(stream, _InferenceChannel())
        return InProcessInferenceClient(channel.queue(producer.actor % servers), producer)

    def _store(self, policy: str) -> SharedParameterStore:
        return self._stores.setdefault(policy, SharedParameterStore(policy))

    def parameter_writer(self, policy: str, versions_kept: int) -> ParameterWriter:
        """The writer of a policy's weights."""
        return self._store(policy).writer(versions_kept)

    def parameter_reader(self, policy: str) -> ParameterReader:
        """A reader of a policy's weights."""
        return self._store(policy).reader()

    def bound_endpoints(self) -> Mapping[str, str]:
        """Nothing is bound."""
        return {}

    def close(self) -> None:
        """Let go of channels and stores; views that workers hold stay valid."""
        self._samples.clear()
        self._inference.clear()
        self._stores.clear()

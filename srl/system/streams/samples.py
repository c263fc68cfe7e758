"""Sample stream ends over ZeroMQ: handshake, credits, cuts, announcements. Where blocks lie is the subclass's.

The consumer's socket is a ROUTER, a producer's a DEALER. Credits bound what is in flight, so no send ever waits.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from srl.api.block import BlockHeader, BlockSchema
from srl.api.errors import SchemaMismatchError
from srl.system.streams.bookkeeping import SCHEMA_MISMATCH, UNKNOWN_PRODUCER, Admission, CreditBook, refusal
from srl.system.streams.interface import (
    Announced,
    Credit,
    Producer,
    Refused,
    SampleConsumer,
    SampleEvent,
    SampleProducer,
)
from srl.system.streams.messages import (
    Cut,
    GivenBack,
    Hello,
    MalformedMessage,
    Message,
    Rejected,
    Welcome,
    pack_credit,
    pack_cut,
    pack_given_back,
    pack_hello,
    pack_rejected,
    pack_welcome,
    unpack,
)
from srl.system.streams.port import Buffer, Incoming, Port, PortEnd

MALFORMED = "malformed"


def describe(schema: BlockSchema) -> str:
    """The text by which two ends compare their schemas."""
    return json.dumps(schema.to_dict(), sort_keys=True)


class SocketSampleConsumer(PortEnd, SampleConsumer):
    """The consumer's end over a ROUTER.

    Args:
        name: ``sample:STREAM:RANK``, for messages.
        rank: The trainer rank.
        schema: What blocks look like.
        slots: Number of slots of the pool.
        port: The bound socket.
    """

    def __init__(self, name: str, rank: int, schema: BlockSchema, slots: int, port: Port) -> None:
        self.slots = slots
        self._name = name
        self._rank = rank
        self._schema = schema
        self._description = describe(schema)
        self._port = port
        self._admission = Admission(schema)
        self._producers: dict[bytes, Producer] = {}
        self._routes: dict[Producer, bytes] = {}

    @abstractmethod
    def _payload_fits(self, payload: Buffer | None) -> bool:
        """Whether the frame behind a header is what this transport sends."""

    @abstractmethod
    def _take_payload(self, slot: int, payload: Buffer | None) -> None:
        """An admitted block's frame, to be put into its slot."""

    def events(self) -> Sequence[SampleEvent]:
        """What arrived since the last call, in order of arrival."""
        return [self._event(incoming) for incoming in self._port.receive()]

    def _event(self, incoming: Incoming) -> SampleEvent:
        try:
            message = unpack(incoming.head)
            if isinstance(message, Hello):
                return self._greet(incoming.identity, message)
        except MalformedMessage:
            return Refused(MALFORMED)
        producer = self._producers.get(incoming.identity)
        if producer is None:
            return Refused(UNKNOWN_PRODUCER)
        if isinstance(message, BlockHeader):
            return self._block_event(producer, message, incoming.payload)
        if isinstance(message, GivenBack):
            return self._admission.give_back(producer, message.grant, message.reason)
        return Refused(MALFORMED)

    def _block_event(self, producer: Producer, header: BlockHeader, payload: Buffer | None) -> SampleEvent:
        if not self._payload_fits(payload):
            return Refused(MALFORMED)
        event = self._admission.announce(producer, header)
        if isinstance(event, Announced):
            self._take_payload(header.slot, payload)
        return event

    def _greet(self, identity: bytes, hello: Hello) -> SampleEvent:
        try:
            if hello.description != self._description:
                self._schema.check_equal(_schema_of(hello.description), self._name)
        except SchemaMismatchError as error:
            self._port.send((identity, pack_rejected(error)))
            return Refused(SCHEMA_MISMATCH)
        event = self._admission.connect(hello.producer)
        if isinstance(event, Refused):
            self._port.send((identity, pack_rejected(refusal(self._name, event.reason, hello.producer))))
            return event
        self._producers[identity] = hello.producer
        self._routes[hello.producer] = identity
        self._port.send((identity, pack_welcome()))
        return event

    def send_credit(self, producer: Producer, credit: Credit) -> None:
        """Grant; to a producer whose connection is gone nothing is sent, its death is the controller's to confirm."""
        self._admission.granted(producer, credit)
        self._send(producer, pack_credit(replace(credit, rank=self._rank)))

    def send_cut(self, producer: Producer, grant: int) -> None:
        """Ask for the rows there are."""
        self._send(producer, pack_cut(grant))

    def _send(self, producer: Producer, message: bytes) -> None:
        identity = self._routes.get(producer)
        if identity is not None:
            self._port.send((identity, message))

    def forget(self, producer: Producer) -> None:
        """The producer is dead. Its identity stays known, so that what still arrives is refused by its reason."""
        self._admission.forget(producer)
        self._routes.pop(producer, None)


class SocketSampleProducer(PortEnd, SampleProducer):
    """An actor's end over a DEALER; says hello at once.

    Args:
        name: ``sample:STREAM:RANK``, for messages.
        schema: What blocks look like.
        producer: Who it is.
        port: The connected socket.

    Attributes:
        malformed: Messages that no consumer sends; counted, not processed.
    """

    def __init__(self, name: str, schema: BlockSchema, producer: Producer, port: Port) -> None:
        self.malformed = 0
        self._name = name
        self._schema = schema
        self._port = port
        self._book = CreditBook(producer.ring_groups, name)
        port.send((pack_hello(producer, describe(schema)),))

    def poll(self) -> None:
        """Take in credits and cut requests.

        Raises:
            SchemaMismatchError: If the consumer's schema is another one; names the field.
            StreamError: If the consumer refused this incarnation.
        """
        for incoming in self._port.receive():
            try:
                self._take(unpack(incoming.head))
            except MalformedMessage:
                self.malformed += 1

    def _take(self, message: Message) -> None:
        if isinstance(message, Credit):
            self._book.receive(message)
        elif isinstance(message, Cut):
            self._book.cut(message.grant)
        elif isinstance(message, Rejected):
            raise message.error
        elif not isinstance(message, Welcome):
            raise MalformedMessage("a message that no consumer sends", where=self._name, value=type(message).__name__)

    def take_credit(self, ring_group: int) -> Credit | None:
        """The oldest unused credit of a ring group."""
        return self._book.take(ring_group)

    def send(self, header: BlockHeader) -> None:
        """Announce a filled block."""
        self._book.settle(header.grant)
        self._send_block(header)

    @abstractmethod
    def _send_block(self, header: BlockHeader) -> None:
        """Send a block's header, and its payload where it has to travel."""

    def give_back(self, credit: Credit, reason: str) -> None:
        """Return a credit without a block."""
        self._book.settle(credit.grant)
        self._port.send((pack_given_back(credit.grant, reason),))

    def cuts(self) -> set[int]:
        """Grants whose consumer asked for the rows there are."""
        return self._book.cuts


def _schema_of(description: str) -> BlockSchema:
    try:
        return BlockSchema.from_dict(json.loads(description))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise MalformedMessage("a schema that does not parse", hint=str(error)) from error

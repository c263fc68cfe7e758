"""The two ends of every stream. Workers use these and never know which transport is behind them.

Sample stream (one-way flow of blocks, consumer grants credits)::

    consumer                                         producer (one per actor worker)
    events() -> Connected(producer)         <----    connects, says who it is
    send_credit(producer, credit)           ---->    take_credit(ring_group) -> Credit
    ...                                              block(credit) -> Block to fill in place
    events() -> Announced(producer, header) <----    send(header)
    block(slot) -> Block, read only
    (ledger says when the slot is free again)
    send_cut(producer, grant)               ---->    cuts() -> {grant, ...}
    events() -> Returned(producer, grant)   <----    give_back(credit, reason)

Inference stream (request / reply)::

    actor: InferenceClient.request(...)     ---->    policy worker: InferenceServer.requests()
    actor: InferenceClient.poll() -> done   <----    InferenceServer.reply(request, version)

All calls are non-blocking. ``wait_descriptors()`` are file descriptors that become readable when there is something to
poll; a worker's shell blocks on them. ``close`` is graceful, ``abort`` abrupt; a destructor may only call ``abort``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from srl.api.block import Block, BlockHeader
from srl.api.policy import ActInput, ActOutput


@dataclass(frozen=True, slots=True)
class Producer:
    """Who produces: one actor worker in one of its lives.

    Attributes:
        actor: Index of the actor worker in its group.
        incarnation: Its incarnation.
        ring_groups: Number of ring groups; each has one block under way at a time.
    """

    actor: int
    incarnation: int
    ring_groups: int


@dataclass(frozen=True, slots=True)
class Credit:
    """The right to produce one block.

    Attributes:
        grant: Number of the grant, unique at its consumer, ascending.
        ring_group: The ring group it is for.
        slot: Slot of the consumer's pool to fill.
        generation: Generation of the slot; a block that names an older one is refused.
        min_version: The policy version at the grant.
        exact: Act with exactly ``min_version`` (lockstep), not with that or newer.
        rank: Trainer rank whose pool the slot is in; the consumer's end fills it in.
    """

    grant: int
    ring_group: int
    slot: int
    generation: int
    min_version: int
    exact: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Connected:
    """A producer connected (its schema agrees)."""

    producer: Producer


@dataclass(frozen=True, slots=True)
class Announced:
    """A block is complete and lies in its slot."""

    producer: Producer
    header: BlockHeader


@dataclass(frozen=True, slots=True)
class Returned:
    """A credit came back without a block; ``reason`` is the word it is counted under."""

    producer: Producer
    grant: int
    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that carried a superseded incarnation or generation, or was malformed; counted, not processed."""

    reason: str


SampleEvent = Connected | Announced | Returned | Refused


class StreamEnd(ABC):
    """What every end of a stream has."""

    @abstractmethod
    def wait_descriptors(self) -> Iterable[int]:
        """Descriptors that become readable when there may be something to poll for."""

    @abstractmethod
    def close(self) -> None:
        """Close gracefully: what was sent is delivered (bounded linger)."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, losing what is unsent."""


class SampleConsumer(StreamEnd):
    """The end that receives blocks and owns the slots."""

    slots: int

    @abstractmethod
    def events(self) -> Sequence[SampleEvent]:
        """What arrived since the last call, in order of arrival."""

    @abstractmethod
    def send_credit(self, producer: Producer, credit: Credit) -> None:
        """Grant; the slot belongs to the producer until it announces or returns it."""

    @abstractmethod
    def send_cut(self, producer: Producer, grant: int) -> None:
        """Ask the producer to send the rows it has for this grant."""

    @abstractmethod
    def block(self, slot: int) -> Block:
        """The block in a slot; valid until the slot is granted again."""

    @abstractmethod
    def forget(self, producer: Producer) -> None:
        """The producer is dead: whatever still arrives from this incarnation is refused."""


class SampleProducer(StreamEnd):
    """The end that fills blocks."""

    @abstractmethod
    def poll(self) -> None:
        """Take in credits and cut requests that arrived."""

    @abstractmethod
    def take_credit(self, ring_group: int) -> Credit | None:
        """The oldest unused credit of a ring group, ``None`` if there is none now."""

    @abstractmethod
    def block(self, credit: Credit) -> Block:
        """The block to fill for a credit; its contents are stale until written."""

    @abstractmethod
    def send(self, header: BlockHeader) -> None:
        """Announce a filled block; it must not be touched afterwards."""

    @abstractmethod
    def give_back(self, credit: Credit, reason: str) -> None:
        """Return a credit without a block."""

    @abstractmethod
    def cuts(self) -> set[int]:
        """Grants whose consumer asked for the rows there are; a grant leaves the set when its block is sent."""


@dataclass(slots=True)
class InferenceRequest:
    """One ring group's rows to decide on.

    ``batch`` and ``out`` are views: on one host rows of the block itself, between hosts private arrays.

    Attributes:
        actor: Index of the asking actor worker.
        incarnation: Its incarnation.
        ring_group: The ring group.
        min_version: Answer with this version or newer,
        exact: ... or with exactly this one.
        batch: What to decide on.
        out: Where to write the decision.
        ticket: The transport's own handle.
    """

    actor: int
    incarnation: int
    ring_group: int
    min_version: int
    exact: bool
    batch: ActInput
    out: ActOutput
    ticket: object = None


class InferenceClient(StreamEnd):
    """The actor's end of an inference stream (or of an inline policy)."""

    @abstractmethod
    def request(self, credit: Credit, row: int, batch: ActInput, out: ActOutput) -> None:
        """Ask for decisions on row ``row`` of the block of ``credit``.

        At most one request per ring group is under way. ``batch`` and ``out`` stay untouched by the caller until the
        reply; after it ``out`` is filled. All arrays but noise and recurrent states are views of that row of the block
        itself: on one host the policy worker reads and writes them there. Row T has only an observation and an action
        mask in the block: there the other arrays are the caller's own.
        """

    @abstractmethod
    def poll(self) -> Sequence[tuple[int, int]]:
        """Replies since the last call: (ring group, policy version that decided)."""


class InferenceServer(StreamEnd):
    """A policy worker's end."""

    @abstractmethod
    def requests(self) -> Sequence[InferenceRequest]:
        """Requests that wait, oldest first; each is handed out once."""

    @abstractmethod
    def reply(self, request: InferenceRequest, version: int) -> None:
        """Hand the filled ``request.out`` back to its actor."""

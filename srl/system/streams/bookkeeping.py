"""What the two ends of a sample stream remember about messages; pure objects, the same for every transport.

:class:`Admission` (consumer) decides which messages count: those of a producer's current incarnation that answer a
grant as it was made. :class:`CreditBook` (producer) holds the credits that are not spent yet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from srl.api.block import POLICY_TABLE_ROWS, BlockHeader, BlockSchema
from srl.api.errors import StreamError
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused, Returned

SUPERSEDED_INCARNATION = "superseded_incarnation"
SUPERSEDED_GENERATION = "superseded_generation"
UNKNOWN_GRANT = "unknown_grant"
UNKNOWN_PRODUCER = "unknown_producer"
WRONG_HEADER = "wrong_header"
SCHEMA_MISMATCH = "schema_mismatch"


def refusal(name: str, reason: str, producer: Producer) -> StreamError:
    """What a refused producer is told."""
    return StreamError(
        f"the connection was refused: {reason}",
        where=name,
        value=f"actor {producer.actor}, incarnation {producer.incarnation}",
        hint="A later incarnation of this worker took over; this process is to end.",
    )


@dataclass(frozen=True, slots=True)
class _Grant:
    producer: Producer
    credit: Credit


class Admission:
    """Decides which of a consumer's incoming messages count.

    An incarnation is a fence: as soon as a later one connected, or :meth:`forget` named it dead, whatever carries it
    is refused. A slot's grant is remembered until its block or its credit comes back, so that every block and every
    credit is admitted at most once.
    """

    def __init__(self, schema: BlockSchema) -> None:
        self._schema = schema
        self._oldest_admitted: dict[int, int] = {}
        self._connected: dict[int, Producer] = {}
        self._grants: dict[int, _Grant] = {}
        self._newest_generation: dict[int, int] = {}

    def connect(self, producer: Producer) -> Connected | Refused:
        """A producer says who it is."""
        if producer.incarnation < self._oldest_admitted.get(producer.actor, 0):
            return Refused(SUPERSEDED_INCARNATION)
        self._oldest_admitted[producer.actor] = producer.incarnation
        self._connected[producer.actor] = producer
        return Connected(producer)

    def granted(self, producer: Producer, credit: Credit) -> None:
        """A credit is on its way to ``producer``."""
        self._grants[credit.grant] = _Grant(producer, credit)
        self._newest_generation[credit.slot] = credit.generation

    def announce(self, producer: Producer, header: BlockHeader) -> Announced | Refused:
        """A block is announced by a connected producer."""
        if reason := self._stale(producer):
            return Refused(reason)
        if (header.actor, header.incarnation) != (producer.actor, producer.incarnation):
            return Refused(UNKNOWN_PRODUCER)
        if header.generation < self._newest_generation.get(header.slot, 0):
            return Refused(SUPERSEDED_GENERATION)
        grant = self._grants.get(header.grant)
        if grant is None or grant.producer != producer:
            return Refused(UNKNOWN_GRANT)
        if not (_agrees(header, grant.credit) and _fits(header, self._schema)):
            return Refused(WRONG_HEADER)
        del self._grants[header.grant]
        return Announced(producer, header)

    def give_back(self, producer: Producer, grant: int, reason: str) -> Returned | Refused:
        """A credit comes back without a block."""
        if stale := self._stale(producer):
            return Refused(stale)
        known = self._grants.get(grant)
        if known is None or known.producer != producer:
            return Refused(UNKNOWN_GRANT)
        del self._grants[grant]
        return Returned(producer, grant, known.credit.slot, reason)

    def forget(self, producer: Producer) -> None:
        """The producer is dead: its grants end, its incarnation and those before are refused from now on."""
        oldest = self._oldest_admitted.get(producer.actor, 0)
        self._oldest_admitted[producer.actor] = max(oldest, producer.incarnation + 1)
        if self._connected.get(producer.actor) == producer:
            del self._connected[producer.actor]
        self._grants = {number: grant for number, grant in self._grants.items() if grant.producer != producer}

    def _stale(self, producer: Producer) -> str | None:
        """Why this producer's messages do not count, ``None`` if they do."""
        if producer.incarnation < self._oldest_admitted.get(producer.actor, 0):
            return SUPERSEDED_INCARNATION
        return None if self._connected.get(producer.actor) == producer else UNKNOWN_PRODUCER


def _agrees(header: BlockHeader, credit: Credit) -> bool:
    """Whether a block is the one that was granted."""
    claimed = (header.slot, header.generation, header.ring_group, header.min_version)
    return claimed == (credit.slot, credit.generation, credit.ring_group, credit.min_version)


def _fits(header: BlockHeader, schema: BlockSchema) -> bool:
    """Whether a header's counts are possible; readers index by them."""
    return (
        header.length <= schema.rows
        and header.valid_rows <= header.length * schema.columns
        and header.finals <= schema.final_rows
        and header.versions <= POLICY_TABLE_ROWS
    )


class CreditBook:
    """A producer's credits: those that wait per ring group, and those under way.

    Args:
        ring_groups: Number of ring groups.
        where: Stream and rank, for messages.
    """

    def __init__(self, ring_groups: int, where: str) -> None:
        self._waiting: list[deque[Credit]] = [deque() for _ in range(ring_groups)]
        self._held: dict[int, Credit] = {}
        self._where = where
        self.cuts: set[int] = set()

    def receive(self, credit: Credit) -> None:
        """A credit arrived.

        Raises:
            StreamError: If it is for a ring group that does not exist.
        """
        if credit.ring_group >= len(self._waiting):
            raise StreamError(
                "a credit is for a ring group that this actor does not have",
                where=self._where,
                value=credit.ring_group,
                expected=f"below {len(self._waiting)}",
            )
        self._waiting[credit.ring_group].append(credit)
        self._held[credit.grant] = credit

    def cut(self, grant: int) -> None:
        """The consumer asks for the rows there are; for a block that is already sent the request is void."""
        if grant in self._held:
            self.cuts.add(grant)

    def take(self, ring_group: int) -> Credit | None:
        """The oldest unused credit of a ring group."""
        waiting = self._waiting[ring_group]
        return waiting.popleft() if waiting else None

    def settle(self, grant: int) -> Credit:
        """A block or the credit itself goes back to the consumer.

        Raises:
            StreamError: If the grant is not held here (never granted, or settled before).
        """
        credit = self._held.pop(grant, None)
        if credit is None:
            raise StreamError("a grant was answered that is not held here", where=self._where, value=grant)
        self.cuts.discard(grant)
        waiting = self._waiting[credit.ring_group]
        if credit in waiting:
            waiting.remove(credit)
        return credit

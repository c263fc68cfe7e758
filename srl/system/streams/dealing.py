"""The producer's end of a sample stream with several consumers: deals an actor's blocks over the trainer ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from srl.api.block import Block, BlockHeader
from srl.system.flow.dealing import rank_of
from srl.system.streams.interface import Credit, Producer, SampleProducer

_NONE: set[int] = set()


class DealingProducer(SampleProducer):
    """One end per rank behind one end.

    A ring group's next block is for the rank that :mod:`srl.system.flow.dealing` says; where that has no credit for it
    now, for the next rank that has (unless strict). Grants are numbered by each rank for itself; here grant g of rank r
    is ``g * ranks + r``, so that an actor never confuses them.

    Args:
        ends: The ends, by rank; owned.
        producer: Who it is.
        strict: Wait for the credit of the rank whose turn it is (lockstep).
    """

    def __init__(self, ends: Sequence[SampleProducer], producer: Producer, *, strict: bool) -> None:
        self._ends = list(ends)
        self._ranks = len(self._ends)
        self._first_unit = producer.actor * producer.ring_groups
        self._sent = [0] * producer.ring_groups
        self._strict = strict

    def poll(self) -> None:
        """Take in credits and cut requests of all ranks."""
        for end in self._ends:
            end.poll()

    def take_credit(self, ring_group: int) -> Credit | None:
        """A credit of the rank whose turn it is, else (unless strict) of the next one that has any."""
        first = rank_of(self._first_unit + ring_group, self._sent[ring_group], self._ranks)
        for step in range(1 if self._strict else self._ranks):
            rank = (first + step) % self._ranks
            credit = self._ends[rank].take_credit(ring_group)
            if credit is not None:
                return replace(credit, grant=credit.grant * self._ranks + rank, rank=rank)
        return None

    def block(self, credit: Credit) -> Block:
        """The block to fill, in the pool of the credit's rank."""
        end, own = self._own(credit)
        return end.block(own)

    def send(self, header: BlockHeader) -> None:
        """Announce a filled block to the rank that granted it."""
        grant, rank = divmod(header.grant, self._ranks)
        self._sent[header.ring_group] += 1
        self._ends[rank].send(replace(header, grant=grant))

    def give_back(self, credit: Credit, reason: str) -> None:
        """Return a credit to the rank that granted it."""
        end, own = self._own(credit)
        end.give_back(own, reason)

    def cuts(self) -> set[int]:
        """Grants that were asked for early, of all ranks; called at every step."""
        found = _NONE
        for rank, end in enumerate(self._ends):
            if cuts := end.cuts():
                found = found | {grant * self._ranks + rank for grant in cuts}
        return found

    def wait_descriptors(self) -> Iterable[int]:
        """Those of all ends."""
        return [descriptor for end in self._ends for descriptor in end.wait_descriptors()]

    def close(self) -> None:
        """Close all ends gracefully."""
        for end in self._ends:
            end.close()

    def abort(self) -> None:
        """Close all ends at once."""
        for end in self._ends:
            end.abort()

    def _own(self, credit: Credit) -> tuple[SampleProducer, Credit]:
        """The end that a credit came from, and the credit as that end knows it."""
        grant, rank = divmod(credit.grant, self._ranks)
        return self._ends[rank], replace(credit, grant=grant)

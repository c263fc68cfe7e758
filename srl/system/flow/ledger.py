r"""Who owns each slot of a consumer's pool.

::

    FREE --grant--> GRANTED --announce--> READY --use--> IN_USE --release--> FREE
                      | |                   \--release (discarded)---------> FREE
                      | \--give_back--------------------------------------> FREE
                      \--producer_died--> QUARANTINED --confirmed_dead-----> FREE

Every way back to ``FREE`` begins a new generation, so (slot, generation) names one grant for ever. Ownership moves by
these calls only, never by time: a stopped writer that wakes up would write into its successor's block, so the slots of
a dead producer stay in quarantine until the death of the producer, and of every policy worker with an open request on
it, is confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from srl.api.errors import ResourceError, StreamError
from srl.system.streams.interface import Producer


class SlotState(StrEnum):
    """Whose a slot is."""

    FREE = "free"
    GRANTED = "granted"
    READY = "ready"
    IN_USE = "in_use"
    QUARANTINED = "quarantined"


class Refusal(StrEnum):
    """Why a message about a slot was not believed; the word it is counted under."""

    UNKNOWN_SLOT = "unknown_slot"
    UNKNOWN_GENERATION = "unknown_generation"
    SUPERSEDED_GENERATION = "superseded_generation"
    SUPERSEDED_INCARNATION = "superseded_incarnation"
    PRODUCER_DIED = "producer_died"
    NOT_GRANTED = "not_granted"
    WRONG_OWNER = "wrong_owner"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a slot is granted to: one ring group of an actor worker in one of its lives, for one grant."""

    actor: int
    incarnation: int
    ring_group: int
    grant: int


class SlotLedger:
    """State, generation and owner of every slot.

    Args:
        slots: Number of slots in the pool.

    Raises:
        ResourceError: If there is no slot.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ResourceError("a pool needs slots", value=slots, expected="at least 1")
        self._states = [SlotState.FREE] * slots
        self._generations = [0] * slots
        self._owners: list[Owner | None] = [None] * slots
        # Used as a stack: a slot that was just read is still in the cache.
        self._free = list(reversed(range(slots)))
        self._counts = dict.fromkeys(SlotState, 0) | {SlotState.FREE: slots}
        self._held: dict[tuple[int, int], set[int]] = {}

    def __len__(self) -> int:
        """Number of slots."""
        return len(self._states)

    def state(self, slot: int) -> SlotState:
        """Whose the slot is."""
        return self._states[slot]

    def generation(self, slot: int) -> int:
        """The slot's generation; a free slot shows the one its next grant will carry."""
        return self._generations[slot]

    def owner(self, slot: int) -> Owner | None:
        """The producer's side of a granted or quarantined slot, else ``None``."""
        return self._owners[slot]

    def count(self, state: SlotState) -> int:
        """Number of slots in a state."""
        return self._counts[state]

    def grant(self, owner: Owner) -> tuple[int, int]:
        """Give a free slot to a producer.

        Returns:
            Slot and generation.

        Raises:
            StreamError: If no slot is free.
        """
        if not self._free:
            raise StreamError("no slot is free", value=self._summary(), expected="a free slot before a grant")
        slot = self._free.pop()
        self._move(slot, SlotState.GRANTED)
        self._owners[slot] = owner
        self._held.setdefault((owner.actor, owner.incarnation), set()).add(slot)
        return slot, self._generations[slot]

    def announce(self, slot: int, generation: int, owner: Owner) -> Refusal | None:
        """The owner says that its block is complete; ``None`` if the slot is now ready, else why not."""
        refusal = self._refusal(slot, generation, owner)
        if refusal is None:
            self._forget_owner(slot)
            self._move(slot, SlotState.READY)
        return refusal

    def give_back(self, slot: int, generation: int, owner: Owner) -> Refusal | None:
        """The owner returns the slot without a block; ``None`` if the slot is now free, else why not."""
        refusal = self._refusal(slot, generation, owner)
        if refusal is None:
            self._forget_owner(slot)
            self._set_free(slot)
        return refusal

    def use(self, slot: int) -> None:
        """The consumer begins to read a ready block.

        Raises:
            StreamError: If the slot is not ready.
        """
        self._expect(slot, self._generations[slot], SlotState.READY)
        self._move(slot, SlotState.IN_USE)

    def release(self, slot: int, generation: int) -> None:
        """The consumer has no more need of a block, read or not.

        Raises:
            StreamError: If the slot is not the consumer's, or no longer of this generation.
        """
        self._expect(slot, generation, SlotState.READY, SlotState.IN_USE)
        self._set_free(slot)

    def producer_died(self, producer: Producer) -> list[Owner]:
        """Quarantine what is granted to this incarnation; its announced blocks are complete and stay as they are.

        Returns:
            The grants that ended, in order.
        """
        ended = []
        for slot in self._held.get((producer.actor, producer.incarnation), ()):
            owner = self._owners[slot]
            if owner is not None and self._states[slot] is SlotState.GRANTED:
                self._move(slot, SlotState.QUARANTINED)
                ended.append(owner)
        return sorted(ended, key=lambda owner: owner.grant)

    def confirmed_dead(self, producer: Producer) -> int:
        """The incarnation and every policy worker with an open request on it are gone: free its quarantined slots.

        Returns:
            Number of slots freed.

        Raises:
            StreamError: If a slot is still granted to it: :meth:`producer_died` comes first.
        """
        slots = sorted(self._held.get((producer.actor, producer.incarnation), ()))
        for slot in slots:
            self._expect(slot, self._generations[slot], SlotState.QUARANTINED)
        for slot in slots:
            self._forget_owner(slot)
            self._set_free(slot)
        return len(slots)

    def _refusal(self, slot: int, generation: int, owner: Owner) -> Refusal | None:
        if not 0 <= slot < len(self._states):
            return Refusal.UNKNOWN_SLOT
        if generation != self._generations[slot]:
            older = generation < self._generations[slot]
            return Refusal.SUPERSEDED_GENERATION if older else Refusal.UNKNOWN_GENERATION
        if self._states[slot] is SlotState.QUARANTINED:
            return Refusal.PRODUCER_DIED
        current = self._owners[slot]
        if current is None:
            return Refusal.NOT_GRANTED
        if owner.actor == current.actor and owner.incarnation < current.incarnation:
            return Refusal.SUPERSEDED_INCARNATION
        return None if owner == current else Refusal.WRONG_OWNER

    def _expect(self, slot: int, generation: int, *states: SlotState) -> None:
        if self._states[slot] in states and self._generations[slot] == generation:
            return
        raise StreamError(
            "a slot was moved by one who does not own it",
            where=f"slot {slot}",
            value=f"{self._states[slot]}, generation {self._generations[slot]}",
            expected=f"{' or '.join(states)}, generation {generation}",
        )

    def _forget_owner(self, slot: int) -> None:
        owner = self._owners[slot]
        if owner is None:
            return
        held = self._held[owner.actor, owner.incarnation]
        self._owners[slot] = None
        held.discard(slot)
        if not held:
            del self._held[owner.actor, owner.incarnation]

    def _set_free(self, slot: int) -> None:
        self._move(slot, SlotState.FREE)
        self._generations[slot] += 1
        self._free.append(slot)

    def _move(self, slot: int, state: SlotState) -> None:
        self._counts[self._states[slot]] -= 1
        self._counts[state] += 1
        self._states[slot] = state

    def _summary(self) -> str:
        return ", ".join(f"{count} {state}" for state, count in self._counts.items() if count)

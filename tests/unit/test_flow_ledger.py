"""Whose a slot is: every legal move, every refusal, and no reuse before a confirmed death."""

import pytest

from srl.api.errors import ResourceError, StreamError
from srl.system.flow.ledger import Owner, Refusal, SlotLedger, SlotState
from srl.system.streams.interface import Producer

OWNER = Owner(actor=3, incarnation=1, ring_group=0, grant=7)
PRODUCER = Producer(actor=3, incarnation=1, ring_groups=1)


def test_a_slot_goes_round_and_each_round_is_a_new_generation():
    ledger = SlotLedger(1)
    for generation in range(3):
        assert ledger.grant(OWNER) == (0, generation)
        assert (ledger.state(0), ledger.owner(0)) == (SlotState.GRANTED, OWNER)
        assert ledger.announce(0, generation, OWNER) is None
        assert (ledger.state(0), ledger.owner(0)) == (SlotState.READY, None)
        ledger.use(0)
        assert ledger.state(0) is SlotState.IN_USE
        ledger.release(0, generation)
        assert ledger.state(0) is SlotState.FREE
    assert ledger.generation(0) == 3


def test_a_returned_and_a_discarded_slot_are_free_again():
    ledger = SlotLedger(1)
    ledger.grant(OWNER)
    assert ledger.give_back(0, 0, OWNER) is None
    ledger.grant(OWNER)
    assert ledger.announce(0, 1, OWNER) is None
    ledger.release(0, 1)
    assert ledger.grant(OWNER) == (0, 2)


@pytest.mark.parametrize("message", ["announce", "give_back"])
@pytest.mark.parametrize(
    ("slot", "generation", "owner", "reason"),
    [
        (2, 0, OWNER, Refusal.UNKNOWN_SLOT),
        (-1, 0, OWNER, Refusal.UNKNOWN_SLOT),
        (0, 0, OWNER, Refusal.SUPERSEDED_GENERATION),
        (0, 2, OWNER, Refusal.UNKNOWN_GENERATION),
        (1, 0, OWNER, Refusal.NOT_GRANTED),
        (0, 1, Owner(3, 0, 0, 7), Refusal.SUPERSEDED_INCARNATION),
        (0, 1, Owner(3, 2, 0, 7), Refusal.WRONG_OWNER),
        (0, 1, Owner(4, 1, 0, 7), Refusal.WRONG_OWNER),
        (0, 1, Owner(3, 1, 1, 7), Refusal.WRONG_OWNER),
        (0, 1, Owner(3, 1, 0, 6), Refusal.WRONG_OWNER),
    ],
)
def test_what_is_not_the_owners_message_is_refused_and_changes_nothing(message, slot, generation, owner, reason):
    ledger = SlotLedger(2)
    ledger.grant(OWNER)
    ledger.give_back(0, 0, OWNER)
    assert ledger.grant(OWNER) == (0, 1)
    assert getattr(ledger, message)(slot, generation, owner) is reason
    assert (ledger.state(0), ledger.state(1)) == (SlotState.GRANTED, SlotState.FREE)
    assert ledger.announce(0, 1, OWNER) is None


def test_a_dead_producers_slot_is_not_granted_before_the_confirmation():
    ledger = SlotLedger(2)
    other = Owner(3, 2, 0, 8)
    ledger.grant(OWNER)
    ledger.grant(other)
    assert ledger.producer_died(PRODUCER) == [OWNER]
    assert ledger.producer_died(PRODUCER) == []
    assert ledger.announce(0, 0, OWNER) is Refusal.PRODUCER_DIED
    with pytest.raises(StreamError, match="no slot is free"):
        ledger.grant(other)
    assert ledger.state(1) is SlotState.GRANTED
    assert ledger.confirmed_dead(PRODUCER) == 1
    assert ledger.announce(0, 0, OWNER) is Refusal.SUPERSEDED_GENERATION
    assert ledger.grant(other) == (0, 1)


def test_announced_blocks_outlive_their_producer():
    ledger = SlotLedger(2)
    ledger.grant(OWNER)
    ledger.announce(0, 0, OWNER)
    assert ledger.producer_died(PRODUCER) == []
    assert ledger.confirmed_dead(PRODUCER) == 0
    ledger.use(0)
    ledger.release(0, 0)


def test_a_death_is_not_confirmed_while_a_slot_is_still_granted():
    ledger = SlotLedger(1)
    ledger.grant(OWNER)
    with pytest.raises(StreamError, match="slot 0"):
        ledger.confirmed_dead(PRODUCER)


@pytest.mark.parametrize("move", [lambda ledger: ledger.use(0), lambda ledger: ledger.release(0, 0)])
def test_the_consumer_cannot_take_what_is_not_its_own(move):
    ledger = SlotLedger(1)
    with pytest.raises(StreamError, match="free"):
        move(ledger)
    ledger.grant(OWNER)
    with pytest.raises(StreamError, match="granted"):
        move(ledger)


def test_a_second_release_does_not_free_the_successor():
    ledger = SlotLedger(1)
    ledger.grant(OWNER)
    ledger.announce(0, 0, OWNER)
    ledger.use(0)
    ledger.release(0, 0)
    ledger.grant(OWNER)
    ledger.announce(0, 1, OWNER)
    with pytest.raises(StreamError, match="generation 1"):
        ledger.release(0, 0)


def test_states_are_counted():
    ledger = SlotLedger(4)
    for grant in range(3):
        ledger.grant(Owner(3, 1, 0, grant))
    slot = next(slot for slot in range(4) if ledger.owner(slot) == Owner(3, 1, 0, 2))
    ledger.announce(slot, 0, Owner(3, 1, 0, 2))
    ledger.producer_died(PRODUCER)
    counts = {state: ledger.count(state) for state in SlotState}
    assert counts == {
        SlotState.FREE: 1,
        SlotState.GRANTED: 0,
        SlotState.READY: 1,
        SlotState.IN_USE: 0,
        SlotState.QUARANTINED: 2,
    }


def test_a_pool_without_slots_is_refused():
    with pytest.raises(ResourceError, match="slots"):
        SlotLedger(0)

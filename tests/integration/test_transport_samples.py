"""What every transport promises for sample streams, by the same test bodies: in process, shared memory, TCP.

Ends in different processes: ``test_transport_processes.py``.
"""

import time
from dataclasses import replace

import numpy as np
import pytest
from transport_wiring import (
    ACTOR,
    COLUMNS,
    ROWS,
    SLOTS,
    SPEC,
    Wiring,
    connected,
    credit_of,
    events_of,
    fill,
    header_for,
    schema_of,
    until,
)

from srl.api.errors import SchemaMismatchError, StreamError
from srl.api.spaces import SpaceSpec
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused, Returned
from srl.system.streams.port import LINGER_MILLISECONDS

pytestmark = pytest.mark.usefixtures("zero_copy_collector", "no_leaks")


def schema_with(observation):
    return schema_of(replace(SPEC, observation=SpaceSpec("box", observation, "float32")))


def test_blocks_arrive_bit_identical_in_order(wiring):
    consumer, producer = connected(wiring)
    sent = {}
    for number in range(SLOTS):
        consumer.send_credit(
            ACTOR, Credit(grant=number, ring_group=number % 2, slot=number, generation=1, min_version=number)
        )
    for number in range(SLOTS):
        credit = credit_of(producer, number % 2)
        assert (credit.grant, credit.slot, credit.min_version, credit.rank) == (number, number, number, 0)
        sent[credit.slot] = fill(producer.block(credit), number)
        producer.send(header_for(credit, sequence=number // 2))
    events = events_of(consumer, SLOTS)
    assert [event.header.grant for event in events] == list(range(SLOTS))
    assert [event.header.sequence for event in events] == [0, 0, 1, 1, 2, 2]
    for slot, payload in sent.items():
        block = consumer.block(slot)
        assert np.array_equal(block.buffer, payload)
        assert block["observation"].shape == (ROWS + 1, COLUMNS, 4)


def test_a_slot_serves_again_under_the_next_generation(wiring):
    consumer, producer = connected(wiring)
    for generation in range(20):
        consumer.send_credit(ACTOR, Credit(generation, 0, 3, generation, 0))
        credit = credit_of(producer)
        payload = fill(producer.block(credit), generation)
        producer.send(header_for(credit, sequence=generation))
        (event,) = events_of(consumer, 1)
        assert event.header.generation == generation
        assert np.array_equal(consumer.block(3).buffer, payload)


def test_a_credit_names_the_rank_of_its_pool(wiring):
    consumers = [wiring.consumer(rank) for rank in range(2)]
    producers = [wiring.producer(rank=rank) for rank in range(2)]
    for rank, (consumer, producer) in enumerate(zip(consumers, producers, strict=True)):
        events_of(consumer, 1)
        consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
        assert credit_of(producer).rank == rank


def test_no_credit_no_block(wiring):
    consumer, producer = connected(wiring)
    producer.poll()
    assert producer.take_credit(0) is None
    with pytest.raises(StreamError, match="not held"):
        producer.send(header_for(Credit(5, 0, 0, 0, 0)))
    assert list(consumer.events()) == []


def test_a_cut_reaches_the_block_under_way_and_no_later_one(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
    consumer.send_credit(ACTOR, Credit(1, 1, 1, 0, 0))
    first, second = credit_of(producer, 0), credit_of(producer, 1)
    consumer.send_cut(ACTOR, first.grant)

    def cut():
        producer.poll()
        return producer.cuts()

    assert until(cut, producer) == {0}
    producer.send(header_for(first, length=2, valid_rows=6))
    assert producer.cuts() == set()
    (event,) = events_of(consumer, 1)
    assert event.header.length == 2
    consumer.send_cut(ACTOR, first.grant)  # crosses the block: void
    consumer.send_credit(ACTOR, Credit(2, 0, 2, 0, 0))
    credit_of(producer, 0)
    assert producer.cuts() == set()
    producer.send(header_for(second))
    assert events_of(consumer, 1)[0].header.grant == 1


def test_a_credit_given_back_is_an_event_with_its_slot_and_reason(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(7, 1, 4, 0, 0))
    producer.give_back(credit_of(producer, 1), "drain")
    assert events_of(consumer, 1) == [Returned(ACTOR, 7, 4, "drain")]


def test_a_schema_mismatch_names_the_field_at_the_producer(wiring):
    consumer, producer = wiring.consumer(), wiring.producer(schema=schema_with((5,)))
    assert events_of(consumer, 1) == [Refused("schema_mismatch")]
    message = str(raised(producer, SchemaMismatchError))
    assert "sample:s:0" in message
    assert "'observation'" in message
    assert "(5,)" in message
    assert "(4,)" in message


def raised(producer, kind):
    """The error that a producer's poll raises as soon as the answer is there."""

    def poll():
        try:
            producer.poll()
        except kind as error:
            return error

    return until(poll, producer)


def test_a_superseded_incarnation_is_refused_and_told_so(wiring):
    consumer = wiring.consumer()
    old, new = Producer(0, 0, 1), Producer(0, 1, 1)
    first = wiring.producer(old)
    assert events_of(consumer, 1) == [Connected(old)]
    consumer.send_credit(old, Credit(0, 0, 0, 0, 0))
    credit = credit_of(first)
    second = wiring.producer(new)
    assert events_of(consumer, 1) == [Connected(new)]
    first.send(header_for(credit, old))  # the old process on the far side of a network cut
    assert events_of(consumer, 1) == [Refused("superseded_incarnation")]
    third = wiring.producer(old)
    assert events_of(consumer, 1) == [Refused("superseded_incarnation")]
    assert "superseded_incarnation" in str(raised(third, StreamError))
    consumer.send_credit(new, Credit(1, 0, 0, 1, 0))
    second.send(header_for(credit_of(second), new))
    assert isinstance(events_of(consumer, 1)[0], Announced)


def test_what_a_forgotten_producer_still_sends_is_refused(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
    credit = credit_of(producer)
    consumer.forget(ACTOR)
    producer.send(header_for(credit))
    assert events_of(consumer, 1) == [Refused("superseded_incarnation")]


def test_a_block_of_an_older_generation_is_refused(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 2, 4, 0))
    credit = credit_of(producer)
    producer.send(header_for(credit, generation=3))
    assert events_of(consumer, 1) == [Refused("superseded_generation")]


def test_close_delivers_what_was_sent(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
    credit = credit_of(producer)
    payload = fill(producer.block(credit), 0)
    producer.send(header_for(credit))
    producer.close()
    events_of(consumer, 1)
    assert np.array_equal(consumer.block(0).buffer, payload)


@pytest.mark.parametrize("graceful", [True, False])
def test_closing_with_unread_blocks_does_not_hang(transport_kind, run_dir, graceful):
    """Field case 8: 1 MB blocks, a consumer that stopped reading; both ends are gone as soon as lingering allows."""
    wiring = Wiring(transport_kind, run_dir, schema_with((1 << 14,)))
    assert wiring.schema.size_bytes > 1 << 20
    consumer, producer = connected(wiring)
    for number in range(SLOTS):
        consumer.send_credit(ACTOR, Credit(number, 0, number, 0, 0))
    for number in range(SLOTS):
        credit = credit_of(producer)
        fill(producer.block(credit), number)
        producer.send(header_for(credit, sequence=number))
    started = time.monotonic()
    for end in (producer, consumer):
        end.close() if graceful else end.abort()
    wiring.close()
    assert LINGER_MILLISECONDS <= 1000
    assert time.monotonic() - started < 20.0  # of a busy machine, which lingers no longer

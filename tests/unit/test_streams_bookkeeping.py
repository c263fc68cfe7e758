"""Which messages count (consumer) and which credits are held (producer)."""

import dataclasses

import pytest

from srl.api.block import BlockHeader, BlockSchema, FieldSpec
from srl.api.errors import StreamError
from srl.system.streams.bookkeeping import Admission, CreditBook
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused, Returned

SCHEMA = BlockSchema(rows=4, columns=2, final_rows=3, fields=(FieldSpec("observation", (2,), "float32", "T+1,B"),))
CREDIT = Credit(grant=10, ring_group=1, slot=2, generation=5, min_version=7)
FIRST, SECOND = Producer(0, 0, 2), Producer(0, 1, 2)


def header_for(credit, producer, **changes):
    header = BlockHeader(
        actor=producer.actor,
        incarnation=producer.incarnation,
        ring_group=credit.ring_group,
        sequence=0,
        grant=credit.grant,
        slot=credit.slot,
        generation=credit.generation,
        length=4,
        valid_rows=8,
        finals=3,
        versions=1,
        min_version=credit.min_version,
    )
    return dataclasses.replace(header, **changes)


@pytest.fixture
def admission():
    admission = Admission(SCHEMA)
    assert admission.connect(FIRST) == Connected(FIRST)
    admission.granted(FIRST, CREDIT)
    return admission


def test_a_block_answers_its_grant_once(admission):
    header = header_for(CREDIT, FIRST)
    assert admission.announce(FIRST, header) == Announced(FIRST, header)
    assert admission.announce(FIRST, header) == Refused("unknown_grant")


def test_a_credit_comes_back_once(admission):
    assert admission.give_back(FIRST, 10, "drain") == Returned(FIRST, 10, 2, "drain")
    assert admission.give_back(FIRST, 10, "drain") == Refused("unknown_grant")
    assert admission.announce(FIRST, header_for(CREDIT, FIRST)) == Refused("unknown_grant")


@pytest.mark.parametrize(
    "changes",
    [
        {"slot": 3},
        {"generation": 6},
        {"ring_group": 0},
        {"min_version": 8},
        {"length": 5},
        {"valid_rows": 9},
        {"length": 2},
        {"finals": 4},
        {"versions": 257},
    ],
)
def test_a_header_that_disagrees_with_its_grant_is_refused_and_the_grant_stays_open(admission, changes):
    assert admission.announce(FIRST, header_for(CREDIT, FIRST, **changes)) == Refused("wrong_header")
    assert isinstance(admission.announce(FIRST, header_for(CREDIT, FIRST)), Announced)


def test_an_older_generation_of_the_slot_is_refused(admission):
    newer = dataclasses.replace(CREDIT, grant=11, generation=6)
    admission.granted(FIRST, newer)
    assert admission.announce(FIRST, header_for(CREDIT, FIRST)) == Refused("superseded_generation")
    assert isinstance(admission.announce(FIRST, header_for(newer, FIRST)), Announced)


def test_a_later_incarnation_shuts_out_the_earlier_one(admission):
    assert admission.connect(SECOND) == Connected(SECOND)
    assert admission.announce(FIRST, header_for(CREDIT, FIRST)) == Refused("superseded_incarnation")
    assert admission.give_back(FIRST, 10, "drain") == Refused("superseded_incarnation")
    assert admission.connect(FIRST) == Refused("superseded_incarnation")


def test_a_later_incarnation_cannot_answer_the_grants_of_the_earlier_one(admission):
    admission.connect(SECOND)
    assert admission.announce(SECOND, header_for(CREDIT, SECOND)) == Refused("unknown_grant")


def test_a_forgotten_producer_is_refused_and_its_successor_is_not(admission):
    admission.forget(FIRST)
    assert admission.announce(FIRST, header_for(CREDIT, FIRST)) == Refused("superseded_incarnation")
    assert admission.connect(FIRST) == Refused("superseded_incarnation")
    assert admission.connect(SECOND) == Connected(SECOND)


def test_forgetting_one_producer_leaves_the_others(admission):
    other, credit = Producer(1, 0, 1), Credit(grant=11, ring_group=0, slot=3, generation=0, min_version=0)
    admission.connect(other)
    admission.granted(other, credit)
    admission.forget(FIRST)
    assert isinstance(admission.announce(other, header_for(credit, other)), Announced)


def test_a_header_of_another_producer_is_refused(admission):
    assert admission.announce(FIRST, header_for(CREDIT, FIRST, actor=1)) == Refused("unknown_producer")
    assert admission.announce(Producer(9, 0, 1), header_for(CREDIT, Producer(9, 0, 1))) == Refused("unknown_producer")


def test_credits_are_taken_in_order_per_ring_group():
    book = CreditBook(2, "sample:s:0")
    credits = [Credit(grant=n, ring_group=n % 2, slot=n, generation=0, min_version=0) for n in range(4)]
    for credit in credits:
        book.receive(credit)
    assert [book.take(1), book.take(0), book.take(0), book.take(0)] == [credits[1], credits[0], credits[2], None]


def test_a_cut_lasts_until_its_block_is_sent_and_is_void_afterwards():
    book = CreditBook(2, "sample:s:0")
    book.receive(CREDIT)
    book.take(1)
    book.cut(10)
    assert book.cuts == {10}
    book.settle(10)
    assert book.cuts == set()
    book.cut(10)
    assert book.cuts == set()


def test_an_unused_credit_given_back_is_not_taken_later():
    book = CreditBook(2, "sample:s:0")
    book.receive(CREDIT)
    book.settle(10)
    assert book.take(1) is None


def test_a_grant_is_settled_once_and_ring_groups_exist():
    book = CreditBook(1, "sample:s:0")
    with pytest.raises(StreamError, match="not held"):
        book.settle(1)
    with pytest.raises(StreamError, match="ring group"):
        book.receive(CREDIT)

"""The sums that must hold, and the errors that show all numbers when they do not."""

import dataclasses

import pytest

from srl.api.block import BlockHeader
from srl.api.errors import StreamError
from srl.system.flow.accounting import BlockAccount, EdgeAccount

HEADER = BlockHeader(
    actor=0,
    incarnation=0,
    ring_group=0,
    sequence=0,
    grant=0,
    slot=0,
    generation=0,
    length=16,
    valid_rows=100,
    finals=0,
    versions=1,
    min_version=0,
)


def with_length(length, valid_rows=100):
    return dataclasses.replace(HEADER, length=length, valid_rows=valid_rows)


def test_an_edge_adds_up():
    edge = EdgeAccount(sent=10, received=6)
    edge.dropped.update(producer_died=1, shutdown=1)
    edge.check(in_flight=2, where="credits")


@pytest.mark.parametrize("in_flight", [1, 3])
def test_an_edge_that_does_not_add_up_names_its_numbers(in_flight):
    edge = EdgeAccount(sent=10, received=6)
    edge.dropped["shutdown"] = 2
    with pytest.raises(StreamError) as caught:
        edge.check(in_flight, where="credits")
    assert caught.value.where == "credits"
    for part in ("sent 10", "received 6", f"in_flight {in_flight}", "'shutdown': 2"):
        assert part in str(caught.value.value)


def test_an_edge_that_adds_up_by_a_negative_number_is_wrong():
    with pytest.raises(StreamError, match="add up"):
        EdgeAccount(sent=1, received=2).check(in_flight=-1, where="credits")


def test_blocks_and_rows_are_followed_to_their_end():
    account = BlockAccount()
    for valid_rows in (5, 7, 11):
        account.produced(with_length(16, valid_rows))
    account.trained(with_length(16, 5))
    account.dropped(with_length(16, 7), "straggler")
    waiting = [with_length(16, 11)]
    account.check(waiting)
    exported = account.to_dict(waiting)
    assert exported["blocks"] == {"produced": 3, "trained": 1, "in_flight": 1, "dropped": {"straggler": 1}}
    assert exported["valid_rows"] == {"produced": 23, "trained": 5, "in_flight": 11, "dropped": {"straggler": 7}}


@pytest.mark.parametrize(("in_flight", "where"), [([], "blocks"), ([with_length(16, 99)], "valid rows")])
def test_a_lost_block_or_row_is_an_error(in_flight, where):
    account = BlockAccount()
    account.produced(HEADER)
    with pytest.raises(StreamError) as caught:
        account.check(in_flight)
    assert caught.value.where == where


def test_lengths_are_counted_in_powers_of_two():
    account = BlockAccount()
    for length in (0, 1, 10, 1000, 1024):
        account.produced(with_length(length))
        account.trained(with_length(length))
    account.produced(with_length(7))
    account.dropped(with_length(7), "straggler")
    assert account.to_dict([])["lengths"] == {
        "trained": {"0": 1, "1": 1, "8": 1, "512": 1, "1024": 1},
        "dropped": {"straggler": {"4": 1}},
    }

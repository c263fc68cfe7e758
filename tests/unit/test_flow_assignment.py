"""Who is granted the next credit, and what the death and the succession of producers do to it."""

from collections import Counter

from flow_bench import Bench

from srl.system.flow.control import SHUTDOWN_REASON
from srl.system.streams.interface import Announced, Connected, Producer, Refused, Returned


def test_grants_go_to_whoever_has_the_fewest_and_then_to_whoever_has_waited_longest():
    bench = Bench(2, 1, blocks=2, lag=0)
    assert bench.instruct()[0] == [(0, 0), (0, 1)]
    bench.announce(1)
    bench.announce(0)
    bench.update(0)
    assert bench.instruct(1)[0] == [(1, 0), (0, 1)], "not always the first ones"


def test_a_unit_holds_one_grant_being_filled_and_one_waiting():
    bench = Bench(1, 1, blocks=8, lag=0, producers=8)
    assert sorted(bench.instruct()[0]) == [(0, 0)] * 2 + [(1, 0)] * 2, "six more are expected"
    bench.announce(0)
    assert bench.instruct()[0] == [(0, 0)]


def test_few_units_hold_all_the_credits_there_are():
    bench = Bench(1, 1, blocks=8, lag=1)
    assert Counter(bench.instruct()[0]) == {(0, 0): 8, (1, 0): 8}


def test_without_a_bound_the_slots_are_the_bound():
    bench = Bench(1, 1, blocks=2, lag=None, slots=6)
    assert Counter(bench.instruct()[0]) == {(0, 0): 3, (1, 0): 3}
    bench.announce(0, 2, 4)
    assert bench.update(0) == [0, 2]
    assert Counter(bench.instruct(0)[0]) == {(0, 0): 2}, "granted at version 0 still: nobody asks for the lag"


def test_no_grant_without_a_free_slot():
    bench = Bench(1, blocks=2, lag=1, slots=3)
    assert len(bench.instruct()[0]) == 3
    bench.announce(0, 1)
    blocks = bench.flow.take(0, 0.0)
    assert bench.instruct()[0] == [], "the trainer still reads its slots"
    bench.flow.release(blocks)
    assert len(bench.instruct()[0]) == 1, "the credits end here: 4 for versions 0 and 1"


def test_an_actor_that_drains_is_granted_nothing_more():
    bench = Bench(1, 1, blocks=2, lag=0)
    bench.instruct()
    bench.give_back(0, SHUTDOWN_REASON)
    assert bench.instruct()[0] == [(1, 0)]
    bench.give_back(1, "non_finite")
    assert bench.instruct()[0] == [(1, 0)]
    bench.flow.handle(Connected(Producer(0, 1, 1)), 0.0)
    bench.give_back(2, "non_finite")
    assert bench.instruct()[0] == [(0, 0)], "its next life is"


def test_a_dead_producers_credits_end_and_its_slots_wait():
    bench = Bench(1, 1, blocks=2, lag=0, slots=2)
    bench.instruct()
    dead = bench.producers[0]
    bench.flow.producer_died(dead)
    assert bench.instruct()[0] == [], "the slot is in quarantine"
    late = Announced(dead, bench.header(0))
    bench.flow.handle(late, 0.0)
    bench.flow.confirmed_dead(dead)
    assert bench.instruct()[0] == [(1, 0)]
    bench.flow.handle(late, 0.0)
    counts = bench.flow.counts()
    assert counts["credits"]["ended"] == {"producer_died": 1}
    assert counts["blocks"]["dropped"] == {"producer_died": 1, "superseded_generation": 1}
    assert counts["refused"] == {"producer_died": 1, "superseded_generation": 1}


def test_a_successor_ends_its_predecessor():
    bench = Bench(1, blocks=1, lag=0, slots=2)
    bench.instruct()
    old, new = bench.producers[0], Producer(0, 1, 1)
    bench.flow.handle(Connected(new), 0.0)
    units, _ = bench.instruct()
    assert (units, bench.grants[1].producer) == ([(0, 0)], new)
    bench.flow.handle(Connected(old), 0.0)
    assert bench.flow.counts()["refused"] == {"superseded_incarnation": 1}
    assert bench.flow.counts()["slots"]["quarantined"] == 1
    bench.flow.confirmed_dead(old)
    assert bench.flow.counts()["slots"] == {"free": 1, "granted": 1, "ready": 0, "in_use": 0, "quarantined": 0}
    assert bench.flow.outstanding() == 1, "the successor's grant stands"


def test_a_late_report_of_an_old_death_readmits_nobody():
    bench = Bench(1, blocks=1, lag=0)
    newest = Producer(0, 2, 1)
    for producer in (Producer(0, 1, 1), newest):
        bench.flow.handle(Connected(producer), 0.0)
    bench.flow.producer_died(bench.producers[0])
    bench.flow.handle(Connected(Producer(0, 1, 1)), 0.0)
    bench.instruct()
    assert [grant.producer for grant in bench.grants.values()] == [newest]


def test_connecting_twice_changes_nothing():
    bench = Bench(1, blocks=1, lag=0)
    bench.instruct()
    bench.flow.handle(Connected(bench.producers[0]), 0.0)
    assert bench.instruct()[0] == []
    assert bench.flow.outstanding() == 1


def test_a_dead_incarnation_cannot_connect_again():
    bench = Bench(1, blocks=1, lag=0)
    bench.flow.producer_died(bench.producers[0])
    bench.flow.handle(Connected(bench.producers[0]), 0.0)
    assert bench.instruct()[0] == []


def test_a_block_is_accepted_once_and_from_its_owner_only():
    bench = Bench(1, 1, blocks=2, lag=0)
    bench.instruct()
    header = bench.header(0)
    bench.flow.handle(Announced(bench.producers[1], header), 0.0)
    bench.announce(0)
    bench.flow.handle(Announced(bench.producers[0], header), 0.0)
    bench.flow.handle(Returned(bench.producers[0], 0, header.slot, "shutdown"), 0.0)
    bench.flow.handle(Refused("wrong_header"), 0.0)
    counts = bench.flow.counts()
    assert counts["refused"] == {"wrong_owner": 1, "not_granted": 2, "wrong_header": 1}
    assert counts["blocks"]["in_flight"] == 1

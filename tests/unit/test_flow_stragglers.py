"""Stragglers: whom an update waits for, cuts or writes off, and that it shows in the accounts."""

import pytest
from flow_bench import Bench

from srl.system.flow.control import SHUTDOWN_REASON, Cut
from srl.system.flow.stragglers import RECENT_BLOCKS, STRAGGLER_FLOOR_SECONDS, STRAGGLER_MEDIANS, Durations


def test_the_threshold_is_twice_the_median_but_no_less_than_the_floor():
    durations = Durations()
    assert durations.threshold_seconds() is None
    for seconds in (1.0, 2.0, 30.0):
        durations.add(seconds)
    assert durations.threshold_seconds() == STRAGGLER_MEDIANS * 2.0
    for _ in range(RECENT_BLOCKS):
        durations.add(0.001)
    assert durations.threshold_seconds() == STRAGGLER_FLOOR_SECONDS


def late_one(on_straggler):
    """Synchronous, three units; two announce after 1 s, the third does not."""
    bench = Bench(1, 1, 1, blocks=3, lag=0, on_straggler=on_straggler, slots=6)
    bench.instruct()
    bench.announce(0, 1, now=1.0)
    return bench


def test_a_straggler_is_cut_once_and_its_rows_are_trained_on():
    bench = late_one("cut")
    assert bench.instruct(now=1.9) == ([], [])
    assert bench.flow.wake_time(1.9) == 2.0
    assert bench.instruct(now=2.0) == ([], [Cut(bench.producers[2], 2)])
    assert bench.instruct(now=9.0) == ([], [])
    assert bench.flow.wake_time(9.0) is None
    bench.announce(2, now=9.5, length=3)
    assert bench.update(0) == [0, 1, 2]
    counts = bench.flow.counts()
    assert counts["stragglers"] == 1
    assert counts["valid_rows"]["trained"] == 8 + 8 + 3


def test_a_straggler_is_waited_for():
    bench = late_one("wait")
    assert bench.instruct(now=100.0) == ([], [])
    assert bench.flow.wake_time(100.0) is None


def test_a_straggler_is_written_off_and_its_block_dropped_on_arrival():
    bench = late_one("drop")
    assert bench.instruct(now=2.0) == ([(0, 0)], []), "its grant is given to another"
    bench.announce(3, now=3.0)
    assert bench.update(0) == [0, 1, 3]
    assert bench.instruct(1, now=3.0)[0] == [(1, 0), (0, 0), (1, 0)], "it gets nothing until it has answered"
    bench.announce(2, now=4.0, length=5)
    counts = bench.flow.counts()
    assert counts["blocks"] == {"produced": 4, "trained": 3, "in_flight": 0, "dropped": {"straggler": 1}}
    assert counts["valid_rows"]["dropped"] == {"straggler": 5}
    assert counts["slots"]["ready"] == 0
    bench.announce(4, now=4.0)
    assert bench.instruct(1, now=4.0)[0] == []
    bench.announce(5, 6, now=4.0)
    bench.update(1)
    assert (2, 0) in bench.instruct(2, now=4.0)[0]


def test_a_straggler_that_returns_its_credit_after_all_is_not_given_back_twice():
    bench = late_one("drop")
    bench.instruct(now=2.0)
    bench.give_back(2, "non_finite")
    assert bench.instruct(now=2.0)[0] == []
    assert bench.flow.counts()["credits"]["ended"] == {"non_finite": 1}


def test_a_straggler_that_dies_is_not_given_back_twice():
    bench = late_one("drop")
    bench.instruct(now=2.0)
    bench.flow.confirmed_dead(bench.producers[2])
    assert bench.instruct(now=2.0)[0] == []


def test_nothing_is_written_off_that_no_other_block_could_replace():
    bench = Bench(1, 1, blocks=2, lag=0, on_straggler="drop", slots=2)
    bench.instruct()
    bench.announce(0, now=1.0)
    assert bench.instruct(now=50.0) == ([], [])
    assert bench.flow.wake_time(50.0) is None
    bench.announce(1, now=51.0)
    assert bench.update(0) == [0, 1]


def test_where_everyone_has_become_slower_every_update_still_gets_its_blocks():
    """Before the median has followed, each unit is written off once per version at most."""
    bench = Bench(1, 1, blocks=2, lag=0, on_straggler="drop", slots=8)
    now = 0.0
    for version in range(100):
        bench.instruct(version, now)
        now += 0.1
        bench.announce(*list(bench.grants), now=now)
        assert bench.update(version) is not None
    for version in range(100, 110):
        for _ in range(4):
            bench.instruct(version, now)
            late = list(bench.grants)
            bench.instruct(version, now + 0.9)
            now += 1.0
            bench.announce(*late, now=now)
            if bench.update(version) is not None:
                break
        else:
            pytest.fail(f"no update at version {version}")
    assert bench.flow.counts()["blocks"]["dropped"]["straggler"] >= 10


def test_a_slow_actor_is_left_alone_while_the_others_are_enough():
    bench = Bench(1, 1, blocks=1, lag=1)
    bench.instruct()
    bench.announce(1, now=0.1)
    assert bench.update(0) == [1]
    bench.instruct(1, now=0.1)
    assert bench.instruct(1, now=0.2)[1] == [Cut(bench.producers[0], 0)], "now it has to be in the next update"
    free = Bench(1, 1, blocks=1, lag=None, slots=8)
    free.instruct()
    free.announce(1, now=0.1)
    assert free.update(0) == [1]
    assert free.instruct(1, now=99.0)[1] == [], "without a bound it never has to"


def test_hung_actors_that_hold_all_credits_of_one_version_are_found_out():
    """No grant is due in this update in particular, but the overdue ones alone leave nobody to wait for."""
    bench = Bench(1, 1, 1, blocks=1, lag=1, on_straggler="drop", slots=8)
    bench.instruct()
    bench.announce(0, now=0.1)
    assert bench.update(0) == [0]
    bench.instruct(1, now=0.1)
    held = {unit for unit in (grant.producer.actor for grant in bench.grants.values())}
    units, _ = bench.instruct(1, now=10.0)
    assert units
    assert not held.issuperset(actor for actor, _ in units)


def test_slots_in_quarantine_replace_nothing():
    bench = Bench(1, 1, 1, blocks=1, lag=None, slots=3)
    bench.instruct()
    bench.announce(0, now=0.1)
    bench.update(0)
    assert bench.instruct(1, now=9.0) == ([(0, 0)], []), "a third slot is there for the block of another"
    bench.flow.producer_died(bench.producers[0])
    assert bench.instruct(1, now=9.0)[1] == [Cut(bench.producers[1], 1)]


def test_without_a_bound_nothing_is_written_off_however_few_slots_are_left():
    bench = Bench(1, 1, blocks=4, lag=None, slots=5, on_straggler="drop", producers=4)
    bench.instruct()
    bench.announce(0, 2, now=0.1)
    assert bench.instruct(now=0.1)[0] == [(0, 0)]
    bench.give_back(4, SHUTDOWN_REASON)
    assert bench.instruct(now=9.0) == ([], []), (
        "one slot is free, two grants of actor 1 are overdue: it alone can fill it"
    )
    assert bench.flow.counts()["stragglers"] == 0


def test_a_spared_grant_is_judged_at_the_next_version():
    bench = Bench(1, 1, blocks=1, lag=1, on_straggler="drop", slots=8)
    bench.instruct()
    bench.announce(1, now=0.1)
    assert bench.update(0) == [1]
    bench.instruct(1, now=0.1)
    assert bench.instruct(1, now=1.0)[0] == [(1, 0)], "grant 0 was written off"
    bench.announce(0, now=1.0)
    bench.give_back(3, "non_finite")
    assert bench.instruct(1, now=1.0)[0] == [(0, 0)]
    bench.instruct(1, now=50.0)
    assert bench.flow.counts()["stragglers"] == 1, "spared"
    bench.announce(2, now=50.0)
    assert bench.update(1) == [2]
    bench.instruct(2, now=50.0)
    assert bench.flow.counts()["stragglers"] == 2


def test_a_grant_is_not_late_while_an_update_runs():
    bench = late_one("cut")
    bench.announce(2, now=1.0)
    blocks = bench.flow.take(0, 1.0)
    bench.flow.release(blocks)
    assert bench.instruct(0, now=50.0) == ([], [])
    bench.flow.trained(blocks, 0)
    assert len(bench.instruct(1, now=50.0)[0]) == 3
    tight = Bench(1, 1, blocks=2, lag=1, slots=2)
    tight.instruct()
    tight.announce(0, 1, now=0.1)
    blocks = tight.flow.take(0, 0.1)
    tight.flow.release(blocks)
    assert len(tight.instruct(0, now=0.1)[0]) == 2
    assert tight.instruct(0, now=9.0)[1] == []
    tight.flow.trained(blocks, 0)
    assert len(tight.instruct(1, now=9.0)[1]) == 2


def test_what_is_dropped_is_counted_by_length():
    """Field case 46: half the episodes last 10 steps, half 1000, one block each; whoever drops must show the bias."""
    bench = Bench(1, 1, 1, 1, blocks=2, lag=0, on_straggler="drop", slots=16)
    now, version = 0.0, 0
    due = {}
    while version < 40:
        bench.instruct(version, now)
        for number, grant in bench.grants.items():
            due.setdefault(number, now + (0.1 if grant.producer.actor < 2 else 10.0))
        now = round(now + 0.1, 1)
        for number in [number for number in bench.grants if due[number] <= now]:
            bench.announce(number, now=now, length=10 if bench.grants[number].producer.actor < 2 else 1000)
        version += bench.update(version, now) is not None
    bench.flow.drain()
    bench.announce(
        *[number for number in bench.grants if bench.grants[number].producer.actor > 1], now=99.0, length=1000
    )
    counts = bench.flow.counts()
    trained, dropped = counts["lengths"]["trained"], counts["lengths"]["dropped"]["straggler"]
    assert trained["8"] > 70, "as good as only short ones are trained on,"
    assert dropped["512"] >= 2, "and the counts say so"
    assert sum(trained.values()) + sum(dropped.values()) + counts["blocks"]["in_flight"] == counts["blocks"]["produced"]


def test_cut_keeps_the_share_of_slow_actors():
    bench = Bench(1, 1, 1, 1, blocks=4, lag=0)
    now = 0.0
    for version in range(30):
        bench.instruct(version, now)
        bench.announce(*[n for n in bench.grants if bench.grants[n].producer.actor < 2], now=now + 0.1, length=10)
        now += 10.0
        _, cuts = bench.instruct(version, now)
        assert {cut.grant for cut in cuts} == set(bench.grants)
        bench.announce(*list(bench.grants), now=now, length=7)
        assert bench.update(version, now) is not None
        bench.grants.clear()
        if version == 3:
            break
    assert bench.flow.counts()["lengths"]["trained"] == {"8": 8, "4": 8}
    assert bench.flow.counts()["blocks"]["dropped"] == {}

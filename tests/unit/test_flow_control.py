"""Flow control as the trainer worker sees it: assignment, stragglers, lockstep, barriers, accounts."""

from collections import Counter

import pytest

from srl.api.block import BlockHeader
from srl.api.errors import ResourceError, StreamError, UsageError
from srl.system.flow.control import SHUTDOWN_REASON, Cut, FlowControl, Grant
from srl.system.flow.stragglers import RECENT_BLOCKS, STRAGGLER_FLOOR_SECONDS, STRAGGLER_MEDIANS, Durations
from srl.system.streams.interface import Announced, Connected, Producer, Refused, Returned


class Bench:
    """A ``FlowControl`` with its producers connected, and the grants they hold."""

    def __init__(self, *ring_groups, blocks, lag, on_straggler="cut", slots=None, lockstep=False, producers=None):
        self.flow = FlowControl(
            blocks_per_update=blocks,
            max_policy_lag=lag,
            on_straggler=on_straggler,
            slots=slots or (2 if lag is None else lag + 2) * blocks,
            producers=producers or sum(ring_groups),
            lockstep=lockstep,
        )
        self.grants = {}
        self.sequences = Counter()
        self.producers = [Producer(actor, 0, groups) for actor, groups in enumerate(ring_groups)]
        for producer in self.producers:
            self.flow.handle(Connected(producer), 0.0)

    def instruct(self, version=0, now=0.0):
        """Returns units granted to, in order; keeps the grants; and the cuts."""
        units, cuts = [], []
        for order in self.flow.instructions(version, now):
            if isinstance(order, Grant):
                self.grants[order.credit.grant] = order
                units.append((order.producer.actor, order.credit.ring_group))
            else:
                cuts.append(order)
        return units, cuts

    def header(self, number, *, length=8, valid_rows=None):
        grant = self.grants[number]
        credit = grant.credit
        return BlockHeader(
            actor=grant.producer.actor,
            incarnation=grant.producer.incarnation,
            ring_group=credit.ring_group,
            sequence=self.sequences[grant.producer.actor, credit.ring_group],
            grant=number,
            slot=credit.slot,
            generation=credit.generation,
            length=length,
            valid_rows=length if valid_rows is None else valid_rows,
            finals=0,
            versions=1,
            min_version=credit.min_version,
        )

    def announce(self, *numbers, now=0.0, length=8):
        for number in numbers:
            header = self.header(number, length=length)
            self.sequences[header.actor, header.ring_group] += 1
            self.flow.handle(Announced(self.grants.pop(number).producer, header), now)

    def give_back(self, number, reason):
        grant = self.grants.pop(number)
        self.flow.handle(Returned(grant.producer, number, grant.credit.slot, reason), 0.0)

    def update(self, version, now=0.0):
        """Take, release and train; returns the grants in it."""
        blocks = self.flow.take(version, now)
        if blocks is None:
            return None
        self.flow.release(blocks)
        self.flow.trained(blocks, version)
        return [block.header.grant for block in blocks]


# Assignment.


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


# Lives.


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


# Stragglers.


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


def test_actors_block_rather_than_pile_up_while_the_trainer_is_slow():
    """Field case 46: actors at full speed, one update now and then, max lag 2."""
    bench = Bench(1, 1, 1, blocks=3, lag=2, slots=12)
    lags = []
    for version in range(20):
        for _ in range(50):
            bench.instruct(version)
            bench.announce(*list(bench.grants))
        assert bench.flow.counts()["blocks"]["in_flight"] == 9
        blocks = bench.flow.take(version, 0.0)
        lags += [version - block.header.min_version for block in blocks]
        bench.flow.release(blocks)
        bench.flow.trained(blocks, version)
    assert max(lags) == 2


# Updates.


def test_time_held_up_by_the_gate_is_counted():
    bench = Bench(1, 1, blocks=1, lag=0, slots=2)
    bench.instruct()
    assert bench.flow.take(0, 1.0) is None
    assert bench.flow.counts()["gated_seconds"] == 0.0, "too few blocks is not the gate's doing"
    gated = Bench(1, 1, blocks=1, lag=1, on_straggler="wait")
    gated.instruct()
    gated.announce(1)
    gated.update(0)
    gated.instruct(1)
    gated.announce(2)
    assert gated.flow.take(1, 10.0) is None
    assert gated.flow.take(1, 11.0) is None
    gated.announce(0)
    assert gated.update(1, now=12.5) == [0]
    assert gated.flow.counts()["gated_seconds"] == 2.5


def test_a_block_too_old_for_its_update_is_an_error():
    bench = Bench(1, blocks=1, lag=0)
    bench.instruct()
    bench.announce(0)
    blocks = bench.flow.take(0, 0.0)
    with pytest.raises(StreamError, match="policy lag"):
        bench.flow.trained(blocks, 1)


def test_blocks_are_accounted_for_once():
    bench = Bench(1, blocks=1, lag=0)
    bench.instruct()
    bench.announce(0)
    blocks = bench.flow.take(0, 0.0)
    bench.flow.trained(blocks, 0)
    with pytest.raises(StreamError, match="twice"):
        bench.flow.trained(blocks, 0)
    bench.flow.release(blocks)
    with pytest.raises(StreamError, match="slot"):
        bench.flow.release(blocks)


def test_a_discarded_update_is_granted_anew():
    bench = Bench(1, 1, blocks=2, lag=0)
    bench.instruct()
    bench.announce(0, 1)
    blocks = bench.flow.take(0, 0.0)
    bench.flow.release(blocks)
    with pytest.raises(StreamError, match="as a whole"):
        bench.flow.discard(blocks[:1], "non_finite_update")
    bench.flow.discard(blocks, "non_finite_update")
    bench.instruct()
    bench.announce(2, 3)
    assert bench.update(0) == [2, 3]
    assert bench.flow.counts()["blocks"]["dropped"] == {"non_finite_update": 2}


def test_an_account_that_does_not_add_up_is_an_error():
    bench = Bench(1, blocks=1, lag=0)
    bench.instruct()
    bench.announce(0)
    bench.flow._ready.clear()
    with pytest.raises(StreamError, match="add up"):
        bench.flow.counts()


def test_too_few_slots_are_refused():
    with pytest.raises(ResourceError, match="slots"):
        Bench(1, blocks=3, lag=0, slots=2)


# Lockstep.


def lockstep(*ring_groups, **options):
    return Bench(*ring_groups, lockstep=True, **options)


def test_lockstep_waits_for_all_and_then_takes_turns():
    bench = Bench(2, blocks=2, lag=1, lockstep=True, producers=3)
    assert bench.instruct() == ([], [])
    bench.flow.handle(Connected(Producer(1, 0, 1)), 0.0)
    assert bench.instruct()[0] == [(0, 0), (0, 1), (1, 0), (0, 0)]
    assert all(grant.credit.exact for grant in bench.grants.values())


def test_lockstep_takes_the_same_blocks_whatever_the_order_of_arrival():
    batches = []
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        bench = lockstep(2, 1, blocks=4, lag=0)
        bench.instruct()
        if order[0] == 0:
            bench.announce(0, 3, 1, 2)
        else:
            bench.announce(2, 1, 0, 3)
        blocks = bench.flow.take(0, 0.0)
        batches.append([(block.header.actor, block.header.ring_group, block.header.sequence) for block in blocks])
    assert batches == [[(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]] * 2


def test_lockstep_grants_a_dead_producers_turn_to_its_successor():
    bench = lockstep(1, 1, blocks=2, lag=0)
    bench.instruct()
    bench.announce(1)
    bench.flow.producer_died(bench.producers[0])
    assert bench.instruct()[0] == []
    bench.flow.handle(Connected(Producer(0, 1, 1)), 0.0)
    assert bench.instruct()[0] == [(0, 0)]
    assert bench.grants[0].producer.incarnation == 1
    bench.announce(0)
    assert bench.update(0) == [0, 1]


def test_lockstep_has_no_stragglers():
    bench = lockstep(1, 1, blocks=2, lag=0, on_straggler="drop")
    bench.instruct()
    bench.announce(0, now=0.1)
    assert bench.instruct(now=99.0) == ([], [])
    assert bench.flow.wake_time(99.0) is None


# Coming to rest.


def test_a_drained_stream_grants_nothing_and_waits_for_what_is_out():
    bench = Bench(1, blocks=1, lag=1)
    bench.instruct()
    bench.flow.drain()
    bench.announce(0)
    assert not bench.flow.drained()
    assert bench.flow.outstanding() == 1
    assert bench.instruct()[0] == []
    bench.give_back(1, SHUTDOWN_REASON)
    assert bench.flow.drained()


@pytest.mark.parametrize("is_lockstep", [True, False])
def test_a_barrier_brings_everything_to_rest_at_its_version(is_lockstep):
    bench = Bench(1, 1, blocks=2, lag=1, lockstep=is_lockstep)
    bench.flow.set_barrier(3)
    version = 0
    for _ in range(20):
        bench.instruct(version)
        bench.announce(*list(bench.grants))
        version += bench.update(version) is not None
    assert version == 3
    assert bench.flow.drained()
    assert bench.flow.counts()["blocks"] == {"produced": 6, "trained": 6, "in_flight": 0, "dropped": {}}
    bench.flow.lift_barrier()
    bench.instruct(3)
    assert sorted(grant.credit.min_version for grant in bench.grants.values()) == [3] * 4
    with pytest.raises(UsageError, match="too late"):
        bench.flow.set_barrier(4)

"""Flow control as the trainer worker sees it: updates and their accounts, lockstep, barriers, coming to rest."""

import pytest
from flow_bench import Bench

from srl.api.errors import ResourceError, StreamError, UsageError
from srl.system.flow.control import SHUTDOWN_REASON
from srl.system.streams.interface import Connected, Producer


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

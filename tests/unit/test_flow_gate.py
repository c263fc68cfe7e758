"""The credit and gate formulas, by hand and against the slow actor of the design."""

from collections import deque

import pytest

from srl.api.errors import UsageError
from srl.system.flow.gate import LagGate, default_slots
from srl.system.flow.lockstep import LockstepGate


def grant_all(gate, version):
    """Grant as many as the credits allow; returns (number, min_version) of each."""
    grants = []
    while gate.may_grant(version) and len(grants) < 1000:
        grant = gate.next_grant(version)
        gate.grant(*grant)
        grants.append(grant)
    return grants


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("lag", [0, 1, 4])
@pytest.mark.parametrize("first", [0, 10])
def test_credits_are_for_this_update_and_the_next_k(blocks, lag, first):
    for gate in (LagGate(blocks, lag), LockstepGate(blocks, lag)):
        numbers = [number for number, _ in grant_all(gate, first)]
        assert numbers == list(range(first * blocks, (first + lag + 1) * blocks))
        for number in numbers:
            gate.arrived(number)
        assert gate.take(first) == numbers[:blocks]
        assert grant_all(gate, first) == []
        assert len(grant_all(gate, first + 1)) == blocks


def test_without_a_bound_credits_never_end_and_any_n_blocks_will_do():
    gate = LagGate(2, None)
    assert len(grant_all(gate, 0)) == 1000
    gate.arrived(998)
    assert gate.take(0) is None
    gate.arrived(997)
    assert gate.take(0) == [997, 998]


def test_a_grant_given_back_is_granted_anew_at_the_current_version():
    gate = LagGate(1, 1)
    assert grant_all(gate, 0) == [(0, 0), (1, 0)]
    gate.arrived(1)
    assert gate.take(0) == [1]
    gate.give_back(0)
    assert grant_all(gate, 1) == [(2, 1), (3, 1)]


def test_an_update_waits_for_what_could_not_be_trained_later():
    gate = LagGate(2, 1)
    assert [number for number, _ in grant_all(gate, 0)] == [0, 1, 2, 3]
    gate.arrived(2)
    assert gate.take(0) is None
    gate.arrived(3)
    assert gate.take(0) == [2, 3], "two of version 0 may stay: the update at version 1 can take them"
    assert [number for number, _ in grant_all(gate, 1)] == [4, 5]
    gate.arrived(4)
    gate.arrived(5)
    assert gate.take(1) is None
    gate.arrived(0)
    assert gate.take(1) is None
    gate.arrived(1)
    assert gate.take(1) == [0, 1]


def all_overdue(gate):
    while (number := gate.next_to_age()) is not None:
        gate.overdue(number)


def test_an_update_cannot_do_without_what_has_to_be_in_it():
    gate = LagGate(2, 1)
    grant_all(gate, 0)
    gate.arrived(2)
    gate.arrived(3)
    gate.take(0)
    grant_all(gate, 1)
    assert gate.blocking(1, slots=6) is None, "nothing is overdue"
    all_overdue(gate)
    assert gate.blocking(0, slots=6) is None, "the update before is still running"
    assert gate.blocking(1, slots=6) == 0
    gate.count_on(0)
    assert gate.blocking(1, slots=6) == 1
    gate.arrived(0)
    gate.count_on(1)
    assert gate.blocking(1, slots=6) is None, "2 and 3, of version 1, may come later"


def test_where_any_block_will_do_only_the_overdue_too_many_are_named():
    gate = LagGate(2, 1)
    grant_all(gate, 0)
    for number in (0, 1):
        gate.overdue(number)
    assert gate.blocking(0, slots=6) is None, "2 and 3 are expected, and are enough"
    gate.overdue(2)
    assert gate.blocking(0, slots=6) == 0
    gate.count_on(0)
    assert gate.blocking(0, slots=6) is None, "0 and 3 are expected now"


def test_overdue_grants_may_not_take_the_slots_of_an_update():
    gate = LagGate(2, None)
    assert gate.may_grant(0)
    for _ in range(3):
        gate.grant(*gate.next_grant(0))
    gate.overdue(0)
    assert gate.blocking(0, slots=3) is None
    assert gate.blocking(0, slots=2) == 0
    gate.arrived(1)
    gate.arrived(2)
    assert gate.blocking(0, slots=2) is None, "the update can start"


def test_in_synchronous_training_every_overdue_grant_holds_up():
    gate = LagGate(3, 0)
    grant_all(gate, 0)
    gate.arrived(1)
    all_overdue(gate)
    assert gate.blocking(0, slots=6) == 0
    gate.count_on(0)
    assert gate.blocking(0, slots=6) == 2
    gate.give_back(2)
    assert gate.blocking(0, slots=6) is None
    assert grant_all(gate, 0) == [(3, 0)]


def test_what_is_counted_on_can_age_again_in_its_order():
    gate = LagGate(4, 0)
    grant_all(gate, 0)
    for number in (1, 2):
        gate.count_on(number)
    gate.overdue(0)
    assert gate.next_to_age() == 3
    gate.arrived(2)
    gate.let_age([1, 2])
    assert gate.next_to_age() == 1


@pytest.mark.parametrize("kind", [LagGate, LockstepGate])
def test_versions_come_in_turn(kind):
    gate = kind(1, 3)
    grant_all(gate, 5)
    gate.arrived(5)
    with pytest.raises(UsageError, match="out of turn"):
        gate.take(6)
    assert gate.take(5) == [5]
    with pytest.raises(UsageError, match="out of turn"):
        gate.take(5)
    with pytest.raises(UsageError, match="ahead"):
        gate.may_grant(7)


def test_an_update_that_came_to_nothing_gives_its_grants_back():
    gate = LagGate(2, 0)
    grant_all(gate, 0)
    gate.arrived(0)
    gate.arrived(1)
    assert gate.take(0) == [0, 1]
    assert not gate.may_grant(0)
    gate.untake(0)
    assert [number for number, _ in grant_all(gate, 0)] == [2, 3]


class CapAlone(LagGate):
    """Credits without the gate."""

    def _sums(self, version):
        return iter(())


def slow_actor_of_16(gate, rounds, every):
    """One update a round; 15 units answer the grants of a round in the next, one only every ``every`` rounds.

    Returns:
        Lag of every block trained.
    """
    held = [deque() for _ in range(16)]
    granted_at, lags, version = {}, [], 0
    for turn in range(rounds):
        while gate.may_grant(version) and min(map(len, held)) < 2:
            number, min_version = gate.next_grant(version)
            gate.grant(number, min_version)
            granted_at[number] = min_version
            min(held, key=len).append(number)
        for unit, queue in enumerate(held):
            if queue and (unit > 0 or turn % every == every - 1):
                gate.arrived(queue.popleft())
        taken = gate.take(version)
        if taken is not None:
            lags += [version - granted_at[number] for number in taken]
            version += 1
    return lags


def test_the_cap_alone_lets_a_slow_actor_exceed_the_bound_and_the_gate_does_not():
    assert max(slow_actor_of_16(CapAlone(16, 1), rounds=200, every=24)) >= 20
    lags = slow_actor_of_16(LagGate(16, 1), rounds=200, every=24)
    assert max(lags) == 1
    assert len(lags) >= 16 * 8, "slow, but not stuck"


def test_lockstep_fixes_update_and_version_of_every_grant():
    gate = LockstepGate(2, 1)
    assert grant_all(gate, 0) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    for number in (1, 2, 3):
        gate.arrived(number)
    assert gate.take(0) is None, "grant 0 belongs to update 0, whatever else is ready"
    gate.arrived(0)
    assert gate.take(0) == [0, 1]
    assert gate.take(1) == [2, 3], "the next batch may be taken while this update runs"
    assert grant_all(gate, 1) == [(4, 1), (5, 1)]
    assert grant_all(gate, 2) == [(6, 2), (7, 2)]


def test_a_lockstep_grant_sent_late_still_acts_with_its_version():
    gate = LockstepGate(1, 2)
    for version in range(3):
        assert gate.may_grant(version)
        number, min_version = gate.next_grant(version)
        assert (number, min_version) == (version, 0)
        gate.grant(number, min_version)
        gate.arrived(number)
        gate.take(version)
    assert grant_all(gate, 3) == [(3, 1), (4, 2), (5, 3)]


def test_a_lockstep_grant_that_ends_is_granted_again_before_any_other():
    gate = LockstepGate(2, 0)
    grant_all(gate, 0)
    gate.give_back(1)
    gate.give_back(0)
    assert grant_all(gate, 0) == [(0, 0), (1, 0)]


def test_lockstep_after_an_update_that_came_to_nothing():
    gate = LockstepGate(2, 1)
    for number, _ in grant_all(gate, 0):
        gate.arrived(number)
    assert gate.take(0) == [0, 1]
    assert gate.take(1) == [2, 3]
    gate.untake(0)
    assert grant_all(gate, 0) == [(4, 0), (5, 0)], "update 1 enters with version 0 now"
    for number in (4, 5):
        gate.arrived(number)
    assert gate.take(1) == [4, 5]
    assert grant_all(gate, 1) == [(6, 1), (7, 1)]


def test_lockstep_needs_a_bound():
    with pytest.raises(UsageError, match="lockstep"):
        LockstepGate(1, None)


@pytest.mark.parametrize(("blocks", "lag"), [(0, 1), (1, -1)])
def test_parameters_out_of_range_are_refused(blocks, lag):
    with pytest.raises(UsageError, match="lag gate"):
        LagGate(blocks, lag)


@pytest.mark.parametrize("kind", [LagGate, LockstepGate])
def test_at_a_barrier_nothing_is_under_way_and_then_it_goes_on_as_after_a_resume(kind):
    gate = kind(2, 2)
    gate.set_barrier(3)
    version, seen = 0, []
    while not (gate.at_barrier() and version == 3):
        for number, _ in grant_all(gate, version):
            seen.append(number)
            gate.arrived(number)
        assert gate.take(version) is not None
        version += 1
    assert seen == list(range(6))
    with pytest.raises(UsageError, match="out of turn"):
        gate.take(2)
    gate.lift_barrier()
    resumed = kind(2, 2)
    assert grant_all(gate, 3) == grant_all(resumed, 3) == [(number, 3) for number in range(6, 12)]


@pytest.mark.parametrize("kind", [LagGate, LockstepGate])
def test_a_barrier_cannot_take_back_what_was_granted_nor_be_lifted_early(kind):
    gate = kind(2, 1)
    grant_all(gate, 0)
    with pytest.raises(UsageError, match="too late"):
        gate.set_barrier(1)
    gate.set_barrier(2)
    with pytest.raises(UsageError, match="no barrier"):
        gate.lift_barrier()


def test_default_slots():
    assert default_slots(8, 0) == 16
    assert default_slots(8, 1) == default_slots(8, None) == 24

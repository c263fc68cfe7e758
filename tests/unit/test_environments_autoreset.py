"""Rows and final observations of the adapters are the same in every autoreset mode of what lies below."""

import numpy as np
import pytest
from environment_play import episode, every_kind, native, output, play, synchronous, wrapped

from srl.api.errors import EnvironmentFault
from srl.environments.toy import CountVector


def test_the_dummy_row_of_next_step_autoreset_is_no_transition():
    """Field case 1: 12 steps of COUNT(3) give 9 transitions, not 12, and none from 3 to 0."""
    for environment in (native("NEXT_STEP", [3]), synchronous("NEXT_STEP", [3])):
        (column,) = play(environment, 12)
        assert column == episode(3) * 3


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_every_row_is_a_transition_in_the_other_modes(mode):
    (column,) = play(native(mode, [3]), 12)
    assert column == episode(3) * 4


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episodes_are_the_same_in_every_mode_when_ends_are_not_aligned(end):
    for name, environment in every_kind([3, 5], end).items():
        three, five = play(environment, 24)
        assert three[:15] == episode(3, end) * 5, name
        assert five[:20] == episode(5, end) * 4, name
        environment.close()
        environment.close()


def test_two_ends_at_once_keep_their_order():
    environment = native("SAME_STEP", [2, 3, 2])
    out = output(environment)
    environment.reset(out)
    action = np.zeros(3, np.int64)
    assert environment.step(action, out) is None
    ended = environment.step(action, out)
    assert ended.columns.tolist() == [0, 2]
    assert ended.final_observation.tolist() == [[2.0], [2.0]]
    assert out.episode_start.tolist() == [True, False, True]
    assert out.observation.tolist() == [[0.0], [2.0], [0.0]]


def test_same_step_autoreset_without_final_observations_is_refused():
    env = CountVector(1, [1], autoreset_mode="same_step")
    env._final = lambda ended: None
    environment = wrapped(env)
    out = output(environment)
    environment.reset(out)
    with pytest.raises(EnvironmentFault, match="reports no final observation"):
        environment.step(np.zeros(1, np.int64), out)


def test_a_vector_environment_without_an_autoreset_mode_is_refused():
    env = CountVector(1)
    env.metadata = {}
    with pytest.raises(EnvironmentFault, match="does not declare its autoreset mode"):
        wrapped(env)

"""GAE against closed forms and the field cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.algorithms.ppo.targets import advantages, final_rows_needed


def column(values, dtype):
    return np.array(values, dtype).reshape(-1, 1)


def gae(reward, value, terminated, truncated, *, final=(), last=0.0, gamma, lam, valid=None):
    """One column; the i-th end uses the i-th entry of ``final``."""
    rows = len(reward)
    ends = np.cumsum(np.array(terminated, bool) | np.array(truncated, bool)) - 1
    flags = {
        "terminated": column(terminated, bool),
        "truncated": column(truncated, bool),
        "valid": column([True] * rows if valid is None else valid, bool),
        "final_row": column(np.maximum(ends, 0), np.int32),
    }
    return advantages(
        reward=column(reward, np.float32),
        value=column(value, np.float32),
        last_value=np.array([last], np.float32),
        final_value=np.array([*final, np.nan], np.float32),
        gamma=gamma,
        gae_lambda=lam,
        **flags,
    )[:, 0]


def test_time_limit_bootstraps_from_the_true_final_observation():
    """Field case 3."""
    result = gae([1, 1, 1], [0.5] * 3, [0, 0, 0], [0, 0, 1], final=[10], last=0.5, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(result, [11.130016, 10.7762, 10.4], rtol=1e-6)


def test_time_limit_cuts_the_recursion_to_the_next_episode():
    """Field case 3, the wrong signature of no cut being [.., .., 10.87025]."""
    result = gae([1, 1, 1, 1], [0.5] * 4, [0, 0, 0, 1], [0, 0, 1, 0], final=[10], gamma=0.99, lam=0.95)
    np.testing.assert_allclose(result, [11.130016, 10.7762, 10.4, 0.5], rtol=1e-6)


def test_termination_bootstraps_nothing():
    """Field case 3, where 'terminal' is right."""
    result = gae([1, 1, 1], [0.5] * 3, [0, 0, 1], [0, 0, 0], final=[10], last=7, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(result, [2.373068, 1.46525, 0.5], rtol=1e-6)


def test_terminated_wins_over_truncated():
    both = gae([1, 1, 1], [0.5] * 3, [0, 0, 1], [0, 0, 1], final=[10], last=7, gamma=0.99, lam=0.95)
    np.testing.assert_allclose(both, [2.373068, 1.46525, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "lam", "expected"),
    [
        (True, 0.0, [0.36, 0.54, 1.0]),
        (False, 0.0, [0.36, 0.54, 1.72]),
        (True, 1.0, [0.81, 0.9, 1.0]),
        (False, 1.0, [0.81 * 1.72, 0.9 * 1.72, 1.72]),
    ],
)
def test_lambda_zero_and_one(terminated, lam, expected):
    """Field case 11: value targets."""
    value = [0.2, 0.4, 0.6]
    flags = ([0, 0, terminated], [0, 0, not terminated])
    result = gae([0, 0, 1], value, *flags, final=[0.8], last=0.3, gamma=0.9, lam=lam)
    np.testing.assert_allclose(result + value, expected, rtol=1e-6)


def test_constant_reward_for_ever_is_worth_one_over_one_minus_gamma():
    """Holds for cut-off episodes only if time limits are bootstrapped."""
    worth = 1 / (1 - 0.9)
    truncated = [0, 0, 0, 1, 0, 0]
    result = gae([1] * 6, [worth] * 6, [0] * 6, truncated, final=[worth], last=worth, gamma=0.9, lam=0.95)
    np.testing.assert_allclose(result, 0.0, atol=1e-5)


def plain(reward, value, terminated, truncated, valid, final, last, gamma, lam):
    """The recursion, row by row, as the definition says it."""
    next_value, next_advantage, result = last, 0.0, np.zeros(len(reward))
    for row in reversed(range(len(reward))):
        if not valid[row]:
            continue
        ended = terminated[row] or truncated[row]
        successor = 0.0 if terminated[row] else final[row] if truncated[row] else next_value
        delta = reward[row] + gamma * successor - value[row]
        result[row] = delta + gamma * lam * (0.0 if ended else next_advantage)
        next_value, next_advantage = value[row], result[row]
    return result


@given(data=st.data(), rows=st.integers(1, 12), columns=st.integers(1, 4))
def test_any_pattern_of_ends_and_gaps(data, rows, columns):
    seed = data.draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    shape = (rows, columns)
    reward, value = generator.normal(size=(2, *shape))
    terminated, truncated, valid = (generator.random(shape) < p for p in (0.2, 0.2, 0.75))
    value[~valid] = np.nan  # never read
    reward[~valid] = np.nan
    final_row = generator.permutation(rows * columns).reshape(shape).astype(np.int32)
    final_value, last = generator.normal(size=rows * columns), generator.normal(size=columns)
    needed = final_rows_needed(terminated, truncated, valid, final_row)
    only_needed = np.full(rows * columns, np.nan)
    only_needed[needed] = final_value[needed]
    result = advantages(
        reward=reward,
        value=value,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        final_row=final_row,
        last_value=last,
        final_value=only_needed,
        gamma=0.97,
        gae_lambda=0.9,
    )
    for index in range(columns):
        expected = plain(
            *(array[:, index] for array in (reward, value, terminated, truncated, valid, final_value[final_row])),
            last[index],
            0.97,
            0.9,
        )
        np.testing.assert_allclose(result[:, index], expected, rtol=1e-9, atol=1e-9)


def test_next_step_autoreset_gives_the_advantages_of_same_step_data():
    """Field case 1: the reset query between two episodes is a row without a transition."""
    reward, value = [1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.3, 0.4]
    same = gae(reward, value, [0, 0, 0, 0], [0, 1, 0, 0], final=[5.0], last=6.0, gamma=0.9, lam=0.8)
    with_gap = gae(
        [1.0, 2.0, 0.0, 3.0, 4.0],
        [0.1, 0.2, 99.0, 0.3, 0.4],
        [0] * 5,
        [0, 1, 0, 0, 0],
        final=[5.0],
        last=6.0,
        gamma=0.9,
        lam=0.8,
        valid=[1, 1, 0, 1, 1],
    )
    np.testing.assert_array_equal(with_gap[[0, 1, 3, 4]], same)
    assert with_gap[2] == 0.0


def test_padding_behind_a_short_block_changes_nothing():
    short = gae([1.0, 2.0], [0.1, 0.2], [0, 0], [0, 0], last=6.0, gamma=0.9, lam=0.8)
    padded = gae([1, 2, 0, 0], [0.1, 0.2, 0, 0], [0] * 4, [0] * 4, last=6.0, gamma=0.9, lam=0.8, valid=[1, 1, 0, 0])
    np.testing.assert_array_equal(padded, [*short, 0, 0])


def test_only_truncated_rows_need_a_final_value():
    terminated, truncated = np.array([[1, 0, 1, 0]], bool), np.array([[0, 1, 1, 1]], bool)
    valid, final_row = np.array([[1, 1, 1, 0]], bool), np.array([[4, 2, 1, 0]], np.int32)
    assert final_rows_needed(terminated, truncated, valid, final_row).tolist() == [2]


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [([0, 0, 1], [0, 0, 0], 1.0), ([0, 0, 0], [0, 0, 1], 10.0), ([0, 0, 1], [0, 0, 1], 1.0)],
)
def test_every_kind_of_end_ends_the_episode(terminated, truncated, expected):
    """Field case 16, for one agent: (term), (trunc) and both; r = 1, g = .9, V(final) = 10."""
    advantage = gae([0, 0, 1], [0.0] * 3, terminated, truncated, final=[10], last=99, gamma=0.9, lam=1.0)
    assert advantage[2] == pytest.approx(expected)
    np.testing.assert_allclose(advantage, [0.81 * expected, 0.9 * expected, expected], rtol=1e-6)

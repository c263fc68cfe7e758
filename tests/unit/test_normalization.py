"""Moments, observation normalisation, the scale of returns and PopArt against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.algorithms.normalization.moments import Moments
from srl.algorithms.normalization.observations import ObservationNormalizer
from srl.algorithms.normalization.popart import TargetScale
from srl.algorithms.normalization.returns import DiscountedReturns
from srl.api.block import BlockHeader
from srl.api.spaces import SpaceSpec


def column(*values):
    return np.array(values, np.float64).reshape(-1, 1)


def header(actor=0, ring_group=0, sequence=0):
    return BlockHeader(actor, 0, ring_group, sequence, 0, 0, 0, 4, 4, 0, 1, 0)


def test_merging_two_sets_is_exact_and_averaging_variances_is_not():
    merged = Moments.of(column(0, 0)).merged(Moments.of(column(4, 4)))
    assert (merged.count, merged.mean[0], merged.variance()[0]) == (4, 2.0, 4.0)


def test_merging_nothing_changes_nothing():
    moments = Moments.of(column(0, 0, 4, 4))
    assert moments.merged(Moments.of(np.zeros((0, 1)))) is moments


def test_ten_rounds_of_three_ranks_count_what_was_seen():
    random = np.random.default_rng(1)
    rounds = [[random.normal(size=(size, 2)) for size in (3, 0, 7)] for _ in range(10)]
    moments = Moments.none(2)
    for parts in rounds:
        for part in parts:
            moments = moments.merged(Moments.of(part))
    everything = np.concatenate([part for parts in rounds for part in parts])
    assert moments.count == len(everything) == 100
    np.testing.assert_allclose(moments.mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance(), everything.var(axis=0), rtol=1e-12)


def test_a_small_spread_around_a_large_mean_keeps_its_variance():
    values = np.float32(10_000.0) + np.float32(0.3) * np.linspace(-1.0, 1.0, 1_000, dtype=np.float32)
    moments = Moments.none(1)
    for part in np.split(values, 10):
        moments = moments.merged(Moments.of(part.reshape(-1, 1)))
    true = np.asarray(values, np.float64).var()
    assert moments.variance()[0] == pytest.approx(true, rel=1e-9)
    naive = np.mean(np.square(values)) - np.square(np.mean(values))  # float32: rounding is larger than the variance
    assert abs(naive - true) > 0.5 * true


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), min_size=1, max_size=5),
)
def test_any_split_gives_the_moments_of_the_whole(parts):
    moments = Moments.none(1)
    for part in parts:
        moments = moments.merged(Moments.of(column(*part)))
    everything = column(*[value for part in parts for value in part])
    whole = Moments.of(everything)
    assert moments.count == len(everything)
    np.testing.assert_allclose(moments.mean, whole.mean, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(moments.m2, whole.m2, rtol=1e-6, atol=1e-2)


def test_moments_over_ranks_are_those_of_all_their_samples():
    parts = [column(1, 2, 3), column(10)]

    class Ranks:
        """Sums what two ranks would bring, in step."""

        def __init__(self):
            self.sums = [np.concatenate([[len(part)], part.sum(axis=0)]) for part in parts]
            self.mean = sum(self.sums)[1:] / sum(self.sums)[0]
            self.calls = 0

        def __call__(self, values):
            self.calls += 1
            if self.calls == 1:
                return sum(self.sums)
            return sum(np.square(part - self.mean).sum(axis=0) for part in parts)

    moments = Moments.of(parts[0], Ranks())
    whole = np.concatenate(parts)
    assert moments.count == 4
    assert moments.mean[0] == whole.mean()
    assert moments.variance()[0] == pytest.approx(whole.var())


NESTED = SpaceSpec.nested(
    "dict",
    {
        "place": SpaceSpec("box", (2,), "float32"),
        "picture": SpaceSpec("box", (2, 2), "uint8"),
        "choice": SpaceSpec("discrete", (), "int64", n=3),
    },
)


def test_only_floating_point_leaves_are_normalised():
    observation = np.zeros(2, NESTED.dtype)
    leaves = {leaf.path: leaf.of(observation) for leaf in NESTED.leaves()}
    leaves["place"][...] = [[1.0, 10.0], [3.0, 30.0]]
    leaves["picture"][...] = 200
    leaves["choice"][...] = 2
    normalizer = ObservationNormalizer(NESTED, 10.0)
    normalizer.use(Moments.of(normalizer.values(observation)))
    normalizer.apply(observation)
    np.testing.assert_allclose(leaves["place"], [[-1.0, -1.0], [1.0, 1.0]], rtol=1e-5)
    assert (leaves["picture"] == 200).all()
    assert (leaves["choice"] == 2).all()


@pytest.mark.parametrize(("centre", "spread"), [(1e6 + 0.1, 0.0), (1e9, 1.0), (1.7e12, 100.0)])
def test_large_float64_observations_lose_nothing_to_the_mean(centre, spread):
    normalizer = ObservationNormalizer(SpaceSpec("box", (2,), "float64"), 10.0)
    observation = centre + spread * np.random.default_rng(0).standard_normal((1000, 2))
    normalizer.use(Moments.of(normalizer.values(observation)))
    normalizer.apply(observation)
    np.testing.assert_allclose(observation.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(observation.std(axis=0), float(spread > 0.0), atol=1e-3)


def test_without_samples_observations_stay_and_large_ones_are_cut():
    normalizer = ObservationNormalizer(SpaceSpec("box", (2,), "float32"), 10.0)
    observation = np.array([[0.5, -99.0]], np.float32)
    normalizer.use(Moments.none(2))
    normalizer.apply(observation)
    np.testing.assert_allclose(observation, [[0.5, -10.0]], rtol=1e-6)


def test_observations_that_are_not_finite_enter_no_statistic():
    normalizer = ObservationNormalizer(SpaceSpec("box", (1,), "float32"), 10.0)
    values = normalizer.values(np.array([[1.0], [np.nan], [np.inf], [3.0]], np.float32))
    assert values.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize("space", [NESTED, SpaceSpec("box", (2, 3), "float32")])
def test_a_rank_without_a_row_has_values_of_no_sample(space):
    normalizer = ObservationNormalizer(space, 10.0)
    assert normalizer.values(np.zeros((0, *space.shape), space.dtype)).shape == (0, normalizer.size)


def test_discounted_returns_start_anew_with_every_episode_and_go_on_over_blocks():
    returns = DiscountedReturns(0.5)
    ended = np.array([[False], [True], [False]])
    valid = np.ones((3, 1), bool)
    first = returns.follow([header()], np.ones((3, 1)), ended, valid)
    assert first.ravel().tolist() == [1.0, 1.5, 1.0]
    second = returns.follow([header(sequence=1)], np.ones((3, 1)), ended, valid)
    assert second.ravel().tolist() == [1.5, 1.75, 1.0]


def test_discounted_returns_pass_over_rows_without_a_transition():
    returns = DiscountedReturns(0.5)
    valid = np.array([[True], [False], [True]])
    found = returns.follow([header()], np.ones((3, 1)), np.zeros((3, 1), bool), valid)
    assert found[[0, 2], 0].tolist() == [1.0, 1.5]


def test_two_blocks_of_a_ring_group_in_one_update_follow_each_other():
    """A fast actor, or one whose block was cut, sends two; another one in between has returns of its own."""
    headers = [header(actor=0, sequence=4), header(actor=0, sequence=5), header(actor=1, sequence=9)]
    together, apart = DiscountedReturns(0.5), DiscountedReturns(0.5)
    reward = np.arange(12.0).reshape(2, 6)
    ended, valid = np.zeros((2, 6), bool), np.ones((2, 6), bool)
    ended[0, 2] = True
    found = together.follow(headers, reward, ended, valid)
    for block, one in enumerate(headers):
        part = (slice(None), slice(2 * block, 2 * block + 2))
        np.testing.assert_array_equal(found[part], apart.follow([one], reward[part], ended[part], valid[part]))
    assert {key: value.tolist() for key, value in together.under_way.items()} == {
        key: value.tolist() for key, value in apart.under_way.items()
    }


def test_columns_of_every_ring_group_have_returns_of_their_own_and_are_restored():
    returns = DiscountedReturns(1.0)
    reward = np.array([[1.0, 2.0, 10.0, 20.0]])
    never = np.zeros((1, 4), bool)
    returns.follow([header(0), header(1)], reward, never, ~never)
    restored = DiscountedReturns(1.0)
    restored.load_state(returns.state())
    assert restored.follow([header(1), header(0)], reward, never, ~never).tolist() == [[11.0, 22.0, 11.0, 22.0]]


def test_the_first_batch_alone_decides_the_scale_of_targets():
    scale = TargetScale().updated(mean=5.0, mean_square=29.0, rate=0.01)
    assert scale.mean() == pytest.approx(5.0)
    assert scale.deviation() == pytest.approx(2.0)


def test_the_scale_of_targets_forgets():
    scale = TargetScale()
    for mean in (0.0, 10.0):
        scale = scale.updated(mean, mean * mean + 1.0, rate=0.5)
    assert scale.mean() == pytest.approx((0.25 * 0.0 + 0.5 * 10.0) / 0.75)

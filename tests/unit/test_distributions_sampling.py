"""Decisions follow the probabilities, and what has none is never chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.distributions.composite import normals_from_pairs
from srl.api.policy import NoiseSpec
from srl.api.spaces import SpaceSpec, stored_space
from srl.system.noise import block_noise

LARGEST = np.nextafter(np.float32(1), np.float32(0))
DRAWS = 20_000
LOGITS = st.floats(-8, 8, width=32)


def decide(distribution, outputs, noise, mask=None):
    rows = len(noise)
    action = np.zeros((rows, *distribution.action.shape), distribution.action.dtype)
    log_probability = np.full(rows, np.nan, np.float32)
    outputs = np.tile(np.array(outputs, np.float32), (rows, 1))
    mask = None if mask is None else np.tile(np.array(mask, bool), (rows, 1))
    distribution.decide(outputs, noise, mask, action, log_probability, deterministic=False)
    return action, log_probability


def discrete(n):
    return build_distribution(SpaceSpec("discrete", (), "int64", n=n))


def even(count):
    """Uniforms that lie evenly: frequencies of n values are right to within n of them."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)[:, None]


@given(st.lists(st.tuples(LOGITS, st.booleans()), min_size=1, max_size=12))
def test_frequencies_follow_the_probabilities(choices):
    logits, legal = map(np.array, zip(*choices, strict=True))
    free = legal if legal.any() else ~legal
    probability = np.where(free, np.exp(logits), 0.0)
    probability /= probability.sum()
    action, log_probability = decide(discrete(len(choices)), logits, even(DRAWS), legal)
    counts = np.bincount(action, minlength=len(choices))
    np.testing.assert_allclose(counts / DRAWS, probability, atol=2 / DRAWS)
    assert not counts[~free].any()
    np.testing.assert_allclose(log_probability, np.log(probability[action]), atol=1e-5)


@given(st.data())
def test_elements_of_a_multi_discrete_action_follow_their_own_probabilities(data):
    nvec = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    distribution = build_distribution(SpaceSpec("multi_discrete", (len(nvec),), "int64", nvec=nvec))
    logits = data.draw(st.lists(LOGITS, min_size=sum(nvec), max_size=sum(nvec)))
    legal = np.array(data.draw(st.lists(st.booleans(), min_size=sum(nvec), max_size=sum(nvec))))
    noise = np.concatenate([np.random.default_rng(i).permutation(even(2000)) for i in range(len(nvec))], axis=1)
    action, log_probability = decide(distribution, logits, noise, legal)
    expected, first = np.zeros(2000), 0
    for element, n in enumerate(nvec):
        free = legal[first : first + n] if legal[first : first + n].any() else np.ones(n, bool)
        probability = np.where(free, np.exp(logits[first : first + n]), 0.0)
        probability /= probability.sum()
        counts = np.bincount(action[:, element], minlength=n)
        np.testing.assert_allclose(counts / 2000, probability, atol=2 / 2000)
        assert not counts[~free].any()
        expected += np.log(probability[action[:, element]])
        first += n
    np.testing.assert_allclose(log_probability, expected, atol=1e-4)


@given(st.lists(LOGITS, min_size=1, max_size=6))
def test_bits_follow_their_probabilities(logits):
    distribution = build_distribution(SpaceSpec("multi_binary", (len(logits),), "int8"))
    action, log_probability = decide(distribution, logits, np.tile(even(DRAWS), (1, len(logits))))
    probability = 1.0 / (1.0 + np.exp(-np.array(logits)))
    np.testing.assert_allclose(action.mean(axis=0), probability, atol=2 / DRAWS)
    chosen = np.where(action, probability, 1.0 - probability)
    np.testing.assert_allclose(log_probability, np.log(chosen).sum(axis=1), atol=1e-4)


def test_normals_have_the_mean_and_the_standard_deviation():
    distribution = build_distribution(SpaceSpec("box", (2,), "float32"))
    noise = np.random.default_rng(0).standard_normal((200_000, 2), np.float32)
    action, _ = decide(distribution, [1.0, -3.0, np.log(0.5), np.log(2.0)], noise)
    np.testing.assert_allclose(action.mean(axis=0), [1.0, -3.0], atol=0.02)
    np.testing.assert_allclose(action.std(axis=0), [0.5, 2.0], rtol=0.01)
    np.testing.assert_allclose(action, [1.0, -3.0] + np.array([0.5, 2.0]) * noise, rtol=1e-5, atol=1e-6)


def test_a_record_of_everything_is_drawn_from_uniforms():
    """Choices from the first ones, normals from pairs of the others, all of them independent."""
    box, pick = SpaceSpec("box", (3,), "float32"), SpaceSpec("discrete", (), "int64", n=2)
    space = SpaceSpec.nested("dict", {"a": box, "b": pick, "c": SpaceSpec("multi_binary", (1,), "int8")})
    distribution = build_distribution(space)
    assert distribution.noise == NoiseSpec("uniform", (6,))
    noise = block_noise(distribution.noise, seed=1, actor=0, ring_group=0, columns=100, first_step=0, rows=1000)
    action, log_probability = decide(distribution, [0, 0, 0, 0, np.log(3), -np.log(3), 0, 0, 0], noise.reshape(-1, 6))
    a, b, c = (leaf.of(action) for leaf in stored_space(space).leaves())
    assert b.mean() == pytest.approx(0.75, abs=0.01)
    assert c.mean() == pytest.approx(0.25, abs=0.01)
    correlation = np.corrcoef(np.column_stack([a, b, c]).T)
    np.testing.assert_allclose(correlation, np.eye(5), atol=0.015)
    np.testing.assert_allclose([a.mean(axis=0), a.std(axis=0)], [[0.0] * 3, [1.0] * 3], atol=0.015)
    choices = np.log(np.where(b == 1, 0.75, 0.25)) + np.log(np.where(c[:, 0] == 1, 0.25, 0.75))
    density = (-0.5 * a.astype(np.float64) ** 2 - 0.918939).sum(axis=1)
    np.testing.assert_allclose(log_probability, choices + density, atol=1e-4)


def test_pairs_of_uniforms_become_normals():
    uniform = np.random.default_rng(0).random((200_000, 2), np.float32)
    normal = normals_from_pairs(uniform)
    assert normal.dtype == np.float32
    np.testing.assert_allclose(normal.mean(axis=0), 0.0, atol=0.01)
    np.testing.assert_allclose((normal.astype(np.float64) ** 4).mean(axis=0), 3.0, rtol=0.03)
    for bound, share in ((1.0, 0.682689), (2.0, 0.954500), (3.0, 0.997300)):
        np.testing.assert_allclose((np.abs(normal) < bound).mean(axis=0), share, atol=0.003)
    edges = normals_from_pairs(np.array([[0.0, 0.0], [LARGEST, 0.0], [LARGEST, LARGEST], [0.0, LARGEST]], np.float32))
    assert np.isfinite(edges).all()
    assert np.abs(edges).max() == pytest.approx(np.sqrt(48 * np.log(2)), rel=1e-6)


@pytest.mark.parametrize("uniform", [0.0, LARGEST, 1.0, 1.5, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("logits", [[0, 0, 0], [0, 5, 0], [1e30, 0, -1e30]])
def test_no_uniform_leads_out_of_range(uniform, logits):
    action, _ = decide(discrete(3), logits, np.array([[uniform]], np.float32))
    assert 0 <= action[0] <= 2


@pytest.mark.parametrize("uniform", [0.0, LARGEST])
@pytest.mark.parametrize("low", [-1e9, -np.inf])
def test_actions_of_probability_zero_are_never_chosen(uniform, low):
    action, log_probability = decide(discrete(4), [low, 0, 0.3, low], np.array([[uniform]], np.float32))
    assert action[0] == (1 if uniform == 0.0 else 2)
    assert np.isfinite(log_probability).all()


def test_exact_frequencies_with_a_value_of_probability_zero():
    probability = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        action, _ = decide(discrete(4), np.log(probability) + 5, even(100_000))
    np.testing.assert_allclose(np.bincount(action, minlength=4) / 100_000, probability, atol=2e-5)


def test_a_decision_does_not_depend_on_the_rows_beside_it():
    generator = np.random.default_rng(0)
    space = SpaceSpec("multi_discrete", (3,), "int64", nvec=(2, 5, 2))
    distribution = build_distribution(space)
    outputs = generator.normal(size=(40, 9)).astype(np.float32)
    noise, mask = generator.random((40, 3), np.float32), generator.random((40, 9)) < 0.5
    whole = np.zeros((40, 3), np.int64), np.zeros(40, np.float32)
    distribution.decide(outputs.copy(), noise, mask, *whole, deterministic=False)
    for row in range(0, 40, 7):
        single = np.zeros((1, 3), np.int64), np.zeros(1, np.float32)
        one = slice(row, row + 1)
        distribution.decide(outputs[one].copy(), noise[one], mask[one], *single, deterministic=False)
        np.testing.assert_array_equal(single[0][0], whole[0][row])
        np.testing.assert_array_equal(single[1][0], whole[1][row])

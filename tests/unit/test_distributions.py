"""Distributions over actions against closed forms: masks, saturation, joint probabilities, modes."""

import numpy as np
import pytest

from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.ppo.losses import LossWeights, Minibatch, ppo_loss
from srl.api.errors import UsageError
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import SpaceSpec, stored_action, stored_space
from srl.system.actions import ActionTransformer

DISCRETE = SpaceSpec("discrete", (), "int64", n=3)
MULTI = SpaceSpec("multi_discrete", (2, 2), "int64", nvec=(2, 3, 4, 3))
BINARY = SpaceSpec("multi_binary", (3,), "int8")
BOX = SpaceSpec("box", (1,), "float32", low=-1.0, high=1.0)
NESTED = SpaceSpec.nested("dict", {"turn": BOX, "pick": DISCRETE, "keys": BINARY, "gear": MULTI})
CASE_30 = np.array([[1.0, 2.0, 3.0]], np.float32)
MASK_30 = np.array([[True, False, True]])


def array(*values):
    return np.array(values, np.float32)


def decide(distribution, outputs, noise=None, mask=None, deterministic=False):
    rows = len(outputs)
    action = np.zeros((rows, *distribution.action.shape), distribution.action.dtype)
    log_probability = np.full(rows, np.nan, np.float32)
    if noise is None:
        noise = np.full((rows, *distribution.noise.shape), np.nan, np.float32)
    distribution.decide(outputs.copy(), noise, mask, action, log_probability, deterministic=deterministic)
    return action, log_probability


def bfloat16(values):
    """Rounded to bfloat16 (towards zero) and back."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def test_case_18_the_stored_action_is_what_the_log_probability_refers_to():
    distribution = build_distribution(BOX)
    outputs = array([0.0, 0.0])
    action, log_probability = decide(distribution, outputs, array([1.7]))
    policy = PolicySpec(
        name="learner",
        module="m:M",
        acting="m:A",
        backend="numpy",
        observation=BOX,
        action=BOX,
        action_array=distribution.action,
        extras=(),
        noise=distribution.noise,
        action_transform="clip",
    )
    assert ActionTransformer(policy)(action).tolist() == [[1.0]]
    assert action.tolist() == array([1.7]).tolist()
    assert log_probability[0] == pytest.approx(-2.363939, abs=1e-6)
    evaluation = distribution.evaluate(outputs, action, None)
    ratio = np.exp(evaluation.log_probability - log_probability)
    np.testing.assert_allclose(ratio, 1.0, atol=1e-6)
    of_the_clipped = distribution.evaluate(outputs, array([1.0]), None).log_probability
    assert np.exp(of_the_clipped - log_probability)[0] == pytest.approx(2.5728, abs=1e-4)


@pytest.mark.parametrize("mean", [-30.0, -1.0, 0.0, 5.0])
@pytest.mark.parametrize("log_std", [-6.0, -1.0, 0.5])
def test_ratios_are_one_before_any_update(mean, log_std):
    """Even where rounding the sample to float32 moves it by a good part of a standard deviation."""
    box = SpaceSpec("box", (17,), "float32")
    distribution = build_distribution(box, standard_deviation="state")
    outputs = np.full((64, 34), mean, np.float32)
    outputs[:, 17:] = log_std
    noise = np.random.default_rng(0).standard_normal((64, 17), np.float32)
    action, log_probability = decide(distribution, outputs, noise)
    evaluation = distribution.evaluate(outputs, action, None)
    np.testing.assert_allclose(np.exp(evaluation.log_probability - log_probability), 1.0, atol=1e-5)


def test_saturated_actions_have_a_finite_log_probability():
    distribution = build_distribution(BOX)
    evaluation = distribution.evaluate(array([0.0, 0.0], [0.0, 0.0]), array([1e3], [-1e3]), None)
    np.testing.assert_allclose(evaluation.log_probability, -0.5e6 - 0.918939, rtol=1e-6)
    gradient = evaluation.backward(np.ones(2, np.float32), np.zeros(2, np.float32))
    np.testing.assert_allclose(gradient, [[1e3, 1e6 - 1], [-1e3, 1e6 - 1]], rtol=1e-6)
    narrow = distribution.evaluate(array([0.0, -20.0]), array([1e3]), None)
    assert np.isfinite(narrow.log_probability).all()


@pytest.mark.parametrize("rounded", [np.copy, bfloat16, lambda x: x.astype(np.float16).astype(np.float32)])
def test_case_30_masked_probabilities_entropy_and_gradients(rounded):
    distribution = build_distribution(DISCRETE)
    outputs = rounded(CASE_30)
    for action, probability in ((0, 0.119203), (2, 0.880797)):
        evaluation = distribution.evaluate(outputs, np.array([action]), MASK_30)
        assert np.exp(evaluation.log_probability)[0] == pytest.approx(probability, abs=1e-6)
        assert evaluation.entropy[0] == pytest.approx(0.365334, abs=1e-6)
        gradient = evaluation.backward(np.ones(1, np.float32), np.ones(1, np.float32))
        assert np.isfinite(gradient).all()
        assert gradient[0, 1] == 0.0
        by_entropy = -probability * (np.log(probability) + 0.365334)
        assert gradient[0, action] == pytest.approx(1.0 - probability + by_entropy, abs=1e-5)
    outputs[0, 1] = np.nan  # what stands there does not matter
    again = distribution.evaluate(outputs, np.array([2]), MASK_30)
    assert again.entropy[0] == pytest.approx(0.365334, abs=1e-6)
    assert np.isfinite(again.backward(np.ones(1, np.float32), np.ones(1, np.float32))).all()


def test_applying_a_mask_again_starts_from_the_raw_logits():
    distribution = build_distribution(DISCRETE)
    outputs = CASE_30.copy()
    for mask in (MASK_30, ~MASK_30, MASK_30, None, MASK_30):
        evaluation = distribution.evaluate(outputs, np.array([1]), mask)
        expected = {True: 0.0, False: 0.365334}[mask is not None and bool(mask[0, 1])]
        assert evaluation.entropy[0] == pytest.approx(0.832395 if mask is None else expected, abs=1e-6)
    np.testing.assert_array_equal(outputs, CASE_30)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "logits",
    [
        [1e30, 0.0, -1e30],
        [-1e30, -1e30, 1e30],
        [-np.inf, 3.0, -np.inf],
        [-np.inf, -np.inf, -np.inf],
        [65504.0, -65504.0, 3.3e38],
        [-3.3e38, -3.3e38, 0.0],
        [0.0, np.inf, 0.0],
    ],
)
@pytest.mark.parametrize("legal", [[1, 0, 1], [0, 0, 1], [1, 0, 0]])
def test_masks_are_safe_whatever_the_logits(logits, legal):
    distribution = build_distribution(DISCRETE)
    outputs, mask = array(logits), np.array([legal], bool)
    with np.errstate(over="ignore"):
        for action in np.flatnonzero(legal):
            evaluation = distribution.evaluate(outputs, np.array([action]), mask)
            gradient = evaluation.backward(np.ones(1, np.float32), np.full(1, 0.01, np.float32))
            assert np.isfinite(gradient).all()
            assert not np.isnan(evaluation.log_probability[0])
            assert 0.0 <= evaluation.entropy[0] <= np.log(sum(legal)) + 1e-6
            assert not gradient[~mask].any()
        for uniform in (0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))):
            assert mask[0, decide(distribution, outputs, array([uniform]), mask)[0][0]]
        assert mask[0, decide(distribution, outputs, mask=mask, deterministic=True)[0][0]]


@pytest.mark.parametrize("uniform", [-1.0, 1.0, 2.0, np.nan, np.inf])
def test_what_is_not_a_number_leads_to_no_illegal_action(uniform):
    """Somebody finds the NaN and says so; the environment need not fall over before."""
    distribution = build_distribution(DISCRETE)
    for logits in ([1.0, 2.0, 3.0], [np.nan] * 3):
        for legal in ([False, True, False], [False, True, True], [True, True, False]):
            mask = np.array([legal])
            action, _ = decide(distribution, array(logits), array([uniform]), mask)
            assert mask[0, action[0]]


def test_a_choice_with_nothing_legal_counts_as_free():
    for space in (DISCRETE, MULTI):
        distribution = build_distribution(space)
        generator = np.random.default_rng(0)
        outputs = generator.normal(size=(20, distribution.outputs)).astype(np.float32)
        action, _ = decide(distribution, outputs, generator.random((20, *distribution.noise.shape), np.float32))
        nothing = np.zeros(outputs.shape, bool)
        masked, free = (distribution.evaluate(outputs, action, mask) for mask in (nothing, None))
        np.testing.assert_array_equal(masked.log_probability, free.log_probability)
        np.testing.assert_array_equal(masked.entropy, free.entropy)


def test_one_row_without_anything_legal_leaves_the_others_masked():
    distribution = build_distribution(DISCRETE)
    mask = np.array([[True, False, True], [False, False, False]])
    evaluation = distribution.evaluate(np.tile(CASE_30, (2, 1)), np.array([2, 2]), mask)
    np.testing.assert_allclose(evaluation.entropy, [0.365334, 0.832395], atol=1e-6)


def test_multi_discrete_has_one_joint_ratio():
    """PPO's ratio is that of the whole action: the product over elements, clipped once."""
    space = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 2))
    distribution = build_distribution(space)
    action = np.array([[0, 1]])
    old = distribution.evaluate(np.zeros((1, 4), np.float32), action, None).log_probability
    assert old[0] == pytest.approx(np.log(0.25))
    new = np.log(array([0.55, 0.45, 0.4, 0.6]))  # ratios 1.1 and 1.2: each within the range, their product is not
    evaluation = distribution.evaluate(new, action, None)
    assert np.exp(evaluation.log_probability - old)[0] == pytest.approx(1.32, rel=1e-5)
    one = np.ones(1, np.float32)
    sums, gradient, _ = ppo_loss(evaluation, one, Minibatch(action, old, one, one, one), LossWeights(0.2, None, 0, 0))
    assert sums.clipped == 1.0
    assert sums.policy == pytest.approx(-1.2)
    assert not gradient.any()


def test_probabilities_of_a_multi_discrete_space_add_up():
    distribution = build_distribution(MULTI)
    generator = np.random.default_rng(1)
    actions = np.array(list(np.ndindex(2, 3, 4, 3)))
    outputs = np.tile(generator.normal(size=12).astype(np.float32), (len(actions), 1))
    mask = np.ones((1, 12), bool)
    mask[0, [1, 3, 7]] = False
    for legal in (None, np.tile(mask, (len(actions), 1))):
        evaluation = distribution.evaluate(outputs, actions.reshape(-1, 2, 2), legal)
        probability = np.exp(evaluation.log_probability.astype(np.float64))
        assert probability.sum() == pytest.approx(1.0, abs=1e-5)
        surprise = np.where(probability > 0.0, -probability * evaluation.log_probability, 0.0).sum()
        assert evaluation.entropy[0] == pytest.approx(surprise, abs=1e-5)


@pytest.mark.parametrize("space", [DISCRETE, MULTI, BINARY])
def test_entropy_of_equal_probabilities(space):
    distribution = build_distribution(space)
    evaluation = distribution.evaluate(
        np.full((1, distribution.outputs), 0.0, np.float32),
        np.zeros((1, *distribution.action.shape), np.int64),
        None,
    )
    count = {"discrete": 3, "multi_discrete": 72, "multi_binary": 8}[space.kind]
    assert evaluation.entropy[0] == pytest.approx(np.log(count), rel=1e-6)
    assert evaluation.log_probability[0] == pytest.approx(-np.log(count), rel=1e-6)


@pytest.mark.parametrize("std", [0.01, 1.0, 3.0])
def test_entropy_of_a_normal(std):
    evaluation = build_distribution(BOX).evaluate(array([7.0, np.log(std)]), array([7.0]), None)
    assert evaluation.entropy[0] == pytest.approx(0.5 * np.log(2 * np.pi * np.e * std**2), rel=1e-5)
    assert evaluation.log_probability[0] == pytest.approx(-0.5 * np.log(2 * np.pi * std**2), rel=1e-5)


@pytest.mark.parametrize("logit", [1e30, 800.0, np.inf])
def test_certain_bits_have_no_entropy_and_no_gradient(logit):
    distribution = build_distribution(BINARY)
    outputs = array([logit, -logit, 0.0])
    for uniform in (0.0, np.nextafter(np.float32(1), np.float32(0))):
        action, log_probability = decide(distribution, outputs, np.full((1, 3), uniform, np.float32))
        assert action[0, :2].tolist() == [1, 0]
        assert log_probability[0] == pytest.approx(-np.log(2))
    evaluation = distribution.evaluate(outputs, action, None)
    assert evaluation.entropy[0] == pytest.approx(np.log(2))
    gradient = evaluation.backward(np.ones(1, np.float32), np.ones(1, np.float32))
    np.testing.assert_allclose(np.abs(gradient), [[0.0, 0.0, 0.5]], atol=1e-7)


def test_deterministic_decisions_are_modes():
    assert decide(build_distribution(DISCRETE), array([0.0, 5.0, 5.0]), deterministic=True)[0].tolist() == [1]
    multi = array([0, 1, 5, 0, 0, 0, 0, 0, 1, 0, 2, 1])
    assert decide(build_distribution(MULTI), multi, deterministic=True)[0].tolist() == [[[1, 0], [3, 1]]]
    action, log_probability = decide(build_distribution(BINARY), array([-1.0, 0.0, 1.0]), deterministic=True)
    assert action.tolist() == [[0, 0, 1]]
    assert log_probability[0] == pytest.approx(-2 * np.log1p(np.exp(-1.0)) - np.log(2), rel=1e-6)
    action, log_probability = decide(build_distribution(BOX), array([4.0, 0.0]), deterministic=True)
    assert action.tolist() == [[4.0]]
    assert log_probability[0] == pytest.approx(-0.918939, rel=1e-6)
    masked = decide(build_distribution(DISCRETE), CASE_30, mask=~MASK_30, deterministic=True)
    assert masked[0].tolist() == [1]
    assert masked[1].tolist() == [0.0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("deviation", ["free", "state"])
def test_a_composite_is_the_sum_of_its_parts(deviation, masked):
    generator = np.random.default_rng(0)
    whole = build_distribution(NESTED, standard_deviation=deviation, initial_log_std=-0.5)
    leaves = NESTED.leaves()
    assert [leaf.path for leaf in leaves] == ["gear", "keys", "pick", "turn"]
    parts = [build_distribution(leaf.space, standard_deviation=deviation, initial_log_std=-0.5) for leaf in leaves]
    heads = [generator.normal(size=(16, part.head_outputs)).astype(np.float32) for part in parts]
    frees = [np.tile(part.initial_free, (16, 1)) for part in parts]
    outputs = np.concatenate([*heads, *frees], axis=1)
    np.testing.assert_array_equal(whole.initial_free, outputs[0, whole.head_outputs :])
    masks = [generator.random((16, part.mask)) < 0.7 if masked else None for part in parts]
    mask = np.concatenate(masks, axis=1) if masked else None
    action, decided = decide(whole, outputs, generator.random((16, *whole.noise.shape), np.float32), mask)
    assert action.dtype == np.dtype(stored_action(NESTED).dtype)
    got = whole.evaluate(outputs, action, mask)
    stored = [leaf.of(action) for leaf in stored_space(NESTED).leaves()]
    expected = [
        part.evaluate(np.concatenate([head, free], axis=1), own, legal)
        for part, head, free, own, legal in zip(parts, heads, frees, stored, masks, strict=True)
    ]
    np.testing.assert_allclose(got.log_probability, sum(part.log_probability for part in expected), rtol=1e-6)
    np.testing.assert_allclose(got.entropy, sum(part.entropy for part in expected), rtol=1e-6)
    np.testing.assert_allclose(decided, got.log_probability, rtol=1e-6, atol=1e-6)
    ones = np.ones(16, np.float32)
    gradients = [part.backward(ones, ones) for part in expected]
    split = [part.head_outputs for part in parts]
    expected_gradient = np.concatenate(
        [gradient[:, :n] for gradient, n in zip(gradients, split, strict=True)]
        + [gradient[:, n:] for gradient, n in zip(gradients, split, strict=True)],
        axis=1,
    )
    np.testing.assert_allclose(got.backward(ones, ones), expected_gradient, rtol=1e-6)


def test_noise_that_decisions_need():
    assert build_distribution(DISCRETE).noise == NoiseSpec("uniform", (1,))
    assert build_distribution(MULTI).noise == NoiseSpec("uniform", (4,))
    assert build_distribution(BINARY).noise == NoiseSpec("uniform", (3,))
    assert build_distribution(BOX).noise == NoiseSpec("normal", (1,))
    boxes = SpaceSpec.nested("tuple", {"0": BOX, "1": SpaceSpec("box", (2, 2), "float64")})
    assert build_distribution(boxes).noise == NoiseSpec("normal", (5,))
    assert build_distribution(NESTED).noise == NoiseSpec("uniform", (4 + 3 + 1 + 2,))


def test_standard_deviations_start_where_they_are_told_to():
    distribution = build_distribution(SpaceSpec("box", (3,), "float32"), initial_log_std=-1.5)
    assert distribution.initial_free.tolist() == [-1.5] * 3
    assert (distribution.head_outputs, distribution.free_outputs) == (3, 3)
    by_state = build_distribution(SpaceSpec("box", (3,), "float32"), standard_deviation="state")
    assert (by_state.head_outputs, by_state.free_outputs, len(by_state.initial_free)) == (6, 0, 0)


@pytest.mark.parametrize("value", [-20.5, 2.5, float("nan")])
def test_initial_standard_deviations_without_gradient_are_refused(value):
    with pytest.raises(UsageError, match="initial_log_std"):
        build_distribution(BOX, initial_log_std=value)

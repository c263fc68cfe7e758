"""The loss and its closed-form gradient against automatic differentiation."""

import numpy as np
import pytest
import torch

from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.ppo.losses import LossWeights, Minibatch, normalized, ppo_loss
from srl.api.spaces import SpaceSpec

ROWS, ACTIONS = 64, 5


def loss(logits, value, batch, weights):
    distribution = build_distribution(SpaceSpec("discrete", (), "int64", n=logits.shape[1]))
    return ppo_loss(distribution.evaluate(logits, batch.action, batch.action_mask), value, batch, weights)


def case(seed=0, spread=0.5):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(ROWS, ACTIONS)).astype(np.float32)
    value, target, noise = generator.normal(size=(3, ROWS)).astype(np.float32)
    action = generator.integers(ACTIONS, size=ROWS)
    chosen = torch.log_softmax(torch.from_numpy(logits), 1).numpy()[np.arange(ROWS), action]
    batch = Minibatch(
        action=action,
        old_log_probability=chosen + spread * generator.normal(size=ROWS).astype(np.float32),
        advantage=generator.normal(size=ROWS).astype(np.float32),
        value_target=target,
        old_value=value + noise,
    )
    return logits, value, batch


def reference(logits, value, batch, weights):
    """The formulas of the module's docstring in torch, float64."""
    logits, value = (torch.from_numpy(array).double().requires_grad_() for array in (logits, value))
    names = ("action", "old_log_probability", "advantage", "value_target", "old_value")
    tensors = {name: torch.from_numpy(getattr(batch, name)) for name in names}
    log_probabilities = torch.log_softmax(logits, 1)
    log_ratio = log_probabilities.gather(1, tensors["action"][:, None])[:, 0] - tensors["old_log_probability"]
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - weights.clip_range, 1 + weights.clip_range)
    policy = -torch.minimum(ratio * tensors["advantage"], clipped * tensors["advantage"]).sum()
    entropy = -(log_probabilities.exp() * log_probabilities).sum()
    squares = (value - tensors["value_target"]) ** 2
    if weights.value_clip_range is not None:
        bound = weights.value_clip_range
        near = tensors["old_value"] + (value - tensors["old_value"]).clamp(-bound, bound)
        squares = torch.maximum(squares, (near - tensors["value_target"]) ** 2)
    value_loss = squares.sum() / 2
    total = policy + weights.value_coefficient * value_loss - weights.entropy_coefficient * entropy
    total.backward()
    kl = (ratio - 1 - log_ratio).sum()
    clip_count = ((ratio - 1).abs() > weights.clip_range).sum()
    sums = [float(x.detach()) for x in (policy, value_loss, entropy, kl, clip_count)]
    return sums, logits.grad.numpy(), value.grad.numpy()


@pytest.mark.parametrize("value_clip_range", [None, 0.1, 1.0])
@pytest.mark.parametrize("entropy_coefficient", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_sums_and_gradients(value_clip_range, entropy_coefficient, seed):
    weights = LossWeights(0.2, value_clip_range, entropy_coefficient, 0.7)
    arguments = case(seed)
    sums, logits_gradient, value_gradient = loss(*arguments, weights)
    expected, expected_logits, expected_value = reference(*arguments, weights)
    got = [sums.policy, sums.value, sums.entropy, sums.kl, sums.clipped]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(logits_gradient, expected_logits, atol=1e-5)
    np.testing.assert_allclose(value_gradient, expected_value, atol=1e-5)
    assert 0 < sums.clipped < ROWS  # both branches of the clip are in the data
    assert logits_gradient.dtype == value_gradient.dtype == np.float32


def test_inputs_are_left_alone():
    logits, value, batch = case()
    before = [array.copy() for array in (logits, value, batch.advantage, batch.old_value)]
    loss(logits, value, batch, LossWeights(0.2, 0.1, 0.1, 0.5))
    for array, copy in zip((logits, value, batch.advantage, batch.old_value), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_at_the_old_policy_the_ratio_is_one():
    sums, _, _ = loss(*case(spread=0.0), LossWeights(0.2, None, 0.0, 0.5))
    assert abs(sums.kl) < 1e-4
    assert sums.clipped == 0.0


def test_extreme_logits_stay_finite():
    logits, value, batch = case()
    logits *= 1e4
    batch.old_log_probability[:] = 0.0
    sums, logits_gradient, _ = loss(logits, value, batch, LossWeights(0.2, None, 0.01, 0.5))
    assert np.isfinite(logits_gradient).all()
    assert np.isfinite(sums.entropy)


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_normalisation_of_few_and_of_equal_advantages(count):
    """Field case 29."""
    equal = normalized(np.full(count, 3.0, np.float32), 3.0, 0.0)
    assert equal.tolist() == [0.0] * count


def test_no_rows():
    empty = np.zeros(0, np.float32)
    batch = Minibatch(np.zeros(0, np.int64), empty, empty, empty, empty)
    sums, logits_gradient, value_gradient = loss(
        np.zeros((0, 3), np.float32), empty, batch, LossWeights(0.2, 0.1, 0.1, 0.5)
    )
    assert (sums.policy, sums.value, sums.clipped) == (0.0, 0.0, 0.0)
    assert logits_gradient.shape == (0, 3)
    assert value_gradient.shape == (0,)

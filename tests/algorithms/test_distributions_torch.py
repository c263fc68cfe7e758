"""Every distribution, and PPO's loss over it, against torch.distributions and automatic differentiation in float64."""

import numpy as np
import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from srl.algorithms.distributions.build import build_distribution
from srl.algorithms.distributions.gaussian import LOG_STD_RANGE
from srl.algorithms.ppo.losses import LossWeights, Minibatch, ppo_loss
from srl.api.spaces import SpaceSpec, mask_size, stored_space

ROWS = 48
DISCRETE = SpaceSpec("discrete", (), "int64", n=5)
EQUAL = SpaceSpec("multi_discrete", (3,), "int64", nvec=(4, 4, 4))
MIXED = SpaceSpec("multi_discrete", (2, 2), "int64", nvec=(2, 3, 2, 5))
BINARY = SpaceSpec("multi_binary", (2, 3), "int8")
BOX = SpaceSpec("box", (2, 2), "float32", low=-1.0, high=1.0)
BYTES = SpaceSpec("box", (3,), "uint8", low=0, high=255)
INNER = SpaceSpec.nested("tuple", {"0": MIXED, "1": BINARY, "2": BYTES})
EVERYTHING = SpaceSpec.nested("dict", {"move": BOX, "inner": INNER, "pick": DISCRETE})
BOXES = SpaceSpec.nested("dict", {"a": BOX, "b": BYTES})
SPACES = {
    "discrete": DISCRETE,
    "equal": EQUAL,
    "mixed": MIXED,
    "binary": BINARY,
    "box": BOX,
    "everything": EVERYTHING,
    "boxes": BOXES,
}
KINDS = [(name, deviation) for name in SPACES for deviation in ("free", "state")]


def reference(space, deviation, outputs, action, mask):
    """Log-probability and entropy ``float64[M]`` of stored actions, by torch.distributions."""
    leaves = stored_space(space).leaves()
    free = sum(leaf.space.array.size_bytes() // 4 for leaf in leaves if leaf.space.kind == "box")
    head_width = outputs.shape[1] - (free if deviation == "free" else 0)
    head, rest = outputs[:, :head_width], outputs[:, head_width:]
    masks = None if mask is None else torch.from_numpy(mask)
    log_probability = entropy = 0.0
    for leaf in leaves:
        stored = torch.from_numpy(np.array(leaf.of(action)).reshape(len(outputs), -1)).double()
        parts, used = [], 0
        if leaf.space.kind == "box":
            size = stored.shape[1]
            log_std = rest[:, :size] if deviation == "free" else head[:, size : 2 * size]
            rest = rest[:, size:] if deviation == "free" else rest
            used = size if deviation == "free" else 2 * size
            parts.append((Independent(Normal(head[:, :size], log_std.clamp(*LOG_STD_RANGE).exp()), 1), stored))
        elif leaf.space.kind == "multi_binary":
            used = stored.shape[1]
            parts.append((Independent(Bernoulli(logits=head[:, :used]), 1), stored))
        else:
            for element, n in enumerate(leaf.space.nvec or (leaf.space.n,)):
                logits = head[:, used : used + n]
                if masks is not None:
                    legal, masks = masks[:, :n], masks[:, n:]
                    legal = legal | ~legal.any(1, keepdim=True)
                    logits = torch.where(legal, logits, -1e30)  # torch's entropy of -inf has gradient NaN
                parts.append((Categorical(logits=logits), stored[:, element]))
                used += n
        head = head[:, used:]
        log_probability = log_probability + sum(part.log_prob(value) for part, value in parts)
        entropy = entropy + sum(part.entropy() for part, _ in parts)
    assert head.shape[1] == rest.shape[1] == 0
    return log_probability, entropy


def case(name, deviation, masked, seed=0):
    """A distribution, outputs, actions that it chose, and masks with a few rows without anything legal."""
    generator = np.random.default_rng(seed)
    space = SPACES[name]
    distribution = build_distribution(space, standard_deviation=deviation)
    outputs = generator.normal(size=(ROWS, distribution.outputs)).astype(np.float32)
    outputs[:, distribution.head_outputs :] = outputs[:1, distribution.head_outputs :]
    mask = generator.random((ROWS, distribution.mask)) < 0.6 if masked else None
    if masked:
        mask[:3] = False
    draw = generator.random if distribution.noise.kind == "uniform" else generator.standard_normal
    noise = draw((ROWS, *distribution.noise.shape), np.float32)
    action = np.zeros((ROWS, *distribution.action.shape), distribution.action.dtype)
    log_probability = np.full(ROWS, np.nan, np.float32)
    distribution.decide(outputs.copy(), noise, mask, action, log_probability, deterministic=False)
    return space, distribution, outputs, action, log_probability, mask


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "deviation"), KINDS)
def test_log_probability_and_entropy_and_their_gradients(name, deviation, masked):
    space, distribution, outputs, action, decided, mask = case(name, deviation, masked)
    evaluation = distribution.evaluate(outputs.copy(), action, mask)
    tensor = torch.from_numpy(outputs).double().requires_grad_()
    log_probability, entropy = reference(space, deviation, tensor, action, mask)
    np.testing.assert_allclose(evaluation.log_probability, log_probability.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(evaluation.entropy, entropy.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(decided, evaluation.log_probability, rtol=1e-6, atol=1e-5)
    by_log_probability, by_entropy = np.random.default_rng(1).normal(size=(2, ROWS)).astype(np.float32)
    gradient = evaluation.backward(by_log_probability, by_entropy)
    (log_probability @ torch.from_numpy(by_log_probability).double()).backward(retain_graph=True)
    (entropy @ torch.from_numpy(by_entropy).double()).backward()
    np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-4, atol=2e-5)
    assert gradient.dtype == evaluation.log_probability.dtype == evaluation.entropy.dtype == np.float32
    assert gradient.shape == outputs.shape
    assert gradient.flags.c_contiguous


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "deviation"), KINDS)
def test_loss_and_its_gradient(name, deviation, masked):
    space, distribution, outputs, action, _, mask = case(name, deviation, masked, seed=2)
    generator = np.random.default_rng(3)
    value, target, old_value, advantage, change = generator.normal(size=(5, ROWS)).astype(np.float32)
    old = distribution.evaluate(outputs.copy(), action, mask).log_probability + 0.4 * change
    batch = Minibatch(action, old, advantage, target, old_value, mask)
    weights = LossWeights(0.2, 0.5, 0.3, 0.7)
    evaluation = distribution.evaluate(outputs.copy(), action, mask)
    sums, by_outputs, by_value = ppo_loss(evaluation, value, batch, weights)

    tensor, values = (torch.from_numpy(array).double().requires_grad_() for array in (outputs, value))
    old, advantage, target, old_value = (torch.from_numpy(array) for array in (old, advantage, target, old_value))
    log_probability, entropy = reference(space, deviation, tensor, action, mask)
    ratio = (log_probability - old).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
    near = old_value + (values - old_value).clamp(-0.5, 0.5)
    value_loss = torch.maximum((values - target) ** 2, (near - target) ** 2).sum() / 2
    (policy + 0.7 * value_loss - 0.3 * entropy.sum()).backward()
    np.testing.assert_allclose(by_outputs, tensor.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_value, values.grad, atol=1e-5)
    expected = [float(x.detach()) for x in (policy, value_loss, entropy.sum())]
    np.testing.assert_allclose([sums.policy, sums.value, sums.entropy], expected, rtol=1e-5, atol=1e-4)
    assert 0 < sums.clipped < ROWS


@pytest.mark.parametrize(("name", "deviation"), KINDS)
def test_outputs_and_masks_are_counted_right(name, deviation):
    space, distribution, outputs, action, *_ = case(name, deviation, masked=False)
    assert distribution.mask == mask_size(space)
    assert distribution.outputs == outputs.shape[1] == distribution.head_outputs + distribution.free_outputs
    assert (distribution.free_outputs > 0) == (deviation == "free" and name in ("box", "boxes", "everything"))
    assert action.dtype == np.dtype(distribution.action.dtype)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("name", "deviation"), KINDS)
def test_no_rows(name, deviation, masked):
    _, distribution, outputs, action, *_ = case(name, deviation, masked)
    mask = np.zeros((0, distribution.mask), bool) if masked else None
    evaluation = distribution.evaluate(outputs[:0], action[:0], mask)
    nothing = np.zeros(0, np.float32)
    assert evaluation.log_probability.shape == evaluation.entropy.shape == (0,)
    assert evaluation.backward(nothing, nothing).shape == (0, distribution.outputs)


@pytest.mark.parametrize("beyond", [-25.0, 3.0])
def test_standard_deviations_are_clipped_without_gradient(beyond):
    distribution = build_distribution(BOX)
    outputs = np.zeros((2, 8), np.float32)
    outputs[:, 4:] = [0.0, beyond, beyond, *LOG_STD_RANGE[1:]]
    evaluation = distribution.evaluate(outputs, np.zeros((2, 2, 2), np.float32), None)
    log_std = np.clip(outputs[0, 4:], *LOG_STD_RANGE)
    np.testing.assert_allclose(evaluation.entropy, log_std.sum() + 2 * np.log(2 * np.pi * np.e), rtol=1e-6)
    gradient = evaluation.backward(np.ones(2, np.float32), np.zeros(2, np.float32))
    assert gradient[:, 4:].tolist() == [[-1.0, 0.0, 0.0, -1.0]] * 2

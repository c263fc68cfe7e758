"""The yardstick itself: both ways of computing the hand-written update agree, and its targets are right."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "cartpole_loop.py"


@pytest.fixture(scope="module")
def loop():
    spec = importlib.util.spec_from_file_location("cartpole_loop", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def flat_of(plain):
    """The plain networks' parameters in the order and layout of the flat vector."""
    actor, critic = ([layer for layer in network[::2]] for network in (plain.actor, plain.critic))
    parts = []
    for a, c in zip(actor[:2], critic[:2], strict=True):
        parts += [a.weight.T, c.weight.T, a.bias, c.bias]
    parts += [actor[2].weight.T, actor[2].bias, critic[2].weight.T, critic[2].bias]
    return torch.cat([part.detach().reshape(-1) for part in parts]).numpy()


def test_fast_and_plain_updates_agree(loop):
    settings = loop.Settings(hidden=16, learning_rate=1e-2)
    torch.manual_seed(0)
    plain = loop.PlainNetworks(settings)
    for layer in (plain.actor[4], plain.critic[4]):
        torch.nn.init.normal_(layer.weight)
    flat = loop.FlatNetworks(settings)
    flat.parameters.numpy()[:] = flat_of(plain)
    random = np.random.default_rng(0)
    observation = random.normal(size=(64, 4)).astype(np.float32)
    np.testing.assert_allclose(flat.logits(observation), plain.logits(observation), rtol=1e-5, atol=1e-6)
    samples = loop.Samples(
        observation=observation,
        action=random.integers(0, 2, 64),
        log_probability=np.log(random.uniform(0.2, 0.9, 64)).astype(np.float32),
        advantage=random.normal(size=64).astype(np.float32),
        target=random.normal(size=64).astype(np.float32),
    )
    learners = loop.PlainLearner(settings, plain), loop.FastLearner(settings, flat)
    before = flat_of(plain)
    for _ in range(3):
        for learner in learners:
            learner.minibatch(samples)
    assert np.abs(flat_of(plain) - before).max() > 1e-2
    np.testing.assert_allclose(flat.parameters.numpy(), flat_of(plain), rtol=2e-4, atol=2e-5)


def test_advantages_at_a_time_limit(loop):
    """r = 1, V = .5, truncated at the third step with V(final) = 10; the row after it is the reset query."""
    rows = loop.Rows(loop.Settings(environments=1, rows=4))
    rows.reward[:3] = 1
    rows.truncated[2] = True
    value = np.array([0.5, 0.5, 0.5, 10.0, 7.0], np.float32).reshape(5, 1)
    found = loop.advantages(rows, value, 0.99, 0.95)[:3, 0]
    np.testing.assert_allclose(found, [11.130016, 10.7762, 10.4], rtol=1e-6)
    rows.terminated[2], rows.truncated[2] = True, False
    found = loop.advantages(rows, value, 0.99, 0.95)[:3, 0]
    np.testing.assert_allclose(found, [2.373068, 1.46525, 0.5], rtol=1e-6)

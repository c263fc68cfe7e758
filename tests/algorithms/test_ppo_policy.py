"""Policies and acting: torch and numpy agree, sampling is right, weights are copies."""

import numpy as np
import pytest
import torch

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.plugin import PPO
from srl.algorithms.ppo.policy import PPOPolicy
from srl.api.environment import EnvironmentSpec
from srl.api.importing import import_target
from srl.api.policy import ActInput, ActOutput
from srl.api.spaces import SpaceSpec
from srl.system.workers.training import build_module

VECTOR = SpaceSpec("box", (4,), "float32")
IMAGE = SpaceSpec("box", (4, 84, 84), "uint8", low=0, high=255)
NETWORKS = [
    {},
    {"activation": "relu"},
    {"shared": True},
    {"hidden": [7]},
    {"hidden": [16, 32, 8], "activation": "relu", "shared": True},
]


def policy_spec(network=None, observation=VECTOR, actions=3, **options):
    environment = EnvironmentSpec("Toy-v0", observation, SpaceSpec("discrete", (), "int64", n=actions))
    return PPO.policy_spec("learner", PPOConfig(**options), network or {}, environment)


def observations(spec, count, seed=0):
    generator = np.random.default_rng(seed)
    if spec.observation.dtype == "uint8":
        return generator.integers(0, 256, (count, *spec.observation.shape), dtype=np.uint8)
    return generator.normal(size=(count, *spec.observation.shape)).astype(spec.observation.dtype)


def acting_policy(spec, module):
    acting = import_target(spec.acting)(spec)
    weights = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    for array in weights.values():
        array.flags.writeable = False
    acting.load(weights)
    return acting


def act(acting, observation, noise=None, deterministic=False):
    count = len(observation)
    uniform = np.random.default_rng(1).random((count, 1), np.float32) if noise is None else noise
    extras = {name: np.full(count, np.nan, np.float32) for name in ("log_probability", "value")}
    out = ActOutput(np.full(count, -1, np.int64), extras)
    flags = np.zeros(count, bool)
    acting.act(ActInput(observation, uniform, flags, ~flags), out, deterministic=deterministic)
    return out.action, out.extras["log_probability"], out.extras["value"]


def test_initialisation():
    module = build_module(policy_spec(), 1)
    weights = dict(module.network.named_parameters())
    for tower in range(2):
        square = weights["hidden_1_weight"][tower]
        torch.testing.assert_close(square @ square.T, 2 * torch.eye(64), atol=1e-4, rtol=0)
    assert not torch.equal(*weights["hidden_0_weight"])
    head = weights["policy_weight"]
    torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(3), atol=1e-8, rtol=0)
    assert float(weights["value_weight"].detach().norm()) == pytest.approx(1.0, rel=1e-5)
    assert all(not tensor.any() for name, tensor in weights.items() if name.endswith("bias"))


def test_bfloat16_keeps_parameters_and_heads_in_float32():
    spec = policy_spec(observation=IMAGE, precision="bf16")
    exact = policy_spec(observation=IMAGE)
    module, reference = build_module(spec, 1), build_module(exact, 1)
    x = torch.from_numpy(observations(spec, 4))
    logits, value = module(x)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert logits.dtype == value.dtype == torch.float32
    expected_logits, expected_value = reference(x)
    torch.testing.assert_close(logits, expected_logits, atol=3e-4, rtol=0)
    torch.testing.assert_close(value, expected_value, atol=3e-2, rtol=0)
    assert not torch.equal(value, expected_value)
    (logits.sum() + value.sum()).backward()
    assert all(
        parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in module.parameters()
    )


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"network": network}, 1e-6) for network in NETWORKS]
    + [({"observation": IMAGE}, 1e-5), ({"observation": IMAGE, "precision": "bf16"}, 2e-2)],
)
def test_acting_agrees_with_the_module(options, tolerance):
    spec = policy_spec(**options)
    module = build_module(spec, 1)
    acting = acting_policy(spec, module)
    observation = observations(spec, 16)
    noise = np.random.default_rng(2).random((16, 1), np.float32)
    action, log_probability, value = act(acting, observation, noise)
    with torch.no_grad():
        logits, expected_value = module(torch.from_numpy(observation))
    distribution = torch.distributions.Categorical(logits=logits)
    if tolerance < 1e-3:
        cumulative = distribution.probs.double().cumsum(1)
        np.testing.assert_array_equal(action, (cumulative[:, :-1] <= torch.from_numpy(noise)).sum(1))
    np.testing.assert_allclose(log_probability, distribution.log_prob(torch.from_numpy(action)), atol=tolerance)
    np.testing.assert_allclose(value, expected_value, atol=tolerance)


@pytest.mark.parametrize("observation", [VECTOR, IMAGE])
def test_same_input_same_bits_wherever_it_lies_in_memory(observation):
    """Lockstep: one process reads a row of a block, another a private copy."""
    spec = policy_spec(observation=observation)
    module = build_module(spec, 1)
    first, second = acting_policy(spec, module), acting_policy(spec, module)
    x = observations(spec, 16)
    act(second, observations(spec, 16, seed=9))
    shifted = np.zeros(x.nbytes + 64, np.uint8)[4 : 4 + x.nbytes].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    shifted.flags.writeable = False
    for one, other in zip(act(first, x), act(second, shifted), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("observation", [VECTOR, IMAGE])
def test_loading_copies(observation):
    spec = policy_spec(observation=observation)
    module = build_module(spec, 1)
    weights = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
    acting = import_target(spec.acting)(spec)
    acting.load(weights)
    x = observations(spec, 4)
    before = act(acting, x)
    for array in weights.values():
        array.fill(np.nan)
    for one, other in zip(before, act(acting, x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_making_an_acting_policy_moves_nobody_elses_randomness():
    spec = policy_spec(observation=IMAGE)
    before = torch.random.get_rng_state()
    import_target(spec.acting)(spec)
    assert torch.equal(before, torch.random.get_rng_state())


def test_deterministic_acting_takes_the_mode():
    spec = policy_spec()
    module = build_module(spec, 1)
    x = observations(spec, 32)
    action, log_probability, _ = act(acting_policy(spec, module), x, deterministic=True)
    with torch.no_grad():
        logits, _ = module(torch.from_numpy(x))
    np.testing.assert_array_equal(action, logits.argmax(1))
    np.testing.assert_allclose(log_probability, torch.log_softmax(logits, 1).max(1).values, atol=1e-6)


def test_any_number_of_actions():
    for actions in (1, 2, 18):
        spec = policy_spec(actions=actions)
        action, log_probability, _ = act(acting_policy(spec, build_module(spec, 1)), observations(spec, 64))
        assert set(action) <= set(range(actions))
        np.testing.assert_allclose(log_probability, -np.log(actions), atol=0.1)


def test_the_policy_module_is_named_in_the_spec():
    assert import_target(policy_spec().module) is PPOPolicy

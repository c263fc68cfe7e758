"""PPO over every kind of space, with masks, states and scales: what acted is what is trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.losses import ppo_loss
from srl.algorithms.ppo.plugin import PPO
from srl.algorithms.ppo.trainer import PPOAlgorithm
from srl.api.environment import EnvironmentSpec
from srl.api.errors import NonFiniteError
from srl.api.spaces import SpaceSpec
from srl.system.workers.training import Training


def box(*shape, dtype="float32", **bounds):
    return SpaceSpec("box", shape, dtype, **bounds)


DISCRETE = SpaceSpec("discrete", (), "int64", n=3)
MULTI = SpaceSpec("multi_discrete", (2,), "int64", nvec=(3, 4))
BINARY = SpaceSpec("multi_binary", (3,), "int8")
CONTINUOUS = box(2, low=-1.0, high=1.0)
NESTED_ACTION = SpaceSpec.nested("dict", {"move": CONTINUOUS, "jump": DISCRETE, "keys": BINARY})
NESTED_OBSERVATION = SpaceSpec.nested(
    "dict",
    {
        "camera": box(3, 40, 40, dtype="uint8"),
        "body": SpaceSpec.nested("tuple", {"0": box(2), "1": SpaceSpec("discrete", (), "int64", n=4)}),
    },
)
LSTM = {"recurrent": {"type": "lstm", "size": 8, "rows": 4}}
GRU = {"recurrent": {"type": "gru", "size": 8, "rows": 8, "learned_initial_state": True}}


class TiedAndNoisy(torch.nn.Module):
    """An encoder of a plugin: one weight under two names, and random while it is trained."""

    features = 4

    def __init__(self, observation, options):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.noisy = torch.nn.Dropout(0.5)

    def forward(self, inputs):
        return self.noisy(self.second(torch.tanh(self.first(inputs))))


def make(observation=None, action=DISCRETE, network=None, mask=False, seed=1, **options):
    environment = EnvironmentSpec("Toy-v0", observation or box(4), action, action_mask=mask)
    config = PPOConfig(**{"rows": 16, "minibatch_rows": 10_000, "epochs": 1, **options})
    training = Training(PPO.policy_spec("learner", config, network or {}, environment), seed=seed)
    return training, PPOAlgorithm(config, training)


CASES = {
    "discrete": {},
    "multi-discrete": {"action": MULTI},
    "multi-binary": {"action": BINARY},
    "continuous": {"action": CONTINUOUS},
    "continuous, deviation from the network": {"action": CONTINUOUS, "standard_deviation": "state"},
    "continuous, tanh": {"action": CONTINUOUS, "action_transform": "tanh_affine", "initial_log_std": 1.0},
    "nested action": {"action": NESTED_ACTION},
    "nested observation, mlp": {"observation": NESTED_OBSERVATION, "network": {"type": "mlp"}},
    "nested observation, encoders": {"observation": NESTED_OBSERVATION},
    "number as observation": {"observation": SpaceSpec("discrete", (), "int64", n=5)},
    "mask": {"mask": True},
    "mask over several choices": {"action": MULTI, "mask": True},
    "mask in a nested action": {"action": NESTED_ACTION, "mask": True},
    "lstm": {"network": LSTM},
    "gru with a learned start": {"network": GRU, "action": CONTINUOUS},
    "lstm behind encoders": {"observation": NESTED_OBSERVATION, "network": LSTM, "mask": True},
    "impala": {"observation": box(3, 32, 32, dtype="uint8"), "network": {"type": "impala_resnet"}},
    "normalised": {"normalize_observations": True, "normalize_returns": True, "action": CONTINUOUS},
    "normalised, nested": {"observation": NESTED_OBSERVATION, "normalize_observations": True},
    "normalised, lstm, popart": {"network": LSTM, "normalize_observations": True, "popart": True},
    "popart": {"popart": True},
}


@pytest.mark.parametrize("case", CASES)
def test_every_ratio_is_one_before_the_first_step(case, acted_batch):
    """Field case 18: stored action and log-probability belong together, through statistics, masks and states."""
    training, algorithm = make(**CASES[case])
    for seed in (1, 2):  # the second batch acts with statistics that have moved
        batch = acted_batch(training, seed=seed)
        metrics = algorithm.update(batch)
        assert abs(metrics["approximate_kl"]) < 1e-6, metrics
        assert metrics["clip_fraction"] == 0.0
        assert metrics["entropy"] != 0.0
        assert np.isfinite(list(metrics.values())).all()
        assert metrics["gradient_norm"] > 0.0


@pytest.mark.parametrize("case", CASES)
def test_what_the_trainer_values_is_what_was_valued_when_acting(case, acted_batch):
    """With lambda 0, gamma 0: targets are rewards; the stored values and the trainer's differ by rounding only."""
    training, algorithm = make(**CASES[case])
    algorithm.update(acted_batch(training, seed=1))
    batch = acted_batch(training, seed=2)
    algorithm._policy.refresh()
    position = np.arange(batch["valid"].size)
    data = algorithm._transitions(batch, position)
    part = algorithm._rollout(batch, position, data).part(0, 10_000)
    _, value, _ = algorithm._policy.differentiable(part.inputs, part.memory)
    chosen = slice(None) if part.chosen is None else part.chosen
    np.testing.assert_allclose(value[chosen], part.data.old_value, atol=2e-5)


@pytest.mark.parametrize("case", ["continuous", "nested action", "lstm", "mask", "popart", "normalised"])
def test_a_step_follows_automatic_differentiation(case, acted_batch):
    """The closed-form gradients through module, distribution and free parameters, against finite differences."""
    training, algorithm = make(**CASES[case], max_gradient_norm=None, normalize_advantages=False)
    algorithm.update(acted_batch(training, seed=1))
    batch = acted_batch(training, seed=2)
    algorithm._policy.refresh()
    position = np.arange(batch["valid"].size)
    part = algorithm._rollout(batch, position, algorithm._transitions(batch, position)).part(0, 10_000)
    part.data.old_log_probability = part.data.old_log_probability - np.float32(0.05)  # ratios off 1, off the clip

    def loss():
        outputs, value, backward = algorithm._policy.differentiable(part.inputs, part.memory)
        chosen = slice(None) if part.chosen is None else part.chosen
        sums, *gradients = algorithm._loss(outputs[chosen].copy(), value[chosen].copy(), part.data)
        total = sums.policy + 0.5 * sums.value - 0.01 * sums.entropy
        full = [np.zeros_like(outputs), np.zeros_like(value)]
        full[0][chosen], full[1][chosen] = gradients
        return total, lambda: backward(*full)

    training._flat.gradients.zero_()
    _, backward = loss()
    backward()
    gradient = training._flat.gradients.clone()
    generator = torch.Generator().manual_seed(0)
    weights = training._flat.weights
    start = weights.clone()
    for _ in range(3):
        direction = torch.randn(weights.shape, generator=generator)
        direction *= gradient != 0  # padding between the arrays is no parameter
        direction /= direction.norm()
        direction += gradient / gradient.norm()
        ends = []
        for sign in (1.0, -1.0):
            weights.copy_(start + sign * 2e-3 * direction)
            ends.append(loss()[0])
        weights.copy_(start)
        assert (ends[0] - ends[1]) / 4e-3 == pytest.approx(float(gradient @ direction), rel=2e-2)


def test_observation_statistics_are_those_of_the_rows_and_belong_to_the_version(acted_batch):
    training, algorithm = make(normalize_observations=True)
    seen = []
    for seed in range(3):
        batch = acted_batch(training, seed=seed)
        batch["valid"][3, 2] = False
        batch["observation"][3, 2] = 1e9
        seen.append(batch["observation"][:-1][batch["valid"]])
        algorithm.update(batch)
    everything = np.concatenate(seen).astype(np.float64)
    arrays = training.layout.views(training.flat_weights())
    assert arrays["observation_statistics.count"][0] == len(everything)
    np.testing.assert_allclose(arrays["observation_statistics.mean"], everything.mean(axis=0), rtol=1e-12)
    variance = arrays["observation_statistics.m2"] / len(everything)
    np.testing.assert_allclose(variance, everything.var(axis=0), rtol=1e-12)


def test_blocks_are_left_as_they_are(acted_batch):
    training, algorithm = make(normalize_observations=True, normalize_returns=True, epochs=2)
    for seed in (1, 2):
        batch = acted_batch(training, seed=seed)
        before = {name: array.copy() for name, array in batch.fields.items()}
        for array in batch.fields.values():
            array.flags.writeable = False
        algorithm.update(batch)
        for name, array in before.items():
            np.testing.assert_array_equal(batch[name], array)


def test_rewards_are_scaled_by_the_deviation_of_returns_and_targets_with_them(acted_batch):
    training, algorithm = make(normalize_returns=True, gamma=0.0)
    batch = acted_batch(training, seed=1)
    batch["reward"][...] *= 100.0
    np.testing.assert_allclose(algorithm._scales.rewards(batch), np.clip(batch["reward"], -10, 10), rtol=1e-6)
    algorithm.update(batch)
    scaled = algorithm._scales.rewards(batch)
    np.testing.assert_allclose(scaled, batch["reward"] / batch["reward"].astype(np.float64).std(), rtol=1e-5)


def test_an_infinite_reward_is_refused_though_scaled_rewards_are_cut(acted_batch):
    training, algorithm = make(normalize_returns=True)
    batch = acted_batch(training, seed=1)
    batch["reward"][5, 3] = np.inf
    before = training.flat_weights().copy()
    with pytest.raises(NonFiniteError) as caught, training.transaction():
        algorithm.update(batch)
    assert "row 5, column 3, field reward" in caught.value.where
    np.testing.assert_array_equal(training.flat_weights(), before)


def test_popart_preserves_every_value_and_normalises_targets(acted_batch):
    training, algorithm = make(popart=True)
    policy = training.policy
    batch = acted_batch(training, seed=1)
    inputs = torch.from_numpy(batch["observation"][0])
    with torch.no_grad():
        before = policy(inputs)[1].clone()
    targets = np.random.default_rng(0).normal(500.0, 40.0, 1000).astype(np.float32)
    normalised = algorithm._scales.targets(targets)
    with torch.no_grad():
        after = policy(inputs)[1]
    assert policy.popart.scale().mean() == pytest.approx(500.0, abs=5.0)
    torch.testing.assert_close(after, before, atol=2e-4, rtol=1e-4)  # float32 around a mean of 500
    assert abs(float(normalised.mean())) < 1e-4
    assert float(normalised.std()) == pytest.approx(1.0, abs=1e-4)


def test_popart_acts_with_values_in_the_units_of_returns(acted_batch):
    training, algorithm = make(popart=True, epochs=30, learning_rate=1e-2, gamma=0.0)
    for seed in range(30):
        batch = acted_batch(training, seed=seed)
        batch["reward"][...] = 1000.0 + 100.0 * batch["reward"]
        algorithm.update(batch)
    values = acted_batch(training, seed=99)["value"]
    assert values.mean() == pytest.approx(1000.0, rel=0.03)


def test_value_clip_range_is_in_units_of_returns_with_popart_too(acted_batch, monkeypatch):
    training, algorithm = make(popart=True, value_clip_range=20.0)
    batch = acted_batch(training, seed=1)
    batch["reward"][...] = 500.0 + 100.0 * batch["reward"]
    seen = []
    monkeypatch.setattr(
        "srl.algorithms.ppo.trainer.ppo_loss",
        lambda evaluation, value, data, weights: seen.append(weights) or ppo_loss(evaluation, value, data, weights),
    )
    algorithm.update(batch)
    assert training.policy.popart.scale().deviation() > 50.0
    assert seen[0].value_clip_range == pytest.approx(20.0 / training.policy.popart.scale().deviation())


def test_masked_actions_are_never_taken_nor_made_likelier(acted_batch):
    training, algorithm = make(action=SpaceSpec("discrete", (), "int64", n=4), mask=True, epochs=4)
    for seed in range(3):
        batch = acted_batch(training, seed=seed, columns=32)
        taken = np.take_along_axis(batch["action_mask"][:-1], batch["action"][..., None], axis=2)
        assert taken.all()
        algorithm.update(batch)


def test_state_starts_anew_and_stands_still_where_there_is_no_transition(acted_batch):
    """Field case 13: garbage in states behind an episode start, and in rows without a transition, changes nothing."""
    results = []
    for disturbed in (False, True):
        training, algorithm = make(network=LSTM)
        batch = acted_batch(training, seed=3)
        batch["episode_start"][0] = True
        batch["valid"][5, :3] = False
        batch["terminated"][5, :3] = batch["truncated"][5, :3] = batch["episode_start"][6, :3] = False
        batch["episode_start"][8] = True
        if disturbed:
            batch["state"][0] = 1e3
            batch["state"][2] = -1e3
            batch["observation"][5, :3] = 1e6
            batch["reward"][5, :3] = np.nan
        algorithm.update(batch)
        results.append(training.flat_weights().copy())
    np.testing.assert_array_equal(*results)


def test_a_recurrent_bootstrap_uses_the_state_behind_the_last_row(acted_batch):
    training, algorithm = make(network=LSTM, gamma=0.5, gae_lambda=0.0)
    batch = acted_batch(training, seed=3)
    for name in ("terminated", "truncated", "episode_start"):
        batch[name][...] = False
    batch["truncated"][6, 2] = True
    batch["final_row"][...] = -1
    batch["final_row"][6, 2] = 0
    network = training.policy.network
    with torch.no_grad():
        state = torch.from_numpy(batch["state"][0])
        after = []
        for row in range(16):
            if row % 4 == 0:
                state = torch.from_numpy(batch["state"][row // 4])
            _, _, state = network.compute(torch.from_numpy(batch["observation"][row]), network.prepare(), state)
            after.append(state)
        last = network.compute(torch.from_numpy(batch["observation"][16]), network.prepare(), after[15])[1]
        final = network.compute(torch.from_numpy(batch["final_observation"][:1]), network.prepare(), after[6][2:3])[1]
    expected = batch["reward"][15] + 0.5 * last.numpy() - batch["value"][15]
    advantage = algorithm.advantages(batch)
    np.testing.assert_allclose(advantage[15], expected, atol=1e-5)
    assert advantage[6, 2] == pytest.approx(batch["reward"][6, 2] + 0.5 * float(final) - batch["value"][6, 2], abs=1e-5)


@pytest.mark.parametrize("length", [7, 8])
def test_a_recurrent_bootstrap_of_a_block_cut_short_uses_the_state_behind_its_last_row(acted_batch, length):
    """Rows behind a cut store no state; two sequences of the block may lie behind it."""
    training, algorithm = make(network=LSTM, gamma=0.5, gae_lambda=0.0)
    batch = acted_batch(training, seed=3, blocks=2)
    for name in ("terminated", "truncated", "episode_start"):
        batch[name][...] = False
    batch["final_row"][...] = -1
    network = training.policy.network
    with torch.no_grad():
        state = torch.from_numpy(batch["state"][0])
        after = []
        for row in range(16):
            if row % 4 == 0:
                state = torch.from_numpy(batch["state"][row // 4])
            _, _, state = network.compute(torch.from_numpy(batch["observation"][row]), network.prepare(), state)
            after.append(state)
        behind = network.compute(torch.from_numpy(batch["observation"][length]), network.prepare(), after[length - 1])
        whole = network.compute(torch.from_numpy(batch["observation"][16]), network.prepare(), after[15])[1]
    cut = slice(0, 4)  # the first block's columns
    batch["valid"][length:, cut] = False
    batch["observation"][length + 1 :, cut] = batch["observation"][length, cut]
    batch["reward"][length:, cut] = 0.0
    batch["state"][2:, cut] = 0.0
    batch.headers[0] = replace(batch.headers[0], length=length, valid_rows=4 * length)
    advantage = algorithm.advantages(batch)
    expected = batch["reward"][length - 1] + 0.5 * behind[1].numpy() - batch["value"][length - 1]
    np.testing.assert_allclose(advantage[length - 1, cut], expected[cut], atol=1e-5)
    expected = batch["reward"][15] + 0.5 * whole.numpy() - batch["value"][15]
    np.testing.assert_allclose(advantage[15, 4:], expected[4:], atol=1e-5)


def test_acting_is_a_pure_function_whatever_the_network_does_in_training(acted_batch):
    """Parameters may have two names; what is random in training (dropout) is not so when acting."""
    training, algorithm = make(network={"type": f"{__file__}:TiedAndNoisy"})
    first, second = acted_batch(training), acted_batch(training)
    assert first["value"].any()
    np.testing.assert_array_equal(first["value"], second["value"])
    algorithm.update(first)
    assert not np.array_equal(acted_batch(training)["value"], second["value"])


@pytest.mark.parametrize("recurrent", [{}, LSTM])
def test_values_that_targets_end_with_are_those_that_would_act(recurrent, acted_batch):
    """Dropout is for the loss alone; afterwards every part of the network is in the mode it was in."""
    training, algorithm = make(network={"type": f"{__file__}:TiedAndNoisy", **recurrent}, gamma=1.0, gae_lambda=0.0)
    algorithm.update(acted_batch(training, seed=1))
    batch = acted_batch(training, seed=2, ends=0.0)
    value = batch["value"]
    # Row 12 seen as row T: its value was stored when it acted.
    for name in batch.fields:
        if name not in ("observation", "state", "final_observation", "policy_version"):
            batch.fields[name] = batch[name][:12]
    batch.fields["observation"] = batch["observation"][:13]
    batch.headers[0] = replace(batch.headers[0], length=12, valid_rows=12 * 8)
    parts = list(algorithm._policy.modules())
    assert all(part.training for part in parts), "the loss needs train mode"
    parts[-1].eval()
    advantage = algorithm.advantages(batch)
    np.testing.assert_allclose(advantage[11], batch["reward"][11] + value[12] - value[11], atol=1e-5)
    assert [part.training for part in parts] == [True] * (len(parts) - 1) + [False]


def test_with_dropout_ratios_are_off_one_from_the_first_step_on(acted_batch):
    """As the documentation says: the whole network acted, and the loss sees one without some of its units."""
    training, algorithm = make(network={"type": f"{__file__}:TiedAndNoisy"})
    for parameter in training.policy.parameters():
        parameter.data.mul_(10.0)
    assert algorithm.update(acted_batch(training))["approximate_kl"] > 1e-3


def test_statistics_resume_bit_for_bit(acted_batch):
    options = {"normalize_observations": True, "normalize_returns": True}
    straight, algorithm = make(**options)
    batches = [acted_batch(straight, seed=seed) for seed in range(4)]
    for batch in batches[:2]:
        algorithm.update(batch)
    saved = {name: view.copy() for name, view in straight.layout.views(straight.flat_weights()).items()}
    state, algorithm_state = straight.state(), algorithm.state()
    resumed, second = make(seed=99, **options)
    resumed.load_weights(saved)
    resumed.load_state(state)
    second.load_state(algorithm_state)
    for batch in batches[2:]:
        algorithm.update(batch)
        second.update(batch)
    np.testing.assert_array_equal(resumed.flat_weights(), straight.flat_weights())

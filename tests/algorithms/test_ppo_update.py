"""`update` as a trainer worker calls it: on batches as they are assembled from blocks."""

import numpy as np
import pytest
import torch

from srl.algorithms.ppo import trainer as ppo_trainer
from srl.algorithms.ppo.acting import NumpyActing
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.plugin import PPO
from srl.algorithms.ppo.trainer import PPOAlgorithm
from srl.api.algorithm import Batch
from srl.api.environment import EnvironmentSpec
from srl.api.errors import NonFiniteError
from srl.api.policy import ActInput, ActOutput
from srl.api.spaces import SpaceSpec
from srl.system.noise import block_noise
from srl.system.workers.training import Training

ENVIRONMENT = EnvironmentSpec("Toy-v0", SpaceSpec("box", (4,), "float32"), SpaceSpec("discrete", (), "int64", n=3))
IMAGES = EnvironmentSpec(
    "Toy-v1", SpaceSpec("box", (4, 36, 36), "uint8", low=0, high=255), SpaceSpec("discrete", (), "int64", n=3)
)


def make(environment=ENVIRONMENT, seed=1, network=None, **options):
    config = PPOConfig(**{"minibatch_rows": 64, **options})
    training = Training(PPO.policy_spec("learner", config, network or {}, environment), seed=seed)
    return training, PPOAlgorithm(config, training)


def collect(training, rows=16, columns=8, seed=0):
    """A batch acted by the present weights: random observations, rewards and ends."""
    spec = training.spec
    generator = np.random.default_rng(seed)
    shape = (rows, columns)
    size = (rows + 1, columns, *spec.observation.shape)
    observation = (
        generator.integers(0, 256, size, dtype=np.uint8)
        if spec.observation.dtype == "uint8"
        else generator.normal(size=size).astype(np.float32)
    )
    truncated = generator.random(shape) < 0.1
    final_row = np.where(truncated, np.cumsum(truncated.reshape(-1)).reshape(shape) - 1, -1).astype(np.int32)
    fields = {
        "observation": observation,
        "action": np.zeros(shape, np.int64),
        "reward": generator.normal(size=shape).astype(np.float32),
        "terminated": generator.random(shape) < 0.1,
        "truncated": truncated,
        "valid": np.ones(shape, bool),
        "final_row": final_row,
        "final_observation": observation[:-1].reshape(rows * columns, *size[2:])[::-1].copy(),
        "log_probability": np.zeros(shape, np.float32),
        "value": np.zeros(shape, np.float32),
    }
    if spec.backend == "numpy":
        act_all(training, fields)
    return Batch(fields, [], rows * columns)


def act_all(training, fields):
    acting = NumpyActing(training.spec)
    acting.load(training.layout.views(training.flat_weights()))
    rows, columns = fields["valid"].shape
    noise = block_noise(training.spec.noise, seed=1, actor=0, ring_group=0, columns=columns, first_step=0, rows=rows)
    for row in range(rows):
        out = ActOutput(fields["action"][row], {name: fields[name][row] for name in ("log_probability", "value")})
        flags = np.ones(columns, bool)
        acting.act(ActInput(fields["observation"][row], noise[row], flags, flags), out)


def weights(training):
    return training.flat_weights().copy()


def test_ratios_are_one_before_the_first_step():
    """Field case 18's expectation, acting in numpy and training in torch; also over many minibatches of one epoch."""
    training, _ = make()
    batch = collect(training, rows=64, columns=16)
    module = training.policy
    observation = torch.from_numpy(batch["observation"][:-1].reshape(-1, 4))
    action = torch.from_numpy(batch["action"].reshape(-1))
    with torch.no_grad():
        logits, value = module.network.compute_in_torch(observation, module.network.prepare())
        log_probability = torch.log_softmax(logits, 1).gather(1, action[:, None])[:, 0]
        outputs, _ = module(observation)
    evaluated = module.distribution.evaluate(outputs.numpy(), action.numpy(), None).log_probability
    for new in (log_probability.numpy(), evaluated):
        ratio = np.exp(new - batch["log_probability"].reshape(-1))
        np.testing.assert_allclose(ratio, 1.0, atol=1e-5)
    np.testing.assert_allclose(value, batch["value"].reshape(-1), atol=1e-5)
    metrics = make(epochs=1, minibatch_rows=10_000)[1].update(batch)
    assert abs(metrics["approximate_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0.0


def test_update_equals_a_plain_torch_loop():
    """The same minibatches, loss by automatic differentiation, torch's Adam and clipping."""
    options = {"value_clip_range": 0.2, "entropy_coefficient": 0.02}
    training, algorithm = make(**options)
    reference, _ = make(**options)
    batch = collect(training)
    transitions = algorithm._transitions(batch, np.arange(128))
    adam = torch.optim.Adam(reference.policy.parameters(), lr=2.5e-4, eps=1e-5)
    observation = torch.from_numpy(batch["observation"][:-1].reshape(-1, 4))
    names = ("action", "old_log_probability", "advantage", "value_target", "old_value")
    data = {name: torch.from_numpy(getattr(transitions, name)) for name in names}
    for _ in range(4):
        order = torch.from_numpy(reference.generator.permutation(128))
        for rows in (order[:64], order[64:]):
            part = {name: tensor[rows] for name, tensor in data.items()}
            advantage = part["advantage"]
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            logits, value = reference.policy(observation[rows])
            distribution = torch.distributions.Categorical(logits=logits)
            entropy = distribution.entropy()
            ratio = (distribution.log_prob(part["action"]) - part["old_log_probability"]).exp()
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            near = part["old_value"] + (value - part["old_value"]).clamp(-0.2, 0.2)
            errors = torch.max((value - part["value_target"]) ** 2, (near - part["value_target"]) ** 2)
            loss = policy_loss + 0.5 * 0.5 * errors.mean() - 0.02 * entropy.mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(reference.policy.parameters(), 0.5)
            adam.step()
    algorithm.update(batch)
    assert training.gradient_steps == 8
    for parameter, expected in zip(training.policy.parameters(), reference.policy.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=2e-6)


def test_metrics():
    training, algorithm = make()
    metrics = algorithm.update(collect(training))
    assert set(metrics) == {
        "loss/policy",
        "loss/value",
        "entropy",
        "approximate_kl",
        "clip_fraction",
        "explained_variance",
        "gradient_norm",
        "learning_rate",
        "epochs_done",
    }
    assert all(isinstance(value, float) and np.isfinite(value) for value in metrics.values())
    assert metrics["entropy"] == pytest.approx(np.log(3), abs=0.01)
    assert metrics["epochs_done"] == 4.0


@pytest.mark.parametrize(("environment", "precision"), [(ENVIRONMENT, "fp32"), (IMAGES, "fp32"), (IMAGES, "bf16")])
def test_same_seed_same_bits_wherever_the_batch_lies(environment, precision):
    results = []
    for offset in (0, 4):
        training, algorithm = make(environment, precision=precision, epochs=2)
        batch = collect(training)
        moved = {}
        for name, array in batch.fields.items():
            memory = np.zeros(array.nbytes + 64, np.uint8)[offset * 2 : offset * 2 + array.nbytes]
            moved[name] = memory.view(array.dtype).reshape(array.shape)
            moved[name][...] = array
            moved[name].flags.writeable = False  # blocks in shared memory are read only for a trainer
        algorithm.update(Batch(moved, [], batch.valid_rows))
        results.append(weights(training))
    np.testing.assert_array_equal(*results)


def test_rows_without_a_transition_have_no_influence():
    """Field case 1: garbage in invalid rows, and the same update as without them."""
    training, algorithm = make()
    batch = collect(training)
    algorithm.update(batch)
    expected = weights(training)
    again, algorithm = make()
    fields = collect(again).fields
    padded = {}
    for name, array in fields.items():
        padded[name] = array if name == "final_observation" else np.insert(array, [3, 3, 9], array[0], axis=0)
    gaps = [3, 4, 11]
    padded["valid"][gaps] = False
    for name in ("reward", "value", "log_probability", "observation"):
        padded[name][gaps] = np.nan
    padded["terminated"][gaps] = True
    algorithm.update(Batch(padded, [], batch.valid_rows))
    np.testing.assert_array_equal(weights(again), expected)


def test_nothing_valid_nothing_learnt():
    training, algorithm = make()
    batch = collect(training)
    batch.fields["valid"][:] = False
    before = weights(training)
    metrics = algorithm.update(batch)
    assert metrics["epochs_done"] == 0.0
    assert training.gradient_steps == 0
    np.testing.assert_array_equal(weights(training), before)


@pytest.mark.parametrize(
    ("valid", "minibatch_rows", "sizes"), [(5, 2, [1, 2, 2]), (1, 64, [1]), (128, 50, [42, 43, 43])]
)
def test_minibatches_are_as_equal_as_possible(monkeypatch, valid, minibatch_rows, sizes):
    """Field case 29: five samples in minibatches of two, single samples included; weights stay finite."""
    training, algorithm = make(minibatch_rows=minibatch_rows, epochs=2)
    batch = collect(training)
    batch.fields["valid"][:] = False
    batch.fields["valid"].reshape(-1)[:valid] = True
    seen = []
    original = ppo_trainer.ppo_loss

    def record(evaluation, value, data, loss_weights):
        seen.append((len(value), data.advantage.copy(), data.action.copy()))
        return original(evaluation, value, data, loss_weights)

    monkeypatch.setattr(ppo_trainer, "ppo_loss", record)
    metrics = algorithm.update(batch)
    assert sorted(count for count, _, _ in seen[: len(sizes)]) == sizes
    assert sum(count for count, _, _ in seen) == 2 * valid
    assert all(np.isfinite(value) for value in metrics.values())
    assert np.isfinite(training.layout.views(training.flat_weights())["network.policy_weight"]).all()
    for count, advantage, _ in seen:
        assert abs(float(advantage.mean())) < 1e-5
        assert count == 1 or float(advantage.std()) == pytest.approx(1.0, abs=1e-3)


def test_every_transition_is_used_once_per_epoch(monkeypatch):
    training, algorithm = make(epochs=3, normalize_advantages=False)
    batch = collect(training)
    seen = []
    original = ppo_trainer.ppo_loss

    def record(evaluation, value, data, loss_weights):
        seen.append(data.old_value.copy())
        return original(evaluation, value, data, loss_weights)

    monkeypatch.setattr(ppo_trainer, "ppo_loss", record)
    algorithm.update(batch)
    epochs = [np.concatenate(seen[first : first + 2]) for first in (0, 2, 4)]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.sort(batch["value"].reshape(-1)))
    assert not np.array_equal(epochs[0], epochs[1])


def test_kl_stop_ends_the_epochs():
    training, algorithm = make(epochs=20, learning_rate=0.05, target_kl=0.01)
    metrics = algorithm.update(collect(training))
    assert metrics["epochs_done"] < 20
    assert metrics["approximate_kl"] > 0.01
    training, algorithm = make(epochs=20, learning_rate=1e-9, target_kl=0.01)
    assert algorithm.update(collect(training))["epochs_done"] == 20


def test_learning_rate_schedule():
    training, algorithm = make(learning_rate_schedule="linear", learning_rate=0.01)
    batch = collect(training)
    rates = []
    for progress in (0.0, 0.25, 1.0, 1.1):
        training.progress = progress
        rates.append(algorithm.update(batch)["learning_rate"])
    np.testing.assert_allclose(rates, [0.01, 0.0075, 0.0, 0.0])
    training, algorithm = make(learning_rate=0.01)
    training.progress = 0.5
    assert algorithm.update(batch)["learning_rate"] == 0.01


@pytest.mark.parametrize("field", ["reward", "value", "log_probability"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_first_bad_value_is_named_and_weights_stay(field, value):
    """Field case 63."""
    training, algorithm = make()
    batch = collect(training)
    batch[field][5, 3] = value
    before = weights(training)
    with pytest.raises(NonFiniteError) as caught, training.transaction():
        algorithm.update(batch)
    assert f"row 5, column 3, field {field}" in caught.value.where
    np.testing.assert_array_equal(weights(training), before)


@pytest.mark.parametrize("where", ["observation", "last", "final_observation"])
def test_bad_observations_are_caught(where):
    training, algorithm = make()
    batch = collect(training)
    if where == "observation":
        batch["observation"][2, 1] = np.nan
    elif where == "last":
        batch["terminated"][-1] = batch["truncated"][-1] = False
        batch["observation"][-1, 1] = np.inf
    else:
        batch["terminated"][:] = False
        batch["final_observation"][batch["final_row"].max()] = np.nan
    before = weights(training)
    with pytest.raises(NonFiniteError), training.transaction():
        algorithm.update(batch)
    np.testing.assert_array_equal(weights(training), before)


@pytest.mark.parametrize(("activation", "learning_rate"), [("tanh", 1e6), ("relu", 1e6), ("relu", 1e15)])
def test_absurd_learning_rates_never_leave_bad_weights(activation, learning_rate):
    """Field case 63: an update goes through with finite weights, or is named and taken back whole."""
    training, algorithm = make(network={"activation": activation}, learning_rate=learning_rate)
    failed = 0
    for seed in range(5):
        batch = collect(training, seed=seed)
        before = weights(training)
        try:
            with training.transaction():
                algorithm.update(batch)
        except NonFiniteError:
            failed += 1
            np.testing.assert_array_equal(weights(training), before)
        for array in training.layout.views(training.flat_weights()).values():
            assert np.isfinite(array).all()
    assert failed or learning_rate < 1e15


def test_a_time_limit_is_bootstrapped_from_the_final_observation():
    """Field case 3 through the trainer: only the final observation tells the two batches apart."""
    training, algorithm = make(gamma=0.99)
    batch = collect(training)
    batch["truncated"][4, 2], batch["terminated"][4, 2], batch["final_row"][4, 2] = True, False, 100
    first = algorithm.advantages(batch)
    batch["final_observation"][100] += 1.0
    second = algorithm.advantages(batch)
    moved = np.argwhere(first != second)
    assert [4, 2] in moved.tolist()
    assert set(moved[:, 1]) == {2}
    assert moved[:, 0].max() == 4
    with torch.no_grad():
        _, value = training.policy(torch.from_numpy(batch["final_observation"][100:101]))
    expected = batch["reward"][4, 2] + 0.99 * float(value) - batch["value"][4, 2]
    assert second[4, 2] == pytest.approx(expected, abs=1e-6)


def test_resume_continues_bit_for_bit():
    straight, algorithm = make(learning_rate_schedule="linear")
    batches = [collect(straight, seed=seed) for seed in range(4)]
    for batch in batches[:2]:
        algorithm.update(batch)
    saved = {name: view.copy() for name, view in straight.layout.views(straight.flat_weights()).items()}
    state, algorithm_state = straight.state(), algorithm.state()
    for batch in batches[2:]:
        algorithm.update(batch)
    resumed, second = make(learning_rate_schedule="linear", seed=99)
    resumed.load_weights(saved)
    resumed.load_state(state)
    second.load_state(algorithm_state)
    for batch in batches[2:]:
        second.update(batch)
    np.testing.assert_array_equal(weights(resumed), weights(straight))


def test_learns_which_action_pays():
    """A one-step problem with a known best answer: the sign of the first number says which action is rewarded."""
    environment = EnvironmentSpec("Sign-v0", ENVIRONMENT.observation, SpaceSpec("discrete", (), "int64", n=2))
    training, algorithm = make(environment, learning_rate=3e-3, entropy_coefficient=0.0)
    for seed in range(40):
        batch = collect(training, seed=seed)
        batch["terminated"][:] = True
        best = batch["observation"][:-1, :, 0] > 0
        batch["reward"][:] = batch["action"] == best
        algorithm.update(batch)
    assert batch["reward"].mean() > 0.9

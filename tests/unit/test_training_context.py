"""`trainer.step` and what belongs to it, against torch's own optimizers."""

import json

import numpy as np
import pytest
import torch
from policy_specs import policy_spec

from srl.api.errors import NonFiniteError, PluginError, UsageError
from srl.api.spaces import SpaceSpec
from srl.system.parameters import ALIGNMENT_BYTES, weights_sha256
from srl.system.workers.training import Training, build_module


class Toy(torch.nn.Module):
    """Sizes that are no multiples of 16, and buffers of two dtypes."""

    def __init__(self, spec):
        super().__init__()
        self.first = torch.nn.Linear(3, 5)
        self.second = torch.nn.Linear(5, 2)
        self.register_buffer("count", torch.tensor(3, dtype=torch.int64))
        self.register_buffer("mean", torch.arange(3, dtype=torch.float32))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x - self.mean)))


class Halves(torch.nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))


def no_module(spec):
    return "policy"


def spec(module="Toy", name="learner"):
    return policy_spec(
        name=name,
        module=f"{__file__}:{module}",
        backend="torch",
        observation=SpaceSpec("box", (3,), "float32"),
        extras=(),
    )


def data(rows=7):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 2, generator=generator)


def loss_sum(module, rows=7):
    x, y = data(rows)
    return ((module(x) - y) ** 2).sum()


def make(**options):
    training = Training(spec(), seed=5, **options)
    return training, training.optimizer(learning_rate=0.01, epsilon=1e-5, max_gradient_norm=0.5)


def test_initial_weights_follow_from_the_seed_and_leave_global_randomness_alone():
    before = torch.random.get_rng_state()
    first = build_module(spec(), 1).first.weight
    torch.manual_seed(99)
    second = build_module(spec(), 1).first.weight
    assert torch.equal(first, second)
    assert not torch.equal(first, build_module(spec(), 2).first.weight)
    assert not torch.equal(first, build_module(spec(name="other"), 1).first.weight)
    torch.random.set_rng_state(before)
    build_module(spec(), 1)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("with_outputs", [False, True])
def test_steps_equal_those_of_torch(with_outputs):
    training, optimizer = make()
    reference = build_module(spec(), 5)
    adam = torch.optim.Adam(reference.parameters(), lr=0.01, eps=1e-5)
    for _ in range(20):
        if with_outputs:
            x, y = data()
            output = training.policy(x)
            gradient = 2 * (output.detach() - y)
            norm = training.step(optimizer, valid_count=7, outputs=[output], gradients=[gradient])
        else:
            norm = training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
        adam.zero_grad()
        (loss_sum(reference) / 7).backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        adam.step()
        assert norm == pytest.approx(float(expected_norm), rel=1e-5)
    assert training.gradient_steps == 20
    for parameter, expected in zip(training.policy.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6)


def test_weights_are_one_aligned_buffer_of_parameters_then_buffers():
    training, optimizer = make(extra={"srl.env_steps": ((1,), "int64")})
    names = [field.name for field in training.layout.fields]
    assert names == [
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
        "count",
        "mean",
        "srl.env_steps",
    ]
    assert all(field.offset_bytes % ALIGNMENT_BYTES == 0 for field in training.layout.fields)
    training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
    training.set_extra("srl.env_steps", 2048)
    views = training.layout.views(training.flat_weights())
    for name, tensor in training.policy.state_dict().items():
        np.testing.assert_array_equal(views[name], tensor.numpy())
    assert views["srl.env_steps"].tolist() == [2048]
    used = np.zeros(training.layout.size_bytes, bool)
    for field in training.layout.fields:
        size = int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize
        used[field.offset_bytes : field.offset_bytes + size] = True
    assert not training.flat_weights()[~used].any()  # padding never moves


def test_no_valid_row_means_no_step():
    training, optimizer = make()
    before = training.flat_weights().copy()
    assert training.step(optimizer, valid_count=0, loss_sum=loss_sum(training.policy, rows=0)) == 0.0
    assert training.gradient_steps == 0
    np.testing.assert_array_equal(before, training.flat_weights())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("with_outputs", [False, True])
def test_non_finite_losses_and_gradients_change_nothing(value, with_outputs):
    training, optimizer = make()
    training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
    before, state = training.flat_weights().copy(), json.dumps(training.state(), default=lambda a: a.tolist())
    output = training.policy(data()[0])
    bad = (
        {"outputs": [output], "gradients": [torch.full_like(output, value)]}
        if with_outputs
        else {"loss_sum": loss_sum(training.policy) * value}
    )
    with pytest.raises(NonFiniteError) as caught:
        training.step(optimizer, valid_count=7, **bad)
    assert "policy learner" in caught.value.where
    assert "gradient step 1" in caught.value.where
    np.testing.assert_array_equal(before, training.flat_weights())
    assert state == json.dumps(training.state(), default=lambda a: a.tolist())
    training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))  # and training can go on
    assert np.isfinite(training.layout.views(training.flat_weights())["first.weight"]).all()


def test_a_transaction_takes_back_the_good_steps_of_a_failed_update():
    """Field case 63, learning rate 1e6: the loss is finite at first, then not; the weights stay those of before."""
    training, optimizer = make()
    before = training.flat_weights().copy()
    generator = training.generator.bit_generator.state

    def update():
        training.generator.permutation(10)
        training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
        assert not np.array_equal(before, training.flat_weights())
        training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy) * float("inf"))

    with pytest.raises(NonFiniteError), training.transaction():
        update()
    np.testing.assert_array_equal(before, training.flat_weights())
    assert training.gradient_steps == 0
    assert training.generator.bit_generator.state == generator


def test_weights_that_overflow_are_not_kept():
    training, optimizer = make()
    before = training.flat_weights().copy()
    optimizer.learning_rate = 1e39
    with pytest.raises(NonFiniteError, match="weight"), training.transaction():
        training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
    np.testing.assert_array_equal(before, training.flat_weights())


def test_state_and_weights_resume_bit_for_bit():
    training, optimizer = make()
    for _ in range(3):
        training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
    training.version = 3
    weights = {name: view.copy() for name, view in training.layout.views(training.flat_weights()).items()}
    state = training.state()
    optimizer.learning_rate = 0.5
    resumed, resumed_optimizer = make()
    resumed.load_weights(weights)
    resumed.load_state(state)
    assert resumed.version == 3
    assert resumed.gradient_steps == 3
    assert resumed_optimizer.learning_rate == 0.01
    optimizer.learning_rate = 0.01
    for context, adam in ((training, optimizer), (resumed, resumed_optimizer)):
        order = torch.from_numpy(context.generator.permutation(7))
        x, y = data()
        context.step(adam, valid_count=7, loss_sum=(((context.policy(x) - y) ** 2)[order]).sum())
    hashes = {weights_sha256(context.layout.views(context.flat_weights())) for context in (training, resumed)}
    assert len(hashes) == 1


def test_weights_of_another_shape_are_refused():
    training, _ = make()
    weights = {name: view.copy() for name, view in training.layout.views(training.flat_weights()).items()}
    with pytest.raises(UsageError, match=r"first\.bias"):
        training.load_weights({**weights, "first.bias": np.zeros(4, np.float32)})
    del weights["mean"]
    with pytest.raises(UsageError, match=r"mean: .*missing"):
        training.load_weights(weights)


def test_parameters_of_another_dtype_and_bad_names_are_refused():
    with pytest.raises(PluginError, match=r"policies\.learner: .*weight torch\.bfloat16.*float32"):
        Training(spec("Halves"), seed=1)
    with pytest.raises(PluginError, match=r"torch\.nn\.Module"):
        Training(spec("no_module"), seed=1)
    with pytest.raises(PluginError, match="Toyy"):
        Training(spec("Toyy"), seed=1)


def test_reduce_is_the_identity_of_one_rank():
    training, _ = make()
    assert training.reduce(3.5) == 3.5
    assert training.reduce(-1.0, "max") == -1.0


@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_algorithm_that_clears_gradients_itself_trains_all_the_same(set_to_none):
    """Whoever is used to torch's optimizers calls zero_grad, which takes the gradients off the parameters."""
    (one, one_optimizer), (two, two_optimizer) = make(), make()
    for _ in range(3):
        two.policy.zero_grad(set_to_none=set_to_none)
        norms = [
            training.step(optimizer, valid_count=7, loss_sum=loss_sum(training.policy))
            for training, optimizer in ((one, one_optimizer), (two, two_optimizer))
        ]
        assert norms[0] == norms[1] > 0.0
    np.testing.assert_array_equal(one.flat_weights(), two.flat_weights())


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda loss: None, "no loss is given"),
        (lambda loss: torch.stack([loss, loss]), r"the loss has the shape \(2,\)"),
        (lambda loss: loss.detach(), "the loss does not depend on the policy's parameters"),
    ],
)
def test_a_step_without_anything_to_follow_is_an_error(made, problem):
    training, optimizer = make()
    with pytest.raises(UsageError, match=rf"nothing to follow: {problem}"):
        training.step(optimizer, valid_count=7, loss_sum=made(loss_sum(training.policy)))
    assert training.gradient_steps == 0


class Wide(Toy):
    def __init__(self, spec):
        super().__init__(spec)
        self.register_buffer("moments", torch.zeros(3, dtype=torch.float64))


def test_statistics_are_refused_on_a_device_without_float64():
    with pytest.raises(UsageError, match=r"no float64 \(got 'moments'\); expected device: cpu or cuda"):
        Training(spec("Wide"), seed=1, device="mps")

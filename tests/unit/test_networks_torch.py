"""Networks in torch: shapes and gradients on every space, numpy against torch, plugins, names of parameters."""

import dataclasses

import numpy as np
import pytest
import torch

from srl.algorithms.networks.actor_critic import Memory, build_network, gather
from srl.algorithms.networks.encoder_network import EncoderActorCritic
from srl.algorithms.networks.encoders import build_encoder
from srl.algorithms.networks.features import FlatFeatures
from srl.algorithms.networks.mlp import MLPActorCritic
from srl.algorithms.networks.nature_cnn import NatureCNNActorCritic
from srl.algorithms.networks.numpy_mlp import NumpyMLP
from srl.algorithms.networks.spec import resolve_network
from srl.api.errors import PluginError
from srl.api.registry import REGISTRY
from srl.api.spaces import SpaceSpec

VECTOR = SpaceSpec("box", (3,), "float32")
IMAGE = SpaceSpec("box", (2, 40, 36), "uint8", low=0, high=255)
ATARI = SpaceSpec("box", (4, 84, 84), "uint8", low=0, high=255)
DISCRETE = SpaceSpec("discrete", (), "int64", n=5)
CHOICES = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))
BINARY = SpaceSpec("multi_binary", (3,), "int8")
FLAT = SpaceSpec.nested("dict", {"speed": VECTOR, "gear": DISCRETE, "flags": SpaceSpec("box", (2,), "bool")})
SEEING = SpaceSpec.nested(
    "dict", {"values": IMAGE, "body": SpaceSpec.nested("tuple", {"0": VECTOR, "1": BINARY}), "a/b": CHOICES}
)
SMALL_CNN = {"type": "nature_cnn", "features": 16}
SMALL_IMPALA = {"type": "impala_resnet", "channels": [3, 4], "features": 16}
CORE = {"recurrent": {"type": "gru", "size": 6, "learned_initial_state": True}}
CASES = [
    *[(space, {"type": "mlp", "hidden": [8]}) for space in (VECTOR, IMAGE, DISCRETE, CHOICES, BINARY, FLAT, SEEING)],
    *[(space, {"type": "mlp", "hidden": [8], **CORE}) for space in (VECTOR, IMAGE, CHOICES, SEEING)],
    (IMAGE, SMALL_CNN),
    (IMAGE, {**SMALL_CNN, **CORE}),
    (IMAGE, SMALL_IMPALA),
    (IMAGE, {**SMALL_IMPALA, **CORE}),
    (SEEING, {"encoders": {"values": SMALL_CNN}, "hidden": [8]}),
    (SEEING, {"encoders": {"values": SMALL_IMPALA}, "hidden": [], **CORE}),
    (FLAT, {"type": "dict", "encoders": {"gear": {"hidden": []}}}),
]

PLUGIN = """
import torch

class Sum(torch.nn.Module):
    features = 2

    def __init__(self, observation, options):
        super().__init__()
        self.seen = None
        self.layer = torch.nn.Linear(1, 2)

    def forward(self, inputs):
        self.seen = inputs
        tensors = inputs.values() if isinstance(inputs, dict) else [inputs]
        return self.layer(sum(tensor.flatten(1).float().sum(1, keepdim=True) for tensor in tensors))

class Wide(Sum):
    def forward(self, inputs):
        return torch.zeros(len(inputs), 3)

class Whole(Sum):
    def forward(self, inputs):
        return torch.zeros(len(inputs), 2, dtype=torch.int64)

class Nothing(Sum):
    def forward(self, inputs):
        return None

class Silent(Sum):
    features = None
"""


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "sums.py"
    path.write_text(PLUGIN)
    return lambda name: f"{path}:{name}"


def observations(space, count, seed=0):
    generator = np.random.default_rng(seed)
    array = np.zeros((count, *space.shape), space.dtype)
    for leaf in space.leaves():
        part, kind = leaf.of(array), leaf.space
        if kind.kind == "discrete":
            part[...] = generator.integers(kind.n, size=part.shape)
        elif kind.kind == "multi_discrete":
            part[...] = generator.integers(kind.nvec, size=part.shape)
        elif kind.kind == "multi_binary" or kind.dtype == "bool":
            part[...] = generator.integers(2, size=part.shape)
        elif kind.dtype == "uint8":
            part[...] = generator.integers(256, size=part.shape)
        else:
            part[...] = generator.normal(size=part.shape)
    return array


def build(space, network=None, outputs=4, **options):
    torch.manual_seed(1)
    return build_network(resolve_network(network or {}, space, "network"), space, outputs, **options)


def memory_for(network, rows, columns):
    if not network.state_size:
        return None
    start = torch.zeros(rows, columns, dtype=torch.bool)
    start[1, 0] = True  # a learned initial state is used somewhere
    return Memory(torch.ones(columns, network.state_size), start, ~start)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("space", "network"), CASES)
def test_shapes_and_gradients(space, network, dtype):
    module = build(space, network, dtype=dtype)
    inputs = gather(module.inputs(observations(space, 8)), np.array([5, 1, 0, 7, 3, 2]))
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    outputs, value, backward = module.differentiable(inputs, memory_for(module, 3, 2))
    assert (outputs.shape, outputs.dtype, value.shape, value.dtype) == ((6, 4), np.float32, (6,), np.float32)
    generator = np.random.default_rng(0)
    backward(
        generator.normal(size=outputs.shape).astype(np.float32), generator.normal(size=value.shape).astype(np.float32)
    )
    for name, parameter in module.named_parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any(), name
    weight, bias = module.value_head()
    assert (weight.shape, bias.shape) == ((1, weight.shape[1]), (1,))
    assert {id(weight), id(bias)} <= {id(parameter) for parameter in module.parameters()}
    with torch.no_grad():
        weight.zero_()
        bias.fill_(3.0)
    np.testing.assert_array_equal(module.differentiable(inputs, memory_for(module, 3, 2))[1], 3.0)


@pytest.mark.parametrize(("space", "network"), CASES)
def test_one_step_and_training_agree(space, network):
    module = build(space, network)
    observation = observations(space, 6)
    inputs = module.inputs(observation)
    state = module.initial_state().expand(6, -1) if module.state_size else None
    with torch.no_grad():
        outputs, value, following = module.compute(inputs, [one.clone() for one in module.prepare()], state)
    everywhere = torch.ones(1, 6, dtype=torch.bool)
    memory = Memory(torch.full((6, module.state_size), 9.0), everywhere, everywhere)
    assert module.states(inputs, memory).shape == (6, module.state_size)
    if module.state_size:
        assert following.shape == (6, module.state_size)
    else:
        assert following is None
        assert module.initial_state().shape == (0,)
    got = module.differentiable(gather(inputs, np.arange(6)), memory if module.state_size else None)
    np.testing.assert_allclose(got[0], outputs, atol=1e-6)
    np.testing.assert_allclose(got[1], value, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"activation": "relu", "hidden": [5, 6, 7]}])
@pytest.mark.parametrize("space", [VECTOR, IMAGE, DISCRETE, CHOICES, BINARY, FLAT, SEEING])
def test_the_mlp_in_numpy_equals_the_one_in_torch(space, options):
    """On observations for acting, on inputs for training; forward and backward."""
    resolved = resolve_network({"type": "mlp", **options}, space, "network")
    module = build(space, {"type": "mlp", **options})
    assert isinstance(module, MLPActorCritic)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    observation = observations(space, 9)
    inputs = module.inputs(observation)
    acting = NumpyMLP(resolved, space, 4)
    parameters = dict(module.named_parameters())
    head, value = acting.forward([parameters[name].detach().numpy() for name in acting.names()], observation)
    weights = torch.randn(9, 4), torch.randn(9)
    results = []
    for forward in (
        lambda: module.compute(inputs, module.prepare())[:2],
        lambda: module.compute_in_torch(inputs, module.prepare()),
    ):
        module.zero_grad()
        outputs = forward()
        torch.autograd.backward(outputs, weights)
        results.append([*(one.detach() for one in outputs), *(one.grad for one in module.parameters())])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(expected.abs().max())))
    np.testing.assert_allclose(head, results[1][0], atol=1e-5)
    np.testing.assert_allclose(value[:, 0], results[1][1], atol=1e-5)


def test_inputs_of_plain_observations_are_not_copied():
    for space in (VECTOR, IMAGE):
        array = observations(space, 3)
        assert np.shares_memory(build(space, {"type": "mlp"}).inputs(array).numpy(), array)
    assert build(IMAGE, {"type": "mlp"}).inputs(observations(IMAGE, 3)).dtype == torch.uint8


def test_inputs_of_what_must_not_be_written_to_are_copies():
    array = observations(IMAGE, 3)
    frozen, strided = array.copy(), np.repeat(array, 2, axis=0)[::2]
    frozen.flags.writeable = False
    for one in (frozen, strided):
        inputs = build(IMAGE).inputs(one)
        np.testing.assert_array_equal(inputs.numpy(), array)
        assert inputs.is_contiguous()
        assert not np.shares_memory(inputs.numpy(), one)


def test_gathered_rows_are_copies():
    module = build(SEEING, {"encoders": {"values": SMALL_CNN}})
    observation = observations(SEEING, 5)
    inputs = module.inputs(observation)
    rows = np.array([4, 0, 4])
    got = gather(inputs, rows)
    assert list(got) == list(inputs) == ["a/b", "body.0", "body.1", "values"]
    for name, expected in module.inputs(observation[rows]).items():
        np.testing.assert_array_equal(got[name], expected)
        assert not np.shares_memory(got[name].numpy(), inputs[name].numpy())
    assert gather(module.inputs(observation), np.zeros(0, np.int64))["values"].shape == (0, 2, 40, 36)


def test_the_order_of_keys_does_not_matter():
    """Field case 32: bit-identical inputs, and outputs."""
    parts = {"a": VECTOR, "b": IMAGE}
    results = []
    for names in ("ab", "ba"):
        space = SpaceSpec.nested("dict", {name: parts[name] for name in names})
        array = np.zeros(2, space.dtype)
        for leaf in space.leaves():
            leaf.of(array)[...] = {"a": 1.5, "b": 7}[leaf.path]
        module = build(space, {"encoders": {"b": SMALL_CNN}})
        inputs = module.inputs(array)
        assert set(inputs["a"].unique().tolist()) == {1.5}
        results.append([inputs["a"].numpy(), inputs["b"].numpy(), *module.differentiable(inputs)[:2]])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["nature_cnn", "impala_resnet", "mlp"])
def test_bytes_are_scaled(kind):
    """Field case 42: bytes give what their floats / 255 give; 10 - 20 is not 246."""
    module = build(IMAGE, {"type": kind})
    floats = build(dataclasses.replace(IMAGE, dtype="float32", low=0, high=1), {"type": kind})
    floats.load_state_dict(module.state_dict())
    observation = observations(IMAGE, 3)
    for got, expected in zip(
        module.differentiable(module.inputs(observation))[:2],
        floats.differentiable(floats.inputs((observation / 255).astype(np.float32)))[:2],
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_initialisation():
    for space, network in ((IMAGE, SMALL_IMPALA), (SEEING, {"encoders": {"values": SMALL_CNN}}), (VECTOR, CORE)):
        module = build(space, network)
        assert isinstance(module, EncoderActorCritic)
        head = module.policy_head.weight
        torch.testing.assert_close(head @ head.T, 1e-4 * torch.eye(4), atol=1e-8, rtol=0)
        assert float(module.value_head()[0].detach().norm()) == pytest.approx(1.0, rel=1e-5)
        assert not any(one.any() for name, one in module.named_parameters() if "bias" in name)


def test_the_cnn_is_the_one_of_the_paper():
    """Against the usual way of writing it: scaled bytes, contiguous memory, float32; as network and as encoder."""
    network = build_network({"type": "nature_cnn", "features": 512}, ATARI, 6)
    assert isinstance(network, NatureCNNActorCritic)
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_687_719
    layers = network.convolution_1, network.convolution_2, network.convolution_3, network.features
    relu = torch.nn.ReLU()
    usual = torch.nn.Sequential(layers[0], relu, layers[1], relu, layers[2], relu, torch.nn.Flatten(), layers[3], relu)
    x = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    features = usual(x.float() / 255)
    outputs, value, _ = network.compute(x, network.prepare())
    torch.testing.assert_close(outputs, network.policy_head(features), atol=1e-5, rtol=1e-4)
    expected = torch.nn.functional.linear(features, *network.value_head())[:, 0]
    torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)
    encoder = build_encoder({"type": "nature_cnn", "features": 512}, ATARI)
    own = {name.replace("features", "hidden"): tensor for name, tensor in network.state_dict().items()}
    encoder.load_state_dict({name: own[name] for name in encoder.state_dict()})
    torch.testing.assert_close(encoder(x), features, atol=1e-5, rtol=1e-4)


def test_impala_is_the_one_of_the_paper():
    """Espeholt et al. 2018, figure 3: 15 convolutions; the sizes for 4 x 84 x 84 and for 3 x 72 x 96 (DMLab)."""
    encoder = build_encoder({"type": "impala_resnet", "channels": [16, 32, 32], "features": 256}, ATARI)
    assert sum(isinstance(one, torch.nn.Conv2d) for one in encoder.modules()) == 15
    assert encoder.hidden.weight.shape == (256, 32 * 11 * 11)
    assert encoder(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 256)
    wide = dataclasses.replace(ATARI, shape=(3, 72, 96))
    encoder = build_encoder({"type": "impala_resnet", "channels": [16, 32, 32], "features": 256}, wide)
    assert encoder.hidden.weight.shape == (256, 32 * 9 * 12)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 97_600 + 256 * 3456 + 256


def test_impala_computes_what_the_figure_shows():
    encoder = build_encoder(SMALL_IMPALA, IMAGE)
    x = torch.randint(0, 256, (2, *IMAGE.shape), dtype=torch.uint8)
    features = x / 255
    for section in encoder.sections:
        features = torch.nn.functional.max_pool2d(section.convolution(features), 3, 2, 1)
        for block in section.blocks:
            features = features + block.convolution_2(block.convolution_1(features.relu()).relu())
    expected = encoder.hidden(features.relu().flatten(1)).relu()
    torch.testing.assert_close(encoder(x), expected, atol=1e-5, rtol=1e-4)
    assert 0.2 < float(expected.detach().std()) < 5.0  # neither dies nor explodes on the way


def test_names_of_parameters_are_those_of_checkpoints():
    assert list(build(VECTOR).state_dict()) == [
        *(f"hidden_{index}_{part}" for index in (0, 1) for part in ("weight", "bias")),
        *("policy_weight", "policy_bias", "value_weight", "value_bias"),
    ]
    assert list(build(IMAGE, SMALL_CNN).state_dict()) == [
        f"{layer}.{part}"
        for layer in ("convolution_1", "convolution_2", "convolution_3", "features", "policy_head", "value_head")
        for part in ("weight", "bias")
    ]
    names = set(build(SEEING, {"encoders": {"values": SMALL_CNN}, **CORE}).state_dict())
    assert names >= {
        "encoder.encoders./values.convolution_1.weight",
        "encoder.encoders./body/0.layers.hidden.0.weight",
        "encoder.encoders./a//b.layers.hidden.1.bias",
        "encoder.layers.hidden.0.weight",
        "core.weight_ih",
        "core.initial",
        "policy_head.bias",
        "value_head.weight",
    }
    assert "core.initial" not in build(VECTOR, {"recurrent": {}}).state_dict()


def test_networks_of_plugins_see_observations_as_they_are(plugin):
    REGISTRY.register("network", "sums_of_this_test", plugin("Sum"))
    module = build(IMAGE, {"type": "sums_of_this_test"})
    observation = observations(IMAGE, 3)
    outputs, value, _ = module.differentiable(module.inputs(observation))
    assert (outputs.shape, value.shape) == ((3, 4), (3,))
    seen = module.encoder.module.seen
    assert seen.dtype == torch.uint8
    np.testing.assert_array_equal(seen, observation)
    module = build(SEEING, {"type": plugin("Sum"), **CORE})
    observation = observations(SEEING, 3)
    module.differentiable(module.inputs(observation), memory_for(module, 3, 1))
    seen = module.encoder.module.seen
    assert {path: tensor.dtype for path, tensor in seen.items()} == {
        "a/b": torch.int64,
        "body.0": torch.float32,
        "body.1": torch.int8,
        "values": torch.uint8,
    }
    for leaf in SEEING.leaves():
        np.testing.assert_array_equal(seen[leaf.path], leaf.of(observation))
    module = build(SEEING, {"encoders": {"body.0": {"type": plugin("Sum")}, "values": SMALL_CNN}})
    inputs = module.inputs(observation)
    assert module.differentiable(inputs)[0].shape == (3, 4)
    assert module.state_dict()["encoder.encoders./body/0.module.layer.weight"].shape == (2, 1)


@pytest.mark.parametrize(
    ("name", "seen"), [("Wide", "(5, 3) torch.float32"), ("Whole", "(5, 2) torch.int64"), ("Nothing", "NoneType")]
)
def test_a_plugins_wrong_result_is_named(plugin, name, seen):
    module = build(VECTOR, {"type": plugin(name)})
    with pytest.raises(PluginError) as caught:
        module.differentiable(module.inputs(observations(VECTOR, 5)))
    assert name in caught.value.where
    assert caught.value.value == seen
    assert "(5, 2)" in caught.value.expected


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_networks_of_plugins_can_be_traced_for_export(plugin):
    module = build(VECTOR, {"type": plugin("Sum")}).requires_grad_(False)
    traced = torch.jit.trace(module, torch.zeros(2, 3))
    inputs = module.inputs(observations(VECTOR, 5))
    for got, expected in zip(traced(inputs), module(inputs), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_plugin_without_features_is_named(plugin):
    with pytest.raises(PluginError, match=r"Silent.*features"):
        build(VECTOR, {"type": plugin("Silent")})


def test_a_recurrent_network_needs_its_state():
    module = build(VECTOR, CORE)
    with pytest.raises(TypeError, match="state"):
        module.compute(module.inputs(observations(VECTOR, 5)), ())


def test_inputs_of_another_network_are_refused():
    single, several = build(VECTOR), build(SEEING, {"encoders": {"values": SMALL_CNN}})
    one, many = single.inputs(observations(VECTOR, 2)), several.inputs(observations(SEEING, 2))
    with pytest.raises(TypeError, match="one tensor"):
        single.compute(many, single.prepare())
    with pytest.raises(TypeError, match="several tensors"):
        several.compute(one, several.prepare())


def test_workspaces_of_many_batch_sizes_do_not_mix():
    module = build(FLAT)
    mlp = NumpyMLP(resolve_network({}, FLAT, "network"), FLAT, 4)
    parameters = [parameter.detach().numpy() for parameter in module.parameters()]
    for count in [*range(1, 80), 5, 200, 7]:
        x = observations(FLAT, count, seed=count)
        outputs, value = mlp.forward(parameters, x)
        expected_outputs, expected_value = module.compute_in_torch(module.inputs(x), module.prepare())
        np.testing.assert_allclose(outputs, expected_outputs.detach(), atol=1e-5)
        np.testing.assert_allclose(value[:, 0], expected_value.detach(), atol=1e-5)


def test_the_mlp_takes_no_rows():
    outputs, value = build(VECTOR)(torch.zeros(0, 3))
    assert (outputs.shape, value.shape) == ((0, 4), (0,))


def test_gradients_of_an_overwritten_pass_are_refused():
    module = build(VECTOR)
    first = module(torch.ones(5, 3))
    module(torch.zeros(5, 3))
    with pytest.raises(RuntimeError, match="overwrote"):
        torch.autograd.backward(first, [torch.ones(5, 4), torch.ones(5)])


def test_features_of_the_mlp_are_the_flat_ones():
    module = build(SEEING, {"type": "mlp"})
    observation = observations(SEEING, 4)
    np.testing.assert_array_equal(module.inputs(observation), FlatFeatures(SEEING).of(observation))

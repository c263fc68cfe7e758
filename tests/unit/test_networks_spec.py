"""Network options: defaults by space, and every mistake named with its key path."""

import json
import subprocess
import sys

import pytest

from srl.algorithms.networks.options import OPTIONS, DictOptions, ImpalaOptions, RecurrentOptions
from srl.algorithms.networks.spec import resolve_network, state_of
from srl.api.errors import ExperimentError
from srl.api.keys import KeyTree
from srl.api.options import OptionsCheck
from srl.api.registry import REGISTRY
from srl.api.spaces import SpaceSpec

VECTOR = SpaceSpec("box", (4,), "float32")
IMAGE = SpaceSpec("box", (4, 84, 84), "uint8", low=0, high=255)
LAST = SpaceSpec("box", (84, 84, 12), "uint8", low=0, high=255)
SMALL = SpaceSpec("box", (7, 7, 3), "uint8", low=0, high=255)
DISCRETE = SpaceSpec("discrete", (), "int64", n=5)
CHOICES = SpaceSpec("multi_discrete", (2,), "int64", nvec=(2, 3))
BINARY = SpaceSpec("multi_binary", (3,), "int8")
FLAT = SpaceSpec.nested("dict", {"speed": VECTOR, "gear": DISCRETE})
SEEING = SpaceSpec.nested("dict", {"camera": IMAGE, "body": SpaceSpec.nested("tuple", {"0": VECTOR, "1": BINARY})})

ENCODER = """
import torch
from pydantic import BaseModel, Field

class Options(BaseModel):
    width: int = Field(default=3, ge=1)

class Doubling(torch.nn.Module):
    Options = Options
    def __init__(self, observation, options):
        super().__init__()
        self.features = options.width
    def forward(self, inputs):
        return 2 * inputs[:, : self.features]

class Bare(torch.nn.Module):
    features = 1

class Clashing(Bare):
    class Options(BaseModel):
        recurrent: int = 1

class Odd(Bare):
    Options = 7

def function():
    pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "encoders.py"
    path.write_text(ENCODER)
    return str(path)


def resolve(network, observation=VECTOR):
    resolved = resolve_network(network, observation, "net")
    assert json.loads(json.dumps(resolved)) == resolved
    assert resolve_network(resolved, observation, "net") == resolved
    return resolved


def problems(network, observation=VECTOR):
    with pytest.raises(ExperimentError) as caught:
        resolve_network(network, observation, "net")
    return {problem.where: problem for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("observation", "kind"),
    [
        (VECTOR, "mlp"),
        (IMAGE, "nature_cnn"),
        (SMALL, "mlp"),
        (DISCRETE, "mlp"),
        (CHOICES, "mlp"),
        (BINARY, "mlp"),
        (FLAT, "mlp"),
        (SEEING, "dict"),
    ],
)
def test_defaults_by_space(observation, kind):
    assert resolve({}, observation)["type"] == kind


def test_defaults_of_options():
    assert resolve({}) == {"type": "mlp", "hidden": [64, 64], "activation": "tanh", "shared": False}
    assert resolve({}, IMAGE) == {"type": "nature_cnn", "features": 512}
    assert resolve({"type": "impala_resnet"}, IMAGE) == {
        "type": "impala_resnet",
        "channels": [16, 32, 32],
        "features": 256,
    }
    mlp = {"type": "mlp", "hidden": [64, 64], "activation": "tanh"}
    assert resolve({}, SEEING) == {
        "type": "dict",
        "encoders": {"body.0": mlp, "body.1": mlp, "camera": {"type": "nature_cnn", "features": 512}},
        "hidden": [256],
        "activation": "relu",
    }


def test_encoders_by_path():
    resolved = resolve(
        {"type": "dict", "encoders": {"camera": {"type": "impala_resnet", "channels": [4]}, "body.1": {"hidden": []}}},
        SEEING,
    )
    assert resolved["encoders"]["camera"] == {"type": "impala_resnet", "channels": [4], "features": 256}
    assert resolved["encoders"]["body.1"] == {"type": "mlp", "hidden": [], "activation": "tanh"}
    numbers = SpaceSpec.nested("tuple", {"0": VECTOR, "1": IMAGE})
    assert resolve({"encoders": {0: {"hidden": [7]}}}, numbers)["encoders"]["0"]["hidden"] == [7]  # keys from YAML


def test_recurrent():
    resolved = resolve({"recurrent": {}})
    assert resolved["recurrent"] == {"type": "lstm", "size": 128, "rows": 16, "learned_initial_state": False}
    assert "shared" not in resolved
    assert state_of(resolved) == (256, 16)
    assert state_of(resolve({"recurrent": {"type": "gru", "size": 10, "rows": 4}}, IMAGE)) == (10, 4)
    assert state_of(resolve({"recurrent": None})) == (0, 0)
    assert resolve({"shared": True, "recurrent": {}}) == resolved


def test_options_are_described():
    for model in (*OPTIONS.values(), DictOptions, ImpalaOptions, RecurrentOptions):
        assert all(field.description for field in model.model_fields.values())


def test_every_problem_at_once():
    found = problems(
        {
            "encoders": {
                "camera": {"type": "nature_cn"},
                "camra": {},
                "body.0": {"hiden": [3]},
                "body.1": {"type": "impala_resnet"},
            },
            "hidden": [0],
            "hiddn": 1,
            "recurrent": {"type": "lstn", "rows": 0, "sise": 3},
        },
        SEEING,
    )
    # Of the parts nothing is said while their table itself has mistakes.
    assert set(found) == {"net.hidden.0", "net.hiddn", "net.recurrent.type", "net.recurrent.rows", "net.recurrent.sise"}
    assert "'size'" in found["net.recurrent.sise"].hint
    found = problems(
        {
            "encoders": {
                "camera": {"type": "nature_cn"},
                "camra": {},
                "body.0": {"hiden": [3]},
                "body.1": {"type": "impala_resnet"},
            }
        },
        SEEING,
    )
    assert set(found) == {
        "net.encoders.camera.type",
        "net.encoders.camra",
        "net.encoders.body.0.hiden",
        "net.encoders.body.1",
    }
    assert "'nature_cnn'" in found["net.encoders.camera.type"].hint
    assert "dict" not in found["net.encoders.camera.type"].expected
    assert "'camera'" in found["net.encoders.camra"].hint
    assert "body.0, body.1, camera" in found["net.encoders.camra"].expected
    assert "'hidden'" in found["net.encoders.body.0.hiden"].hint
    assert "MultiBinary(3,)" in str(found["net.encoders.body.1"])


@pytest.mark.parametrize("kind", ["nature_cnn", "impala_resnet"])
def test_images_with_channels_last_get_the_hint(kind):
    for found in (problems({"type": kind}, LAST)["net"], problems({"type": kind}, VECTOR)["net"]):
        assert kind in found.what
        assert ("transpose" in found.hint) == ("Box(84, 84, 12)" in found.value)
    assert "transpose" in problems({}, LAST)["net"].hint
    nested = SpaceSpec.nested("dict", {"camera": LAST})
    assert "transpose" in problems({}, nested)["net.encoders.camera"].hint


def test_images_may_be_small_for_impala():
    assert resolve({"type": "impala_resnet"}, SpaceSpec("box", (3, 8, 9), "uint8"))["type"] == "impala_resnet"
    assert "8 high" in problems({"type": "impala_resnet"}, SpaceSpec("box", (3, 7, 9), "uint8"))["net"].expected


def test_spaces_that_do_not_fit_say_what_would():
    assert "mlp" in problems({"type": "dict"}, VECTOR)["net"].hint
    assert "dict" in problems({"type": "nature_cnn"}, SEEING)["net"].hint


@pytest.mark.parametrize(
    "network", [{"type": 5}, {"type": None}, {"type": "mpl"}, {"type": "nature"}, {"type": "impala"}, {"type": "a b"}]
)
def test_unknown_types(network):
    found = problems(network)["net.type"]
    assert "mlp" in found.expected
    assert found.hint


@pytest.mark.parametrize(
    ("network", "where"),
    [
        ({"recurrent": 5}, "net.recurrent"),
        ({"recurrent": {"size": 0}}, "net.recurrent.size"),
        ({"recurrent": {}, "shared": False}, "net.shared"),
        ({"recurrent": {}, "shard": False}, "net.shard"),
        ({"hidden": []}, "net.hidden"),
    ],
)
def test_bad_values(network, where):
    assert set(problems(network)) == {where}


def test_bad_values_of_parts():
    for encoders, where in ((5, "net.encoders"), ({"camera": 5}, "net.encoders.camera")):
        assert set(problems({"encoders": encoders}, SEEING)) == {where}


def test_networks_of_plugins(file):
    target = f"{file}:Doubling"
    assert resolve({"type": target}) == {"type": target, "width": 3}
    assert resolve({"type": target, "width": 2, "recurrent": {"type": "gru"}})["width"] == 2
    part = resolve({"encoders": {"body.0": {"type": target, "width": 4}}}, SEEING)["encoders"]["body.0"]
    assert part == {"type": target, "width": 4}
    assert resolve({"type": f"{file}:Bare"}) == {"type": f"{file}:Bare"}


def test_networks_of_plugins_by_name(file):
    REGISTRY.register("network", "doubling_of_this_test", f"{file}:Doubling")
    assert resolve({"type": "doubling_of_this_test"}) == {"type": f"{file}:Doubling", "width": 3}
    assert "'doubling_of_this_test'" in problems({"type": "doubling_of_this_tst"})["net.type"].hint


def test_mistakes_about_plugins(file):
    assert "'width'" in problems({"type": f"{file}:Doubling", "widht": 2})["net.widht"].hint  # ignored by the model
    assert set(problems({"type": f"{file}:Doubling", "width": 0})) == {"net.width"}
    assert set(problems({"type": f"{file}:Bare", "width": 0})) == {"net.width"}
    assert "'Doubling'" in problems({"type": f"{file}:Doublin"})["net.type"].hint
    assert "no such file" in problems({"type": f"{file[:-3]}_none.py:Doubling"})["net.type"].what
    assert "recurrent" in problems({"type": f"{file}:Clashing"})["net.type"].what
    for name in ("Odd", "function"):
        assert problems({"type": f"{file}:{name}"})["net.type"].what == "not a network"


def test_no_plugins_admits_built_in_networks_only(file):
    """Nothing may be imported to find that out."""
    networks = {
        "one": {"type": f"{file}:None"},
        "two": {"type": "of_some_package"},
        "three": {"type": "dict", "encoders": {"a": {"type": "module:Attr"}, "b": {"type": "other"}, "c": {}}},
        "four": {"type": "dict", "encoders": {"a": {"type": "impala_resnet"}}, "recurrent": {"type": "lstm"}},
        "five": {"type": f"{file}:Doubling", "table": "module:Attr"},
    }
    raw = {"policies": {name: {"network": network} for name, network in networks.items()}}
    tree = KeyTree(raw, lambda *_: None)
    assert OptionsCheck(allow_plugins=True).problems(raw, tree, {}) == []
    found = OptionsCheck(allow_plugins=False).problems(raw, tree, {})
    assert [problem.where for problem in found] == [
        "policies.one.network.type",
        "policies.two.network.type",
        "policies.three.network.encoders.a.type",
        "policies.three.network.encoders.b.type",
        "policies.five.network.type",
        "policies.five.network.table",
    ]
    assert all("--no-plugins" in problem.what for problem in found)


def test_built_in_networks_are_resolved_without_torch():
    code = (
        "import sys; from srl.algorithms.networks.spec import resolve_network; from srl.api.spaces import SpaceSpec\n"
        "image, vector = SpaceSpec('box', (4, 84, 84), 'uint8'), SpaceSpec('box', (4,), 'float32')\n"
        "resolve_network({'recurrent': {}}, SpaceSpec.nested('dict', {'a': image, 'b': vector}), '')\n"
        "resolve_network({'type': 'impala_resnet'}, image, '')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0

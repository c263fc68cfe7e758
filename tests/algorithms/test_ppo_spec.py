"""The policy spec and network options, without torch."""

import dataclasses
import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.plugin import PPO
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError
from srl.api.policy import NoiseSpec, PolicySpec
from srl.api.spaces import SpaceSpec

VECTOR = SpaceSpec("box", (4,), "float32")
IMAGE = SpaceSpec("box", (4, 84, 84), "uint8", low=0, high=255)
ACTIONS = SpaceSpec("discrete", (), "int64", n=6, start=-1)


def environment(observation=VECTOR, action=ACTIONS):
    return EnvironmentSpec("Toy-v0", observation, action)


def resolve(network=None, observation=VECTOR, action=ACTIONS, **options):
    return PPO.policy_spec("learner", PPOConfig(**options), network or {}, environment(observation, action))


def problem(*arguments, **options):
    with pytest.raises(ExperimentError) as caught:
        resolve(*arguments, **options)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_vectors_get_an_mlp_in_numpy():
    spec = resolve()
    assert spec.network == {"type": "mlp", "hidden": [64, 64], "activation": "tanh", "shared": False}
    assert (spec.backend, spec.acting_dtype) == ("numpy", "float32")
    assert spec.noise == NoiseSpec("uniform", (1,))
    assert [(extra.name, extra.shape, extra.dtype) for extra in spec.extras] == [
        ("log_probability", (), "float32"),
        ("value", (), "float32"),
    ]
    assert (spec.action_array.shape, spec.action_array.dtype) == ((), "int64")


def test_images_get_the_cnn_in_torch():
    spec = resolve(observation=IMAGE, precision="bf16")
    assert spec.network == {"type": "nature_cnn", "features": 512}
    assert (spec.backend, spec.acting_dtype) == ("torch", "bfloat16")


def test_specs_travel_as_json():
    spec = resolve({"hidden": [32], "shared": True})
    assert PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_unknown_keys_are_named_with_the_nearest():
    found = problem({"hiden": [64]})
    assert found.where == "policies.learner.network.hiden"
    assert "'hidden'" in found.hint
    found = problem({"type": "nature_cn"}, observation=IMAGE)
    assert found.where == "policies.learner.network.type"
    assert "'nature_cnn'" in found.hint


@pytest.mark.parametrize("network", [{"hidden": [0]}, {"hidden": []}, {"activation": "gelu"}, {"hidden": ["x"]}])
def test_bad_values_are_named(network):
    assert problem(network).where.startswith(f"policies.learner.network.{next(iter(network))}")


@pytest.mark.parametrize("shape", [(4,), (84, 84), (4, 20, 20), (84, 84, 3)])
def test_what_the_cnn_cannot_take(shape):
    found = problem({"type": "nature_cnn"}, observation=dataclasses.replace(IMAGE, shape=shape))
    assert found.where == "policies.learner.network"
    assert str(shape) in str(found)
    assert ("transpose" in found.hint) == (shape == (84, 84, 3))


def box(*shape, dtype="float32", **bounds):
    return SpaceSpec("box", shape, dtype, **bounds)


NESTED = SpaceSpec.nested("dict", {"move": box(2, low=-1.0, high=1.0), "jump": SpaceSpec("discrete", (), "int64", n=2)})


@pytest.mark.parametrize(
    ("action", "array", "noise", "transform"),
    [
        (box(2, low=-1.0, high=1.0), ((2,), "float32"), NoiseSpec("normal", (2,)), "clip"),
        (box(2, dtype="float64", low=-1.0), ((2,), "float32"), NoiseSpec("normal", (2,)), "clip"),
        (box(3), ((3,), "float32"), NoiseSpec("normal", (3,)), "none"),
        (SpaceSpec("multi_discrete", (2,), "int64", nvec=(3, 4)), ((2,), "int64"), NoiseSpec("uniform", (2,)), "none"),
        (SpaceSpec("multi_binary", (4,), "int8"), ((4,), "int8"), NoiseSpec("uniform", (4,)), "none"),
        (NESTED, ((), "()i8,(2,)f4"), None, "clip"),
    ],
)
def test_every_action_space(action, array, noise, transform):
    spec = resolve(action=action)
    assert (spec.action_array.shape, spec.action_array.dtype) == array
    assert noise is None or spec.noise == noise
    assert spec.action_transform == transform
    assert PolicySpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_integer_boxes_have_no_distribution():
    found = problem(action=box(2, dtype="int32", low=0, high=7))
    assert found.where == "policies.learner.algorithm"
    for text in ("Box(2,) int32", "MultiDiscrete"):
        assert text in str(found)


def test_tanh_needs_bounds():
    assert resolve(action=box(2, low=-1.0, high=2.0), action_transform="tanh_affine").action_transform == "tanh_affine"
    found = problem(action=box(2, low=-1.0), action_transform="tanh_affine")
    assert found.where == "policies.learner.algorithm.action_transform"


def test_discrete_observations_are_flat_features():
    assert resolve(observation=SpaceSpec("discrete", (), "int64", n=16)).backend == "numpy"


def test_masks_are_part_of_the_policy_where_the_environment_gives_them():
    masked = dataclasses.replace(environment(), action_mask=True)
    assert PPO.policy_spec("learner", PPOConfig(), {}, masked).action_mask == 6
    assert resolve().action_mask == 0


def test_recurrent_policies_compute_in_torch_and_divide_blocks():
    recurrent = {"recurrent": {"type": "lstm", "size": 8, "rows": 16}}
    spec = resolve(recurrent, rows=32)
    assert (spec.backend, spec.state_size, spec.state_rows) == ("torch", 16, 16)
    found = problem(recurrent, rows=40)
    assert found.where == "policies.learner.network.recurrent.rows"
    assert "40" in found.expected


def test_two_scales_of_values_are_refused():
    with pytest.raises(ValidationError, match="popart"):
        PPOConfig(popart=True, normalize_returns=True)


def test_bf16_is_for_cnns():
    assert problem(precision="bf16").where == "policies.learner.algorithm.precision"


def test_options_are_checked():
    for wrong in ({"gama": 0.9}, {"gamma": 1.5}, {"learning_rate": 0}, {"minibatch_rows": 0}, {"precision": "fp16"}):
        with pytest.raises(ValidationError):
            PPOConfig(**wrong)
    assert all(field.description for field in PPOConfig.model_fields.values())


@pytest.mark.parametrize("name", ["learning_rate", "adam_epsilon", "entropy_coefficient", "value_coefficient"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_would_make_every_step_useless_is_no_number(name, value):
    with pytest.raises(ValidationError, match=name):
        PPOConfig(**{name: value})


def test_requirements():
    requirements = PPO.requirements(PPOConfig(rows=32))
    assert (requirements.rows, requirements.mode, requirements.on_policy) == (32, "fragment", True)
    assert requirements.blocks_per_update is None


def test_an_actor_needs_no_torch():
    code = (
        "import sys, srl.algorithms.ppo.plugin, srl.algorithms.ppo.acting, srl.system.noise, srl.system.actions;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_bounds_of_some_elements_are_cut_at_and_too_few_for_tanh():
    some = SpaceSpec("box", (2,), "float32", low=-1.0, high=(1.0, float("inf")))
    assert resolve(action=some).action_transform == "clip"
    assert "tanh_affine needs bounds" in str(problem(action=some, action_transform="tanh_affine"))

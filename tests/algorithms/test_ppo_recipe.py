"""PPO's recipe: what it chooses for which spaces, and that every choice is an experiment that resolves."""

import pytest

from srl.algorithms.ppo.plugin import PPO
from srl.api.environment import EnvironmentSpec
from srl.api.experiment import Experiment
from srl.api.loading import experiment_from_mapping, load_experiment
from srl.api.spaces import SpaceSpec
from srl.distributed.graph import resolve


def box(*shape, dtype="float32", **bounds):
    return SpaceSpec("box", shape, dtype, **bounds)


def discrete(count):
    return SpaceSpec("discrete", (), "int64", n=count)


def nested(**entries):
    return SpaceSpec.nested("dict", entries)


VECTOR = box(4)
CHOICE = discrete(3)
FORCE = box(2, low=-1.0, high=1.0)
IMAGE = box(4, 84, 84, dtype="uint8", low=0, high=255)
COLOUR = box(96, 96, 3, dtype="uint8", low=0, high=255)
PLAIN = {"type": "gymnasium", "id": "CartPole-v1"}
STACK = {"type": "frame_stack", "frames": 4, "concatenate": True}


def made(observation=VECTOR, action=CHOICE, environment=PLAIN, cores=2, **parts):
    mapping = PPO.recipe(environment, EnvironmentSpec("ns/Toy v0", observation, action, **parts), cores)
    return Experiment.model_validate(mapping)


def options(*arguments, **parts):
    config = made(*arguments, **parts).policies["learner"].algorithm.options
    return PPO.config.model_validate(config)


def test_vectors_and_choices():
    chosen = options()
    assert (chosen.normalize_observations, chosen.normalize_returns) == (True, True)
    assert (chosen.entropy_coefficient, chosen.learning_rate_schedule) == (0.01, "linear")


@pytest.mark.parametrize("action", [FORCE, nested(move=FORCE, jump=CHOICE)])
def test_continuous_control_is_trained_as_halfcheetah_is(action):
    bundled = PPO.config.model_validate(load_experiment("halfcheetah_ppo").policies["main"].algorithm.options)
    assert options(action=action) == bundled
    experiment = made(action=action)
    assert experiment.streams["samples"].max_policy_lag == 0
    assert experiment.workers["actor"].environments == 8


def test_atari_is_trained_as_pong_is():
    bundled = PPO.config.model_validate(load_experiment("atari_pong_ppo").policies["main"].algorithm.options)
    environment = {"type": "atari", "game": "pong"}
    chosen = options(IMAGE, discrete(6), environment, frames_per_step=4)
    assert chosen == bundled.model_copy(update={"precision": "fp32"}), "bf16 is slow on many processors"
    experiment = made(IMAGE, discrete(6), environment)
    assert experiment.environment.options == {"game": "pong"}
    assert experiment.stop.env_steps == 10_000_000


@pytest.mark.parametrize(
    ("environment", "is_clipped"),
    [
        ({"type": "atari", "game": "pong"}, True),
        ({"type": "atari", "game": "pong", "reward_clipping": False}, False),
        ({"type": "envpool", "id": "Pong-v5", "kwargs": {"reward_clip": True}}, True),
        ({"type": "envpool", "id": "Pong-v5"}, False),
        ({**PLAIN, "wrappers": [{"type": "reward_clip"}]}, True),
        (PLAIN, False),
    ],
)
def test_returns_are_normalised_where_rewards_may_have_any_size(environment, is_clipped):
    assert options(IMAGE, environment=environment).normalize_returns is not is_clipped


@pytest.mark.parametrize(
    ("observation", "is_normalised"),
    [
        (VECTOR, True),
        (discrete(16), False),
        (box(8, dtype="uint8"), False),
        (IMAGE, False),
        (box(3, 64, 64), False),
        (nested(camera=IMAGE, body=VECTOR), True),
        (nested(camera=IMAGE, room=discrete(4)), False),
    ],
)
def test_observations_are_normalised_where_there_are_floats_that_are_no_images(observation, is_normalised):
    assert options(observation).normalize_observations is is_normalised


@pytest.mark.parametrize(
    ("environment", "observation", "wrappers"),
    [
        (PLAIN, COLOUR, [{"type": "channels_first"}, STACK]),
        (PLAIN, box(3, 96, 96, dtype="uint8"), [STACK]),
        (PLAIN, IMAGE, [STACK]),
        (PLAIN, box(12, 84, 84, dtype="uint8"), None),
        ({**PLAIN, "wrappers": [{"type": "reward_scale", "scale": 2}]}, COLOUR, [
            {"type": "reward_scale", "scale": 2}, {"type": "channels_first"},
        ]),
        ({"type": "gymnasium", "entry": "a.b:C"}, COLOUR, [{"type": "channels_first"}]),
        ({"type": "gymnasium", "entry": "a.b:C"}, IMAGE, None),
        ({"type": "envpool", "id": "Pong-v5"}, IMAGE, None),
        (PLAIN, VECTOR, None),
        (PLAIN, nested(camera=IMAGE), None),
    ],
)  # fmt: skip
def test_images_get_the_form_that_networks_take(environment, observation, wrappers):
    assert made(observation, environment=environment).environment.options.get("wrappers") == wrappers


@pytest.mark.parametrize(
    ("observation", "action", "environment", "expected"),
    [
        (nested(action_mask=box(3, dtype="int8"), board=VECTOR), CHOICE, PLAIN, "observation"),
        (nested(action_mask=box(4, dtype="int8"), board=VECTOR), CHOICE, PLAIN, None),
        (nested(action_mask=box(3, dtype="int8")), CHOICE, PLAIN, None),
        (nested(action_mask=box(3, dtype="int8"), board=VECTOR), FORCE, PLAIN, None),
        (nested(action_mask=box(3), board=VECTOR), CHOICE, {**PLAIN, "action_mask": None}, None),
        (nested(board=VECTOR), CHOICE, PLAIN, None),
    ],
)
def test_an_entry_that_can_only_be_a_mask_is_one(observation, action, environment, expected):
    assert made(observation, action, environment).environment.options.get("action_mask") == expected


def test_a_mask_is_no_observation_to_be_normalised():
    observation = nested(action_mask=box(3), board=discrete(9))
    assert not options(observation).normalize_observations
    assert options(observation, environment={**PLAIN, "action_mask": None}).normalize_observations


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 5, 64])
@pytest.mark.parametrize("action", [CHOICE, FORCE])
def test_an_update_is_as_large_on_every_machine(cores, action):
    actors = made(action=action, cores=cores).workers["actor"]
    assert actors.count <= max(1, cores - 1)
    assert actors.count * actors.environments == made(action=action, cores=1).workers["actor"].environments


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (VECTOR, CHOICE),
        (discrete(16), SpaceSpec("multi_discrete", (2,), "int64", nvec=(3, 4))),
        (VECTOR, SpaceSpec("multi_binary", (3,), "int8")),
        (VECTOR, FORCE),
        (IMAGE, CHOICE),
        (box(12, 96, 96, dtype="uint8"), FORCE),
        (nested(camera=IMAGE, body=VECTOR), nested(move=FORCE, jump=CHOICE)),
    ],
)
def test_what_is_chosen_resolves_and_is_scored(observation, action):
    spec = EnvironmentSpec("ns/Toy v0", observation, action)
    experiment = experiment_from_mapping(PPO.recipe(PLAIN, spec, 2))
    graph = resolve(experiment, spec)
    assert [worker.kind for worker in graph.workers].count("evaluator") == 1
    assert experiment.name == "ppo-ns_Toy_v0"

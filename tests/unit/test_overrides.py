"""``key.path=value``: the same validation as the file, and the nearest path for one that does not exist."""

import copy

import pytest

from srl.api.errors import ExperimentError
from srl.api.experiment import EvaluatorGroup
from srl.api.loading import experiment_from_mapping

BASE = {
    "name": "small",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
    "streams": {"samples": {"kind": "sample"}},
    "workers": {
        "actors": {"kind": "actor", "environments": 4, "agents": [{"policy": "main", "samples": "samples"}]},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        "evaluator": {"kind": "evaluator", "policy": "main"},
    },
    "stop": {"updates": 3},
}


def load(*overrides):
    return experiment_from_mapping(BASE, overrides)


def problems(*overrides):
    with pytest.raises(ExperimentError) as caught:
        load(*overrides)
    return {problem.where: problem for problem in caught.value.problems}


def test_values_are_yaml():
    experiment = load(
        "seed=7",
        "stop.env_steps=1e6",
        "stop.updates=",
        "lockstep=true",
        "checkpoints.keep=3",
        "streams.samples.max_policy_lag=0",
        "policies.main.algorithm.learning_rate=1e-3",
        "policies.main.network={hidden: [64, 64]}",
        "workers.actors.agents.0.match=agent",
        "environment.kwargs.sutton_barto_reward=true",
    )
    assert experiment.seed == 7
    assert experiment.stop.env_steps == 1_000_000
    assert experiment.stop.updates is None
    assert experiment.lockstep is True
    assert experiment.checkpoints.keep == 3
    assert experiment.streams["samples"].max_policy_lag == 0
    assert experiment.policies["main"].algorithm.options["learning_rate"] == 0.001
    assert experiment.policies["main"].network == {"hidden": [64, 64]}
    assert experiment.workers["actors"].agents[0].match == "agent"
    assert experiment.environment.options["kwargs"] == {"sutton_barto_reward": True}


def test_later_ones_win_and_the_original_is_untouched():
    before = copy.deepcopy(BASE)
    assert load("seed=1", "seed=2").seed == 2
    assert before == BASE


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("sed=1", "seed"),
        ("stop.env_step=1", "stop.env_steps"),
        ("workers.actor.count=2", "workers.actors.count"),
        ("workers.actors.enviroments=2", "workers.actors.environments"),
        ("worker.actors.count=2", "workers.actors.count"),
        ("policies.main.algorithm.gama=.9", "policies.main.algorithm.gamma"),
        ("gamma=.9", "policies.main.algorithm.gamma"),
        ("learning_rate=1e-3", "policies.main.algorithm.learning_rate"),
        ("streams.sample.max_policy_lag=1", "streams.samples.max_policy_lag"),
        ("workers.actors.agents.1.match=x", "workers.actors.agents.0.match"),
    ],
)
def test_unknown_path_gets_the_nearest(override, nearest):
    found = problems(override)
    problem = found[override.partition("=")[0]]
    assert f"'{nearest}'" in problem.hint
    assert len(found) == 1


def test_wrong_values_are_refused_like_in_the_file():
    found = problems("stop.updates=many", "policies.main.algorithm.rows=0", "workers.actors.ring_groups=0")
    assert found["stop.updates"].what == "wrong value (override)"
    assert found["stop.updates"].value == "many"
    assert found["policies.main.algorithm.rows"].expected == "at least 1"
    assert len(found) == 3


def test_structure_is_checked_after_overrides():
    assert "does not divide" in problems("workers.actors.ring_groups=3")["workers.actors.ring_groups"].what


@pytest.mark.parametrize("text", ["seed", "=3", "stop..updates=1"])
def test_what_is_not_an_override(text):
    assert problems(text)[""].expected.startswith("key.path=value")


def test_value_that_is_not_yaml():
    assert "not valid YAML" in problems("policies.main.network={a: [1")["policies.main.network"].what


def test_null_removes_a_group_and_a_mapping_adds_one():
    assert "evaluator" not in load("workers.evaluator=null").workers
    added = load("workers.second={kind: evaluator, policy: main, episodes: 5}").workers["second"]
    assert isinstance(added, EvaluatorGroup)
    assert added.episodes == 5


def test_type_of_algorithm_by_override_brings_its_own_options():
    found = problems("policies.main.algorithm.type=pp0", "policies.main.algorithm.anything=1")
    assert "'ppo'" in found["policies.main.algorithm.type"].hint

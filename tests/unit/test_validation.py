"""The graph's structure, and how spaces, agents and policy outputs agree: one refusal with everything wrong."""

import copy
from dataclasses import replace

import pytest

from srl.algorithms.ppo.plugin import PPO
from srl.api.algorithm import DataRequirements
from srl.api.block import FieldSpec
from srl.api.environment import EnvironmentSpec
from srl.api.errors import ExperimentError, UsageError
from srl.api.experiment import Experiment
from srl.api.spaces import SpaceSpec
from srl.api.structure import structure_problems
from srl.distributed.graph import resolve
from srl.distributed.memory import Room

CARTPOLE = EnvironmentSpec("CartPole-v1", SpaceSpec("box", (4,), "float32"), SpaceSpec("discrete", (), "int64", n=2))

BASE = {
    "name": "small",
    "environment": {"type": "gymnasium", "id": "CartPole-v1"},
    "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
    "streams": {"samples": {"kind": "sample"}, "decisions": {"kind": "inference", "policy": "main"}},
    "workers": {
        "actors": {
            "kind": "actor",
            "environments": 4,
            "agents": [{"policy": "main", "samples": "samples", "inference": "decisions"}],
        },
        "policy": {"kind": "policy", "serves": "decisions"},
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        "evaluator": {"kind": "evaluator", "policy": "main", "interval_env_steps": 100},
    },
    "stop": {"updates": 3},
}


def experiment(*changes):
    """The base with (key path, value) changes; a value of None removes the key."""
    raw = copy.deepcopy(BASE)
    for path, value in changes:
        target, keys = raw, path.split(".")
        for key in keys[:-1]:
            target = target[int(key)] if isinstance(target, list) else target.setdefault(key, {})
        if value is None:
            del target[keys[-1]]
        else:
            target[keys[-1]] = value
    return Experiment.model_validate(raw)


def structure(*changes):
    return [(problem.where, str(problem)) for problem in structure_problems(experiment(*changes))]


def resolving(made, environment=CARTPOLE):
    with pytest.raises(ExperimentError) as caught:
        resolve(made, environment, memory=lambda limit: Room(1 << 30, "a test"))
    return {problem.where: problem for problem in caught.value.problems}


def sound(*changes):
    return resolve(experiment(*changes), CARTPOLE, cores=1, memory=lambda limit: Room(1 << 30, "a test"))


def test_the_base_is_sound():
    assert structure() == []


@pytest.mark.parametrize(
    ("changes", "where", "text"),
    [
        # references, with the nearest name
        ([("workers.actors.agents.0.policy", "mian")], "workers.actors.agents.0.policy", "'main'"),
        ([("workers.actors.agents.0.samples", "sampels")], "workers.actors.agents.0.samples", "'samples'"),
        ([("workers.actors.agents.0.inference", "decision")], "workers.actors.agents.0.inference", "'decisions'"),
        ([("workers.trainer.policy", "mian")], "workers.trainer.policy", "'main'"),
        ([("workers.trainer.samples", "sample")], "workers.trainer.samples", "'samples'"),
        ([("workers.policy.serves", "decision")], "workers.policy.serves", "'decisions'"),
        ([("workers.evaluator.policy", "mian")], "workers.evaluator.policy", "'main'"),
        ([("streams.decisions.policy", "mian")], "streams.decisions.policy", "'main'"),
        # kinds
        ([("workers.trainer.samples", "decisions")], "workers.trainer.samples", "kind 'inference'"),
        ([("workers.actors.agents.0.inference", "samples")], "workers.actors.agents.0.inference", "kind 'sample'"),
        # both ends
        ([("workers.actors.agents.0.inference", "inline")], "streams.decisions", "no agents ask it"),
        ([("workers.policy", None)], "streams.decisions", "no policy group serves it"),
        ([("workers.trainer", None)], "streams.samples", "no trainer group consumes it"),
        ([("workers.actors", None)], "streams.samples", "no agents send to it"),
        ([("workers.more", {"kind": "policy", "serves": "decisions"})], "streams.decisions", "more than one"),
        ([("streams.inline", {"kind": "sample"})], "streams.inline", "Rename"),
        # one trainer per policy
        ([("workers.trainer", None)], "policies.main", "exactly one trainer group"),
        ([("policies.idle", {"algorithm": {"type": "ppo"}})], "policies.idle", "exactly one trainer group"),
        ([("workers.trainer.count", 2), ("placement", "fused")], "workers.trainer.count", "placement: fused"),
        ([("workers.trainer.count", 2), ("transport", "in_process")], "workers.trainer.count", "transport: in_process"),
        # actors
        ([("workers.actors.ring_groups", 3)], "workers.actors.ring_groups", "one of 1, 2, 4"),
        ([("workers.actors.agents.0.match", "(")], "workers.actors.agents.0.match", "not a regular expression"),
        # ends
        ([("stop.updates", None)], "stop", "never end"),
        (
            [("workers.evaluator.interval_env_steps", None), ("stop.evaluation_return", 1.0)],
            "stop.evaluation_return",
            "interval_env_steps",
        ),
        # lockstep
        ([("lockstep", True), ("stop", {"wall_seconds": 9})], "stop", "env_steps or updates"),
        ([("lockstep", True), ("stop", {"evaluation_return": 9})], "stop", "env_steps or updates"),
        # placement and transport
        ([("placement", "fused"), ("transport", "shared_memory")], "transport", "placement: processes"),
        ([("placement", "fused"), ("transport", "tcp")], "transport", "placement: processes"),
        ([("placement", "processes"), ("transport", "in_process")], "transport", "placement: fused"),
    ],
)
def test_one_problem_is_named(changes, where, text):
    found = structure(*changes)
    assert any(place == where and text in message for place, message in found), found


@pytest.mark.parametrize(
    "changes",
    [
        [("placement", "fused"), ("transport", "in_process")],
        [("placement", "fused")],
        [("placement", "processes"), ("transport", "tcp")],
        [("transport", "shared_memory")],
        [("lockstep", True)],
        [("stop", {"evaluation_return": 475.0})],
        [("workers.evaluator", None)],
    ],
)
def test_what_is_allowed(changes):
    assert structure(*changes) == []


def test_lockstep_needs_a_bound():
    raw = experiment(("lockstep", True)).model_dump()
    raw["streams"]["samples"]["max_policy_lag"] = None
    found = structure_problems(Experiment.model_validate(raw))
    assert [problem.where for problem in found] == ["streams.samples.max_policy_lag"]


def test_agents_of_one_stream_share_the_trainers_policy():
    other = {"kind": "trainer", "policy": "other", "samples": "more"}
    found = structure(
        ("policies.other", {"algorithm": {"type": "ppo"}}),
        ("streams.more", {"kind": "sample"}),
        ("workers.other", other),
        ("workers.actors.agents.0.samples", "more"),
    )
    assert any(where == "workers.actors.agents.0.policy" and "'other'" in text for where, text in found)


def test_a_trial_trains_one_policy():
    """Two would write their checkpoints into one directory, and the first to reach its budget would end both."""
    two = experiment(
        ("policies.other", {"algorithm": {"type": "ppo"}}),
        ("streams.more", {"kind": "sample"}),
        ("workers.more", {"kind": "actor", "environments": 4, "agents": [{"policy": "other", "samples": "more"}]}),
        ("workers.other", {"kind": "trainer", "policy": "other", "samples": "more"}),
    )
    assert structure_problems(two) == []
    assert set(resolving(two)) == {"policies"}


def test_everything_wrong_comes_at_once():
    found = structure(
        ("workers.actors.ring_groups", 3),
        ("workers.evaluator.policy", "mian"),
        ("workers.trainer.count", 2),
        ("placement", "fused"),
        ("stop.updates", None),
    )
    assert {where for where, _ in found} >= {
        "workers.actors.ring_groups",
        "workers.evaluator.policy",
        "workers.trainer.count",
        "stop",
    }


def test_resolution_repeats_the_structure_for_experiments_made_in_python():
    assert "workers.actors.ring_groups" in resolving(experiment(("workers.actors.ring_groups", 3)))


def test_an_updates_blocks_must_be_dealt_evenly_over_the_trainer_ranks():
    problem = resolving(experiment(("workers.actors.count", 3), ("workers.trainer.count", 2)))["workers.trainer.count"]
    assert "3 blocks per update cannot be dealt evenly over 2 trainer ranks" in problem.what
    assert "workers.actors.count" in problem.hint
    graph = sound(("workers.actors.count", 4), ("workers.trainer.count", 2))
    assert (graph.flow["samples"]["blocks_per_update"], graph.flow["samples"]["ranks"]) == (4, 2)
    assert graph.flow["samples"]["slots"] == sound(("workers.actors.count", 2)).flow["samples"]["slots"]
    assert graph.needs[0].slots == 2 * graph.flow["samples"]["slots"]
    assert graph.placement == "processes"


def test_in_lockstep_so_must_the_ring_groups(monkeypatch):
    requirements = DataRequirements(rows=8, blocks_per_update=4)
    monkeypatch.setattr(PPO, "requirements", classmethod(lambda cls, config: requirements))
    changes = [("workers.actors.count", 3), ("workers.trainer.count", 2)]
    sound(*changes)
    problem = resolving(experiment(*changes, ("lockstep", True)))["workers.trainer.count"]
    assert problem.expected == "a divisor of 3"
    sound(*changes, ("workers.actors.ring_groups", 2), ("lockstep", True))
    problem = resolving(experiment(("workers.actors.count", 3), ("workers.trainer.count", 3)))["workers.trainer.count"]
    assert "algorithm sets" in problem.hint


def test_agents_must_match_exactly_one_group():
    found = resolving(experiment(("workers.actors.agents.0.match", "walker_[0-9]")))
    problem = found["workers.actors.agents"]
    assert "'agent' of CartPole-v1 matches none" in problem.what
    assert problem.value == "walker_[0-9]"
    # the pattern must match the whole id
    assert "workers.actors.agents" in resolving(experiment(("workers.actors.agents.0.match", "age")))


def test_spaces_that_do_not_fit_the_algorithm_come_with_the_rest():
    whole_numbers = replace(CARTPOLE, action=SpaceSpec("box", (2,), "int64", low=0, high=9))
    found = resolving(experiment(("workers.actors.agents.0.match", "nobody")), whole_numbers)
    assert "workers.actors.agents" in found
    text = " ".join(str(problem) for problem in found.values())
    assert "Box(2,) int64" in text
    assert "main" in text


class Wrong(PPO):
    """A plugin whose policy does not fit the environment; ``change`` says how."""

    change: dict

    @classmethod
    def policy_spec(cls, name, config, network, environment):
        return replace(super().policy_spec(name, config, network, environment), **cls.change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"action": SpaceSpec("discrete", (), "int64", n=3)}, "Discrete(3)"),
        ({"observation": SpaceSpec("box", (5,), "float32")}, "Box(5,) float32"),
        ({"extras": (FieldSpec("reward", (), "float32"),)}, "another block field"),
        ({"extras": (FieldSpec("value", (), "flote32"),)}, "'value' has a dtype that numpy does not know"),
        ({"extras": (FieldSpec("value", (), "float32", "B"),)}, "expected 'T,B'"),
    ],
)
def test_policy_outputs_that_do_not_fit(monkeypatch, change, text):
    monkeypatch.setattr(Wrong, "change", change, raising=False)
    monkeypatch.setattr("srl.distributed.validation.algorithm_plugin", lambda name, where: Wrong)
    assert text in str(resolving(experiment())["policies.main"])


def test_any_refusal_of_the_plugin_is_collected(monkeypatch):
    def refuse(*_):
        raise UsageError("no such network", where="policies.main.network")

    monkeypatch.setattr(PPO, "policy_spec", staticmethod(refuse))
    assert "no such network" in resolving(experiment())["policies.main.network"].what

"""Who shares which descriptor, who consumes whose blocks, who needs torch."""

from __future__ import annotations

from srl.api.environment import EnvironmentSpec
from srl.api.experiment import Experiment
from srl.api.spaces import SpaceSpec
from srl.distributed.graph import ResolvedGraph, resolve
from srl.distributed.wiring import consumers_of, needs_torch, shared_memory_plan
from srl.system.worker import WorkerId


def graph(inference: str) -> ResolvedGraph:
    workers = {
        "actors": {
            "kind": "actor",
            "count": 3,
            "environments": 4,
            "ring_groups": 2,
            "agents": [{"policy": "main", "samples": "samples", "inference": inference}],
        },
        "trainer": {"kind": "trainer", "policy": "main", "samples": "samples"},
        "evaluator": {"kind": "evaluator", "policy": "main"},
    }
    streams = {"samples": {"kind": "sample"}}
    if inference != "inline":
        workers["policy"] = {"kind": "policy", "serves": inference, "count": 2}
        streams[inference] = {"kind": "inference", "policy": "main"}
    experiment = Experiment.model_validate(
        {
            "name": "x",
            "environment": {"type": "gymnasium", "id": "CartPole-v1"},
            "policies": {"main": {"algorithm": {"type": "ppo", "rows": 8}}},
            "streams": streams,
            "workers": workers,
            "stop": {"updates": 1},
            "placement": "processes",
        }
    )
    return resolve(experiment, ENVIRONMENT)


ENVIRONMENT = EnvironmentSpec(
    name="CartPole-v1",
    observation=SpaceSpec("box", (4,), "float32"),
    action=SpaceSpec("discrete", (), "int64", n=2),
)


def holders(resolved: ResolvedGraph) -> dict[str, set[str]]:
    return {item.name: set(item.holders) for item in shared_memory_plan(resolved)}


def test_inline_actors_hold_blocks_and_weights() -> None:
    actors = {"actors/0", "actors/1", "actors/2"}
    assert holders(graph("inline")) == {
        "samples:samples:0": {*actors, "trainer/0"},
        "weights:main": {*actors, "trainer/0", "evaluator/0"},
    }


def test_actors_that_ask_hold_no_weights_and_policy_workers_see_the_blocks() -> None:
    actors, policies = {"actors/0", "actors/1", "actors/2"}, {"policy/0", "policy/1"}
    held = holders(graph("act"))
    assert held["samples:samples:0"] == {*actors, *policies, "trainer/0"}
    assert held["weights:main"] == {*policies, "trainer/0", "evaluator/0"}
    assert held["inference:act"] == {*actors, *policies}
    # Actor a asks policy worker a % 2: each wake-up is held by those two sides alone.
    assert held["wake:act:server:0"] == {"policy/0", "actors/0", "actors/2"}
    assert held["wake:act:actor:1"] == {"actors/1", "policy/1"}


def test_only_a_dead_actor_concerns_its_trainer() -> None:
    resolved = graph("act")
    assert consumers_of(resolved, WorkerId("actors", "actor", 1)) == ["trainer/0"]
    assert consumers_of(resolved, WorkerId("policy", "policy", 0)) == []
    assert consumers_of(resolved, WorkerId("evaluator", "evaluator", 0)) == []


def test_torch_is_needed_by_trainers_and_by_whoever_acts_with_it() -> None:
    resolved = graph("act")
    acts_with_torch = resolved.policies["main"].backend != "numpy"
    needed = {worker.name: needs_torch(resolved, worker) for worker in resolved.workers}
    assert needed["trainer/0"]
    assert not needed["actors/0"]
    assert needed["policy/0"] == needed["evaluator/0"] == acts_with_torch

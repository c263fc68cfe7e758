"""Field case 35: every environment of every worker and incarnation plays its own episodes; the seed says which ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from srl.api.experiment import ActorGroup
from srl.api.loading import load_experiment
from srl.api.registry import environment_factory
from srl.distributed.graph import resolve
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Credit
from srl.system.worker import WorkerId
from srl.system.workers.actor import ActorWorker
from srl.system.workers.factory import build_worker

FIELD = Path(__file__).parents[1] / "plugins" / "field.yaml"
EPISODES = 3
GRAPH = (
    "policies.main.algorithm={type: ppo, rows: 12}",
    "workers.actors.count=2",
    "workers.actors.environments=2",
    "workers.evaluator={kind: evaluator, policy: main, episodes: 3, environments: 1}",
    "stop.updates=2",
    "lockstep=true",
)
RUNS = {
    "first": ("seed=7", "placement=processes"),
    "again": ("seed=7", "placement=processes"),
    "fused": ("seed=7", "placement=fused"),
    "other seed": ("seed=8", "placement=fused"),
}
Starts = set[tuple[float, ...]]


def overrides(directory: Path, *changes: str) -> list[str]:
    environment = f"{{type: gymnasium, entry: ./field_environments.py:LoggedStart, kwargs: {{directory: {directory}}}}}"
    return [f"environment={environment}", *GRAPH, *changes]


def starts(directory: Path) -> Starts:
    """The first observations of the first episodes of every environment."""
    drawn = [tuple(map(float, path.read_text().split())) for path in directory.iterdir()]
    return {one[:EPISODES] for one in drawn}


@pytest.fixture(scope="module")
def played(shared_trial_run: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Starts]:
    trials = {}
    for name, changes in RUNS.items():
        directory = tmp_path_factory.mktemp("starts")
        trials[name] = (shared_trial_run.start(FIELD, *overrides(directory, *changes), "--screen", "off"), directory)
    for trial, _ in trials.values():
        trial.finish(120).check()
    return {name: starts(directory) for name, (_, directory) in trials.items()}


def flat(found: Starts) -> set[float]:
    return {draw for episodes in found for draw in episodes}


@pytest.mark.parametrize("name", RUNS)
def test_fifteen_episodes_have_fifteen_starts(played: dict[str, Starts], name: str) -> None:
    assert [len(episodes) for episodes in played[name]] == [EPISODES] * 5
    assert len(flat(played[name])) == 5 * EPISODES


def test_the_seed_says_which_wherever_the_workers_are(played: dict[str, Starts]) -> None:
    assert played["first"] == played["again"] == played["fused"]
    assert not flat(played["first"]) & flat(played["other seed"])


def test_a_restarted_actor_repeats_none_of_them(played: dict[str, Starts], tmp_path: Path) -> None:
    """The next incarnation of an actor, built as its process would build it; so would the first one, who repeats."""
    experiment = load_experiment(str(FIELD), overrides(tmp_path, "seed=7"))
    graph = resolve(experiment, environment_factory(experiment.environment.model_dump()).probe(), placement="fused")
    assert isinstance(experiment.workers["actors"], ActorGroup)
    found = {}
    for incarnation in (0, 1):
        directory = tmp_path / str(incarnation)
        directory.mkdir()
        told = graph.assignment(WorkerId("actors", "actor", 0, incarnation), tmp_path)
        told.experiment["environment"]["kwargs"]["directory"] = str(directory)
        worker = build_worker(told, InProcessTransport(), threaded=False)
        assert isinstance(worker, ActorWorker)
        play(worker, graph.schemas["samples"])
        worker.close()
        found[incarnation] = starts(directory)
    assert found[0] <= played["first"]
    assert [len(episodes) for episodes in found[1]] == [EPISODES] * 2
    assert not flat(found[1]) & flat(played["first"])


def play(worker: ActorWorker, schema: Any) -> None:
    """One block of 12 rows: three episodes and more of 3 steps each."""
    worker.start()
    (group,) = worker._groups
    group.begin(Credit(0, 0, 0, 0, 0), schema.allocate())
    while not group.full():
        group.views().act_output.action[...] = 0
        group.step(0)
    group.finish()

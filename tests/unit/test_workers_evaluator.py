"""Evaluation: exact numbers of episodes, quotas per environment, one version each, deterministic decisions."""

import numpy as np
import pytest

from srl.api.errors import EnvironmentFault
from srl.api.policy import ActingPolicy, NoiseSpec, PolicySpec
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.system.parameters import ParameterReader
from srl.system.worker import WorkerId
from srl.system.workers import acting, evaluator
from srl.system.workers.acting import ENV_STEPS_FIELD, VersionedPolicy
from srl.system.workers.evaluator import EvaluatorWorker, quotas, run_episodes


class AlwaysZero(ActingPolicy):
    """Chooses action 0; refuses to sample."""

    loaded: float = 0.0

    def load(self, parameters):
        self.loaded = float(parameters["weight"][0])

    def act(self, batch, out, *, deterministic=False):
        assert deterministic
        out.action[...] = 0


class Store(ParameterReader):
    """A parameter store in the test's hand."""

    version = -1
    env_steps = 0

    def latest_version(self):
        return self.version

    def read(self, version=None):
        return self.version, {"weight": np.ones(1), ENV_STEPS_FIELD: np.array([self.env_steps])}

    def wait(self, min_version, timeout_seconds):
        return self.version

    def close(self):
        pass


def make_spec(options):
    factory = GymnasiumFactory(options)
    environment = factory.probe()
    spec = PolicySpec(
        name="main",
        module="",
        acting=f"{__name__}:AlwaysZero",
        backend="numpy",
        observation=environment.observation,
        action=environment.action,
        action_array=environment.action.array,
        extras=(),
        noise=NoiseSpec("uniform", (1,)),
    )
    return factory, spec


@pytest.fixture
def evaluators(monkeypatch):
    factory, spec = make_spec({"entry": "srl.environments.toy:CountVector", "kwargs": {"lengths": [2, 9]}})
    monkeypatch.setattr(acting, "build_acting", AlwaysZero)
    monkeypatch.setattr(acting, "load_checked", lambda made, _, parameters: made.load(parameters))
    store = Store()

    def make(workers: int, interval: int | None, episodes: int = 6):
        return [
            EvaluatorWorker(
                WorkerId("evaluator", "evaluator", index),
                spec,
                VersionedPolicy(spec, store, 1.0),
                factory.make(2, [1, 2]),
                episodes=episodes,
                interval_env_steps=interval,
                workers=workers,
            )
            for index in range(workers)
        ]

    return make, store


def finish(worker):
    while worker.poll():
        pass
    return worker.report().evaluations


def test_episodes_are_dealt_out_evenly():
    assert quotas(6, 4) == [2, 2, 1, 1]
    assert quotas(3, 4) == [1, 1, 1, 0]


def test_quotas_keep_short_episodes_from_crowding_out_long_ones():
    factory, spec = make_spec({"entry": "srl.environments.toy:CountVector", "kwargs": {"lengths": [2, 9]}})
    returns, lengths = run_episodes(factory, AlwaysZero(spec), spec, episodes=6, environments=2, seeds=[1, 2])
    assert sorted(returns) == [2.0] * 3 + [9.0] * 3
    assert sorted(lengths) == [2] * 3 + [9] * 3


def test_exactly_the_asked_number_of_episodes_each_time(evaluators):
    """Field case 64: six episodes on several evaluators, twice, one version each."""
    make, store = evaluators
    workers = make(4, interval=100)
    results = []
    for version, env_steps in ((1, 100), (2, 200)):
        store.version, store.env_steps = version, env_steps
        results.append([part for worker in workers for part in finish(worker)])
    for version, parts in zip((1, 2), results, strict=True):
        assert sum(len(part.returns) for part in parts) == 6
        assert {part.policy_version for part in parts} == {version}


def test_no_evaluation_before_it_is_due(evaluators):
    make, store = evaluators
    (worker,) = make(1, interval=100)
    store.version, store.env_steps = 3, 99
    assert finish(worker) == []
    store.version, store.env_steps = 4, 130
    assert [part.env_steps for part in finish(worker)] == [130]
    store.version, store.env_steps = 5, 199
    assert finish(worker) == []


def test_draining_scores_the_last_version_once(evaluators):
    make, store = evaluators
    first, second = make(2, interval=None)
    store.version, store.env_steps = 7, 500
    assert finish(first) == []
    for worker in (first, second):
        worker.drain()
    assert [part.policy_version for part in finish(first)] == [7]
    assert finish(second) == []
    assert first.drained()
    assert second.drained()


def test_a_trial_that_is_over_before_its_first_version_waits_for_it_and_scores_it(evaluators):
    """A goal of a moment, and a trainer that takes longer to start: the version it begins with is the last one."""
    make, store = evaluators
    first, second = make(2, interval=None)
    for worker in (first, second):
        worker.drain()
    assert not first.drained()
    assert second.drained()  # the first one scores it
    assert finish(first) == []
    store.version = 0
    assert not first.drained()
    assert [one.policy_version for one in finish(first)] == [0]
    assert first.drained()


def test_the_wait_for_a_first_version_is_bounded(evaluators, monkeypatch):
    monkeypatch.setattr(evaluator, "FIRST_VERSION_SECONDS", 0.0)
    make, _ = evaluators
    (worker,) = make(1, interval=None)
    worker.drain()
    assert worker.drained()


def test_an_episode_without_an_end_costs_its_score_and_not_the_trial(evaluators, monkeypatch):
    """A policy without noise may stand still for ever: the trial must end all the same."""
    make, store = evaluators
    monkeypatch.setattr(evaluator, "ENDLESS_STEPS", 8)  # episodes have 2 and 9 steps: after the fast one's quota, 9 > 8
    (worker,) = make(1, interval=None)
    store.version = 4
    worker.drain()
    while worker.poll():
        pass
    report = worker.report()
    assert report.evaluations == []
    assert "version 4 was not scored" in report.messages[0]
    assert "max_episode_steps" in report.messages[0]
    assert worker.drained()
    monkeypatch.setattr(evaluator, "ENDLESS_STEPS", 10)
    store.version = 5
    assert [one.policy_version for one in finish(worker)] == [5]


def test_nor_does_an_evaluation_of_a_saved_policy_go_on_for_ever(monkeypatch):
    monkeypatch.setattr(evaluator, "ENDLESS_STEPS", 8)
    factory, spec = make_spec({"entry": "srl.environments.toy:CountVector", "kwargs": {"lengths": [2, 9]}})
    with pytest.raises(EnvironmentFault, match="an episode has no end"):
        run_episodes(factory, AlwaysZero(spec), spec, episodes=6, environments=2, seeds=[1, 2])

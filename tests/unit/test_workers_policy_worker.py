"""Policy workers: what waits is one batch, lockstep is one batch per request, versions as asked."""

from collections.abc import Sequence

import numpy as np
import pytest
from policy_specs import policy_spec

from srl.api.policy import ActingPolicy, ActInput, ActOutput
from srl.api.spaces import SpaceSpec
from srl.system.parameters import ParameterReader
from srl.system.streams.interface import InferenceRequest, InferenceServer
from srl.system.worker import WorkerId
from srl.system.workers import acting
from srl.system.workers.acting import ENV_STEPS_FIELD, VersionedPolicy
from srl.system.workers.policy_worker import PolicyWorker

SPEC = policy_spec(observation=SpaceSpec("box", (2,), "float32"), action=SpaceSpec("discrete", (), "int64", n=100))


class Echo(ActingPolicy):
    """Action = first element of the observation, value = noise + 10 x version."""

    batches: Sequence[int] = ()

    def load(self, parameters):
        self.version = float(parameters["version"][0])

    def act(self, batch, out, *, deterministic=False):
        Echo.batches = (*Echo.batches, len(batch.valid))
        out.action[...] = batch.observation[:, 0].astype(np.int64)
        out.extras["value"][...] = batch.noise[:, 0] + 10 * self.version


class Store(ParameterReader):
    def __init__(self, kept: Sequence[int]) -> None:
        self.kept = list(kept)

    def latest_version(self):
        return self.kept[-1]

    def read(self, version=None):
        wanted = self.kept[-1] if version is None else version
        if wanted not in self.kept:
            return None
        return wanted, {"version": np.array([wanted]), ENV_STEPS_FIELD: np.zeros(1, np.int64)}

    def wait(self, min_version, timeout_seconds):
        return self.kept[-1]

    def close(self):
        pass


class Server(InferenceServer):
    def __init__(self, requests: list[InferenceRequest]) -> None:
        self.waiting = requests
        self.answered: list[tuple[int, int]] = []

    def requests(self):
        waiting, self.waiting = self.waiting, []
        return waiting

    def reply(self, request, version):
        self.answered.append((request.actor, version))

    def wait_descriptors(self):
        return ()

    def close(self):
        pass

    abort = close


def request(actor: int, rows: int, min_version: int = 0, exact: bool = False) -> InferenceRequest:
    observation = np.zeros((rows, 2), np.float32)
    observation[:, 0] = 10 * actor + np.arange(rows)
    return InferenceRequest(
        actor=actor,
        incarnation=0,
        ring_group=0,
        min_version=min_version,
        exact=exact,
        batch=ActInput(
            observation=observation,
            noise=np.full((rows, 1), actor / 10, np.float32),
            episode_start=np.zeros(rows, np.bool_),
            valid=np.ones(rows, np.bool_),
        ),
        out=ActOutput(np.zeros(rows, np.int64), {"value": np.zeros(rows, np.float32)}),
    )


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(acting, "build_acting", Echo)
    monkeypatch.setattr(acting, "load_checked", lambda made, _, parameters: made.load(parameters))

    def run(requests: list[InferenceRequest], kept: Sequence[int] = (3,), lockstep: bool = False):
        Echo.batches = ()
        server = Server(list(requests))
        policy = VersionedPolicy(SPEC, Store(kept), 1.0)
        worker = PolicyWorker(WorkerId("servers", "policy", 0), server, policy, SPEC, edge="ask", lockstep=lockstep)
        assert worker.poll()
        assert not worker.poll()
        return server, worker

    return run


def test_what_waits_is_one_batch_and_everybody_gets_his_own_rows(serve):
    requests = [request(1, 2), request(2, 3), request(3, 1)]
    server, worker = serve(requests)
    assert Echo.batches == (6,)
    assert server.answered == [(1, 3), (2, 3), (3, 3)]
    assert [list(one.out.action) for one in requests] == [[10, 11], [20, 21, 22], [30]]
    np.testing.assert_allclose(requests[1].out.extras["value"], [30.2] * 3, rtol=1e-6)
    assert worker.report().counters == {"requests": 3, "batches": 1, "rows": 6}


def test_lockstep_never_merges(serve):
    requests = [request(1, 2), request(2, 3)]
    serve(requests, lockstep=True)
    assert Echo.batches == (2, 3)
    assert [list(one.out.action) for one in requests] == [[10, 11], [20, 21, 22]]


def test_exact_versions_are_answered_exactly(serve):
    requests = [request(1, 1, min_version=4, exact=True), request(2, 1, min_version=5, exact=True)]
    server, _ = serve(requests, kept=(4, 5, 6), lockstep=True)
    assert server.answered == [(1, 4), (2, 5)]
    np.testing.assert_allclose([one.out.extras["value"][0] for one in requests], [40.1, 50.2], rtol=1e-6)


def test_a_version_that_is_no_longer_kept_is_named(serve):
    with pytest.raises(Exception, match=r"policy main: .* no longer kept \(got 2\)"):
        serve([request(1, 1, min_version=2, exact=True)], kept=(4, 5), lockstep=True)


def test_otherwise_the_newest_version_answers(serve):
    server, _ = serve([request(1, 1, min_version=4)], kept=(4, 5, 9))
    assert server.answered == [(1, 9)]

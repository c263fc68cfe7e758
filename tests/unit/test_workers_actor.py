"""The actor worker over the in-process transport: credits, cuts, draining, skipped blocks, silent policy workers."""

import numpy as np
import pytest

from srl.api.block import trajectory_schema
from srl.api.errors import NonFiniteError, WaitTimeout
from srl.environments.gymnasium_adapter import GymnasiumFactory
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Announced, Credit, InferenceClient, Producer, Returned
from srl.system.worker import WorkerId
from srl.system.workers import actor
from srl.system.workers.actor import ActorWorker
from srl.system.workers.finite import FiniteGuard
from srl.system.workers.ring_group import RingGroup, RingGroupIdentity

ROWS = 8


class Inference(InferenceClient):
    """Decides at once, or never; the test may do something at a given request."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.silent = False
        self.at_request = {}
        self._done: list[tuple[int, int]] = []

    def request(self, credit, row, batch, out):
        self.asked.append((credit.ring_group, row))
        self.at_request.pop(len(self.asked), lambda: None)()
        if not self.silent:
            out.action[...] = 0
            self._done.append((credit.ring_group, credit.min_version))

    def poll(self):
        done, self._done = self._done, []
        return done

    def wait_descriptors(self):
        return ()

    def close(self):
        pass

    abort = close


class Bench:
    def __init__(self, policy_spec_for, options: dict, ring_groups: int = 1, mode: str = "stop") -> None:
        factory = GymnasiumFactory(options)
        environment = factory.probe()
        spec = policy_spec_for(environment)
        schema = trajectory_schema(
            rows=ROWS,
            columns=1,
            observation=spec.observation.array,
            action=spec.action_array,
            extras=spec.extras,
        )
        transport = InProcessTransport()
        self.consumer = transport.sample_consumer("samples", 0, schema, 4)
        self.producer = Producer(0, 0, ring_groups)
        guard = FiniteGuard(mode)
        groups = [
            RingGroup(RingGroupIdentity(self.producer, index, 7), factory.make(1, [index]), schema, spec, guard)
            for index in range(ring_groups)
        ]
        self.inference = Inference()
        self.worker = ActorWorker(
            WorkerId("actors", "actor", 0),
            groups,
            transport.sample_producer("samples", 0, schema, self.producer),
            self.inference,
            guard,
            inference_seconds=0.05,
            edge="samples",
            inference_edge="ask",
        )
        self.worker.start()
        self.consumer.events()

    def grant(self, number: int, ring_group: int = 0) -> None:
        self.consumer.send_credit(self.producer, Credit(number, ring_group, number, 0, 0))

    def run(self) -> list:
        while self.worker.poll():
            pass
        return list(self.consumer.events())

    def run_for(self, polls: int) -> None:
        for _ in range(polls):
            self.worker.poll()


COUNT = {"entry": "srl.environments.toy:Count", "kwargs": {"length": 100}}


@pytest.fixture
def bench(policy_spec_for):
    made = []

    def make(options=COUNT, **rest) -> Bench:
        made.append(Bench(policy_spec_for, options, **rest))
        return made[-1]

    yield make
    for one in made:
        one.worker.close()


def test_one_block_per_credit_and_none_without(bench):
    one = bench()
    assert one.run() == []
    one.grant(0)
    one.grant(1)
    events = one.run()
    assert [(event.header.grant, event.header.sequence, event.header.length) for event in events] == [
        (0, 0, ROWS),
        (1, 1, ROWS),
    ]
    assert one.run() == []
    report = one.worker.report()
    assert report.counters["rows_produced"] == 2 * ROWS
    assert (report.edges["samples"].sent, report.edges["ask"].sent) == (2, 2 * ROWS)


def test_ring_groups_take_turns(bench):
    one = bench(ring_groups=2)
    one.grant(0, ring_group=0)
    one.grant(1, ring_group=1)
    events = one.run()
    assert {event.header.ring_group for event in events} == {0, 1}
    assert one.inference.asked[:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_cut_sends_the_rows_there_are_and_the_next_block_goes_on(bench, monkeypatch):
    monkeypatch.setattr(actor, "LOOK_SECONDS", 0.0)
    one = bench()
    one.grant(0)
    one.grant(1)
    one.inference.at_request[3] = lambda: one.consumer.send_cut(one.producer, 0)
    first, second = one.run()
    assert (first.header.length, second.header.length) == (4, ROWS)  # read before the step after
    assert one.consumer.block(1)["observation"][0, 0, 0] == 4
    assert one.worker.report().counters["blocks_cut"] == 1


def test_a_cut_of_a_block_that_is_not_begun_gives_the_credit_back(bench):
    one = bench()
    one.grant(0)
    one.consumer.send_cut(one.producer, 0)
    (event,) = one.run()
    assert isinstance(event, Returned)
    assert (event.grant, event.reason) == (0, "cut")


def test_draining_gives_back_what_is_open_and_what_comes_later(bench):
    one = bench()
    one.grant(0)
    one.grant(1)
    one.inference.at_request[3] = one.worker.drain
    events = one.run()
    one.grant(2)
    events += one.run()
    assert [(type(event), event.grant, event.reason) for event in events] == [
        (Returned, number, "shutdown") for number in range(3)
    ]
    assert one.worker.drained()


def test_a_block_with_a_value_that_is_not_finite_is_skipped(bench):
    faulty = {"entry": "srl.environments.toy:Faulty", "kwargs": {"kind": "nan_reward", "step": 4, "length": 100}}
    one = bench(faulty, mode="skip")
    one.grant(0)
    one.grant(1)
    returned, announced = one.run()
    assert isinstance(returned, Returned)
    assert returned.reason == "non_finite"
    assert isinstance(announced, Announced)
    assert np.isfinite(one.consumer.block(1)["reward"]).all()
    assert "reward" in one.worker.report().messages[0]


def test_where_no_block_is_whole_any_more_the_run_ends(bench, monkeypatch):
    """Else it would go on for ever: what is skipped uses up no budget."""
    monkeypatch.setattr(actor, "SKIPS_IN_A_ROW", 2)
    one = bench(mode="skip")

    def spoil() -> None:
        one.worker._guard.fault = NonFiniteError("the reward of environment 0 is not finite")

    one.inference.at_request = {number: spoil for number in (1, 2 + ROWS, 3 + ROWS)}  # the second block is whole
    for number in range(4):
        one.grant(number)
    with pytest.raises(NonFiniteError, match=r"2 blocks in a row were skipped.*reward"):
        one.run()
    assert len(one.inference.asked) == 1 + ROWS + 2


def test_a_policy_worker_that_never_answers_is_named_after_the_bound(bench):
    one = bench()
    one.inference.silent = True
    one.grant(0)
    with pytest.raises(WaitTimeout, match="no reply of a policy worker for ring group 0 of actor 0"):
        one.run_for(1_000_000)

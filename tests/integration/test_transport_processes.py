"""Transports between processes: actors of their own, trainer and policy worker here; deaths and successors."""

import json
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from policy_specs import policy_spec
from transport_wiring import buffer_of

from srl.api.block import policy_schema
from srl.api.policy import NoiseSpec
from srl.api.spaces import SpaceSpec
from srl.system.parameters import ParameterLayout
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused
from srl.system.streams.shared_memory.descriptors import (
    InferenceSegment,
    SampleSegments,
    WeightsSegment,
    close_descriptors,
    create_descriptors,
    plan_descriptors,
)
from srl.system.streams.shared_memory.transport import SharedMemoryTransport
from srl.system.streams.tcp.keys import make_trial_keys
from srl.system.streams.tcp.transport import TcpTransport

pytestmark = pytest.mark.usefixtures("no_leaks")

ROWS, COLUMNS, SLOTS, ACTORS, BLOCKS = 10, 4, 6, 2, 12
TIMEOUT_SECONDS = 100.0
SPEC = policy_spec(observation=SpaceSpec("box", (6,), "float32"), noise=NoiseSpec("uniform", (2,)))
SCHEMA = policy_schema(SPEC, rows=ROWS, columns=COLUMNS)
LAYOUT = ParameterLayout.of({"weight": ((200, 100), "float32"), "bias": ((100,), "float32")})


class Hub:
    """Trainer and policy worker of a small run, with actors as children."""

    def __init__(self, kind, run_dir):
        self.kind, self.run_dir, self.descriptors = kind, run_dir, {}
        if kind == "shared_memory":
            actors = tuple(f"actor/{index}" for index in range(ACTORS))
            plan = plan_descriptors(
                [SampleSegments("s", SCHEMA, SLOTS, ("trainer/0",), actors)],
                [InferenceSegment("i", SCHEMA, SPEC, 1, actors, ("policy/0",))],
                [WeightsSegment("p", ("trainer/0", *actors))],
            )
            self.descriptors = create_descriptors(plan)
            self.transport = SharedMemoryTransport(self.descriptors, run_dir)
        else:
            self.transport = TcpTransport({}, make_trial_keys(run_dir))
        self.consumer = self.transport.sample_consumer("s", 0, SCHEMA, SLOTS)
        self.server = self.transport.inference_server("i", 0, SCHEMA, SPEC, "s")
        self.writer = self.transport.parameter_writer("p", 2)
        self.decided = 0
        self.children = []

    def start(self, actor, incarnation=0, blocks=BLOCKS, stop_after=-1):
        options = {
            "transport": self.kind,
            "run_dir": str(self.run_dir),
            "endpoints": dict(self.transport.bound_endpoints()),
            "descriptors": self.descriptors,
            "schema": SCHEMA.to_dict(),
            "spec": SPEC.to_dict(),
            "actor": actor,
            "incarnation": incarnation,
            "blocks": blocks,
            "stop_after": stop_after,
        }
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("transport_actor.py")), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=tuple(self.descriptors.values()),
        )
        self.children.append(child)
        return child

    def poll(self):
        """Answer what is asked, return what arrived, block if there was neither."""
        requests = self.server.requests()
        for request in requests:
            request.out.action[...] = request.batch.episode_start * 10 + np.arange(COLUMNS)
            request.out.extras["value"][...] = request.batch.observation.sum(axis=1) + request.batch.noise.sum(axis=1)
            self.server.reply(request, request.min_version + self.decided)
            self.decided += 1
        events = self.consumer.events()
        if not requests and not events:
            descriptors = [*self.consumer.wait_descriptors(), *self.server.wait_descriptors()]
            select.select(descriptors, [], [], 0.1)
        return events

    def close(self):
        for child in self.children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
        for end in (self.consumer, self.server, self.writer):
            end.close()
        self.transport.close()
        close_descriptors(self.descriptors)


@pytest.fixture(params=["shared_memory", "tcp"])
def hub(request, run_dir):
    hub = Hub(request.param, run_dir)
    yield hub
    hub.close()


def check_block(block, header):
    """Every byte that the actor and the policy worker wrote, from the grant's number alone."""
    for row in range(ROWS + 1):
        generator = np.random.default_rng((header.grant, row))
        observation = generator.random((COLUMNS, 6), np.float32)
        assert np.array_equal(block["observation"][row], observation), row
        if row == ROWS:
            break
        noise = generator.random((COLUMNS, 2), np.float32).sum(axis=1)
        assert np.array_equal(block["reward"][row], noise)
        assert np.array_equal(block["action"][row], (row % 2 == 0) * 10 + np.arange(COLUMNS))
        assert np.array_equal(block["value"][row], observation.sum(axis=1) + noise)
    versions = block["policy_version"][:ROWS]
    assert np.all(np.diff(versions) > 0)


def test_blocks_of_several_actors_with_remote_inference_beside_a_busy_writer(hub):
    """Bit-identical, in order, every slot used many times; weights are never a mix though published at full speed."""
    stop = threading.Event()

    def publish():
        version = 0
        while not stop.is_set():
            hub.writer.publish(version, LAYOUT, buffer_of(LAYOUT, version % 256))
            version += 1
            stop.wait(0.001)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        received = run_to_the_end(hub)
    finally:
        stop.set()
        publisher.join()
    assert received == {actor: list(range(BLOCKS)) for actor in range(ACTORS)}
    assert [child.wait(TIMEOUT_SECONDS) for child in hub.children] == [0] * ACTORS


def run_to_the_end(hub):
    """Grant as slots become free until every actor sent its blocks; sequence numbers by actor, as they came."""
    for actor in range(ACTORS):
        hub.start(actor)
    received, grant, deadline = {actor: [] for actor in range(ACTORS)}, 0, time.monotonic() + TIMEOUT_SECONDS
    free, waiting = list(range(SLOTS)), []
    while sum(map(len, received.values())) < ACTORS * BLOCKS:
        assert time.monotonic() < deadline
        for event in hub.poll():
            if isinstance(event, Connected):
                waiting += [event.producer] * BLOCKS
            else:
                assert isinstance(event, Announced), event
                check_block(hub.consumer.block(event.header.slot), event.header)
                received[event.header.actor].append(event.header.sequence)
                free.append(event.header.slot)
        waiting.sort(key=lambda producer: -waiting.count(producer))
        while free and waiting:
            hub.consumer.send_credit(waiting.pop(0), Credit(grant, 0, free.pop(0), grant, grant))
            grant += 1
    return received


def test_a_killed_actor_is_forgotten_and_its_successor_uses_its_slot(hub):
    """The slot is granted again only after the death is confirmed; mailboxes go on where the dead one ended."""
    hub.writer.publish(0, LAYOUT, buffer_of(LAYOUT, 0))
    first, second = Producer(0, 0, 1), Producer(0, 1, 1)
    child = hub.start(0, stop_after=0)
    grant_one(hub, first, grant=0, expect_connected=True)
    hub.consumer.send_credit(first, Credit(1, 0, 0, 1, 0))
    lines = [child.stdout.readline().strip() for _ in range(2)]
    assert lines == ["block 0", "holding"]
    child.kill()
    assert child.wait(TIMEOUT_SECONDS) == -9
    hub.consumer.forget(first)
    successor = hub.start(0, incarnation=1, blocks=1)
    grant_one(hub, second, grant=2, expect_connected=True)
    assert successor.wait(TIMEOUT_SECONDS) == 0


def grant_one(hub, producer, grant, expect_connected):
    """Wait for the producer, grant slot 0, check the block that comes."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    connected = not expect_connected
    while True:
        assert time.monotonic() < deadline
        for event in hub.poll():
            assert not isinstance(event, Refused), event
            if isinstance(event, Connected):
                assert event.producer == producer
                connected = True
                hub.consumer.send_credit(producer, Credit(grant, 0, 0, grant, 0))
            elif isinstance(event, Announced):
                assert connected
                check_block(hub.consumer.block(0), event.header)
                return

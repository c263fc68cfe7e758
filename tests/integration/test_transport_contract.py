"""What every transport promises, by the same test bodies: in process, shared memory, TCP.

Both ends live in this process and thread; a worker's shell is imitated by :func:`until`, which polls and blocks on the
ends' descriptors. Ends in different processes: ``test_transport_processes.py``.
"""

import os
import select
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq

from srl.api.block import BlockHeader, FieldSpec, policy_schema, trajectory_schema
from srl.api.errors import SchemaMismatchError, StreamError, WaitTimeout
from srl.api.policy import ActInput, ActOutput, NoiseSpec, PolicySpec
from srl.api.spaces import ArraySpec, SpaceSpec
from srl.system.parameters import ParameterLayout
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused, Returned
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

ROWS, COLUMNS, SLOTS, ACTORS, RING_GROUPS = 5, 3, 6, 3, 2
TIMEOUT_SECONDS = 60.0
EXTRAS = (FieldSpec("log_probability", (), "float32"), FieldSpec("value", (), "float32"))
SPEC = PolicySpec(
    name="default",
    module="m:M",
    acting="m:A",
    backend="numpy",
    observation=SpaceSpec("box", (4,), "float32"),
    action=SpaceSpec("discrete", (), "int64", n=2),
    action_array=ArraySpec((), "int64"),
    extras=EXTRAS,
    noise=NoiseSpec("uniform", (2,)),
)


def schema_of(observation=(4,), rows=ROWS):
    return trajectory_schema(
        rows=rows,
        columns=COLUMNS,
        observation=ArraySpec(observation, "float32"),
        action=SPEC.action_array,
        extras=EXTRAS,
    )


SCHEMA = schema_of()
ACTOR = Producer(actor=0, incarnation=0, ring_groups=RING_GROUPS)


class Wiring:
    """The transports of a trainer's and an actor's process; streams ``s`` and ``i``, policy ``p``."""

    def __init__(self, kind, run_dir, schema=SCHEMA, spec=SPEC):
        self.kind = kind
        self.run_dir = run_dir
        self.schema = schema
        self.spec = spec
        self.descriptors = {}
        self._transports = []
        self._keys = None
        if kind == "in_process":
            self._transports.append(InProcessTransport())
        elif kind == "shared_memory":
            actors = tuple(f"actor/{index}" for index in range(ACTORS))
            servers = ("policy/0", "policy/1")
            plan = plan_descriptors(
                [SampleSegments("s", schema, SLOTS, ("trainer/0", "trainer/1"), actors)],
                [InferenceSegment("i", schema, spec, RING_GROUPS, actors, servers)],
                [WeightsSegment("p", ("trainer/0", *actors))],
            )
            self.descriptors = create_descriptors(plan)
        else:
            self._keys = make_trial_keys(run_dir)
        self.server_side = self._transport()

    def _transport(self):
        if self.kind == "in_process":
            return self._transports[0]
        if self.kind == "shared_memory":
            transport = SharedMemoryTransport(self.descriptors, self.run_dir)
        else:
            bound = self._transports[0].bound_endpoints() if self._transports else {}
            transport = TcpTransport(bound, self._keys)
        self._transports.append(transport)
        return transport

    def client_side(self):
        """A new process's transport that knows what was bound so far."""
        return self._transport()

    def consumer(self, rank=0):
        return self.server_side.sample_consumer("s", rank, self.schema, SLOTS)

    def producer(self, producer=ACTOR, rank=0, schema=None):
        return self.client_side().sample_producer("s", rank, schema or self.schema, producer)

    def server(self, index=0):
        return self.server_side.inference_server("i", index, self.schema, self.spec, "s")

    def actor(self, producer=ACTOR, servers=2):
        """Both ends of an actor's process."""
        transport = self.client_side()
        return (
            transport.sample_producer("s", 0, self.schema, producer),
            transport.inference_client("i", servers, self.schema, self.spec, producer, "s"),
        )

    def close(self):
        for transport in reversed(self._transports):
            transport.close()
        close_descriptors(self.descriptors)
        self.descriptors = {}


@pytest.fixture(scope="module", autouse=True)
def _zero_copy_collector():
    """pyzmq keeps a thread and sockets for the life of a process that free what was sent without copying: no leak."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://once")
        other.connect("inproc://once")
        tracker = one.send(bytes(1 << 20), copy=False, track=True)
        other.recv()
        tracker.wait(TIMEOUT_SECONDS)


@pytest.fixture(params=["in_process", "shared_memory", "tcp"])
def kind(request):
    return request.param


@pytest.fixture
def run_dir():
    with tempfile.TemporaryDirectory(prefix="st") as directory:
        os.chmod(directory, 0o700)
        yield Path(directory)
        assert [path for path in Path(directory).iterdir() if path.is_socket()] == []


@pytest.fixture
def wiring(kind, run_dir):
    wiring = Wiring(kind, run_dir)
    yield wiring
    wiring.close()


def until(condition, *ends):
    """Poll until the condition returns something true, blocking on the ends' descriptors in between."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (result := condition()):
        left = deadline - time.monotonic()
        assert left > 0, "nothing came"
        descriptors = [descriptor for end in ends for descriptor in end.wait_descriptors()]
        if descriptors:
            select.select(descriptors, [], [], left)
    return result


def events_of(consumer, count):
    """The next ``count`` events."""
    events = []

    def collect():
        events.extend(consumer.events())
        return len(events) >= count

    until(collect, consumer)
    assert len(events) == count, events
    return events


def credit_of(producer, ring_group=0):
    def take():
        producer.poll()
        return producer.take_credit(ring_group)

    return until(take, producer)


def connected(wiring, who=ACTOR):
    consumer, producer = wiring.consumer(), wiring.producer(who)
    assert events_of(consumer, 1) == [Connected(who)]
    return consumer, producer


def header_for(credit, who=ACTOR, sequence=0, **changes):
    fields = {
        "actor": who.actor,
        "incarnation": who.incarnation,
        "ring_group": credit.ring_group,
        "sequence": sequence,
        "grant": credit.grant,
        "slot": credit.slot,
        "generation": credit.generation,
        "length": ROWS,
        "valid_rows": ROWS * COLUMNS,
        "finals": 1,
        "versions": 1,
        "min_version": credit.min_version,
    }
    return BlockHeader(**{**fields, **changes})


def fill(block, seed):
    """Random bytes everywhere (where a bool is, 0 or 1); returns a copy."""
    generator = np.random.default_rng(seed)
    block.buffer[:] = generator.integers(0, 2, len(block.buffer), np.uint8)
    return block.buffer.copy()


def test_blocks_arrive_bit_identical_in_order(wiring):
    consumer, producer = connected(wiring)
    sent = {}
    for number in range(SLOTS):
        consumer.send_credit(
            ACTOR, Credit(grant=number, ring_group=number % 2, slot=number, generation=1, min_version=number)
        )
    for number in range(SLOTS):
        credit = credit_of(producer, number % 2)
        assert (credit.grant, credit.slot, credit.min_version, credit.rank) == (number, number, number, 0)
        sent[credit.slot] = fill(producer.block(credit), number)
        producer.send(header_for(credit, sequence=number // 2))
    events = events_of(consumer, SLOTS)
    assert [event.header.grant for event in events] == list(range(SLOTS))
    assert [event.header.sequence for event in events] == [0, 0, 1, 1, 2, 2]
    for slot, payload in sent.items():
        block = consumer.block(slot)
        assert np.array_equal(block.buffer, payload)
        assert block["observation"].shape == (ROWS + 1, COLUMNS, 4)


def test_a_slot_serves_again_under_the_next_generation(wiring):
    consumer, producer = connected(wiring)
    for generation in range(20):
        consumer.send_credit(ACTOR, Credit(generation, 0, 3, generation, 0))
        credit = credit_of(producer)
        payload = fill(producer.block(credit), generation)
        producer.send(header_for(credit, sequence=generation))
        (event,) = events_of(consumer, 1)
        assert event.header.generation == generation
        assert np.array_equal(consumer.block(3).buffer, payload)


def test_a_credit_names_the_rank_of_its_pool(wiring):
    consumers = [wiring.consumer(rank) for rank in range(2)]
    producers = [wiring.producer(rank=rank) for rank in range(2)]
    for rank, (consumer, producer) in enumerate(zip(consumers, producers, strict=True)):
        events_of(consumer, 1)
        consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
        assert credit_of(producer).rank == rank


def test_no_credit_no_block(wiring):
    consumer, producer = connected(wiring)
    producer.poll()
    assert producer.take_credit(0) is None
    with pytest.raises(StreamError, match="not held"):
        producer.send(header_for(Credit(5, 0, 0, 0, 0)))
    assert list(consumer.events()) == []


def test_a_cut_reaches_the_block_under_way_and_no_later_one(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
    consumer.send_credit(ACTOR, Credit(1, 1, 1, 0, 0))
    first, second = credit_of(producer, 0), credit_of(producer, 1)
    consumer.send_cut(ACTOR, first.grant)

    def cut():
        producer.poll()
        return producer.cuts()

    assert until(cut, producer) == {0}
    producer.send(header_for(first, length=2, valid_rows=6))
    assert producer.cuts() == set()
    (event,) = events_of(consumer, 1)
    assert event.header.length == 2
    consumer.send_cut(ACTOR, first.grant)  # crosses the block: void
    consumer.send_credit(ACTOR, Credit(2, 0, 2, 0, 0))
    credit_of(producer, 0)
    assert producer.cuts() == set()
    producer.send(header_for(second))
    assert events_of(consumer, 1)[0].header.grant == 1


def test_a_credit_given_back_is_an_event_with_its_slot_and_reason(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(7, 1, 4, 0, 0))
    producer.give_back(credit_of(producer, 1), "drain")
    assert events_of(consumer, 1) == [Returned(ACTOR, 7, 4, "drain")]


def test_a_schema_mismatch_names_the_field_at_the_producer(wiring):
    consumer, producer = wiring.consumer(), wiring.producer(schema=schema_of(observation=(5,)))
    assert events_of(consumer, 1) == [Refused("schema_mismatch")]
    message = str(raised(producer, SchemaMismatchError))
    assert "sample:s:0" in message
    assert "'observation'" in message
    assert "(5,)" in message
    assert "(4,)" in message


def raised(producer, kind):
    """The error that a producer's poll raises as soon as the answer is there."""

    def poll():
        try:
            producer.poll()
        except kind as error:
            return error

    return until(poll, producer)


def test_a_superseded_incarnation_is_refused_and_told_so(wiring):
    consumer = wiring.consumer()
    old, new = Producer(0, 0, 1), Producer(0, 1, 1)
    first = wiring.producer(old)
    assert events_of(consumer, 1) == [Connected(old)]
    consumer.send_credit(old, Credit(0, 0, 0, 0, 0))
    credit = credit_of(first)
    second = wiring.producer(new)
    assert events_of(consumer, 1) == [Connected(new)]
    first.send(header_for(credit, old))  # the old process on the far side of a network cut
    assert events_of(consumer, 1) == [Refused("superseded_incarnation")]
    third = wiring.producer(old)
    assert events_of(consumer, 1) == [Refused("superseded_incarnation")]
    assert "superseded_incarnation" in str(raised(third, StreamError))
    consumer.send_credit(new, Credit(1, 0, 0, 1, 0))
    second.send(header_for(credit_of(second), new))
    assert isinstance(events_of(consumer, 1)[0], Announced)


def test_what_a_forgotten_producer_still_sends_is_refused(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
    credit = credit_of(producer)
    consumer.forget(ACTOR)
    producer.send(header_for(credit))
    assert events_of(consumer, 1) == [Refused("superseded_incarnation")]


def test_a_block_of_an_older_generation_is_refused(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 2, 4, 0))
    credit = credit_of(producer)
    producer.send(header_for(credit, generation=3))
    assert events_of(consumer, 1) == [Refused("superseded_generation")]


def test_close_delivers_what_was_sent(wiring):
    consumer, producer = connected(wiring)
    consumer.send_credit(ACTOR, Credit(0, 0, 0, 0, 0))
    credit = credit_of(producer)
    payload = fill(producer.block(credit), 0)
    producer.send(header_for(credit))
    producer.close()
    events_of(consumer, 1)
    assert np.array_equal(consumer.block(0).buffer, payload)


@pytest.mark.parametrize("graceful", [True, False])
def test_closing_with_unread_blocks_does_not_hang(kind, run_dir, graceful):
    """Field case 8: 1 MB blocks, a consumer that stopped reading; both ends are gone in less than two seconds."""
    wiring = Wiring(kind, run_dir, schema_of(observation=(1 << 14,)))
    assert wiring.schema.size_bytes > 1 << 20
    consumer, producer = connected(wiring)
    for number in range(SLOTS):
        consumer.send_credit(ACTOR, Credit(number, 0, number, 0, 0))
    for number in range(SLOTS):
        credit = credit_of(producer)
        fill(producer.block(credit), number)
        producer.send(header_for(credit, sequence=number))
    started = time.monotonic()
    for end in (producer, consumer):
        end.close() if graceful else end.abort()
    wiring.close()
    assert time.monotonic() - started < 2.0


def arrays_of(wiring, sample_producer, credit, row, seed):
    """A row's observation and flags filled, and the request's arrays as views of the block."""
    generator = np.random.default_rng(seed)
    block = sample_producer.block(credit)
    block["observation"][row] = generator.random((COLUMNS, 4), np.float32)
    noise = generator.random((COLUMNS, 2), np.float32)
    if row == ROWS:
        episode_start, valid = np.zeros(COLUMNS, bool), np.ones(COLUMNS, bool)
        out = ActOutput(np.zeros(COLUMNS, np.int64), {extra.name: np.zeros(COLUMNS, np.float32) for extra in EXTRAS})
    else:
        episode_start, valid = block["episode_start"][row], block["valid"][row]
        out = ActOutput(block["action"][row], {extra.name: block[extra.name][row] for extra in EXTRAS})
    episode_start[:] = [True, False, bool(seed % 2)]
    valid[:] = [True, True, bool(row % 2)]
    return ActInput(block["observation"][row], noise, episode_start, valid), out


def decide(request):
    """A decision that depends on every input."""
    batch, out = request.batch, request.out
    out.action[...] = np.arange(COLUMNS) + 10 * batch.episode_start
    out.extras["value"][...] = batch.observation.sum(axis=1)
    out.extras["log_probability"][...] = np.where(batch.valid, batch.noise.sum(axis=1), -1)


def requests_of(server, count=1):
    requests = []

    def collect():
        requests.extend(server.requests())
        return len(requests) >= count

    until(collect, server)
    assert len(requests) == count
    return requests


def test_decisions_are_those_of_the_row_asked_about(wiring):
    consumer, server = wiring.consumer(), wiring.server()
    producer, client = wiring.actor()
    events_of(consumer, 1)
    consumer.send_credit(ACTOR, Credit(0, 0, 2, 0, 5, exact=True))
    credit = credit_of(producer)
    for row in range(ROWS + 1):
        batch, out = arrays_of(wiring, producer, credit, row, seed=row)
        client.request(credit, row, batch, out)
        (request,) = requests_of(server)
        assert (request.actor, request.incarnation, request.ring_group) == (0, 0, 0)
        assert (request.min_version, request.exact) == (5, True)
        for name in ("observation", "noise", "episode_start", "valid"):
            assert np.array_equal(getattr(request.batch, name), getattr(batch, name)), name
        decide(request)
        server.reply(request, 5 + row)
        assert list(until(client.poll, client)) == [(0, 5 + row)]
        assert out.action.tolist() == [10, 1, 12 if row % 2 else 2]
        assert np.array_equal(out.extras["value"], batch.observation.sum(axis=1))
        assert np.array_equal(out.extras["log_probability"], np.where(batch.valid, batch.noise.sum(axis=1), -1))
        assert list(client.poll()) == []
    assert producer.block(credit)["value"][0].sum() != 0


RICH = replace(
    SPEC,
    observation=SpaceSpec.nested(
        "dict", {"image": SpaceSpec("box", (3, 3), "uint8"), "speed": SpaceSpec("box", (2,), "float32")}
    ),
    action_mask=2,
    state_size=3,
    state_rows=ROWS,
)


def rich_arrays(block, row, seed):
    """As :func:`arrays_of`, with a mask and states; random bytes in the record."""
    generator = np.random.default_rng(seed)
    raw = block["observation"][row].view(np.uint8)
    raw[...] = generator.integers(0, 256, raw.shape, np.uint8)
    block["action_mask"][row] = generator.integers(0, 2, (COLUMNS, 2), np.uint8)
    at_end = row == ROWS
    batch = ActInput(
        block["observation"][row],
        generator.random((COLUMNS, 2), np.float32),
        np.zeros(COLUMNS, bool) if at_end else block["episode_start"][row],
        np.ones(COLUMNS, bool) if at_end else block["valid"][row],
        block["action_mask"][row],
        generator.random((COLUMNS, 3), np.float32),
    )
    own = {extra.name: np.zeros(COLUMNS, np.float32) for extra in EXTRAS}
    out = ActOutput(
        np.zeros(COLUMNS, np.int64) if at_end else block["action"][row],
        own if at_end else {extra.name: block[extra.name][row] for extra in EXTRAS},
        np.zeros((COLUMNS, 3), np.float32),
        np.zeros((COLUMNS, 3), np.float32),
    )
    return batch, out


def test_records_masks_and_states_travel_with_every_row(kind, run_dir):
    wiring = Wiring(kind, run_dir, policy_schema(RICH, rows=ROWS, columns=COLUMNS), RICH)
    consumer, server = wiring.consumer(), wiring.server()
    producer, client = wiring.actor()
    events_of(consumer, 1)
    consumer.send_credit(ACTOR, Credit(0, 1, 2, 0, 5))
    credit = credit_of(producer, 1)
    for row in range(ROWS + 1):
        batch, out = rich_arrays(producer.block(credit), row, seed=row)
        client.request(credit, row, batch, out)
        (request,) = requests_of(server)
        for name in ("observation", "noise", "episode_start", "valid", "action_mask", "state"):
            assert getattr(request.batch, name).tobytes() == getattr(batch, name).tobytes(), name
        before = batch.state.copy()
        request.out.used_state[...] = 10 * request.batch.state
        request.out.state[...] = request.batch.state + row
        request.out.action[...] = row
        request.out.extras["value"][...] = request.batch.action_mask.sum(axis=1)
        server.reply(request, 5)
        assert list(until(client.poll, client)) == [(1, 5)]
        np.testing.assert_array_equal(out.used_state, 10 * before)
        np.testing.assert_array_equal(out.state, before + row)
        np.testing.assert_array_equal(batch.state, before)
        np.testing.assert_array_equal(out.extras["value"], batch.action_mask.sum(axis=1))
        assert out.action.tolist() == [row] * COLUMNS
    wiring.close()


def test_ring_groups_are_under_way_together_and_answered_in_any_order(wiring):
    consumer, server = wiring.consumer(), wiring.server()
    producer, client = wiring.actor()
    events_of(consumer, 1)
    for group in range(RING_GROUPS):
        consumer.send_credit(ACTOR, Credit(group, group, group, 0, group))
    rows = {}
    for group in range(RING_GROUPS):
        credit = credit_of(producer, group)
        rows[group] = arrays_of(wiring, producer, credit, 0, seed=group)
        client.request(credit, 0, *rows[group])
    requests = requests_of(server, RING_GROUPS)
    assert [request.ring_group for request in requests] == [0, 1]
    for request in reversed(requests):
        decide(request)
        server.reply(request, 9)
        assert list(until(client.poll, client)) == [(request.ring_group, 9)]
        batch, out = rows[request.ring_group]
        assert np.array_equal(out.extras["value"], batch.observation.sum(axis=1))


def test_actors_ask_the_policy_worker_of_their_number(wiring):
    consumer = wiring.consumer()
    servers = [wiring.server(index) for index in range(2)]
    actors = [Producer(actor, 0, RING_GROUPS) for actor in range(ACTORS)]
    clients = []
    for actor in actors:
        producer, client = wiring.actor(actor)
        assert events_of(consumer, 1) == [Connected(actor)]
        consumer.send_credit(actor, Credit(actor.actor, 0, actor.actor, 0, 0))
        credit = credit_of(producer)
        client.request(credit, 0, *arrays_of(wiring, producer, credit, 0, seed=actor.actor))
        clients.append((producer, client))
    even, odd = requests_of(servers[0], 2), requests_of(servers[1], 1)
    assert [request.actor for request in even] == [0, 2]
    assert [request.actor for request in odd] == [1]
    for server, requests in zip(servers, (even, odd), strict=True):
        for request in requests:
            decide(request)
            server.reply(request, 1)
    for _, client in clients:
        assert list(until(client.poll, client)) == [(0, 1)]


LAYOUT = ParameterLayout.of({"weight": ((30, 7), "float32"), "count": ((), "int64")})


def buffer_of(version):
    buffer = np.zeros(LAYOUT.size_bytes, np.uint8)
    for array in LAYOUT.views(buffer).values():
        array[...] = version
    return buffer


def test_weights_reach_readers_whole_newest_or_exact(wiring):
    writer = wiring.server_side.parameter_writer("p", versions_kept=2)
    reader = wiring.client_side().parameter_reader("p")
    assert reader.latest_version() == -1
    assert reader.read() is None
    for version in range(5):
        writer.publish(version, LAYOUT, buffer_of(version))
        assert reader.wait(version, TIMEOUT_SECONDS) == version
        assert reader.latest_version() == version
        present, views = reader.read()
        assert present == version
        assert np.all(views["weight"] == version)
        assert views["count"] == version
    assert reader.read(3)[0] == 3
    assert np.all(reader.read(3)[1]["weight"] == 3)
    assert reader.read(0) is None
    assert reader.read(5) is None
    with pytest.raises(WaitTimeout, match="version 9"):
        reader.wait(9, 0.01)
    reader.close()
    writer.close()


def test_a_reader_once_a_second_is_at_the_newest_of_many(wiring):
    """Field case 49: publications between two reads leave no backlog."""
    writer = wiring.server_side.parameter_writer("p", versions_kept=1)
    readers = [wiring.client_side().parameter_reader("p") for _ in range(2)]
    for version in range(300):
        writer.publish(version, LAYOUT, buffer_of(version))
        if version % 100 == 99:
            for reader in readers:
                assert reader.read()[0] == version
                assert reader.latest_version() == version
    for end in (*readers, writer):
        end.close()

"""TCP only: strangers, malformed messages, ports."""

import contextlib
import select
import time

import numpy as np
import pytest
import zmq
from policy_specs import policy_spec
from transport_wiring import TIMEOUT_SECONDS, buffer_of, collect, credit_of

from srl.api.block import BlockHeader, policy_schema, trajectory_schema
from srl.api.errors import ResourceError, SchemaMismatchError, StreamError, WaitTimeout
from srl.api.policy import ActInput, ActOutput
from srl.api.spaces import ArraySpec
from srl.system.parameters import ParameterLayout
from srl.system.streams import messages
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused
from srl.system.streams.samples import describe
from srl.system.streams.tcp.inference import Frames
from srl.system.streams.tcp.keys import make_trial_keys
from srl.system.streams.tcp.transport import TcpTransport

SPEC = policy_spec()
SCHEMA = policy_schema(SPEC, rows=4, columns=2)
ACTOR = Producer(0, 0, 1)
LAYOUT = ParameterLayout.of({"weight": ((8,), "float32")})


@pytest.fixture
def keys(tmp_path):
    return make_trial_keys(tmp_path)


@pytest.fixture
def opened(keys):
    """Opens transports, and closes them at the end."""
    transports = []

    def open_one(endpoints=None, with_keys=keys, **options):
        transports.append(TcpTransport(endpoints or {}, with_keys, **options))
        return transports[-1]

    yield open_one
    for transport in reversed(transports):
        transport.close()


@pytest.fixture
def raw(opened, keys):
    """Connects a bare DEALER of a stranger who has the key (or not)."""
    context = zmq.Context()
    sockets = []

    def connect(address, protect=keys.protect_client):
        socket = context.socket(zmq.DEALER)
        sockets.append(socket)
        socket.linger = 0
        protect(socket)
        socket.connect(address)
        return socket

    yield connect
    for socket in sockets:
        socket.close()
    context.term()


def deliver_one(consumer, producer, grant, who=ACTOR):
    """One block from grant to announcement."""
    consumer.send_credit(who, Credit(grant, 0, 0, grant, 0))
    credit = credit_of(producer)
    producer.block(credit).buffer[:] = grant
    producer.send(BlockHeader(who.actor, who.incarnation, 0, grant, grant, 0, grant, 4, 8, 0, 1, 0))
    (event,) = collect(consumer, consumer.events)
    assert isinstance(event, Announced)
    assert np.all(consumer.block(0).buffer == grant)


def test_ports_are_chosen_by_the_system_and_published(opened):
    """Field case 52: ten trials at once on one host get ten ports, all on loopback."""
    addresses, writers = [], []
    for _ in range(10):
        transport = opened()
        transport.sample_consumer("s", 0, SCHEMA, 1)
        writers.append(transport.parameter_writer("p", 1))
        bound = transport.bound_endpoints()
        assert set(bound) == {"sample:s:0", "weights:p"}
        addresses += bound.values()
    assert len(set(addresses)) == 20
    assert all(address.startswith("tcp://127.0.0.1:") and not address.endswith(":0") for address in addresses)
    for writer in writers:
        writer.close()


def test_a_used_fixed_port_is_named_with_its_owner(opened):
    first = opened()
    first.sample_consumer("s", 0, SCHEMA, 1)
    port = int(first.bound_endpoints()["sample:s:0"].rpartition(":")[2])
    with pytest.raises(ResourceError, match=f"Port {port} is held by process \\d+ ") as caught:
        opened(ports={"sample:s:0": port}).sample_consumer("s", 0, SCHEMA, 1)
    assert caught.value.where == "sample:s:0"


def test_a_machine_without_ipv4_binds_and_connects_over_ipv6(opened, monkeypatch):
    def without_ipv4(family):
        raise OSError("no such family")

    monkeypatch.setattr("srl.system.streams.tcp.transport.socket.socket", without_ipv4)
    server = opened()
    writer = server.parameter_writer("p", 1)
    assert server.bound_endpoints()["weights:p"].startswith("tcp://[::1]:")
    writer.publish(0, LAYOUT, buffer_of(LAYOUT, 0))
    reader = opened(server.bound_endpoints()).parameter_reader("p")
    assert reader.read()[0] == 0
    reader.close()
    writer.close()


def test_an_unknown_endpoint_is_named(opened):
    with pytest.raises(StreamError, match="inference:i:1"):
        opened().inference_client("i", 2, SCHEMA, SPEC, Producer(3, 0, 1), "s")


def _without_a_key(socket):
    """Plain ZeroMQ."""


def _with_the_server_key_only(keys):
    def protect(socket):
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.server_public)

    return protect


@pytest.mark.parametrize("stranger", ["no key", "another client key", "another server key"])
def test_a_stranger_gets_no_data_and_disturbs_nobody(opened, raw, keys, tmp_path_factory, stranger):
    server = opened()
    consumer, writer = server.sample_consumer("s", 0, SCHEMA, 2), server.parameter_writer("p", 1)
    writer.publish(0, LAYOUT, buffer_of(LAYOUT, 0))
    protect = {
        "no key": _without_a_key,
        "another client key": _with_the_server_key_only(keys),
        "another server key": make_trial_keys(tmp_path_factory.mktemp("other")).protect_client,
    }[stranger]
    bound = server.bound_endpoints()
    sample, weights = raw(bound["sample:s:0"], protect), raw(bound["weights:p"], protect)
    for socket, message in (
        (sample, messages.pack_hello(ACTOR, describe(SCHEMA))),
        (weights, messages.pack_fetch(1, -1)),
    ):
        with contextlib.suppress(zmq.Again):  # refused already
            socket.send(message, zmq.NOBLOCK)

    client = opened(bound)
    producer, reader = client.sample_producer("s", 0, SCHEMA, ACTOR), client.parameter_reader("p")
    assert collect(consumer, consumer.events) == [Connected(ACTOR)]
    for grant in range(3):
        deliver_one(consumer, producer, grant)
    assert reader.read()[0] == 0
    # The honest ones came later and were served; by then the strangers would have been, too.
    assert list(consumer.events()) == []
    assert sample.poll(200) == 0
    assert weights.poll(0) == 0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while stranger == "another client key" and not server.denied:
        assert time.monotonic() < deadline
        assert sample.poll(10) == 0
    reader.close()
    writer.close()


MALFORMED = [
    [b""],
    [b"\xff\xff"],
    [messages.pack_hello(ACTOR, "no schema")],
    [messages.pack_hello(ACTOR, '{"rows": 4}')],
    [messages.pack_welcome(), b"a", b"b"],
    [b"x"] * 50,
]


@pytest.mark.parametrize("frames", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_messages_are_counted_and_the_stream_goes_on(opened, raw, frames):
    server = opened()
    consumer = server.sample_consumer("s", 0, SCHEMA, 2)
    bound = server.bound_endpoints()
    producer = opened(bound).sample_producer("s", 0, SCHEMA, ACTOR)
    assert collect(consumer, consumer.events) == [Connected(ACTOR)]
    raw(bound["sample:s:0"]).send_multipart(frames)
    assert collect(consumer, consumer.events) == [Refused("malformed")]
    deliver_one(consumer, producer, 1)


def test_messages_before_a_hello_are_refused(opened, raw):
    server = opened()
    consumer = server.sample_consumer("s", 0, SCHEMA, 2)
    stranger = raw(server.bound_endpoints()["sample:s:0"])
    stranger.send(messages.pack_given_back(0, "drain"))
    assert collect(consumer, consumer.events) == [Refused("unknown_producer")]


@pytest.mark.parametrize("payload", [None, b"", bytes(SCHEMA.size_bytes - 1), bytes(SCHEMA.size_bytes + 1)])
def test_a_payload_of_the_wrong_size_is_refused_and_the_grant_stays_open(opened, raw, payload):
    server = opened()
    consumer = server.sample_consumer("s", 0, SCHEMA, 2)
    socket = raw(server.bound_endpoints()["sample:s:0"])
    socket.send(messages.pack_hello(ACTOR, describe(SCHEMA)))
    assert collect(consumer, consumer.events) == [Connected(ACTOR)]
    consumer.send_credit(ACTOR, Credit(7, 0, 1, 0, 0))
    head = messages.pack_block(BlockHeader(0, 0, 0, 0, 7, 1, 0, 4, 8, 0, 1, 0))
    socket.send_multipart([head] if payload is None else [head, payload])
    assert collect(consumer, consumer.events) == [Refused("malformed")]
    socket.send_multipart([head, bytes([3]) * SCHEMA.size_bytes])
    assert isinstance(collect(consumer, consumer.events)[0], Announced)
    assert np.all(consumer.block(1).buffer == 3)


def test_a_frame_beyond_all_bounds_is_not_even_received(opened, raw):
    """ZeroMQ ends the connection before it allocates; the others do not notice."""
    server = opened()
    consumer = server.sample_consumer("s", 0, SCHEMA, 2)
    bound = server.bound_endpoints()
    producer = opened(bound).sample_producer("s", 0, SCHEMA, ACTOR)
    assert collect(consumer, consumer.events) == [Connected(ACTOR)]
    raw(bound["sample:s:0"]).send(bytes(64 << 20))
    for grant in range(20):
        deliver_one(consumer, producer, grant)
    assert list(consumer.events()) == []


def request_of(client):
    batch = ActInput(
        np.ones((2, 4), np.float32), np.full((2, 1), 0.5, np.float32), np.array([True, False]), np.array([True, True])
    )
    out = ActOutput(np.zeros(2, np.int64), {"value": np.zeros(2, np.float32)})
    client.request(Credit(0, 0, 0, 0, 3), 0, batch, out)
    return out


def test_a_policy_worker_survives_what_no_actor_sends(opened, raw):
    server_side = opened()
    server = server_side.inference_server("i", 0, SCHEMA, SPEC, "s")
    bound = server_side.bound_endpoints()
    frames = Frames.of(SCHEMA, SPEC)
    socket = raw(bound["inference:i:0"])
    socket.send(messages.pack_ask(0, 1, 0, False))  # no hello
    socket.send(b"\xff")
    socket.send(messages.pack_hello(Producer(1, 0, 1), frames.describe()))
    socket.send(messages.pack_ask(5, 1, 0, False))  # no such ring group
    socket.send_multipart([messages.pack_ask(0, 1, 0, False), b"short"])
    client = opened(bound).inference_client("i", 1, SCHEMA, SPEC, ACTOR, "s")
    # The stranger's last message, a proper one, says that all before it have been read.
    socket.send_multipart([messages.pack_ask(0, 1, 0, False), bytes(frames.request.size_bytes)])
    out = request_of(client)
    requests = collect(server, server.requests, 2)
    assert server.refused == 4
    mine = next(request for request in requests if request.actor == 0)
    mine.out.action[:] = [1, 0]
    mine.out.extras["value"][:] = 7
    server.reply(mine, 3)
    assert collect(client, client.poll) == [(0, 3)]
    assert out.action.tolist() == [1, 0]
    assert out.extras["value"].tolist() == [7, 7]


def test_actor_and_policy_worker_of_different_layouts_are_told(opened):
    server_side = opened()
    server = server_side.inference_server("i", 0, SCHEMA, SPEC, "s")
    other = trajectory_schema(
        rows=4, columns=3, observation=ArraySpec((4,), "float32"), action=SPEC.action_array, extras=SPEC.extras
    )
    client = opened(server_side.bound_endpoints()).inference_client("i", 1, other, SPEC, ACTOR, "s")

    def rejected():
        server.requests()
        try:
            client.poll()
        except SchemaMismatchError:
            return [True]
        return []

    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not rejected():
        assert time.monotonic() < deadline
        select.select([*server.wait_descriptors(), *client.wait_descriptors()], [], [], TIMEOUT_SECONDS)


def test_an_earlier_life_of_an_actor_is_not_answered(opened):
    server_side = opened()
    server = server_side.inference_server("i", 0, SCHEMA, SPEC, "s")
    bound = server_side.bound_endpoints()
    old = opened(bound).inference_client("i", 1, SCHEMA, SPEC, Producer(0, 0, 1), "s")
    request_of(old)
    (first,) = collect(server, server.requests)
    assert first.incarnation == 0
    new = opened(bound).inference_client("i", 1, SCHEMA, SPEC, Producer(0, 1, 1), "s")
    request_of(new)
    (second,) = collect(server, server.requests)
    assert second.incarnation == 1
    refused = server.refused
    request_of(old)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while server.refused == refused:
        assert list(server.requests()) == []
        assert time.monotonic() < deadline


def test_a_reader_without_its_writer_gives_up_in_time(opened):
    server = opened()
    writer = server.parameter_writer("p", 1)
    reader = opened(server.bound_endpoints(), fetch_seconds=0.2).parameter_reader("p")
    writer.publish(0, LAYOUT, buffer_of(LAYOUT, 0))
    assert reader.read()[0] == 0
    writer.close()
    with pytest.raises(WaitTimeout, match="policy 'p'"):
        reader.read()
    assert reader.latest_version() == 0
    reader.close()


def test_buffers_of_a_producer_are_used_again(opened):
    """Credits bound the number of buffers, however many blocks are sent."""
    server = opened()
    consumer = server.sample_consumer("s", 0, SCHEMA, 2)
    producer = opened(server.bound_endpoints()).sample_producer("s", 0, SCHEMA, ACTOR)
    collect(consumer, consumer.events)
    addresses = set()
    for grant in range(50):
        consumer.send_credit(ACTOR, Credit(grant, 0, 0, grant, 0))
        credit = credit_of(producer)
        block = producer.block(credit)
        assert producer.block(credit) is block
        addresses.add(block.buffer.ctypes.data)
        producer.send(BlockHeader(0, 0, 0, grant, grant, 0, grant, 4, 8, 0, 1, 0))
        collect(consumer, consumer.events)
    assert len(addresses) <= 3

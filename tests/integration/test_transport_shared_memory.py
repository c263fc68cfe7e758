"""Shared memory only: mailboxes across deaths, wake-ups that neither get lost nor repeat, private sockets."""

import select

import numpy as np
import pytest
from policy_specs import policy_spec

from srl.api.block import policy_schema
from srl.api.errors import StreamError, UsageError
from srl.api.policy import ActInput, ActOutput
from srl.system.streams.interface import Credit, Producer
from srl.system.streams.shared_memory.descriptors import (
    InferenceSegment,
    SampleSegments,
    close_descriptors,
    create_descriptors,
    plan_descriptors,
)
from srl.system.streams.shared_memory.mailboxes import INCARNATION, RANK, REQUEST, ROW, SLOT
from srl.system.streams.shared_memory.segments import SlotPool
from srl.system.streams.shared_memory.transport import SharedMemoryTransport

pytestmark = pytest.mark.usefixtures("no_leaks")

ROWS, COLUMNS, SLOTS, ACTORS, RING_GROUPS = 4, 2, 3, 2, 2
SPEC = policy_spec()
SCHEMA = policy_schema(SPEC, rows=ROWS, columns=COLUMNS)


class Host:
    """One trainer's pool, one policy worker, two actors; no sockets are needed for requests."""

    def __init__(self, run_dir):
        actors = ("actor/0", "actor/1")
        plan = plan_descriptors(
            [SampleSegments("s", SCHEMA, SLOTS, ("trainer/0",), (*actors, "policy/0"))],
            [InferenceSegment("i", SCHEMA, SPEC, RING_GROUPS, actors, ("policy/0",))],
        )
        self.run_dir = run_dir
        self.descriptors = create_descriptors(plan)
        self.pool = SlotPool(self.descriptors["samples:s:0"], SCHEMA, "samples:s:0")
        self._transports = []

    def transport(self, **changes):
        self._transports.append(SharedMemoryTransport(self.descriptors, self.run_dir, **changes))
        return self._transports[-1]

    def server(self):
        return self.transport().inference_server("i", 0, SCHEMA, SPEC, "s")

    def actor(self, actor=0, incarnation=0):
        return Actor(self.transport(), Producer(actor, incarnation, RING_GROUPS))

    def close(self):
        for transport in self._transports:
            transport.close()
        self.pool.close()
        close_descriptors(self.descriptors)


class Actor:
    def __init__(self, transport, who):
        self.client = transport.inference_client("i", 1, SCHEMA, SPEC, who, "s")
        # The block as this process maps it.
        self.pool = transport._pool("s", 0, SCHEMA)

    def request(self, slot=0, row=0, group=0, block_row=None):
        block = self.pool.block(slot)
        at = row if block_row is None else block_row
        batch = ActInput(
            block["observation"][at], np.ones((COLUMNS, 1), np.float32), block["episode_start"][at], block["valid"][at]
        )
        out = ActOutput(block["action"][at], {"value": block["value"][at]})
        self.client.request(Credit(0, group, slot, 0, 3), row, batch, out)


@pytest.fixture
def host(run_dir):
    host = Host(run_dir)
    yield host
    host.close()


def is_readable(end):
    return bool(select.select(list(end.wait_descriptors()), [], [], 0)[0])


def test_a_wake_up_is_there_exactly_while_something_is_to_be_found(host):
    server, actor = host.server(), host.actor()
    assert not is_readable(server)
    for row in range(ROWS):
        actor.request(row=row)
        assert is_readable(server)
        (request,) = server.requests()
        assert server.requests() == []
        assert not is_readable(server)
        assert actor.client.poll() == []
        assert not is_readable(actor.client)
        server.reply(request, 3)
        assert is_readable(actor.client)
        assert actor.client.poll() == [(0, 3)]
        assert list(actor.client.poll()) == []
        assert not is_readable(actor.client)


def test_two_replies_and_one_wake_up(host):
    server, actor = host.server(), host.actor()
    actor.request(group=0)
    actor.request(group=1, slot=1)
    requests = server.requests()
    for request in requests:
        server.reply(request, 4)
    assert sorted(actor.client.poll()) == [(0, 4), (1, 4)]
    assert list(actor.client.poll()) == []
    assert not is_readable(actor.client)


def test_requests_are_handed_out_oldest_first(host):
    server, first, second = host.server(), host.actor(0), host.actor(1)
    second.request(group=1)
    first.request(group=0)
    second.request(group=0)
    assert [(request.actor, request.ring_group) for request in server.requests()] == [(1, 1), (0, 0), (1, 0)]


def test_a_successor_of_the_policy_worker_answers_what_is_open(host):
    first, actor = host.server(), host.actor()
    actor.request(row=2)
    (lost,) = first.requests()
    first.abort()
    second = host.server()
    (request,) = second.requests()
    assert (request.actor, request.ring_group, request.min_version) == (lost.actor, lost.ring_group, 3)
    second.reply(request, 5)
    assert actor.client.poll() == [(0, 5)]
    third = host.server()
    assert third.requests() == []


def test_a_reply_to_a_dead_actor_is_none_to_its_successor(host):
    server, first = host.server(), host.actor()
    first.request(row=0)
    (stale,) = server.requests()
    second = host.actor(incarnation=1)
    second.request(row=1)
    (request,) = server.requests()
    assert request.incarnation == 1
    server.reply(stale, 1)
    assert second.client.poll() == []
    server.reply(request, 2)
    server.reply(stale, 1)
    assert second.client.poll() == [(0, 2)]


def test_a_superseded_actor_that_wakes_up_is_refused(host):
    server, old, new = host.server(), host.actor(), host.actor(incarnation=1)
    new.request(group=1)
    assert len(server.requests()) == 1
    old.request(group=0)
    assert server.requests() == []
    assert server.refused == 1


@pytest.mark.parametrize(("word", "value"), [(SLOT, SLOTS), (SLOT, -1), (ROW, ROWS + 1), (ROW, -1), (RANK, 1)])
def test_a_request_about_a_row_that_does_not_exist_is_refused(host, word, value):
    server, actor = host.server(), host.actor()
    words = actor.client._boxes[0].words
    words[INCARNATION], words[SLOT], words[ROW], words[RANK] = 0, 0, 0, 0
    words[word] = value
    words[REQUEST] += 1
    assert server.requests() == []
    assert server.refused == 1


def test_arrays_that_are_not_the_blocks_are_named(host):
    actor = host.actor()
    with pytest.raises(UsageError, match="'observation' is not row 1"):
        actor.request(row=1, block_row=0)


def test_an_actor_without_mailboxes_is_refused(host):
    with pytest.raises(StreamError, match="no mailboxes"):
        host.transport().inference_client("i", 1, SCHEMA, SPEC, Producer(0, 0, RING_GROUPS + 1), "s")
    with pytest.raises(StreamError, match="number of policy workers"):
        host.transport().inference_client("i", 2, SCHEMA, SPEC, Producer(0, 0, 1), "s")


def test_a_descriptor_that_was_not_given_is_named(host):
    with pytest.raises(StreamError, match="weights:p"):
        host.transport().parameter_reader("p")


def test_sockets_lie_in_a_private_directory_only(host):
    host.run_dir.chmod(0o750)
    with pytest.raises(StreamError, match="others have access"):
        host.transport().sample_consumer("s", 0, SCHEMA, SLOTS)


def test_a_path_too_long_for_a_socket_is_named(host):
    host.run_dir = host.run_dir / ("x" * 100)
    host.run_dir.mkdir(0o700)
    with pytest.raises(StreamError, match="too long"):
        host.transport().sample_consumer("s", 0, SCHEMA, SLOTS)


def test_a_pool_with_fewer_slots_than_agreed_is_refused(host):
    with pytest.raises(StreamError, match="smaller"):
        host.transport().sample_consumer("s", 0, SCHEMA, SLOTS + 1)

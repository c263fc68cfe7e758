"""What every transport promises for inference streams, by the same test bodies: in process, shared memory, TCP."""

from dataclasses import replace

import numpy as np
import pytest
from transport_wiring import (
    ACTOR,
    ACTORS,
    COLUMNS,
    EXTRAS,
    RING_GROUPS,
    ROWS,
    SPEC,
    Wiring,
    credit_of,
    events_of,
    requests_of,
    schema_of,
    until,
)

from srl.api.policy import ActInput, ActOutput
from srl.api.spaces import SpaceSpec
from srl.system.streams.interface import Connected, Credit, Producer

pytestmark = pytest.mark.usefixtures("zero_copy_collector", "no_leaks")

RICH = replace(
    SPEC,
    observation=SpaceSpec.nested(
        "dict", {"image": SpaceSpec("box", (3, 3), "uint8"), "speed": SpaceSpec("box", (2,), "float32")}
    ),
    action_mask=2,
    state_size=3,
    state_rows=ROWS,
)


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


def test_records_masks_and_states_travel_with_every_row(transport_kind, run_dir):
    wiring = Wiring(transport_kind, run_dir, schema_of(RICH), RICH)
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

"""Both ends of every transport in this process and thread, for tests that run with each of them.

A worker's shell is imitated by :func:`until`, which polls and blocks on the ends' descriptors.
"""

import select
import time

import numpy as np
from policy_specs import policy_spec

from srl.api.block import BlockHeader, FieldSpec, policy_schema
from srl.api.policy import NoiseSpec
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Connected, Producer
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

ROWS, COLUMNS, SLOTS, ACTORS, RING_GROUPS = 5, 3, 6, 3, 2
TIMEOUT_SECONDS = 60.0
EXTRAS = (FieldSpec("log_probability", (), "float32"), FieldSpec("value", (), "float32"))
SPEC = policy_spec(extras=EXTRAS, noise=NoiseSpec("uniform", (2,)))


def schema_of(spec=SPEC):
    return policy_schema(spec, rows=ROWS, columns=COLUMNS)


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


def collect(end, poll, count=1):
    """The next ``count`` things that ``poll`` returns, and no more, blocking on the end's descriptors in between."""
    found = []

    def enough():
        found.extend(poll())
        return len(found) >= count

    until(enough, end)
    assert len(found) == count, found
    return found


def events_of(consumer, count):
    """The next ``count`` events."""
    return collect(consumer, consumer.events, count)


def requests_of(server, count=1):
    """The next ``count`` requests."""
    return collect(server, server.requests, count)


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


def buffer_of(layout, version):
    """Weights that are all ``version``."""
    buffer = np.zeros(layout.size_bytes, np.uint8)
    for array in layout.views(buffer).values():
        array[...] = version
    return buffer

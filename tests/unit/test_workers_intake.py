"""The intake by itself: producers that come and go."""

from __future__ import annotations

from srl.api.block import trajectory_schema
from srl.api.spaces import ArraySpec
from srl.system.flow.control import FlowControl
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Producer
from srl.system.workers.intake import Intake

SCHEMA = trajectory_schema(
    rows=4, columns=2, observation=ArraySpec((1,), "float32"), action=ArraySpec((), "int64"), extras=()
)


def intake_of(transport: InProcessTransport) -> Intake:
    flow = FlowControl(blocks_per_update=1, max_policy_lag=0, on_straggler="wait", slots=2, producers=1, lockstep=False)
    consumer = transport.sample_consumer("samples", 0, SCHEMA, 2)
    return Intake(consumer, flow, SCHEMA, blocks_per_update=1, threaded=False)


def test_a_greeting_that_arrives_after_the_news_of_the_death_gets_no_credit() -> None:
    """Its credit would never come back: the trainer would wait for it at the end until it is killed."""
    transport = InProcessTransport()
    intake = intake_of(transport)
    intake.start(0)
    intake.producer_gone(0, 0)
    late = transport.sample_producer("samples", 0, SCHEMA, Producer(0, 0, 1))
    intake.pump()
    intake.drain()
    assert intake.drained()
    assert intake.counts()["credits"]["granted"] == 0
    late.close()
    intake.close()


def test_the_next_life_of_that_actor_is_served() -> None:
    transport = InProcessTransport()
    intake = intake_of(transport)
    intake.start(0)
    intake.producer_gone(0, 0)
    successor = transport.sample_producer("samples", 0, SCHEMA, Producer(0, 1, 1))
    intake.pump()
    successor.poll()
    assert successor.take_credit(0) is not None
    successor.close()
    intake.close()

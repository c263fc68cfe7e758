"""Dealing of blocks over trainer ranks: who gets which, that nobody waits for ever, and that the accounts add up."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.api.block import BlockHeader, trajectory_schema
from srl.api.spaces import ArraySpec
from srl.system.flow.control import Cut, FlowControl, Grant, ReadyBlock
from srl.system.flow.dealing import rank_of, turns
from srl.system.flow.gate import default_slots
from srl.system.streams.dealing import DealingProducer
from srl.system.streams.in_process import InProcessTransport
from srl.system.streams.interface import Connected, Credit, Producer, SampleConsumer

SCHEMA = trajectory_schema(
    rows=2, columns=1, observation=ArraySpec((1,), "float32"), action=ArraySpec((), "int64"), extras=()
)


def header(producer: Producer, credit: Credit, sequence: int) -> BlockHeader:
    return BlockHeader(
        producer.actor, producer.incarnation, credit.ring_group, sequence, credit.grant, credit.slot,
        credit.generation, 2, 2, 0, 1, credit.min_version,
    )  # fmt: skip


@pytest.mark.parametrize(("units", "ranks"), [(1, 1), (4, 2), (6, 3), (3, 2), (2, 3), (5, 1)])
def test_the_turns_of_all_ranks_are_every_unit_once_in_the_order_of_the_deal(units: int, ranks: int) -> None:
    dealt: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    for sequence, unit in itertools.product(range(ranks), range(units)):
        dealt[rank_of(unit, sequence, ranks)].append(unit)
    for rank in range(ranks):
        assert turns(units, rank, ranks) == tuple(dealt[rank])
        assert sorted(dealt[rank]) == list(range(units))


def test_one_ring_group_per_actor_is_dealt_by_actor_and_sequence() -> None:
    for actor, sequence in itertools.product(range(5), range(5)):
        assert rank_of(actor, sequence, 3) == (actor + sequence) % 3


@dataclass
class Graph:
    """Trainer ranks and actors over the in-process transport, driven one event at a time."""

    actors: int
    ring_groups: int
    ranks: int
    blocks: int
    lag: int | None
    lockstep: bool
    straggler: Any = "wait"
    first_version: int = 0
    now: float = 0.0
    version: int = 0
    taken: dict[int, list[ReadyBlock]] = field(default_factory=dict)
    sequences: Counter[tuple[int, int]] = field(default_factory=Counter)
    open: dict[tuple[int, int], Credit] = field(default_factory=dict)
    updates: list[list[list[tuple[int, int, int]]]] = field(default_factory=list)
    sent: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        transport = InProcessTransport()
        per_rank = self.blocks // self.ranks
        self.version = self.first_version
        slots = default_slots(per_rank, self.lag)
        units = self.actors * self.ring_groups
        slots = slots if self.lag is not None else max(slots, 2 * per_rank + units)
        self.consumers: list[SampleConsumer] = []
        self.flows = []
        for rank in range(self.ranks):
            self.consumers.append(transport.sample_consumer("s", rank, SCHEMA, slots))
            self.flows.append(
                FlowControl(
                    blocks_per_update=per_rank,
                    max_policy_lag=self.lag,
                    on_straggler=self.straggler,
                    slots=slots,
                    producers=units,
                    lockstep=self.lockstep,
                    rank=rank,
                    ranks=self.ranks,
                )
            )
        self.producers = [Producer(actor, 0, self.ring_groups) for actor in range(self.actors)]
        self.ends = [
            DealingProducer(
                [transport.sample_producer("s", rank, SCHEMA, producer) for rank in range(self.ranks)],
                producer,
                strict=self.lockstep,
            )
            for producer in self.producers
        ]

    def pump(self, rank: int) -> bool:
        """What a rank's intake does: take in, take an update's blocks, grant."""
        consumer, flow = self.consumers[rank], self.flows[rank]
        events = consumer.events()
        for event in events:
            flow.handle(event, self.now)
        moved = bool(events)
        if rank not in self.taken and (blocks := flow.take(self.version, self.now)) is not None:
            self.taken[rank] = blocks
            moved = True
        for instruction in flow.instructions(self.version, self.now):
            moved = True
            if isinstance(instruction, Grant):
                consumer.send_credit(instruction.producer, instruction.credit)
            elif isinstance(instruction, Cut):
                consumer.send_cut(instruction.producer, instruction.grant)
        return moved

    def update(self) -> bool:
        """All ranks have their blocks: train."""
        if len(self.taken) < self.ranks:
            return False
        for rank, blocks in self.taken.items():
            self.flows[rank].release(blocks)
            self.flows[rank].trained(blocks, self.version)
        named = [[(b.header.actor, b.header.ring_group, b.header.sequence) for b in self.taken[r]] for r in self.taken]
        self.updates.append([sorted(named[list(self.taken).index(rank)]) for rank in range(self.ranks)])
        self.taken.clear()
        self.version += 1
        return True

    def begin(self, actor: int, ring_group: int) -> bool:
        """A unit without a block takes a credit if there is one."""
        end = self.ends[actor]
        end.poll()
        if (actor, ring_group) in self.open:
            return False
        credit = end.take_credit(ring_group)
        if credit is None:
            return False
        if credit.grant in end.cuts():
            end.give_back(credit, "cut")
        else:
            assert end.block(credit) is self.consumers[credit.rank].block(credit.slot)
            self.open[actor, ring_group] = credit
        return True

    def finish(self, actor: int, ring_group: int) -> bool:
        """A unit sends its block."""
        credit = self.open.pop((actor, ring_group), None)
        if credit is None:
            return False
        sequence = self.sequences[actor, ring_group]
        self.sequences[actor, ring_group] += 1
        self.sent[credit.rank] += 1
        self.ends[actor].send(header(self.producers[actor], credit, sequence))
        return True

    def run(self, updates: int, seed: int) -> None:
        """Let everything happen in a random order until so many updates were made; nothing may come to rest before."""
        chance = random.Random(seed)
        units = list(itertools.product(range(self.actors), range(self.ring_groups)))
        while len(self.updates) < updates:
            acts = [(self.pump, (rank,)) for rank in range(self.ranks)]
            acts += [(act, unit) for unit in units for act in (self.begin, self.finish)]
            chance.shuffle(acts)
            moved = [act(*arguments) for act, arguments in acts if chance.random() < 0.7]
            self.now += chance.random() * 0.1
            if self.update() or any(moved):
                continue
            everything = [act(*arguments) for act, arguments in acts]
            self.now += 1.0  # whoever is late by now is a straggler
            assert any(everything) or self.update() or any(self.pump(rank) for rank in range(self.ranks)), "all wait"

    def check(self) -> None:
        """The accounts of all ranks together are what the actors sent."""
        counts = [flow.counts()["blocks"] for flow in self.flows]
        arrived = sum(count["produced"] for count in counts)
        assert sum(self.sent.values()) - arrived == sum(len(c._channel.to_consumer) for c in self.consumers)  # type: ignore[attr-defined]
        assert sum(count["trained"] for count in counts) == len(self.updates) * self.blocks


shapes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@given(shapes, st.sampled_from([0, 1, 3, None]), st.sampled_from(["wait", "cut", "drop"]), st.integers(0, 10**6))
def test_no_rank_and_no_actor_waits_for_ever(shape: Any, lag: int | None, straggler: str, seed: int) -> None:
    actors, ring_groups, ranks, factor = shape
    graph = Graph(actors, ring_groups, ranks, ranks * factor, lag, lockstep=False, straggler=straggler)
    graph.run(12, seed)
    graph.check()


@given(
    st.integers(1, 3), st.integers(1, 2), st.integers(2, 3), st.integers(1, 4), st.sampled_from([0, 1, 2]),
    st.integers(0, 10**6), st.integers(0, 5),
)  # fmt: skip
def test_lockstep_deals_by_the_rule_and_every_update_has_the_blocks_that_one_rank_would_have(
    factor: int, ring_groups: int, ranks: int, blocks: int, lag: int, seed: int, first_version: int
) -> None:
    actors = factor * ranks
    graph = Graph(actors, ring_groups, ranks, ranks * blocks, lag, lockstep=True, first_version=first_version)
    graph.run(9, seed)
    graph.check()
    units = actors * ring_groups
    for number, update in enumerate(graph.updates):
        positions = range(number * ranks * blocks, (number + 1) * ranks * blocks)
        wanted = [(unit // ring_groups, unit % ring_groups, s) for s, unit in (divmod(p, units) for p in positions)]
        assert sorted(block for dealt in update for block in dealt) == sorted(wanted)
        for rank, dealt in enumerate(update):
            assert len(dealt) == blocks
            assert {rank_of(a * ring_groups + g, s, ranks) for a, g, s in dealt} == {rank}


def settle(graph: Graph) -> None:
    for rank in range(graph.ranks):
        while graph.pump(rank):
            pass


@pytest.mark.parametrize("lag", [0, 1])
def test_ranks_do_not_grant_to_the_same_units_while_others_stand_idle(lag: int) -> None:
    """Every unit fills one block per update, even where the first actor to connect got a head start."""
    graph = Graph(4, 1, 2, 4, lag, lockstep=False)
    for flow, consumer in zip(graph.flows, graph.consumers, strict=True):
        flow.handle(Connected(graph.producers[0]), 0.0)
        consumer.events()
        for grant in flow.instructions(0, 0.0):
            assert isinstance(grant, Grant)
            consumer.send_credit(grant.producer, grant.credit)
        for producer in graph.producers[1:]:
            flow.handle(Connected(producer), 0.0)
    made: list[Counter[tuple[int, int]]] = []
    for _ in range(40):
        settle(graph)
        graph.update()
        for act in (graph.begin, graph.finish):
            for actor in range(4):
                act(actor, 0)
        made.append(Counter(graph.sequences))
    later = [made[-1][actor, 0] - made[9][actor, 0] for actor in range(4)]
    assert max(later) - min(later) <= 1, later
    assert min(later) >= 14


def test_grants_of_different_ranks_are_told_apart() -> None:
    graph = Graph(2, 1, 2, 2, 1, lockstep=False)
    settle(graph)
    end = graph.ends[0]
    end.poll()
    first, second = end.take_credit(0), end.take_credit(0)
    assert first is not None
    assert second is not None
    assert (first.rank, second.rank) == (0, 1)
    assert first.grant != second.grant
    graph.consumers[1].send_cut(graph.producers[0], second.grant // 2)
    end.poll()
    assert end.cuts() == {second.grant}
    end.give_back(second, "cut")
    assert end.cuts() == set()
    (returned,) = [event for event in graph.consumers[1].events()]
    assert (returned.grant, returned.slot, returned.reason) == (second.grant // 2, second.slot, "cut")  # type: ignore[union-attr]
    end.send(header(graph.producers[0], first, 0))
    (announced,) = graph.consumers[0].events()
    assert announced.header.grant == first.grant // 2  # type: ignore[union-attr]
    assert list(end.wait_descriptors()) == []
    end.close()


def test_in_lockstep_a_credit_of_another_rank_is_left_until_its_turn() -> None:
    graph = Graph(2, 1, 2, 2, 1, lockstep=True)
    while graph.pump(1):
        pass
    end = graph.ends[0]
    end.poll()
    assert end.take_credit(0) is None  # the first block of actor 0 is rank 0's, and only rank 1 has granted
    while graph.pump(0):
        pass
    end.poll()
    first = end.take_credit(0)
    assert first is not None
    assert first.rank == 0
    end.give_back(first, "non_finite")
    graph.pump(0)
    end.poll()
    again = end.take_credit(0)
    assert again is not None
    assert (again.rank, again.grant) == (0, first.grant)
    end.send(header(graph.producers[0], again, 0))
    after = end.take_credit(0)
    assert after is not None
    assert after.rank == 1
    end.abort()

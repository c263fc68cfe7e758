"""Flow control with imitated producers, driven one event at a time."""

from collections import Counter

from srl.api.block import BlockHeader
from srl.system.flow.control import FlowControl, Grant
from srl.system.streams.interface import Announced, Connected, Producer, Returned


class Bench:
    """A ``FlowControl`` with its producers connected, and the grants they hold."""

    def __init__(self, *ring_groups, blocks, lag, on_straggler="cut", slots=None, lockstep=False, producers=None):
        self.flow = FlowControl(
            blocks_per_update=blocks,
            max_policy_lag=lag,
            on_straggler=on_straggler,
            slots=slots or (2 if lag is None else lag + 2) * blocks,
            producers=producers or sum(ring_groups),
            lockstep=lockstep,
        )
        self.grants = {}
        self.sequences = Counter()
        self.producers = [Producer(actor, 0, groups) for actor, groups in enumerate(ring_groups)]
        for producer in self.producers:
            self.flow.handle(Connected(producer), 0.0)

    def instruct(self, version=0, now=0.0):
        """Returns units granted to, in order; keeps the grants; and the cuts."""
        units, cuts = [], []
        for order in self.flow.instructions(version, now):
            if isinstance(order, Grant):
                self.grants[order.credit.grant] = order
                units.append((order.producer.actor, order.credit.ring_group))
            else:
                cuts.append(order)
        return units, cuts

    def header(self, number, *, length=8, valid_rows=None):
        grant = self.grants[number]
        credit = grant.credit
        return BlockHeader(
            actor=grant.producer.actor,
            incarnation=grant.producer.incarnation,
            ring_group=credit.ring_group,
            sequence=self.sequences[grant.producer.actor, credit.ring_group],
            grant=number,
            slot=credit.slot,
            generation=credit.generation,
            length=length,
            valid_rows=length if valid_rows is None else valid_rows,
            finals=0,
            versions=1,
            min_version=credit.min_version,
        )

    def announce(self, *numbers, now=0.0, length=8):
        for number in numbers:
            header = self.header(number, length=length)
            self.sequences[header.actor, header.ring_group] += 1
            self.flow.handle(Announced(self.grants.pop(number).producer, header), now)

    def give_back(self, number, reason):
        grant = self.grants.pop(number)
        self.flow.handle(Returned(grant.producer, number, grant.credit.slot, reason), 0.0)

    def update(self, version, now=0.0):
        """Take, release and train; returns the grants in it."""
        blocks = self.flow.take(version, now)
        if blocks is None:
            return None
        self.flow.release(blocks)
        self.flow.trained(blocks, version)
        return [block.header.grant for block in blocks]

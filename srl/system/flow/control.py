"""Flow control of one consumer: what to grant, what to cut, what to train on. Decides; the trainer worker does.

::

    loop:
        for event in consumer.events(): flow.handle(event, now)      (all that arrived, before anything is decided)
        for order in flow.instructions(version, now): send it
        blocks = flow.take(version, now)                             (None: wait, at most until flow.wake_time(now))
        copy out; flow.release(blocks)                               (their slots may be granted again)
        update; flow.trained(blocks, version)                        (or flow.discard(blocks, reason))
        version += 1

The blocks of the next update may be taken (with ``version + 1``) while an update runs. Time is an argument, in seconds
of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from srl.api.block import BlockHeader
from srl.api.errors import ResourceError, StreamError
from srl.system.flow.accounting import BlockAccount, EdgeAccount
from srl.system.flow.assignment import Assignment, LeastLoaded, RoundRobin, Unit
from srl.system.flow.gate import Gate, LagGate
from srl.system.flow.ledger import Owner, Refusal, SlotLedger, SlotState
from srl.system.flow.lockstep import LockstepGate
from srl.system.flow.orders import Cut, Grant, ReadyBlock
from srl.system.flow.stragglers import OnStraggler, Stragglers
from srl.system.streams.interface import Announced, Connected, Credit, Producer, Refused, Returned, SampleEvent

__all__ = ["Cut", "FlowControl", "Grant", "OnStraggler", "ReadyBlock"]

#: An actor that drains returns its credits with this word. Granted again, they would come back at once, for ever.
SHUTDOWN_REASON = "shutdown"


@dataclass(frozen=True, slots=True)
class _Outstanding:
    """A grant in a producer's hands."""

    producer: Producer
    credit: Credit

    @property
    def unit(self) -> Unit:
        return self.producer.actor, self.credit.ring_group


class FlowControl:
    """Slot ledger, gate, stragglers and accounts, composed.

    Each trainer rank has one of its own, for the blocks that are dealt to it (``dealing.py``).

    Args:
        blocks_per_update: N, of this rank.
        max_policy_lag: k in versions; ``None``: no bound (throughput mode).
        on_straggler: What happens to a grant that holds up an update and is outstanding for too long
            (``stragglers.py``). ``cut``: its owner is asked once for the rows it has; ``drop``: it is written off,
            given back, and its block discarded on arrival (reason ``straggler``); ``wait``: nothing. Lockstep always
            waits.
        slots: Slots of the consumer's pool, at least N; see ``gate.default_slots``.
        producers: Number of (actor, ring group) pairs expected.
        lockstep: Grants in turn, exact versions, blocks in (actor, ring group, sequence) order.
        rank: The trainer rank that consumes.
        ranks: Number of ranks.

    Raises:
        ResourceError: If there are fewer slots than an update needs.
        UsageError: If N or k is out of range, or lockstep has no bound.
    """

    def __init__(
        self,
        *,
        blocks_per_update: int,
        max_policy_lag: int | None,
        on_straggler: OnStraggler,
        slots: int,
        producers: int,
        lockstep: bool,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        if slots < blocks_per_update:
            raise ResourceError(
                "an update needs more blocks than there are slots",
                value=slots,
                expected=f"at least {blocks_per_update}",
            )
        self._ledger = SlotLedger(slots)
        self._gate: Gate
        self._assignment: Assignment
        if lockstep:
            self._gate = LockstepGate(blocks_per_update, max_policy_lag)
            self._stragglers = Stragglers("wait", None)
            self._assignment = RoundRobin(producers, rank, ranks)
        else:
            self._gate = lag_gate = LagGate(blocks_per_update, max_policy_lag)
            self._stragglers = Stragglers(on_straggler, lag_gate)
            bound = slots if max_policy_lag is None else min(slots, (max_policy_lag + 1) * blocks_per_update)
            self._assignment = LeastLoaded(producers, bound, rank, ranks)
        self._lockstep = lockstep
        self._draining = False
        self._producers: dict[int, Producer] = {}
        self._fences: dict[int, int] = {}
        self._outstanding: dict[int, _Outstanding] = {}
        self._ready: dict[int, ReadyBlock] = {}
        self._taken: dict[int, ReadyBlock] = {}
        self._blocks = BlockAccount()
        self._credits = EdgeAccount()
        self._refused: dict[str, int] = {}
        self._gated_since_seconds: float | None = None
        self._gated_seconds = 0.0

    # What happened.

    def handle(self, event: SampleEvent, now_seconds: float) -> None:
        """Take in one event of the consumer's end."""
        match event:
            case Connected(producer):
                self._connected(producer)
            case Announced():
                self._announced(event, now_seconds)
            case Returned():
                self._returned(event)
            case Refused(reason):
                self._refuse(reason)

    def producer_died(self, producer: Producer) -> None:
        """This life of the producer is over, or believed to be: its credits end, its slots go into quarantine."""
        self._fences[producer.actor] = max(self._fences.get(producer.actor, 0), producer.incarnation + 1)
        current = self._producers.get(producer.actor)
        if current is None or current.incarnation > producer.incarnation:
            return
        for owner in self._ledger.producer_died(current):
            self._end_without_block(owner.grant, Refusal.PRODUCER_DIED)
        self._assignment.disconnect(current)
        del self._producers[producer.actor]

    def confirmed_dead(self, producer: Producer) -> None:
        """It, and every policy worker with an open request on it, is gone for certain: its slots may be used again."""
        self.producer_died(producer)
        self._ledger.confirmed_dead(producer)

    # What to do.

    def instructions(self, version: int, now_seconds: float) -> list[Grant | Cut]:
        """What to send now, at the trainer's version; each is said once.

        Raises:
            UsageError: If the version is ahead of the updates taken.
        """
        self._stragglers.enter(version)
        grants = self._grants(version, now_seconds)
        cuts = self._judge_stragglers(now_seconds)
        # What was written off is granted again at once.
        return [*grants, *self._grants(version, now_seconds), *cuts]

    def take(self, version: int, now_seconds: float) -> list[ReadyBlock] | None:
        """The blocks of the update that enters with this version, oldest grants first (lockstep: in block order).

        Returns:
            N blocks, or ``None`` if the update cannot start yet.

        Raises:
            UsageError: If it is not the turn of this version.
        """
        gated = self._gate.ready_for_update()
        numbers = self._gate.take(version)
        self._clock_gate(gated and numbers is None, now_seconds)
        if numbers is None:
            return None
        blocks = [self._ready.pop(number) for number in numbers]
        for block in blocks:
            self._ledger.use(block.slot)
            self._taken[block.header.grant] = block
        if self._lockstep:
            blocks.sort(key=lambda block: (block.header.actor, block.header.ring_group, block.header.sequence))
        return blocks

    def release(self, blocks: Sequence[ReadyBlock]) -> None:
        """The blocks were copied out; their slots are free.

        Raises:
            StreamError: If a block was released before.
        """
        for block in blocks:
            self._ledger.release(block.slot, block.header.generation)

    def trained(self, blocks: Sequence[ReadyBlock], version: int) -> None:
        """The update that entered with this version is complete.

        Raises:
            StreamError: If a block was not taken, was reported before, or was too old for this version.
        """
        bound = self._gate.max_policy_lag
        for block in blocks:
            lag = version - block.header.min_version
            if bound is not None and lag > bound:
                raise StreamError("a block exceeds the policy lag", value=lag, expected=f"at most {bound} versions")
            self._blocks.trained(self._pop_taken(block))

    def discard(self, blocks: Sequence[ReadyBlock], reason: str) -> None:
        """The blocks of one ``take`` are not trained on, and the version stays: their grants are given back.

        Raises:
            StreamError: If they are not one update's blocks, or one was not taken or was reported before.
        """
        if len(blocks) != self._gate.blocks_per_update:
            raise StreamError("an update's blocks are discarded as a whole", value=len(blocks))
        self._gate.untake(blocks[0].header.grant)
        for block in blocks:
            self._blocks.dropped(self._pop_taken(block), reason)

    def wake_time(self, now_seconds: float) -> float | None:
        """When a straggler decision may fall due, as of the last ``instructions``; ``None``: not before an event."""
        return self._stragglers.wake_time(now_seconds, **self._room())

    # Coming to rest.

    def drain(self) -> None:
        """Grant nothing more."""
        self._draining = True

    def set_barrier(self, version: int) -> None:
        """Grant nothing for the updates from this version on; when it is reached, nothing is under way.

        Raises:
            UsageError: If more was granted already.
        """
        self._gate.set_barrier(version)

    def lift_barrier(self) -> None:
        """Grant again; lockstep goes on exactly as a run resumed at the barrier's version would.

        Raises:
            UsageError: If the barrier was not reached.
        """
        self._gate.lift_barrier()

    def outstanding(self) -> int:
        """Number of grants in producers' hands."""
        return len(self._outstanding)

    def drained(self) -> bool:
        """Whether producers hold nothing and nothing more will be granted (after ``drain``, or at a barrier)."""
        return not self._outstanding and (self._draining or self._gate.at_barrier())

    def counts(self) -> dict[str, Any]:
        """The accounts, after checking them.

        ``blocks`` and ``valid_rows``: produced, trained, in_flight, dropped by reason; ``lengths``: trained and dropped
        blocks by length; ``credits``: granted, announced, outstanding, ended by reason; ``slots`` by state; ``refused``
        messages by reason; ``stragglers`` cut or written off; ``gated_seconds``: how long updates had blocks enough but
        waited for older ones.

        Raises:
            StreamError: If something is unaccounted for.
        """
        in_flight = [block.header for blocks in (self._ready, self._taken) for block in blocks.values()]
        self._blocks.check(in_flight)
        self._credits.check(len(self._outstanding), "credits")
        return self._blocks.to_dict(in_flight) | {
            "credits": {
                "granted": self._credits.sent,
                "announced": self._credits.received,
                "outstanding": len(self._outstanding),
                "ended": dict(sorted(self._credits.dropped.items())),
            },
            "slots": {state.value: self._ledger.count(state) for state in SlotState},
            "refused": dict(sorted(self._refused.items())),
            "stragglers": self._stragglers.judged_so_far,
            "gated_seconds": self._gated_seconds,
        }

    def _connected(self, producer: Producer) -> None:
        if producer.incarnation < self._fences.get(producer.actor, 0):
            self._refuse(Refusal.SUPERSEDED_INCARNATION)
            return
        current = self._producers.get(producer.actor)
        if current is not None and current.incarnation == producer.incarnation:
            return
        if current is not None:
            self.producer_died(current)
        self._fences[producer.actor] = producer.incarnation
        self._producers[producer.actor] = producer
        self._assignment.connect(producer)

    def _announced(self, event: Announced, now_seconds: float) -> None:
        header, producer = event.header, event.producer
        self._blocks.produced(header)
        owner = Owner(producer.actor, producer.incarnation, header.ring_group, header.grant)
        refusal = self._ledger.announce(header.slot, header.generation, owner)
        if refusal is not None:
            self._refuse(refusal)
            self._blocks.dropped(header, refusal)
            return
        self._credits.received += 1
        self._stragglers.announced(header.grant, now_seconds)
        if self._end(header.grant):
            self._ledger.release(header.slot, header.generation)
            self._blocks.dropped(header, "straggler")
            return
        self._gate.arrived(header.grant)
        self._ready[header.grant] = ReadyBlock(header.slot, header, producer)

    def _returned(self, event: Returned) -> None:
        record = self._outstanding.get(event.grant)
        refusal: Refusal | None = Refusal.NOT_GRANTED
        if record is not None:
            credit = record.credit
            owner = Owner(event.producer.actor, event.producer.incarnation, credit.ring_group, event.grant)
            refusal = self._ledger.give_back(event.slot, credit.generation, owner)
        if refusal is not None:
            self._refuse(refusal)
            return
        if event.reason == SHUTDOWN_REASON:
            self._assignment.suspend(self._outstanding[event.grant].unit)
        self._end_without_block(event.grant, event.reason)

    def _end_without_block(self, number: int, reason: str) -> None:
        self._credits.dropped[reason] += 1
        if not self._end(number):
            self._gate.give_back(number)

    def _end(self, number: int) -> bool:
        """A grant is no longer outstanding; True if it was written off (and so given back) before."""
        unit = self._outstanding.pop(number).unit
        self._assignment.ended(unit)
        was_straggler = self._stragglers.ended(number)
        if was_straggler:
            self._assignment.resume(unit)
        return was_straggler and self._stragglers.drops

    def _refuse(self, reason: str) -> None:
        self._refused[reason] = self._refused.get(reason, 0) + 1

    def _grants(self, version: int, now_seconds: float) -> list[Grant]:
        grants: list[Grant] = []
        while not self._draining and self._gate.may_grant(version) and self._ledger.count(SlotState.FREE):
            number, min_version = self._gate.next_grant(version)
            unit = self._assignment.pick(number)
            if unit is None:
                break
            grants.append(self._grant(unit, number, min_version, now_seconds))
        return grants

    def _grant(self, unit: Unit, number: int, min_version: int, now_seconds: float) -> Grant:
        actor, ring_group = unit
        producer = self._producers[actor]
        slot, generation = self._ledger.grant(Owner(actor, producer.incarnation, ring_group, number))
        credit = Credit(number, ring_group, slot, generation, min_version, exact=self._lockstep)
        self._gate.grant(number, min_version)
        self._assignment.granted(unit)
        self._credits.sent += 1
        self._outstanding[number] = _Outstanding(producer, credit)
        self._stragglers.granted(number, unit, now_seconds)
        return Grant(producer, credit)

    def _judge_stragglers(self, now_seconds: float) -> list[Cut]:
        numbers = self._stragglers.judge(now_seconds, **self._room())
        for number in numbers:
            # Whoever is late gets nothing more until it has answered: a hung actor must not collect all the credits.
            self._assignment.suspend(self._outstanding[number].unit)
        if self._stragglers.drops:
            return []
        return [Cut(self._outstanding[number].producer, number) for number in numbers]

    def _room(self) -> dict[str, int]:
        quarantined = self._ledger.count(SlotState.QUARANTINED)
        return {"slots": len(self._ledger) - quarantined, "free": self._ledger.count(SlotState.FREE)}

    def _clock_gate(self, gated: bool, now_seconds: float) -> None:
        if self._gated_since_seconds is not None:
            self._gated_seconds += now_seconds - self._gated_since_seconds
        self._gated_since_seconds = now_seconds if gated else None

    def _pop_taken(self, block: ReadyBlock) -> BlockHeader:
        taken = self._taken.pop(block.header.grant, None)
        if taken is None:
            raise StreamError("a block was accounted for twice, or never taken", value=block.header.grant)
        return taken.header

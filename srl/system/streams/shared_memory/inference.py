"""Inference stream ends on one host: requests and replies are numbers in mailboxes, the wake-up an eventfd.

Observation and mask are read and the decision is written in the block itself; what lies in no block (noise, recurrent
states) is in the mailbox. A policy worker sleeps on one eventfd for all its
actors, an actor on its own. Both look at the numbers first and read the eventfd only when there is nothing to find,
then look again: what is stored before the eventfd is written is found either way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.block import BlockSchema
from srl.api.errors import StreamError, UsageError
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.decisions import copy_output, copy_states
from srl.system.streams.interface import (
    Credit,
    InferenceClient,
    InferenceRequest,
    InferenceServer,
    Producer,
)
from srl.system.streams.shared_memory.mailboxes import (
    ASKED_AT,
    EXACT,
    INCARNATION,
    MIN_VERSION,
    RANK,
    REPLY,
    REQUEST,
    ROW,
    SLOT,
    VERSION,
    Mailbox,
    Mailboxes,
)
from srl.system.streams.shared_memory.segments import SlotPool


class SharedMemoryInferenceClient(InferenceClient):
    """An actor's end.

    Args:
        name: ``inference:STREAM``, for messages.
        layout: Layout of the segment.
        segment: The segment.
        producer: Who asks.
        rows: T.
        pools: The sample stream's pools by rank, to check that requests are about their rows.
        wake_server: eventfd that its policy worker sleeps on.
        wake_actor: eventfd that this actor sleeps on.
    """

    def __init__(
        self,
        name: str,
        layout: Mailboxes,
        segment: NDArray[np.uint8],
        producer: Producer,
        rows: int,
        pools: Sequence[SlotPool],
        wake_server: int,
        wake_actor: int,
    ) -> None:
        if producer.actor >= layout.actors or producer.ring_groups > layout.ring_groups:
            raise StreamError(
                "this actor has no mailboxes",
                where=name,
                value=f"actor {producer.actor} with {producer.ring_groups} ring groups",
                expected=f"below {layout.actors} with at most {layout.ring_groups}",
            )
        self._name = name
        self._rows = rows
        self._pools = pools
        self._incarnation = producer.incarnation
        self._wake_server = wake_server
        self._wake_actor = wake_actor
        indices = [layout.index(producer.actor, group) for group in range(producer.ring_groups)]
        self._boxes = [layout.mailbox(segment, index) for index in indices]
        # Numbers go on where an earlier incarnation ended: a reply to it is never taken for one to this.
        self._numbers = [max(box.words[REQUEST], box.words[REPLY]) for box in self._boxes]
        self._open: dict[int, _Due | None] = {}
        self._checked: set[int] = set()
        self._signals_due = 0
        _read_signals(wake_actor)

    def request(self, credit: Credit, row: int, batch: ActInput, out: ActOutput) -> None:
        """Ask for decisions on a row; ``batch`` and ``out`` are that row of the block (row T: see the interface).

        Raises:
            UsageError: If the arrays are not those of the block (looked at once per ring group).
        """
        group = credit.ring_group
        box = self._boxes[group]
        if group not in self._checked:
            self._check_aliases(credit, row, batch, out)
        box.noise[...] = batch.noise
        if box.state is not None and batch.state is not None:
            box.state[...] = batch.state
        behind = row == self._rows
        if behind:
            box.episode_start[...] = batch.episode_start
            box.valid[...] = batch.valid
        words = box.words
        words[SLOT] = credit.slot
        words[ROW] = row
        words[RANK] = credit.rank
        words[MIN_VERSION] = credit.min_version
        words[EXACT] = credit.exact
        words[INCARNATION] = self._incarnation
        words[ASKED_AT] = time.monotonic_ns()
        self._open[group] = _Due(out, behind) if behind or out.state is not None else None
        self._numbers[group] = number = self._numbers[group] + 1
        words[REQUEST] = number
        os.eventfd_write(self._wake_server, 1)

    def _check_aliases(self, credit: Credit, row: int, batch: ActInput, out: ActOutput) -> None:
        block = self._pools[credit.rank].block(credit.slot)
        pairs = {"observation": batch.observation}
        if batch.action_mask is not None:
            pairs["action_mask"] = batch.action_mask
        if row < self._rows:
            pairs |= {"episode_start": batch.episode_start, "valid": batch.valid, "action": out.action, **out.extras}
        for field, array in pairs.items():
            if array.ctypes.data != block[field][row].ctypes.data:
                raise UsageError(
                    f"the request's '{field}' is not row {row} of the block it names",
                    where=self._name,
                    hint="On one host policy workers read and write the block itself.",
                )
        self._checked.add(credit.ring_group)

    def poll(self) -> Sequence[tuple[int, int]]:
        """Replies since the last call: (ring group, version)."""
        if self._open:
            replies = self._collect()
            if replies:
                return replies
        elif self._signals_due <= 0:
            return ()
        self._signals_due -= _read_signals(self._wake_actor)
        return self._collect()

    def _collect(self) -> list[tuple[int, int]]:
        replies = []
        for group in self._open:
            words = self._boxes[group].words
            if words[REPLY] == self._numbers[group]:
                replies.append((group, words[VERSION]))
        for group, _ in replies:
            due = self._open.pop(group)
            if due is not None:
                copy = copy_output if due.behind else copy_states
                copy(self._boxes[group].out, due.out)
        self._signals_due += len(replies)
        return replies

    def wait_descriptors(self) -> Iterable[int]:
        """This actor's eventfd."""
        return (self._wake_actor,)

    def close(self) -> None:
        """Let go of the mapping."""
        self._open.clear()
        self._boxes.clear()
        self._pools = ()

    def abort(self) -> None:
        """The same as :meth:`close`."""
        self.close()


@dataclass(frozen=True, slots=True)
class _Due:
    """What an open request has to have copied from its mailbox: states, and ``behind`` the last row all the rest."""

    out: ActOutput
    behind: bool


@dataclass(frozen=True, slots=True)
class _Ticket:
    """Where a reply goes: mailbox, number of the request, eventfd of the actor."""

    box: Mailbox
    number: int
    wake_actor: int


@dataclass(frozen=True, slots=True)
class _BlockViews:
    """The arrays of a block that acting touches."""

    observation: NDArray[Any]
    action_mask: NDArray[np.bool_] | None
    episode_start: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    action: NDArray[Any]
    extras: tuple[tuple[str, NDArray[Any]], ...]


class SharedMemoryInferenceServer(InferenceServer):
    """A policy worker's end.

    Args:
        name: ``inference:STREAM``, for messages.
        index: Which policy worker of the stream.
        layout: Layout of the segment.
        segment: The segment.
        schema: What the blocks look like.
        spec: The policy.
        pools: The sample stream's pools by rank.
        wake_server: eventfd to sleep on.
        wake_actors: Actor index to eventfd, of its own actors.

    Attributes:
        refused: Requests of superseded incarnations, or about rows that do not exist.
    """

    def __init__(
        self,
        name: str,
        index: int,
        layout: Mailboxes,
        segment: NDArray[np.uint8],
        schema: BlockSchema,
        spec: PolicySpec,
        pools: Sequence[SlotPool],
        wake_server: int,
        wake_actors: Mapping[int, int],
    ) -> None:
        self._name = name
        self._rows = schema.rows
        self._extras = tuple(extra.name for extra in spec.extras)
        self._masked = spec.action_mask > 0
        self._pools = pools
        self._wake_server = wake_server
        self._wake_actors = dict(wake_actors)
        self._actors = list(range(index, layout.actors, layout.servers))
        boxes = {actor: [layout.index(actor, group) for group in range(layout.ring_groups)] for actor in self._actors}
        self._boxes = {actor: [layout.mailbox(segment, box) for box in boxes[actor]] for actor in self._actors}
        everything = layout.request_numbers(segment).reshape(layout.actors, layout.ring_groups)
        self._numbers = everything[index :: layout.servers]
        # What has no reply yet is open: a successor answers what its predecessor left.
        answered = [[box.words[REPLY] for box in self._boxes[actor]] for actor in self._actors]
        self._seen = np.array(answered, np.int64).reshape(self._numbers.shape)
        self._views: dict[tuple[int, int], _BlockViews] = {}
        self._newest_incarnation: dict[int, int] = {}
        self.refused = 0

    def requests(self) -> Sequence[InferenceRequest]:
        """Requests that wait, oldest first; each is handed out once."""
        found = self._collect()
        if found:
            return found
        _read_signals(self._wake_server)
        return self._collect()

    def _collect(self) -> list[InferenceRequest]:
        positions, groups = np.nonzero(self._numbers != self._seen)
        if not len(positions):
            return []
        found = []
        for position, group in zip(positions.tolist(), groups.tolist(), strict=True):
            actor = self._actors[position]
            box = self._boxes[actor][group]
            words = box.words[: ASKED_AT + 1].tolist()
            self._seen[position, group] = words[REQUEST]
            request = self._request(actor, group, box, words)
            if request is not None:
                found.append((words[ASKED_AT], request))
        if len(found) > 1:
            found.sort(key=_asked_at)
        return [request for _, request in found]

    def _request(self, actor: int, group: int, box: Mailbox, words: list[int]) -> InferenceRequest | None:
        """The request in a mailbox, ``None`` if it is refused."""
        number, slot, row, rank, min_version, exact, incarnation, _ = words
        newest = self._newest_incarnation.setdefault(actor, incarnation)
        views = self._views.get((rank, slot)) or self._open(rank, slot)
        if incarnation < newest or views is None or not 0 <= row <= self._rows:
            self.refused += 1
            return None
        self._newest_incarnation[actor] = incarnation
        mask = None if views.action_mask is None else views.action_mask[row]
        if row < self._rows:
            starts, valid, out = views.episode_start[row], views.valid[row], self._out(views, box, row)
        else:
            starts, valid, out = box.episode_start, box.valid, box.out
        batch = ActInput(views.observation[row], box.noise, starts, valid, mask, box.state)
        ticket = _Ticket(box, number, self._wake_actors[actor])
        return InferenceRequest(actor, incarnation, group, min_version, bool(exact), batch, out, ticket)

    @staticmethod
    def _out(views: _BlockViews, box: Mailbox, row: int) -> ActOutput:
        """Where the decision on a row of the block goes."""
        extras = {name: array[row] for name, array in views.extras}
        return ActOutput(views.action[row], extras, box.out.state, box.out.used_state)

    def _open(self, rank: int, slot: int) -> _BlockViews | None:
        """Views on the block of a slot, ``None`` if there is no such slot."""
        if not (0 <= rank < len(self._pools) and 0 <= slot < self._pools[rank].slots):
            return None
        block = self._pools[rank].block(slot)
        views = self._views[rank, slot] = _BlockViews(
            block["observation"],
            block["action_mask"] if self._masked else None,
            block["episode_start"],
            block["valid"],
            block["action"],
            tuple((name, block[name]) for name in self._extras),
        )
        return views

    def reply(self, request: InferenceRequest, version: int) -> None:
        """The decision lies in the block; say so, unless a successor of the actor asked anew meanwhile."""
        ticket = request.ticket
        if not isinstance(ticket, _Ticket):
            raise UsageError("a request is answered to the end that it came from", where=self._name)
        words = ticket.box.words
        if words[REQUEST] != ticket.number:
            return
        words[VERSION] = version
        words[REPLY] = ticket.number
        os.eventfd_write(ticket.wake_actor, 1)

    def wait_descriptors(self) -> Iterable[int]:
        """The one eventfd for all its actors."""
        return (self._wake_server,)

    def close(self) -> None:
        """Let go of the mappings."""
        self._views.clear()
        self._boxes.clear()
        self._pools = ()
        self._numbers = self._seen

    def abort(self) -> None:
        """The same as :meth:`close`."""
        self.close()


def _asked_at(found: tuple[int, InferenceRequest]) -> int:
    return found[0]


def _read_signals(descriptor: int) -> int:
    """How often the eventfd was written since it was last read."""
    try:
        return os.eventfd_read(descriptor)
    except BlockingIOError:
        return 0

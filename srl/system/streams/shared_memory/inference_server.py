"""A policy worker's end of an inference stream on one host: it sleeps on one eventfd for all its actors.

It looks at the numbers in the mailboxes first and reads the eventfd only when there is nothing to find, then looks
again: what is stored before the eventfd is written is found either way. Requests are answered in the block itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.block import BlockSchema
from srl.api.errors import UsageError
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.streams.interface import InferenceRequest, InferenceServer
from srl.system.streams.shared_memory.mailboxes import (
    ASKED_AT,
    REPLY,
    REQUEST,
    VERSION,
    Mailbox,
    Mailboxes,
    read_signals,
)
from srl.system.streams.shared_memory.segments import SlotPool


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
        read_signals(self._wake_server)
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

"""An actor's end of an inference stream on one host: requests are numbers in mailboxes, the wake-up is an eventfd.

Observation and mask are read and the decision is written in the block itself; what lies in no block (noise, recurrent
states) is in the mailbox. An actor sleeps on an eventfd of its own, as its policy worker does: it looks at the numbers
first and reads the eventfd only when there is nothing to find, then looks again: what is stored before the eventfd is
written is found either way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import StreamError, UsageError
from srl.api.policy import ActInput, ActOutput
from srl.system.decisions import copy_output, copy_states
from srl.system.streams.interface import Credit, InferenceClient, Producer
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
    Mailboxes,
    read_signals,
)
from srl.system.streams.shared_memory.segments import SlotPool


@dataclass(frozen=True, slots=True)
class _Due:
    """What an open request has to have copied from its mailbox: states, and ``behind`` the last row all the rest."""

    out: ActOutput
    behind: bool


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
        read_signals(wake_actor)

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
        self._signals_due -= read_signals(self._wake_actor)
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

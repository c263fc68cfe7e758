"""The actor worker: steps environments, asks for decisions, fills blocks in place.

It rotates through its ring groups: while replies for one are under way it steps the next. Whether the policy is
computed inline or by policy workers, and where the blocks go, it cannot tell.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from srl.api.errors import NonFiniteError, WaitTimeout
from srl.system.report import Activity, EdgeCount, Episode, TimeShares, WorkerReport
from srl.system.streams.interface import Credit, InferenceClient, SampleProducer
from srl.system.worker import Worker, WorkerId
from srl.system.workers.finite import FiniteGuard
from srl.system.workers.ring_group import RingGroup

POLL_SECONDS = 0.02
"""How long one poll may go on stepping: the shell looks at commands in between."""

LOOK_SECONDS = 0.001
"""Between two looks for credits and cuts while stepping: a look costs a system call, and a cut can wait that long."""

SKIPS_IN_A_ROW = 100
"""Blocks skipped one after the other, after which none is expected to be whole: no budget would ever be used up."""

COUNTERS = ("env_steps", "frames", "blocks_produced", "rows_produced", "blocks_cut", "blocks_early", "requests")


class ActorWorker(Worker):
    """Fills one block per credit.

    Args:
        worker: Who it is.
        groups: Its ring groups; owned.
        producer: Its end of the sample stream; owned.
        inference: Its end of the inference stream, or an inline policy; owned.
        guard: Shared with the ring groups.
        inference_seconds: Bound on the wait for one reply.
        edge: Name of its sample edge in reports.
        inference_edge: Name of its inference edge; ``None`` = inline.
    """

    def __init__(
        self,
        worker: WorkerId,
        groups: Sequence[RingGroup],
        producer: SampleProducer,
        inference: InferenceClient,
        guard: FiniteGuard,
        *,
        inference_seconds: float,
        edge: str,
        inference_edge: str | None,
    ) -> None:
        self._worker = worker
        self._groups = list(groups)
        self._producer = producer
        self._inference = inference
        self._guard = guard
        self._inference_seconds = inference_seconds
        self._edge = edge
        self._inference_edge = inference_edge
        self._time = TimeShares()
        self._draining = False
        self._episodes: list[Episode] = []
        self._messages: list[str] = []
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._asked_at: float | None = None
        self._skipped_in_a_row = 0

    def start(self) -> None:
        """Reset every environment."""
        self._time.switch(Activity.STEPPING)
        for group in self._groups:
            group.reset()
        self._time.switch(Activity.IDLE)

    def poll(self) -> bool:
        """Step until nothing is left to do, a block is complete, or the time for one poll is over."""
        worked = self._work()
        self._wait_for_what()
        return worked

    def _work(self) -> bool:
        now = time.perf_counter()
        end = now + POLL_SECONDS
        next_look = now
        worked = False
        while True:
            looks = now >= next_look
            if looks:
                self._producer.poll()
                next_look = now + LOOK_SECONDS
            busy = self._ask()
            replies = self._inference.poll()
            completed = False
            for index, version in replies:
                completed = self._step(self._groups[index], version) or completed
            if busy or replies:
                worked = True
                self._asked_at = None
            elif looks:
                self._check_silence()
                return worked
            else:
                next_look = now  # before saying that there is nothing to do: look for credits
            now = time.perf_counter()
            if completed or now > end:
                return True

    def wait_descriptors(self) -> Iterable[int]:
        """Credits, cuts and replies."""
        return [*self._producer.wait_descriptors(), *self._inference.wait_descriptors()]

    def drain(self) -> None:
        """Give up open blocks that wait for no reply, and begin no more."""
        self._draining = True
        for group in self._groups:
            if not group.waiting:
                self._abandon(group, "shutdown")

    def drained(self) -> bool:
        """True when no ring group has an open block."""
        return self._draining and all(group.credit is None for group in self._groups)

    def finished(self) -> str | None:
        """An actor never ends by itself."""
        return None

    def report(self) -> WorkerReport:
        """Counters, episodes and shares of time."""
        episodes, self._episodes = self._episodes, []
        messages, self._messages = self._messages, []
        if (replaced := self._guard.take_first_replaced()) is not None:
            messages.append(f"{replaced}: replaced by 0; further ones are only counted")
        self._counters["non_finite"] = self._guard.replaced
        return WorkerReport(
            worker=self._worker.name,
            kind="actor",
            incarnation=self._worker.incarnation,
            seconds=self._time.seconds(),
            counters=dict(self._counters),
            edges=self._edges(),
            episodes=episodes,
            messages=messages,
        )

    def _edges(self) -> dict[str, EdgeCount]:
        edges = {self._edge: EdgeCount(sent=self._counters["blocks_produced"])}
        if self._inference_edge is not None:
            edges[self._inference_edge] = EdgeCount(sent=self._counters["requests"])
        return edges

    def close(self) -> None:
        """Close streams, then environments."""
        self._producer.close()
        self._inference.close()
        for group in self._groups:
            group.close()

    def abort(self) -> None:
        """Close the streams at once; environments are left to the end of the process."""
        self._producer.abort()
        self._inference.abort()

    def _ask(self) -> bool:
        """Ask for a decision for every ring group that stands at a row with none under way."""
        asked = False
        for group in self._groups:
            if group.waiting:
                continue
            credit = group.credit or self._begin(group)
            if credit is None:
                continue
            views = group.views()
            self._time.switch(Activity.INFERRING)
            group.waiting = True
            self._counters["requests"] += 1
            self._inference.request(credit, group.row, views.act_input, views.act_output)
            asked = True
        return asked

    def _begin(self, group: RingGroup) -> Credit | None:
        """Begin a block if there is a credit for it."""
        credit = self._producer.take_credit(group.identity.index)
        if credit is None:
            return None
        if self._draining or credit.grant in self._producer.cuts():
            self._producer.give_back(credit, "shutdown" if self._draining else "cut")
            return None
        group.begin(credit, self._producer.block(credit))
        return credit

    def _check_silence(self) -> None:
        """Nothing came: a policy worker that is asked must not stay silent for longer than the bound."""
        waiting = [str(group.identity) for group in self._groups if group.waiting]
        now = time.monotonic()
        if not waiting or self._asked_at is None:
            self._asked_at = now if waiting else None
        elif now > self._asked_at + self._inference_seconds:
            raise WaitTimeout(
                f"no reply of a policy worker for {', '.join(waiting)}",
                where=self._worker.name,
                value=f"{self._inference_seconds} s",
                expected="a reply in time",
                hint="Look at the policy workers' logs; limits.inference_seconds is the bound.",
            )

    def _step(self, group: RingGroup, version: int) -> bool:
        """One step of one ring group; True if that completed its block."""
        self._time.switch(Activity.STEPPING)
        group.waiting = False
        self._episodes += group.step(version)
        if self._draining:
            self._abandon(group, "shutdown")
            return True
        if self._guard.fault is not None:
            return self._skip(group)
        cuts = self._producer.cuts()
        cut = bool(cuts) and group.credit is not None and group.credit.grant in cuts
        if not (group.full() or cut):
            return False
        if group.row < group.rows:
            self._counters["blocks_cut" if cut else "blocks_early"] += 1
        self._send(group)
        return True

    def _skip(self, group: RingGroup) -> bool:
        """The block holds a value that is not finite, and the experiment says to go on without it.

        Raises:
            NonFiniteError: No block is whole any more.
        """
        fault = self._guard.take_fault()
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == SKIPS_IN_A_ROW:
            raise NonFiniteError(
                f"{SKIPS_IN_A_ROW} blocks in a row were skipped, this one last",
                where=self._worker.name,
                value=str(fault),
                expected="a block to train on",
                hint="Mend the environment, or set on_non_finite to replace.",
            )
        self._messages.append(f"{fault}: the block is skipped")
        self._abandon(group, "non_finite")
        return True

    def _send(self, group: RingGroup) -> None:
        header = group.finish()
        self._producer.send(header)
        self._skipped_in_a_row = 0
        frames = group.environment.spec.frames_per_step
        self._counters["env_steps"] += header.valid_rows
        self._counters["frames"] += header.valid_rows * frames
        self._counters["blocks_produced"] += 1
        self._counters["rows_produced"] += header.valid_rows

    def _abandon(self, group: RingGroup, reason: str) -> None:
        credit = group.credit
        if credit is None:
            return
        rows = group.abandon()
        self._producer.give_back(credit, reason)
        returned = f"credits_returned/{reason}"
        self._counters[returned] = self._counters.get(returned, 0) + 1
        name = f"rows_abandoned/{reason}"
        self._counters[name] = self._counters.get(name, 0) + rows

    def _wait_for_what(self) -> None:
        waiting = any(group.waiting for group in self._groups)
        self._time.switch(Activity.WAITING_FOR_INFERENCE if waiting else Activity.WAITING_FOR_CREDIT)

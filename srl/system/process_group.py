"""Trainer ranks in processes of their own, over ``torch.distributed``: gloo for numbers, NCCL for gradients on GPUs.

The ranks of one host find each other through a file in the run's directory (mode 0700): there is no store that listens
on a port. Gloo's own links are TCP connections without a key; they are bound to the loopback interface. Nothing is
initialised before :meth:`ProcessGroup.open`, which runs in the worker's own process: never before a fork.

Waits are bounded here, not by gloo: a vote may be under way for as long as an environment takes to fill a block, and a
wait inside an update tells an observer that it still waits, so that of two ranks only the silent one counts as hung.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from srl.api.errors import WaitTimeout
from srl.system.collective import Collective, Operation, RankLost, Vote, WaitObserver

logger = logging.getLogger(__name__)

LOOPBACK = "lo"
POLL_SECONDS = 0.02
"""Between two looks for ranks that have not come yet."""

SLICE_SECONDS = 0.25
"""Between two signs of life while waiting for other ranks."""

NEVER = timedelta(days=365)
"""Gloo's own bound, which is none: see the module."""

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


@dataclass(frozen=True, slots=True)
class Meeting:
    """Who meets where.

    Attributes:
        file: Path of the rendezvous file; in a directory of mode 0700.
        name: Name of the worker group, for messages.
        rank: Number of this rank.
        ranks: How many there are.
        connect_seconds: Bound on the wait for all of them to come.
        silence_seconds: Bound on the wait for an answer inside an update.
    """

    file: Path
    name: str
    rank: int
    ranks: int
    connect_seconds: float
    silence_seconds: float


class _PendingVote(Vote):
    """A gathering under way."""

    def __init__(self, group: ProcessGroup, work: dist.Work, rows: list[torch.Tensor]) -> None:
        self._group = group
        self._work = work
        self._rows = rows

    def result(self) -> NDArray[np.int64] | None:
        """See the base class."""
        if not self._group.is_decided(self._work):
            return None
        return np.stack([row.numpy() for row in self._rows])


class ProcessGroup(Collective):
    """One rank among several.

    Args:
        meeting: Who meets where.
        device: The trainer's device.
    """

    def __init__(self, meeting: Meeting, device: torch.device) -> None:
        self.rank = meeting.rank
        self.ranks = meeting.ranks
        self._meeting = meeting
        self._device = device
        self._where = f"{meeting.name}/{meeting.rank}"
        self._observer: WaitObserver = lambda is_waiting: None
        self._votes_open = 0
        self._is_open = False
        self._gradient_group: dist.ProcessGroup | None = None
        self._staging = torch.empty(0)
        self._news = -1

    def open(self) -> None:
        """Wait until all ranks are there, then connect them."""
        meeting = self._meeting
        store = dist.FileStore(str(meeting.file), meeting.ranks)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=meeting.connect_seconds))
        store.set(f"here/{meeting.rank}", "1")
        self._await_everybody(store)
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
        try:
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks, timeout=NEVER)
        except RuntimeError as error:
            raise RankLost("the trainer ranks could not be connected", where=self._where, value=str(error)) from error
        self._is_open = True
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._choose_gradient_group()
        logger.info("rank %d of %d, gradients over %s", self.rank, self.ranks, self.gradients_over)

    def _await_everybody(self, store: Any) -> None:
        deadline = time.monotonic() + self._meeting.connect_seconds
        while missing := [rank for rank in range(self.ranks) if not store.check([f"here/{rank}"])]:
            self._observer(True)
            if time.monotonic() > deadline:
                raise WaitTimeout(
                    "not all trainer ranks came",
                    where=self._where,
                    value=", ".join(f"{self._meeting.name}/{rank}" for rank in missing),
                    expected=f"{self.ranks} ranks within {self._meeting.connect_seconds:g} s",
                    hint="Look at the logs of those that are missing; limits.connect_seconds is the bound.",
                )
            time.sleep(POLL_SECONDS)
        self._observer(False)

    @property
    def gradients_over(self) -> str:
        """``gloo`` or ``nccl``."""
        return "gloo" if self._gradient_group is None else "nccl"

    def _choose_gradient_group(self) -> None:
        """NCCL where every rank has a GPU of its own; it refuses two ranks on one."""
        index = self._device.index or 0 if self._device.type == "cuda" else -1
        indices = [int(one[0]) for one in self.gather(np.array([index], np.int64))]
        if min(indices) >= 0 and len(set(indices)) == self.ranks and dist.is_nccl_available():
            seconds = timedelta(seconds=self._meeting.silence_seconds)
            self._gradient_group = dist.new_group(backend="nccl", timeout=seconds)

    def watch(self, observer: WaitObserver) -> None:
        """Have ``observer`` told of waits for other ranks."""
        self._observer = observer

    def reduce_array(self, values: NDArray[np.float64], operation: Operation) -> NDArray[np.float64]:
        """Combined over all ranks."""
        result = np.array(values, np.float64)
        tensor = torch.from_numpy(result.reshape(-1))
        self._wait(dist.all_reduce(tensor, _OPERATIONS[operation], async_op=True))
        return result

    def gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all ranks."""
        own = np.ascontiguousarray(values)
        mine = torch.from_numpy(np.frombuffer(own.tobytes(), np.uint8).copy())
        parts = [torch.empty_like(mine) for _ in range(self.ranks)]
        self._wait(dist.all_gather(parts, mine, async_op=True))
        return [part.numpy().view(own.dtype).reshape(values.shape) for part in parts]

    def sum_tensor(self, tensor: torch.Tensor) -> None:
        """The sum over all ranks, in place: on the CPU by gloo, on GPUs by NCCL or through pinned memory."""
        if tensor.device.type == "cpu":
            self._wait(dist.all_reduce(tensor, async_op=True))
        elif self._gradient_group is not None:
            dist.all_reduce(tensor, group=self._gradient_group)
        else:
            staged = self._staged(tensor)
            self._wait(dist.all_reduce(staged, async_op=True))
            tensor.copy_(staged)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's, in place."""
        staged = tensor.cpu()
        self._wait(dist.broadcast(staged, 0, async_op=True))
        if staged is not tensor:
            tensor.copy_(staged)

    def vote(self, values: NDArray[np.int64]) -> Vote:
        """Gather what all ranks say, without waiting."""
        mine = torch.from_numpy(np.array(values, np.int64))
        rows = [torch.empty_like(mine) for _ in range(self.ranks)]
        with self._lost_ranks():
            work = dist.all_gather(rows, mine, async_op=True)
        self._votes_open += 1
        news = self._news
        work.get_future().add_done_callback(lambda done: os.eventfd_write(news, 1))
        return _PendingVote(self, work, rows)

    def is_decided(self, work: dist.Work) -> bool:
        """Whether a vote has its result; raises if it will never have one."""
        # First the news, then the look: what comes in between is found the next time.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)
        if not work.is_completed():
            return False
        self._votes_open -= 1
        with self._lost_ranks():
            work.wait(timedelta(seconds=SLICE_SECONDS))
        return True

    def wait_descriptors(self) -> Iterable[int]:
        """Readable when a vote has its result."""
        return (self._news,)

    def close(self) -> None:
        """Part from the others; where a vote is still under way, that is left to the end of the process."""
        if self._votes_open:
            return
        if self._is_open:
            self._is_open = False
            dist.destroy_process_group()
        if self._news >= 0:
            os.close(self._news)
            self._news = -1

    def abort(self) -> None:
        """Let go of nothing: taking gloo down waits for what is under way. The end of the process closes its links."""

    def _wait(self, work: dist.Work | None) -> None:
        """Wait for a call that all ranks make."""
        if work is None:
            return
        began = time.monotonic()
        self._observer(True)
        while not self._is_done(work):
            self._observer(True)
            if time.monotonic() - began > self._meeting.silence_seconds:
                raise RankLost(
                    "another trainer rank did not answer",
                    where=self._where,
                    expected=f"an answer within {self._meeting.silence_seconds:g} s",
                    hint="Look at the logs of the other ranks; limits.heartbeat_seconds decides the bound.",
                )
        self._observer(False)

    def _is_done(self, work: dist.Work) -> bool:
        """Wait for one slice of time."""
        try:
            work.wait(timedelta(seconds=SLICE_SECONDS))
        except RuntimeError:
            if not work.is_completed():
                return False
            with self._lost_ranks():
                work.wait(timedelta(seconds=SLICE_SECONDS))
        return True

    @contextlib.contextmanager
    def _lost_ranks(self) -> Any:
        """Gloo's errors say little more than that a connection is closed."""
        try:
            yield
        except RuntimeError as error:
            text = str(error).partition("] ")[2].partition(". ")[0] or str(error)
            raise RankLost("the connection to another trainer rank broke", where=self._where, value=text) from error

    def _staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory of this process, which is kept."""
        if self._staging.shape != tensor.shape or self._staging.dtype != tensor.dtype:
            self._staging = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._staging.copy_(tensor)
        return self._staging

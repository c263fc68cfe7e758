"""What the trainer ranks of one policy say to each other: sums, gathered arrays, votes.

All ranks make the same calls in the same order; each call returns when every rank has made it, with equal bits on
every rank. Only a vote does not wait: between updates a rank must go on obeying commands while others are not ready::

    collective.open()                        # meets the other ranks, bounded
    vote = collective.vote(values)           # between updates
    select(collective.wait_descriptors())
    vote.result() -> int64[ranks, n] | None
    collective.sum_tensor(gradients)         # inside an update: waits, bounded
    collective.close()

:class:`Alone` is the one rank of an undivided trainer: everything is the identity. Ranks in processes of their own have
:class:`srl.system.process_group.ProcessGroup`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import StreamError

if TYPE_CHECKING:
    import torch

Operation = Literal["sum", "max", "min"]

WaitObserver = Callable[[bool], None]
"""Called with True when a wait for other ranks begins and again while it lasts, with False when it is over."""


class RankLost(StreamError):
    """The connection to another rank broke, or it did not answer in time: no collective call is possible any more."""


class Vote(ABC):
    """One vote under way."""

    @abstractmethod
    def result(self) -> NDArray[np.int64] | None:
        """What every rank said, ``int64[ranks, n]``; ``None`` while one of them has not said anything.

        Raises:
            RankLost: A rank is gone.
        """


class Collective(ABC):
    """One rank's way to the others.

    Attributes:
        rank: Number of this rank.
        ranks: How many there are.
    """

    rank: int
    ranks: int

    @abstractmethod
    def open(self) -> None:
        """Meet the other ranks.

        Raises:
            WaitTimeout: They did not come in time; those that are missing are named.
        """

    @abstractmethod
    def watch(self, observer: WaitObserver) -> None:
        """Have ``observer`` told of waits for other ranks."""

    @abstractmethod
    def reduce_array(self, values: NDArray[np.float64], operation: Operation) -> NDArray[np.float64]:
        """``values`` (``float64[...]``, of one shape on all ranks, not changed) combined over all ranks.

        Raises:
            RankLost: A rank is gone.
        """

    @abstractmethod
    def gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """The arrays of all ranks in order of rank; one shape and dtype on all ranks.

        Raises:
            RankLost: A rank is gone.
        """

    @abstractmethod
    def sum_tensor(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` (contiguous, float32, on the trainer's device) by its sum over all ranks.

        Raises:
            RankLost: A rank is gone.
        """

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace ``tensor`` (contiguous, on the trainer's device) by that of rank 0.

        Raises:
            RankLost: A rank is gone.
        """

    @abstractmethod
    def vote(self, values: NDArray[np.int64]) -> Vote:
        """Say something (``int64[n]``) without waiting for what the others say.

        Raises:
            RankLost: A rank is gone.
        """

    @abstractmethod
    def wait_descriptors(self) -> Iterable[int]:
        """Descriptors that become readable when a vote may have its result."""

    @abstractmethod
    def close(self) -> None:
        """Part from the other ranks; nothing may be under way."""

    @abstractmethod
    def abort(self) -> None:
        """Let go at once; the process ends soon."""


class _Decided(Vote):
    """The vote of one rank alone."""

    def __init__(self, values: NDArray[np.int64]) -> None:
        self._values = values

    def result(self) -> NDArray[np.int64]:
        """What was said."""
        return self._values


class Alone(Collective):
    """The only rank."""

    rank = 0
    ranks = 1

    def open(self) -> None:
        """There is nobody to meet."""

    def watch(self, observer: WaitObserver) -> None:
        """There is nobody to wait for."""

    def reduce_array(self, values: NDArray[np.float64], operation: Operation) -> NDArray[np.float64]:
        """A copy."""
        return np.array(values, np.float64)

    def gather(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """This array."""
        return [values]

    def sum_tensor(self, tensor: torch.Tensor) -> None:
        """It is the sum."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """It is rank 0's."""

    def vote(self, values: NDArray[np.int64]) -> Vote:
        """Decided at once."""
        return _Decided(np.array(values, np.int64)[None])

    def wait_descriptors(self) -> Iterable[int]:
        """There is never anything to wait for."""
        return ()

    def close(self) -> None:
        """Nothing was opened."""

    def abort(self) -> None:
        """Nothing was opened."""

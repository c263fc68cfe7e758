"""The data of one update, laid out for shuffling: single rows, or sequences of rows for recurrent policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from srl.algorithms.networks.actor_critic import Inputs, Memory, Place, gather
from srl.algorithms.ppo.losses import Minibatch
from srl.algorithms.ppo.minibatches import Indices
from srl.api.algorithm import Batch


@dataclass(slots=True)
class Part:
    """What one gradient step computes with.

    Attributes:
        inputs: The network's inputs, of N rows.
        memory: Where the rows are sequences, time first: how their states begin; else ``None``.
        chosen: ``int64[M]`` which of the N rows have a transition; ``None`` = all.
        data: The transitions, arrays ``[M]``.
    """

    inputs: Inputs
    memory: Memory | None
    chosen: Indices | None
    data: Minibatch


class Rollout(ABC):
    """Units in some order; slices of them are minibatches.

    Attributes:
        present: ``bool[S, C]`` the units that count.
    """

    present: NDArray[np.bool_]

    @abstractmethod
    def take(self, order: Indices) -> Rollout:
        """These units in another order."""

    @abstractmethod
    def part(self, first: int, last: int) -> Part:
        """Units ``first`` to ``last`` of the present order."""

    @abstractmethod
    def advantage(self, first: int, last: int) -> NDArray[np.float32]:
        """Advantages of the transitions of :meth:`part`, ``[M]``; costs no gathering of inputs."""


class Rows(Rollout):
    """Single transitions.

    Args:
        inputs: The network's inputs of all rows ``[T * C]``.
        position: ``int64[M]`` where in them the transitions lie.
        data: The transitions, arrays ``[M]``.
        valid: ``bool[T, C]``.
        place: Brings tensors to where gradient steps are computed.
    """

    def __init__(
        self, inputs: Inputs, position: Indices, data: Minibatch, valid: NDArray[np.bool_], place: Place
    ) -> None:
        self.present = valid
        self._inputs = inputs
        self._position = position
        self._data = data
        self._place = place

    def take(self, order: Indices) -> Rows:
        """These transitions in another order."""
        return Rows(self._inputs, self._position.take(order), taken(self._data, order), self.present, self._place)

    def part(self, first: int, last: int) -> Part:
        """Transitions ``first`` to ``last``."""
        inputs = gather(self._inputs, self._position[first:last], self._place)
        return Part(inputs, None, None, sliced(self._data, first, last))

    def advantage(self, first: int, last: int) -> NDArray[np.float32]:
        """As in the base class."""
        return self._data.advantage[first:last]


class Sequences(Rollout):
    """Sequences of ``rows`` rows of one column each, with the state that was stored at their start.

    Args:
        inputs: The network's inputs of all rows ``[T * C]``.
        batch: The batch.
        number: ``int64[T * C]`` numbers of the transitions in ``data``; -1 where a row has none.
        data: The transitions, arrays ``[M]``.
        rows: Rows of a sequence.
        place: Brings tensors to where gradient steps are computed.
        units: ``int64[U]`` sequences, numbered in C order of ``[T / rows, C]``; ``None`` = all that have a transition.
    """

    def __init__(
        self,
        inputs: Inputs,
        batch: Batch,
        number: Indices,
        data: Minibatch,
        rows: int,
        place: Place,
        units: Indices | None = None,
    ) -> None:
        valid: NDArray[np.bool_] = batch["valid"]
        self.present = np.logical_or.reduce(valid.reshape(-1, rows, valid.shape[1]), axis=1)
        self._columns = valid.shape[1]
        self._inputs = inputs
        self._batch = batch
        self._number = number
        self._data = data
        self._rows = rows
        self._place = place
        self._units = np.flatnonzero(self.present) if units is None else units

    def take(self, order: Indices) -> Sequences:
        """These sequences in another order."""
        units = self._units.take(order)
        return Sequences(self._inputs, self._batch, self._number, self._data, self._rows, self._place, units)

    def part(self, first: int, last: int) -> Part:
        """Sequences ``first`` to ``last``, time first."""
        positions, number = self._numbers(first, last)
        chosen = np.flatnonzero(number >= 0)
        memory = memory_of(self._batch, self._units[first:last], positions, self._place)
        inputs = gather(self._inputs, positions.reshape(-1), self._place)
        return Part(inputs, memory, chosen, taken(self._data, number[chosen]))

    def advantage(self, first: int, last: int) -> NDArray[np.float32]:
        """As in the base class."""
        _, number = self._numbers(first, last)
        return self._data.advantage[number[number >= 0]]

    def _numbers(self, first: int, last: int) -> tuple[Indices, Indices]:
        """Where the rows of some sequences lie ``[rows, U]``, and the numbers of their transitions ``[rows * U]``."""
        positions = sequence_positions(self._units[first:last], self._rows, self._columns)
        return positions, self._number[positions.reshape(-1)]


def sequence_positions(units: Indices, rows: int, columns: int) -> Indices:
    """Where the rows of sequences lie among all rows ``[T * C]``: ``int64[rows, U]``."""
    first, column = np.divmod(units, columns)
    result: Indices = (first * rows + np.arange(rows)[:, None]) * columns + column
    return result


def memory_of(batch: Batch, units: Indices, positions: Indices, place: Place) -> Memory:
    """How the states of sequences begin and where they begin anew.

    Args:
        batch: The batch.
        units: ``int64[U]``.
        positions: ``int64[rows, U]`` from :func:`sequence_positions`.
        place: Brings tensors to the device.
    """
    stored = batch["state"]
    flat = stored.reshape(-1, stored.shape[2])
    flags = (batch[name].reshape(-1)[positions] for name in ("episode_start", "valid"))
    state = torch.from_numpy(np.ascontiguousarray(flat[units]))
    start, valid = (torch.from_numpy(np.ascontiguousarray(flag)) for flag in flags)
    return Memory(place(state), place(start), place(valid))


def taken(data: Minibatch, order: Indices) -> Minibatch:
    """These transitions in another order."""
    return replace(data, **{name: array.take(order, axis=0) for name, array in _arrays(data).items()})


def sliced(data: Minibatch, first: int, last: int) -> Minibatch:
    """Views on a part of them."""
    return replace(data, **{name: array[first:last] for name, array in _arrays(data).items()})


def _arrays(data: Minibatch) -> dict[str, Any]:
    arrays = {field.name: getattr(data, field.name) for field in fields(Minibatch)}
    return {name: array for name, array in arrays.items() if array is not None}

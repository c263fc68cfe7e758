"""The order of minibatches: the same over any number of ranks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from srl.algorithms.ppo.minibatches import Order
from srl.algorithms.ppo.rollout import sequence_positions
from srl.api.block import BlockHeader


class Meeting:
    """Where ranks that are threads exchange arrays."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=60.0)
        self.arrays = [None] * ranks

    def gather(self, rank, values):
        self.barrier.wait()
        self.arrays[rank] = values
        self.barrier.wait()
        return list(self.arrays)


class Rank:
    """The part of a trainer context that an order needs."""

    def __init__(self, meeting, rank, ranks, seed=3):
        self.rank, self.ranks = rank, ranks
        self.generator = np.random.default_rng(seed)
        self._meeting = meeting

    def gather(self, values):
        return self._meeting.gather(self.rank, values)


def header(actor, sequence, ring_group=0):
    return BlockHeader(actor, 0, ring_group, sequence, 0, 0, 0, 4, 4, 0, 1, 0)


def minibatches(rank, headers, present, labels, steps):
    """Labels of the units of each minibatch that a rank has."""
    order = Order(rank, headers, present)
    units, parts = order.epoch(steps)
    mine = labels[present]
    return [sorted(mine[units[first:last]].tolist()) for first, last in parts]


def test_one_rank_uses_every_unit_once_in_minibatches_of_equal_size():
    present = np.ones((4, 6), bool)
    present[1, 2] = False
    parts = minibatches(Rank(None, 0, 1), [header(0, 0)], present, np.arange(24).reshape(4, 6), steps=3)
    assert sorted(label for part in parts for label in part) == [label for label in range(24) if label != 8]
    assert [len(part) for part in parts] == [7, 8, 8]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_ranks_share_the_minibatches_that_one_rank_would_make(steps):
    random = np.random.default_rng(0)
    headers = [header(actor, sequence) for actor in range(4) for sequence in (6, 7)]
    labels = np.arange(8 * 3 * 5).reshape(5, 8 * 3)
    present = random.random(labels.shape) < 0.7
    alone = minibatches(Rank(None, 0, 1), headers, present, labels, steps)

    blocks = np.arange(8).repeat(3)
    dealt = [[index for index, one in enumerate(headers) if (one.actor + one.sequence) % 2 == rank] for rank in (0, 1)]
    meeting, found = Meeting(2), [None, None]

    def run(rank):
        columns = np.isin(blocks, dealt[rank])
        mine = [headers[index] for index in dealt[rank]]
        found[rank] = minibatches(Rank(meeting, rank, 2), mine, present[:, columns], labels[:, columns], steps)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100.0)
    assert [sorted(first + second) for first, second in zip(*found, strict=True)] == alone
    assert all(part for part in alone)


def test_sequences_lie_column_by_column():
    positions = sequence_positions(np.array([0, 4, 5]), rows=2, columns=3)
    assert positions.tolist() == [[0, 7, 8], [3, 10, 11]]

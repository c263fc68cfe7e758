"""Discounted returns over ranks, late blocks and rewards that nobody knows, against the recursion row by row."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from srl.algorithms.normalization.returns import DiscountedReturns
from srl.api.block import BlockHeader

ROWS, COLUMNS, GAMMA = 7, 3, 0.9


class Ranks:
    """Trainer ranks that are threads: each is given a context with the part that returns need."""

    def __init__(self, ranks):
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=10.0)
        self._arrays = [None] * ranks

    def gather(self, rank, values):
        self._barrier.wait()
        self._arrays[rank] = values
        self._barrier.wait()
        return list(self._arrays)

    def run(self, act):
        """``act(rank)`` on every rank; what they return."""
        found = [None] * self.ranks
        threads = [
            threading.Thread(target=lambda rank=rank: found.__setitem__(rank, act(rank))) for rank in range(self.ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=20.0)
        return found


class Context:
    def __init__(self, meeting, rank):
        self.rank, self.ranks, self._meeting = rank, meeting.ranks, meeting

    def gather(self, values):
        return self._meeting.gather(self.rank, values)


def header(actor=0, sequence=0, ring_group=0):
    return BlockHeader(actor, 0, ring_group, sequence, 0, 0, 0, ROWS, ROWS, 0, 1, 0)


def blocks_of(random, count):
    """Rewards, ends, transitions and known rewards of consecutive blocks, ``[count, ROWS, COLUMNS]`` each."""
    shape = (count, ROWS, COLUMNS)
    return (
        random.normal(size=shape),
        random.random(shape) < 0.15,
        random.random(shape) < 0.9,
        random.random(shape) < 0.9,
    )


def by_hand(reward, ended, valid, known, gamma=GAMMA):
    """One column, row after row: rows that are not known are passed over, but end episodes."""
    running, found = 0.0, []
    for one, end, counts, knows in zip(reward, ended, valid, known, strict=True):
        if counts and knows:
            running = gamma * running + one
        found.append(running)
        if counts and end:
            running = 0.0
    return found


def check(found, blocks, actor):
    """Returns ``{(actor, sequence): [ROWS, COLUMNS]}`` of one actor against the recursion over all its blocks."""
    sequences = sorted(sequence for one, sequence in found if one == actor)
    together = np.concatenate([found[actor, sequence] for sequence in sequences])
    for column in range(COLUMNS):
        expected = by_hand(*(part.reshape(-1, COLUMNS)[:, column] for part in blocks))
        np.testing.assert_allclose(together[:, column], expected, rtol=1e-12, atol=1e-12)


def test_rows_whose_reward_nobody_knows_are_passed_over_and_end_episodes():
    returns = DiscountedReturns(0.5)
    reward, known = np.array([[1.0], [0.0], [1.0], [1.0]]), np.array([[True], [False], [True], [True]])
    ended = np.zeros((4, 1), bool)
    assert returns.follow([header()], reward, ended, ~ended, known)[[0, 2, 3], 0].tolist() == [1.0, 1.5, 1.75]
    ended[1] = True
    again = DiscountedReturns(0.5).follow([header()], reward, ended, np.ones((4, 1), bool), known)
    assert again[[0, 2, 3], 0].tolist() == [1.0, 1.0, 1.5]


@pytest.mark.parametrize("gamma", [0.0, GAMMA, 1.0])
def test_blocks_side_by_side_are_the_recursion(gamma):
    blocks = blocks_of(np.random.default_rng(1), 4)
    returns = DiscountedReturns(gamma)
    headers = [header(sequence=sequence) for sequence in range(4)]
    side_by_side = [part.swapaxes(0, 1).reshape(ROWS, -1) for part in blocks]
    found = returns.follow(headers, *side_by_side).reshape(ROWS, 4, COLUMNS).swapaxes(0, 1).reshape(-1, COLUMNS)
    for column in range(COLUMNS):
        expected = by_hand(*(part.reshape(-1, COLUMNS)[:, column] for part in blocks), gamma=gamma)
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "deal", [lambda actor, sequence: (actor + sequence) % 2, lambda actor, sequence: sequence // 2 % 2]
)
def test_what_other_ranks_train_on_leaves_no_gap(deal):
    """Two actors, eight blocks each, dealt over two ranks; four blocks an update: as one rank has them."""
    random = np.random.default_rng(2)
    data = {actor: blocks_of(random, 8) for actor in (0, 1)}
    meeting = Ranks(2)

    def act(rank):
        returns = DiscountedReturns(GAMMA, Context(meeting, rank))
        found = {}
        for first in range(0, 8, 4):
            mine = [(a, s) for s in range(first, first + 4) for a in (0, 1) if deal(a, s) == rank]
            parts = [np.concatenate([data[a][part][s] for a, s in mine], axis=1) for part in range(4)]
            result = returns.follow([header(a, s) for a, s in mine], *parts)
            found |= {one: result[:, i * COLUMNS : (i + 1) * COLUMNS] for i, one in enumerate(mine)}
        return found, returns.state()

    (first, one), (second, other) = meeting.run(act)
    assert len(first) == len(second) == 8
    for actor in (0, 1):
        check(first | second, data[actor], actor)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


def test_a_late_block_does_not_take_returns_back():
    """Block 1 is trained an update later than block 2: block 3 goes on from block 2."""
    returns = DiscountedReturns(1.0)
    never = np.zeros((1, 1), bool)

    def follow(sequence, reward):
        return float(returns.follow([header(sequence=sequence)], np.full((1, 1), reward), never, ~never)[0, 0])

    assert [follow(0, 1.0), follow(2, 10.0), follow(1, 100.0), follow(3, 1000.0)] == [1.0, 11.0, 111.0, 1011.0]

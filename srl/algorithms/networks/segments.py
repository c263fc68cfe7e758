"""Sequences cut where episodes start, so that a fused kernel, which knows no resets, can run through them.

Every piece of a column between two starts becomes a column of its own, a *segment*, with its own first state; rows
without a transition, which do not advance the state, are left out. Segments are padded to the length of the longest
that runs with them: what follows a segment's end cannot reach its rows, and no gradient comes from there.

Three rows of two columns; column 0 starts anew at row 2, row 1 of column 1 has no transition::

    row 0   a0  b0                      run 0, [2, 2]:   a0  b0
    row 1   a1  --      becomes                          a1  b2
    row 2   c0  b2                      run 1, [1, 1]:   c0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]

RUN_COST_ROWS = 64
"""What a run costs beside its rows, as a number of rows (measured: 60 to 100 at state sizes 256 to 64)."""


@dataclass(frozen=True, slots=True)
class Segments:
    """M segments, longest first, in runs of such as are about equally long.

    Attributes:
        runs: Of each run the rows L and the segments K; it has ``L * K`` places, time first.
        source: ``int64[P]``: which of the ``C * N`` rows belongs in each place of all runs; any row where padded.
        place: ``int64[C * N]``: where each row went, counted from 1; 0 for rows without a transition.
        column: ``int64[M]``: which column each segment is from.
        fresh: ``bool[M]``: it begins with the initial state, not with its column's.
    """

    runs: tuple[tuple[int, int], ...]
    source: Indices
    place: Indices
    column: Indices
    fresh: Flags


def cut_segments(episode_start: Flags, valid: Flags) -> Segments:
    """Cut N columns of C rows.

    Args:
        episode_start: ``bool[C, N]``.
        valid: ``bool[C, N]``; the row has a transition.
    """
    rows, columns = valid.shape
    # Column by column from here: element i is row i % rows of column i // rows.
    begins = episode_start.T.copy()
    begins[:, 0] = True
    taken = valid.T.reshape(-1)
    first = np.flatnonzero(begins)
    number = np.cumsum(begins.reshape(-1)) - 1
    before: Indices = np.cumsum(taken) - taken
    length = np.add.reduceat(taken, first, dtype=np.int64)
    order = np.argsort(-length, kind="stable")[: np.count_nonzero(length)]
    rank = np.zeros_like(length)
    rank[order] = np.arange(len(order))
    length, first = length[order], first[order]

    edges = _run_edges(length)
    size = np.diff(edges)
    runs = tuple((int(length[edge]), int(many)) for edge, many in zip(edges, size, strict=False))
    offset = np.cumsum([0, *(longest * many for longest, many in runs)])
    run = np.repeat(np.arange(len(runs)), size)

    element = np.flatnonzero(taken)
    segment = rank[number[element]]
    position: Indices = before[element] - before[first[segment]]
    slot = offset[run[segment]] + position * size[run[segment]] + segment - edges[run[segment]]
    row = element % rows * columns + element // rows
    source, place = np.zeros(offset[-1], np.int64), np.zeros(rows * columns, np.int64)
    source[slot] = row
    place[row] = 1 + slot
    column = first // rows
    return Segments(runs, source, place, column, episode_start[first % rows, column])


def _run_edges(length: Indices) -> Indices:
    """Where runs begin among segments of these lengths (falling), then their number.

    From the longest on, a run ends where that saves the most padding, if it saves more than another run costs.
    """
    edges = [0]
    while edges[-1] < len(length):
        rest = length[edges[-1] :]
        saved = np.arange(len(rest), 0, -1) * (rest[0] - rest)
        best = int(saved.argmax())
        edges.append(edges[-1] + best if saved[best] > RUN_COST_ROWS else len(length))
    return np.array(edges)

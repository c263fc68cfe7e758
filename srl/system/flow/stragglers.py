"""When a grant that holds up an update is a straggler: outstanding for longer than twice the usual time."""

from __future__ import annotations

from collections import deque
from statistics import median

#: A grant is a straggler only when it is outstanding for longer than this many medians of the recent blocks.
STRAGGLER_MEDIANS = 2.0

#: ... and never before this. A shorter wait costs less than a short block, and the scheduler alone delays that much.
STRAGGLER_FLOOR_SECONDS = 0.05

#: How many recent blocks the median is of.
RECENT_BLOCKS = 127


class Durations:
    """How long recent blocks took from grant to announcement.

    Cut and late blocks count too: they took at least the threshold, so where all producers have become slower the
    threshold follows, and a cut never lowers it.
    """

    def __init__(self) -> None:
        self._recent_seconds: deque[float] = deque(maxlen=RECENT_BLOCKS)

    def add(self, duration_seconds: float) -> None:
        """A block was announced so long after its grant."""
        self._recent_seconds.append(duration_seconds)

    def threshold_seconds(self) -> float | None:
        """Age above which a grant is a straggler; ``None`` while nothing was announced: nothing is known to be slow."""
        if not self._recent_seconds:
            return None
        return max(STRAGGLER_FLOOR_SECONDS, STRAGGLER_MEDIANS * median(self._recent_seconds))

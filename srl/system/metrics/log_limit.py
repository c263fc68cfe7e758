"""Keeps logs readable: repeated messages are collapsed with a count, and no minute has more than so many lines."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

_MAX_KEYS = 256


@dataclass(slots=True)
class _Seen:
    """One kind of message: when it was last let through, and how many were held back since."""

    passed_at: float
    held_back: int = 0


class LogLimit:
    """Decides which lines pass. Pure.

    A message of the same kind passes at most once in ``repeat_seconds``; over all kinds at most ``lines_per_minute``
    pass in any 60 seconds.

    Args:
        clock: Seconds, monotonic.
        repeat_seconds: See above.
        lines_per_minute: See above.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, repeat_seconds: float = 10.0, lines_per_minute: int = 150
    ) -> None:
        self._clock = clock
        self._repeat_seconds = repeat_seconds
        self._lines_per_minute = lines_per_minute
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._passed: deque[float] = deque(maxlen=lines_per_minute)

    def admit(self, kind: str) -> int | None:
        """Whether a message of this kind passes now.

        Returns:
            ``None`` = held back; else how many of this kind were held back since the last one that passed.
        """
        now = self._clock()
        seen = self._seen.get(kind)
        too_soon = seen is not None and now - seen.passed_at < self._repeat_seconds
        if too_soon or self._is_full(now):
            self._hold_back(kind, now)
            return None
        self._passed.append(now)
        self._seen[kind] = _Seen(now)
        self._seen.move_to_end(kind)
        self._trim()
        return seen.held_back if seen is not None else 0

    def _is_full(self, now: float) -> bool:
        return len(self._passed) == self._lines_per_minute and now - self._passed[0] < 60

    def _hold_back(self, kind: str, now: float) -> None:
        self._seen.setdefault(kind, _Seen(now)).held_back += 1
        self._trim()

    def _trim(self) -> None:
        while len(self._seen) > _MAX_KEYS:
            self._seen.popitem(last=False)


class LogFloodFilter(logging.Filter):
    """Applies :class:`LogLimit` to a handler; a message's kind is its logger, level and unformatted text.

    Errors always pass: they are few, and each of them counts.
    """

    def __init__(self, limit: LogLimit | None = None) -> None:
        super().__init__()
        self._limit = limit or LogLimit()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass or not; tells in its text how many like it were held back."""
        if record.levelno >= logging.ERROR:
            return True
        held_back = self._limit.admit(f"{record.name} {record.levelno} {record.msg}")
        if held_back:
            record.msg = f"{record.getMessage()} ({held_back} more like this since the last one shown)"
            record.args = ()
        return held_back is not None

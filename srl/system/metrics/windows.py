"""Rates and shares over the last seconds, from counters that only grow, in constant memory."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Window(Generic[T]):
    """Remembers what a counter was some seconds ago: between ``span_seconds`` and twice that, less at the start.

    Two anchors are kept; each time the newer one is ``span_seconds`` old it becomes the older one. So a worker costs
    two values, not a list of samples (15,000 actors report every second).

    Args:
        span_seconds: Least age of the baseline, once there is that much history.
    """

    __slots__ = ("_newer", "_older", "_span")

    def __init__(self, span_seconds: float) -> None:
        self._span = span_seconds
        self._older: tuple[float, T] | None = None
        self._newer: tuple[float, T] | None = None

    def push(self, now: float, value: T) -> None:
        """The counter's value at ``now`` (ascending)."""
        if self._newer is None or self._older is None:
            self._older = self._older or (now, value)
            self._newer = (now, value)
        elif now - self._newer[0] >= self._span:
            self._older = self._newer
            self._newer = (now, value)

    def baseline(self) -> tuple[float, T] | None:
        """(time, value) to compare with; ``None`` before the first push."""
        return self._older


class ThinnedCurve:
    """A curve of any length in at most ``max_points`` points: when it is full, every second point goes.

    The newest point is always kept as the last one.
    """

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._stride = 1
        self._count = 0
        self._points: list[tuple[int, float]] = []

    def add(self, x: int, y: float) -> None:
        """Append a point."""
        if self._count % self._stride == 0 or not self._points:
            self._points.append((x, y))
        else:
            self._points[-1] = (x, y)
        self._count += 1
        if len(self._points) >= self._max_points:
            self._points = self._points[1::2]
            self._stride *= 2

    def cut(self, x: int) -> None:
        """Forget what lies behind ``x``."""
        self._points = [point for point in self._points if point[0] <= x]

    def points(self) -> tuple[tuple[int, float], ...]:
        """The points, in the order they were added."""
        return tuple(self._points)

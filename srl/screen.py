"""What a person sees while a trial runs, and at its end.

::

    with make_screen("auto") as screen:
        while running:
            if screen.due():
                screen.update(monitor.snapshot())
        screen.finish(summary, trial.path)
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from rich.console import Console, Group
from rich.live import Live

from srl.api.errors import UsageError
from srl.screen_end import end_lines
from srl.screen_format import ASCII, UNICODE, duration, number
from srl.screen_lines import Frame, screen_lines
from srl.system.metrics.snapshot import TrialSnapshot

ScreenMode = Literal["auto", "live", "plain", "off"]

_LIVE_SECONDS = 0.5
_PLAIN_FIRST_SECONDS = 2.0
_PLAIN_SECONDS = 5.0
_PLAIN_FIRST_LINES = 5


class Screen(ABC):
    """One way to show a trial; used as a context manager.

    Args:
        stream: Where to write.
        clock: Seconds, monotonic.
    """

    is_live = False

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream
        self._clock = clock
        self._next = float("-inf")

    def __enter__(self) -> Screen:
        """Take over the terminal."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the terminal back."""
        self.close()

    def due(self) -> bool:
        """Whether :meth:`update` would show anything now; asked before a snapshot is made, which costs time."""
        return self._clock() >= self._next

    def update(self, snapshot: TrialSnapshot) -> None:
        """Show the trial as it is now; does nothing if it is not :meth:`due`."""
        if self.due():
            self._next = self._clock() + self._interval_seconds()
            self._show(snapshot)

    @abstractmethod
    def catch_up(self, snapshot: TrialSnapshot) -> None:
        """Show what happened since the last update and would be missed otherwise; called once, before the end."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any], trial: Path) -> None:
        """Show the result and where everything is; gives the terminal back."""

    @abstractmethod
    def close(self) -> None:
        """Give the terminal back; may be called twice."""

    @abstractmethod
    def _interval_seconds(self) -> float:
        """Seconds until the next update."""

    @abstractmethod
    def _show(self, snapshot: TrialSnapshot) -> None:
        """Show the snapshot."""


class LiveScreen(Screen):
    """A screen that is drawn over and over, twice a second, without a thread."""

    is_live = True

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Screen:
        """Hide the cursor; what is printed from now on appears above the screen."""
        self._live.start()
        return self

    def catch_up(self, snapshot: TrialSnapshot) -> None:
        """Nothing: what is over is not drawn again."""

    def finish(self, summary: Mapping[str, Any], trial: Path) -> None:
        """Replace the screen by the result."""
        self.close()
        for line in end_lines(summary, trial, self._frame().glyphs, self._console.width):
            self._console.print(line, soft_wrap=True, highlight=False)

    def close(self) -> None:
        """Remove the screen and show the cursor."""
        self._live.stop()

    def _interval_seconds(self) -> float:
        return _LIVE_SECONDS

    def _show(self, snapshot: TrialSnapshot) -> None:
        self._live.update(Group(*screen_lines(snapshot, self._frame())), refresh=True)

    def _frame(self) -> Frame:
        width, height = self._console.size
        glyphs = UNICODE if self._console.encoding.lower().startswith("utf") else ASCII
        # The last row stays free: a cursor that goes to the next line there would scroll the screen.
        return Frame(width, height - 1, glyphs, has_colour=self._console.color_system is not None)


class PlainScreen(Screen):
    """Lines for logs and pipes: one every 2 s at first, every 5 s later; each warning and evaluation once."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock)
        self._lines = 0
        self._evaluations = 0
        self._shown: dict[tuple[str, str], int] = {}

    def catch_up(self, snapshot: TrialSnapshot) -> None:
        """Print the warnings and evaluations that came after the last line."""
        self._news(snapshot)

    def finish(self, summary: Mapping[str, Any], trial: Path) -> None:
        """Print the result."""
        encoding = (getattr(self.stream, "encoding", None) or "utf-8").lower()
        for line in end_lines(summary, trial, UNICODE if encoding.startswith("utf") else ASCII):
            self._print(line.plain)

    def close(self) -> None:
        """Nothing was taken."""

    def _interval_seconds(self) -> float:
        self._lines += 1
        return _PLAIN_FIRST_SECONDS if self._lines <= _PLAIN_FIRST_LINES else _PLAIN_SECONDS

    def _show(self, snapshot: TrialSnapshot) -> None:
        self._news(snapshot)
        self._print(plain_line(snapshot))

    def _news(self, snapshot: TrialSnapshot) -> None:
        for message in snapshot.messages:
            key = (message.worker, message.text)
            before = self._shown.get(key, 0)
            # A warning that goes on is shown at its 1st, 10th, 100th ... time.
            if len(str(message.count)) > len(str(before)) or before == 0:
                times = f" (x{message.count:,})" if message.count > 1 else ""
                self._print(f"{duration(message.seconds)}  {message.worker}: {message.text}{times}")
                self._shown[key] = message.count
        for result in snapshot.evaluations[self._evaluations :]:
            self._print(
                f"{duration(snapshot.wall_seconds)}  evaluation of version {result.policy_version:,} "
                f"({result.env_steps:,} env steps): return {number(result.mean)}, std {number(result.std)}, "
                f"{len(result.returns)} episodes"
            )
        self._evaluations = len(snapshot.evaluations)

    def _print(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()


class NoScreen(Screen):
    """Shows nothing."""

    def due(self) -> bool:
        """Never."""
        return False

    def catch_up(self, snapshot: TrialSnapshot) -> None:
        """Show nothing."""

    def finish(self, summary: Mapping[str, Any], trial: Path) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Nothing was taken."""

    def _interval_seconds(self) -> float:
        return float("inf")

    def _show(self, snapshot: TrialSnapshot) -> None:
        """Show nothing."""


def make_screen(mode: ScreenMode, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> Screen:
    """The screen for a mode.

    Args:
        mode: ``auto`` = ``live`` on a terminal, else ``plain``.
        stream: Where to write; ``None`` = standard output.
        clock: Seconds, monotonic.

    Raises:
        UsageError: Unknown mode.
    """
    stream = stream or sys.stdout
    kinds: dict[str, type[Screen]] = {"live": LiveScreen, "plain": PlainScreen, "off": NoScreen}
    if mode == "auto":
        is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        mode = "live" if is_terminal else "plain"
    if mode not in kinds:
        raise UsageError("unknown screen mode", value=mode, expected="auto, live, plain or off")
    return kinds[mode](stream, clock)


def plain_line(snapshot: TrialSnapshot) -> str:
    """The trial in one line; what is not known yet is left out."""
    parts = [f"{duration(snapshot.wall_seconds)}  {snapshot.phase}"]
    if snapshot.phase == "starting":
        return "  ".join([*parts, _states(snapshot)])
    for one in snapshot.progress:
        digits = 0 if one.name in ("env_steps", "updates") or one.target >= 100 else 1
        parts.append(f"{one.name} {number(one.value, digits)}/{number(one.target, digits)}")
    if not any(one.name == "env_steps" for one in snapshot.progress):
        parts.append(f"env_steps {snapshot.env_steps:,}")
    if snapshot.episodes:
        parts.append(f"return {number(snapshot.episode_return)} ({snapshot.episodes:,} episodes)")
    parts.append(f"{number(snapshot.env_steps_per_second, 0)} env steps/s")
    parts.append(f"{number(snapshot.frames_per_second, 0)} frames/s")
    parts.append(f"version {snapshot.policy_version:,}")
    if snapshot.lag_mean is not None:
        parts.append(f"lag {number(snapshot.lag_mean, 2)} (max {number(snapshot.lag_max, 0)})")
    return "  ".join(parts)


def _states(snapshot: TrialSnapshot) -> str:
    """How many workers are in which state: what a start-up that does not end waits for."""
    states: Counter[str] = Counter()
    for group in snapshot.groups:
        states.update(group.states)
    return f"workers: {', '.join(f'{count} {state}' for state, count in states.items())}"

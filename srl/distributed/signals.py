"""Ctrl-C and SIGTERM of the process that runs a trial: the first stops it in order, the second at once.

A terminal that is closed (SIGHUP) counts as a SIGTERM, once: shell and kernel both tell of it. Under ``nohup`` it
changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from srl.distributed.trial_events import AbortRequested, StopRequested

ANNOUNCEMENT = "srl-run: stopping, the last checkpoint is being written (again = at once, without it)"
REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


@dataclass
class Signals:
    """What was received so far.

    Attributes:
        received: In order.
        descriptor: Readable after a signal; -1 where none are handled (not in the main thread).
        announces: Whether the handler itself says that it heard; a live screen says it in its own place.
        raises_at: Number of signals from which on the handler raises ``KeyboardInterrupt`` right where the program is.
            1 = the usual behaviour, while nothing has been started yet; 2 = for trials that run in this very thread.
    """

    received: list[signal.Signals] = field(default_factory=list)
    descriptor: int = -1
    announces: bool = True
    raises_at: int | None = 1

    @property
    def exit_code(self) -> int:
        """130 or 143, by the first signal."""
        return EXIT_CODES[self.received[0]]

    @property
    def reason(self) -> str:
        """``interrupted`` or ``terminated``."""
        return REASONS[self.received[0]]

    def request(self) -> StopRequested | AbortRequested | None:
        """What the signals so far ask for."""
        if not self.received:
            return None
        if len(self.received) == 1:
            return StopRequested(self.reason, self.exit_code, is_orderly=False)
        return AbortRequested(self.reason, self.exit_code)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if number == signal.SIGHUP and self.received:
            return
        self.received.append(signal.Signals(number))
        if self.announces and self.raises_at != 1 and len(self.received) == 1:
            # Not through logging or print: the signal may have come in the middle of one of their lines. Nor may it
            # fail: where the output goes through ``tee``, the same Ctrl-C has ended that.
            with contextlib.suppress(OSError):
                os.write(2, f"{ANNOUNCEMENT}\n".encode())
        if self.raises_at is not None and len(self.received) >= self.raises_at:
            raise KeyboardInterrupt


@contextlib.contextmanager
def handled_signals() -> Iterator[Signals]:
    """Handle the signals until the end; elsewhere than in the main thread nothing can be handled."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signals.descriptor = read_end
    handled = [one for one in REASONS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
    previous = {number: signal.signal(number, signals.handle) for number in handled}
    previous_wake = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(previous_wake)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)

"""Which grants are stragglers: outstanding for longer than usual, and an update cannot do without them.

**Overdue** is a grant that is outstanding for longer than ``STRAGGLER_MEDIANS`` medians of the time that recent blocks
took from grant to announcement. That alone harms nobody: an actor may be slow while the blocks of others are enough.

**Straggler** is the oldest overdue grant while more than j * N overdue grants of version v - k + j or before are
outstanding, for some j in 0..k and the version v that an update could enter with now: the gate (``gate.py``) lets no
more stay, so even if all that are not overdue arrived, the update would wait for it. At j = 0 (always where k = 0) that
is every overdue grant. For ``cut`` also, while fewer than N blocks are ready, where the overdue grants leave fewer than
N slots: no other block could replace theirs.

For ``drop``: what a unit is granted after one of its grants was written off is not judged before the
next version. So where all units have become slower, every update still gets its blocks while the median follows.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import Literal

from srl.system.flow.assignment import Unit
from srl.system.flow.gate import LagGate

OnStraggler = Literal["cut", "wait", "drop"]

#: See the module.
STRAGGLER_MEDIANS = 2.0

#: No grant is overdue before this. A shorter wait costs less than a short block, and schedulers alone delay that much.
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
        self._threshold_seconds: float | None = None

    def add(self, duration_seconds: float) -> None:
        """A block was announced so long after its grant."""
        self._recent_seconds.append(duration_seconds)
        self._threshold_seconds = None

    def threshold_seconds(self) -> float | None:
        """Age above which a grant is overdue; ``None`` while nothing was announced: nothing is known to be slow."""
        if self._threshold_seconds is None and self._recent_seconds:
            usual = STRAGGLER_MEDIANS * median(self._recent_seconds)
            self._threshold_seconds = max(STRAGGLER_FLOOR_SECONDS, usual)
        return self._threshold_seconds


class Stragglers:
    """Judges outstanding grants.

    Args:
        on_straggler: ``cut`` and ``drop`` judge, ``wait`` does not.
        gate: Knows what holds an update up; told of every judgement. ``None``: nobody is judged (lockstep).
    """

    def __init__(self, on_straggler: OnStraggler, gate: LagGate | None) -> None:
        self.judged_so_far = 0
        self.drops = on_straggler == "drop" and gate is not None
        self._gate = None if on_straggler == "wait" else gate
        self._durations = Durations()
        self._granted_at_seconds: dict[int, float] = {}
        self._units: dict[int, Unit] = {}
        self._unanswered: set[int] = set()
        self._version = 0
        self._written_off_units: set[Unit] = set()
        self._spared: list[int] = []

    def granted(self, number: int, unit: Unit, now_seconds: float) -> None:
        """A grant went out."""
        self._units[number] = unit
        self._granted_at_seconds[number] = now_seconds
        if self._gate is not None and unit in self._written_off_units:
            self._gate.count_on(number)
            self._spared.append(number)

    def announced(self, number: int, now_seconds: float) -> None:
        """Its block arrived; :meth:`ended` follows."""
        self._durations.add(now_seconds - self._granted_at_seconds[number])

    def ended(self, number: int) -> bool:
        """A grant is no longer outstanding; True if it was judged a straggler."""
        del self._granted_at_seconds[number], self._units[number]
        was_straggler = number in self._unanswered
        self._unanswered.discard(number)
        return was_straggler

    def judge(self, now_seconds: float, *, slots: int, free: int) -> list[int]:
        """The grants to cut or to write off now.

        Args:
            now_seconds: The time.
            slots: Slots not in quarantine.
            free: Slots that are free.
        """
        stragglers: list[int] = []
        if self._gate is None:
            return stragglers
        while (number := self._gate.next_to_age()) is not None and now_seconds >= self._due_seconds(number):
            self._gate.overdue(number)
        while (late := self._blocking(slots, free)) is not None and now_seconds >= self._due_seconds(late):
            self._unanswered.add(late)
            self.judged_so_far += 1
            stragglers.append(late)
            if self.drops:
                self._written_off_units.add(self._units[late])
                self._gate.give_back(late)
            else:
                self._gate.count_on(late)
        return stragglers

    def enter(self, version: int) -> None:
        """The trainer's version from now on."""
        if version == self._version:
            return
        self._version = version
        self._written_off_units.clear()
        if self._gate is not None and self._spared:
            self._gate.let_age(self._spared)
            self._spared.clear()

    def wake_time(self, now_seconds: float, *, slots: int, free: int) -> float | None:
        """When :meth:`judge` may next find one, ``None``: not before an event."""
        if self._gate is None:
            return None
        candidates = (self._gate.next_to_age(), self._blocking(slots, free))
        due = min((self._due_seconds(number) for number in candidates if number is not None), default=inf)
        return None if due == inf else max(now_seconds, due)

    def _blocking(self, slots: int, free: int) -> int | None:
        if self._gate is None:
            return None
        if not self.drops:
            return self._gate.blocking(self._version, slots=slots)
        # The slot of what is written off stays its owner's: that gains an update no slot, and so, where it has not the
        # blocks either, nothing.
        gains = free or self._gate.ready_for_update()
        return self._gate.blocking(self._version, slots=None) if gains else None

    def _due_seconds(self, number: int) -> float:
        threshold = self._durations.threshold_seconds()
        return inf if threshold is None else self._granted_at_seconds[number] + threshold

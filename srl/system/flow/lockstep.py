"""The gate of lockstep mode: the same grants in the same updates, whatever the timing."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

from srl.api.errors import UsageError
from srl.system.flow.gate import Gate


class LockstepGate(Gate):
    """The lockstep rule of ``gate.py``. A grant that ends without a block is granted again, same number.

    Updates are numbered from the first version on, one per ``take``, also those that come to nothing. So update u
    enters with version ``u - (updates before it that came to nothing)``; which ones did is known before any grant that
    acts with that version is due. Lockstep waits for everyone: nobody is a straggler.

    Args:
        blocks_per_update: N.
        max_policy_lag: k in versions; lockstep needs a bound.

    Raises:
        UsageError: If there is no bound.
    """

    def __init__(self, blocks_per_update: int, max_policy_lag: int | None) -> None:
        super().__init__(blocks_per_update, max_policy_lag)
        if max_policy_lag is None:
            raise UsageError("lockstep needs a bound on the policy lag", expected="max_policy_lag of 0 or more")
        self._lag = max_policy_lag
        self._first_version = 0
        self._next_number = 0
        self._again: list[int] = []
        self._ready: set[int] = set()
        self._undone: list[int] = []

    def _begin_at(self, version: int) -> None:
        self._first_version = version
        self._next_number = version * self.blocks_per_update
        self._undone.clear()

    def _granted(self) -> int:
        undone = len(self._undone) * self.blocks_per_update
        return self._next_number - len(self._again) - undone

    def may_grant(self, version: int) -> bool:
        """The credits of ``gate.py``; grants given back are due whatever the version."""
        return bool(self._again) or super().may_grant(version)

    def next_grant(self, version: int) -> tuple[int, int]:
        """The lowest number not granted; its version follows from the number, not from the trainer's version."""
        number = self._again[0] if self._again else self._next_number
        entered = max(self._first_version, number // self.blocks_per_update - self._lag)
        return number, entered - bisect_left(self._undone, entered)

    def grant(self, number: int, min_version: int) -> None:
        """Go on to the next number."""
        if self._again:
            heapq.heappop(self._again)
        else:
            self._next_number = number + 1

    def arrived(self, number: int) -> None:
        """Remember the block."""
        self._ready.add(number)

    def give_back(self, number: int) -> None:
        """The number is due again, before any new one."""
        heapq.heappush(self._again, number)

    def untake(self, number: int) -> None:
        """Later updates enter with a version one less than their number would say."""
        self._undo_turn()
        insort(self._undone, number // self.blocks_per_update)

    def ready_for_update(self) -> bool:
        """Whether N blocks are ready, be they the next update's or not."""
        return len(self._ready) >= self.blocks_per_update

    def _take(self, version: int) -> list[int] | None:
        update = version + len(self._undone)
        numbers = range(update * self.blocks_per_update, (update + 1) * self.blocks_per_update)
        if not self._ready.issuperset(numbers):
            return None
        self._ready.difference_update(numbers)
        return list(numbers)

r"""How many credits there may be, and when an update may start, so that policy lag never exceeds its bound.

With ``max_policy_lag`` k and N blocks per update, version = number of completed updates, and the version at its grant
as the oldest version that can have chosen a row of a block:

**Credits.** Grant while ``granted < (version + 1 + k) * N``. ``granted`` counts since the beginning, less what was
given back: credits returned, written off, ended by a death, and blocks taken but not trained. As ``version * N``
blocks were trained, at most (k + 1) * N are under way: one update's worth for this update and for each of the next k.

**Gate.** A block granted at version g must be in the update that enters with version g + k at the latest. The update
entering with version v takes the oldest ready grants, and starts only if for every j in 0..k at most ``j * N`` blocks
granted at version ``v - k + j`` or before stay outstanding (not taken, ready or not) after it: exactly what the j
updates up to their deadline can still take.

*No excess lag*: j = 0 says that nothing granted at v - k or before stays, so nothing is ever taken after its deadline.

*No deadlock*: before the update at v, at most (j + 1) * N blocks granted at v - k + j or before are under way (for
j < k by the gate of the update before, for j = k by the credits; a grant given back is granted anew at the current
version, which only j = k counts). So when all of them are ready, taking the oldest N leaves at most j * N, and the
update starts: the gate only waits for blocks under way, which arrive, are given back, or end with their producer.

k = 0: N grants, all of them in, one update: synchronous. k = ``None``: no bound, room in slots only.

**Lockstep** (``lockstep.py``). Update u consumes exactly the grants u * N .. (u + 1) * N - 1, and grant g acts with
exactly the version at which update ``g // N - k`` entered, whenever it is sent: timing and number of slots change
nothing.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from srl.api.errors import UsageError


def default_slots(blocks_per_update: int, max_policy_lag: int | None) -> int:
    """Slots of a consumer's pool that let credits, not slots, be the bound.

    (k + 1) * N blocks under way, and N more that the trainer still reads while their successors are filled; without a
    bound (``None``) as for k = 1.
    """
    lag = 1 if max_policy_lag is None else max_policy_lag
    return (lag + 2) * blocks_per_update


class Gate(ABC):
    r"""Credits and the start of updates, by grant number.

    ::

        may_grant(version) -> next_grant(version) -> grant(number, min_version) -> arrived(number) -> take(version)
                                                                                \-> give_back(number)

    The first version seen is the one training began (or resumed) at; grant numbers begin at that version * N.
    """

    def __init__(self, blocks_per_update: int, max_policy_lag: int | None) -> None:
        if blocks_per_update < 1 or (max_policy_lag is not None and max_policy_lag < 0):
            raise UsageError(
                "a lag gate needs blocks and a lag",
                value=f"{blocks_per_update} blocks per update, lag {max_policy_lag}",
                expected="at least 1 block per update, and a lag of 0 or more or None",
            )
        self.blocks_per_update = blocks_per_update
        self.max_policy_lag = max_policy_lag
        self._next_update: int | None = None
        self._barrier: int | None = None

    def begin(self, version: int) -> int:
        """The version at which the next update enters; at first the one given here."""
        if self._next_update is None:
            self._next_update = version
            self._begin_at(version)
        return self._next_update

    def set_barrier(self, version: int) -> None:
        """Grant nothing for updates that enter with this version or a later one, until :meth:`lift_barrier`.

        When the version is reached nothing is under way: the state of every environment can be reset.

        Raises:
            UsageError: If more was granted already. ``version + 1 + k`` and later is always early enough.
        """
        if self._next_update is not None and self._granted() > version * self.blocks_per_update:
            raise UsageError(
                "a barrier was set too late",
                value=version,
                expected=f"at least {-(-self._granted() // self.blocks_per_update)}",
            )
        self._barrier = version

    def lift_barrier(self) -> None:
        """Grant again; in lockstep as if training began at the barrier's version.

        Raises:
            UsageError: If the barrier was not reached: blocks of earlier updates are not taken yet.
        """
        if self._barrier is None or self._barrier != self._next_update:
            raise UsageError(
                "no barrier to lift",
                value=f"barrier {self._barrier}, next update {self._next_update}",
                expected="equal",
            )
        self._begin_at(self._barrier)
        self._barrier = None

    def at_barrier(self) -> bool:
        """Whether everything the barrier allows was granted."""
        return self._barrier is not None and self._granted() >= self._barrier * self.blocks_per_update

    def may_grant(self, version: int) -> bool:
        """Whether one more credit may be granted at this version.

        Raises:
            UsageError: If the version is ahead of the updates taken: the counts of both would never meet again.
        """
        turn = self.begin(version)
        if version > turn:
            raise UsageError("a version is ahead of the updates taken", value=version, expected=f"at most {turn}")
        if self.at_barrier():
            return False
        if self.max_policy_lag is None:
            return True
        return self._granted() < (version + 1 + self.max_policy_lag) * self.blocks_per_update

    def take(self, version: int) -> list[int] | None:
        """The grants of the update that enters with this version, oldest first; ``None`` if it cannot start yet.

        Raises:
            UsageError: If it is not the turn of this version.
        """
        turn = self.begin(version)
        if version != turn:
            raise UsageError("an update was taken out of turn", value=version, expected=f"version {turn}")
        numbers = self._take(version)
        if numbers is not None:
            self._next_update = turn + 1
        return numbers

    def _undo_turn(self) -> None:
        if self._next_update is not None:
            self._next_update -= 1

    @abstractmethod
    def next_grant(self, version: int) -> tuple[int, int]:
        """Number and version of the next grant, if :meth:`may_grant` allows it."""

    @abstractmethod
    def grant(self, number: int, min_version: int) -> None:
        """The next grant was given out."""

    @abstractmethod
    def arrived(self, number: int) -> None:
        """The block of a grant is ready."""

    @abstractmethod
    def give_back(self, number: int) -> None:
        """A grant ended without a block."""

    @abstractmethod
    def untake(self, number: int) -> None:
        """The update that took this grant came to nothing: its grants are given back, the version stays."""

    @abstractmethod
    def ready_for_update(self) -> bool:
        """Whether there are blocks enough, whatever the gate says."""

    @abstractmethod
    def _begin_at(self, version: int) -> None: ...

    @abstractmethod
    def _granted(self) -> int: ...

    @abstractmethod
    def _take(self, version: int) -> list[int] | None: ...


class LagGate(Gate):
    """Credits and gate of the module's docstring; every call costs O(k + log N) at most.

    Args:
        blocks_per_update: N.
        max_policy_lag: k in versions; ``None``: no bound.
    """

    def __init__(self, blocks_per_update: int, max_policy_lag: int | None) -> None:
        super().__init__(blocks_per_update, max_policy_lag)
        self._next_number = 0
        self._net_granted = 0
        self._ready: list[int] = []
        self._versions: dict[int, int] = {}
        self._young: OrderedDict[int, None] = OrderedDict()
        self._overdue: OrderedDict[int, None] = OrderedDict()
        self._counted_on: set[int] = set()
        self._pending_at: dict[int, int] = {}
        self._overdue_at: dict[int, int] = {}
        self._ready_at: dict[int, int] = {}

    def _begin_at(self, version: int) -> None:
        self._next_number = max(self._next_number, version * self.blocks_per_update)
        self._net_granted = version * self.blocks_per_update

    def _granted(self) -> int:
        return self._net_granted

    def next_grant(self, version: int) -> tuple[int, int]:
        """Numbers ascend; the grant carries the trainer's version."""
        return self._next_number, version

    def grant(self, number: int, min_version: int) -> None:
        """Count the grant as under way."""
        self._next_number = number + 1
        self._net_granted += 1
        self._versions[number] = min_version
        self._young[number] = None
        _add(self._pending_at, min_version, 1)

    def arrived(self, number: int) -> None:
        """Move the grant from the pending to the ready ones."""
        version = self._versions[number]
        self._leave_pending(number)
        heapq.heappush(self._ready, number)
        _add(self._ready_at, version, 1)

    def give_back(self, number: int) -> None:
        """Forget the grant; another may be granted in its place."""
        self._leave_pending(number)
        del self._versions[number]
        self._net_granted -= 1

    def untake(self, number: int) -> None:
        """Make room for one update's worth of grants."""
        self._undo_turn()
        self._net_granted -= self.blocks_per_update

    def next_to_age(self) -> int | None:
        """The oldest pending grant that is not overdue: grants age in the order of their numbers."""
        return next(iter(self._young), None)

    def overdue(self, number: int) -> None:
        """The grant of :meth:`next_to_age` is outstanding for longer than usual: it is not counted on any more."""
        del self._young[number]
        self._overdue[number] = None
        _add(self._overdue_at, self._versions[number], 1)

    def count_on(self, number: int) -> None:
        """A pending grant is expected to arrive however long it takes: it does not age, and is not named."""
        if number in self._overdue:
            self._leave_overdue(number)
        else:
            del self._young[number]
        self._counted_on.add(number)

    def let_age(self, numbers: Iterable[int]) -> None:
        """Undo :meth:`count_on` for those that are still pending."""
        young = sorted([*self._young, *self._counted_on.intersection(numbers)])
        self._counted_on.difference_update(numbers)
        self._young = OrderedDict.fromkeys(young)

    def ready_for_update(self) -> bool:
        """Whether N blocks are ready."""
        return len(self._ready) >= self.blocks_per_update

    def blocking(self, version: int, *, slots: int | None) -> int | None:
        """The oldest overdue grant that the update entering with this version cannot do without, if there is one.

        It can do without j * N overdue grants of version v - k + j or before: so many may stay outstanding, and those
        not overdue are expected to arrive. Where blocks are too few, it can do without as many as leave slots for N.

        Args:
            version: The trainer's version; nothing holds up an update that could not enter anyway.
            slots: Slots that blocks of updates to come can lie in; ``None`` leaves them out of it.
        """
        if not self._overdue or self.begin(version) > version:
            return None
        if slots is not None and not self.ready_for_update() and len(self._overdue) > slots - self.blocks_per_update:
            return next(iter(self._overdue))
        if any(overdue > may_stay for _, overdue, may_stay in self._sums(version)):
            return next(iter(self._overdue))
        return None

    def _take(self, version: int) -> list[int] | None:
        if not self.ready_for_update() or any(excess > 0 for excess, _, _ in self._sums(version)):
            return None
        numbers = [heapq.heappop(self._ready) for _ in range(self.blocks_per_update)]
        for number in numbers:
            _add(self._ready_at, self._versions.pop(number), -1)
        return numbers

    def _sums(self, version: int) -> Iterator[tuple[int, int, int]]:
        """For each j where a sum grows: blocks too many after the update, overdue grants, j * N.

        Too many: those granted at version - k + j or before that would stay outstanding, less j * N.
        """
        if self.max_policy_lag is None:
            return
        pending = ready = overdue = 0
        for granted_at in sorted(self._pending_at.keys() | self._ready_at.keys()):
            pending += self._pending_at.get(granted_at, 0)
            ready += self._ready_at.get(granted_at, 0)
            overdue += self._overdue_at.get(granted_at, 0)
            may_stay = max(0, granted_at - version + self.max_policy_lag) * self.blocks_per_update
            yield pending + max(0, ready - self.blocks_per_update) - may_stay, overdue, may_stay

    def _leave_pending(self, number: int) -> None:
        if number in self._overdue:
            self._leave_overdue(number)
        elif number in self._counted_on:
            self._counted_on.remove(number)
        else:
            del self._young[number]
        _add(self._pending_at, self._versions[number], -1)

    def _leave_overdue(self, number: int) -> None:
        del self._overdue[number]
        _add(self._overdue_at, self._versions[number], -1)


def _add(counts: dict[int, int], key: int, change: int) -> None:
    """Add to a count, and let it go when it is zero, so that the keys stay the versions under way."""
    counts[key] = counts.get(key, 0) + change
    if not counts[key]:
        del counts[key]

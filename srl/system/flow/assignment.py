"""Which ring group gets the next grant."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict

from srl.system.flow.dealing import turns
from srl.system.streams.interface import Producer

#: A unit fills one block at a time: (actor, ring group).
Unit = tuple[int, int]

#: One grant being filled and one waiting, so that a unit goes on while its announcement and the next credit travel.
GRANTS_PER_UNIT = 2


class Assignment(ABC):
    """Knows the connected units and what each holds."""

    @abstractmethod
    def connect(self, producer: Producer) -> None:
        """Its ring groups may get grants."""

    @abstractmethod
    def disconnect(self, producer: Producer) -> None:
        """Its ring groups get no more; what they hold is forgotten."""

    @abstractmethod
    def suspend(self, unit: Unit) -> None:
        """The unit gets no more grants until :meth:`resume` as often, or the actor's next life."""

    @abstractmethod
    def resume(self, unit: Unit) -> None:
        """Undo one :meth:`suspend`."""

    @abstractmethod
    def pick(self, number: int) -> Unit | None:
        """The unit for grant ``number``, ``None`` if it has to wait."""

    @abstractmethod
    def granted(self, unit: Unit) -> None:
        """The unit holds one grant more."""

    @abstractmethod
    def ended(self, unit: Unit) -> None:
        """The unit holds one grant less."""


class LeastLoaded(Assignment):
    """The connected unit with the fewest outstanding grants; of equals the one that has had that few for longest.

    (Sorted order between equals would leave the last units idle for ever where N is less than the number of units.)

    A unit holds at most ``max(GRANTS_PER_UNIT, ceil(bound / expected units))`` grants, so that the units together can
    hold all the credits there may be: few units with many blocks per update need not wait for the trainer between
    blocks. Expected, not connected: the first actor to connect must not get the grants of all. Every call is
    O(distinct loads).

    One of several trainer ranks prefers, of the units with the fewest grants, the one whose turn it is in the dealing:
    ranks that choose by themselves would grant to the same units, and the others would stand idle.

    Args:
        producers: Number of units expected.
        bound: The most credits that can be under way.
        rank: Trainer rank that grants.
        ranks: Number of ranks.
    """

    def __init__(self, producers: int, bound: int, rank: int = 0, ranks: int = 1) -> None:
        self._producers = producers
        self._bound = bound
        self._turns = turns(producers, rank, ranks) if ranks > 1 else ()
        self._ring_groups = 1
        self._loads: dict[Unit, int] = {}
        self._by_load: dict[int, OrderedDict[Unit, None]] = {}
        self._suspended: Counter[Unit] = Counter()

    def limit(self) -> int:
        """The most grants a unit may hold now."""
        return max(GRANTS_PER_UNIT, -(-self._bound // max(len(self._loads), self._producers)))

    def connect(self, producer: Producer) -> None:
        """Add its units, holding nothing."""
        self._ring_groups = producer.ring_groups
        for unit in _units(producer):
            self._loads[unit] = 0
            self._enter(unit, 0)

    def disconnect(self, producer: Producer) -> None:
        """Remove its units."""
        for unit in _units(producer):
            self._leave(unit, self._loads.pop(unit))
            del self._suspended[unit]

    def suspend(self, unit: Unit) -> None:
        """Take the unit out of the choice."""
        self._leave(unit, self._loads[unit])
        self._suspended[unit] += 1

    def resume(self, unit: Unit) -> None:
        """Let it be chosen again."""
        self._suspended[unit] -= 1
        self._enter(unit, self._loads[unit])

    def pick(self, number: int) -> Unit | None:
        """See the class; with one rank the number plays no part."""
        if not self._by_load:
            return None
        load = min(self._by_load)
        if load >= self.limit():
            return None
        fewest = self._by_load[load]
        if self._turns:
            unit = divmod(self._turns[number % len(self._turns)], self._ring_groups)
            if unit in fewest:
                return unit
        return next(iter(fewest))

    def granted(self, unit: Unit) -> None:
        """The unit holds one grant more."""
        self._change(unit, 1)

    def ended(self, unit: Unit) -> None:
        """The unit holds one grant less."""
        self._change(unit, -1)

    def _change(self, unit: Unit, change: int) -> None:
        load = self._loads[unit]
        self._leave(unit, load)
        self._loads[unit] = load + change
        self._enter(unit, load + change)

    def _enter(self, unit: Unit, load: int) -> None:
        if not self._suspended[unit]:
            self._by_load.setdefault(load, OrderedDict())[unit] = None

    def _leave(self, unit: Unit, load: int) -> None:
        if self._suspended[unit]:
            return
        del self._by_load[load][unit]
        if not self._by_load[load]:
            del self._by_load[load]


class RoundRobin(Assignment):
    """Lockstep: grant g goes to unit ``g mod P`` in sorted order, once all P have connected.

    From then on the units are fixed; one whose actor is down keeps its turn and waits for the successor.

    With several trainer ranks the order is that of the dealing, and it begins with the first grant of this process:
    the actors count the blocks that they deal from their own start.

    Args:
        producers: P, the number of units expected.
        rank: Trainer rank that grants.
        ranks: Number of ranks.
    """

    def __init__(self, producers: int, rank: int = 0, ranks: int = 1) -> None:
        self._producers = producers
        self._turns = turns(producers, rank, ranks)
        self._first: int | None = 0 if ranks == 1 else None
        self._connected: set[Unit] = set()
        self._units: list[Unit] = []

    def connect(self, producer: Producer) -> None:
        """Its units may get their turns; with the last unit expected the order is fixed."""
        self._connected.update(_units(producer))
        if not self._units and len(self._connected) == self._producers:
            self._units = sorted(self._connected)

    def disconnect(self, producer: Producer) -> None:
        """Its units wait for the successor."""
        self._connected.difference_update(_units(producer))

    def suspend(self, unit: Unit) -> None:
        """Its turns wait."""
        self._connected.discard(unit)

    def resume(self, unit: Unit) -> None:
        """Its turns go on."""
        self._connected.add(unit)

    def pick(self, number: int) -> Unit | None:
        """See the class."""
        if not self._units:
            return None
        if self._first is None:
            self._first = number
        unit = self._units[self._turns[(number - self._first) % self._producers]]
        return unit if unit in self._connected else None

    def granted(self, unit: Unit) -> None:
        """The turn decides, not what a unit holds."""

    def ended(self, unit: Unit) -> None:
        """The turn decides, not what a unit holds."""


def _units(producer: Producer) -> list[Unit]:
    return [(producer.actor, ring_group) for ring_group in range(producer.ring_groups)]

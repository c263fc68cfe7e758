"""Which trainer rank gets which block.

The n-th block (n counted from 0) of unit u, a ring group of an actor, goes to rank ``(u + n) mod R``, u =
``actor * ring groups + ring group``. So every rank trains on all actors, and R neighbouring units feed R ranks at any
time. With one ring group per actor that is (actor + sequence) mod R.

In lockstep that is the rule; then R divides the number of units, so that any N * R blocks that follow each other in
(n, u) order are N for each rank. Elsewhere it is what both ends prefer: a rank may be the only one with a credit for a
unit, and a unit that waited for another rank's would wait for ever where that rank has no credit left and waits itself.
"""

from __future__ import annotations


def rank_of(unit: int, sequence: int, ranks: int) -> int:
    """The rank that the ``sequence``-th block of a unit goes to."""
    return (unit + sequence) % ranks


def turns(units: int, rank: int, ranks: int) -> tuple[int, ...]:
    """The units in the order in which a rank gets their blocks: each of them once, then again from the start."""
    rounds = range(ranks)
    return tuple(unit for sequence in rounds for unit in range(units) if rank_of(unit, sequence, ranks) == rank)

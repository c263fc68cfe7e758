"""Where every credit, block and valid row went. Nothing is lost silently: the sums are checked.

* Edge, in blocks (or credits): ``sent = received + in flight + dropped(reason)``.
* End to end, in blocks and in valid rows: ``produced = trained + in flight + dropped(reason)``. Produced is what was
  announced, also when it was then refused.

Lengths are counted beside (rows of a block, in classes of powers of two), so that a bias in what is dropped shows:
where long episodes are dropped more often than short ones, the lengths dropped differ from the lengths trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from srl.api.block import BlockHeader
from srl.api.errors import StreamError


@dataclass(slots=True)
class EdgeAccount:
    """One edge: what was sent, what was received, what was dropped and why.

    Attributes:
        sent: Blocks (or credits) that entered the edge.
        received: Those that left it at the other end.
        dropped: Those that never will, by reason.
    """

    sent: int = 0
    received: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def check(self, in_flight: int, where: str) -> None:
        """Compare with what is known to be under way.

        Raises:
            StreamError: With all numbers, if the sum is wrong.
        """
        _check_sum(where, "sent", self.sent, received=self.received, in_flight=in_flight, dropped=self.dropped)


@dataclass(slots=True)
class Tally:
    """One quantity end to end; see the module."""

    produced: int = 0
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def check(self, in_flight: int, where: str) -> None:
        """Compare with what is known to be under way.

        Raises:
            StreamError: With all numbers, if the sum is wrong.
        """
        _check_sum(where, "produced", self.produced, trained=self.trained, in_flight=in_flight, dropped=self.dropped)

    def to_dict(self, in_flight: int) -> dict[str, Any]:
        """As the summary shows it."""
        return {
            "produced": self.produced,
            "trained": self.trained,
            "in_flight": in_flight,
            "dropped": dict(sorted(self.dropped.items())),
        }


class BlockAccount:
    """Blocks, valid rows and lengths end to end, at one consumer."""

    def __init__(self) -> None:
        self.blocks = Tally()
        self.valid_rows = Tally()
        self._lengths_trained: Counter[int] = Counter()
        self._lengths_dropped: dict[str, Counter[int]] = {}

    def produced(self, header: BlockHeader) -> None:
        """A block was announced."""
        self.blocks.produced += 1
        self.valid_rows.produced += header.valid_rows

    def trained(self, header: BlockHeader) -> None:
        """A block went into an update."""
        self.blocks.trained += 1
        self.valid_rows.trained += header.valid_rows
        self._lengths_trained[_length_class(header.length)] += 1

    def dropped(self, header: BlockHeader, reason: str) -> None:
        """A block that was announced will never be trained on."""
        self.blocks.dropped[reason] += 1
        self.valid_rows.dropped[reason] += header.valid_rows
        self._lengths_dropped.setdefault(reason, Counter())[_length_class(header.length)] += 1

    def check(self, in_flight: Iterable[BlockHeader]) -> None:
        """Compare with the blocks that are known to be under way.

        Raises:
            StreamError: With all numbers, if a sum is wrong.
        """
        headers = list(in_flight)
        self.blocks.check(len(headers), "blocks")
        self.valid_rows.check(sum(header.valid_rows for header in headers), "valid rows")

    def to_dict(self, in_flight: Iterable[BlockHeader]) -> dict[str, Any]:
        """``blocks`` and ``valid_rows`` as :meth:`Tally.to_dict`; ``lengths``: blocks by class of length."""
        headers = list(in_flight)
        return {
            "blocks": self.blocks.to_dict(len(headers)),
            "valid_rows": self.valid_rows.to_dict(sum(header.valid_rows for header in headers)),
            "lengths": {
                "trained": _by_length(self._lengths_trained),
                "dropped": {reason: _by_length(counts) for reason, counts in sorted(self._lengths_dropped.items())},
            },
        }


def _length_class(length: int) -> int:
    """The largest power of two that is not above the length; 0 for 0."""
    return 1 << (length.bit_length() - 1) if length else 0


def _by_length(counts: Counter[int]) -> dict[str, int]:
    return {str(length): count for length, count in sorted(counts.items())}


def _check_sum(where: str, total_name: str, total: int, *, dropped: Counter[str], **parts: int) -> None:
    """Raise unless the parts and the drops add up to the total, none of them negative."""
    accounted = sum(parts.values()) + dropped.total()
    if accounted == total and min(parts.values()) >= 0:
        return
    named = ", ".join(f"{name} {count}" for name, count in parts.items())
    raise StreamError(
        "the account does not add up",
        where=where,
        value=f"{total_name} {total}; {named}, dropped {dict(dropped)}: {accounted}",
        expected=f"{total_name} = {' + '.join(parts)} + dropped",
    )

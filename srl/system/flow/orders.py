"""What flow control tells its shell."""

from __future__ import annotations

from dataclasses import dataclass

from srl.api.block import BlockHeader
from srl.system.streams.interface import Credit, Producer


@dataclass(frozen=True, slots=True)
class Grant:
    """Send this credit to this producer."""

    producer: Producer
    credit: Credit


@dataclass(frozen=True, slots=True)
class Cut:
    """Ask this producer to send the rows it has for this grant."""

    producer: Producer
    grant: int


@dataclass(frozen=True, slots=True)
class ReadyBlock:
    """A block of the update about to enter; the trainer's until released."""

    slot: int
    header: BlockHeader
    producer: Producer

"""The layout of an inference segment: one mailbox per actor and ring group, behind a header page.

A mailbox is two lines of eight int64 words and a scratch area, each aligned to 64 bytes::

    request line   REQUEST  SLOT  ROW  RANK  MIN_VERSION  EXACT  INCARNATION  ASKED_AT     written by the actor
    reply line     REPLY    VERSION                                                        written by the policy worker
    scratch        noise, recurrent states; episode_start, valid, action and extras of row T

The number in REQUEST is one more at every request and is stored last; REPLY repeats it, stored after VERSION and the
decision. A mailbox has one writer per line, so there is nothing to lock. All words are aligned 8-byte stores
(``memoryview`` of format ``q``: one move instruction); x86 makes stores visible in program order and does not move
loads before earlier loads, so whoever sees the number sees what was written before it.

Noise and recurrent states are in no block and are copied here; the state after a decision has a place of its own, so
that whoever answers a request anew finds what it asked. A block's row T has only an observation and an action mask: the
other arrays of a request about it lie here too.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from srl.api.block import BlockSchema
from srl.api.errors import StreamError
from srl.api.policy import ActOutput, PolicySpec
from srl.system.decisions import input_forms, output_forms, output_of
from srl.system.memory import ALIGNMENT_BYTES, PAGE_BYTES, round_up
from srl.system.parameters import ParameterLayout

REQUEST, SLOT, ROW, RANK, MIN_VERSION, EXACT, INCARNATION, ASKED_AT, REPLY, VERSION = range(10)
IN_PLACE = ("observation", "action_mask")
"""Arrays of a request that lie in the block at every row, T included."""
ASKED_STATE = "asked_state"
LINES_BYTES = 2 * ALIGNMENT_BYTES
WORDS = LINES_BYTES // 8

_HEADER = struct.Struct("<QIIIIQ")
_MAGIC = 0x53524C49


@dataclass(frozen=True, slots=True)
class Mailboxes:
    """How an inference segment is laid out.

    Attributes:
        actors: Actor workers that ask.
        ring_groups: Ring groups of each.
        servers: Policy workers; actor ``a`` asks number ``a % servers``.
        scratch: Layout of a scratch area.
    """

    actors: int
    ring_groups: int
    servers: int
    scratch: ParameterLayout

    @classmethod
    def of(cls, actors: int, ring_groups: int, servers: int, schema: BlockSchema, spec: PolicySpec) -> Mailboxes:
        """The layout for a stream's numbers, schema and policy."""
        columns = schema.columns
        asked = {name: form for name, form in input_forms(spec, columns).items() if name not in IN_PLACE}
        # Both have a state: the one that is asked with goes by another name.
        asked = {ASKED_STATE if name == "state" else name: form for name, form in asked.items()}
        arrays = {**asked, **output_forms(spec, columns)}
        return cls(actors, ring_groups, servers, ParameterLayout.of(arrays))

    @property
    def stride_bytes(self) -> int:
        """Length of one mailbox."""
        return LINES_BYTES + self.scratch.size_bytes

    @property
    def size_bytes(self) -> int:
        """Length of the segment."""
        return PAGE_BYTES + round_up(self.actors * self.ring_groups * self.stride_bytes, PAGE_BYTES)

    def header(self) -> bytes:
        """What the segment's creator writes at its start."""
        return _HEADER.pack(_MAGIC, self.actors, self.ring_groups, self.servers, 0, self.stride_bytes)

    @classmethod
    def opened(cls, segment: NDArray[np.uint8], schema: BlockSchema, spec: PolicySpec, where: str) -> Mailboxes:
        """The layout of a segment that was created elsewhere.

        Raises:
            StreamError: If it is no inference segment, or was made for another schema or policy.
        """
        magic, actors, ring_groups, servers, _, stride = _HEADER.unpack_from(segment.data)
        layout = cls.of(actors, ring_groups, servers, schema, spec)
        if magic != _MAGIC or servers < 1 or stride != layout.stride_bytes or len(segment) < layout.size_bytes:
            raise StreamError(
                "the inference segment was made for another schema or policy",
                where=where,
                value=f"mailboxes of {stride} bytes in {len(segment)}",
                expected=f"mailboxes of {layout.stride_bytes} bytes in {layout.size_bytes}",
                hint="Both ends must come from the same resolved experiment.",
            )
        return layout

    def index(self, actor: int, ring_group: int) -> int:
        """Number of a mailbox."""
        return actor * self.ring_groups + ring_group

    def mailbox(self, segment: NDArray[np.uint8], index: int) -> Mailbox:
        """Views on one mailbox."""
        start = PAGE_BYTES + index * self.stride_bytes
        raw = segment[start : start + self.stride_bytes]
        arrays = self.scratch.views(raw[LINES_BYTES:])
        return Mailbox(
            raw[:LINES_BYTES].data.cast("q"),
            arrays["noise"],
            arrays["episode_start"],
            arrays["valid"],
            arrays.get(ASKED_STATE),
            output_of(arrays),
        )

    def request_numbers(self, segment: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The REQUEST word of every mailbox, ``int64[actors * ring_groups]``, a strided view."""
        count = self.actors * self.ring_groups
        boxes = segment[PAGE_BYTES : PAGE_BYTES + count * self.stride_bytes].reshape(count, self.stride_bytes)
        numbers: NDArray[np.int64] = boxes[:, :8].view(np.int64)[:, 0]
        return numbers


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Views on one mailbox: the words of both lines, and the scratch arrays ``[B, ...]``.

    Attributes:
        words: Request line and reply line.
        noise: Of the request.
        episode_start: Of a request about row T.
        valid: Of a request about row T.
        state: Recurrent state before the row; ``None`` if the policy has none.
        out: States after any row, action and extras of row T.
    """

    words: memoryview
    noise: NDArray[np.float32]
    episode_start: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    state: NDArray[np.float32] | None
    out: ActOutput


def read_signals(descriptor: int) -> int:
    """How often the eventfd was written since it was last read."""
    try:
        return os.eventfd_read(descriptor)
    except BlockingIOError:
        return 0

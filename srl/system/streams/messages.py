"""Messages of the streams that go through sockets: one small frame each, the first byte says which kind.

A block's payload and an inference request's arrays are a second frame of raw bytes, never looked into here. Whatever
does not parse is a :class:`MalformedMessage`; the reader counts it and goes on.

    producer to consumer: Hello, BlockHeader, GivenBack        consumer to producer: Welcome, Rejected, Credit, Cut
    actor to policy worker: Hello, Ask                         policy worker to actor: Welcome, Rejected, Answer
    reader to writer: Watch, Fetch                             writer to reader: Newest, Weights
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

from srl.api.block import BlockHeader
from srl.api.errors import SchemaMismatchError, SRLError, StreamError
from srl.system.streams.interface import Credit, Producer

PROTOCOL = 1
MAX_TEXT_BYTES = 1 << 20
MAX_REASON_BYTES = 64


class MalformedMessage(StreamError):
    """Bytes that are no message of this protocol."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The connecting end says who it is, and how it understands the data (schema or layout, JSON)."""

    producer: Producer
    description: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The two ends agree."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The two ends do not agree, or the connecting one is superseded."""

    error: SRLError


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A credit without a block."""

    grant: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows there are, please."""

    grant: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One ring group's request; the arrays are in the second frame. ``number`` comes back with the answer."""

    ring_group: int
    number: int
    min_version: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision of ``version`` on request ``number``; the arrays are in the second frame."""

    ring_group: int
    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Say when there is a version newer than ``seen``."""

    seen: int


@dataclass(frozen=True, slots=True)
class Newest:
    """``version`` is the newest."""

    version: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send ``version``, or the newest if it is -1; ``number`` comes back with it."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Answer to a fetch: ``version`` (-1: not there) with layout; the flat buffer is the second frame."""

    number: int
    version: int
    layout: str


Message = (
    Hello
    | Welcome
    | Rejected
    | BlockHeader
    | GivenBack
    | Credit
    | Cut
    | Ask
    | Answer
    | Watch
    | Newest
    | Fetch
    | Weights
)

_HELLO = struct.Struct("<BHIII")
_GIVEN_BACK = struct.Struct("<BQ")
_CREDIT = struct.Struct("<BQQqIIBI")
_CUT = struct.Struct("<BQ")
_ASK = struct.Struct("<BIQqB")
_ANSWER = struct.Struct("<BIQq")
_VERSION = struct.Struct("<Bq")
_FETCH = struct.Struct("<BQq")

HELLO, BLOCK, GIVEN_BACK, WELCOME, REJECTED, CREDIT, CUT, ASK, ANSWER, WATCH, NEWEST, FETCH, WEIGHTS = range(1, 14)


def pack_hello(producer: Producer, description: str) -> bytes:
    """A :class:`Hello`."""
    head = _HELLO.pack(HELLO, PROTOCOL, producer.actor, producer.incarnation, producer.ring_groups)
    return head + description.encode()


def pack_welcome() -> bytes:
    """A :class:`Welcome`."""
    return bytes([WELCOME])


def pack_rejected(error: SRLError) -> bytes:
    """A :class:`Rejected`."""
    fields = {"mismatch": isinstance(error, SchemaMismatchError), **error.to_dict()}
    return bytes([REJECTED]) + json.dumps(fields).encode()


def pack_block(header: BlockHeader) -> bytes:
    """A block's header."""
    return bytes([BLOCK]) + header.pack()


def pack_given_back(grant: int, reason: str) -> bytes:
    """A :class:`GivenBack`; a longer reason is shortened to ``MAX_REASON_BYTES``."""
    return _GIVEN_BACK.pack(GIVEN_BACK, grant) + reason.encode("ascii", "replace")[:MAX_REASON_BYTES]


def pack_credit(credit: Credit) -> bytes:
    """A credit."""
    return _CREDIT.pack(
        CREDIT,
        credit.grant,
        credit.generation,
        credit.min_version,
        credit.ring_group,
        credit.slot,
        credit.exact,
        credit.rank,
    )


def pack_cut(grant: int) -> bytes:
    """A :class:`Cut`."""
    return _CUT.pack(CUT, grant)


def pack_ask(ring_group: int, number: int, min_version: int, exact: bool) -> bytes:
    """An :class:`Ask`."""
    return _ASK.pack(ASK, ring_group, number, min_version, exact)


def pack_answer(ring_group: int, number: int, version: int) -> bytes:
    """An :class:`Answer`."""
    return _ANSWER.pack(ANSWER, ring_group, number, version)


def pack_watch(seen: int) -> bytes:
    """A :class:`Watch`."""
    return _VERSION.pack(WATCH, seen)


def pack_newest(version: int) -> bytes:
    """A :class:`Newest`."""
    return _VERSION.pack(NEWEST, version)


def pack_fetch(number: int, version: int) -> bytes:
    """A :class:`Fetch`."""
    return _FETCH.pack(FETCH, number, version)


def pack_weights(number: int, version: int, layout: str) -> bytes:
    """A :class:`Weights`."""
    return _FETCH.pack(WEIGHTS, number, version) + layout.encode()


def unpack(frame: bytes) -> Message:
    """The message in a frame.

    Raises:
        MalformedMessage: If there is none.
    """
    reader = _READERS.get(frame[0]) if frame else None
    if reader is None:
        raise MalformedMessage("a message of an unknown kind", value=frame[:1].hex() or "no bytes")
    try:
        return reader(frame)
    except MalformedMessage:
        raise
    except (struct.error, SchemaMismatchError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise MalformedMessage("a message that does not parse", value=len(frame), hint=str(error)) from error


def _hello(frame: bytes) -> Hello:
    _, protocol, actor, incarnation, ring_groups = _HELLO.unpack_from(frame)
    if protocol != PROTOCOL:
        raise MalformedMessage("another version of the protocol", value=protocol, expected=str(PROTOCOL))
    return Hello(Producer(actor, incarnation, ring_groups), _text(frame, _HELLO.size))


def _rejected(frame: bytes) -> Rejected:
    fields = json.loads(_text(frame, 1))
    if not isinstance(fields, dict):
        raise MalformedMessage("a rejection that is no mapping", value=type(fields).__name__)
    kind = SchemaMismatchError if fields.pop("mismatch") else StreamError
    what = str(fields.pop("what"))
    return Rejected(kind(what, **{name: fields[name] for name in ("where", "value", "expected", "hint")}))


def _given_back(frame: bytes) -> GivenBack:
    if len(frame) > _GIVEN_BACK.size + MAX_REASON_BYTES:
        raise MalformedMessage("a reason that is too long", value=len(frame))
    return GivenBack(_GIVEN_BACK.unpack_from(frame)[1], frame[_GIVEN_BACK.size :].decode("ascii"))


def _credit(frame: bytes) -> Credit:
    _, grant, generation, min_version, ring_group, slot, exact, rank = _CREDIT.unpack(frame)
    return Credit(grant, ring_group, slot, generation, min_version, bool(exact), rank)


def _ask(frame: bytes) -> Ask:
    _, ring_group, number, min_version, exact = _ASK.unpack(frame)
    return Ask(ring_group, number, min_version, bool(exact))


def _weights(frame: bytes) -> Weights:
    _, number, version = _FETCH.unpack_from(frame)
    return Weights(number, version, _text(frame, _FETCH.size))


def _text(frame: bytes, start: int) -> str:
    if len(frame) - start > MAX_TEXT_BYTES:
        raise MalformedMessage("a text that is too long", value=len(frame), expected=f"at most {MAX_TEXT_BYTES}")
    return frame[start:].decode()


_READERS: dict[int, Callable[[bytes], Message]] = {
    HELLO: _hello,
    WELCOME: lambda frame: Welcome(),
    REJECTED: _rejected,
    BLOCK: lambda frame: BlockHeader.unpack(frame[1:]),
    GIVEN_BACK: _given_back,
    CREDIT: _credit,
    CUT: lambda frame: Cut(_CUT.unpack(frame)[1]),
    ASK: _ask,
    ANSWER: lambda frame: Answer(*_ANSWER.unpack(frame)[1:]),
    WATCH: lambda frame: Watch(_VERSION.unpack(frame)[1]),
    NEWEST: lambda frame: Newest(_VERSION.unpack(frame)[1]),
    FETCH: lambda frame: Fetch(*_FETCH.unpack(frame)[1:]),
    WEIGHTS: _weights,
}

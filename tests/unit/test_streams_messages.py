"""Messages of the streams: every one comes back as it was, and nothing else gets through."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from srl.api.block import BlockHeader
from srl.api.errors import SchemaMismatchError, StreamError
from srl.system.streams import messages as m
from srl.system.streams.interface import Credit, Producer

U32, U64, I64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)

HEADERS = st.builds(
    BlockHeader,
    actor=U32,
    incarnation=U32,
    ring_group=U32,
    sequence=U64,
    grant=U64,
    slot=U32,
    generation=U64,
    length=U32,
    valid_rows=U32,
    finals=U32,
    versions=U32,
    min_version=I64,
)
CREDITS = st.builds(
    Credit, grant=U64, ring_group=U32, slot=U32, generation=U64, min_version=I64, exact=st.booleans(), rank=U32
)


@given(CREDITS)
def test_credit(credit):
    assert m.unpack(m.pack_credit(credit)) == credit


@given(HEADERS)
def test_block(header):
    assert m.unpack(m.pack_block(header)) == header


@given(st.builds(Producer, actor=U32, incarnation=U32, ring_groups=U32), st.text(max_size=200))
def test_hello(producer, description):
    assert m.unpack(m.pack_hello(producer, description)) == m.Hello(producer, description)


@given(U32, U64, I64, st.booleans())
def test_ask_and_answer(ring_group, number, version, exact):
    assert m.unpack(m.pack_ask(ring_group, number, version, exact)) == m.Ask(ring_group, number, version, exact)
    assert m.unpack(m.pack_answer(ring_group, number, version)) == m.Answer(ring_group, number, version)


@given(U64, I64, st.text(max_size=100))
def test_the_small_ones(number, version, text):
    assert m.unpack(m.pack_welcome()) == m.Welcome()
    assert m.unpack(m.pack_cut(number)) == m.Cut(number)
    assert m.unpack(m.pack_watch(version)) == m.Watch(version)
    assert m.unpack(m.pack_newest(version)) == m.Newest(version)
    assert m.unpack(m.pack_fetch(number, version)) == m.Fetch(number, version)
    assert m.unpack(m.pack_weights(number, version, text)) == m.Weights(number, version, text)


def test_a_reason_is_shortened_to_what_readers_accept():
    assert m.unpack(m.pack_given_back(3, "drain")) == m.GivenBack(3, "drain")
    assert m.unpack(m.pack_given_back(3, "x" * 1000)) == m.GivenBack(3, "x" * m.MAX_REASON_BYTES)


@pytest.mark.parametrize("kind", [SchemaMismatchError, StreamError])
def test_a_rejection_carries_the_error_with_its_fields(kind):
    error = kind("they disagree", where="sample:s:0", value="(5,)", expected="(4,)", hint="look")
    received = m.unpack(m.pack_rejected(error)).error
    assert type(received) is kind
    assert received.to_dict() == error.to_dict()


VALID = [
    m.pack_hello(Producer(0, 0, 1), "{}"),
    m.pack_rejected(StreamError("no")),
    m.pack_credit(Credit(0, 0, 0, 0, 0)),
    m.pack_block(BlockHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
    m.pack_ask(0, 0, 0, False),
    m.pack_answer(0, 0, 0),
    m.pack_fetch(0, 0),
]


@given(st.one_of(st.binary(max_size=300), st.sampled_from(VALID).flatmap(lambda v: st.binary(max_size=len(v) + 3))))
@example(b"\x050")  # a rejection whose JSON is a number
def test_arbitrary_bytes_are_a_message_or_malformed(frame):
    try:
        m.unpack(frame)
    except m.MalformedMessage:
        pass


@given(st.sampled_from(VALID), st.data())
def test_damaged_messages_are_a_message_or_malformed(frame, data):
    position = data.draw(st.integers(0, len(frame) - 1))
    damaged = bytearray(frame)
    damaged[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for candidate in (bytes(damaged), frame[:cut]):
        try:
            m.unpack(candidate)
        except m.MalformedMessage:
            pass


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0",
        b"\xff",
        m.pack_credit(Credit(0, 0, 0, 0, 0)) + b"x",
        m.pack_cut(0)[:-1],
        bytes([m.HELLO]) + b"\xff" * 20,
        m.pack_hello(Producer(0, 0, 1), "x" * (m.MAX_TEXT_BYTES + 1)),
        bytes([m.REJECTED]) + b"[" * 100_000,
        bytes([m.REJECTED]) + b"{}",
        bytes([m.REJECTED]) + b"[1]",
        bytes([m.GIVEN_BACK]) + bytes(8) + "ü".encode(),
    ],
)
def test_malformed(frame):
    with pytest.raises(m.MalformedMessage):
        m.unpack(frame)

"""Inference stream ends between hosts: one message each way, a head and one raw frame.

The request's frame holds everything that one ring group's policy is asked, the answer's everything that it decides
(:mod:`srl.system.decisions`). Both ends derive the layouts from schema and spec, and compare them when they connect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from srl.api.block import BlockSchema
from srl.api.errors import SchemaMismatchError, SRLError, UsageError
from srl.api.policy import ActInput, ActOutput, PolicySpec
from srl.system.decisions import copy_input, copy_output, input_forms, input_of, output_forms, output_of
from srl.system.memory import aligned_zeros
from srl.system.parameters import ParameterLayout
from srl.system.streams.bookkeeping import SUPERSEDED_INCARNATION, refusal
from srl.system.streams.interface import Credit, InferenceClient, InferenceRequest, InferenceServer, Producer
from srl.system.streams.messages import (
    Answer,
    Ask,
    Hello,
    MalformedMessage,
    Rejected,
    pack_answer,
    pack_ask,
    pack_hello,
    pack_rejected,
    pack_welcome,
    unpack,
)
from srl.system.streams.port import Incoming, Port, PortEnd

MAX_RING_GROUPS = 4096


@dataclass(frozen=True, slots=True)
class Frames:
    """Layouts of the two raw frames."""

    request: ParameterLayout
    answer: ParameterLayout

    @classmethod
    def of(cls, schema: BlockSchema, spec: PolicySpec) -> Frames:
        """The layouts for one ring group of ``schema.columns`` columns."""
        columns = schema.columns
        return cls(ParameterLayout.of(input_forms(spec, columns)), ParameterLayout.of(output_forms(spec, columns)))

    def describe(self) -> str:
        """The text by which two ends compare their layouts."""
        return json.dumps([self.request.to_json(), self.answer.to_json()])

    @property
    def size_bytes(self) -> int:
        """The larger of the two."""
        return max(self.request.size_bytes, self.answer.size_bytes)


class Desk:
    """One ring group's two frames, with the arrays in them."""

    __slots__ = ("answer", "batch", "out", "request")

    def __init__(self, frames: Frames) -> None:
        self.request = aligned_zeros(frames.request.size_bytes)
        self.answer = aligned_zeros(frames.answer.size_bytes)
        self.batch = input_of(frames.request.views(self.request))
        self.out = output_of(frames.answer.views(self.answer))


class TcpInferenceClient(PortEnd, InferenceClient):
    """An actor's end.

    Attributes:
        malformed: Messages that were no answer to an open request.
    """

    def __init__(self, name: str, frames: Frames, producer: Producer, port: Port) -> None:
        self._name = name
        self._port = port
        self._desks = [Desk(frames) for _ in range(producer.ring_groups)]
        self._open: dict[int, tuple[int, ActOutput]] = {}
        self._number = 0
        self.malformed = 0
        port.send((pack_hello(producer, frames.describe()),))

    def request(self, credit: Credit, row: int, batch: ActInput, out: ActOutput) -> None:
        """Ask for decisions; the arrays are copied into a message."""
        group = credit.ring_group
        desk = self._desks[group]
        copy_input(batch, desk.batch)
        self._number += 1
        self._open[group] = (self._number, out)
        self._port.send((pack_ask(group, self._number, credit.min_version, credit.exact), desk.request.data))

    def poll(self) -> Sequence[tuple[int, int]]:
        """Replies since the last call: (ring group, version).

        Raises:
            SchemaMismatchError: If the policy worker expects another layout.
            StreamError: If it refused this incarnation.
        """
        replies = []
        for incoming in self._port.receive():
            answer = self._answer(incoming)
            if answer is not None:
                replies.append((answer.ring_group, answer.version))
        return replies

    def _answer(self, incoming: Incoming) -> Answer | None:
        """Take in one message; the answer in it if it is one to an open request."""
        try:
            message = unpack(incoming.head)
        except MalformedMessage:
            self.malformed += 1
            return None
        if isinstance(message, Rejected):
            raise message.error
        if not isinstance(message, Answer):
            return None
        number, out = self._open.get(message.ring_group, (-1, None))
        if number != message.number or out is None or not self._fill(message.ring_group, out, incoming):
            self.malformed += 1
            return None
        del self._open[message.ring_group]
        return message

    def _fill(self, group: int, out: ActOutput, incoming: Incoming) -> bool:
        """Copy a decision to where it was wanted; False if the frame is not one."""
        desk = self._desks[group]
        if not _copy_frame(desk.answer, incoming):
            return False
        copy_output(desk.out, out)
        return True


@dataclass(frozen=True, slots=True)
class _Peer:
    """A connected actor, and its ring groups' desks, made when they are first used."""

    producer: Producer
    desks: dict[int, Desk]


@dataclass(frozen=True, slots=True)
class _Ticket:
    """Where a reply goes."""

    identity: bytes
    number: int
    desk: Desk


class TcpInferenceServer(PortEnd, InferenceServer):
    """A policy worker's end.

    Attributes:
        refused: Messages that were malformed, or of superseded incarnations.
    """

    def __init__(self, name: str, frames: Frames, port: Port) -> None:
        self._name = name
        self._frames = frames
        self._description = frames.describe()
        self._port = port
        self._peers: dict[bytes, _Peer] = {}
        self._newest_incarnation: dict[int, int] = {}
        self.refused = 0

    def requests(self) -> Sequence[InferenceRequest]:
        """Requests that wait, oldest first."""
        requests = []
        for incoming in self._port.receive():
            request = self._request(incoming)
            if request is not None:
                requests.append(request)
        return requests

    def _request(self, incoming: Incoming) -> InferenceRequest | None:
        """Take in one message; the request in it if it is one."""
        try:
            message = unpack(incoming.head)
        except MalformedMessage:
            self.refused += 1
            return None
        if isinstance(message, Hello):
            self._greet(incoming.identity, message)
            return None
        peer = self._peers.get(incoming.identity)
        if peer is None or not isinstance(message, Ask) or message.ring_group >= peer.producer.ring_groups:
            self.refused += 1
            return None
        return self._ask(peer, message, incoming)

    def _ask(self, peer: _Peer, ask: Ask, incoming: Incoming) -> InferenceRequest | None:
        desk = peer.desks.get(ask.ring_group)
        if desk is None:
            desk = peer.desks[ask.ring_group] = Desk(self._frames)
        if not _copy_frame(desk.request, incoming):
            self.refused += 1
            return None
        return InferenceRequest(
            peer.producer.actor,
            peer.producer.incarnation,
            ask.ring_group,
            ask.min_version,
            ask.exact,
            desk.batch,
            desk.out,
            _Ticket(incoming.identity, ask.number, desk),
        )

    def _greet(self, identity: bytes, hello: Hello) -> None:
        who = hello.producer
        if hello.description != self._description:
            error = SchemaMismatchError(
                "actor and policy worker disagree about the arrays of questions or decisions",
                where=self._name,
                value=hello.description[:500],
                expected=self._description,
            )
            self._reject(identity, error)
        elif who.incarnation < self._newest_incarnation.get(who.actor, 0) or who.ring_groups > MAX_RING_GROUPS:
            self._reject(identity, refusal(self._name, SUPERSEDED_INCARNATION, who))
        else:
            self._newest_incarnation[who.actor] = who.incarnation
            # An earlier life of this actor is refused from here on.
            self._peers = {key: peer for key, peer in self._peers.items() if peer.producer.actor != who.actor}
            self._peers[identity] = _Peer(who, {})
            self._port.send((identity, pack_welcome()))

    def _reject(self, identity: bytes, error: SRLError) -> None:
        self.refused += 1
        self._port.send((identity, pack_rejected(error)))

    def reply(self, request: InferenceRequest, version: int) -> None:
        """Send the decision; an actor that is gone meanwhile gets none."""
        ticket = request.ticket
        if not isinstance(ticket, _Ticket):
            raise UsageError("a request is answered to the end that it came from", where=self._name)
        head = pack_answer(request.ring_group, ticket.number, version)
        self._port.send((ticket.identity, head, ticket.desk.answer.data))


def _copy_frame(target: NDArray[np.uint8], incoming: Incoming) -> bool:
    """Copy a payload; False if it has not the agreed size."""
    if incoming.payload is None or len(incoming.payload) != len(target):
        return False
    np.copyto(target, np.frombuffer(incoming.payload, np.uint8))
    return True

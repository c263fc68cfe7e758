"""Weights between hosts: readers ask, the writer answers, so that nothing piles up towards a slow reader.

A reader has one :class:`Watch` with the writer ("say when there is something newer than this"), which costs one small
message a version, and fetches a version when it wants one. The writer's answers come from a thread beside the trainer.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import StreamError, WaitTimeout
from srl.system.memory import aligned_zeros
from srl.system.parameter_store.store import SharedParameterReader, SharedParameterStore, version_timeout
from srl.system.parameters import ParameterLayout, ParameterReader, ParameterWriter
from srl.system.streams.messages import (
    Fetch,
    MalformedMessage,
    Newest,
    Watch,
    Weights,
    pack_fetch,
    pack_newest,
    pack_watch,
    pack_weights,
    unpack,
)
from srl.system.streams.port import Incoming, Port

# A watch is repeated after this long without news, in case the writer was restarted meanwhile.
WATCH_AGAIN_SECONDS = 5.0
LOOK_MILLISECONDS = 1000
JOIN_SECONDS = 5.0
PAYLOADS_KEPT = 2
MAX_WEIGHTS_BYTES = 1 << 36
NEWEST = -1


class TcpParameterWriter(ParameterWriter):
    """Publishes into private memory; a thread answers the readers.

    Args:
        policy: Name of the policy.
        versions_kept: Newest versions that stay readable.
        port: The bound socket; used by the thread alone.
    """

    def __init__(self, policy: str, versions_kept: int, port: Port) -> None:
        self._where = f"weights:{policy}"
        store = SharedParameterStore(policy)
        self._writer = store.writer(versions_kept)
        self._desk = _WeightsDesk(store.reader(), port)
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop = False
        self._failure: Exception | None = None
        self._port = port
        self._thread = threading.Thread(target=self._serve, name=self._where, daemon=True)
        self._thread.start()

    def publish(self, version: int, layout: ParameterLayout, buffer: NDArray[np.uint8]) -> None:
        """Make ``buffer`` (copied) visible as ``version``.

        Raises:
            StreamError: If the thread that answers readers failed; the cause is attached.
        """
        if self._failure is not None:
            raise StreamError("the weights are not being sent any more", where=self._where) from self._failure
        self._writer.publish(version, layout, buffer)
        os.eventfd_write(self._news, 1)

    def _serve(self) -> None:
        try:
            poller = select.poll()
            for descriptor in (*self._port.descriptors(), self._news):
                poller.register(descriptor, select.POLLIN)
            while not self._stop:
                if any(descriptor == self._news for descriptor, _ in poller.poll(LOOK_MILLISECONDS)):
                    os.eventfd_read(self._news)
                self._desk.serve()
        except Exception as error:
            self._failure = error

    def close(self) -> None:
        """End the thread, then the socket; what readers were promised is delivered (bounded linger)."""
        if self._thread.is_alive():
            self._stop = True
            os.eventfd_write(self._news, 1)
            self._thread.join(JOIN_SECONDS)
        if not self._port.closed:
            self._port.close()
            os.close(self._news)


class _WeightsDesk:
    """Answers readers; lives in the writer's thread.

    Attributes:
        refused: Messages that no reader sends.
    """

    def __init__(self, reader: SharedParameterReader, port: Port) -> None:
        self._reader = reader
        self._port = port
        self._watchers: dict[bytes, int] = {}
        self._payloads: dict[int, tuple[str, bytes]] = {}
        self.refused = 0

    def serve(self) -> None:
        """Take in what arrived, and tell watchers of newer versions."""
        while received := self._port.receive():
            for incoming in received:
                self._take(incoming)
        latest = self._reader.latest_version()
        for identity in [identity for identity, seen in self._watchers.items() if seen < latest]:
            del self._watchers[identity]
            self._port.send((identity, pack_newest(latest)))

    def _take(self, incoming: Incoming) -> None:
        try:
            message = unpack(incoming.head)
        except MalformedMessage:
            self.refused += 1
            return
        if isinstance(message, Watch):
            self._watchers[incoming.identity] = message.seen
        elif isinstance(message, Fetch):
            self._send(incoming.identity, message)
        else:
            self.refused += 1

    def _send(self, identity: bytes, fetch: Fetch) -> None:
        version = self._reader.latest_version() if fetch.version == NEWEST else fetch.version
        found = self._payload(version)
        if found is None and fetch.version == NEWEST and version >= 0:  # overtaken: there is a newer one
            version = self._reader.latest_version()
            found = self._payload(version)
        if found is None:
            self._port.send((identity, pack_weights(fetch.number, -1, "")))
        else:
            layout, payload = found
            self._port.send((identity, pack_weights(fetch.number, version, layout), payload))

    def _payload(self, version: int) -> tuple[str, bytes] | None:
        """Layout and bytes of a version, copied once for all readers; ``None`` if it is not there."""
        known = self._payloads.get(version)
        if known is not None:
            return known
        found = self._reader.read_flat(version)
        if found is None:
            return None
        _, layout, flat = found
        payload = self._payloads[version] = (layout.to_json(), flat.tobytes())
        for old in sorted(self._payloads)[:-PAYLOADS_KEPT]:
            del self._payloads[old]
        return payload


class TcpParameterReader(ParameterReader):
    """Watches the newest version; fetches on demand.

    Args:
        policy: Name of the policy.
        port: The connected socket.
        timeout_seconds: Bound on the wait for one fetched version.

    Attributes:
        malformed: Messages that no writer sends.
    """

    def __init__(self, policy: str, port: Port, timeout_seconds: float) -> None:
        self._policy = policy
        self._port = port
        self._timeout_seconds = timeout_seconds
        self._latest = -1
        self._number = 0
        self._answered = 0
        self._found = -1
        self._layout_text = ""
        self._copy: NDArray[np.uint8] = aligned_zeros(0)
        self._views: dict[str, NDArray[Any]] = {}
        self.malformed = 0
        self._watch()

    def _watch(self) -> None:
        self._port.send((pack_watch(self._latest),))
        self._watched_at = time.monotonic()

    def latest_version(self) -> int:
        """Newest version that the writer told of, -1 if none."""
        received = self._port.receive()
        if received:
            self._take_in(received)
        elif time.monotonic() - self._watched_at > WATCH_AGAIN_SECONDS:
            self._watch()
        return self._latest

    def _take_in(self, received: list[Incoming]) -> None:
        for incoming in received:
            try:
                message = unpack(incoming.head)
                if isinstance(message, Newest):
                    self._latest = max(self._latest, message.version)
                    self._watch()
                elif isinstance(message, Weights) and message.number == self._number:
                    self._take_weights(message, incoming)
            except MalformedMessage:
                self.malformed += 1

    def _take_weights(self, message: Weights, incoming: Incoming) -> None:
        if message.version >= 0:
            self._use_layout(message.layout)
            payload = incoming.payload
            if payload is None or len(payload) != len(self._copy):
                raise MalformedMessage("weights of another size than their layout", where=self._policy)
            np.copyto(self._copy, np.frombuffer(payload, np.uint8))
            self._latest = max(self._latest, message.version)
        self._found = message.version
        self._answered = message.number

    def _use_layout(self, text: str) -> None:
        """Make room for a layout, once: it never changes in a trial."""
        if text == self._layout_text:
            return
        try:
            layout = ParameterLayout.from_json(text)
        except (ValueError, TypeError) as error:
            raise MalformedMessage("a layout that does not parse", where=self._policy) from error
        self._layout_text = text
        self._copy = aligned_zeros(layout.size_bytes)
        self._views = layout.views(self._copy)

    def read(self, version: int | None = None) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """Fetch a whole version.

        Raises:
            WaitTimeout: If the writer does not answer in time.
        """
        self._number += 1
        self._port.send((pack_fetch(self._number, NEWEST if version is None else version),))
        deadline = time.monotonic() + self._timeout_seconds
        while self._answered != self._number:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WaitTimeout(
                    f"the writer of policy '{self._policy}' did not answer within {self._timeout_seconds:g} s",
                    where=f"weights:{self._policy}",
                    value=self._latest,
                    expected="the newest version" if version is None else f"version {version}",
                    hint="The trainer that publishes it is stopped or gone.",
                )
            self._port.wait(left)
            self._take_in(self._port.receive())
        return None if self._found < 0 else (self._found, self._views)

    def wait(self, min_version: int, timeout_seconds: float) -> int:
        """Block until ``latest_version() >= min_version``; returns it.

        Raises:
            WaitTimeout: Naming policy, wanted and present version.
        """
        deadline = time.monotonic() + timeout_seconds
        while (latest := self.latest_version()) < min_version:
            left = deadline - time.monotonic()
            if left <= 0:
                raise version_timeout(self._policy, min_version, latest, timeout_seconds)
            self._port.wait(min(left, WATCH_AGAIN_SECONDS))
        return latest

    def close(self) -> None:
        """Close the connection."""
        self._port.abort()

"""Versions of weights in one region of memory: one writer, any number of readers, no lock.

Layout. The header page holds int64 words: magic, layout length, number of slots, slot size, the newest version, and
one sequence word per slot. The body holds the parameter layout (JSON), then the slots, each one version of the flat
buffer.

A slot's sequence word is ``2 * version + 1`` while that version is being written and ``2 * version + 2`` when it is
whole; 0 if it was never written. A reader copies the slot and looks at the word before and after: equal means the copy
is of that version alone. The newest version is stored last. There is one slot more than versions kept for the one
being written, and one more for a reader that is half through the oldest.

Memory order. Words are aligned 8-byte stores (``memoryview`` of format ``q``: one move instruction). x86 keeps the
order of plain stores and of plain loads; the copies in between may use non-temporal stores, which do not take part in
that order, so a fence stands on both sides of them.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import SchemaMismatchError, StreamError, UsageError, WaitTimeout
from srl.system.memory import ALIGNMENT_BYTES, aligned_zeros, round_up
from srl.system.parameter_store.regions import HEADER_BYTES, PrivateRegion, Region
from srl.system.parameters import ParameterLayout, ParameterReader, ParameterWriter

MAGIC = 0x53524C57
# Words of the header. The newest version, polled by every reader, has a cache line of its own.
_MAGIC, _LAYOUT_BYTES, _SLOTS, _SLOT_BYTES, _LATEST, _SEQUENCE = 0, 1, 2, 3, 8, 16
MAX_SLOTS = HEADER_BYTES // 8 - _SEQUENCE
MAX_LAYOUT_BYTES = 64 << 20
SPARE_SLOTS = 2
SLEEP_MIN_SECONDS, SLEEP_MAX_SECONDS = 50e-6, 1e-3
READ_ATTEMPTS = 10_000

_FENCE = threading.Lock()


def _fence() -> None:
    """A full memory fence: taking a free lock is a locked instruction."""
    with _FENCE:
        pass


class SharedParameterWriter(ParameterWriter):
    """The one writer of a region.

    Args:
        policy: Name of the policy, for messages.
        region: Where the versions go; one that was written before is continued.
        versions_kept: Newest versions that stay readable, at least 1.
    """

    def __init__(self, policy: str, region: Region, versions_kept: int) -> None:
        if not 1 <= versions_kept <= MAX_SLOTS - SPARE_SLOTS:
            raise UsageError(
                "versions_kept is out of range",
                where=f"weights:{policy}",
                value=versions_kept,
                expected=f"1 to {MAX_SLOTS - SPARE_SLOTS}",
            )
        self._where = f"weights:{policy}"
        self._region = region
        self._words = region.header().cast("q")
        self._slot_count = versions_kept + SPARE_SLOTS
        self._layout: ParameterLayout | None = None
        self._slots: list[NDArray[np.uint8]] = []
        self._closed = False

    def publish(self, version: int, layout: ParameterLayout, buffer: NDArray[np.uint8]) -> None:
        """Copy ``buffer`` into the oldest slot and make it the newest version.

        Raises:
            StreamError: If ``version`` is not newer than the newest, or the writer is closed.
            SchemaMismatchError: If the layout is not that of the versions before.
            ResourceError: If there is no memory for the slots (first call).
        """
        words = self._words
        if self._closed:
            raise StreamError("weights were published after the end", where=self._where, value=version)
        if version < words[_LATEST]:  # the word holds newest + 1
            raise StreamError(
                "a version of the weights was published out of order",
                where=self._where,
                value=version,
                expected=f"at least {words[_LATEST]}",
            )
        self._prepare(layout)
        slot = min(range(len(self._slots)), key=lambda index: words[_SEQUENCE + index])
        words[_SEQUENCE + slot] = 2 * version + 1
        _fence()
        np.copyto(self._slots[slot], buffer[: layout.size_bytes])
        _fence()
        words[_SEQUENCE + slot] = 2 * version + 2
        words[_LATEST] = version + 1

    def _prepare(self, layout: ParameterLayout) -> None:
        """Size and map the region at the first publication; check the layout at all others."""
        if self._layout is layout:
            return
        if self._layout is None and self._words[_MAGIC] != MAGIC:
            self._format(layout)
        present, self._slots = _map(self._region, self._words, self._where)
        if present.fields != layout.fields:
            raise SchemaMismatchError(
                "the layout of the weights changed within a trial",
                where=self._where,
                value=_first_difference(layout, present),
                expected=_first_difference(present, layout),
            )
        self._layout = layout

    def _format(self, layout: ParameterLayout) -> None:
        """Write the header and the layout of a fresh region."""
        text = layout.to_json().encode()
        slot_bytes = max(layout.size_bytes, ALIGNMENT_BYTES)
        start = round_up(len(text), ALIGNMENT_BYTES)
        size = start + self._slot_count * slot_bytes
        self._region.size_body(size)
        self._region.body(size)[: len(text)] = np.frombuffer(text, np.uint8)
        self._words[_LAYOUT_BYTES] = len(text)
        self._words[_SLOTS] = self._slot_count
        self._words[_SLOT_BYTES] = slot_bytes
        self._words[_MAGIC] = MAGIC

    def close(self) -> None:
        """Let go of the mapping; published versions stay readable for attached readers."""
        self._closed = True
        self._slots = []
        self._words = _detached(self._words)


class SharedParameterReader(ParameterReader):
    """A reader of a region.

    Args:
        policy: Name of the policy, for messages.
        region: Where the versions are.
    """

    def __init__(self, policy: str, region: Region) -> None:
        self._policy = policy
        self._where = f"weights:{policy}"
        self._region = region
        self._words = region.header().cast("q")
        self._slots: list[NDArray[np.uint8]] = []
        self._layout = ParameterLayout((), 0)
        self._copy: NDArray[np.uint8] = aligned_zeros(0)
        self._views: dict[str, NDArray[Any]] = {}

    def latest_version(self) -> int:
        """Newest published version, -1 if none: one load."""
        return self._words[_LATEST] - 1

    def read(self, version: int | None = None) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """Copy a whole version.

        Args:
            version: Exactly this version, or ``None`` = the newest.

        Returns:
            (version, private arrays by name, valid until the next call), or ``None`` if it is not there.

        Raises:
            StreamError: If the writer overtook every attempt to read the newest.
        """
        found = self._read(version)
        return None if found is None else (found, self._views)

    def read_flat(self, version: int | None = None) -> tuple[int, ParameterLayout, NDArray[np.uint8]] | None:
        """As :meth:`read`, with the layout and the flat buffer (private, valid until the next call)."""
        found = self._read(version)
        return None if found is None else (found, self._layout, self._copy)

    def _read(self, version: int | None) -> int | None:
        """Copy a version into the private buffer; which one it was, ``None`` if it is not there."""
        for _ in range(READ_ATTEMPTS):
            wanted = self.latest_version() if version is None else version
            if wanted < 0 or self.latest_version() < wanted:
                return None
            if not self._slots:
                self._attach()
            if self._copy_slot_of(wanted):
                return wanted
            if version is not None:
                return None
        raise StreamError(
            "the writer overtook every attempt to read the weights",
            where=self._where,
            value=READ_ATTEMPTS,
            hint="Keep more versions.",
        )

    def _attach(self) -> None:
        self._layout, self._slots = _map(self._region, self._words, self._where)
        self._copy = aligned_zeros(self._layout.size_bytes)
        self._views = self._layout.views(self._copy)

    def _copy_slot_of(self, version: int) -> bool:
        """Copy the slot that holds ``version``; False if none does, or not until the end of the copy."""
        whole = 2 * version + 2
        for index, slot in enumerate(self._slots):
            if self._words[_SEQUENCE + index] == whole:
                np.copyto(self._copy, slot)
                _fence()
                return self._words[_SEQUENCE + index] == whole
        return False

    def wait(self, min_version: int, timeout_seconds: float) -> int:
        """Block until ``latest_version() >= min_version``, looking at growing intervals of at most 1 ms.

        Raises:
            WaitTimeout: Naming policy, wanted and present version.
        """
        deadline = time.monotonic() + timeout_seconds
        pause = SLEEP_MIN_SECONDS
        while (latest := self.latest_version()) < min_version:
            if time.monotonic() >= deadline:
                raise version_timeout(self._policy, min_version, latest, timeout_seconds)
            time.sleep(pause)
            pause = min(2 * pause, SLEEP_MAX_SECONDS)
        return latest

    def close(self) -> None:
        """Let go of the mapping; the newest version known stays known."""
        self._slots = []
        self._words = _detached(self._words)


class SharedParameterStore:
    """A policy's weights in one region: the place where writer and readers of one process meet.

    Args:
        policy: Name of the policy.
        region: Where the versions lie; by default private memory.
    """

    def __init__(self, policy: str, region: Region | None = None) -> None:
        self.policy = policy
        self._region = PrivateRegion() if region is None else region

    def writer(self, versions_kept: int) -> SharedParameterWriter:
        """The writer; at least ``versions_kept`` newest versions stay readable."""
        return SharedParameterWriter(self.policy, self._region, versions_kept)

    def reader(self) -> SharedParameterReader:
        """A reader with a private copy of its own."""
        return SharedParameterReader(self.policy, self._region)


def version_timeout(policy: str, wanted: int, present: int, timeout_seconds: float) -> WaitTimeout:
    """The error of a wait for weights that ran out."""
    return WaitTimeout(
        f"no version {wanted} or newer of policy '{policy}' within {timeout_seconds:g} s",
        where=f"weights:{policy}",
        value=present,
        expected=f"version {wanted} or newer",
        hint="The trainer that publishes it is slow, stopped or gone.",
    )


def _detached(words: memoryview) -> memoryview:
    """A private copy of a header, in place of the mapping."""
    return memoryview(bytearray(words)).cast("q")


def _map(region: Region, words: memoryview, where: str) -> tuple[ParameterLayout, list[NDArray[np.uint8]]]:
    """Layout and slots (``uint8[layout.size_bytes]`` each) of a formatted region."""
    layout_bytes, count, slot_bytes = words[_LAYOUT_BYTES], words[_SLOTS], words[_SLOT_BYTES]
    if words[_MAGIC] != MAGIC or not (0 < layout_bytes <= MAX_LAYOUT_BYTES and 0 < count <= MAX_SLOTS):
        raise StreamError("this is not a parameter store", where=where, value=hex(words[_MAGIC]), expected=hex(MAGIC))
    start = round_up(layout_bytes, ALIGNMENT_BYTES)
    body = region.body(start + count * slot_bytes)
    layout = ParameterLayout.from_json(bytes(body[:layout_bytes]).decode())
    size = layout.size_bytes
    return layout, [body[start + index * slot_bytes :][:size] for index in range(count)]


def _first_difference(one: ParameterLayout, other: ParameterLayout) -> str:
    """The first field of ``one`` that ``other`` has not, as text."""
    missing = [field for field in one.fields if field not in other.fields]
    return json.dumps([missing[0].name, list(missing[0].shape), missing[0].dtype]) if missing else "no such field"

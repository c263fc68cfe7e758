"""The parameter store's two ends, and the layout of weights in one flat buffer.

The writer is trainer rank 0. Readers (inline actors, policy workers, evaluators) get whole versions: never a mix of
two, never a version older than one they saw.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class ParameterField:
    """One array of the weights: name, shape, dtype name and byte offset."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Where each parameter and buffer lies in the flat buffer.

    Attributes:
        fields: In buffer order.
        size_bytes: Length of the buffer.
    """

    fields: tuple[ParameterField, ...]
    size_bytes: int

    @classmethod
    def of(cls, arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> ParameterLayout:
        """A layout for arrays given as name to (shape, dtype name), in that order, tightly packed at 64 bytes."""
        fields, offset = [], 0
        for name, (shape, dtype) in arrays.items():
            fields.append(ParameterField(name, tuple(shape), dtype, offset))
            size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            offset += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return cls(tuple(fields), offset)

    def views(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Arrays by name, aliasing ``buffer`` (``uint8[size_bytes]``)."""
        result = {}
        for field in self.fields:
            dtype = np.dtype(field.dtype)
            size = int(np.prod(field.shape, dtype=np.int64)) * dtype.itemsize
            raw = buffer[field.offset_bytes : field.offset_bytes + size]
            result[field.name] = raw.view(dtype).reshape(field.shape)
        return result

    def to_json(self) -> str:
        """JSON text; the inverse is :meth:`from_json`."""
        return json.dumps([[f.name, list(f.shape), f.dtype, f.offset_bytes] for f in self.fields])

    @classmethod
    def from_json(cls, text: str) -> ParameterLayout:
        """The inverse of :meth:`to_json`."""
        return cls.of({name: (tuple(shape), dtype) for name, shape, dtype, _ in json.loads(text)})


def weights_sha256(views: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all arrays, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(views):
        array = np.ascontiguousarray(views[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class ParameterWriter(ABC):
    """Publishes versions."""

    @abstractmethod
    def publish(self, version: int, layout: ParameterLayout, buffer: NDArray[np.uint8]) -> None:
        """Make ``buffer`` (copied) visible as ``version``; versions ascend. The layout never changes in a trial."""

    @abstractmethod
    def close(self) -> None:
        """Release what the writer holds; published versions stay readable for attached readers."""


class ParameterReader(ABC):
    """Reads versions."""

    @abstractmethod
    def latest_version(self) -> int:
        """Newest published version, -1 if none yet; cheap (called every step)."""

    @abstractmethod
    def read(self, version: int | None = None) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """A whole version: (version, arrays by name; private copies, valid until the next call).

        Args:
            version: Exactly this version, or ``None`` = the newest.

        Returns:
            ``None`` if nothing is published yet, or the wanted version is not there (not yet, or no longer kept).
        """

    @abstractmethod
    def wait(self, min_version: int, timeout_seconds: float) -> int:
        """Block until ``latest_version() >= min_version``; returns it.

        Raises:
            WaitTimeout: Naming policy, wanted and present version.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the reader holds."""

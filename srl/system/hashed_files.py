"""Writing files that are hashed on the way and durable when done."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from srl.system.structure import StructureError

_CHUNK_BYTES = 1 << 20
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip


class _HashedFile:
    """Writes a file and hashes it on the way, so that nothing is read back or held twice in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)

    def finish(self) -> dict[str, Any]:
        """Make it durable; the manifest's entry."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"size_bytes": self._size, "sha256": self._digest.hexdigest()}


def write_text(path: Path, text: str) -> dict[str, Any]:
    """Write text; returns the manifest's entry (``size_bytes``, ``sha256``)."""
    with open(path, "wb") as file:
        hashed = _HashedFile(file)
        hashed.write(text.encode())
        return hashed.finish()


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Write the safetensors format: length of the header (uint64), header (JSON), array bytes.

    The library's own writer copies every array and cannot hash on the way: a replay of gigabytes would be held twice
    and read back once. Reading is left to the library.

    Returns:
        The manifest's entry (``size_bytes``, ``sha256``).

    Raises:
        StructureError: An array has a dtype that the format does not know.
    """
    header: dict[str, Any] = {}
    offset = 0
    # Larger items first keeps every array aligned to its item size, as the format asks of writers.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    for name in names:
        array = arrays[name]
        if array.dtype.name not in _DTYPES:
            raise StructureError("arrays of this dtype cannot be saved", where=name, value=str(array.dtype))
        end = offset + array.nbytes
        header[name] = {"dtype": _DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        hashed = _HashedFile(file)
        hashed.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C", copy=False)
            data = little.reshape(-1).view(np.uint8).data
            for start in range(0, len(data), _CHUNK_BYTES):
                hashed.write(data[start : start + _CHUNK_BYTES])
        return hashed.finish()

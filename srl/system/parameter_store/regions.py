"""Memory that a parameter store lies in: private to the process, or a memfd that several processes map."""

from __future__ import annotations

import errno
import mmap
import os
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import ResourceError, StreamError
from srl.system.memory import PAGE_BYTES, aligned_zeros

HEADER_BYTES = PAGE_BYTES


class Region(ABC):
    """One header page that is there from the start, and a body that the writer sizes once."""

    @abstractmethod
    def header(self) -> memoryview:
        """The header page, ``HEADER_BYTES`` writable bytes, zero at first."""

    @abstractmethod
    def size_body(self, size_bytes: int) -> None:
        """Make room for the body (writer, once).

        Raises:
            ResourceError: If there is not that much memory.
        """

    @abstractmethod
    def body(self, size_bytes: int) -> NDArray[np.uint8]:
        """The body as ``uint8[size_bytes]``; only after :meth:`size_body` by the writer."""


class PrivateRegion(Region):
    """Memory of this process, for writers and readers that share it."""

    def __init__(self) -> None:
        self._header = aligned_zeros(HEADER_BYTES)
        self._body: NDArray[np.uint8] | None = None

    def header(self) -> memoryview:
        """The header page."""
        return self._header.data

    def size_body(self, size_bytes: int) -> None:
        """Allocate the body."""
        self._body = aligned_zeros(size_bytes)

    def body(self, size_bytes: int) -> NDArray[np.uint8]:
        """The body as ``uint8[size_bytes]``."""
        if self._body is None or len(self._body) < size_bytes:
            raise StreamError("the parameter store's memory is smaller than its header says", value=size_bytes)
        return self._body[:size_bytes]


class MemfdRegion(Region):
    """A memfd, mapped by every process that holds its descriptor.

    Args:
        descriptor: The memfd, at least one page long. It stays the caller's: the mapping outlives it.
        where: Name for messages, such as ``weights:default``.
    """

    def __init__(self, descriptor: int, where: str) -> None:
        self._descriptor = descriptor
        self._where = where

    def header(self) -> memoryview:
        """The header page, mapped."""
        return memoryview(mmap.mmap(self._descriptor, HEADER_BYTES))

    def size_body(self, size_bytes: int) -> None:
        """Size and allocate the memfd: pages that are only promised kill with SIGBUS later."""
        total = HEADER_BYTES + size_bytes
        try:
            os.posix_fallocate(self._descriptor, 0, total)
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOSPC, errno.EFBIG):
                raise
            raise ResourceError(
                f"no memory for the parameter store: {os.strerror(error.errno)}",
                where=self._where,
                value=total,
                expected=f"{total} bytes of shared memory",
                hint="Give the machine or container more memory, or keep fewer versions.",
            ) from error

    def body(self, size_bytes: int) -> NDArray[np.uint8]:
        """The body, mapped."""
        present = os.fstat(self._descriptor).st_size
        if present < HEADER_BYTES + size_bytes:
            raise StreamError(
                "the parameter store's memory is smaller than its header says",
                where=self._where,
                value=present,
                expected=f"at least {HEADER_BYTES + size_bytes} bytes",
            )
        return np.frombuffer(mmap.mmap(self._descriptor, size_bytes, offset=HEADER_BYTES), np.uint8)

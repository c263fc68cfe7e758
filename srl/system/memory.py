"""Private memory aligned like shared memory, so that a block's arrays start at the same offsets in every transport."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALIGNMENT_BYTES = 64
PAGE_BYTES = 4096


def aligned_zeros(size_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> NDArray[np.uint8]:
    """``uint8[size_bytes]`` of zeros whose first byte lies at a multiple of ``alignment_bytes``."""
    raw = np.zeros(size_bytes + alignment_bytes, np.uint8)
    start = -raw.ctypes.data % alignment_bytes
    return raw[start : start + size_bytes]


def round_up(size_bytes: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``size_bytes``."""
    return -(-size_bytes // multiple) * multiple

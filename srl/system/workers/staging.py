"""Copies between host memory and a worker's device.

On a GPU they go through pinned memory: arrays to the device on a stream of their own, beside what it computes, weights
back into one buffer. On the CPU there is nothing to copy: arrays are taken as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

BUFFERS = 4
"""Pinned buffers that take turns: so many copies may be under way before one is waited for."""


def claim_device(name: str, memory_fraction: float | None = None) -> torch.device:
    """Make a device the one that this process computes on.

    Args:
        name: torch device name.
        memory_fraction: Share of a GPU's memory that this process may take; ``None`` = all of it.
    """
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if memory_fraction is not None:
            torch.cuda.set_per_process_memory_fraction(memory_fraction, device)
    return device


class Staging:
    """Brings arrays to a device and back.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ring = _PinnedRing(device) if device.type == "cuda" else None
        self._landing = torch.empty(0, dtype=torch.uint8)

    def to_device(self, values: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """``values`` on the device; on the CPU they are aliased, else they may be changed at once.

        Args:
            values: In host memory, contiguous.
        """
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        if self._device.type == "cpu":
            return tensor
        if self._ring is None or not tensor.numel():
            return tensor.to(self._device)
        return self._ring.send(tensor)

    def to_host(self, tensor: torch.Tensor) -> NDArray[Any]:
        """``tensor`` in host memory: aliased on the CPU, else in a buffer that the next call fills anew.

        Args:
            tensor: On the device, contiguous.
        """
        if tensor.device.type == "cpu":
            return tensor.numpy()
        if tensor.device.type != "cuda":
            return tensor.cpu().numpy()
        if self._landing.numel() < tensor.nbytes:
            self._landing = torch.empty(tensor.nbytes, dtype=torch.uint8, pin_memory=True)
        place = self._landing[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor)
        return place.numpy()


@dataclass(slots=True)
class _Pinned:
    """One pinned buffer, and what says that the copy out of it is done."""

    memory: torch.Tensor
    done: torch.cuda.Event


class _PinnedRing:
    """Pinned buffers in turn, and a stream for the copies out of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._buffers: list[_Pinned] = []
        self._turn = 0

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to the device; what the present stream computes from now on waits for it."""
        pinned = self._next(tensor.nbytes)
        place = pinned.memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor)
        present = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            result = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
            result.copy_(place, non_blocking=True)
            pinned.done.record(self._stream)
        present.wait_event(pinned.done)
        # Its memory belongs to the copy stream's pool; it is not given out again while the present stream reads it.
        result.record_stream(present)
        return result

    def _next(self, size_bytes: int) -> _Pinned:
        if len(self._buffers) < BUFFERS:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._buffers.append(_Pinned(_pinned_memory(size_bytes), event))
            return self._buffers[-1]
        self._turn = (self._turn + 1) % BUFFERS
        pinned = self._buffers[self._turn]
        pinned.done.synchronize()
        if pinned.memory.numel() < size_bytes:
            pinned.memory = _pinned_memory(size_bytes)
        return pinned


def _pinned_memory(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

"""Spaces as plain data: what an environment's observation and action are, without any environment library.

A :class:`SpaceSpec` is JSON-compatible both ways, so that it travels with an assignment to processes that import
neither gymnasium nor torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

SpaceKind = Literal["box", "discrete"]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one array element.

    Attributes:
        shape: Shape of one element, without batch axes.
        dtype: numpy dtype name, such as ``"float32"``.
    """

    shape: tuple[int, ...]
    dtype: str

    def size_bytes(self) -> int:
        """Bytes of one element."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """A space of observations or actions.

    Attributes:
        kind: ``"box"`` (arrays between bounds) or ``"discrete"`` (``n`` integers).
        shape: Shape of one element; ``()`` for discrete.
        dtype: numpy dtype name of one element.
        n: Number of values of a discrete space; 0 for others.
        start: Smallest value of a discrete space. Inside SRL actions always count from 0; the adapter adds ``start``.
        low: Lower bound of a box where it is one number for all elements, else ``None``.
        high: Upper bound likewise.
    """

    kind: SpaceKind
    shape: tuple[int, ...]
    dtype: str
    n: int = 0
    start: int = 0
    low: float | None = None
    high: float | None = None

    @property
    def array(self) -> ArraySpec:
        """Shape and dtype of one element."""
        return ArraySpec(self.shape, self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpaceSpec:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**data, "shape": tuple(data["shape"])})

    def describe(self) -> str:
        """Short text for messages, such as ``Box(4,) float32`` or ``Discrete(2)``."""
        if self.kind == "discrete":
            return f"Discrete({self.n})" + (f" from {self.start}" if self.start else "")
        return f"Box{self.shape} {self.dtype}"

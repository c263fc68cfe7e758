"""Spaces as plain data: what an environment's observation and action are, without any environment library.

A :class:`SpaceSpec` is JSON-compatible both ways, so that it travels with an assignment to processes that import
neither gymnasium nor torch.

Elements of nested spaces (Dict, Tuple) are numpy records: one structured dtype whose fields are the leaves, so that an
observation is one array ``[B]`` whatever its space, and slicing, copying and stacking never ask. The order of leaves
follows from their paths alone, never from the order in which somebody wrote the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SpaceKind = Literal["box", "discrete", "multi_discrete", "multi_binary", "dict", "tuple"]
Bound = float | tuple[float, ...] | None
NESTED: tuple[SpaceKind, ...] = ("dict", "tuple")


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one array element.

    Attributes:
        shape: Shape of one element, without batch axes.
        dtype: What ``numpy.dtype`` makes of it: a name such as ``"float32"``, or for records a list of fields such as
            ``"(3,)f4,(84,84)u1"``.
    """

    shape: tuple[int, ...]
    dtype: str

    def size_bytes(self) -> int:
        """Bytes of one element."""
        return prod(self.shape) * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space: the whole of a plain space, one entry of a nested one.

    Attributes:
        path: Keys from the root, joined by dots; ``""`` for a plain space.
        space: The plain space of the leaf.
        field: Name of the record's field that holds it; ``""`` for a plain space.
    """

    path: str
    space: SpaceSpec
    field: str

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """The leaf's part of ``array[...]`` of the whole space: a view ``[..., *space.shape]``."""
        view: NDArray[Any] = array[self.field] if self.field else array
        return view


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """A space of observations or actions.

    Attributes:
        kind: ``"box"`` (arrays between bounds), ``"discrete"`` (``n`` integers), ``"multi_discrete"`` (several such),
            ``"multi_binary"`` (zeros and ones), ``"dict"`` or ``"tuple"`` (nested).
        shape: Shape of one element; ``()`` for discrete and nested spaces.
        dtype: numpy dtype of one element; for nested spaces a record of all leaves.
        n: Number of values of a discrete space; 0 for others.
        start: Smallest value of a discrete space. Inside SRL values always count from 0; the adapter adds ``start``.
        low: Lower bound of a box: one number for all elements, one per element (C order; infinite where there is
            none), or ``None`` where there is none at all.
        high: Upper bound likewise.
        nvec: Number of values of each element of a multi-discrete space, in C order.
        starts: Smallest value of each; empty = all 0.
        children: Entries of a nested space: (key, space), in order of key for a dict, of index for a tuple.
    """

    kind: SpaceKind
    shape: tuple[int, ...]
    dtype: str
    n: int = 0
    start: int = 0
    low: Bound = None
    high: Bound = None
    nvec: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    children: tuple[tuple[str, SpaceSpec], ...] = ()

    @classmethod
    def nested(cls, kind: Literal["dict", "tuple"], entries: dict[str, SpaceSpec]) -> SpaceSpec:
        """A Dict or Tuple space; keys of a tuple are its indices as text. Entries may be nested themselves."""
        names = sorted(entries) if kind == "dict" else list(entries)
        children = tuple((name, entries[name]) for name in names)
        return cls(kind, (), record_dtype([leaf.space for leaf in _packing_order(children)]), children=children)

    @property
    def array(self) -> ArraySpec:
        """Shape and dtype of one element."""
        return ArraySpec(self.shape, self.dtype)

    def leaves(self) -> tuple[Leaf, ...]:
        """Every array of the space, in order of path (of index in tuples); the space itself if it is plain."""
        if self.kind not in NESTED:
            return (Leaf("", self, ""),)
        fields = {leaf.path: f"f{index}" for index, leaf in enumerate(_packing_order(self.children))}
        return tuple(Leaf(path, space, fields[path]) for path, space in _walk(self.children))

    def to_dict(self) -> dict[str, Any]:
        """JSON-compatible form."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "n": self.n,
            "start": self.start,
            "low": _bound_to_json(self.low),
            "high": _bound_to_json(self.high),
            "nvec": list(self.nvec),
            "starts": list(self.starts),
            "children": [[name, child.to_dict()] for name, child in self.children],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpaceSpec:
        """The inverse of :meth:`to_dict`."""
        return cls(
            kind=data["kind"],
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            n=data["n"],
            start=data["start"],
            low=_bound(data["low"], -inf),
            high=_bound(data["high"], inf),
            nvec=tuple(data["nvec"]),
            starts=tuple(data["starts"]),
            children=tuple((name, cls.from_dict(child)) for name, child in data["children"]),
        )

    def describe(self) -> str:
        """Short text for messages, such as ``Box(4,) float32``, ``Discrete(2)`` or ``Dict(a: Discrete(2))``."""
        if self.kind == "discrete":
            return f"Discrete({self.n})" + (f" from {self.start}" if self.start else "")
        if self.kind == "multi_discrete":
            return f"MultiDiscrete({', '.join(map(str, self.nvec))})"
        if self.kind == "multi_binary":
            return f"MultiBinary{self.shape}"
        if self.kind == "dict":
            return f"Dict({', '.join(f'{name}: {child.describe()}' for name, child in self.children)})"
        if self.kind == "tuple":
            return f"Tuple({', '.join(child.describe() for _, child in self.children)})"
        return f"Box{self.shape} {self.dtype}"


def record_dtype(spaces: list[SpaceSpec]) -> str:
    """The dtype text of a record whose fields ``f0, f1, ...`` are elements of plain spaces, padded to whole words."""
    fields = [f"{space.shape}{np.dtype(space.dtype).str[1:]}".replace(" ", "") for space in spaces]
    size = sum(space.array.size_bytes() for space in spaces)
    word = max((int(np.dtype(space.dtype).itemsize) for space in spaces), default=1)
    padding = -size % word
    return ",".join([*fields, *([f"({padding},)u1"] if padding else [])]) + ("," if len(fields) == 1 else "")


def stored_action(space: SpaceSpec) -> ArraySpec:
    """How a policy's action is stored in a block: boxes as float32, whatever the environment takes; the rest as is."""
    return stored_space(space).array


def stored_space(space: SpaceSpec) -> SpaceSpec:
    """The space of stored actions: its leaves are those of ``space``, in the same order, in fields of their own."""
    if space.kind in NESTED:
        return SpaceSpec.nested(
            "dict" if space.kind == "dict" else "tuple", {name: stored_space(child) for name, child in space.children}
        )
    return SpaceSpec("box", space.shape, "float32") if space.kind == "box" else space


def mask_size(space: SpaceSpec) -> int:
    """Entries of an action mask: one per value of every discrete choice, leaf by leaf; 0 if there is no choice."""
    return sum(leaf.space.n + sum(leaf.space.nvec) for leaf in space.leaves())


def _walk(children: tuple[tuple[str, SpaceSpec], ...], prefix: str = "") -> Iterator[tuple[str, SpaceSpec]]:
    for name, child in children:
        if child.kind in NESTED:
            yield from _walk(child.children, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _packing_order(children: tuple[tuple[str, SpaceSpec], ...]) -> list[Leaf]:
    """Leaves as they lie in the record: large words first, so that each is aligned without gaps."""
    leaves = [Leaf(path, space, "") for path, space in _walk(children)]
    return sorted(leaves, key=lambda leaf: (-np.dtype(leaf.space.dtype).itemsize, leaf.path))


def _bound_to_json(bound: Bound) -> Any:
    """JSON has no infinity: ``null`` stands for an element without bound."""
    return [one if isfinite(one) else None for one in bound] if isinstance(bound, tuple) else bound


def _bound(value: Any, absent: float) -> Bound:
    if not isinstance(value, (list, tuple)):
        return value  # type: ignore[no-any-return]  # a number or None
    return tuple(absent if one is None else one for one in value)

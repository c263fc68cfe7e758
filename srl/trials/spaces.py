"""Between what an environment's user holds (dicts, tuples, numbers) and the arrays a policy takes and gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.spaces import NESTED, Leaf, SpaceSpec


def batch_size(space: SpaceSpec, value: Any) -> int | None:
    """Number of observations in ``value``; ``None`` if it is a single one.

    Raises:
        UsageError: It has the structure or the number of axes of neither.
    """
    leaf, first = next(iter(_pairs(space, value)))
    axes = np.ndim(first) - len(leaf.space.shape)
    if axes not in (0, 1):
        raise _misfit(leaf, np.asarray(first), space)
    return None if axes == 0 else len(first)


def encode(space: SpaceSpec, value: Any, count: int | None) -> NDArray[Any]:
    """One array ``[B, ...]`` in the space's dtype, discrete values counted from 0.

    Args:
        space: The space.
        value: A value as the environment gives it; for a batch, one with an axis in front of every array.
        count: As :func:`batch_size` says; ``None`` = one value, and B is 1.

    Raises:
        UsageError: A part has another shape or dtype, or lies outside a discrete space.
    """
    result: NDArray[Any] = np.zeros((1 if count is None else count, *space.shape), space.dtype)
    for leaf, part in _pairs(space, value):
        array = np.asarray(part)
        front = () if count is None else (count,)
        if array.shape != (*front, *leaf.space.shape) or not _castable(array, leaf.space):
            raise _misfit(leaf, array, space)
        counted = array - _starts(leaf.space)
        _check_values(leaf, array, counted)
        leaf.of(result)[...] = counted
    return result


def decode(space: SpaceSpec, array: NDArray[Any], count: int | None) -> Any:
    """The inverse of :func:`encode`: dicts and tuples of arrays, with discrete values from their ``start``.

    Args:
        space: The space.
        array: ``[B, ...]`` in the space's dtype.
        count: ``None`` = the first (and only) element without its axis.
    """
    leaves = {leaf.path: leaf for leaf in space.leaves()}

    def build(part: SpaceSpec, prefix: str) -> Any:
        if part.kind in NESTED:
            entries = {name: build(child, f"{prefix}{name}.") for name, child in part.children}
            return entries if part.kind == "dict" else tuple(entries.values())
        values = leaves[prefix.removesuffix(".")].of(array)
        values = (values + _starts(part)).astype(part.dtype)
        return values if count is not None else values[0]

    return build(space, "")


def _pairs(space: SpaceSpec, value: Any) -> Iterator[tuple[Leaf, Any]]:
    """Every leaf with its part of ``value``."""
    leaves = iter(space.leaves())

    def walk(part: SpaceSpec, value: Any, path: str) -> Iterator[tuple[Leaf, Any]]:
        if part.kind not in NESTED:
            yield next(leaves), value
            return
        _check_keys(part, value, path)
        for name, child in part.children:
            inner = value[name] if part.kind == "dict" else value[int(name)]
            yield from walk(child, inner, f"{path}.{name}" if path else name)

    yield from walk(space, value, "")


def _check_keys(space: SpaceSpec, value: Any, path: str) -> None:
    wanted = [name for name, _ in space.children]
    if space.kind == "dict" and isinstance(value, Mapping):
        found = sorted(str(key) for key in value)
    elif space.kind == "tuple" and isinstance(value, tuple | list):
        found = [str(index) for index in range(len(value))]
    else:
        raise UsageError("not a value of the space", where=path, value=type(value).__name__, expected=space.describe())
    if found != wanted:
        raise UsageError("a value with other entries than the space", where=path, value=found, expected=str(wanted))


def _castable(array: NDArray[Any], space: SpaceSpec) -> bool:
    wanted = np.dtype(space.dtype)
    if wanted.kind == "f":
        return array.dtype.kind in "fiub"
    # Any whole number may come as any integer type; that it fits is checked by value.
    return array.dtype.kind in "iub"


def _check_values(leaf: Leaf, array: NDArray[Any], counted: NDArray[Any]) -> None:
    space = leaf.space
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UsageError("a value that is not finite", where=leaf.path, expected="finite numbers")
    if space.kind == "box" and np.dtype(space.dtype).kind in "iu" and array.size:
        bounds = np.iinfo(space.dtype)
        if array.min() < bounds.min or array.max() > bounds.max:
            raise UsageError("a value that the dtype cannot hold", where=leaf.path, expected=space.dtype)
    if space.kind in ("discrete", "multi_discrete", "multi_binary") and array.size:
        sizes = {"discrete": space.n, "multi_binary": 2}.get(space.kind) or np.reshape(space.nvec, space.shape)
        if (counted < 0).any() or (counted >= sizes).any():
            raise UsageError(
                "a value outside the space", where=leaf.path, value=array.tolist(), expected=space.describe()
            )


def _starts(space: SpaceSpec) -> Any:
    """What is between values inside SRL and those of the environment."""
    if space.kind == "discrete":
        return space.start
    return np.reshape(space.starts, space.shape) if space.starts else 0


def _misfit(leaf: Leaf, array: NDArray[Any], space: SpaceSpec) -> UsageError:
    return UsageError(
        "not an observation of this policy, nor a batch of them",
        where=leaf.path,
        value=f"shape {array.shape}, dtype {array.dtype}",
        expected=f"shape {leaf.space.shape} or (B, ...), dtype {leaf.space.dtype}",
        hint=f"The space is {space.describe()}.",
    )

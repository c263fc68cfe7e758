"""Values on their way between environments and blocks: nested observations into records, records into nested actions.

Everything goes by path: the order of the keys in what an environment returns never matters. What does not belong to the
declared space is an error that names the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from srl.api.errors import EnvironmentFault
from srl.api.spaces import NESTED, Leaf, SpaceSpec

Where = Callable[[], str]
"""Says which environment and step, only called for a message."""


def fits(array: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether the array has this shape and its values fit the dtype.

    Between float types precision may be lost (many environments compute in float64 under a float32 space); no other
    conversion that loses values fits.
    """
    if array.shape != shape:
        return False
    return np.can_cast(array.dtype, dtype, "safe") or (array.dtype.kind == "f" and dtype.kind == "f")


def misfit(field: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> EnvironmentFault:
    """The error for a value that does not fit the spec.

    Args:
        field: ``"observation"``, ``"observation at 'goal.0'"``, ``"reward"``, ...
        value: What the environment returned.
        shape: Expected shape.
        dtype: Expected dtype.
        where: Environment and step.
    """
    try:
        seen = np.asarray(value) if not isinstance(value, (dict, tuple)) else None
    except ValueError:  # a ragged list
        seen = None
    return EnvironmentFault(
        f"the {field} does not have the shape and dtype of the space the environment declares",
        where=where,
        value=type(value).__name__ if seen is None else f"shape {seen.shape}, dtype {seen.dtype}",
        expected=f"shape {shape}, dtype {dtype}",
        hint="Spaces must be fixed at the start, and observations must belong to them.",
    )


class ObservationWriter:
    """Writes what environments return into arrays of a space.

    Args:
        space: The space of one observation.
        field: What it is called in messages.
    """

    def __init__(self, space: SpaceSpec, field: str = "observation") -> None:
        leaves = {leaf.path: leaf for leaf in space.leaves()}
        self._root = _node(space, leaves, field, "")

    def write(self, value: Any, target: NDArray[Any], index: int, where: Where) -> None:
        """One observation into ``target[index]``.

        Args:
            value: As the environment returned it; not kept.
            target: ``[B, ...]`` in the space's dtype.
            index: Where to.
            where: For the message.

        Raises:
            EnvironmentFault: If it does not belong to the space, with the path of the part that does not.
        """
        self._root.write(value, target, index, (), where)

    def write_batch(self, value: Any, target: NDArray[Any], where: Where) -> None:
        """Observations of all environments, arrays ``[B, ...]`` in the nesting of the space, into ``target[B, ...]``.

        Arguments and errors as :meth:`write`.
        """
        self._root.write(value, target, slice(None), (len(target),), where)


class _LeafWriter:
    def __init__(self, leaf: Leaf, field: str) -> None:
        space = leaf.space
        self._field = leaf.field
        self._shape, self._dtype = space.shape, np.dtype(space.dtype)
        self._start = _start(space)
        self._name = f"{field} at '{leaf.path}'" if leaf.path else field
        self._values: Any = None
        if space.kind == "discrete":
            self._values = space.n
        elif space.kind == "multi_discrete":
            self._values = np.array(space.nvec).reshape(space.shape)
        elif space.kind == "multi_binary":
            self._values = 2

    def write(self, value: Any, target: NDArray[Any], index: Any, batch: tuple[int, ...], where: Where) -> None:
        view = target[self._field] if self._field else target
        view[index] = self._checked(value, batch + self._shape, where)

    def _checked(self, value: Any, shape: tuple[int, ...], where: Where) -> Any:
        is_array = isinstance(value, np.ndarray)
        if is_array and value.dtype == self._dtype and value.shape == shape and self._values is None:
            return value
        batched = len(shape) > len(self._shape)
        if isinstance(value, (dict, tuple)) or (batched and not is_array):
            raise misfit(self._name, value, shape, self._dtype, where())
        try:
            array = np.asarray(value)
        except ValueError:  # a ragged list
            raise misfit(self._name, value, shape, self._dtype, where()) from None
        if self._values is not None:
            return self._choices(array, shape, where)
        if not is_array and array.dtype.kind in "iub" and not isinstance(value, np.generic):
            array = _of_numbers(array, self._dtype)
        if not fits(array, shape, self._dtype):
            raise misfit(self._name, value, shape, self._dtype, where())
        return array

    def _choices(self, array: NDArray[Any], shape: tuple[int, ...], where: Where) -> NDArray[Any]:
        """Values of any integer type, counted from 0; networks index with them, so none may be out of range."""
        if array.shape != shape or array.dtype.kind not in "iub":
            raise misfit(self._name, array, shape, self._dtype, where())
        counted: NDArray[Any] = array.astype(np.int64) - self._start
        if (counted < 0).any() or (counted >= self._values).any():
            raise EnvironmentFault(
                f"the {self._name} is outside the space the environment declares",
                where=where(),
                value=array.tolist(),
                expected=f"integers from {np.asarray(self._start).tolist()}, "
                f"{np.asarray(self._values).tolist()} different ones",
            )
        return counted


def _of_numbers(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Python's whole numbers have no dtype of their own: as the dtype if that holds them exactly, else as they are."""
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    return converted if np.array_equal(converted, array) else array


class _BranchWriter:
    def __init__(self, space: SpaceSpec, children: list[tuple[Any, Any]], name: str) -> None:
        self._is_dict = space.kind == "dict"
        self._children = children
        self._keys = {key for key, _ in children}
        self._name = name

    def write(self, value: Any, target: NDArray[Any], index: Any, batch: tuple[int, ...], where: Where) -> None:
        if not self._matches(value):
            raise self._mismatch(value, where())
        for key, child in self._children:
            child.write(value[key], target, index, batch, where)

    def _matches(self, value: Any) -> bool:
        if self._is_dict:
            return isinstance(value, dict) and value.keys() == self._keys
        return isinstance(value, (tuple, list)) and len(value) == len(self._children)

    def _mismatch(self, value: Any, where: str) -> EnvironmentFault:
        seen = type(value).__name__
        if isinstance(value, dict):
            seen = f"a dict with the keys {sorted(map(str, value))}"
        elif isinstance(value, (tuple, list)):
            seen = f"a {seen} of {len(value)}"
        expected = (
            f"a dict with the keys {sorted(self._keys)}" if self._is_dict else f"a tuple of {len(self._children)}"
        )
        return EnvironmentFault(
            f"the {self._name} does not have the entries of the space the environment declares",
            where=where,
            value=seen,
            expected=expected,
            hint="Every entry must be there at every step, and no other.",
        )


def _node(space: SpaceSpec, leaves: dict[str, Leaf], field: str, path: str) -> Any:
    if space.kind not in NESTED:
        return _LeafWriter(leaves[path], field)
    prefix = f"{path}." if path else ""
    children = [
        (name if space.kind == "dict" else int(name), _node(child, leaves, field, f"{prefix}{name}"))
        for name, child in space.children
    ]
    return _BranchWriter(space, children, f"{field} at '{path}'" if path else field)


class ActionReader:
    """Makes the actions that environments take from arrays of the action space, always copies.

    Values get their ``start`` back and the dtype that the environment declares; a float64 box gets float64.

    Args:
        space: The action space of one agent.
        source: The same as the environment declares it.
    """

    def __init__(self, space: SpaceSpec, source: gymnasium.Space[Any]) -> None:
        self._space = space
        self._leaves = [_ActionLeaf(leaf, plain) for leaf, plain in zip(space.leaves(), _plain(source), strict=True)]
        self._nested = space.kind in NESTED

    def batch(self, action: NDArray[Any]) -> Any:
        """``[B, ...]`` actions as a vector environment takes them: arrays ``[B, ...]`` in the nesting of the space."""
        parts = [leaf.given(action) for leaf in self._leaves]
        return _assemble(self._space, iter(parts)) if self._nested else parts[0]

    def each(self, action: NDArray[Any]) -> Sequence[Any]:
        """``[B, ...]`` actions as B single ones, each the environment's own to keep or change."""
        parts = [leaf.split(leaf.given(action)) for leaf in self._leaves]
        if not self._nested:
            return parts[0]
        return [_assemble(self._space, iter(one)) for one in zip(*parts, strict=True)]


class _ActionLeaf:
    def __init__(self, leaf: Leaf, source: gymnasium.Space[Any]) -> None:
        self._leaf = leaf
        self._dtype: np.dtype[Any] = np.dtype(source.dtype)
        self._start = _start(leaf.space)
        self._shifted = bool(np.any(self._start))
        self._scalar = leaf.space.kind == "discrete"
        self._bounds = [
            bound
            for bound in ((source.low, source.high) if isinstance(source, spaces.Box) else ())
            if self._dtype == np.float64 and (bound.astype(np.float32) != bound).any()
        ]

    def given(self, action: NDArray[Any]) -> NDArray[Any]:
        array = self._leaf.of(action)
        # A copy in any case: an environment that keeps or changes its action must not reach the caller's array.
        copy: NDArray[Any] = array + self._start if self._shifted else array.astype(self._dtype, order="C")
        for bound in self._bounds:  # in float32 a bound may lie beyond itself
            np.copyto(copy, bound, where=array == bound.astype(np.float32))
        return copy.astype(self._dtype, copy=False)

    def split(self, array: NDArray[Any]) -> list[Any]:
        return list(array) if self._scalar else [array[index, ...] for index in range(len(array))]


def _start(space: SpaceSpec) -> Any:
    """Smallest values of a discrete kind: a number, or an array of the space's shape."""
    return np.array(space.starts).reshape(space.shape) if space.starts else space.start


def _plain(source: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    """The plain spaces of a nested one in the order of ``SpaceSpec.leaves``."""
    if isinstance(source, spaces.Dict):
        return [leaf for key in sorted(source.spaces) for leaf in _plain(source.spaces[key])]
    if isinstance(source, spaces.Tuple):
        return [leaf for entry in source.spaces for leaf in _plain(entry)]
    return [source]


def _assemble(space: SpaceSpec, parts: Any) -> Any:
    if space.kind == "dict":
        return {name: _assemble(child, parts) for name, child in space.children}
    if space.kind == "tuple":
        return tuple(_assemble(child, parts) for _, child in space.children)
    return next(parts)

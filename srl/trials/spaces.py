"""Between what an environment's user holds (dicts, tuples, numbers) and the arrays a policy takes and gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import UsageError
from srl.api.spaces import NESTED, SpaceSpec
from srl.environments.values import ObservationWriter


def batch_size(space: SpaceSpec, value: Any) -> int | None:
    """Number of observations in ``value``; ``None`` if it is a single one.

    Raises:
        UsageError: It has the structure or the number of axes of neither.
    """
    plain, part = _first(space, value, "")
    axes = np.ndim(part) - len(plain.shape)
    if axes not in (0, 1):
        raise UsageError(
            "neither an observation of this policy nor a batch of them",
            value=f"shape {np.shape(part)}",
            expected=f"shape {plain.shape} or (B, {', '.join(map(str, plain.shape))})",
            hint=f"The space is {space.describe()}.",
        )
    return None if axes == 0 else len(part)


def encode(space: SpaceSpec, value: Any, count: int | None) -> NDArray[Any]:
    """One array ``[B, ...]`` in the space's dtype, discrete values counted from 0.

    Args:
        space: The space.
        value: A value as the environment gives it; for a batch, one with an axis in front of every array.
        count: As :func:`batch_size` says; ``None`` = one value, and B is 1.

    Raises:
        EnvironmentFault: A part has another shape or dtype, or lies outside a discrete space.
        UsageError: A number is not finite.
    """
    result: NDArray[Any] = np.zeros((1 if count is None else count, *space.shape), space.dtype)
    writer = ObservationWriter(space)
    if count is None:
        writer.write(value, result, 0, _where)
    else:
        writer.write_batch(value if space.kind in NESTED else np.asarray(value), result, _where)
    for leaf in space.leaves():
        part = leaf.of(result)
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise UsageError("an observation that is not finite", where=leaf.path, expected="finite numbers")
    return result


def decode(space: SpaceSpec, array: NDArray[Any], count: int | None) -> Any:
    """Actions as the environment takes them: dicts and tuples of arrays, discrete values from their ``start``.

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
        start = np.reshape(part.starts, part.shape) if part.starts else part.start
        values = (leaves[prefix.removesuffix(".")].of(array) + start).astype(part.dtype)
        return values if count is not None else values[0]

    return build(space, "")


def _first(space: SpaceSpec, value: Any, path: str) -> tuple[SpaceSpec, Any]:
    """The first plain space below, and the part of ``value`` that belongs to it."""
    if space.kind not in NESTED:
        return space, value
    name, child = space.children[0]
    try:
        part = value[name] if space.kind == "dict" else value[int(name)]
    except (KeyError, IndexError, TypeError):
        raise UsageError(
            "not an observation of this policy", where=path, value=type(value).__name__, expected=space.describe()
        ) from None
    return _first(child, part, f"{path}.{name}" if path else name)


def _where() -> str:
    return "policy.act"

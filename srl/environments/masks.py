"""Action masks: where environments put them, and their way into ``StepOutput.action_mask``.

=============== =====================================================================================
``info``        ``info["action_mask"]`` of every reset and step
``observation`` the key ``action_mask`` of a Dict observation, which is taken out of the observation
``method``      the method ``action_masks()`` of the environment, asked after every reset and step
=============== =====================================================================================

A mask has one entry per value of every discrete choice, true where it is legal: one flat array over all choices (as in
sb3-contrib), or nested as the action space is, with one array per choice for a MultiDiscrete (as ``Space.sample`` takes
it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from srl.api.errors import EnvironmentFault
from srl.api.spaces import NESTED, SpaceSpec, mask_size
from srl.environments.spaces import MASK_KEY
from srl.environments.values import Where

MaskSource = Literal["info", "observation", "method"]


class MaskReader:
    """Turns what an environment gives as a mask into rows of ``bool[B, M]``.

    Args:
        action: The action space.
        source: Where the masks are, for messages.
    """

    def __init__(self, action: SpaceSpec, source: MaskSource) -> None:
        self._action = action
        self._size = mask_size(action)
        self.source = source

    def write(self, mask: Any, target: NDArray[np.bool_], where: Where) -> None:
        """One mask into ``target[M]``.

        Raises:
            EnvironmentFault: If there is none, or it is not one of M truth values.
        """
        if mask is None:
            raise self._missing(where())
        target[...] = self._flat(mask, (), where)

    def write_batch(
        self, mask: Any, present: Any, rows: NDArray[np.bool_], target: NDArray[np.bool_], where: Where
    ) -> None:
        """Masks of a vector environment into rows of ``target[B, M]``.

        Args:
            mask: One array with a leading axis of B, B single masks, or a dict of either as ``VectorEnv`` makes it of
                nested masks.
            present: ``bool[B]`` where ``mask`` holds one (``info["_action_mask"]``); ``None`` = everywhere.
            rows: ``bool[B]`` rows that need one; the others are left alone.
            target: Where to.
            where: For the message.

        Raises:
            EnvironmentFault: As :meth:`write`.
        """
        there = (
            np.full(len(rows), mask is not None) if mask is None or present is None else np.asarray(present, np.bool_)
        )
        if (rows & ~there).any():
            raise self._missing(where(), int(np.flatnonzero(rows & ~there)[0]))
        if isinstance(mask, np.ndarray) and mask.dtype != object:
            target[rows] = self._flat(mask, (len(target),), where)[rows]
            return
        for row in np.flatnonzero(rows).tolist():
            self.write(_row(mask, row), target[row], lambda row=row: f"{where()}, environment {row}")  # type: ignore[misc]

    def _flat(self, mask: Any, batch: tuple[int, ...], where: Where) -> NDArray[np.bool_]:
        try:
            parts = [np.asarray(part) for part in _parts(mask, self._action)]
            if any(part.dtype.kind not in "biuf" or part.shape[: len(batch)] != batch for part in parts):
                raise self._misfit(mask, where())
            flat = np.concatenate([part.reshape(*batch, -1) for part in parts], axis=-1)
        except (KeyError, IndexError, ValueError):
            raise self._misfit(mask, where()) from None
        if flat.shape[-1] != self._size or ((flat != 0) & (flat != 1)).any():
            raise self._misfit(mask, where())
        return flat.astype(np.bool_, copy=False)

    def _missing(self, where: str, row: int | None = None) -> EnvironmentFault:
        return EnvironmentFault(
            "the environment gives no action mask",
            where=where if row is None else f"{where}, environment {row}",
            expected=f"one after every reset and step, as environment.{MASK_KEY} is {self.source}",
        )

    def _misfit(self, mask: Any, where: str) -> EnvironmentFault:
        seen = f"shape {mask.shape}, dtype {mask.dtype}" if isinstance(mask, np.ndarray) else repr(mask)
        return EnvironmentFault(
            "the action mask does not fit the action space",
            where=where,
            value=seen,
            expected=f"{self._size} truth values (or 0 and 1) for {self._action.describe()}",
        )


def split_mask(observation: Any, where: Where) -> tuple[Any, Any]:
    """A Dict observation without its mask, and the mask.

    Raises:
        EnvironmentFault: If it is no dict.
    """
    if not isinstance(observation, Mapping):
        raise EnvironmentFault(
            "the observation is no dict that could hold an action mask", where=where(), value=type(observation).__name__
        )
    rest = {key: value for key, value in observation.items() if key != MASK_KEY}
    return rest, observation.get(MASK_KEY)


def _row(masks: Any, row: int) -> Any:
    """The mask of one environment."""
    if isinstance(masks, Mapping):
        return {key: _row(entry, row) for key, entry in masks.items()}
    return masks[row]


def _parts(mask: Any, space: SpaceSpec) -> Iterator[Any]:
    """The arrays of a mask in the order of ``SpaceSpec.leaves``; other keys of a dict say what is there."""
    if space.kind in NESTED and isinstance(mask, (Mapping, tuple)):
        for index, (name, child) in enumerate(space.children):
            key: Any = name if space.kind == "dict" else index
            if mask_size(child):
                yield from _parts(mask[key], child)
    elif space.kind == "multi_discrete" and isinstance(mask, (tuple, list)) and np.iterable(mask[0]):
        yield from mask
    else:
        yield mask

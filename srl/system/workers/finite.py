"""NaN and infinite values from environments: found in the step that brought them, before any policy sees them."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import StepOutput
from srl.api.errors import NonFiniteError

OnNonFinite = Literal["stop", "skip", "replace"]


class RowCheck:
    """The floating-point arrays of one row, watched.

    A dot product with itself is the cheapest test that no NaN or infinity passes (0.4 us for 64 numbers); it may also
    fail for huge finite numbers, so a failure only asks for the exact look.

    Args:
        arrays: Name to array; integer arrays are left out.
    """

    __slots__ = ("_flat", "arrays")

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
        self._flat = [array.reshape(-1) for array in self.arrays.values()]

    def passes(self) -> bool:
        """True if certainly all is finite."""
        return all(math.isfinite(flat.dot(flat)) for flat in self._flat)


class FiniteGuard:
    """What happens to NaN and infinite values, as the experiment says.

    Args:
        mode: ``stop`` raises; ``skip`` marks the block (:attr:`fault`) and puts zeros where the bad values were, so
            that the environments can go on; ``replace`` puts zeros and counts.

    Attributes:
        fault: The first bad value of the open block (mode ``skip``).
        replaced: Bad values so far, each of which a zero stands for.
    """

    def __init__(self, mode: OnNonFinite) -> None:
        self.fault: NonFiniteError | None = None
        self.replaced = 0
        self._first: NonFiniteError | None = None
        self._mode = mode

    def watch(self, out: StepOutput) -> RowCheck:
        """The check of one row's observation and reward."""
        return RowCheck({"observation": out.observation, "reward": out.reward})

    def check(self, row: RowCheck, where: str) -> None:
        """Look closely at a row.

        Raises:
            NonFiniteError: In mode ``stop``, naming field, environment and value.
        """
        for name, array in row.arrays.items():
            self.check_array(name, array, where)

    def check_array(self, name: str, array: NDArray[Any], where: str) -> None:
        """Look closely at one array ``[B, ...]``; arguments and errors as :meth:`check`."""
        if array.dtype.kind != "f":
            return
        finite = np.isfinite(array)
        if finite.all():
            return
        first = tuple(int(axis[0]) for axis in np.nonzero(~finite))
        error = NonFiniteError(
            f"the {name} of environment {first[0]} is not finite",
            where=where,
            value=float(array[first]),
            expected="finite numbers",
            hint="Mend the environment, or set on_non_finite to skip or replace.",
        )
        if self._mode == "stop":
            raise error
        array[~finite] = 0
        if self._mode == "replace" and not self.replaced:
            self._first = error
        self.replaced += int(finite.size - np.count_nonzero(finite))
        if self._mode == "skip" and self.fault is None:
            self.fault = error

    def take_fault(self) -> NonFiniteError | None:
        """The first fault since the last call (mode ``skip``): the open block must not be sent."""
        fault, self.fault = self.fault, None
        return fault

    def take_first_replaced(self) -> NonFiniteError | None:
        """The first bad value that was replaced (mode ``replace``), said once; those after it are only counted."""
        first, self._first = self._first, None
        return first

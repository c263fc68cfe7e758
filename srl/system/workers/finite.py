"""NaN and infinite values from environments: found in the step that brought them, before any policy sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import Ended, EnvironmentSpec, StepOutput
from srl.api.errors import NonFiniteError
from srl.system.workers.columns import column_name

OnNonFinite = Literal["stop", "skip", "replace"]
Marks = Mapping[str, NDArray[np.bool_]]


class RowCheck:
    """The floating-point arrays of one row, watched: those of plain spaces and the leaves of nested ones.

    A dot product with itself is the cheapest test that no NaN or infinity passes (0.4 us for 64 numbers); it may also
    fail for huge finite numbers, so a failure only asks for the exact look. Leaves of records do not lie side by side,
    and are looked at exactly at once: no copy of them is ever made.

    Args:
        arrays: Name to array ``[B, ...]``; integer arrays are left out.
        marks: ``observation`` and ``reward`` to ``bool[B]``, where the block says that a zero stands for a value;
            empty where it does not say so.

    Attributes:
        arrays: As above.
        marks: As above.
    """

    __slots__ = ("_flat", "_strided", "arrays", "marks")

    def __init__(self, arrays: dict[str, NDArray[Any]], marks: Marks | None = None) -> None:
        self.marks: Marks = marks or {}
        self.arrays = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
        self._flat = [array.reshape(-1) for array in self.arrays.values() if array.flags.c_contiguous]
        self._strided = [array for array in self.arrays.values() if not array.flags.c_contiguous]

    def passes(self) -> bool:
        """True if certainly all is finite."""
        if not all(math.isfinite(flat.dot(flat)) for flat in self._flat):
            return False
        return not self._strided or all(np.isfinite(array).all() for array in self._strided)


class FiniteGuard:
    """What happens to NaN and infinite values, as the experiment says.

    Args:
        mode: ``stop`` raises; ``skip`` marks the block (:attr:`fault`) and puts zeros where the bad values were, so
            that the environments can go on; ``replace`` puts zeros and counts. Rows with such zeros are marked, so that
            they enter no statistic (with ``skip`` that is row 0 of the next block).

    Attributes:
        fault: The first bad value of the open block (mode ``skip``).
        replaced: Bad values so far, each of which a zero stands for.
    """

    def __init__(self, mode: OnNonFinite) -> None:
        self.fault: NonFiniteError | None = None
        self.replaced = 0
        self._first: NonFiniteError | None = None
        self._mode = mode

    def watch(self, out: StepOutput, environment: EnvironmentSpec, marks: Marks | None = None) -> RowCheck:
        """The check of one row's observation and reward; marks as in :class:`RowCheck`."""
        return RowCheck({**_named_leaves("observation", out.observation, environment), "reward": out.reward}, marks)

    def check(self, row: RowCheck, environment: EnvironmentSpec, where: str) -> None:
        """Look closely at a row.

        Args:
            row: The row.
            environment: Whose it is.
            where: Who steps it and at which step, for the message.

        Raises:
            NonFiniteError: In mode ``stop``, naming field, environment and value.
        """
        for name, array in row.arrays.items():
            finite = self._check_array(name, array, range(len(array)), environment, where)
            if finite is not None and row.marks:
                row.marks[name.partition(" ")[0]][~finite.reshape(len(finite), -1).all(axis=1)] = True

    def check_final(self, ended: Ended, environment: EnvironmentSpec, where: str) -> None:
        """Look closely at final observations; arguments and errors as :meth:`check`."""
        leaves = _named_leaves("final_observation", ended.final_observation, environment)
        for name, array in leaves.items():
            if array.dtype.kind == "f":
                self._check_array(name, array, ended.columns, environment, where)

    def _check_array(
        self,
        name: str,
        array: NDArray[Any],
        columns: Sequence[int] | NDArray[np.int64],
        environment: EnvironmentSpec,
        where: str,
    ) -> NDArray[np.bool_] | None:
        """Look closely at one array of floats; ``columns`` says which column each of its rows is.

        Returns:
            What was finite, ``bool`` of the array's shape; ``None`` = all of it.
        """
        finite: NDArray[np.bool_] = np.isfinite(array)
        if finite.all():
            return None
        first = tuple(int(axis[0]) for axis in np.nonzero(~finite))
        error = NonFiniteError(
            f"the {name} of {column_name(environment, columns[first[0]])} is not finite",
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
        return finite

    def take_fault(self) -> NonFiniteError | None:
        """The first fault since the last call (mode ``skip``): the open block must not be sent."""
        fault, self.fault = self.fault, None
        return fault

    def take_first_replaced(self) -> NonFiniteError | None:
        """The first bad value that was replaced (mode ``replace``), said once; those after it are only counted."""
        first, self._first = self._first, None
        return first


def _named_leaves(name: str, array: NDArray[Any], environment: EnvironmentSpec) -> dict[str, NDArray[Any]]:
    """Views on the arrays in ``array[...]`` of observations: itself if the space is plain, else its leaves by path."""
    leaves = environment.observation.leaves()
    return {f"{name} '{leaf.path}'" if leaf.path else name: leaf.of(array) for leaf in leaves}

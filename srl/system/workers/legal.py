"""Action masks under which no action is legal: found in the step that brought them, before any policy sees them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from srl.api.environment import EnvironmentSpec
from srl.api.errors import EnvironmentFault
from srl.api.spaces import Leaf
from srl.system.workers.columns import column_name


class LegalActions:
    """Looks at the masks of rows that will be decided on.

    Args:
        environment: Whose masks they are; its action space says where one discrete choice ends and the next begins.
    """

    def __init__(self, environment: EnvironmentSpec) -> None:
        self._environment = environment
        choices = [choice for leaf in environment.action.leaves() for choice in _choices(leaf)]
        self._names = [name for name, _ in choices]
        self._starts: NDArray[np.intp] = np.cumsum([0, *(values for _, values in choices)])[:-1]

    def check(self, mask: NDArray[np.bool_], valid: NDArray[np.bool_], where: object, step: int) -> None:
        """Every choice of every column with a transition needs a legal action.

        Args:
            mask: ``bool[B, M]``.
            valid: ``bool[B]``; nobody decides on the other columns.
            where: Who steps the environments, for the message.
            step: Number of the step that is to be decided on.

        Raises:
            EnvironmentFault: Naming environment, agent, choice and step.
        """
        legal = np.logical_or.reduceat(mask, self._starts, axis=1)
        if legal.all():
            return
        stuck = ~legal & valid[:, None]
        if stuck.any():
            column, choice = (int(axis[0]) for axis in np.nonzero(stuck))
            raise EnvironmentFault(
                f"no action is legal in {column_name(self._environment, column)}{self._names[choice]}",
                where=f"{where}, step {step}",
                value=f"a mask of {len(self._names)} choices without a legal value in number {choice}",
                expected="at least one legal action for every choice, until the episode ends",
                hint="End the episode in the environment where nothing is left to do, or allow an action that does "
                "nothing.",
            )


def _choices(leaf: Leaf) -> Iterator[tuple[str, int]]:
    """Every discrete choice of a leaf in the order of the mask: what messages add to name it, number of values."""
    path = f", action '{leaf.path}'" if leaf.path else ""
    if leaf.space.kind == "discrete":
        yield path, leaf.space.n
    for index, values in enumerate(leaf.space.nvec):
        yield f"{path or ', action'}, element {index}", values

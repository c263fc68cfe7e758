"""The recurrent state of a batch of columns, kept by whoever steps their environments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RecurrentState:
    """States from one decision to the next: ``current`` goes with the question, the other two come with the answer.

    The policy itself puts its initial state in the place of ``current`` where an episode starts, and says in ``used``
    what it went by; so nothing here has to know where episodes start.

    Args:
        columns: B.
        size: S, at least 1.

    Attributes:
        current: ``float32[B, S]`` before the decision (:attr:`srl.api.policy.ActInput.state`).
        following: ``float32[B, S]`` after it (:attr:`srl.api.policy.ActOutput.state`).
        used: ``float32[B, S]`` what the decision went by (:attr:`srl.api.policy.ActOutput.used_state`).
    """

    __slots__ = ("current", "following", "used")

    def __init__(self, columns: int, size: int) -> None:
        self.current: NDArray[np.float32] = np.zeros((columns, size), np.float32)
        self.following: NDArray[np.float32] = np.zeros((columns, size), np.float32)
        self.used: NDArray[np.float32] = np.zeros((columns, size), np.float32)

    def advance(self, valid: NDArray[np.bool_]) -> None:
        """The decision is there: take over what follows it.

        Args:
            valid: ``bool[B]``; a column without a transition keeps the state that was used, whatever the policy says.
        """
        if valid.all():
            self.current[...] = self.following
        else:
            self.current[...] = np.where(valid[:, None], self.following, self.used)

"""Acting in numpy: actors of this policy import no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srl.api.policy import ActingPolicy, ActInput, ActOutput


class Acting(ActingPolicy):
    """The forward pass of :class:`srl_example.learning.Module`, and a sample of its distribution."""

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Copy a version's weights."""
        self._weights = {name: np.array(array) for name, array in parameters.items()}

    def act(self, batch: ActInput, out: ActOutput, *, deterministic: bool = False) -> None:
        """Write an action and a value per row, into the arrays of ``out``."""
        hidden = np.tanh(self._linear("hidden", batch.observation))
        logits = self._linear("logits", hidden)
        if deterministic:
            out.action[...] = logits.argmax(axis=1)
        else:
            probability = np.exp(logits - logits.max(axis=1, keepdims=True))
            cumulative = np.cumsum(probability, axis=1, dtype=np.float64)
            threshold = batch.noise * cumulative[:, -1:]  # noise: one uniform per row, [B, 1]
            out.action[...] = (cumulative[:, :-1] <= threshold).sum(axis=1)
        out.extras["value"][...] = self._linear("value", hidden)[:, 0]

    def _linear(self, name: str, features: NDArray[np.float32]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = features @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return result

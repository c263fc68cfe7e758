"""The part with torch, imported in trainers only: the module, and the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from srl.api.algorithm import Algorithm, Batch, TrainerContext
from srl.api.policy import PolicySpec


class Module(nn.Module):
    """One hidden layer under logits and a value."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        hidden = spec.options["hidden"]
        self.hidden = nn.Linear(spec.observation.shape[0], hidden)
        self.logits = nn.Linear(hidden, spec.action.n)
        self.value = nn.Linear(hidden, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[B, A]`` and values ``[B]``."""
        hidden = torch.tanh(self.hidden(observation))
        return self.logits(hidden), self.value(hidden).squeeze(1)


class Learning(Algorithm):
    """One gradient step per batch."""

    def __init__(self, config: Any, trainer: TrainerContext) -> None:
        super().__init__(config, trainer)
        self.optimizer = trainer.optimizer(learning_rate=config.learning_rate, epsilon=1e-8, max_gradient_norm=1.0)

    def update(self, batch: Batch) -> dict[str, float]:
        """Policy gradient with the advantage over the value, and half the squared error of the value."""
        valid = batch["valid"]
        target = self._tensor(self.returns(batch)[valid])
        logits, value = self.trainer.policy(self._tensor(batch["observation"][:-1][valid]))
        log_probabilities = torch.log_softmax(logits, dim=1)
        action = self._tensor(batch["action"][valid]).unsqueeze(1)
        log_probability = log_probabilities.gather(1, action).squeeze(1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=1)
        error = target - value
        loss = 0.5 * error**2 - error.detach() * log_probability - self.config.entropy_coefficient * entropy
        norm = self.trainer.step(self.optimizer, loss_sum=loss.sum(), valid_count=batch.valid_rows)
        return {
            "loss": float(loss.detach().mean()),
            "entropy": float(entropy.detach().mean()),
            "gradient_norm": norm,
        }

    def returns(self, batch: Batch) -> NDArray[np.float32]:
        """Discounted returns ``float32[T, C]``: 0 behind a termination, the value behind a truncation and row T.

        Rows without a transition pass the recursion through unchanged.
        """
        following = self._values(batch["observation"][-1])
        final_values = self._values(batch["final_observation"])
        result = np.zeros_like(batch["reward"])
        for row in range(len(result) - 1, -1, -1):
            valid, terminated, truncated = (batch[name][row] for name in ("valid", "terminated", "truncated"))
            ended = valid & truncated & ~terminated
            following = np.where(valid & terminated, np.float32(0), following)
            following[ended] = final_values[batch["final_row"][row][ended]]
            following = np.where(valid, batch["reward"][row] + np.float32(self.config.gamma) * following, following)
            result[row] = following
        return result

    def state(self) -> dict[str, Any]:
        """Nothing beside the weights and the optimizer, which the trainer saves."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

    def _values(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            values: NDArray[np.float32] = self.trainer.policy(self._tensor(observation))[1].cpu().numpy()
        return values

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        # Memory of torch's own: its alignment is the same in every process, and with it the result.
        return torch.from_numpy(array).clone().to(self.trainer.device)

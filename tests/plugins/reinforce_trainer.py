"""The part of ``reinforce.py`` that needs torch."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from srl.api.algorithm import Algorithm, Batch
from srl.api.errors import NonFiniteError
from srl.api.policy import PolicySpec


class LinearPolicy(torch.nn.Module):
    """Logits and a value."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        size = spec.observation.shape[0]
        self.logits = torch.nn.Linear(size, 2)
        self.value = torch.nn.Linear(size, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[B, 2]`` and values ``[B]``."""
        return self.logits(observation), self.value(observation)[:, 0]


class OddPolicy(LinearPolicy):
    """One bias comes from numpy's global generator, which every worker seeds differently."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        with torch.no_grad():
            self.value.bias.fill_(float(np.random.random()))


class ReinforceAlgorithm(Algorithm):
    """One step per update."""

    def __init__(self, config: Any, trainer: Any) -> None:
        super().__init__(config, trainer)
        self.optimizer = trainer.optimizer(learning_rate=config.learning_rate, epsilon=1e-3, max_gradient_norm=0.5)
        self._fault = config.fault

    def update(self, batch: Batch) -> dict[str, float]:
        """Sums over valid rows."""
        trainer = self.trainer
        is_time = trainer.version == 2 and bool(self._fault)
        fault, self._fault = (self._fault, "") if is_time else ("", self._fault)
        valid = batch["valid"]
        rows = int(valid.sum())
        observation = torch.from_numpy(batch["observation"][:-1][valid])
        action = torch.from_numpy(batch["action"][valid])
        good = torch.from_numpy(np.where(batch["terminated"][valid], -1.0, 1.0).astype(np.float32))
        logits, value = trainer.policy(observation)
        chosen = torch.log_softmax(logits, 1).gather(1, action[:, None])[:, 0]
        loss = (0.5 * (value - 1.0 - observation.sum(1)) ** 2 - good * chosen).sum()
        if fault:
            loss = self._spoil(fault, loss)
        norm = trainer.step(self.optimizer, valid_count=rows, loss_sum=loss)
        total = trainer.reduce(rows)
        metrics = {"loss": trainer.reduce(float(loss.detach())) / total, "norm": norm, "rows": total}
        metrics["draw"] = float(trainer.generator.random())
        self._record(batch, rows, metrics)
        return metrics

    def _spoil(self, fault: str, loss: torch.Tensor) -> torch.Tensor:
        is_here = self.trainer.rank == 1
        if fault == "nan_agreed":
            problem = NonFiniteError("a target is not finite", where="row 3", value=float("inf"))
            self.trainer.agree(problem if is_here else None)
        if not is_here:
            return loss
        match fault:
            case "nan":
                return loss * float("nan")
            case "raise":
                raise ValueError("boom-47")
            case "diverge":
                with torch.no_grad():
                    self.trainer.policy.value.bias.add_(1.0)
            case "hang":
                threading.Event().wait()
        return loss

    def _record(self, batch: Batch, rows: int, metrics: Mapping[str, float]) -> None:
        if not self.config.directory:
            return
        line = {
            "version": self.trainer.version,
            "progress": self.trainer.progress,
            "rows": rows,
            "blocks": [[header.actor, header.ring_group, header.sequence] for header in batch.headers],
            "metrics": dict(metrics),
        }
        with open(Path(self.config.directory) / f"rank-{self.trainer.rank}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def state(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing."""

"""The part of ``recording.py`` that needs torch."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from srl.algorithms.ppo.trainer import PPOAlgorithm
from srl.api.algorithm import Batch
from srl.api.policy import PolicySpec


class TablePolicy(torch.nn.Module):
    """Logits that depend on nothing, and a value per observation number; its own network."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.spec = spec
        self.return_statistics = self.popart = None  # PPO keeps no statistics in it
        self.table = torch.nn.Parameter(torch.tensor(spec.network["values"], dtype=torch.float32))
        self.logits = torch.nn.Parameter(torch.zeros(spec.action.n))

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[B, A]`` and values ``[B]``."""
        count = len(observation)
        index = observation.reshape(count, -1)[:, 0].long().clamp(0, len(self.table) - 1)
        return self.logits.expand(count, -1).clone(), self.table[index]

    @property
    def network(self) -> TablePolicy:
        """What PPO asks for the values that targets end with."""
        return self

    def inputs(self, observation: NDArray[Any]) -> torch.Tensor:
        """Of a whole array ``[N, ...]``."""
        return torch.from_numpy(observation.copy())

    def prepare(self) -> tuple[()]:
        """Nothing is converted."""
        return ()

    def compute(self, inputs: torch.Tensor, prepared: object, state: None) -> tuple[torch.Tensor, torch.Tensor, None]:
        """One step; there is no recurrent state."""
        return *self(inputs), None


class RecordingPPO(PPOAlgorithm):
    """Writes every batch, with the advantages that PPO computes of it, to a file; trains on none."""

    def update(self, batch: Batch) -> dict[str, float]:
        """Record, and what else the options say."""
        config: Any = self.config
        version = self.trainer.version
        if config.directory:
            self._record(Path(config.directory), version, batch)
        if config.update_seconds:
            time.sleep(config.update_seconds)
        while config.hold_file and not Path(config.hold_file).exists():
            threading.Event().wait(0.05)
        if config.stamp:
            with torch.no_grad():
                self.trainer.policy.table.fill_(version + 1)
        return {}

    def _record(self, directory: Path, version: int, batch: Batch) -> None:
        arrays = dict(batch.fields)
        for index, (gamma, gae_lambda) in enumerate(self.config.targets):
            configured = self.config
            self.config = configured.model_copy(update={"gamma": gamma, "gae_lambda": gae_lambda})
            arrays[f"advantages_{index}"] = self.advantages(batch)
            self.config = configured
        for name in ("actor", "ring_group", "sequence", "length", "min_version"):
            arrays[f"header_{name}"] = np.array([getattr(header, name) for header in batch.headers])
        directory.mkdir(parents=True, exist_ok=True)
        written = directory / f"update-{version:05d}.tmp"
        with written.open("wb") as file:
            np.savez(file, **arrays)
        written.rename(written.with_suffix(".npz"))
